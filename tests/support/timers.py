"""Answers of systemd-analyze about calendar events, as recorded by scripts/judge_timers.py."""

import gzip
import json
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple
from zoneinfo import ZoneInfo

from joex.core.timers import Timer

RECORD = Path(__file__).resolve().parent.parent / "unit" / "timers.jsonl.gz"


class Answer(NamedTuple):
    """The answer about one expression."""

    normal: str
    elapses: list[datetime | None]
    """In whole seconds, as the judge prints them; None, as the last one: there is no more."""


class Round(NamedTuple):
    """The answers in one zone, from one time on."""

    zone: str
    base: datetime
    answers: dict[str, Answer | None]
    """By expression. None: the judge refuses it."""


def write_record(judge: str, rounds: Iterable[Round]) -> None:
    """Write a line about the judge, and one of each round. Equal rounds make equal files."""
    lines = [json.dumps({"judge": judge}), *map(_to_line, rounds)]
    RECORD.write_bytes(gzip.compress("\n".join(lines).encode() + b"\n", mtime=0))


def read_record() -> Iterator[Round]:
    """The recorded rounds."""
    _, *lines = gzip.decompress(RECORD.read_bytes()).decode().splitlines()
    return map(_from_line, lines)


def _to_line(told: Round) -> str:
    start = told.base.replace(microsecond=0)
    answers = {
        expression: answer and [answer.normal, *(at and (at - start) // timedelta(seconds=1) for at in answer.elapses)]
        for expression, answer in told.answers.items()
    }
    return json.dumps({"zone": told.zone, "base": told.base.isoformat(), "answers": answers}, separators=(",", ":"))


def _from_line(line: str) -> Round:
    zone, text, answers = json.loads(line).values()
    base = datetime.fromisoformat(text)
    start = base.replace(microsecond=0)
    return Round(zone, base, {
        expression: answer and Answer(
            answer[0], [None if passed is None else start + timedelta(seconds=passed) for passed in answer[1:]]
        )
        for expression, answer in answers.items()
    })  # fmt: skip


def differences(told: Round) -> Iterator[str]:
    """The differences between the code and the judge."""
    for expression, answer in told.answers.items():
        ours = _ours(expression, told, len(answer.elapses) if answer else 0)
        if ours != answer:
            yield f"{expression!r} in {told.zone} after {told.base}: expected {answer}; got {ours}"


def _ours(expression: str, told: Round, wanted: int) -> Answer | None:
    try:
        timer = Timer.parse(expression)
    except ValueError:
        return None
    elapses: list[datetime | None] = []
    at: datetime | None = told.base
    while len(elapses) < wanted and at is not None:
        at = timer.next(at, ZoneInfo(told.zone))
        elapses.append(at and at.replace(microsecond=0))
    return Answer(timer.normal, elapses)

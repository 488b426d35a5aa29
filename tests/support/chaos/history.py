"""The history of a run: lines of JSON that the tasks and the driver append to one file, outside of the database.

All processes are on one machine, so their monotonic clocks are the same.
"""

import json
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

Line: TypeAlias = dict[str, Any]


class Writer:
    """Appends lines to the history. Each is one write, so those of several processes do not mix."""

    def __init__(self, path: Path | str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def note(self, what: str, **fields: Any) -> None:
        """Append a line, with the time."""
        line = {"is": what, "at": time.monotonic(), **fields}
        os.write(self._file, (json.dumps(line, default=str) + "\n").encode())


@dataclass
class Run:
    """A run of a job, by its lines. It was at work from the first to the last; nothing proves more."""

    lock: str
    job: str
    task: str
    group: str
    pid: int
    began: float
    last: float
    is_exclusive: bool = False
    end: str | None = None


@dataclass(frozen=True)
class Stop:
    """A process was stopped (SIGSTOP) for a while."""

    pid: int
    at: float
    until: float


@dataclass(frozen=True)
class Promotion:
    """A promotion after which the standby may lack what was acknowledged from ``since`` to ``until``."""

    since: float
    until: float


@dataclass(frozen=True)
class Sample:
    """What the database holds at a moment: by group, the jobs that executors hold, and those that wait."""

    at: float
    held: dict[str, int]
    waiting: dict[str, int]


@dataclass
class History:
    """What has happened, as far as it was written down.

    Attributes:
        submitted: the time at which each submission was acknowledged, by job.
        ended: the state in which a client saw a job that had finished, and when.
        asked: the waits of clients for jobs.
        retried: how often a client has retried a job by hand.
        ordered: the orders whose transactions were acknowledged; ``undone``: those that were rolled back.
        disturbed: the processes that were killed, stopped or cut off, with the times at which that began or ended.
        dead: the processes that were there when their executors had been declared dead, and when that was seen.
        lossy: the promotions of standbys that may lack the last transactions.
    """

    runs: dict[str, Run] = field(default_factory=dict)
    submitted: dict[str, float] = field(default_factory=dict)
    ended: dict[str, tuple[str, float]] = field(default_factory=dict)
    asked: dict[str, float] = field(default_factory=dict)
    retried: dict[str, int] = field(default_factory=dict)
    ordered: dict[str, float] = field(default_factory=dict)
    undone: set[str] = field(default_factory=set)
    disturbed: dict[int, list[float]] = field(default_factory=dict)
    stops: list[Stop] = field(default_factory=list)
    dead: list[tuple[int, float]] = field(default_factory=list)
    lossy: list[Promotion] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    faults: dict[str, int] = field(default_factory=dict)


def read(lines: Iterable[str]) -> History:
    """The history that lines tell."""
    history = History()
    for text in lines:
        line = json.loads(text)
        what, at = line.pop("is"), line.pop("at")
        if what not in _READERS:
            raise ValueError(f"a line of an unknown kind: {what}")
        _READERS[what](history, at, line)
    return history


def _go_on(history: History, at: float, line: Line) -> None:
    run = history.runs[line["lock"]]
    run.last, run.end = at, line.get("how")


def _disturb(history: History, at: float, line: Line) -> None:
    for pid in line["pids"]:
        history.disturbed.setdefault(pid, []).extend([line.get("since", at), at])


def _count(counts: dict[str, int], name: str) -> None:
    counts[name] = counts.get(name, 0) + 1


_READERS: dict[str, Callable[[History, float, Line], None]] = {
    "begin": lambda history, at, line: history.runs.update({line["lock"]: Run(began=at, last=at, **line)}),
    "beat": _go_on,
    "end": _go_on,
    "submitted": lambda history, at, line: history.submitted.update({line["id"]: at}),
    "asked": lambda history, at, line: history.asked.update({line["id"]: at}),
    "ended": lambda history, at, line: history.ended.update({line["id"]: (line["state"], at)}),
    "retried": lambda history, _, line: _count(history.retried, line["id"]),
    "ordered": lambda history, at, line: history.ordered.update({line["id"]: at}),
    "undone": lambda history, _, line: history.undone.add(line["id"]),
    "disturbed": _disturb,
    "stop": lambda history, at, line: history.stops.append(Stop(line["pid"], line["since"], at)),
    "dead": lambda history, at, line: history.dead.append((line["pid"], at)),
    "lossy": lambda history, at, line: history.lossy.append(Promotion(line["since"], at)),
    "sample": lambda history, at, line: history.samples.append(Sample(at, line["held"], line["waiting"])),
    "fault": lambda history, _, line: _count(history.faults, line["kind"]),
}

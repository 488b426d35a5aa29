"""Ask systemd-analyze, the judge of calendar events, about random expressions, times and zones.

    python -m scripts.judge_timers           write its answers to tests/unit/timers.jsonl.gz, for the tests
    python -m scripts.judge_timers --check   compare it with the code, and fail where they differ

The judge has faults, which docs/reference/timers.md lists. This script does not ask about expressions that meet a
fault, or writes them differently.
"""  # noqa: INP001 - not a package

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise, takewhile
from random import Random
from zoneinfo import ZoneInfo

from tests.support.timers import Answer, Round, differences, write_record

JUDGE = "systemd-analyze"
SEED, ROUNDS, EXPRESSIONS, ELAPSES = 252, 150, 40, 4
FIRST, SETTLED = datetime(1990, 1, 1, tzinfo=UTC), datetime(2025, 1, 1, tzinfo=UTC)  # later laws may change
NEAR = timedelta(hours=48)
# A fault: the judge skips hours or days if clocks change for another reason than summer time, if winter time is the
# change, and if a gap does not begin on the hour or lasts two hours. These zones have no such change, though some have
# gaps of half an hour, of a whole day, or at midnight.
ZONES = (
    "Africa/Cairo", "America/Havana", "America/New_York", "America/Santiago", "America/Sao_Paulo", "Asia/Beirut",
    "Asia/Kolkata", "Asia/Tehran", "Australia/Lord_Howe", "Australia/Sydney", "Europe/Zurich", "Pacific/Apia",
    "Pacific/Auckland", "UTC",
)  # fmt: skip
NAMED = (*ZONES, "utc", "Utc", "Etc/UTC", "Europe", "Nowhere/City")
WORDS = (
    "minutely", "hourly", "daily", "Weekly", "monthly", "quarterly", "YEARLY", "annually", "anually", "semiannually",
    "semi-annually", "biannually", "bi-annually", "fortnightly",
)  # fmt: skip
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun", "Monday", "TUESDAY", "wednesday", "thu", "FRI", "saturday")
_NORMAL = re.compile(r"(\D+ )?([^ ]+)-([^- ]+)([-~])([^ ]+) ([^ :]+):([^ :]+):([^ ]+)( [^ ]+)?")
_OPEN = re.compile(r"^([0-9]+(?:\.[0-9]+)?)/([0-9.]+)$")


class Maker:
    """Makes random expressions, some of them invalid."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def expression(self) -> str:
        """The next expression."""
        if self._comes(0.03):
            text = self._random.choice(WORDS)
        elif self._comes(0.02):
            text = f"@{self._random.randrange(2 ** self._random.randint(20, 34))}"
        else:
            parts = (self._weekdays, 0.3), (self._date, 0.6), (self._time, 0.7)
            text = " ".join(make() for make, chance in parts if self._comes(chance)) or "0:0"
        return f"{text} {self._random.choice(NAMED)}" if self._comes(0.1) else text

    def _comes(self, chance: float) -> bool:
        return self._random.random() < chance

    def _weekdays(self) -> str:
        parts = [
            self._random.choice(("", "", f"{self._random.choice(DAYS)}..", f"{self._random.choice(DAYS)}-"))
            + self._random.choice(DAYS)
            for _ in range(self._random.choice((1, 1, 2, 3)))
        ]
        return ",".join(parts) + self._random.choice(("", "", "", ","))

    def _date(self) -> str:
        year = self._random.choice(("", "*-", self._list(1990, 2060) + "-", self._list(0, 99) + "-"))
        day = f"~{self._last_days()}" if self._comes(0.3) else f"-{self._list(1, 31)}"
        return year + self._list(1, 12, star=0.6) + day

    def _last_days(self) -> str:
        """A fault: the judge takes 28 for the first of a list, 25 for the second, 22 for the third."""
        count = self._random.choice((1, 1, 2, 3))
        return ",".join(self._item(1, 31 - 3 * count) for _ in range(count))

    def _time(self) -> str:
        hour = self._list(0, self._random.choice((4, 23)), star=0.3)
        second = f":{self._list(0, 59, star=0.2, fractions=0.3)}" if self._comes(0.4) else ""
        return f"{hour}:{self._list(0, 59, star=0.2)}{second}"

    def _list(self, first: int, last: int, *, star: float = 0.4, fractions: float = 0) -> str:
        if self._comes(star):
            return "*"
        if self._comes(0.03):
            first, last = max(first - 1, 0), last + 2
        count = self._random.choice((1, 1, 1, 1, 2, 2, 3))
        return ",".join(self._item(first, last, fractions) for _ in range(count))

    def _item(self, first: int, last: int, fractions: float = 0) -> str:
        start = self._random.randint(first, last)
        least = start - 1 if start and self._comes(0.05) else start
        stop = f"..{self._number(least, last, fractions)}" if self._comes(0.4) else ""
        most = max((last - (first if stop else start)) // self._random.choice((1, 2, 4, 8)), 1)
        step = f"/{self._number(1 - self._comes(0.05), most, fractions)}" if self._comes(0.3) else ""
        return self._number(start, start, fractions) + stop + step

    def _number(self, first: int, last: int, fractions: float) -> str:
        text = f"{self._random.randint(first, last):0{self._random.choice((1, 2))}}"
        if self._comes(fractions):
            text += "." + "".join(self._random.choices("0159", k=self._random.choice((1, 1, 2, 6, 7, 8))))
        return text


def ask(zone: str, base: datetime, expressions: list[str], elapses: int) -> dict[str, Answer | None]:
    """What the judge says; None: it refuses the expression. Of some it says nothing: it runs in a circle."""
    options = (f"--base-time={base:%Y-%m-%d %H:%M:%S.%f} UTC", f"--iterations={elapses}", "--")
    said = subprocess.run(  # noqa: S603 - the expressions are made here
        [JUDGE, "calendar", *options, *expressions],
        env={"TZ": zone, "LC_ALL": "C"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    refused = set(re.findall(r"^Failed to parse calendar specification '(.*)': ", said.stderr, re.MULTILINE))
    stuck = set(re.findall(r"^Failed to determine next elapse for '(.*)': ", said.stderr, re.MULTILINE))
    blocks = re.split(r"^ *Normalized form: ", said.stdout, flags=re.MULTILINE)[1:]
    answers = (_read(block, elapses) for block in blocks)
    return {text: None if text in refused else next(answers) for text in expressions if text not in stuck}


def _read(block: str, wanted: int) -> Answer:
    normal, _, rest = block.partition("\n")
    found = re.findall(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) UTC$", rest, re.MULTILINE)
    elapses: list[datetime | None] = [datetime.fromisoformat(f"{time}+00:00") for time in found]
    return Answer(normal, elapses if len(elapses) == wanted else [*elapses, None])


def closed(normal: str) -> str:
    """The same expression with ranges in place of open ends.

    A fault: for 'a/step' the judge omits the first hit if two units roll over, or loops.
    """
    match = _NORMAL.fullmatch(normal)
    if match is None:
        raise AssertionError(normal)
    weekdays, year, month, dash, day, hour, minute, second, zone = (part or "" for part in match.groups())
    date = f"{year}-{_closed(month, '12')}{dash}{_closed_back(day) if dash == '~' else _closed(day, '31')}"
    return f"{weekdays}{date} {_closed(hour, '23')}:{_closed(minute, '59')}:{_closed(second, '59.999999')}{zone}"


def _closed(chain: str, last: str) -> str:
    return ",".join(_OPEN.sub(rf"\1..{last}/\2", part) for part in chain.split(","))


def _closed_back(chain: str) -> str:
    parts = (_OPEN.fullmatch(part) or part for part in chain.split(","))
    return ",".join(
        part if isinstance(part, str) else f"{(int(part[1]) - 1) % int(part[2]) + 1}..{part[0]}" for part in parts
    )


def rounds(seed: int, count: int) -> Iterator[Round]:
    """The answers of the judge about random expressions, times and zones."""
    random = Random(seed)  # noqa: S311 - no secrets
    maker = Maker(random)
    for _ in range(count):
        zone = random.choice((*ZONES, *["UTC"] * 5))
        base = _time(random, zone)
        expressions = sorted({maker.expression() for _ in range(EXPRESSIONS)})
        # The normal form is the same everywhere; in UTC the judge loops least often.
        normals = ask("UTC", FIRST, expressions, 1)
        others = {text: closed(answer.normal) for text, answer in normals.items() if answer}
        heard = ask(zone, base, sorted(set(others.values())), ELAPSES)
        answers: dict[str, Answer | None] = {}
        for text, answer in normals.items():
            if answer is None:
                answers[text] = None
            elif (other := heard.get(others[text])) and not _is_misread(text, answer.normal):
                answers[text] = Answer(answer.normal, _trusted(other, zone, base))
        yield Round(zone, base, answers)


def _is_misread(expression: str, normal: str) -> bool:
    """A fault: '*' in the normal form stands for seconds of which some are fractions: '0/1,0.5'."""
    match = _NORMAL.fullmatch(normal)
    return match is not None and match[8] == "*" and "." in expression.rpartition(":")[2]


def _trusted(answer: Answer, zone: str, base: datetime) -> list[datetime | None]:
    """The elapses of an answer that are settled, and no fault.

    A fault: when it searches for the last days of a month, the judge forgets on which side of a change of clocks it is.
    """
    match = _NORMAL.fullmatch(answer.normal)
    own = match and (match[9] or "").strip()
    seen = changes(own or zone)
    end = SETTLED if seen else datetime.max.replace(tzinfo=UTC)
    if match and match[4] == "~":
        end = min((change - NEAR for change in seen if change > base - NEAR), default=end)
    return list(takewhile(lambda at: at is None or at < end, answer.elapses))


@cache
def changes(zone: str) -> list[datetime]:
    """The noon before each change of the zone's clocks."""
    days = [FIRST + timedelta(days=day, hours=12) for day in range((SETTLED - FIRST).days)]
    return [day for day, next_day in pairwise(days) if _offset(day, zone) != _offset(next_day, zone)]


def _offset(at: datetime, zone: str) -> timedelta | None:
    return at.astimezone(ZoneInfo(zone)).utcoffset()


def _time(random: Random, zone: str) -> datetime:
    """A time, more often than not near a change of clocks, and now and then with a fraction of a second."""
    at = FIRST + (SETTLED - FIRST) * random.random()
    if changes(zone) and random.randrange(3):
        at = random.choice(changes(zone)) + NEAR * random.random()
    return at.replace(microsecond=random.choice((0, 0, at.microsecond)))


def main(arguments: list[str]) -> int:
    """Record, or compare. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare the code with the judge, and write nothing")
    parser.add_argument("--seed", type=int, default=SEED, help="which expressions, times and zones (%(default)s)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="how many times and zones (%(default)s)")
    given = parser.parse_args(arguments)
    if shutil.which(JUDGE) is None:
        parser.error(f"{JUDGE}, a part of systemd, is not installed here")
    answered = list(rounds(given.seed, given.rounds))
    if not given.check:
        version = subprocess.run([JUDGE, "--version"], capture_output=True, text=True, check=True)  # noqa: S603 - fixed
        write_record(version.stdout.splitlines()[0], answered)
    wrong = [line for each in answered for line in differences(each)]
    cases = sum(len(each.answers) for each in answered)
    sys.stdout.write("".join(f"{line}\n" for line in wrong) + f"{cases} expressions, {len(wrong)} differences\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

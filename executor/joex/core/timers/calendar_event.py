"""systemd's calendar events: ``Mon..Fri *-*-* 08:00:00 Europe/Zurich``.

`oncalendar` finds the minutes. This module does the rest, because `oncalendar` accepts what systemd refuses
(``*-*~5/5``, ``00:00/60``), lacks a part (``@5``, fractions of seconds, several shorthands), has no normal form, and
answers a start in a repeated hour with times before it. This module gives it normal forms alone, without seconds and
zone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from joex.core.timers.chain import DAY, HOUR, LAST_DAY, MINUTE, MONTH, SECOND, YEAR, Chain
from joex.core.timers.wall_clock import TICK, as_systemd
from joex.core.timers.zone import parse_zone
from joex.extras import needs

_SHORTHANDS = {
    "minutely": "*:*", "hourly": "*:00", "daily": "00:00", "weekly": "Mon", "monthly": "*-01",
    "yearly": "01-01", "annually": "01-01", "anually": "01-01",
    "quarterly": "01,04,07,10-01",
    "semiannually": "01,07-01", "semi-annually": "01,07-01", "biannually": "01,07-01", "bi-annually": "01,07-01",
}  # fmt: skip
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_NAMES = {
    name: day
    for day, full in enumerate(("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"))
    for name in (full, full[:3])
}
_DATE = re.compile(r"(?:([^-~]+)-)?([^-~]+)([-~])([^-~]+)")
_EPOCH = re.compile(r"@([0-9]{1,11})")
_LONGEST_MONTHS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_MINUTE = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class CalendarEvent:
    """The times that an expression names.

    Attributes:
        normal: The expression as systemd writes it.
        zone: The zone that the expression names.
    """

    normal: str
    zone: ZoneInfo | None
    _minutes: str
    _seconds: Chain
    _is_possible: bool

    @classmethod
    def parse(cls, text: str) -> CalendarEvent:
        """Read an expression.

        >>> CalendarEvent.parse("mon,fri 8:30 utc").normal
        'Mon,Fri *-*-* 08:30:00 UTC'

        Raises:
            ValueError: systemd would refuse it.
        """
        fields = text.split()
        zone = parse_zone(fields.pop()) if len(fields) > 1 and fields[-1][0].isalpha() else None
        if len(fields) == 1:
            fields = _SHORTHANDS.get(fields[0].lower(), fields[0]).split()
        weekdays = _parse_weekdays(fields.pop(0)) if fields[0][0].isalpha() else ""
        if fields and fields[0].startswith("@"):
            zone, fields[:1] = ZoneInfo("UTC"), _epoch(fields[0])
        time = fields.pop() if fields and ":" in fields[-1] else "00:00"
        date = fields.pop() if fields else "*-*-*"
        if fields:
            expected = (
                "weekdays, a date, a time and a zone, or some of them in this order, or a cron line's five fields"
            )
            raise ValueError(f"expected {expected}; got {len(text.split())} fields")
        return cls._of(weekdays, _parse_date(date), _parse_time(time), zone)

    @classmethod
    def _of(
        cls, weekdays: str, date: tuple[Chain, Chain, Chain], time: tuple[Chain, Chain, Chain], zone: ZoneInfo | None
    ) -> CalendarEvent:
        year, month, day = date
        hour, minute, second = time
        minutes = f"{weekdays} {year}-{month}{'~' if day.unit.from_end else '-'}{day} {hour}:{minute}".lstrip()
        normal = f"{minutes}:{second} {zone.key if zone else ''}".rstrip()
        return cls(normal, zone, minutes, second, _is_possible(month, day))

    def next(self, after: datetime, zone: ZoneInfo) -> datetime | None:
        """The first instant after ``after``, in UTC; None: there is none. Wall clocks are those of ``zone``."""
        return as_systemd(after, zone, self._later)

    def _later(self, wall: datetime) -> datetime | None:
        """The first wall clock time later than ``wall``."""
        if not self._is_possible:  # finding that out takes the iterator many milliseconds
            return None
        with needs("executor", "the times of a timer need"):
            from oncalendar import BaseIterator  # noqa: PLC0415 - clients only parse
        for minute in BaseIterator(self._minutes, wall.replace(second=0, microsecond=0) - _MINUTE):
            if (found := self._seconds.at_least((wall + TICK - minute) // TICK)) is not None:
                return minute + found * TICK
        return None


def _is_possible(months: Chain, days: Chain) -> bool:
    """Whether any of the months may have any of the days: ``*-02-30`` never comes."""
    first = days.at_least(1)  # from the end of the month, at most 28, which all months have
    return first is not None and any(
        first <= longest for month, longest in enumerate(_LONGEST_MONTHS, 1) if months.at_least(month) == month
    )


def _parse_weekdays(text: str) -> str:
    days: set[int] = set()
    for part in text.removesuffix(",").split(","):
        ends = [_NAMES.get(name.lower(), -1) for name in re.split(r"\.\.|-", part)]
        if len(ends) > 2 or min(ends) < 0 or ends[0] > ends[-1]:  # noqa: PLR2004 - a range has two ends
            raise ValueError(f"expected weekdays like 'Mon..Fri' or 'Sat,Sun', or a word like 'daily'; got {text!r}")
        days.update(range(ends[0], ends[-1] + 1))
    return _format_weekdays(days)


def _format_weekdays(days: set[int]) -> str:
    """As systemd writes them: all seven not at all, three or more in a row as a range."""
    rows: list[list[str]] = []
    for number, name in enumerate(_DAYS):
        if number in days:
            if number - 1 not in days:
                rows.append([])
            rows[-1].append(name)
    if len(days) == len(_DAYS):
        return ""
    return ",".join(f"{row[0]}..{row[-1]}" if len(row) > 2 else ",".join(row) for row in rows)  # noqa: PLR2004


def _epoch(text: str) -> list[str]:
    """The date and the time of a number of seconds since the epoch."""
    match = _EPOCH.fullmatch(text)
    if match is None:
        raise ValueError(f"expected seconds since 1970 like '@1735689600'; got {text!r}")
    return f"{datetime.fromtimestamp(int(match[1]), UTC):%Y-%m-%d %H:%M:%S}".split()


def _parse_date(text: str) -> tuple[Chain, Chain, Chain]:
    match = _DATE.fullmatch(text)
    if match is None:
        raise ValueError(f"expected a date like '*-*-01', '12-24' or '*-*~1', or a time like '08:30'; got {text!r}")
    day = LAST_DAY if match[3] == "~" and match[4] != "*" else DAY
    return Chain.parse(match[1] or "*", YEAR), Chain.parse(match[2], MONTH), Chain.parse(match[4], day)


def _parse_time(text: str) -> tuple[Chain, Chain, Chain]:
    hour, minute, *second = text.split(":")
    if len(second) > 1:
        raise ValueError(f"expected a time like '08:30' or '08:30:15'; got {text!r}")
    return Chain.parse(hour, HOUR), Chain.parse(minute, MINUTE), Chain.parse(second[0] if second else "0", SECOND)

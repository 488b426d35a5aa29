"""Cron lines: ``30 2 * * MON-FRI``, with the rules of Debian's cron.

`cronsim` reads them, and finds the times on wall clocks. It gets no zones: with some it skips an existing hour, or
loops (``* 1 * * *`` where a gap ends at 01:00, ``2 */5 * * *`` where clocks go back at 00:01).
"""

from __future__ import annotations

from calendar import monthrange
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import partial
from types import ModuleType
from typing import Any, ClassVar
from zoneinfo import ZoneInfo

from joex.core.timers.wall_clock import as_cron_at_times, as_cron_often
from joex.extras import needs

FIELDS = {
    "minute": "0 to 59",
    "hour": "0 to 23",
    "day-of-month": "1 to 31 as the months have them, 'L' or 'LW'",
    "month": "1 to 12, or 'JAN' to 'DEC'",
    "day-of-week": "0 to 7, 'SUN' to 'SAT', or one of a month like '5L' or 'MON#2'",
}
"""The fields of a line, and what each takes, also in lists, ranges and steps."""
_YEARS = 50
_KINDS_OF_YEARS = (2000, 2001, 2002, 2003, 2004, 2005, 2006, 2008, 2009, 2010, 2012, 2016, 2020, 2024)
"""Years of each kind: they begin on each weekday, with and without a 29 February."""


@dataclass(frozen=True, slots=True)
class CronLine:
    """The times that a line names.

    Attributes:
        normal: The five fields, in capitals, with a space between.
    """

    normal: str
    _is_possible: bool
    zone: ClassVar[None] = None

    @classmethod
    def parse(cls, text: str) -> CronLine:
        """Read a line.

        >>> CronLine.parse("30  2 * * mon-fri").normal
        '30 2 * * MON-FRI'

        Raises:
            ValueError: the text is not a cron line.
            MissingExtra: the library is not installed.
        """
        cronsim, fields = _library(), text.upper().split()
        try:
            line = cronsim.CronSim(" ".join(fields), datetime.min.replace(tzinfo=UTC))
        except cronsim.CronSimError as error:
            name = str(error).removeprefix("Bad ")
            got = dict(zip(FIELDS, fields, strict=True))[name]
            raise ValueError(f"{name}: expected {FIELDS[name]}; got {got!r}") from None
        return cls(" ".join(fields), _is_possible(line))

    def next(self, after: datetime, zone: ZoneInfo) -> datetime | None:
        """The first instant after ``after``, in UTC; None: there is none within 50 years. Clocks are of ``zone``."""
        if not self._is_possible:  # finding that out takes `cronsim` many milliseconds
            return None
        minute, hour, *_ = self.normal.split()
        rule = as_cron_often if minute.startswith("*") or hour.startswith("*") else as_cron_at_times
        # (`cronsim` gives up after 50 years too, but starts anew after each gap.)
        return rule(after, zone, partial(self._later, until=after.year + _YEARS))

    def _later(self, wall: datetime, until: int) -> datetime | None:
        """The first wall clock time later than ``wall``, and not after the year ``until``."""
        found: datetime | None = next(_library().CronSim(self.normal, wall), None)
        return found if found is None or found.year <= until else None


def _is_possible(line: Any) -> bool:
    """Whether any day is wanted: ``0 0 */20 * 1L`` never comes."""
    firsts = (date(year, month, 1) for year in _KINDS_OF_YEARS for month in line.months)
    return any(
        line.match_day(first.replace(day=day))
        for first in firsts
        for day in range(1, monthrange(first.year, first.month)[1] + 1)
    )


def _library() -> ModuleType:
    with needs("executor", "cron lines need"):
        import cronsim  # noqa: PLC0415 - an extra
    return cronsim

"""Cron lines: ``30 2 * * MON-FRI``, read by `cronsim`, which follows Debian's cron."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import ClassVar
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

FIELDS = {
    "minute": "0 to 59",
    "hour": "0 to 23",
    "day-of-month": "1 to 31 as the months have them, 'L' or 'LW'",
    "month": "1 to 12, or 'JAN' to 'DEC'",
    "day-of-week": "0 to 7, 'SUN' to 'SAT', or one of a month like '5L' or 'MON#2'",
}
"""The fields of a line, and what each takes, also in lists, ranges and steps."""


@dataclass(frozen=True, slots=True)
class CronLine:
    """The times that a line names.

    Attributes:
        normal: The five fields, in capitals, with a space between.
    """

    normal: str
    zone: ClassVar[None] = None

    @classmethod
    def parse(cls, text: str) -> CronLine:
        """Read a line.

        >>> CronLine.parse("30  2 * * mon-fri").normal
        '30 2 * * MON-FRI'

        Raises:
            ValueError: it is not one.
        """
        fields = text.upper().split()
        try:
            CronSim(" ".join(fields), datetime.min.replace(tzinfo=UTC))
        except CronSimError as error:
            name = str(error).removeprefix("Bad ")
            got = dict(zip(FIELDS, fields, strict=True))[name]
            raise ValueError(f"{name}: expected {FIELDS[name]}; got {got!r}") from None
        return cls(" ".join(fields))

    def next(self, after: datetime, zone: ZoneInfo) -> datetime | None:
        """The first instant after ``after``, in UTC; None: there is none within 50 years."""
        for wall in CronSim(self.normal, after.astimezone(zone)):
            # In the second pass of a repeated hour the first answer may be one of the first pass.
            if (instant := wall.astimezone(UTC)) > after:
                return instant
        return None

"""The base of all timers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from joex.core.timers.calendar_event import CalendarEvent
from joex.core.timers.cron_line import FIELDS, CronLine

_LONGEST = 254  # bytes
_FIRST, _END = datetime(1969, 12, 31, tzinfo=UTC), datetime(2200, 1, 2, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Timer:
    """The times at which a periodic task is due: a calendar event of systemd or a cron line.

    >>> timer = Timer.parse("Mon..Fri 08:30 Europe/Zurich")
    >>> timer.normal
    'Mon..Fri *-*-* 08:30:00 Europe/Zurich'
    >>> timer.next(datetime(2025, 7, 4, 6, 30, tzinfo=UTC), ZoneInfo("UTC")).isoformat()
    '2025-07-07T06:30:00+00:00'
    """

    _times: CalendarEvent | CronLine

    @classmethod
    def parse(cls, text: str) -> Timer:
        """Read an expression: five fields with white space between are a cron line, all else is a calendar event.

        Raises:
            ValueError: the text can't be read. The one-line message names the part, and what is expected there.
        """
        if (size := len(text.encode(errors="replace"))) > _LONGEST:
            raise ValueError(f"timer: expected at most {_LONGEST} bytes; got {size}")
        if not text.strip():
            raise ValueError(f"timer: expected something like 'Mon..Fri 08:30' or '30 8 * * 1-5'; got {text!r}")
        try:
            # No calendar event has more than four: weekdays, date, time, zone.
            return cls(CronLine.parse(text) if len(text.split()) == len(FIELDS) else CalendarEvent.parse(text))
        except ValueError as error:
            raise ValueError(f"timer {text!r}: {error}") from None

    @property
    def normal(self) -> str:
        """The expression in its normal form, which parses to the same timer. Equal timers mostly have the same one."""
        return self._times.normal

    @property
    def zone(self) -> ZoneInfo | None:
        """The time zone that the expression itself names."""
        return self._times.zone

    def next(self, after: datetime, zone: ZoneInfo) -> datetime | None:
        """The first due time after ``after``, in UTC; None: there is none before the year 2200.

        Args:
            after: An aware time.
            zone: The time zone of an expression that names none.
        """
        if getattr(after, "tzinfo", None) is None:
            raise ValueError(f"after: expected a time with its time zone; got {after!r}")
        if after >= _END:
            return None
        # In UTC from here on: times of one zone compare by their wall clocks, which a repeated hour confuses.
        found = self._times.next(max(after, _FIRST).astimezone(UTC), self.zone or zone)
        return found if found is None or found < _END else None

"""Time zones, and the way from wall clocks to instants."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

TICK = timedelta(microseconds=1)
"""The smallest difference between two times."""
_SECOND = timedelta(seconds=1)


def parse_zone(name: str) -> ZoneInfo:
    """The zone of a name of the time zone database, such as ``Europe/Zurich``; ``UTC`` in any case.

    Raises:
        ValueError: the database of this machine does not know it.
    """
    try:
        return ZoneInfo("UTC" if name.upper() == "UTC" else name)
    except (ZoneInfoNotFoundError, ValueError, OSError):  # OSError: the name of a folder of the database
        raise ValueError(f"time zone: expected a name like 'Europe/Zurich' or 'UTC'; got {name!r}") from None


def first_instant(after: datetime, zone: ZoneInfo, later: Callable[[datetime], datetime | None]) -> datetime | None:
    """The first instant after ``after`` at which the wall clocks of ``zone`` show a time that is wanted.

    Decides the missing and the repeated hour as systemd does. A time that clocks skip is left out. A time that clocks
    show twice counts once, at its first pass; one that starts inside the second pass stays in it.

    Args:
        after: An aware time.
        zone: Where the wall clocks are.
        later: Gives the first wanted wall clock time (naive) that is later than a wall clock time; None: there is none.

    Returns:
        A time in UTC.
    """
    wall: datetime | None = after.astimezone(zone).replace(tzinfo=None)
    while wall is not None and (wall := later(wall)):
        first, second = (wall.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
        if first <= second:
            return first if first > after else second
        wall = _end_of_gap(first, second, zone) - TICK
    return None


def _end_of_gap(first: datetime, second: datetime, zone: ZoneInfo) -> datetime:
    """The wall clock time with which clocks go on after a gap.

    Args:
        first: The instant of a skipped time by the offset before the gap: at or after the change.
        second: The same by the offset after the gap: before the change.
        zone: Where the clocks are.
    """
    second = second.replace(microsecond=0)
    before = second.astimezone(zone).utcoffset()

    def is_changed(seconds: int) -> bool:
        return (second + timedelta(seconds=seconds)).astimezone(zone).utcoffset() != before

    seconds = bisect_left(range((first - second) // _SECOND + 1), 1, key=is_changed)
    return (second + timedelta(seconds=seconds)).astimezone(zone).replace(tzinfo=None)

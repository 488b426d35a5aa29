"""From wall clocks to instants: the rules for times that clocks skip, and for times that they show twice.

::

    gap, 02:00 to 03:00               repeated hour, 02:00 to 03:00
    wall clock    ... 01:59 03:00     wall clock   ... 02:00 .. 02:59 02:00 .. 02:59 03:00
                           |                           first pass     second pass
                           end of the gap                             |
                                                                      turn

Three rules decide, each a function of

    after: A time in UTC.
    zone: Where the wall clocks are.
    later: Gives the first wanted wall clock time (naive) later than a wall clock time; None: there is none.

and each gives the first wanted instant after ``after``, in UTC, or None.

The schedulers of executors and operators call them in their event loops, with the timers of all tenants. So each calls
``later``, which may have years to read, a limited number of times.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

TICK = timedelta(microseconds=1)
"""The smallest difference between two times."""
_SECOND = timedelta(seconds=1)
_MOST_GAPS = 30

Later = Callable[[datetime], datetime | None]


def as_systemd(after: datetime, zone: ZoneInfo, later: Later) -> datetime | None:
    """Systemd's rule: skipped times are not wanted; clocks only go forward.

    So a time shown twice counts at its first pass, and after the first pass this ignores the second; but a search that
    starts inside the second pass goes on in it.
    """
    return _from(_wall(after, zone), after, zone, later)


def as_cron_at_times(after: datetime, zone: ZoneInfo, later: Later) -> datetime | None:
    """Debian's rule for lines with fixed times: never twice, and a skipped time comes at the end of the gap."""
    wall = _wall(after, zone)
    first, second = _passes(wall, zone)
    if first < second == after:  # in the second pass, of which no time is wanted
        wall = _wall(_change(first, second, zone) - TICK, zone)
    while (found := later(wall)) is not None:
        wall = found
        first, second = _passes(wall, zone)
        at = first if first <= second else _change(second, first, zone)
        if at > after:
            return at
    return None


def as_cron_often(after: datetime, zone: ZoneInfo, later: Later) -> datetime | None:
    """Debian's rule for lines with a star for minute or hour: whenever clocks show a wanted time, in both passes."""
    wall = _wall(after, zone)
    first, second = _passes(wall, zone)
    if first != after or first >= second:
        return _from(wall, after, zone, later)
    turn = _change(first, second, zone)
    found = _from(_wall(turn, zone) - TICK, turn - TICK, zone, later)
    if found is None:  # the second pass shows all times of the first, so that this one has none either
        return None
    sooner = _from(wall, after, zone, later)
    return found if sooner is None or sooner >= turn else sooner


def _from(wall: datetime, after: datetime, zone: ZoneInfo, later: Later) -> datetime | None:
    """The first wanted instant, by a wall clock time that is not in a gap; None: the next thirty are all in gaps.

    Thirty gaps are decades. A timer that has named nothing else by then (the last Sunday of March at 02:30) never will.
    """
    for _ in range(_MOST_GAPS):
        if (found := later(wall)) is None:
            return None
        first, second = _passes(found, zone)
        if first <= second:
            return first if first > after else second
        wall = _wall(_change(second, first, zone), zone) - TICK
    return None


def _wall(at: datetime, zone: ZoneInfo) -> datetime:
    return at.astimezone(zone).replace(tzinfo=None)


def _passes(wall: datetime, zone: ZoneInfo) -> tuple[datetime, datetime]:
    """The instants of a wall clock time by the offsets before and after a change of clocks.

    They are the same if there is none, and the wrong way round if the time is in a gap, on both sides of the change.
    """
    first, second = (wall.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    return first, second


def _change(start: datetime, end: datetime, zone: ZoneInfo) -> datetime:
    """The instant at which clocks change, after ``start`` and not after ``end``."""
    start = start.replace(microsecond=0)
    before = start.astimezone(zone).utcoffset()

    def is_changed(seconds: int) -> bool:
        return (start + seconds * _SECOND).astimezone(zone).utcoffset() != before

    return start + bisect_left(range((end - start) // _SECOND), 1, key=is_changed) * _SECOND

"""When to be told of work: a pool that could grow wants to hear of jobs that find no executor asleep.

Each notification costs its sender, so a pool is told once and then asks for more: it *arms* its watch, looks, and from
the first notification on rests for a moment before it arms it again and looks again. A submission that was under way
while the watch was armed may not have seen it: until the race with open transactions is settled (`joex.core.recheck`),
the pool looks again by itself, ever more seldom::

    UNARMED --arm, look--> UNSETTLED --(older transactions have ended)--> ARMED --heard--> RESTING --arm, look--> ...
"""

from __future__ import annotations

from dataclasses import dataclass

from joex.core.recheck import Recheck

REST = 0.25
"""Seconds between hearing of work and wanting to hear more: at most so often do submitters pay for a notification."""
PAUSES = {"pause": 0.2, "longest": 100.0}
"""Seconds between two looks until the race is settled: a look at a pool costs more than a take."""


@dataclass(slots=True)
class GrowthWatch:
    """The watch of one pool. Times are those of one monotonic clock, in seconds; armed for ``length``."""

    length: float
    armed_until: float = 0.0
    notified_at: float | None = None
    recheck: Recheck | None = None

    def heard(self, now: float) -> None:
        """Work was heard of: disarm, look now, and arm again later."""
        if self.notified_at is None:
            self.notified_at = now

    def wants_disarming(self, now: float, *, can_grow: bool) -> bool:
        """Whether to disarm it before the look that comes now."""
        return now < self.armed_until and (self.notified_at is not None or not can_grow)

    def wants_arming(self, now: float) -> bool:
        """Whether to arm it before the look that comes now; an armed one is renewed before its end."""
        return not self._rests(now) and self.armed_until - now < self.length / 2

    def _rests(self, now: float) -> bool:
        return self.notified_at is not None and now < self.notified_at + REST

    def disarmed(self) -> None:
        """It has been disarmed."""
        self.armed_until, self.recheck = 0.0, None

    def armed(self, now: float, recheck: Recheck) -> None:
        """It has been armed; open transactions may not have seen it."""
        if self.armed_until <= now:  # it was not before
            self.recheck, self.notified_at = recheck, None
        self.armed_until = now + self.length

    def settle(self, now: float, oldest_transaction: int) -> None:
        """A look comes now, and this is the oldest transaction that is open."""
        if self.recheck is not None and self.recheck.settles(oldest_transaction, now):
            self.recheck = None

    def next_reconcile(self, now: float) -> float | None:
        """Seconds until the next look that this asks for; None: it asks for none."""
        if self.notified_at is not None:
            return max(self.notified_at + REST - now, 0.0)
        return None if self.recheck is None else max(self.recheck.due_at - now, 0.0)

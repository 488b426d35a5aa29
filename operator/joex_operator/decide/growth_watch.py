"""The growth watch: a pool that could grow is notified of jobs that find no executor asleep.

A notification costs the submitting transaction, so a watch gives one notification and must then be armed again. The
reconciler *arms* it and reconciles; after a notification it disarms it, reconciles, and arms it again after a moment. A
transaction that was open when the watch was armed may have submitted jobs without seeing it. Until this race is settled
(`joex.core.recheck`), the reconciler checks again by itself, with a back-off::

    UNARMED --arm--> UNSETTLED --(older transactions have ended)--> ARMED --notified--> RESTING --arm--> UNSETTLED
"""

from __future__ import annotations

from dataclasses import dataclass

from joex.core.recheck import Recheck

REST = 0.25
"""Seconds between a notification and the next arming: the shortest time between two notifications of a pool."""
PAUSES = {"pause": 0.2, "longest": 100.0}
"""Seconds between two checks: a reconcile costs more than the take of an executor."""


@dataclass(slots=True)
class GrowthWatch:
    """The growth watch of one pool, armed for ``length``. All times are seconds of one monotonic clock."""

    length: float
    armed_until: float = 0.0
    notified_at: float | None = None
    recheck: Recheck | None = None

    def notified(self, now: float) -> bool:
        """A notification came: disarm, reconcile now, and arm again later. False: it was for another watch."""
        if self.armed_until <= now:
            return False
        if self.notified_at is None:
            self.notified_at = now
        return True

    def wants_disarming(self, now: float, *, can_grow: bool) -> bool:
        """Whether the reconcile that begins now should disarm it."""
        return now < self.armed_until and (self.notified_at is not None or not can_grow)

    def wants_arming(self, now: float) -> bool:
        """Whether the reconcile that begins now should arm it. An armed one is renewed before it ends."""
        return not self._is_resting(now) and self.armed_until - now < self.length / 2

    def _is_resting(self, now: float) -> bool:
        return self.notified_at is not None and now < self.notified_at + REST

    def disarmed(self) -> None:
        """It has been disarmed."""
        self.armed_until, self.recheck = 0.0, None

    def armed(self, now: float, recheck: Recheck) -> None:
        """It has been armed. Open transactions may not have seen it."""
        if self.armed_until <= now:  # it was not armed before
            self.recheck, self.notified_at = recheck, None
        self.armed_until = now + self.length

    def settle(self, now: float, oldest_transaction: int) -> None:
        """A reconcile begins, and this is the oldest open transaction."""
        if self.recheck is not None and self.recheck.settles(oldest_transaction, now):
            self.recheck = None

    def next_reconcile(self, now: float) -> float | None:
        """Seconds until the watch needs the next reconcile; None: it needs none."""
        if self.notified_at is not None:
            return max(self.notified_at + REST - now, 0.0)
        return None if self.recheck is None else max(self.recheck.due_at - now, 0.0)

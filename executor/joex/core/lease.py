"""How long an executor is believed alive without news, and how long it believes so itself.

All times derive from the lease, so that their order can't be misconfigured::

    0        1/3      2/3   3/4        1                          5   leases since the last heartbeat
    beat     beat     beat  |          |                          |
                            |          |                          others take its jobs though its session is there
                            |          others take its jobs, if its session has gone
                            it stops trusting its lease and ends its runs
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True)
class Lease:
    """The times of a lease, in seconds of the executor's own monotonic clock."""

    duration: timedelta

    @property
    def heartbeat_every(self) -> float:
        """Seconds between two heartbeats: two may get lost, or be late, before trust ends."""
        return self.duration.total_seconds() / 3

    @property
    def trusted_for(self) -> float:
        """Seconds after the sending of a heartbeat that was answered, for which the lease may be trusted."""
        return self.duration.total_seconds() * 3 / 4

    @property
    def fatal_after(self) -> float:
        """Seconds after which no run may exist any more, interruptible or not: just before others may take its job."""
        return self.duration.total_seconds() * 0.95

    @property
    def stuck_after(self) -> float:
        """Seconds without a sign of life of the interpreter after which the process is ended from outside.

        Others may run its jobs five leases after its last heartbeat. The last sign of life came before `fatal_after`,
        so that is four leases from there at least.
        """
        return self.duration.total_seconds() * 3.75

    @property
    def show_life_every(self) -> float:
        """Seconds between two signs of life."""
        return self.duration.total_seconds() / 20


_SHORTEST_GAP = 2.0


class Observation:
    """For how long a judge of other executors has watched the database without a gap.

    It may declare an executor dead for silence within that time only, because an executor could renew its lease all the
    time: the judge's own session has lived, the database has answered again and again, and its clock, by which
    heartbeats are compared, has gone as the judge's own monotonic one has. After a gap, or a step of that clock, the
    observation starts anew, so that each living executor has a whole lease to be heard.

    Args:
        lease: the judge's own, to which gaps and steps are compared.
    """

    def __init__(self, lease: timedelta) -> None:
        self._longest_gap = max(lease.total_seconds() * 2 / 3, _SHORTEST_GAP)
        self._tolerance = lease.total_seconds() / 60  # from one answer to the next
        self.break_off()

    def break_off(self) -> None:
        """The session has ended, or an answer has not come."""
        self.watched = 0.0
        """Seconds, up to the latest question."""
        self._since: float | None = None
        self._last = 0.0
        self._ahead = (0.0, 0.0)  # bounds of what the database's clock is ahead of ours

    def answered(self, sent: float, received: float, theirs: float) -> None:
        """The database has answered.

        Args:
            sent: when it was asked, in seconds of the judge's monotonic clock.
            received: when it had answered.
            theirs: the database's clock in between, in seconds.
        """
        low, high = self._ahead[0] - self._tolerance, self._ahead[1] + self._tolerance
        now = (theirs - received, theirs - sent)
        if self._since is None or received - self._last > self._longest_gap or now[1] < low or now[0] > high:
            self._since, low, high = received, *now
        self.watched = max(sent - self._since, 0.0)
        self._last = received
        self._ahead = (max(low, now[0]), min(high, now[1]))

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

"""How long other executors believe a silent executor alive, and how long it believes so itself.

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
from typing import NamedTuple

_LONGEST_PAUSE = 10.0  # seconds between heartbeats


@dataclass(frozen=True, slots=True)
class Lease:
    """The times of a lease, in seconds of the executor's own monotonic clock."""

    duration: timedelta

    @property
    def heartbeat_every(self) -> float:
        """Seconds between two heartbeats: two may get lost, or be late, before trust ends.

        The pause is bounded, however long the lease: an executor judges others by what it observes with its heartbeats,
        and must find dead ones in time.
        """
        return min(self.duration.total_seconds() / 3, _LONGEST_PAUSE)

    @property
    def trusted_for(self) -> float:
        """Seconds after an answered heartbeat was sent for which the executor may trust its lease."""
        return self.duration.total_seconds() * 3 / 4

    @property
    def fatal_after(self) -> float:
        """Seconds after which no run may exist any more, interruptible or not: just before others may take its job."""
        return self.duration.total_seconds() * 0.95

    @property
    def stuck_after(self) -> float:
        """Seconds without a sign of life of the interpreter after which the watchdog ends the process.

        Other executors may run its jobs five leases after its last heartbeat. The last sign of life came before
        `fatal_after`, so they may do so at least four leases after it.
        """
        return self.duration.total_seconds() * 3.75

    @property
    def show_life_every(self) -> float:
        """Seconds between two signs of life."""
        return self.duration.total_seconds() / 20


class Mark(NamedTuple):
    """The id of a transaction, and for how many seconds a judge (see `Observation`) has known it."""

    age: float
    id: int


_SHORTEST_GAP = 2.0
_FINE = 4  # all of the latest 2 ** _FINE marks are kept


class Observation:
    """What a judge, an executor that decides whether others are dead, has observed without a gap.

    Each heartbeat of an executor keeps the id of its transaction, and ids only grow. The judge's marks are ids too, of
    transactions of its own. A heartbeat with an id below a mark began before the judge knew that mark: the
    executor has been silent for at least the age of the mark, on the judge's own monotonic clock. (The database's clock
    plays no part: it may be set, or slewed.)

    The judge may declare the executor dead for that, because the executor could have renewed its lease all the time:
    the judge's own session has lived, and the database has answered again and again. After a gap the observation starts
    again, so that each living executor has a whole lease to renew.

    Args:
        every: seconds after which the judge asks again; an answer that takes longer than twice that is a gap.
    """

    def __init__(self, every: float) -> None:
        self._longest_gap = max(2 * every, _SHORTEST_GAP)
        self.break_off()

    def break_off(self) -> None:
        """Start over: the session has ended, or an answer has not come."""
        self._marks: list[tuple[int, float, int]] = []  # the number of the answer, when it was received, and its id
        self._asked = 0.0

    @property
    def marks(self) -> list[Mark]:
        """The marks, the youngest first. Ages end at the latest question; later silence is unknown."""
        return [Mark(self._asked - at, mark) for _, at, mark in reversed(self._marks) if at < self._asked]

    def answered(self, sent: float, received: float, mark: int) -> None:
        """The database has answered.

        Args:
            sent: when it was asked, in seconds of the judge's monotonic clock.
            received: when it had answered.
            mark: the id of a transaction that ran between these two times.
        """
        number = 0
        if self._marks:
            last, at, before = self._marks[-1]
            number = last + 1
            if received - at > self._longest_gap or mark <= before:  # (ids go back after a fail-over to another server)
                self.break_off()
        self._asked = sent
        self._marks.append((number, received, mark))
        # Keeps enough older marks that no age is more than an eighth below the next one.
        self._marks = [
            one for one in self._marks if one[0] % (1 << max((number - one[0]).bit_length() - _FINE, 0)) == 0
        ]

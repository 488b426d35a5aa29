"""How long other executors believe a silent executor alive, and how long it believes so itself.

All times derive from the lease, so that their order can't be misconfigured::

    0        1/3      2/3   3/4        1                          5   leases since the last heartbeat
    beat     beat     beat  |          |                          |
                            |          |                          others take its jobs though its session is there
                            |          others take its jobs, if its session has gone
                            it stops trusting its lease: it takes no jobs, and ends its exclusive runs

Its other runs go on for one lease more than a setting says, ``outage_patience``: the whole database may be away, and
then no executor takes their jobs.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

_LONGEST_PAUSE = 10.0  # seconds between heartbeats
_LONGEST_CONNECT = 10.0  # seconds


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
        """Seconds after which no exclusive run may exist any more: just before others may take its job."""
        return self.duration.total_seconds() * 0.95

    def patience(self, outage: float) -> float:
        """Seconds without trust for which runs that are not exclusive go on, to survive an outage of this many seconds.

        After an outage each executor has one lease to be heard. Until then nobody takes its jobs, so its runs go on.
        """
        return outage + self.duration.total_seconds() if outage else 0.0

    @property
    def connect_within(self) -> float:
        """Seconds for an attempt to connect.

        After a fail-over each executor has one lease to be heard. An attempt that waits for the old server then, and
        the pause after it (`heartbeat_every` at most), leave a part of that lease for the new server.
        """
        return min(self.duration.total_seconds() / 2, _LONGEST_CONNECT)

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


class ServerStart(NamedTuple):
    """Which server answers, and since which of its starts: compare it, no clock counts.

    A crash of one session ends all others, and the server goes on: it forgets its statistics then.
    """

    started_at: datetime
    statistics_since: datetime


class Beat(NamedTuple):
    """The answer to a heartbeat: the id of its transaction, and the server that gave it."""

    mark: int
    server: ServerStart


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
    the judge's own session has lived, and the same server has answered again and again. (Behind a transaction pooler
    the session outlives the server.) After a gap the observation starts again, so that each living executor has a whole
    lease to renew.

    Args:
        every: seconds after which the judge asks again; an answer that takes longer than twice that is a gap.
    """

    def __init__(self, every: float) -> None:
        self._longest_gap = max(2 * every, _SHORTEST_GAP)
        self._server: ServerStart | None = None
        self.break_off()

    def break_off(self) -> None:
        """Start over: the session has ended, or an answer has not come."""
        self._marks: list[tuple[int, float, int]] = []  # the number of the answer, when it was received, and its id
        self._asked = 0.0

    @property
    def marks(self) -> list[Mark]:
        """The marks, the youngest first. Ages end at the latest question; later silence is unknown."""
        return [Mark(self._asked - at, mark) for _, at, mark in reversed(self._marks) if at < self._asked]

    def answered(self, sent: float, received: float, beat: Beat) -> bool:
        """The database has answered.

        Args:
            sent: when it was asked, in seconds of the judge's monotonic clock.
            received: when it had answered.
            beat: its answer, of a transaction that ran between these two times.

        Returns:
            whether it has been restarted, or replaced by another server, since the answer before.
        """
        is_another = self._server is not None and self._server != beat.server
        self._server = beat.server
        number = 0
        if self._marks:
            last, at, before = self._marks[-1]
            number = last + 1
            if received - at > self._longest_gap or is_another or beat.mark <= before:
                self.break_off()
        self._asked = sent
        self._marks.append((number, received, beat.mark))
        # Keeps enough older marks that no age is more than an eighth below the next one.
        self._marks = [
            one for one in self._marks if one[0] % (1 << max((number - one[0]).bit_length() - _FINE, 0)) == 0
        ]
        return is_another

"""The jobs of a simulation, as columns: a million of them take a hundred megabytes."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import isnan, nan

from joex.core.job import State

_STATES = (State.SUCCESS, State.FAILED, State.CANCELLED)
_MONDAY = datetime(2001, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class GroupOf:
    """A group of a queue and its settings."""

    queue: str
    name: str
    weight: int = 1
    max_running: int | None = None


@dataclass(frozen=True, slots=True)
class SimulatedJob:
    """A job: when it arrives, and how its runs end.

    Attributes:
        at: seconds after the beginning at which it becomes runnable.
        group: the number of its group.
        task: the number of its task.
        seconds: the duration of each of its runs.
        failures: the number of runs that fail, within its retries, before the last one ends with ``state``.
        retries, retry_delay: of the job (the delay in seconds); None: those of the pool.
        waited: how long the job of the trace waited; None: unknown.
    """

    at: float
    group: int
    seconds: float
    task: int = 0
    is_high: bool = False
    failures: int = 0
    state: State = State.SUCCESS
    retries: int | None = None
    retry_delay: float | None = None
    waited: float | None = None


@dataclass(slots=True)
class Jobs:
    """Jobs in the order of their arrival, and their groups. ``period``: the least number of seconds to simulate."""

    begin: datetime = _MONDAY
    period: float = 0.0
    groups: list[GroupOf] = field(default_factory=list)
    at: array[float] = field(default_factory=lambda: array("d"))
    group: array[int] = field(default_factory=lambda: array("q"))
    task: array[int] = field(default_factory=lambda: array("q"))
    seconds: array[float] = field(default_factory=lambda: array("d"))
    is_high: bytearray = field(default_factory=bytearray)
    _failures: array[int] = field(default_factory=lambda: array("q"))
    _state: bytearray = field(default_factory=bytearray)
    _retries: array[int] = field(default_factory=lambda: array("q"))
    _retry_delay: array[float] = field(default_factory=lambda: array("d"))
    waited: array[float] = field(default_factory=lambda: array("d"))

    def __len__(self) -> int:
        return len(self.at)

    def __getitem__(self, nr: int) -> SimulatedJob:
        waited, delay, retries = self.waited[nr], self._retry_delay[nr], self._retries[nr]
        return SimulatedJob(
            at=self.at[nr],
            group=self.group[nr],
            seconds=self.seconds[nr],
            task=self.task[nr],
            is_high=bool(self.is_high[nr]),
            failures=self._failures[nr],
            state=_STATES[self._state[nr]],
            retries=None if retries < 0 else retries,
            retry_delay=None if isnan(delay) else delay,
            waited=None if isnan(waited) else waited,
        )

    def __iter__(self) -> Iterator[SimulatedJob]:
        return (self[nr] for nr in range(len(self)))

    def add(self, job: SimulatedJob) -> None:
        """Add a job. Call `sort` after the last one."""
        self.at.append(job.at)
        self.group.append(job.group)
        self.seconds.append(job.seconds)
        self.task.append(job.task)
        self.is_high.append(job.is_high)
        self._failures.append(job.failures)
        self._state.append(_STATES.index(job.state))
        self._retries.append(-1 if job.retries is None else job.retries)
        self._retry_delay.append(nan if job.retry_delay is None else job.retry_delay)
        self.waited.append(nan if job.waited is None else job.waited)

    def sort(self, seqs: Sequence[int] = ()) -> None:
        """Sort the jobs by arrival; at the same time by ``seqs``, then in the order in which they were added."""
        order = sorted(range(len(self)), key=seqs.__getitem__) if seqs else list(range(len(self)))
        order.sort(key=self.at.__getitem__)
        for reals in (self.at, self.seconds, self._retry_delay, self.waited):
            reals[:] = array("d", [reals[nr] for nr in order])
        for numbers in (self.group, self.task, self._failures, self._retries):
            numbers[:] = array("q", [numbers[nr] for nr in order])
        for flags in (self.is_high, self._state):
            flags[:] = bytes(flags[nr] for nr in order)

    def shift(self, seconds: float) -> None:
        """Move all arrivals by so many seconds."""
        self.at[:] = array("d", [at + seconds for at in self.at])

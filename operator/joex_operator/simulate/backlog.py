"""The work of the waiting jobs, as `work` in sql/65_pools.sql measures it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from joex.core.fair_queue import FairQueue, room
from joex_operator.decide.run_times import RunTimes
from joex_operator.decide.scaling import Work
from joex_operator.simulate.jobs import Jobs

_Kind = tuple[int, int]
"""A task and a group."""


class Backlog:
    """Which jobs wait and run, and how long such jobs ran lately."""

    def __init__(self, jobs: Jobs, queues: Iterable[FairQueue]) -> None:
        queues = tuple(queues)
        self._jobs = jobs
        self._waiting: dict[FairQueue, Counter[_Kind]] = {queue: Counter() for queue in queues}
        self._running: dict[FairQueue, Counter[_Kind]] = {queue: Counter() for queue in queues}
        self._taken: dict[FairQueue, dict[int, float]] = {queue: {} for queue in queues}  # the first taken first
        self._run_times = RunTimes()

    def waits(self, queue: FairQueue, job: int) -> None:
        """A job has become runnable."""
        self._waiting[queue][self._kind(job)] += 1

    def starts(self, queue: FairQueue, job: int, at: float) -> None:
        """An executor has taken a job."""
        self._taken[queue][job] = at
        self._move(self._waiting[queue], self._kind(job))
        self._running[queue][self._kind(job)] += 1

    def ends(self, queue: FairQueue, job: int, seconds: float) -> None:
        """A run has ended that held its slot for so long."""
        task, group = self._jobs.task[job], self._jobs.group[job]
        self._move(self._running[queue], (task, group))
        del self._taken[queue][job]
        self._run_times.add(task, group, 1, seconds)

    def work(self, queues: Iterable[FairQueue], wait: float, at: float) -> Work:
        """The work of some queues at a time, in slots for so many seconds."""
        waiting, running, runs = 0.0, 0.0, 0
        for queue in queues:
            slots: dict[int, float] = {}
            for (task, group), jobs in self._waiting[queue].items():
                slots[group] = slots.get(group, 0.0) + jobs * self._run_times.share(task, group, wait)
            waiting += sum(min(some, room(queue.group(group))) for group, some in slots.items())
            for (task, group), jobs in self._running[queue].items():
                running += jobs * self._run_times.share(task, group, wait)
                runs += jobs
            for job, taken in self._taken[queue].items():
                if taken > at - wait:
                    break
                running += 1 - self._run_times.share(*self._kind(job), wait)
        return Work(waiting, running / runs if runs else 1.0)

    def _kind(self, job: int) -> _Kind:
        return self._jobs.task[job], self._jobs.group[job]

    @staticmethod
    def _move(counted: Counter[_Kind], kind: _Kind) -> None:
        counted[kind] -= 1
        if not counted[kind]:
            del counted[kind]

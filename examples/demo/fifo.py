"""The result of first-in-first-out: the same jobs in the order of their submission, on the same slots.

Pure functions without a clock: the demo passes the durations that it has measured.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_LONGEST_CHANGE = 0.2
"""Seconds. A slot that is empty for longer has nothing to do."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Room for one job at a time, in an executor that started and perhaps exited."""

    opens: float
    closes: float = math.inf


@dataclass(frozen=True, slots=True)
class Work:
    """A job: when it was submitted, and for how many seconds it takes a slot."""

    submitted: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Run:
    """The run of a job as it was: on which executor, when it was taken, and when its end was written."""

    executor: str
    taken: float
    ended: float


def fifo_starts(jobs: Iterable[Work], slots: Iterable[Slot]) -> list[float]:
    """When each job starts if the first submitted always comes first; the jobs are given in that order.

    A slot takes no job after it has closed. A job that runs at that time may finish. So a killed executor costs
    first-in-first-out less than a real one, and the comparison errs in its favour.

    >>> fifo_starts([Work(0, 10), Work(0, 1), Work(0, 1)], [Slot(0), Slot(0)])
    [0, 0, 1]

    Raises:
        ValueError: all slots have closed, and there are jobs left.
    """
    free = [(slot.opens, slot.closes) for slot in slots]
    heapq.heapify(free)
    starts = []
    for job in jobs:
        while free and max(free[0][0], job.submitted) >= free[0][1]:
            heapq.heappop(free)
        if not free:
            raise ValueError("all slots have closed, and there are jobs left")
        free_at, closes = free[0]
        start = max(free_at, job.submitted)
        heapq.heapreplace(free, (start + job.seconds, closes))
        starts.append(start)
    return starts


def changeovers(runs: Sequence[Run]) -> list[float]:
    """For each run, how long its slot had been empty before: the change from job to job costs each order the same.

    A slot that was empty for longer than a change takes had nothing to do; this counts as 0.

    >>> changeovers([Run("a", 0, 10), Run("a", 0, 5), Run("a", 5.02, 6), Run("a", 10.01, 11), Run("a", 20, 21)])
    [0.0, 0.0, 0.02, 0.01, 0.0]
    """
    empty_since: dict[str, list[float]] = defaultdict(list)
    found = [0.0] * len(runs)
    for number in sorted(range(len(runs)), key=lambda number: runs[number].taken):
        run = runs[number]
        ends = empty_since[run.executor]
        before = [end for end in ends if end <= run.taken]
        if before and run.taken - max(before) <= _LONGEST_CHANGE:
            found[number] = round(run.taken - max(before), 6)
            ends.remove(max(before))
        ends.append(run.ended)
    return found


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least this percentage of the values do not exceed (nearest rank).

    >>> percentile([5, 1, 4, 2, 3], 60), percentile(range(1, 21), 95)
    (3, 19)
    """
    return sorted(values)[max(math.ceil(len(values) * percent / 100), 1) - 1]

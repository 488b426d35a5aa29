"""The report of a simulation: waits, shares of the slots, executors and their cost."""

from __future__ import annotations

import statistics
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from itertools import pairwise
from math import isnan
from typing import TypeVar

from joex.core.job import State
from joex_operator.api.objects import Pool
from joex_operator.simulate.jobs import Jobs
from joex_operator.simulate.totals import Sizes, Totals

_HOUR = 3600.0
_STEPS = 200
_Key = TypeVar("_Key", int, str)


@dataclass(frozen=True, slots=True)
class Waits:
    """Seconds from when jobs became runnable until an executor took them; each run counts."""

    runs: int
    mean: float
    p50: float
    p95: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class GroupReport:
    """A group of a queue. ``slot_share``: of all slot time; ``was``: the waits in the trace."""

    queue: str
    group: str
    weight: int
    waits: Waits
    slot_hours: float
    slot_share: float
    was: Waits | None


@dataclass(frozen=True, slots=True)
class QueueReport:
    """A queue. ``jain``: how evenly its groups held slots while jobs waited, 1 is best (`totals.ShareTotals`)."""

    queue: str
    waits: Waits
    was: Waits | None
    jain: float | None


@dataclass(frozen=True, slots=True)
class PoolReport:
    """A pool. An executor counts from the decision to start it until it is gone. ``utilisation``: of its slots."""

    pool: str
    executors_mean: float
    executors_max: int
    executors_min: int
    started: int
    removed: int
    utilisation: float
    executor_hours: float


@dataclass(frozen=True, slots=True)
class Step:
    """A step of the time: the waits of the jobs taken in it, and the executors at its end."""

    at: float
    wait_p50: float | None
    wait_p95: float | None
    executors: int


@dataclass(frozen=True, slots=True)
class Report:
    """The report of a policy.

    Attributes:
        seconds: until all jobs had ended.
        not_run: jobs that no executor ever took.
        group_count: the number of all groups; ``groups`` may have fewer.
    """

    policy: str
    seconds: float
    jobs: int
    success: int
    failed: int
    cancelled: int
    not_run: int
    waits: Waits
    was: Waits | None
    utilisation: float
    executor_hours: float
    cost: float | None
    queues: list[QueueReport]
    group_count: int
    groups: list[GroupReport]
    pools: list[PoolReport]
    over_time: list[Step]


def report(
    policy: str,
    jobs: Jobs,
    pools: Sequence[Pool],
    totals: Totals,
    price: float | None,
    *,
    most_groups: int | None = None,
) -> Report:
    """The report of a simulation.

    Args:
        policy: its name.
        jobs: the load.
        pools: of the policy.
        totals: of the simulation.
        price: of an executor for an hour.
        most_groups: the report has at most so many groups, those that wait the longest first; None: it has all.
    """
    of_pools = [_pool(pool, sizes, totals.end) for pool, sizes in zip(pools, totals.sizes, strict=True)]
    hours = sum(pool.executor_hours for pool in of_pools)
    slot_hours = sum(one.executor_hours * pool.spec.pool_size for one, pool in zip(of_pools, pools, strict=True))
    return Report(
        policy=policy,
        seconds=totals.end,
        jobs=len(jobs),
        success=totals.ended[State.SUCCESS],
        failed=totals.ended[State.FAILED],
        cancelled=totals.ended[State.CANCELLED],
        not_run=len(jobs) - totals.ended.total(),
        waits=waits_of(totals.taken.waited),
        was=_was(jobs.waited),
        utilisation=_share(sum(totals.slot_seconds) / _HOUR, slot_hours),
        executor_hours=hours,
        cost=None if price is None else hours * price,
        queues=_queues(jobs, totals),
        group_count=len(jobs.groups),
        groups=_groups(jobs, totals, most_groups),
        pools=of_pools,
        over_time=_over_time(totals),
    )


def waits_of(waited: Iterable[float]) -> Waits:
    """The waits of some runs; quantiles by linear interpolation."""
    some = sorted(waited)
    if not some:
        return Waits(0, 0.0, 0.0, 0.0, 0.0, 0.0)
    cuts = statistics.quantiles(some if len(some) > 1 else some * 2, n=100, method="inclusive")
    return Waits(len(some), statistics.fmean(some), cuts[49], cuts[94], cuts[98], some[-1])


def _was(waited: Iterable[float]) -> Waits | None:
    known = [seconds for seconds in waited if not isnan(seconds)]
    return waits_of(known) if known else None


def _by(keys: Iterable[_Key], values: Iterable[float]) -> dict[_Key, array[float]]:
    found: dict[_Key, array[float]] = defaultdict(lambda: array("d"))
    for key, value in zip(keys, values, strict=True):
        found[key].append(value)
    return found


def _groups(jobs: Jobs, totals: Totals, most: int | None) -> list[GroupReport]:
    groups = _each_group(jobs, totals)  # (made one at a time: few of a hundred thousand may be wanted)
    return list(groups) if most is None else nsmallest(most, groups, key=_longest_first)


def _longest_first(group: GroupReport) -> tuple[float, str, str]:
    return -group.waits.p95, group.queue, group.group


def _each_group(jobs: Jobs, totals: Totals) -> Iterator[GroupReport]:
    waited, was = _by(totals.taken.group, totals.taken.waited), _by(jobs.group, jobs.waited)
    slots, all_slots = totals.slot_seconds, sum(totals.slot_seconds)
    for nr, group in enumerate(jobs.groups):
        yield GroupReport(
            queue=group.queue,
            group=group.name,
            weight=group.weight,
            waits=waits_of(waited.get(nr, ())),
            slot_hours=slots[nr] / _HOUR,
            slot_share=_share(slots[nr], all_slots),
            was=_was(was.get(nr, ())),
        )


def _queues(jobs: Jobs, totals: Totals) -> list[QueueReport]:
    queue_of = [group.queue for group in jobs.groups]
    waited = _by((queue_of[nr] for nr in totals.taken.group), totals.taken.waited)
    was = _by((queue_of[nr] for nr in jobs.group), jobs.waited)
    return [
        QueueReport(
            queue=queue,
            waits=waits_of(waited.get(queue, ())),
            was=_was(was.get(queue, ())),
            jain=totals.shares[queue].jain,
        )
        for queue in sorted(set(queue_of))
    ]


def _pool(pool: Pool, sizes: Sizes, end: float) -> PoolReport:
    points = [(at, size) for at, size in sizes.points if at <= end]  # a last reconcile may come after the end
    parts = [(after - at, size) for (at, size), (after, _) in pairwise([*points, (end, 0)])]
    seconds = sum(length * size for length, size in parts)
    executors = [size for _, size in parts]
    return PoolReport(
        pool=pool.name,
        executors_mean=_share(seconds, end),
        executors_max=max(executors),
        executors_min=min(executors),
        started=sizes.started,
        removed=sizes.removed,
        utilisation=_share(sizes.slot_seconds, seconds * pool.spec.pool_size),
        executor_hours=seconds / _HOUR,
    )


def _over_time(totals: Totals) -> list[Step]:
    length = totals.end / _STEPS or 1.0
    waited = _by((min(int(at / length), _STEPS - 1) for at in totals.taken.at), totals.taken.waited)
    steps = []
    for nr in range(_STEPS):
        waits = waits_of(waited[nr]) if nr in waited else None
        until = (nr + 1) * length
        steps.append(
            Step(
                at=until,
                wait_p50=None if waits is None else waits.p50,
                wait_p95=None if waits is None else waits.p95,
                executors=sum(sizes.at(until) for sizes in totals.sizes),
            )
        )
    return steps


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0

"""The results of a run of the demo, beside those of first-in-first-out."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import fmean

from examples.demo.fifo import Run, Slot, Work, changeovers, fifo_starts, percentile
from examples.demo.ledger import Record
from examples.demo.orders import LIBRARY
from examples.demo.pool import SLOTS
from joex.store.executors import Executor
from joex.store.jobs import Job

_COUNTED = ("lines", "functions", "classes", "imports")


@dataclass(frozen=True, slots=True)
class Kill:
    """How an executor was killed: which registration, when by the database's clock, and how many jobs it ran."""

    executor: Executor
    at: datetime
    jobs: int


@dataclass(frozen=True, slots=True)
class Waits:
    """How long jobs waited for their first start, in seconds from their submission."""

    first_start: float
    mean_wait: float
    p95_wait: float


@dataclass(frozen=True, slots=True)
class TenantSummary:
    """A tenant's jobs. ``retried`` ones failed at least once; ``fifo``: the waits of first-in-first-out."""

    name: str
    jobs: int
    done: int
    failed: int
    retried: int
    joex: Waits
    fifo: Waits


@dataclass(frozen=True, slots=True)
class Recovery:
    """The jobs of the killed executor. Times: seconds from the kill until they wait again, and have ended."""

    app_id: str
    pid: int
    killed_after: float
    jobs: int
    in_line_after: float
    ended_after: float


@dataclass(frozen=True, slots=True)
class PoolSize:
    """The size of the pool from a moment on, in seconds from the first submission."""

    seconds: float
    executors: int


@dataclass(frozen=True, slots=True)
class Summary:
    """The run. ``lost`` counts the jobs that were submitted and are in no final state; ``pool`` begins at zero."""

    seconds: float
    jobs: int
    retried: int
    failed: int
    lost: int
    tenants: list[TenantSummary]
    pool: list[PoolSize]
    recovery: Recovery | None
    errors: list[str]
    counted: dict[str, int]


@dataclass(frozen=True, slots=True)
class _Line:
    """A job, and how long it waited for its first start."""

    job: Job
    wait: float
    fifo_wait: float


def summarise(
    submitted: Mapping[str, int], records: Sequence[Record], executors: Sequence[Executor], kill: Kill | None
) -> Summary:
    """Sum up a run from its ended jobs, in the order of submission."""
    begin = min(record.job.submitted_at for record in records)
    work = _work(records, begin)
    last = max(_after(begin, record.job.finished_at) for record in records)
    in_fifo = fifo_starts(work, _slots(executors, kill, begin, last))
    lines = [
        _Line(record.job, _after(record.job.submitted_at, record.first_start), start - given.submitted)
        for record, given, start in zip(records, work, in_fifo, strict=True)
    ]
    jobs = [record.job for record in records]
    failed = [job for job in jobs if job.state != "success"]
    return Summary(
        seconds=last,
        jobs=sum(submitted.values()),
        retried=sum(job.failures > 0 for job in jobs),
        failed=len(failed),
        lost=sum(submitted.values()) - len(jobs),
        tenants=[_tenant(name, [line for line in lines if line.job.group == name]) for name in submitted],
        pool=pool_sizes([_life(executor, kill, begin) for executor in executors]),
        recovery=None if kill is None else _recovery(kill, begin, jobs, executors),
        errors=[f"{job.group}, {job.subject}: {job.error}" for job in failed],
        counted=_counted(jobs),
    )


def _work(records: Sequence[Record], begin: datetime) -> list[Work]:
    """The jobs as they were submitted, and how long each occupies a slot, with the change from the job before it."""
    runs = [
        Run(r.job.app_id or "", _after(begin, r.job.scheduled_at), _after(begin, r.job.finished_at)) for r in records
    ]
    return [
        Work(_after(begin, record.job.submitted_at), record.held + change)
        for record, change in zip(records, changeovers(runs), strict=True)
    ]


def _tenant(name: str, lines: Sequence[_Line]) -> TenantSummary:
    done = sum(line.job.state == "success" for line in lines)
    return TenantSummary(
        name=name,
        jobs=len(lines),
        done=done,
        failed=len(lines) - done,
        retried=sum(line.job.failures > 0 for line in lines),
        joex=_waits([line.wait for line in lines]),
        fifo=_waits([line.fifo_wait for line in lines]),
    )


def _waits(waits: Sequence[float]) -> Waits:
    first, mean, p95 = min(waits), fmean(waits), percentile(waits, 95)
    return Waits(first_start=round(first, 3), mean_wait=round(mean, 3), p95_wait=round(p95, 3))


def _slots(executors: Sequence[Executor], kill: Kill | None, begin: datetime, last: float) -> list[Slot]:
    """The slots of the executors; a slot that was open at the end of the last job (``last``) never closes."""
    slots = []
    for executor in executors:
        opens, closes = _life(executor, kill, begin)
        slots += [Slot(opens, closes if closes < last else math.inf)] * SLOTS
    return slots


def _life(executor: Executor, kill: Kill | None, begin: datetime) -> tuple[float, float]:
    """From when to when an executor lived: the killed one until it was killed."""
    is_killed = kill is not None and executor.id == kill.executor.id
    end = kill.at if kill is not None and is_killed else executor.left_at
    return _after(begin, executor.started_at), math.inf if end is None else _after(begin, end)


def pool_sizes(lives: Iterable[tuple[float, float]]) -> list[PoolSize]:
    """How many executors lived over time, from the begin and the end of each.

    >>> [(now.seconds, now.executors) for now in pool_sizes([(1.0, 9.0), (2.0, 5.0), (5.0, 9.0)])]
    [(0.0, 0), (1.0, 1), (2.0, 2), (9.0, 0)]
    """
    changes: Counter[float] = Counter()
    for begin, end in lives:
        changes[round(begin, 3)] += 1
        if end < math.inf:
            changes[round(end, 3)] -= 1
    sizes = [PoolSize(0.0, 0)]
    for moment in sorted(moment for moment in changes if changes[moment]):
        sizes.append(PoolSize(moment, sizes[-1].executors + changes[moment]))
    return sizes


def _recovery(kill: Kill, begin: datetime, jobs: Sequence[Job], executors: Sequence[Executor]) -> Recovery:
    lost = [job for job in jobs if job.losses]
    left_at = next(executor.left_at for executor in executors if executor.id == kill.executor.id)
    return Recovery(
        app_id=kill.executor.app_id,
        pid=kill.executor.pid,
        killed_after=_after(begin, kill.at),
        jobs=len(lost),
        in_line_after=_after(kill.at, left_at),
        ended_after=max((_after(kill.at, job.finished_at) for job in lost), default=0.0),
    )


def _counted(jobs: Sequence[Job]) -> dict[str, int]:
    """The sums of the counts of the library's tasks."""
    results = [job.result for job in jobs if job.group == LIBRARY and job.state == "success"]
    return {"files": len(results)} | {name: sum(result[name] for result in results) for name in _COUNTED}


def _after(begin: datetime, moment: datetime | None) -> float:
    return 0.0 if moment is None else (moment - begin).total_seconds()

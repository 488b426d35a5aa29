"""The demo's view of its jobs while they run, read through the public interface."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from uuid import UUID

from examples.demo.orders import TENANTS
from joex.client.client import Client
from joex.core.job import NewJob
from joex.store.executors import Executor, list_executors
from joex.store.job_logs import job_log
from joex.store.jobs import Job
from joex.store.listing import Filter, list_jobs
from joex.store.statement import Connection
from joex.store.stats import GroupStats, group_stats

_PAGE = 100
_HELD = ("scheduled", "running")
KILLED = "killed"
"""The state of an executor that the demo has killed, until the database marks it as ended."""
_ENDED = ("success", "failed", "cancelled")


@dataclass(frozen=True, slots=True)
class TenantNow:
    """A tenant's jobs at a moment; ``mean_wait`` is that of the jobs that have started and ended."""

    name: str
    submitted: int
    waiting: int
    running: int
    stuck: int
    done: int
    failed: int
    mean_wait: float | None

    @property
    def ended(self) -> int:
        """Jobs in a final state."""
        return self.done + self.failed


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All jobs and executors at one moment. ``executors`` has the latest registration under each app-id."""

    tenants: list[TenantNow]
    executors: list[Executor]
    stuck: list[Job]

    @property
    def ended(self) -> int:
        """Jobs in a final state."""
        return sum(tenant.ended for tenant in self.tenants)

    @property
    def submitted(self) -> int:
        """All jobs."""
        return sum(tenant.submitted for tenant in self.tenants)

    @property
    def living(self) -> list[Executor]:
        """The executors that have neither left nor been killed."""
        return [executor for executor in self.executors if executor.left_at is None and executor.state != KILLED]

    def tenant(self, name: str) -> TenantNow:
        """One of the tenants."""
        return next(tenant for tenant in self.tenants if tenant.name == name)


@dataclass(frozen=True, slots=True)
class Record:
    """The outcome of a job. ``held``: for how many seconds it had a slot, over all its runs that were not lost."""

    job: Job
    first_start: datetime | None
    held: float


class Ledger:
    """Submits the jobs, and follows them."""

    def __init__(self, client: Client, connection: Connection) -> None:
        self._client = client
        self._connection = connection
        self._submitted: Counter[str] = Counter()
        self._finished: dict[UUID, Job] = {}
        self._first_starts: dict[UUID, datetime] = {}
        self.killed: int | None = None  # the registration that is shown as such until the others have noticed it

    async def submit(self, orders: Sequence[NewJob]) -> None:
        """Submit jobs, all at once."""
        await self._client.submit_many(orders)
        self._submitted.update(order.group for order in orders)

    async def look(self) -> Snapshot:
        """A snapshot of this moment."""
        stuck = (await list_jobs(self._connection, Filter(states=["stuck"]), most=1000)).jobs
        self._note_starts(stuck)
        unfinished = {group.group: group for group in await group_stats(self._connection)}
        await self._read_finished()
        tenants = [self._tenant(name, unfinished.get(name)) for name in TENANTS]
        latest = {executor.app_id: self._as_known(executor) for executor in await self.executors()}
        return Snapshot(tenants, [latest[app_id] for app_id in sorted(latest)], stuck)

    def _tenant(self, name: str, unfinished: GroupStats | None) -> TenantNow:
        finished = [job for job in self._finished.values() if job.group == name]
        done = sum(job.state == "success" for job in finished)
        return TenantNow(
            name=name,
            submitted=self._submitted[name],
            waiting=unfinished.waiting if unfinished else 0,
            running=unfinished.running + unfinished.scheduled if unfinished else 0,
            stuck=unfinished.stuck if unfinished else 0,
            done=done,
            failed=len(finished) - done,
            mean_wait=self._mean_wait(finished),
        )

    async def executors(self) -> list[Executor]:
        """All registrations of all executors, in the order of their starts."""
        return sorted(await list_executors(self._connection, ended=True), key=lambda executor: executor.started_at)

    async def registration(self, executor: int) -> Executor:
        """The registration with this id."""
        return next(other for other in await self.executors() if other.id == executor)

    async def held_by(self, app_id: str) -> list[Job]:
        """The jobs that an executor has in its slots."""
        page = await list_jobs(self._connection, Filter(states=_HELD), most=1000)
        held = [job for job in page.jobs if job.app_id == app_id]
        self._note_starts(held)
        return held

    async def records(self) -> list[Record]:
        """The outcomes of the jobs that have ended, in the order of their submission."""
        page = await list_jobs(self._connection, Filter(states=_ENDED), most=1_000_000)
        jobs = sorted((job for job in page.jobs if job.group in self._submitted), key=lambda job: job.seq)
        return [await self._record(job) for job in jobs]

    @property
    def submitted(self) -> Mapping[str, int]:
        """How many jobs each tenant has submitted."""
        return self._submitted

    async def _record(self, job: Job) -> Record:
        """The record of a job: its row describes the last run, its log the earlier ones."""
        held = _seconds(job.scheduled_at, job.finished_at)
        starts = [self._first_starts.get(job.id), job.started_at]
        if job.failures or job.losses:
            lines = await job_log(self._connection, job.id)
            for attempt in range(1, job.attempt):
                of_run = [line.at for line in lines if line.attempt == attempt]
                held += _seconds(of_run[0], of_run[-1]) if of_run else 0.0
            starts += [line.at for line in lines]
        return Record(job, min((start for start in starts if start is not None), default=None), held)

    async def _read_finished(self) -> None:
        """Read the jobs that have ended since the last call: page by page, back to a page that has nothing new."""
        cursor = None
        while True:
            page = await list_jobs(self._connection, Filter(states=_ENDED), cursor, _PAGE)
            new = [job for job in page.jobs if job.id not in self._finished]
            self._finished.update((job.id, job) for job in new if job.group in self._submitted)
            if len(new) < len(page.jobs) or page.next is None:
                return
            cursor = page.next

    def _as_known(self, executor: Executor) -> Executor:
        is_killed = executor.id == self.killed and executor.left_at is None
        return replace(executor, state=KILLED) if is_killed else executor

    def _note_starts(self, jobs: Sequence[Job]) -> None:
        """Remember when a job started first, because its next run overwrites the start in its row."""
        for job in jobs:
            if job.started_at is not None:
                self._first_starts.setdefault(job.id, job.started_at)

    def _mean_wait(self, jobs: Sequence[Job]) -> float | None:
        waits = [_seconds(job.submitted_at, self._first_starts.get(job.id, job.started_at)) for job in jobs]
        return sum(waits) / len(waits) if waits else None


def _seconds(start: datetime | None, end: datetime | None) -> float:
    return 0.0 if start is None or end is None else (end - start).total_seconds()

"""One registration of an executor: its services under one task group, until it has drained or its lease has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from joex.app import App
from joex.config import Settings
from joex.core import events
from joex.core.events import Emit
from joex.core.job import TakenJob
from joex.core.lease import Lease
from joex.core.outcome import Interruption
from joex.errors import JoexError, LeaseLost
from joex.exits import exit_at_once
from joex.periodic_scheduler import PeriodicScheduler
from joex.runtime.bulk import Bulk
from joex.runtime.finisher import Finisher
from joex.runtime.job_log_writer import JobLogWriter
from joex.runtime.lease import EXIT_CODE, LeaseKeeper
from joex.runtime.lease_callbacks import LeaseCallbacks
from joex.runtime.maintenance import Maintenance
from joex.runtime.overruns import Overruns
from joex.runtime.processes import GRACE, Processes
from joex.runtime.read_floors import ReadFloorKeeper
from joex.runtime.run import Defaults
from joex.runtime.runner import Runner
from joex.runtime.taker import Taker
from joex.runtime.waits import first_of, wait_for
from joex.store import executors, runs
from joex.store.database import borrowed
from joex.store.runs import SizeLimits
from joex.store.task_connections import TaskConnections
from joex.trouble import Trouble

if TYPE_CHECKING:
    import asyncpg

    from joex.runtime.watchdog import Watchdog

_FLUSH_FOR = 5.0  # seconds for the last log lines to be written
_GRACE = 2.0 + GRACE  # seconds for runs to react when they are given back
_KILL_WITHIN = 2.0  # seconds for them to react when their lease is over, at most: the lease's thread waits for one more


@dataclass(frozen=True, slots=True)
class Resources:
    """What all registrations of an executor share.

    Attributes:
        app, settings, url, emit, watchdog: as for `joex.runtime.executor.Executor`.
        pool: connections for the services.
        bulk_args, bulk_ends: move arguments, and ends of runs, that are too large to travel with others.
        task_connections: connections for the tasks.
        limits: the largest arguments and results.
        poll_interval: seconds between two takes without notifications; None: it listens.
        processes: of tasks; None: no task needs them.
        asked_to_drain: set when the executor is to take no more jobs.
        asked_to_stop: set when it is to interrupt running jobs, too.
        drain: called when the database asks the executor to drain.
    """

    app: App
    settings: Settings
    url: str
    emit: Emit
    watchdog: Watchdog | None
    pool: asyncpg.Pool[Any]
    bulk_args: Bulk
    bulk_ends: Bulk
    task_connections: TaskConnections
    limits: SizeLimits
    poll_interval: float | None
    processes: Processes | None
    asked_to_drain: asyncio.Event
    asked_to_stop: asyncio.Event
    drain: Callable[[], None]


class Registration:
    """One registration of an executor, with its services."""

    def __init__(self, resources: Resources, executor_id: int, since: float) -> None:
        settings, pool, poll_interval = resources.settings, resources.pool, resources.poll_interval
        app_id = settings.effective_app_id
        self._resources = resources
        self._pool = pool
        self._id = executor_id
        self._emit = resources.emit
        self._ended = asyncio.Event()
        self._idle = asyncio.Event()
        self._fetching = Trouble("bulk", self._emit)
        self.overruns = Overruns(pool, executor_id, self._emit)
        self.reports = JobLogWriter(pool, settings.log_buffer_size, self._emit)
        self.finisher = Finisher(
            pool,
            self.reports,
            self._emit,
            self._written,
            bulk=resources.bulk_ends,
            canceled=lambda job: self.runner.clean_up(job, self._written),
        )
        self.runner = Runner(
            resources.app,
            settings.pool_size,
            Defaults(settings.retries, settings.retry_delay, settings.timeout, settings.retry_jitter),
            finisher=self.finisher,
            reports=self.reports,
            connections=lambda job: resources.task_connections.of(job.queue, job.group),
            fetch=self._fetch,
            mark_start=self._mark_start,
            on_room=lambda: self.taker.wake(),  # noqa: PLW0108 - the taker comes after the runner
            on_overrun=self.overruns.began,
            largest_result=resources.limits.result,
            processes=resources.processes,
            process_slots=settings.process_slots,
            is_trusted=lambda: self.keeper.is_trusted,
            emit=self._emit,
        )
        self.taker = Taker(
            pool,
            self.runner,
            executor=executor_id,
            queues=settings.queues,
            scheme=settings.counting_scheme,
            wakeup_period=settings.wakeup_period.total_seconds(),
            poll_interval=poll_interval,
            is_trusted=lambda: self.keeper.is_trusted,
            emit=self._emit,
        )
        self.maintenance = Maintenance(
            resources.url,
            pooled=poll_interval is not None,
            name=f"joex maintenance {app_id}",
            emit=self._emit,
        )
        self.scheduler = PeriodicScheduler(
            pool, app_id, self._emit, maintain=self.maintenance.wake, poll_every=poll_interval
        )
        self.read_floors = ReadFloorKeeper(pool, self._emit)
        self.keeper = LeaseKeeper(
            resources.url,
            executor=executor_id,
            queues=settings.queues,
            lease=Lease(settings.lease),
            outage_patience=settings.outage_patience.total_seconds(),
            pooled=poll_interval is not None,
            held=lambda: [(run.job.id, run.job.lock_id) for run in list(self.runner.runs.values())],
            executing=lambda: self.runner.executing,
            executing_exclusively=lambda: self.runner.executing_exclusively,
            since=since,
            watchdog=resources.watchdog,
            callbacks=LeaseCallbacks(
                on_event=self._emit,
                on_wake=self.taker.wake,
                on_aside=self.taker.fall_asleep_anew,
                on_reconnect=self.taker.doubt,
                on_crowd=self.read_floors.wake,
                on_periodic=self.scheduler.wake,
                on_drain=resources.drain,
                on_cancel=self._cancel,
                on_lost=self._lose,
                on_job_ended=self.runner.count_overruns,
                on_trust=self.taker.wake,
                on_distrust=self._distrust,
                on_patience_end=self._end_patience,
                on_ended=self._ended.set,
            ),
        )

    async def run(self) -> bool:
        """Serve until drained (True) or until the lease has ended (False)."""
        self.keeper.start()
        try:
            async with asyncio.TaskGroup() as group:
                services = [
                    group.create_task(service())
                    for service in (
                        self._take,
                        self.finisher.run,
                        self.reports.run,
                        self.overruns.run,
                        self.scheduler.run,
                        self.maintenance.run,
                        self.read_floors.run,
                    )
                ]
                await self._until_over()
                await self.reports.close(_FLUSH_FOR)
                for task in services:
                    task.cancel()
            return await self._leave()
        finally:
            await self.keeper.stop()
            self.runner.close()

    async def _take(self) -> None:
        try:
            await self.taker.run()
        except LeaseLost:
            self._ended.set()

    async def _until_over(self) -> None:
        resources = self._resources
        await first_of(resources.asked_to_drain.wait(), self._ended.wait())
        await self.taker.stop()
        self.runner.give_back_unstarted()  # the jobs of a take at the last moment
        limit = resources.settings.drain_timeout
        if self.runner.runs:
            patience = wait_for(resources.asked_to_stop, None if limit is None else limit.total_seconds())
            # Ended runs may still wait for the database to store them, but no longer than runs may go on without it.
            over = self.keeper.until_over()
            await first_of(patience, self._ended.wait(), self._until_idle(), over, self._show_drain_until_ended())
        if self.runner.runs:
            self.runner.interrupt_all(Interruption.LOST if self._ended.is_set() else Interruption.GIVE_BACK)
            if self._ended.is_set():
                self._kill_soon(self.runner.kill)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._until_idle(), _GRACE)

    async def _show_drain_until_ended(self) -> None:
        """Say that this executor drains: until then, submissions wake it, and spare executors leave jobs to it."""
        trouble = Trouble("drain", self._emit)
        while True:
            try:
                async with borrowed(self._pool) as connection:
                    await executors.show_drain(connection, self._id)
            except (JoexError, OSError) as error:
                await asyncio.sleep(trouble.failed(error))
            else:
                trouble.over()
                await self._ended.wait()
                return

    async def _leave(self) -> bool:
        """Exit normally. True: drained. False: the lease had ended."""
        stubborn = self.runner.executing
        if not self._ended.is_set() and not stubborn:
            with suppress(JoexError, OSError):
                async with asyncio.timeout(_FLUSH_FOR), borrowed(self._pool) as connection:
                    given_back = await executors.leave(connection, self._id)
                self._emit(events.Left(self._id, given_back))
        if stubborn:
            # Code in threads that ignores ctx.cancelled. While it runs, no other executor may run its jobs, so they
            # move on as the jobs of a dead executor do.
            exit_at_once(EXIT_CODE, f"{stubborn} tasks did not react to being interrupted; exiting")
        return not self._ended.is_set()

    async def _fetch(self, job: TakenJob) -> str | None:
        """The arguments of a job that are too large to come with others."""
        resources = self._resources
        return await resources.bulk_args.moved(
            job, resources.limits.args, lambda used: runs.arguments(used, job.id, job.lock_id), self._fetching
        )

    async def _mark_start(self, job: TakenJob) -> bool:
        async with borrowed(self._pool) as connection:
            return await runs.mark_start(connection, job.id, job.lock_id)

    async def _until_idle(self) -> None:
        while self.runner.runs:
            self._idle.clear()
            await self._idle.wait()

    def _written(self, jobs: list[TakenJob]) -> None:
        self.runner.release(jobs)
        self.overruns.over(job for job in jobs if job.lock_id not in self.runner.runs)
        self.taker.wake()
        if not self.runner.runs:
            self._idle.set()

    def _cancel(self, job_id: UUID) -> None:
        """Interrupt a run whose job was cancelled."""
        for run in list(self.runner.runs.values()):
            if run.job.id == job_id:
                self.runner.interrupt(run, Interruption.CANCEL)

    def _lose(self, lock_ids: list[UUID]) -> None:
        """Interrupt runs that have lost their jobs."""
        for lock_id in lock_ids:
            run = self.runner.runs.get(lock_id)
            if run is not None and not run.has_committed:
                self.runner.interrupt(run, Interruption.LOST)

    def _distrust(self) -> None:
        """Take and start nothing while the lease can't be trusted."""
        self._emit(events.TrustEnded(len(self.runner.runs)))
        self.runner.give_back_unstarted()
        self.runner.give_back_exclusive()
        self._kill_soon(lambda: None if self.keeper.is_trusted else self.runner.kill(exclusive=True))

    def _end_patience(self) -> None:
        """Interrupt all runs: their database is away for too long, or other executors run their jobs."""
        self._emit(events.PatienceEnded(len(self.runner.runs)))
        self.runner.interrupt_all(Interruption.GIVE_BACK)
        self._kill_soon(lambda: None if self.keeper.is_trusted else self.runner.kill())

    def _kill_soon(self, kill: Callable[[], None]) -> None:
        """Kill what does not react in time: a fifth of a lease after the end of trust the process would exit."""
        soon = min(_KILL_WITHIN, self._resources.settings.lease.total_seconds() / 8)
        asyncio.get_running_loop().call_later(soon, kill)

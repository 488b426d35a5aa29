"""An executor: registers, runs its services under one task group, drains, leaves.

::

    STARTING --> WAITING (its app-id is in use, or retired) --> RUNNING --> DRAINING --> LEFT
                                                    |   ^
                                                    |   | a new incarnation
                                                    +---+ the lease has ended
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any
from uuid import UUID

from joex.config import Settings
from joex.core import events
from joex.core.events import Emit, Event
from joex.core.job import TakenJob
from joex.core.lease import Lease
from joex.errors import JoexError, LeaseLost
from joex.runtime.chores import Chores, add_system_tasks
from joex.runtime.finisher import Finisher
from joex.runtime.identity import is_certainly_gone, this_process
from joex.runtime.lease import EXIT_CODE, LeaseKeeper, clock
from joex.runtime.notes import NoteWriter
from joex.runtime.runner import Defaults, Interruption, Runner
from joex.runtime.taker import Taker
from joex.store import executors
from joex.store.database import borrowed, create_pool
from joex.store.executors import Other, Registered, Registration
from joex.store.migrate import check_schema
from joex.task import App

if TYPE_CHECKING:
    import asyncpg

_REGISTER_RETRY_IN = 0.5
_FLUSH_FOR = 5.0  # seconds for the last log lines to be written
_TASK_CONNECTIONS = 20
_GRACE = 2.0  # seconds for runs to react when they are given back


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A job in a slot, for people. ``seconds`` since its code started; 0: it has not."""

    id: UUID
    task: str
    group: str
    queue: str
    attempt: int
    subject: str
    seconds: float


class Executor:
    """Runs the jobs of some queues with the tasks of an app.

    Args:
        app: the tasks.
        settings: see `joex.config.Settings`.
        url: the database, which has this version's schema.
        emit: where events go; called on the executor's loop.
    """

    task_pool: asyncpg.Pool[Any]

    def __init__(self, app: App, settings: Settings, url: str, *, emit: Emit = lambda _event: None) -> None:
        self.app = app
        self.settings = settings
        self.app_id = settings.effective_app_id
        self.phase = "starting"
        self.id: int | None = None
        self._url = url
        self._emit = emit
        self._pooled = settings.poll_interval is not None
        self._draining = asyncio.Event()
        self._stopping = asyncio.Event()
        self._incarnation: _Incarnation | None = None

    @property
    def ready(self) -> bool:
        """It is registered, trusts its lease, and takes jobs."""
        return self.phase == "running" and self._incarnation is not None and self._incarnation.keeper.is_trusted

    @property
    def alive(self) -> bool:
        """Its loop and its lease's thread are at work. An unreachable database is no reason to restart it."""
        return self._incarnation is None or self._incarnation.keeper.is_alive

    def running(self) -> list[RunningJob]:
        """The jobs in the slots."""
        held = [] if self._incarnation is None else list(self._incarnation.runner.runs.values())
        return [
            RunningJob(
                r.job.id, r.job.task, r.job.group, r.job.queue, r.job.attempt + 1, r.job.subject, r.seconds or 0.0
            )
            for r in held
        ]

    def wake(self) -> None:
        """Look for work now."""
        if self._incarnation is not None:
            self._incarnation.taker.wake()

    def drain(self) -> None:
        """Take no more jobs, finish what runs, and leave."""
        if not self._draining.is_set():
            self._draining.set()
            self._emit(events.Draining(len(self.running())))

    def stop(self) -> None:
        """Leave at once: interrupt what runs, and give it back (it waits again, and this run does not count)."""
        self.drain()
        self._stopping.set()

    async def run(self, services: Sequence[Callable[[], Awaitable[None]]] = ()) -> None:
        """Run until it has drained. ``services`` run beside it all the time (the HTTP interface).

        Raises:
            SchemaError, ConfigError, DatabaseUnavailable: at the start, while nothing has been taken.
        """
        pool = await create_pool(self._url, most=4, pooled=self._pooled, name=f"joex {self.app_id}", for_services=True)
        # Tasks have connections of their own, so that long transactions of theirs never keep the services waiting.
        most = min(self.settings.pool_size, _TASK_CONNECTIONS)
        self.task_pool = await create_pool(self._url, most=most, pooled=self._pooled, name=f"joex tasks {self.app_id}")
        try:
            async with borrowed(pool) as connection:
                await check_schema(connection)
            add_system_tasks(self.app)
            async with asyncio.TaskGroup() as group:
                beside = [group.create_task(_run(service)) for service in services]
                await self._run_incarnations(pool)
                for task in beside:
                    task.cancel()
        except BaseExceptionGroup as error:
            raise _only(error) from error
        finally:
            self.phase = "left"
            for used in (pool, self.task_pool):
                with suppress(TimeoutError):
                    await asyncio.wait_for(used.close(), _FLUSH_FOR)

    async def _run_incarnations(self, pool: asyncpg.Pool[Any]) -> None:
        while True:
            registered = await self._register(pool)
            if registered is None:
                return
            self.id, since = registered
            self._incarnation = _Incarnation(self, pool, self.id, since)
            self.phase = "draining" if self._draining.is_set() else "running"
            if await self._incarnation.run():
                return
            self._emit(events.LeaseEnded(self.id))

    async def _register(self, pool: asyncpg.Pool[Any]) -> tuple[int, float] | None:
        """Register a new incarnation; wait while another executor lives under the app-id. None: asked to drain.

        Under a retired app-id nobody registers. It waits there too: whoever retired it is about to end this process,
        and one that ended by itself would only be started again.
        """
        me, gone, told = self._registration(), None, None
        while not self._draining.is_set():
            sent = clock()
            try:
                async with borrowed(pool) as connection:
                    answer = await executors.register(connection, me, self.settings.most_losses, gone)
            except (JoexError, OSError) as error:
                self._emit(events.DatabaseTrouble("registration", str(error), _REGISTER_RETRY_IN))
            else:
                if answer.id is not None:
                    self._emit(events.Registered(self.app_id, answer.id, answer.reclaimed))
                    return answer.id, sent
                if answer.other is not None and is_certainly_gone(answer.other):
                    gone = answer.other.id
                    continue
                self.phase = "waiting"
                told = self._tell_of_waiting(answer, told)
            await _wait(self._draining, _REGISTER_RETRY_IN)
        return None

    def _tell_of_waiting(self, answer: Registered, told: int | None) -> int | None:
        """Say once why it waits; returns whom it waits for (0: its app-id is retired)."""
        why = answer.other.id if answer.other is not None else 0
        if why != told:
            in_use = None if answer.other is None else events.AppIdInUse(self.app_id, _describe(answer.other))
            self._emit(in_use or events.AppIdRetired(self.app_id))
        return why

    def _registration(self) -> Registration:
        process, settings = this_process(), self.settings
        return Registration(
            app_id=self.app_id,
            pod_uid=settings.pod_uid or None,
            host=process.host,
            boot_id=process.boot,
            pid=process.pid,
            process_start=process.start,
            version=version("joex"),
            queues=settings.queues,
            tasks=self.app.names,
            pool_size=settings.pool_size,
            http_address=settings.http_address or None,
            lease=settings.lease,
            locks=not self._pooled,
        )


class _Incarnation:
    """One registration of an executor, with its services. It is also the lease's `Listener`."""

    def __init__(self, executor: Executor, pool: asyncpg.Pool[Any], executor_id: int, since: float) -> None:
        settings = executor.settings
        self._executor = executor
        self._pool = pool
        self._id = executor_id
        self._emit = executor._emit  # noqa: SLF001 - a part of the executor
        self._ended = asyncio.Event()
        self._idle = asyncio.Event()
        self.notes = NoteWriter(pool, settings.log_buffer_size, self._emit)
        self.finisher = Finisher(pool, self.notes, self._emit, self._written)
        self.runner = Runner(
            executor.app,
            settings.pool_size,
            Defaults(settings.retries, settings.retry_delay, settings.timeout),
            finisher=self.finisher,
            notes=self.notes,
            connections=executor.task_pool,
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
            poll_interval=settings.poll_interval.total_seconds() if settings.poll_interval else None,
            is_trusted=lambda: self.keeper.is_trusted,
            emit=self._emit,
        )
        self.keeper = LeaseKeeper(
            executor._url,  # noqa: SLF001
            executor=executor_id,
            lease=Lease(settings.lease),
            most_losses=settings.most_losses,
            pooled=settings.poll_interval is not None,
            held=lambda: [(run.job.id, run.job.lock_id) for run in list(self.runner.runs.values())],
            executing=lambda: self.runner.executing,
            since=since,
            listener=self,
        )

    async def run(self) -> bool:
        """Serve until drained (True) or until the lease has ended (False)."""
        self.keeper.start()
        try:
            async with asyncio.TaskGroup() as group:
                taking = group.create_task(self._take())
                others = [
                    group.create_task(service())
                    for service in (
                        self.finisher.run,
                        self.notes.run,
                        Chores(self._pool, self._executor.settings, self._emit).run,
                    )
                ]
                await self._until_over(taking)
                await self.notes.close(_FLUSH_FOR)
                for task in others:
                    task.cancel()
            return await self._leave()
        finally:
            await self.keeper.stop()
            self.runner.close()

    async def _take(self) -> None:
        try:
            await self.taker.run()
        except LeaseLost:
            self.on_ended()

    async def _until_over(self, taking: asyncio.Task[None]) -> None:
        executor = self._executor
        await _first(executor._draining.wait(), self._ended.wait())  # noqa: SLF001
        if executor._draining.is_set():  # noqa: SLF001
            executor.phase = "draining"
        self.taker.stop()
        await taking
        with suppress(JoexError, OSError):  # for people to see: nothing depends on it
            async with asyncio.timeout(_FLUSH_FOR), borrowed(self._pool) as connection:
                await executors.show_drain(connection, self._id)
        self.runner.give_back_unstarted()  # what was taken at the last moment
        limit = executor.settings.drain_timeout
        patience = _wait(executor._stopping, None if limit is None else limit.total_seconds())  # noqa: SLF001
        await _first(patience, self._ended.wait(), self._until_idle())
        if self.runner.runs:
            self.runner.interrupt_all(Interruption.LOST if self._ended.is_set() else Interruption.GIVE_BACK)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._until_idle(), _GRACE)

    async def _leave(self) -> bool:
        """Leave in order. True: drained. False: the lease had ended."""
        stubborn = self.runner.executing
        if not self._ended.is_set() and not stubborn:
            with suppress(JoexError, OSError):
                async with asyncio.timeout(_FLUSH_FOR), borrowed(self._pool) as connection:
                    given_back = await executors.leave(connection, self._id, self._executor.settings.most_losses)
                self._emit(events.Left(self._id, given_back))
        if stubborn:
            # Code in threads that does not look at ctx.cancelled. While it runs its jobs can't be given to others, so
            # they move on as those of a dead executor do.
            sys.stderr.write(f"joex: {stubborn} tasks did not react to being interrupted; exiting\n")
            sys.stderr.flush()
            os._exit(EXIT_CODE)
        return not self._ended.is_set()

    async def _until_idle(self) -> None:
        while self.runner.runs:
            self._idle.clear()
            await self._idle.wait()

    def _written(self, job: TakenJob) -> None:
        self.runner.release(job)
        self.taker.wake()
        if not self.runner.runs:
            self._idle.set()

    # What the lease's thread tells, on the executor's loop.

    def on_event(self, event: Event) -> None:
        """Pass an event on."""
        self._emit(event)

    def on_wake(self) -> None:
        """Look for work."""
        self.taker.wake()

    def on_drain(self) -> None:
        """Drain."""
        self._executor.drain()

    def on_cancel(self, job_id: UUID) -> None:
        """Interrupt a run whose job was cancelled."""
        for run in list(self.runner.runs.values()):
            if run.job.id == job_id:
                self.runner.interrupt(run, Interruption.CANCEL)

    def on_lost(self, lock_ids: list[UUID]) -> None:
        """Interrupt runs that have lost their jobs."""
        for lock_id in lock_ids:
            run = self.runner.runs.get(lock_id)
            if run is not None and not (run.context is not None and run.context.is_finished):
                self.runner.interrupt(run, Interruption.LOST)

    def on_trust(self, *, trusted: bool) -> None:
        """Stop and interrupt while the lease can't be trusted; go on when it can be again."""
        if trusted:
            self.taker.wake()
        else:
            self._emit(events.TrustEnded(len(self.runner.runs)))
            self.runner.interrupt_all(Interruption.GIVE_BACK)

    def on_ended(self) -> None:
        """This incarnation is over."""
        self._ended.set()


async def _run(service: Callable[[], Awaitable[None]]) -> None:
    await service()


def _only(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """What went wrong, without the wrapping of task groups, where it is one thing."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


async def _first(*waits: Awaitable[Any]) -> None:
    """Wait for the first of several."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


async def _wait(event: asyncio.Event, seconds: float | None) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)


def _describe(other: Other) -> str:
    return f"executor {other.id} (process {other.pid} on {other.host}, last heartbeat {other.silent:.1f} s ago)"

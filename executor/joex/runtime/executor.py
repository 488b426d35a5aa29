"""An executor: registers (see `newcomer`), serves as one registration after the other (see `registration`), leaves.

::

    STARTING --> WAITING (its app-id is in use, or retired) --> RUNNING --> DRAINING --> LEFT
                                                    |   ^
                                                    |   | a new registration
                                                    +---+ the lease has ended
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from joex.app import App
from joex.config import Settings
from joex.core import events
from joex.core.events import Emit
from joex.core.job import RunningJob
from joex.errors import DatabaseUnavailable, JoexError, SchemaError
from joex.runtime import bulk
from joex.runtime.clock import clock
from joex.runtime.maintenance import register_periodic_tasks
from joex.runtime.newcomer import Newcomer
from joex.runtime.processes import Processes, StartOfServer, check_processes
from joex.runtime.registration import Registration, Resources
from joex.runtime.waits import unless
from joex.store.connector import Logins
from joex.store.database import POLL_EVERY, borrowed, close_pool, connect, create_pool, is_pooled, must_take_writes
from joex.store.errors import translate
from joex.store.migrate import check_schema
from joex.store.runs import size_limits
from joex.store.task_connections import MOST_FOR_TASKS, TaskConnections
from joex.trouble import Trouble

if TYPE_CHECKING:
    import asyncpg

    from joex.runtime.watchdog import Watchdog

T = TypeVar("T")
_REFUSED_FOR = 60.0
"""Seconds of refused logins after which an executor drains: only its next start may find another password."""
_TRY_LOGIN_EVERY = 5.0


class Executor:
    """Runs the jobs of some queues with the tasks of an app.

    Args:
        app: the tasks.
        settings: see `joex.config.Settings`.
        url: the database, which has this version's schema.
        emit: receives events, on the executor's loop.
        watchdog: ends this process if its interpreter is stuck; None: no watchdog.
        process_server: the command of a server of processes (`joex.cli.process_server`) that loads the same app; None:
            no task may need a process.

    Raises:
        ConfigError: a task needs a process, and there can be none.
    """

    def __init__(
        self,
        app: App,
        settings: Settings,
        url: str,
        *,
        emit: Emit = lambda _event: None,
        watchdog: Watchdog | None = None,
        process_server: Sequence[str] | None = None,
    ) -> None:
        self.app = app
        self.settings = settings
        self.app_id = settings.effective_app_id
        self.phase = "starting"
        self.id: int | None = None
        self._url = url
        self._emit = emit
        self._watchdog = watchdog
        needs_processes = check_processes(app, by_default=settings.processes, server=process_server)
        self._process_server = StartOfServer.by(process_server) if needs_processes and process_server else None
        self._asked_to_drain = asyncio.Event()
        self._asked_to_stop = asyncio.Event()
        self._registration: Registration | None = None
        self._logins = Logins()

    @property
    def ready(self) -> bool:
        """Whether it is registered, trusts its lease, and takes jobs."""
        is_serving = self.phase == "running" and self._logins.refused is None
        return is_serving and self._registration is not None and self._registration.keeper.is_trusted

    @property
    def described(self) -> str:
        """Its phase, and what keeps it from taking jobs, or from taking them at once, if the phase does not say."""
        if self._logins.refused is not None:
            return f"{self.phase}; the database refuses its login"
        holders = [] if self._registration is None else self._registration.taker.holders
        # (Every caller may read this: it names no queue and no role.)
        named = ("a prepared transaction" if one is None else f"session {one}" for one in holders)
        held = (f"{one} holds the lock of a queue, each take from which is a second late" for one in named)
        return "; ".join([self.phase, *held])

    @property
    def alive(self) -> bool:
        """Whether its loop and its lease's thread work. An unreachable database is no reason to restart it."""
        return self._registration is None or self._registration.keeper.is_alive

    def running(self) -> list[RunningJob]:
        """The jobs in the slots."""
        held = [] if self._registration is None else list(self._registration.runner.runs.values())
        return [
            RunningJob(
                r.job.id, r.job.task, r.job.group, r.job.queue, r.job.attempt + 1, r.job.subject, r.seconds or 0.0
            )
            for r in held
        ]

    def wake(self) -> None:
        """Look for work now."""
        if self._registration is not None:
            self._registration.taker.wake()

    def drain(self) -> None:
        """Take no more jobs, finish the running ones, and exit."""
        if not self._asked_to_drain.is_set():
            self._asked_to_drain.set()
            self.phase = "draining" if self.phase == "running" else self.phase
            self._emit(events.Draining(len(self.running())))

    def stop(self) -> None:
        """Exit at once: interrupt the runs, and give their jobs back (they wait again, and these runs do not count)."""
        self.drain()
        self._asked_to_stop.set()

    async def run(self, services: Sequence[Callable[[], Awaitable[None]]] = ()) -> None:
        """Run until it has drained. ``services`` run beside it all the time (the HTTP interface).

        Raises:
            SchemaError, DatabaseUnavailable: at the start, before the executor takes jobs. SchemaError also when it has
                lost its lease, and a migration has made the schema too new for it.
            ConfigError: at the start, or when it has drained because the database refused its logins for a minute.
        """
        polls = self.settings.poll_interval is not None
        pool = await create_pool(
            self._url,
            most=4,
            pooled=polls,
            name=f"joex {self.app_id}",
            for_services=True,
            logins=self._logins,
        )
        # Tasks have their own connections, so that their long transactions never keep the services waiting.
        most = min(self.settings.pool_size, MOST_FOR_TASKS)
        task_pool = await create_pool(
            self._url, most=most, pooled=polls, name=f"joex tasks {self.app_id}", for_tasks=True
        )
        task_connections = TaskConnections(task_pool, self.settings.pool_size)
        bulk_pool = await create_pool(
            self._url, most=2 * bulk.CONNECTIONS, pooled=polls, name=f"joex bulk {self.app_id}"
        )
        processes = self._open_processes()
        try:
            prepared = self._start(pool, bulk_pool, task_connections, processes)
            resources = await unless(self._asked_to_drain, prepared)
            if resources is None:
                return
            async with asyncio.TaskGroup() as group:
                beside = [group.create_task(_run(service)) for service in services]
                beside.append(group.create_task(task_connections.watch(pool, self._url)))
                beside.append(group.create_task(self._drain_when_refused()))
                await self._serve(resources)
                for task in beside:
                    task.cancel()
            if self._logins.refused is not None and self._logins.refused_for >= _REFUSED_FOR:
                raise translate(self._logins.refused)
        except BaseExceptionGroup as error:
            raise _only(error) from error
        finally:
            self.phase = "left"
            # (All at once: if the database is unreachable, each takes its whole time limit.)
            await asyncio.gather(*map(close_pool, (pool, task_pool, bulk_pool)))
            if processes is not None:
                await processes.close()

    def _open_processes(self) -> Processes | None:
        if self._process_server is None:
            return None
        settings = self.settings
        what_it_needs = {
            "url": self._url,
            "name": f"joex process {self.app_id}",
            "log_format": settings.log_format,
            "log_level": settings.log_level,
        }
        return Processes(
            self._process_server,
            what_it_needs,
            by_default=settings.processes,
        )

    async def _drain_when_refused(self) -> None:
        """Drain when the database has refused all logins for a while. Its sessions from before may be there still.

        The URL may have been read from a secret whose content has changed: whoever started this process can start it
        anew. Running jobs end first, because a session that is left may keep the lease, and store their ends.

        Its services may need no further session for hours, so this logs in by itself to learn that a refusal is over.
        """
        polls, name = self.settings.poll_interval is not None, f"joex {self.app_id}"
        while self._logins.refused_for < _REFUSED_FOR:
            await asyncio.sleep(_TRY_LOGIN_EVERY)
            if self._logins.refused is not None:
                with suppress(JoexError):
                    (await connect(self._url, pooled=polls, name=name, logins=self._logins)).terminate()
        self.drain()

    async def _start(
        self,
        pool: asyncpg.Pool[Any],
        bulk_pool: asyncpg.Pool[Any],
        task_connections: TaskConnections,
        processes: Processes | None,
    ) -> Resources:
        """Prepare; wait for `startup_wait` until the database has a schema, and takes writes.

        A schema of another version is not worth a wait: whoever started this executor should see why it does not start.
        """
        give_up = clock() + self.settings.startup_wait.total_seconds()
        trouble = Trouble("start", self._emit)
        while True:
            try:
                resources = await self._prepare(pool, bulk_pool, task_connections, processes)
            except (DatabaseUnavailable, SchemaError) as error:
                is_final = isinstance(error, SchemaError) and error.reason != "SchemaMissing"
                if is_final or clock() >= give_up:
                    raise
                await asyncio.sleep(min(trouble.failed(error), max(give_up - clock(), 0.0)))
            else:
                trouble.over()
                return resources

    async def _prepare(
        self,
        pool: asyncpg.Pool[Any],
        bulk_pool: asyncpg.Pool[Any],
        task_connections: TaskConnections,
        processes: Processes | None,
    ) -> Resources:
        given = self.settings.poll_interval
        poll_interval = None if given is None else given.total_seconds()
        async with borrowed(pool) as connection:
            await check_schema(connection)
            await must_take_writes(connection)
            if await is_pooled(connection):
                poll_interval = poll_interval or POLL_EVERY
            limits = await size_limits(connection)
            for refused in await register_periodic_tasks(connection, self.app, self.settings):
                self._emit(events.PeriodicNotRegistered(refused))
        return Resources(
            app=self.app,
            settings=self.settings,
            url=self._url,
            emit=self._emit,
            watchdog=self._watchdog,
            pool=pool,
            bulk_args=bulk.Bulk(bulk_pool),
            bulk_ends=bulk.Bulk(bulk_pool),
            task_connections=task_connections,
            limits=limits,
            poll_interval=poll_interval,
            processes=processes,
            asked_to_drain=self._asked_to_drain,
            asked_to_stop=self._asked_to_stop,
            drain=self.drain,
        )

    async def _serve(self, resources: Resources) -> None:
        """Serve as one registration after the other, until it has drained."""
        newcomer = Newcomer(
            self.app,
            self.settings,
            resources.pool,
            locks=resources.poll_interval is None,
            asked_to_drain=self._asked_to_drain,
            emit=self._emit,
            on_wait=self._on_wait,
        )
        while True:
            registered = await newcomer.register()
            if registered is None:
                return
            self.id, since = registered
            self._registration = Registration(resources, self.id, since)
            self.phase = "draining" if self._asked_to_drain.is_set() else "running"
            if await self._registration.run():
                return
            self._emit(events.LeaseEnded(self.id))

    def _on_wait(self) -> None:
        self.phase = "waiting"


async def _run(service: Callable[[], Awaitable[None]]) -> None:
    await service()


def _only(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error without the groups around it, if it is a single one."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error

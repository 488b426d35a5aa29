"""The databases of the pools: one set of connections for each URL, however many pools use it.

In each database in use the operator submits the jobs of periodic tasks, because its pools may have no running executor.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext, suppress
from copy import copy
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from joex.core.lease import Mark, Observation
from joex.errors import ConfigError, DatabaseUnavailable, JoexError, SchemaError
from joex.notifications.listener import Floods, Listener
from joex.places import Places
from joex.store import executors, periodic, pools
from joex.store.database import borrowed, connect, create_pool
from joex.store.errors import NO_MESSAGE, translated
from joex.store.migrate import check_schema, migrate
from joex.store.name_lookups import OWNER
from joex.trouble import Trouble
from joex_operator.control.periodic_scheduler import SchedulerService
from joex_operator.control.trouble_lines import trouble_lines
from joex_operator.decide.plan import DatabaseProblem
from joex_operator.decide.run_times import RunTimes
from joex_operator.metrics import database_name

if TYPE_CHECKING:
    import asyncpg

    from joex.store.statement import Connection

_log = logging.getLogger("joex.operator")

_CONNECTIONS = 4
_LISTEN_AGAIN_IN = 1.0
_ASK_EVERY = 2.0
_CONNECT_WITHIN = 10.0
_TRY_AGAIN_IN = 1.0
_MIGRATE_WITHIN = 3600.0
"""Seconds for each statement of a migration, which may rewrite a table."""
_MIGRATION_TOLD_AFTER = 10.0
"""Seconds for which a reconcile waits for a migration. Then it goes on without the database, and says so."""
_USED_FOR = 30.0
"""Seconds: each statement has a limit of its own, but whoever owns a database may have many of them answer late."""
_KINDS = ("queue", "executor")
_TELL_EVERY = 0.1
_MOST_TOLD = 100
"""Notifications that are told one by one, so many seconds apart."""
_RESCUES = 100
"""The rounds of a rescue, each of up to 200 executors. The next one does the rest, or finds another one, for ever."""

OnNotification = Callable[[str, str], None]
"""Called with the content of a notification: ``queue`` and its name, or ``executor`` and its app-id;
``all`` and no name when notifications may have been missed."""
StartScheduler = Callable[["asyncpg.Pool[Any]", str], SchedulerService]
"""Called with a pool of connections to a database, and the database's name."""


class _Migrating(JoexError):
    """The database can't be used before its migration has ended."""


class Database:
    """One database: its connections, its notifications, and the scheduler of its periodic tasks.

    Args:
        url: of the database.
        on_notification: called with each notification.
        migrate: bring the database to this version's schema before its first use.
        start_scheduler: starts the scheduler of the database's periodic tasks.
    """

    def __init__(
        self, url: str, on_notification: OnNotification, *, migrate: bool, start_scheduler: StartScheduler
    ) -> None:
        self.name = database_name(url)
        self.url = url
        self.owner = OWNER.get()
        """Whose look-ups of names are those of this database: a namespace that has a pool of it."""
        self._places: Places[str] = Places(_CONNECTIONS)  # by the namespaces that have pools of it
        self._on_notification = on_notification
        self._migrate = migrate
        self._start_scheduler = start_scheduler
        self._run_times = RunTimes()
        self._measured_until: datetime | None = None
        self._measuring = asyncio.Lock()
        self._pool: asyncpg.Pool[Any] | None = None
        self._scheduler: SchedulerService | None = None
        self.is_prepared = False
        """Whether it has accepted the login, and has the schema."""
        self._is_closed = False
        self._outage: JoexError | None = None
        self._try_again_at = 0.0
        self._observed = Observation(_ASK_EVERY)
        self._rescued_by: list[Mark] = []
        self._preparing = asyncio.Lock()
        self._preparation: asyncio.Task[None] | None = None
        self._is_migrating = False
        self._floods = Floods()
        self._heard: dict[str, None] = {}
        self._tell_at = 0.0
        self._trouble = Trouble("listener", trouble_lines(f"listening for work in {self.name}"))
        self._listening = asyncio.create_task(self._listen())

    async def close(self) -> None:
        """Close all connections, also if the caller is cancelled meanwhile: nobody else closes this database."""
        self._is_closed = True
        ending = [self._listening]
        self._listening.cancel()
        if self._preparation is not None:
            ending.append(self._preparation)
            self._preparation.cancel()
        if self._scheduler is not None:
            ending.append(self._scheduler.stop())
        if self._pool is not None:
            self._pool.terminate()
        await asyncio.wait(ending)  # unlike to await them, this passes on a cancellation of the caller

    @asynccontextmanager
    async def connection(self, *, within: float = _USED_FOR) -> AsyncIterator[Connection]:
        """A connection to the database, which has this version's schema, for so many seconds at most.

        The next free one is for the namespace that has fewest: a namespace with hundreds of pools holds up no other.

        Raises:
            JoexError: `database_problem` turns it into the reason and the message of a condition.
        """
        self._fail_fast()
        before, is_lent, limit = self._outage, False, asyncio.timeout(within)
        try:
            connections = await self._prepared(before)
            async with self._places.one_of(OWNER.get()), borrowed(connections) as connection, limit:
                self._fail_with_others(before)
                is_lent = True
                yield connection
            self._outage = None
        except JoexError as error:
            if limit.expired():  # each statement has a shorter limit of its own: the database has answered
                self._outage = None
                raise JoexError(f"not done within {within:g} s: the database answers slowly") from error
            if isinstance(error, SchemaError):
                self.is_prepared = False  # the database was dropped and created again
            if isinstance(error, DatabaseUnavailable) or not is_lent:
                self._outage, self._try_again_at = error, asyncio.get_running_loop().time() + _TRY_AGAIN_IN
            else:
                self._outage = None  # the database has answered: the error concerns this caller alone
            raise

    async def rescue(self, connection: Connection) -> None:
        """End all dead executors of the database, and put their jobs back.

        A rescue looks at each executor. So the many pools of a database share it: it is done once for each observation
        by which it tells dead executors from live ones, or each time while there is none.
        """
        marks = self._observed.marks
        if marks and marks == self._rescued_by:
            return
        self._rescued_by = marks
        for _ in range(_RESCUES):
            if not await executors.rescue(connection, marks):
                return

    async def run_times(self, connection: Connection) -> RunTimes:
        """How long runs take, for pools with a target, with the latest runs."""
        async with self._measuring:  # else pools that ask at the same time would add the same runs
            for one in await pools.latest_runs(connection, self._measured_until):
                self._run_times.add(one.task, one.group, one.runs, one.seconds)
                self._measured_until = max(one.last_at, self._measured_until or one.last_at)
        return self._run_times

    def periodic_changed(self) -> None:
        """Make the scheduler compute again what is due: periodic tasks have changed, or may have."""
        if self._scheduler is not None:
            self._scheduler.wake()

    def _fail_fast(self) -> None:
        """Let one caller at a time try a database that can't be used: the others would only run into their timeouts.

        Where it lacks the schema, or refuses the operator, each of a thousand pools would connect to learn that.
        """
        now = asyncio.get_running_loop().time()
        if self._outage is not None:
            if now < self._try_again_at:
                raise copy(self._outage) from self._outage
            self._try_again_at = now + _CONNECT_WITHIN

    def _fail_with_others(self, before: JoexError | None) -> None:
        """Fail a caller that waited for a connection while another one found the database unusable."""
        if self._outage is not None and self._outage is not before:
            raise copy(self._outage) from self._outage

    @asynccontextmanager
    async def stats_connection(self) -> AsyncIterator[Connection]:
        """A separate connection with a long timeout, for slow statements."""
        connection = await connect(self.url, name="joex operator stats", within=60.0)
        try:
            yield connection
        finally:
            connection.terminate()

    async def _prepared(self, before: JoexError | None) -> asyncpg.Pool[Any]:
        async with self._preparing:
            self._fail_with_others(before)
            if self._pool is None:
                self._pool = await create_pool(self.url, most=_CONNECTIONS, name="joex operator", for_services=True)
            if not self.is_prepared:
                if self._preparation is None:
                    self._preparation = asyncio.create_task(self._prepare())
                preparation = self._preparation
                while not preparation.done():
                    # (A migration goes on when the caller is cancelled.)
                    await asyncio.wait([preparation], timeout=_MIGRATION_TOLD_AFTER)
                    if self._is_migrating:
                        raise _Migrating("the operator migrates its schema: this may take a while")
                self._preparation = None
                if not preparation.cancelled():
                    preparation.result()
                    self.is_prepared = True
            if self._is_closed:  # `close` was called while this one connected
                self._pool.terminate()
                raise DatabaseUnavailable("no pool uses this database any more")
            if self._scheduler is None:
                self._scheduler = self._start_scheduler(self._pool, self.name)
            return self._pool

    async def _prepare(self) -> None:
        with translated(), suppress(SchemaError) if self._migrate else nullcontext():
            async with asyncio.timeout(_USED_FOR):
                connection = await connect(self.url, name="joex operator", within=_USED_FOR)
                try:
                    await check_schema(connection)
                finally:
                    connection.terminate()
        if not self._migrate:
            return
        connection = await connect(self.url, name="joex operator", within=_MIGRATE_WITHIN)
        self._is_migrating = True
        try:
            applied = await migrate(connection, tell=_log.warning)
        finally:
            self._is_migrating = False
            connection.terminate()
        for name in applied:
            _log.info("applied the migration %s", name)
        if applied:
            self._try_again_at = 0.0
            self._on_notification("all", "")

    async def _listen(self) -> None:
        """Listen for notifications and observe the executors' heartbeats, until cancelled.

        A transaction pooler passes no notifications on: behind one, and during a flood, the operator polls. It observes
        heartbeats anyway.
        """
        while True:
            migrates_first = self._migrate and not self.is_prepared
            again_in = _LISTEN_AGAIN_IN
            try:
                await self._listen_once()
            except Exception as error:  # noqa: BLE001 - by a server that speaks no PostgreSQL, asyncpg raises any
                if not (migrates_first and isinstance(error, SchemaError)):
                    again_in = self._trouble.failed(error)
            await asyncio.sleep(again_in)

    async def _listen_once(self) -> None:
        connection = await connect(self.url, name="joex operator listen", within=_CONNECT_WITHIN)
        try:
            listener = Listener(connection, asyncio.Event(), self._floods)
            await listener.start()
            if not listener.is_deaf:
                await listener.listen(pools.CHANNEL, self._on_pool_message)
                await listener.listen(periodic.CHANNEL, lambda _: self.periodic_changed())
            is_news = not listener.is_pooled  # (also while it is deaf: notifications may have been missed before)
            while not listener.is_lost:
                sent = time.monotonic()  # this statement also notices a broken connection
                beat = await listener.ask(executors.observe(connection))
                self._observed.answered(sent, time.monotonic(), beat)
                self._trouble.over()
                if is_news:  # (not before: without the schema there are no notifications, and this is tried for ever)
                    is_news = False
                    self._on_notification("all", "")
                    self.periodic_changed()
                with suppress(DatabaseUnavailable):  # the session has ended: connect again, without a warning
                    await listener.woken(asyncio.get_running_loop().time() + _ASK_EVERY)
        finally:
            self._observed.break_off()
            connection.terminate()

    def _on_pool_message(self, payload: str) -> None:
        """Tell of a notification: the first at once, others together.

        Whoever may connect can send any number, and the operator may have thousands of pools to look at for each.
        """
        if not self._heard:
            loop = asyncio.get_running_loop()
            loop.call_at(max(self._tell_at, loop.time()), self._tell)
        if len(self._heard) <= _MOST_TOLD:
            self._heard[payload] = None

    def _tell(self) -> None:
        self._tell_at = asyncio.get_running_loop().time() + _TELL_EVERY
        heard, self._heard = self._heard, {}
        if len(heard) > _MOST_TOLD:
            self._on_notification("all", "")
            return
        for payload in heard:
            told: list[tuple[str, str]] = []
            with suppress(*NO_MESSAGE):
                message = json.loads(payload)
                told = [(kind, name) for kind in _KINDS if isinstance(name := message.get(kind), str)]
            for kind, name in told:
                self._on_notification(kind, name)


class Databases:
    """The databases in use, by their URL.

    Args:
        on_notification: called with each notification, the URL first.
        migrate, start_scheduler: as for `Database`.
    """

    def __init__(
        self, on_notification: Callable[[str, str, str], None], *, migrate: bool, start_scheduler: StartScheduler
    ) -> None:
        self._on_notification = on_notification
        self._migrate = migrate
        self._start_scheduler = start_scheduler
        self._open: dict[str, Database] = {}

    def get(self, url: str) -> Database:
        """The database with this URL."""
        if url not in self._open:
            self._open[url] = Database(
                url,
                partial(self._on_notification, url),
                migrate=self._migrate,
                start_scheduler=self._start_scheduler,
            )
        return self._open[url]

    def opened(self) -> dict[str, Database]:
        """All databases in use, by their URL."""
        return dict(self._open)

    async def close_others(self, urls: set[str]) -> None:
        """Close all databases but these."""
        for url in [url for url in self._open if url not in urls]:
            if (unused := self._open.pop(url, None)) is not None:  # another call may be closing it
                await unused.close()

    async def close(self) -> None:
        """Close all databases."""
        await self.close_others(set())


def database_problem(error: Exception) -> DatabaseProblem:
    """Why a database can't be used, from the error that it raised."""
    message = " ".join(str(error).split())
    if isinstance(error, SchemaError):
        return DatabaseProblem(error.reason, message)
    if isinstance(error, _Migrating):
        return DatabaseProblem("Migrating", message)
    if isinstance(error, ConfigError):
        return DatabaseProblem("ConnectionRefused", message)
    if isinstance(error, DatabaseUnavailable):
        return DatabaseProblem("Unreachable", message)
    return DatabaseProblem("Failed", message)

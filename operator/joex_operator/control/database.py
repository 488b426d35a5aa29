"""The databases of the pools: one set of connections for each URL, however many pools use it.

In each the jobs of periodic tasks are made, for as long as it is in use: its pools may have no executor to do so.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from joex.core.lease import Mark, Observation
from joex.errors import ConfigError, DatabaseUnavailable, JoexError, SchemaError
from joex.notifications.listener import Listener
from joex.store import periodic, pools, stats
from joex.store.database import borrowed, connect, create_pool
from joex.store.errors import NO_MESSAGE
from joex.store.horizon import horizon
from joex.store.migrate import check_schema, migrate
from joex.store.stats import QueueStats, Shares
from joex_operator.control.periodic_scheduler import SchedulerService
from joex_operator.decide.plan import DatabaseProblem
from joex_operator.metrics import database_name

if TYPE_CHECKING:
    import asyncpg

    from joex.store.statement import Connection

_log = logging.getLogger("joex.operator")

_CONNECTIONS = 4
_LISTEN_AGAIN_IN = 1.0
_ASK_EVERY = 2.0
_LINK_WITHIN = 10.0
_TRY_AGAIN_IN = 1.0

OnNotification = Callable[[str, str], None]
"""Called with what was heard: ``queue`` and its name, ``executor`` and its app-id; or ``all`` and no name, when
something may have been missed."""
StartScheduler = Callable[["asyncpg.Pool[Any]", str], SchedulerService]
"""Called with connections to a database, and its name."""


class Database:
    """One database: connections to it, and what it says unasked.

    Args:
        url: where it is.
        heard: told of notifications.
        migrate: bring it to this version's schema before it is used for the first time.
        repeat: begins to make the jobs of its periodic tasks.
    """

    def __init__(self, url: str, heard: OnNotification, *, migrate: bool, repeat: StartScheduler) -> None:
        self.name = database_name(url)
        self._url = url
        self._heard = heard
        self._migrate = migrate
        self._repeat = repeat
        self._pool: asyncpg.Pool[Any] | None = None
        self._scheduler: SchedulerService | None = None
        self._is_prepared = False
        self._is_closed = False
        self._silence: DatabaseUnavailable | None = None
        self._try_again_at = 0.0
        self._observed = Observation(_ASK_EVERY)
        self._preparing = asyncio.Lock()
        self._listening = asyncio.create_task(self._listen())

    async def close(self) -> None:
        """Close all connections."""
        self._is_closed = True
        self._listening.cancel()
        with suppress(asyncio.CancelledError):
            await self._listening
        if self._scheduler is not None:
            await self._scheduler.close()
        if self._pool is not None:
            self._pool.terminate()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """A connection, for what `joex.store.pools` has. The database has this version's schema then.

        Raises:
            JoexError: `database_problem` says what it means.
        """
        self._fail_fast()
        before = self._silence
        try:
            async with borrowed(await self._prepared(before)) as connection:
                self._fail_with_others(before)
                yield connection
            self._silence = None
        except SchemaError:
            self._is_prepared = False  # the database was made anew
            raise
        except DatabaseUnavailable as error:
            self._silence, self._try_again_at = error, asyncio.get_running_loop().time() + _TRY_AGAIN_IN
            raise

    @property
    def observed(self) -> list[Mark]:
        """By what executors are judged that are silent."""
        return self._observed.marks

    def periodic_changed(self) -> None:
        """Periodic tasks have changed, or may have: what is due is worked out anew."""
        if self._scheduler is not None:
            self._scheduler.wake()

    def _fail_fast(self) -> None:
        """While the database is away, one of many tries to reach it: others would only wait for their time limits."""
        now = asyncio.get_running_loop().time()
        if self._silence is not None:
            if now < self._try_again_at:
                raise DatabaseUnavailable(str(self._silence)) from self._silence
            self._try_again_at = now + _LINK_WITHIN

    def _fail_with_others(self, before: DatabaseUnavailable | None) -> None:
        """Who waited for a connection while the database was found to be away need not find it out once more."""
        if self._silence is not None and self._silence is not before:
            raise DatabaseUnavailable(str(self._silence)) from self._silence

    async def queue_stats(self) -> list[QueueStats]:
        """The numbers of all queues. With very many jobs this takes its time."""
        async with self._patiently() as connection:
            return await stats.queue_stats(connection)

    async def queue_shares(self) -> list[Shares]:
        """How the slots of all queues are shared. With very many groups this takes its time."""
        async with self._patiently() as connection:
            return await stats.queue_shares(connection)

    @asynccontextmanager
    async def _patiently(self) -> AsyncIterator[Connection]:
        """A connection of its own, for a statement that takes its time."""
        connection = await connect(self._url, name="joex operator stats", within=60.0)
        try:
            yield connection
        finally:
            connection.terminate()

    async def _prepared(self, before: DatabaseUnavailable | None) -> asyncpg.Pool[Any]:
        async with self._preparing:
            self._fail_with_others(before)
            if self._pool is None:
                self._pool = await create_pool(self._url, most=_CONNECTIONS, name="joex operator", for_services=True)
            if not self._is_prepared:
                await self._prepare()
                self._is_prepared = True
            if self._is_closed:  # meanwhile
                self._pool.terminate()
                raise DatabaseUnavailable("the database is not used any more")
            if self._scheduler is None:
                self._scheduler = self._repeat(self._pool, self.name)
            return self._pool

    async def _prepare(self) -> None:
        connection = await connect(self._url, name="joex operator")
        try:
            if not self._migrate:
                await check_schema(connection)
                return
            for name in await migrate(connection, tell=_log.warning):
                _log.info("applied the migration %s", name)
        finally:
            connection.terminate()

    async def _listen(self) -> None:
        """Hear notifications, for as long as this alive, and observe executors.

        Behind a transaction pooler nothing is heard, only polled; executors are observed there, too.
        """
        told = ""
        while True:
            migrates_first = self._migrate and not self._is_prepared
            try:
                await self._listen_once()
            except (JoexError, OSError) as error:
                if str(error) != told and not (migrates_first and isinstance(error, SchemaError)):
                    told = str(error)
                    _log.warning("listening for work: %s", told)
            await asyncio.sleep(_LISTEN_AGAIN_IN)

    async def _listen_once(self) -> None:
        connection = await connect(self._url, name="joex operator listen", within=_LINK_WITHIN)
        try:
            listener = Listener(connection, asyncio.Event())
            await listener.start()
            if not listener.is_pooled:
                await listener.listen(pools.CHANNEL, self._hear)
                await listener.listen(periodic.CHANNEL, self._hear_periodic)
                self._heard("all", "")
                self.periodic_changed()
            while not listener.is_lost:
                sent = time.monotonic()  # a link that has gone silent is noticed so
                mark = await horizon(connection)
                self._observed.answered(sent, time.monotonic(), mark)
                with suppress(DatabaseUnavailable):  # a session that has ended without an error is no trouble yet
                    await listener.woken(asyncio.get_running_loop().time() + _ASK_EVERY)
        finally:
            self._observed.break_off()
            connection.terminate()

    def _hear(self, payload: str) -> None:
        try:
            message = [(kind, name) for kind, name in json.loads(payload).items() if isinstance(name, str)]
        except NO_MESSAGE:
            return
        for kind, name in message:
            self._heard(kind, name)

    def _hear_periodic(self, _payload: str) -> None:
        self.periodic_changed()


class Databases:
    """The databases in use, by their URL.

    Args:
        heard: told of notifications, with the URL before the rest.
        migrate, repeat: as for `Database`.
    """

    def __init__(self, heard: Callable[[str, str, str], None], *, migrate: bool, repeat: StartScheduler) -> None:
        self._heard = heard
        self._migrate = migrate
        self._repeat = repeat
        self._open: dict[str, Database] = {}

    def get(self, url: str) -> Database:
        """The database with this URL."""
        if url not in self._open:
            self._open[url] = Database(
                url, lambda kind, name: self._heard(url, kind, name), migrate=self._migrate, repeat=self._repeat
            )
        return self._open[url]

    def opened(self) -> dict[str, Database]:
        """Those in use."""
        return dict(self._open)

    async def keep(self, urls: set[str]) -> None:
        """Close all databases but these."""
        for url in [url for url in self._open if url not in urls]:
            if (unused := self._open.pop(url, None)) is not None:  # somebody else may be closing it
                await unused.close()

    async def close(self) -> None:
        """Close all."""
        await self.keep(set())


def database_problem(error: Exception) -> DatabaseProblem:
    """Why a database is silent, from what its use has raised."""
    message = " ".join(str(error).split())
    if isinstance(error, SchemaError):
        return DatabaseProblem("SchemaMissing", message)
    if isinstance(error, ConfigError):
        return DatabaseProblem("ConnectionRefused", message)
    if isinstance(error, DatabaseUnavailable):
        return DatabaseProblem("Unreachable", message)
    return DatabaseProblem("Failed", message)

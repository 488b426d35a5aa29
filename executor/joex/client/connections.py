"""The connections of a client, and its waits for notifications."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any

from joex.client.patience import PatientConnections
from joex.errors import ConfigError
from joex.notifications.accept_waiters import AcceptWaiters
from joex.notifications.watcher import Watcher
from joex.store.connection import BREAKS
from joex.store.connection_cache import ConnectionCache
from joex.store.database import borrowed, close_pool, create_pool, reset
from joex.store.drivers import AnyConnection, adapted
from joex.store.statement import Connection

if TYPE_CHECKING:
    import asyncpg
    from asyncpg.pool import PoolConnectionProxy


class Connections(PatientConnections):
    """The connections to one database: a pool of the client, opened at first use, or a pool of the caller.

    Args:
        database: a PostgreSQL URL, or the caller's asyncpg pool, which stays open.
        within: seconds that a statement may take on the client's own connections; None: no limit.
        patience: seconds for which calls wait for a database that is away.

    Attributes:
        accept_waiters: the workers that wait for work.
        most: how many connections a pool of the client has.
        url: of the database; None: the pool is the caller's.
    """

    most: int = 10

    def __init__(self, database: str | asyncpg.Pool[Any], within: float | None, patience: float) -> None:
        super().__init__(patience)
        self.url: str | None = database if isinstance(database, str) else None
        self._within = within
        self._pool: asyncpg.Pool[Any] | None = None if isinstance(database, str) else database
        self._cache: ConnectionCache | None = None
        self._home: tuple[int, asyncio.AbstractEventLoop] | None = None
        self._watcher = Watcher(self._borrow)
        self.accept_waiters: AcceptWaiters = AcceptWaiters(self._borrow)

    @property
    def watcher(self) -> Watcher:
        """Waits for changes of jobs, and for events. Raises as `open`."""
        self._stay_at_home()
        return self._watcher

    async def open(self) -> asyncpg.Pool[Any]:
        """The pool, opened at first use.

        Raises:
            ConfigError: another process or event loop has used it, whose connections this one must leave alone.
        """
        self._home = self._home or _here()
        self._stay_at_home()
        if self._pool is None:
            if self.url is None:
                raise RuntimeError("this client is closed")
            self._pool = await create_pool(self.url, most=self.most, name="joex client", within=self._within)
        return self._pool

    async def close(self) -> None:
        """End all waits, and close the pool if the client opened it. Raises as `open`."""
        self._stay_at_home()
        self._closed += 1
        await self._watcher.close()
        await self.accept_waiters.close()
        self._home = None
        if self.url is not None and self._pool is not None:
            pool, cache = self._pool, self._cache
            self._pool = self._cache = None
            if cache is not None:
                await cache.close()
            await close_pool(pool)

    async def cache(self) -> ConnectionCache:
        """The pool's connections, for statements that leave nothing in the session."""
        pool = await self.open()
        if self._cache is None:
            self._cache = ConnectionCache(pool, keeps=self.url is not None)
        return self._cache

    def using(
        self, given: AnyConnection | None = None, *, patiently: bool = True
    ) -> AbstractAsyncContextManager[Connection]:
        """As `PatientConnections`'s."""
        return _Using(self, given, waits=patiently and self.is_patient)

    async def borrow(self) -> tuple[ConnectionCache, PoolConnectionProxy[Any]]:
        """A connection of the pool, and the cache to give it back to."""
        cache = await self.cache()
        return cache, await cache.borrow()

    @asynccontextmanager
    async def acquire(self, given: Connection | None = None) -> AsyncIterator[Connection]:
        """The given connection, or one from the pool; the client's own pool resets it afterwards."""
        async with self.using(given) as used:
            try:
                yield used
            finally:
                if given is None and self.url is not None and not isinstance(sys.exception(), BREAKS):
                    await reset(used)

    def _stay_at_home(self) -> None:
        if self._home is not None and self._home != _here():
            raise ConfigError(
                "client: expected the process and the event loop that used it first: make a joex.Client for each of "
                "them, or use joex.sync.Client, which all threads and forked processes may share"
            )

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    async def _sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def _until(self, time: float) -> AbstractAsyncContextManager[Any]:
        return asyncio.timeout_at(time)

    def _is_closing(self) -> bool:
        return self._pool is not None and self._pool.is_closing()

    @asynccontextmanager
    async def _borrow(self) -> AsyncIterator[Connection]:
        async with borrowed(await self.open()) as connection:
            yield connection


def _here() -> tuple[int, asyncio.AbstractEventLoop]:
    return os.getpid(), asyncio.get_running_loop()


class _Using:
    """A connection for the time of a block (no generator, which is slower: this surrounds each submission)."""

    __slots__ = ("_cache", "_connections", "_given", "_used", "_waits")

    def __init__(self, connections: Connections, given: AnyConnection | None, *, waits: bool) -> None:
        self._connections = connections
        self._given = given
        self._waits = waits

    async def __aenter__(self) -> Connection:
        if self._given is not None:
            return await adapted(self._given)
        borrow = self._connections.borrow
        self._cache, self._used = await (self._connections.patiently(borrow) if self._waits else borrow())
        return self._used

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._given is None:
            await self._cache.give_back(self._used, may_keep=kind is None, error=error)

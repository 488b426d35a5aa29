"""The connections of a client, and its waits for notifications."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any

from joex.notifications.accept_waiters import AcceptWaiters
from joex.notifications.watcher import Watcher
from joex.store.connection import BREAKS
from joex.store.connection_cache import ConnectionCache
from joex.store.database import borrowed, close_pool, create_pool, reset
from joex.store.statement import Connection

if TYPE_CHECKING:
    import asyncpg


class Connections:
    """The connections to one database: a pool of the client, opened at first use, or a pool of the caller.

    Args:
        database: a PostgreSQL URL, or the caller's asyncpg pool, which stays open.
        within: seconds that a statement may take on the client's own connections; None: no limit.

    Attributes:
        watcher: waits for changes of jobs, and for events.
        accept_waiters: the workers that wait for work.
    """

    def __init__(self, database: str | asyncpg.Pool[Any], within: float | None) -> None:
        self._url = database if isinstance(database, str) else None
        self._within = within
        self._pool: asyncpg.Pool[Any] | None = None if isinstance(database, str) else database
        self._cache: ConnectionCache | None = None
        self.watcher = Watcher(self._borrow)
        self.accept_waiters = AcceptWaiters(self._borrow)

    async def open(self) -> asyncpg.Pool[Any]:
        """The pool, opened at first use."""
        if self._pool is None:
            if self._url is None:
                raise RuntimeError("this client is closed")
            self._pool = await create_pool(self._url, most=10, name="joex client", within=self._within, resets=False)
        return self._pool

    async def close(self) -> None:
        """End all waits, and close the pool if the client opened it."""
        await self.watcher.close()
        await self.accept_waiters.close()
        if self._url is not None and self._pool is not None:
            pool, cache = self._pool, self._cache
            self._pool = self._cache = None
            if cache is not None:
                await cache.close()
            await close_pool(pool)

    async def cache(self) -> ConnectionCache:
        """The pool's connections, for statements that leave nothing in the session."""
        pool = await self.open()
        if self._cache is None:
            self._cache = ConnectionCache(pool, keeps=self._url is not None)
        return self._cache

    def using(self, given: Connection | None = None) -> AbstractAsyncContextManager[Connection]:
        """The given connection, or one from the pool, which the pool does not reset afterwards."""
        return _Using(self, given)

    @asynccontextmanager
    async def acquire(self, given: Connection | None = None) -> AsyncIterator[Connection]:
        """The given connection, or one from the pool; the client's own pool resets it afterwards."""
        async with self.using(given) as used:
            try:
                yield used
            finally:
                if given is None and self._url is not None and not isinstance(sys.exception(), BREAKS):
                    await reset(used)

    @asynccontextmanager
    async def _borrow(self) -> AsyncIterator[Connection]:
        async with borrowed(await self.open()) as connection:
            yield connection


class _Using:
    """A connection for the time of a block (no generator, which is slower: this surrounds each submission)."""

    __slots__ = ("_cache", "_connections", "_given", "_used")

    def __init__(self, connections: Connections, given: Connection | None) -> None:
        self._connections = connections
        self._given = given

    async def __aenter__(self) -> Connection:
        if self._given is not None:
            return self._given
        self._cache = await self._connections.cache()
        self._used = await self._cache.borrow()
        return self._used

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._given is None:
            await self._cache.give_back(self._used, may_keep=kind is None, error=error)

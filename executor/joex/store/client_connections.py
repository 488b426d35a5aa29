"""The connections of a client: its own pool, made at first use, or a pool of the caller's."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any

from joex.store.connection import BREAKS
from joex.store.database import borrowed, close_pool, create_pool, reset
from joex.store.lender import Lender
from joex.store.statement import Connection

if TYPE_CHECKING:
    import asyncpg


class ClientConnections:
    """Lends connections of one database.

    Args:
        database: a PostgreSQL URL, or an asyncpg pool of the caller's, which stays open.
        within: seconds that a statement may take on the client's own connections; None: no limit.
    """

    def __init__(self, database: str | asyncpg.Pool[Any], within: float | None) -> None:
        self._url = database if isinstance(database, str) else None
        self._within = within
        self._pool: asyncpg.Pool[Any] | None = None if isinstance(database, str) else database
        self._lender: Lender | None = None

    async def open(self) -> asyncpg.Pool[Any]:
        """The pool, which is made where there is none yet."""
        if self._pool is None:
            if self._url is None:
                raise RuntimeError("this client is closed")
            self._pool = await create_pool(self._url, most=10, name="joex client", within=self._within, resets=False)
        return self._pool

    async def close(self) -> None:
        """Close the pool, if it is the client's own."""
        if self._url is not None and self._pool is not None:
            pool, lender = self._pool, self._lender
            self._pool = self._lender = None
            if lender is not None:
                await lender.close()
            await close_pool(pool)

    async def lender(self) -> Lender:
        """What lends the connections of the pool."""
        pool = await self.open()
        if self._lender is None:
            self._lender = Lender(pool, keeps=self._url is not None)
        return self._lender

    @asynccontextmanager
    async def borrow(self) -> AsyncIterator[Connection]:
        """A connection of the pool, for as long as it is wanted."""
        async with borrowed(await self.open()) as connection:
            yield connection

    def using(self, given: Connection | None) -> AbstractAsyncContextManager[Connection]:
        """The given connection, or one of the pool, which is not reset afterwards."""
        return _Using(self, given)

    @asynccontextmanager
    async def acquire(self, given: Connection | None) -> AsyncIterator[Connection]:
        """The given connection, or one of the pool, which is reset afterwards if the pool is the client's own."""
        async with self.using(given) as used:
            try:
                yield used
            finally:
                if given is None and self._url is not None and not isinstance(sys.exception(), BREAKS):
                    await reset(used)


class _Using:
    """A connection for the time of a block (no generator: this surrounds each submission)."""

    __slots__ = ("_connections", "_given", "_lender", "_lent")

    def __init__(self, connections: ClientConnections, given: Connection | None) -> None:
        self._connections = connections
        self._given = given

    async def __aenter__(self) -> Connection:
        if self._given is not None:
            return self._given
        self._lender = await self._connections.lender()
        self._lent = await self._lender.borrow()
        return self._lent

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._given is None:
            await self._lender.give_back(self._lent, may_keep=kind is None, error=error)

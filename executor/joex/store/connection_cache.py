"""A cache of one connection in front of a pool: cheaper than to acquire and release one each time."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import asyncpg

from joex.errors import JoexError
from joex.store.connection import BREAKS, drop
from joex.store.errors import translated
from joex.store.statement import Connection

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

_KEPT_FOR = 1.0


class ConnectionCache:
    """Connections of a pool, for statements that leave nothing in the session.

    With our own pool (``keeps``) it keeps one returned connection for the next caller: releasing it to
    the pool and acquiring it again costs as much as a short statement. After a second the connection goes to the pool,
    which limits its age; and at once when another caller waits for a connection.
    """

    def __init__(self, pool: asyncpg.Pool[Any], *, keeps: bool) -> None:
        self._pool = pool
        self._keeps = keeps
        self._kept: PoolConnectionProxy[Any] | None = None
        self._waiting = 0
        self._timer: asyncio.TimerHandle | None = None
        self._is_due = False
        self._giving_up: asyncio.Task[None] | None = None

    async def borrow(self) -> PoolConnectionProxy[Any]:
        """A connection; give it back. Errors as with `connect`."""
        kept, self._kept = self._kept, None
        if kept is not None:
            if _is_idle(kept):
                return kept
            await self._to_the_pool(kept)
        elif self._giving_up is not None and not self._giving_up.done():
            await asyncio.wait({self._giving_up})  # one is on its way to the pool: no need to open another
        self._waiting += 1
        try:
            with translated():
                return await self._pool.acquire()
        finally:
            self._waiting -= 1

    async def give_back(
        self, connection: PoolConnectionProxy[Any], *, may_keep: bool, error: BaseException | None = None
    ) -> None:
        """Give a connection back. ``may_keep``: its block ended without an error; else ``error``: with this one."""
        if isinstance(error, BREAKS):
            drop(connection)
            return
        is_wanted = self._keeps and self._kept is None and not (self._waiting or self._is_due)
        if may_keep and is_wanted and _is_idle(connection):
            self._kept = connection
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(_KEPT_FOR, self._second_is_over)
        else:
            self._is_due = False
            await self._to_the_pool(connection)

    async def close(self) -> None:
        """Stop keeping connections, before the pool closes."""
        self._keeps = False
        if self._timer is not None:
            self._timer.cancel()
        kept, self._kept = self._kept, None
        if kept is not None:
            await self._to_the_pool(kept)

    def _second_is_over(self) -> None:
        self._timer = None
        kept, self._kept = self._kept, None
        if kept is None:
            self._is_due = True
        else:
            self._giving_up = asyncio.get_running_loop().create_task(self._to_the_pool(kept))

    async def _to_the_pool(self, connection: PoolConnectionProxy[Any]) -> None:
        # The statements are done, even if the connection is lost before its return: the pool then drops it.
        with suppress(JoexError), translated():
            await self._pool.release(connection)


def _is_idle(connection: Connection) -> bool:
    """Whether it is there, and in no transaction."""
    try:
        return not (connection.is_closed() or connection.is_in_transaction())
    except asyncpg.InterfaceError:  # it is lost, and the pool has noticed
        return False

"""Connections to the database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import asyncpg

from joex.errors import DatabaseUnavailable, JoexError
from joex.store.errors import translated
from joex.store.statement import Connection

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

_PATIENCE = 10.0
"""Seconds to wait for a connection before the database counts as unreachable."""
_STATEMENT_WITHIN = 5.0
_KEPT_FOR = 1.0


async def connect(
    url: str, *, pooled: bool = False, name: str = "joex", within: float | None = None, **settings: str
) -> asyncpg.Connection[Any]:
    """A connection of one's own.

    Args:
        url: where to.
        pooled: there is a transaction pooler (such as PgBouncer) in between: prepare nothing on the connection.
        name: shown in pg_stat_activity.
        within: seconds that a statement may take; None: no limit.
        settings: parameters of the session, such as ``synchronous_commit="off"``.

    Raises:
        DatabaseUnavailable: it can't be reached now.
        ConfigError: the URL, the password or the database's name is wrong.
    """
    with translated():
        connection: asyncpg.Connection[Any] = await asyncpg.connect(
            url, **_options(name, settings, pooled=pooled), timeout=_PATIENCE, command_timeout=within
        )
    return connection


async def create_pool(
    url: str,
    *,
    most: int,
    pooled: bool = False,
    name: str = "joex",
    for_services: bool = False,
    resets: bool = True,
) -> asyncpg.Pool[Any]:
    """A pool of connections, none of which stays while it is idle. Errors as with `connect`.

    ``for_services``: for short statements of our own. They have a time limit, so that a link that has gone silent is
    noticed; and no reset.

    ``resets``: giving a connection back resets its session, which is one more question to the server each time.
    Statements of our own need none: they change nothing of the session that the next one could mind. (A transaction
    that was left open is rolled back in any case.)
    """
    with translated():
        pool: asyncpg.Pool[Any] = await asyncpg.create_pool(
            url,
            min_size=0,
            max_size=most,
            max_inactive_connection_lifetime=30.0,
            timeout=_PATIENCE,
            reset=None if resets and not for_services else _no_reset,
            command_timeout=_STATEMENT_WITHIN if for_services else None,
            **_options(name, {}, pooled=pooled),
        )
    return pool


@asynccontextmanager
async def borrowed(pool: asyncpg.Pool[Any]) -> AsyncIterator[Connection]:
    """A connection of a pool for the time of a block, with errors translated, those of getting and returning it too."""
    with translated():
        async with pool.acquire() as connection:
            try:
                yield connection
            except (TimeoutError, DatabaseUnavailable):
                with suppress(asyncpg.InterfaceError):  # it is gone already
                    connection.terminate()  # the link may be silent: nothing is to be waited for there
                raise


class Lender:
    """Lends the connections of a pool, for statements that leave nothing in the session.

    Of a pool that is ours alone (``keeps``) one connection that was given back is kept for whoever comes next: to give
    it to the pool and to get it there costs as much as a short statement. After a second it goes to the pool, which
    sees to its age; and at once where somebody waits for a connection.
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
        """A connection; it is to be given back. Errors as with `connect`."""
        kept, self._kept = self._kept, None
        if kept is not None:
            if _is_idle(kept):
                return kept
            await self._to_the_pool(kept)
        elif self._giving_up is not None and not self._giving_up.done():
            await asyncio.wait({self._giving_up})  # it is on its way: no need for one more
        self._waiting += 1
        try:
            with translated():
                return await self._pool.acquire()
        finally:
            self._waiting -= 1

    async def give_back(self, connection: PoolConnectionProxy[Any], *, may_keep: bool) -> None:
        """Give a connection back. ``may_keep``: no error came out of what was done with it."""
        is_wanted = self._keeps and self._kept is None and not (self._waiting or self._is_due)
        if may_keep and is_wanted and _is_idle(connection):
            self._kept = connection
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(_KEPT_FOR, self._second_is_over)
        else:
            self._is_due = False
            await self._to_the_pool(connection)

    async def close(self) -> None:
        """Keep none any more: the pool is to be closed."""
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
        # What was done is done, even where the connection is lost before it is given back: the pool then drops it.
        with suppress(JoexError), translated():
            await self._pool.release(connection)


def _is_idle(connection: Connection) -> bool:
    """Whether it is there, and in no transaction."""
    try:
        return not (connection.is_closed() or connection.is_in_transaction())
    except asyncpg.InterfaceError:  # it is lost, and the pool has noticed
        return False


async def reset(connection: Connection) -> None:
    """Reset the session of a connection, or end it where that can't be done: nobody else sees what was left there.

    What was done on it is done, so that a connection that is lost by now is no error.
    """
    is_reset = False
    try:
        with suppress(JoexError), translated():
            await connection.reset()
            is_reset = True
    finally:
        if not is_reset:
            with suppress(asyncpg.InterfaceError):  # it is gone already
                connection.terminate()


async def _no_reset(_connection: Connection) -> None:
    """Leave the session as it is."""


def _options(name: str, settings: dict[str, str], *, pooled: bool) -> dict[str, Any]:
    options: dict[str, Any] = {"server_settings": {"application_name": name, **settings}}
    if pooled:
        options["statement_cache_size"] = 0
    return options

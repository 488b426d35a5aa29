"""Connections to the database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import asyncpg

from joex.errors import DatabaseUnavailable, JoexError
from joex.store.errors import translated
from joex.store.statement import Connection

_PATIENCE = 10.0
"""Seconds to wait for a connection before the database counts as unreachable."""
_STATEMENT_WITHIN = 5.0


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

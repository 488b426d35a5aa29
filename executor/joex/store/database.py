"""The database: connections and pools of connections to it, and how to borrow, reset and close them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import asyncpg

from joex.errors import DatabaseUnavailable, JoexError
from joex.store.connection import BREAKS, Host, OwnConnection, TaskConnection, drop, is_worn
from joex.store.connector import Connector, Logins
from joex.store.errors import READ_ONLY, translated
from joex.store.statement import Connection

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

POLL_EVERY = 1.0
"""Seconds between two polls through a pooler, which passes no notifications."""

SERVICE_WITHIN = 5.0
"""Seconds that a statement of a service may take, so that a link that has gone silent is noticed."""

_CLOSE_WITHIN = 5.0


async def connect(
    url: str,
    *,
    pooled: bool = False,
    name: str = "joex",
    within: float | None = None,
    host: Host | None = None,
    connect_within: float | None = None,
    logins: Logins | None = None,
    **settings: str,
) -> OwnConnection:
    """Open a connection outside of any pool.

    Args:
        url: the database.
        pooled: assume that it leads through a pooler; otherwise find out.
        name: shown in pg_stat_activity.
        within: seconds that a statement may take; None: no limit.
        host: the only host to try (`OwnConnection.host`); None: the hosts of the URL.
        connect_within: seconds for the connection, for all hosts together; None: ten.
        logins: notes whether this one is accepted.
        settings: parameters of the session, such as ``synchronous_commit="off"``; not through a pooler.

    Raises:
        DatabaseUnavailable: the database can't be reached now.
        ConfigError: the URL, the password or the database's name is wrong.
    """
    with translated():
        connector = Connector(
            url, name, within, settings, pooled=pooled, host=host, connect_within=connect_within, logins=logins
        )
        return await connector()


async def create_pool(
    url: str,
    *,
    most: int,
    pooled: bool = False,
    name: str = "joex",
    within: float | None = None,
    for_services: bool = False,
    for_tasks: bool = False,
    logins: Logins | None = None,
) -> asyncpg.Pool[Any]:
    """A pool of connections, which closes idle ones. Errors as with `connect`, but when it makes a connection.

    ``for_services``: for our own short statements. They have a time limit, which finds a silent link.
    ``for_tasks``: for `TaskConnections`. The pool resets the session of each returned connection, which costs a round
    trip to the server. Our own statements need no reset: they leave nothing in the session that could disturb the next
    one. (The pool rolls back an open transaction in any case.)
    ``logins``: notes whether they are accepted.
    """
    with translated():
        pool: asyncpg.Pool[Any] = await asyncpg.create_pool(
            min_size=0,
            max_size=most,
            max_inactive_connection_lifetime=30.0,
            connect=Connector(
                url,
                name,
                SERVICE_WITHIN if for_services else within,
                {},
                pooled=pooled,
                direct=TaskConnection if for_tasks else OwnConnection,
                logins=logins,
            ),
            connection_class=OwnConnection,
            reset=None if for_tasks else _no_reset,
        )
    return pool


async def close_pool(pool: asyncpg.Pool[Any]) -> None:
    """Close a pool; ends connections that are still at work after five seconds, or silent."""
    with suppress(JoexError), translated():
        async with asyncio.timeout(_CLOSE_WITHIN):
            await pool.close()


async def answers(connection: Connection) -> None:
    """Return when the server has answered on this connection."""
    await connection.execute("SELECT")


async def is_pooled(connection: Connection) -> bool:
    """Whether a connection leads through a pooler, so that it has no session to keep, and no notification comes."""
    known = getattr(connection, "is_pooled", None)
    if known is None:  # a connection that Joex did not make
        with translated():
            found = await connection.execute(f"SELECT WHERE pg_backend_pid() = {connection.get_server_pid()}")
        known = found == "SELECT 0"
    return bool(known)


async def must_take_writes(connection: Connection) -> None:
    """Check that the session takes writes. A standby that is about to be promoted has the schema, too.

    Raises:
        DatabaseUnavailable: it does not.
    """
    with translated():
        is_read_only = await connection.fetchval("SELECT current_setting('transaction_read_only')::boolean")
    if is_read_only:
        raise DatabaseUnavailable(f"the database is not available: {READ_ONLY}")


@asynccontextmanager
async def lent(pool: asyncpg.Pool[Any]) -> AsyncIterator[PoolConnectionProxy[Any]]:
    """A connection of a pool for the time of a block; after it, awaits nothing from a link that may be silent.

    One of ours that is worn is closed, and does not go back to the pool.
    """
    async with pool.acquire() as connection:
        try:
            yield connection
        except BREAKS:
            drop(connection)
            raise
        finally:
            if is_worn(connection):
                drop(connection)


@asynccontextmanager
async def borrowed(pool: asyncpg.Pool[Any]) -> AsyncIterator[Connection]:
    """As `lent`, with errors translated, also those of acquire and release."""
    with translated():
        async with lent(pool) as connection:
            yield connection


async def reset(connection: Connection) -> None:
    """Reset the session of a connection, or end it if that fails or is not enough (`OwnConnection.is_worn`).

    So the next user finds nothing from the last one.

    The work on it is done, so a lost connection is no error here.
    """
    is_reset = False
    try:
        if not is_worn(connection):
            with suppress(JoexError), translated():
                await connection.reset()
                is_reset = True
    finally:
        if not is_reset:
            drop(connection)


async def _no_reset(_connection: Connection) -> None:
    """Leave the session as it is."""

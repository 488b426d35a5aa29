"""The database: connections and pools of connections to it.

A connection finds out by itself whether it goes through a pooler: a pooler, which has no session of the server for it
yet, makes up the process id that it names at the start.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import asyncpg

from joex.core.url import check_database_url, database_hosts, parameters
from joex.errors import ConfigError, JoexError
from joex.store.connection import (
    BREAKS,
    CONNECT_WITHIN,
    Host,
    OwnConnection,
    PooledConnection,
    TaskConnection,
    Towards,
    drop,
)
from joex.store.errors import reason, translated
from joex.store.statement import Connection

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

POLL_EVERY = 1.0
"""Seconds between two polls through a pooler, where no notifications come."""

SERVICE_WITHIN = 5.0
"""Seconds that a statement of a service may take, so that a link that has gone silent is noticed."""

_CLOSE_WITHIN = 5.0
_PORT = 5432
_WRONG_VALUE = (asyncpg.DataError, asyncpg.CantChangeRuntimeParamError)
"""A server's errors for a setting in the URL that has a wrong value, or that a session can't set."""

_latest: dict[tuple[Host | None, ...] | Host, Host | None] = {}
"""The one of several hosts, or of a host's addresses, that answered last: to try dead ones before it would take time.

One dict for the process, because a service with its own connections, such as the lease, makes a connector for each. The
keys are the names in URLs, because addresses keep changing.
"""


class _Connector:
    """Makes connections to one database, and remembers what it has found out about it."""

    def __init__(
        self,
        url: str,
        name: str,
        within: float | None,
        settings: dict[str, str],
        *,
        pooled: bool,
        direct: type[OwnConnection] = OwnConnection,
        host: Host | None = None,
    ) -> None:
        self._url = url
        self._name = name
        self._within = within
        self._settings = settings
        self._is_pooled = pooled
        self._direct = direct
        try:
            check_database_url(url)
            hosts = database_hosts(url)
        except ValueError as error:
            raise ConfigError(f"database URL: {error}") from None
        self._is_given = host is not None
        # None: the URL names its server elsewhere, or not at all, such as a Unix socket
        self._hosts = [host] if host else [Host(name, port) if name else None for name, port in hosts] or [None]

    async def __call__(self, *_: object, **__: object) -> OwnConnection:
        """A connection; the arguments, which a pool passes, repeat what is known here."""
        connection = await self._connected()
        try:
            if await connection.begin(self._settings):
                return connection
        except BaseException:
            connection.terminate()
            raise
        connection.terminate()
        self._is_pooled = True
        return await self._connected()

    async def _connected(self) -> OwnConnection:
        until = asyncio.get_running_loop().time() + CONNECT_WITHIN
        try:
            return await _first(tuple(self._hosts), self._hosts, self._connected_to, until)
        except _NoneAnswers as none:
            told = "; ".join(f"{self._place(host)}: {reason(error)}" for host, error in none.failures)
            # (Callers distinguish a time-out from a failure.)
            kind = TimeoutError if isinstance(none.latest, TimeoutError) else ConnectionError
            raise kind(told) from none.latest

    def _place(self, host: Host | None) -> str:
        """A server in a message: its host and port, or its socket."""
        given = parameters(self._url)
        name = host.name if host else given.get("host") or os.environ.get("PGHOST") or "this machine"
        port = host.port if host and host.port else given.get("port") or os.environ.get("PGPORT") or _PORT
        if name.startswith(("/", "@")):
            return name
        return f"[{name}]:{port}" if ":" in name else f"{name}:{port}"

    async def _connected_to(self, host: Host | None, until: float) -> OwnConnection:
        """A connection to a host, at one of its addresses."""
        if host is None or host.is_socket or host.address:
            return await self._connected_at(host, until)
        found = await asyncio.get_running_loop().getaddrinfo(host.name, None, type=socket.SOCK_STREAM)
        addresses = dict.fromkeys(str(address[0]) for *_, address in found)
        try:
            return await _first(host, [replace(host, address=one) for one in addresses], self._connected_at, until)
        except _NoneAnswers as none:
            raise none.latest from None

    async def _connected_at(self, host: Host | None, _until: float) -> OwnConnection:
        loop = asyncio.get_running_loop()
        where: dict[str, Any] = {"host": host.name, "port": host.port} if host else {}
        if self._is_given:
            where["target_session_attrs"] = "any"
        try:
            made: Any = await asyncpg.connect(
                self._url,
                **where,
                loop=Towards(loop, host.address) if host and host.address else loop,  # type: ignore[arg-type]
                server_settings={"application_name": self._name},
                command_timeout=self._within,
                statement_cache_size=0 if self._is_pooled else 100,
                connection_class=PooledConnection if self._is_pooled else self._direct,
            )
        except asyncpg.UndefinedObjectError as error:  # asyncpg passes what it does not know to the server
            name = re.search(r'"(.*)"', str(error))
            raise ConfigError(
                f"database URL: there is no parameter {name[1] if name else str(error)!r}; after the ? come sslmode, "
                "target_session_attrs and the like, or settings of the server"
            ) from error
        except _WRONG_VALUE as error:
            raise ConfigError(f"database URL: {error}") from error
        connection: OwnConnection = made
        return connection


class _NoneAnswers(Exception):
    """None of the candidates gave a connection: each with its error, in the order in which they were tried."""

    def __init__(self, failures: list[tuple[Host | None, Exception]]) -> None:
        super().__init__()
        self.failures = failures
        self.latest = failures[-1][1]


async def _first(
    named: tuple[Host | None, ...] | Host,
    candidates: Sequence[Host | None],
    connected: Callable[[Host | None, float], Awaitable[OwnConnection]],
    until: float,
) -> OwnConnection:
    """A connection to the first candidate that answers; each has its time, because a dead one may not even refuse.

    ``named``: the key of the candidates in `_latest`: the hosts of a URL, or the host whose addresses they are.

    Raises:
        _NoneAnswers: none of them answers.
    """
    now = asyncio.get_running_loop().time
    latest = _latest.get(named)
    failures: list[tuple[Host | None, Exception]] = []
    for nr, one in enumerate(sorted(candidates, key=lambda one: one != latest)):
        within = now() + (until - now()) / (len(candidates) - nr)
        try:
            async with asyncio.timeout_at(within):
                connection = await connected(one, within)
        except (OSError, asyncpg.CannotConnectNowError, asyncpg.TargetServerAttributeNotMatched) as error:
            failures.append((one, error))
        else:
            _latest[named] = one
            return connection
    raise _NoneAnswers(failures)


async def connect(
    url: str,
    *,
    pooled: bool = False,
    name: str = "joex",
    within: float | None = None,
    host: Host | None = None,
    **settings: str,
) -> OwnConnection:
    """Make a connection, which the caller closes.

    Args:
        url: the database.
        pooled: assume that it goes through a pooler; otherwise the connection finds out.
        name: shown in pg_stat_activity.
        within: seconds that a statement may take; None: no limit.
        host: the only one to try (`OwnConnection.host`); None: those of the URL.
        settings: parameters of the session, such as ``synchronous_commit="off"``; ignored through a pooler.

    Raises:
        DatabaseUnavailable: it can't be reached now.
        ConfigError: the URL, the password or the database's name is wrong.
    """
    with translated():
        return await _Connector(url, name, within, settings, pooled=pooled, host=host)()


async def create_pool(
    url: str,
    *,
    most: int,
    pooled: bool = False,
    name: str = "joex",
    within: float | None = None,
    for_services: bool = False,
    for_tasks: bool = False,
    resets: bool = True,
) -> asyncpg.Pool[Any]:
    """A pool of connections, which closes idle ones. Errors as with `connect`, but when it makes a connection.

    ``for_services``: for Joex's own short statements. They have a time limit, which detects a link that has gone
    silent; and no reset. ``for_tasks``: for `TaskConnections`.

    ``resets``: reset the session of each released connection, which costs a round trip. Joex's own statements need
    none: they leave nothing in the session that matters to the next one. (The pool rolls back an open transaction in
    any case.)
    """
    with translated():
        pool: asyncpg.Pool[Any] = await asyncpg.create_pool(
            min_size=0,
            max_size=most,
            max_inactive_connection_lifetime=30.0,
            connect=_Connector(
                url,
                name,
                SERVICE_WITHIN if for_services else within,
                {},
                pooled=pooled,
                direct=TaskConnection if for_tasks else OwnConnection,
            ),
            connection_class=OwnConnection,
            reset=None if resets and not for_services else _no_reset,
        )
    return pool


async def close_pool(pool: asyncpg.Pool[Any]) -> None:
    """Close a pool; after five seconds, also connections that are still at work, or silent."""
    with suppress(JoexError), translated():
        async with asyncio.timeout(_CLOSE_WITHIN):
            await pool.close()


async def is_pooled(connection: Connection) -> bool:
    """Whether a connection goes through a pooler, so that its session keeps nothing, and no notification comes."""
    known = getattr(connection, "is_pooled", None)
    if known is None:  # not a connection that Joex made
        with translated():
            found = await connection.execute(f"SELECT WHERE pg_backend_pid() = {connection.get_server_pid()}")
        known = found == "SELECT 0"
    return bool(known)


@asynccontextmanager
async def lent(pool: asyncpg.Pool[Any]) -> AsyncIterator[PoolConnectionProxy[Any]]:
    """A connection of a pool for the time of a block; closed at once if the link may have gone silent."""
    async with pool.acquire() as connection:
        try:
            yield connection
        except BREAKS:
            drop(connection)
            raise


@asynccontextmanager
async def borrowed(pool: asyncpg.Pool[Any]) -> AsyncIterator[Connection]:
    """As `lent`, with errors translated, also those of acquire and release."""
    with translated():
        async with lent(pool) as connection:
            yield connection


async def reset(connection: Connection) -> None:
    """Reset the session of a connection, or close it if that fails, so that no other user sees what was left there.

    A connection that is lost by now is no error: the caller's work on it is done.
    """
    is_reset = False
    try:
        with suppress(JoexError), translated():
            await connection.reset()
            is_reset = True
    finally:
        if not is_reset:
            drop(connection)


async def _no_reset(_connection: Connection) -> None:
    """Leave the session as it is."""

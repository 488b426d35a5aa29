"""Makes a connection to one of the servers that a database URL names, and remembers what it finds out about them.

A connection finds out by itself whether it leads through a pooler: a pooler, which has no session of the server for it
yet, reports an invented process id at the start.
"""

from __future__ import annotations

import asyncio
import os
import re
import stat
import time
from collections.abc import Awaitable, Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncpg

from joex.core.url import (
    ANY,
    READ_WRITE,
    check_database_url,
    database_hosts,
    may_show_parameters,
    named_files,
    parameters,
)
from joex.errors import ConfigError
from joex.store.connection import CONNECT_WITHIN, Host, OwnConnection, PooledConnection, Towards
from joex.store.errors import READ_ONLY, reason
from joex.store.framing import NO_POSTGRES
from joex.store.name_lookups import LOOKUPS

_PORT = 5432
_LARGEST_FILE = 16
"""MB of a file that a URL names, at most; lists of revoked certificates may have several."""
_NO_FILE = f"{os.devnull}/none"
"""The path of a file that never exists."""
_WRONG_PARAMETER = (
    asyncpg.UndefinedObjectError,  # asyncpg takes unknown parameters for server settings
    asyncpg.DataError,  # the value of a server setting is wrong
    asyncpg.CantChangeRuntimeParamError,  # a session can't set it
    asyncpg.ClientConfigurationError,
)
"""The errors of the server and of asyncpg about a parameter of the URL."""

_NOT_WANTED = {
    READ_WRITE: READ_ONLY,
    "primary": "it is a standby",
    "standby": "it is no standby",
    "read-only": "it takes writes",
}
"""Why a server is none that the URL asks for by ``target_session_attrs``."""

_latest: dict[Hashable, Host | None] = {}
"""Of several hosts, or of the addresses of one, the one that answered last: those before it cost their time again.

Shared by the whole process, because services with their own connections, such as the lease, would otherwise start from
the first host each time. The key is the hosts of the URL, because addresses keep changing, and which of them it wants.
"""


def check_url(url: str) -> None:
    """Check the form of a database URL.

    Raises:
        ConfigError: see `joex.core.url.check_database_url`.
    """
    try:
        check_database_url(url)
    except ValueError as error:
        raise ConfigError(f"database URL: {error}") from error


def wanted_server(url: str) -> str | None:
    """The ``target_session_attrs`` for a valid database URL: of several hosts, by default, the one that takes writes.

    (A standby among them answers too, and would refuse each write.) None: the server of the URL, whatever it is.
    """
    given, hosts = parameters(url), database_hosts(url)
    several = len(hosts) > 1 or (not hosts and "," in (given.get("host") or os.environ.get("PGHOST") or ""))
    asked = given.get("target_session_attrs") or os.environ.get("PGTARGETSESSIONATTRS")
    return asked or (READ_WRITE if several else None)


class Logins:
    """Whether the database accepts the logins of a pool. The user or the password may have changed meanwhile."""

    def __init__(self) -> None:
        self.refused: asyncpg.PostgresError | None = None
        """The answer to the latest login, if that was refused."""
        self.refused_for = 0.0
        """Seconds from the first of the latest refusals to the last one. (An outage is none: it begins them anew.)"""
        self._refused_since: float | None = None

    def refuse(self, error: asyncpg.PostgresError) -> None:
        """A login was refused."""
        now = time.monotonic()
        if self._refused_since is None:
            self._refused_since = now
        self.refused = error
        self.refused_for = now - self._refused_since

    def miss(self) -> None:
        """No server answered a login."""
        self._refused_since = None

    def accept(self) -> None:
        """A login was accepted."""
        self.refused = self._refused_since = None
        self.refused_for = 0.0


class Connector:
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
        connect_within: float | None = None,
        logins: Logins | None = None,
    ) -> None:
        self._url = url
        self._logins = logins or Logins()
        self._name = name
        self._within = within
        self._settings = settings
        self._is_pooled = pooled
        self._direct = direct
        self._connect_within = connect_within
        check_url(url)
        with suppress(OSError):  # it may have content when it is needed
            _files(url)
        self._server = ANY if host is not None else wanted_server(url)
        # None: the URL names its server elsewhere, or not at all, such as a Unix socket
        hosts = [Host(name, port) if name else None for name, port in database_hosts(url)] or [None]
        self._hosts = hosts if host is None else [host]

    async def __call__(self, *_: object, **__: object) -> OwnConnection:
        """A connection; ignores the arguments that a pool passes: they add nothing."""
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
        until = asyncio.get_running_loop().time() + (self._connect_within or CONNECT_WITHIN)
        try:
            return await _first((self._server, *self._hosts), self._hosts, self._connected_to, until)
        except _NoneAnswers as none:
            self._logins.miss()
            told = "; ".join(f"{self._place(host)}: {reason(error)}" for host, error in none.failures)
            # (Callers distinguish a timeout from a failure.)
            kind = TimeoutError if isinstance(none.latest, TimeoutError) else ConnectionError
            raise kind(told) from none.latest

    def _place(self, host: Host | None) -> str:
        """The server's name in messages: its host and port, or its socket."""
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
        addresses = await LOOKUPS.addresses(host.name)
        try:
            return await _first(host, [replace(host, address=one) for one in addresses], self._connected_at, until)
        except _NoneAnswers as none:
            raise none.latest from None

    async def _connected_at(self, host: Host | None, _until: float) -> OwnConnection:
        loop: Any = Towards(asyncio.get_running_loop(), host.address if host else None)
        where: dict[str, Any] = dict(_files(self._url))
        if host:
            where |= {"host": host.name, "port": host.port}
        if self._server is not None:
            where["target_session_attrs"] = self._server
        try:
            made: Any = await asyncpg.connect(
                self._url,
                **where,
                loop=loop,
                server_settings={"application_name": self._name},
                command_timeout=self._within,
                statement_cache_size=0 if self._is_pooled else 100,
                connection_class=PooledConnection if self._is_pooled else self._direct,
            )
        except asyncpg.TargetServerAttributeNotMatched as error:
            raise asyncpg.TargetServerAttributeNotMatched(_NOT_WANTED.get(self._server or "", str(error))) from error
        except asyncpg.InvalidAuthorizationSpecificationError as error:
            self._logins.refuse(error)
            raise
        except _WRONG_PARAMETER as error:
            wrong = error
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError):
            raise  # (the first and the third may be ValueErrors)
        except Exception as error:
            raise ConnectionError(f"{NO_POSTGRES}: {reason(error)}") from error
        else:
            self._logins.accept()
            connection: OwnConnection = made
            return connection
        if not may_show_parameters(self._url):
            # (Outside of the except block, so that the error has no context, which tracebacks show.)
            raise ConfigError(
                "database URL: a parameter after the ? is unknown or has a wrong value; because one of them is a "
                "password, no name is shown here: give the password before the host"
            )
        raise _parameter_error(wrong) from wrong


def _files(url: str) -> dict[str, str]:
    """Check the files that a database URL names; returns the arguments of asyncpg that replace some of them.

    asyncpg reads them on the event loop. A file without a size may have no end, as some below ``/proc``, so a passfile
    without one counts as one without entries. The files are checked before each connection, because one may come
    later, such as that of a thread.

    Raises:
        ConfigError: reading one may last for ever, or take all memory.
        OSError: one has no size. (Another program may be writing it at this moment.)
    """
    instead = {}
    for parameter, path in named_files(url).items():
        try:
            found = Path(path).stat()
        except (OSError, ValueError):
            continue  # asyncpg says so, where it needs the file
        if parameter == "passfile" and stat.S_ISREG(found.st_mode) and not found.st_size:
            instead[parameter] = _NO_FILE
        elif not stat.S_ISREG(found.st_mode) or found.st_size > _LARGEST_FILE * 2**20:
            raise ConfigError(
                f"database URL: {parameter}: expected a file of at most {_LARGEST_FILE} MB, and no pipe or device"
            )
        elif not found.st_size:
            raise OSError(f"{parameter}: the file is empty")
    return instead


def _parameter_error(error: Exception) -> ConfigError:
    if not isinstance(error, asyncpg.UndefinedObjectError):
        return ConfigError(f"database URL: {reason(error)}")
    said = reason(error)
    name = re.search(r'"(.*)"', said)
    return ConfigError(
        f"database URL: there is no parameter {name[1] if name else said!r}; after the ? come sslmode, "
        "target_session_attrs and the like, or settings of the server"
    )


class _NoneAnswers(Exception):
    """No candidate gave a connection: each with its error, in the order of the tries."""

    def __init__(self, failures: list[tuple[Host | None, Exception]]) -> None:
        super().__init__()
        self.failures = failures
        self.latest = failures[-1][1]


async def _first(
    named: Hashable,
    candidates: Sequence[Host | None],
    connected: Callable[[Host | None, float], Awaitable[OwnConnection]],
    until: float,
) -> OwnConnection:
    """A connection to the first candidate that answers; each has a time limit, because a dead one may not even refuse.

    ``named``: the key of the candidates in `_latest`.

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

"""The connections to the database that Joex makes (in `joex.store.database`), and their common rules.

- Transactions, and statements outside of any, are READ COMMITTED, whatever the default of the database or the role.
- Through a pooler, Joex prepares no statements and sets nothing in the session, because the next transaction may get
  another session of the server; and each statement has its own transaction.
- Keepalives and time limits of TCP detect within half a minute that a link has gone silent. If a statement that waits
  for the link is cancelled, or takes too long, Joex closes the connection: a roll-back would wait for the link again.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import asyncpg
from asyncpg.transaction import Transaction

from joex.errors import DatabaseUnavailable
from joex.store.statement import Connection

if TYPE_CHECKING:
    _Base = asyncpg.Connection[Any]
else:
    _Base = asyncpg.Connection

CONNECT_WITHIN = 10.0
"""Seconds to wait for a connection before the database counts as unreachable."""

BREAKS = (TimeoutError, asyncio.CancelledError, DatabaseUnavailable)
"""After these errors the link may be silent: close the connection, and wait for nothing on it."""

_TCP_INFO_BYTES = struct.Struct("120xQQ")
"""From Linux's struct tcp_info: how many bytes the other end has acknowledged, and how many came from there."""

_OUR_SOCKET = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 20_000}
"""In seconds, the last one in milliseconds: data without an acknowledgement for twenty seconds ends the connection."""

_SESSION = {
    "default_transaction_isolation": "'read committed'",
    # The same for the server's end, which holds the locks of a transaction whose client has vanished. (It waits longer
    # for acknowledgements: a client that computes does not read.)
    "tcp_keepalives_idle": "'5'",
    "tcp_keepalives_interval": "'5'",
    "tcp_keepalives_count": "'3'",
    "tcp_user_timeout": "'60s'",
    # The server soon ends the statement of a client that has vanished; on Windows it can't check that.
    "client_connection_check_interval": "CASE WHEN version() ~* 'visual c|msvc|mingw|windows' THEN '0' ELSE '1s' END",
}
_OLDEST_WITH_THESE = 14  # (`check_schema` and `migrate` refuse older servers, with a reason)


@dataclass(frozen=True, slots=True)
class Host:
    """A server: its name and port in a URL, and the address to use if the name has several."""

    name: str
    port: int | None
    address: str | None = None

    @property
    def is_socket(self) -> bool:
        """Whether it is a Unix socket of this machine."""
        return self.name.startswith(("/", "@"))


class Towards:
    """An event loop that connects to one address, whatever host it is asked for.

    asyncpg takes the name of a host, and tries its addresses without a time limit for each. So it gets the name, which
    TLS verifies, and this loop. The loop also serves its later connections: a request to cancel must reach the same
    server.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, address: str) -> None:
        self._loop = loop
        self._address = address

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    async def create_connection(self, protocol: Any, host: str, port: int, **options: Any) -> Any:
        """As the loop's."""
        if options.get("ssl"):
            options["server_hostname"] = host
        return await self._loop.create_connection(protocol, self._address, port, **options)


class OwnConnection(_Base):
    """A connection that Joex made, straight to the server."""

    is_pooled = False
    asked_at: float | None = None
    passed_before: tuple[int, ...] = ()
    _session = ""
    _addr: tuple[str, int] | str
    _transport: asyncio.WriteTransport

    @property
    def peer(self) -> Any:
        """The address of the server."""
        return self._transport.get_extra_info("peername")

    @property
    def host(self) -> Host | None:
        """The server, to connect to it again; None for a Unix socket."""
        return None if isinstance(self._addr, str) else Host(*self._addr, address=self.peer[0])

    @property
    def passed(self) -> tuple[int, ...]:
        """Byte counts of the link, which change whenever the other end takes or sends anything.

        The bytes that are not sent yet; and if the system reports them, those that the other end has acknowledged, and
        those that it has sent.
        """
        unsent = self._transport.get_write_buffer_size()
        found = self._transport.get_extra_info("socket")
        if found is None or found.family == getattr(socket, "AF_UNIX", None) or not hasattr(socket, "TCP_INFO"):
            return (unsent,)
        # (Not the kernel's send queue: while our buffer refills it, its size stays the same.)
        try:
            info = found.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES.size)
        except OSError:  # it has just been closed
            info = b""
        return unsent, *(_TCP_INFO_BYTES.unpack(info) if len(info) == _TCP_INFO_BYTES.size else ())

    async def begin(self, settings: dict[str, str]) -> bool:
        """Set up the session. False: the connection goes through a pooler, without its own session; nothing is set.

        One query, which applies the settings only in the server process that the start of the connection named.
        """
        self._set_socket()
        if self.get_server_version().major < _OLDEST_WITH_THESE:
            return True
        values = _SESSION | {name: f"'{value}'" for name, value in settings.items()}
        calls = ", ".join(f"set_config('{name}', {value}, false)" for name, value in values.items())
        self._session = f"SELECT {calls} WHERE pg_backend_pid() = {self.get_server_pid()}"
        return await self.execute(self._session, timeout=CONNECT_WITHIN) == "SELECT 1"

    def get_reset_query(self) -> str:
        """The query that restores the session as it was set up."""
        return f"{super().get_reset_query()}\n{self._session}"

    def transaction(self, *, isolation: Any = None, readonly: bool = False, deferrable: bool = False) -> Transaction:
        """As asyncpg's; if it is cancelled, it closes the connection instead of waiting for a roll-back."""
        return _Transaction(self, isolation, readonly, deferrable)

    def _set_socket(self) -> None:
        found = self._transport.get_extra_info("socket")
        if found is not None and found.family != getattr(socket, "AF_UNIX", None):
            found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _OUR_SOCKET.items():
                if hasattr(socket, name):  # not every system has all of them
                    found.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class _Wrapped(OwnConnection):
    """A connection that does something around each statement."""

    def _around(self, *, is_simple: bool) -> AbstractAsyncContextManager[None]:
        """Around a statement; ``is_simple``: one without arguments, which is one message."""
        raise NotImplementedError

    async def execute(self, query: str, *args: Any, timeout: float | None = None) -> str:  # noqa: ASYNC109 - asyncpg's
        """As asyncpg's."""
        async with self._around(is_simple=not args):
            return await super().execute(query, *args, timeout=timeout)

    async def executemany(self, *args: Any, **options: Any) -> None:
        """As asyncpg's."""
        async with self._around(is_simple=False):
            await super().executemany(*args, **options)

    async def fetch(self, *args: Any, **options: Any) -> Any:
        """As asyncpg's."""
        async with self._around(is_simple=False):
            return await super().fetch(*args, **options)

    async def fetchval(self, *args: Any, **options: Any) -> Any:
        """As asyncpg's."""
        async with self._around(is_simple=False):
            return await super().fetchval(*args, **options)

    async def fetchrow(self, *args: Any, **options: Any) -> Any:
        """As asyncpg's."""
        async with self._around(is_simple=False):
            return await super().fetchrow(*args, **options)


class PooledConnection(_Wrapped):
    """A connection to a pooler that gives each transaction any session of the server, as PgBouncer does.

    asyncpg sends more than one message for a statement (it asks for its types first), so each statement gets a
    transaction, in which the session stays the same. The transaction names its isolation, because the session's default
    belongs to all clients of the pooler.
    """

    is_pooled = True

    async def begin(self, settings: dict[str, str]) -> bool:  # noqa: ARG002 - no session to set up
        """Set nothing."""
        self._set_socket()
        return True

    def get_reset_query(self) -> str:
        """None: it would reach the session of another client."""
        return ""

    def transaction(self, *, isolation: Any = None, readonly: bool = False, deferrable: bool = False) -> Transaction:
        """As asyncpg's, but READ COMMITTED by default."""
        if isolation is None and not self.is_in_transaction():
            isolation = "read_committed"
        return super().transaction(isolation=isolation, readonly=readonly, deferrable=deferrable)

    def _around(self, *, is_simple: bool) -> AbstractAsyncContextManager[None]:
        # (One message needs no transaction, and may forbid one, such as VACUUM; or begin and end one.)
        return nullcontext() if is_simple or self.is_in_transaction() else self.transaction()


class TaskConnection(_Wrapped):
    """A connection of a task, which records since when it waits for an answer."""

    @asynccontextmanager
    async def _around(self, *, is_simple: bool) -> AsyncIterator[None]:  # noqa: ARG002 - each
        self.asked_at = asyncio.get_running_loop().time()
        self.passed_before = () if self.is_closed() else self.passed
        try:
            yield
        finally:
            self.asked_at = None


class _Transaction(Transaction):
    """A transaction that never waits for a link that may be silent."""

    _connection: asyncpg.Connection[Any]

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        if isinstance(error, BREAKS) or (error is not None and self._connection.is_closed()):
            self._connection.terminate()  # which rolls it back: the server sees the end of the session
        else:
            await super().__aexit__(kind, error, trace)


def drop(connection: Connection) -> None:
    """Close a connection at once."""
    with suppress(asyncpg.InterfaceError):  # it is gone already
        connection.terminate()

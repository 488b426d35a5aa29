"""The connections that `joex.store.connector` makes, and their properties.

- Transactions, and statements outside of any, are READ COMMITTED, whatever the default of the database or the role is.
- Through a pooler, Joex prepares no statement and sets no parameter of the session, because the next transaction may
  have another session of the server; and each statement has its own transaction.
- Keepalives and limits of TCP find a silent link in half a minute. A statement that waits for the link and is
  cancelled, or takes too long, ends the connection: its roll-back would wait for the link once more.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import asyncpg
from asyncpg.transaction import Transaction

from joex.errors import DatabaseUnavailable
from joex.store.errors import OUT_OF_STEP
from joex.store.framing import CheckedLoop
from joex.store.name_lookups import LOOKUPS
from joex.store.session import OLDEST_WITH_SETUP, names_something, reset_query, session_again, session_setup
from joex.store.statement import PLANNED_ANEW, Connection

if TYPE_CHECKING:
    _Base = asyncpg.Connection[Any]
else:
    _Base = asyncpg.Connection

CONNECT_WITHIN = 10.0
"""Seconds to wait for a connection before the database counts as unreachable."""

BREAKS = (TimeoutError, asyncio.CancelledError, DatabaseUnavailable, OUT_OF_STEP)
"""After these errors the link may be silent, or make no sense: end the connection, and await nothing from it."""

_TCP_INFO_BYTES = struct.Struct("120xQQ")
"""From Linux's struct tcp_info: how many bytes the other end has acknowledged, and how many came from there."""

OUR_SOCKET = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 20_000}
"""In seconds and milliseconds: after twenty seconds without an acknowledgement the link is lost."""


@dataclass(frozen=True, slots=True)
class Host:
    """A server: its host as in the URL, and the chosen address if the name has several."""

    name: str
    port: int | None
    address: str | None = None

    @property
    def is_socket(self) -> bool:
        """Whether it is a Unix socket of this machine."""
        return self.name.startswith(("/", "@"))


class Towards(CheckedLoop):
    """An event loop that connects to one address, whatever host the caller names; None: to the first that answers.

    asyncpg resolves the name of a host and tries its addresses without a time limit for each. So it gets the name,
    which TLS verifies, and this loop; also for later connections, because a cancel request must reach the same server.
    A host that comes after the question mark is read by asyncpg alone: its name is looked up here, in our threads.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, address: str | None) -> None:
        super().__init__(loop)
        self._address = address

    async def create_connection(self, protocol: Any, host: str, port: int, **options: Any) -> Any:
        """As the loop's."""
        if options.get("ssl"):
            options["server_hostname"] = host
        *others, last = [self._address] if self._address else await LOOKUPS.addresses(host)
        for address in others:
            with suppress(OSError):
                return await super().create_connection(protocol, address, port, **options)
        return await super().create_connection(protocol, last, port, **options)


class OwnConnection(_Base):
    """A connection of ours, straight to the server."""

    is_pooled = False
    asked_at: float | None = None
    passed_before: tuple[int, ...] = ()
    _session = ""
    _has_codecs = _has_names = False
    _addr: tuple[str, int] | str
    _transport: asyncio.WriteTransport
    _mark_stmts_as_closed: Callable[[], None]
    _query_loggers: set[Any]
    _termination_listeners: set[Any]

    def __init__(self, protocol: Any, transport: asyncio.WriteTransport, *given: Any) -> None:
        try:
            super().__init__(protocol, transport, *given)
        except BaseException:  # the server's version makes no sense: asyncpg would leave the link open
            self._aborted = True
            transport.abort()
            raise

    @property
    def peer(self) -> Any:
        """The address of the server."""
        return self._transport.get_extra_info("peername")

    @property
    def host(self) -> Host | None:
        """The server to connect to again; None for a Unix socket."""
        return None if isinstance(self._addr, str) else Host(*self._addr, address=self.peer[0])

    @property
    def passed(self) -> tuple[int, ...]:
        """The traffic on the link: it differs from an earlier one if the other end has taken or sent anything.

        Bytes not sent yet; and, if the system reports them, bytes that the other end has acknowledged and has sent.
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
        """Set up the session; False: a pooler gives the connection no session of its own, and this has set nothing.

        One query sets the parameters, but only if it runs in the server process that the connection start reported.
        """
        self._set_socket()
        if self.get_server_version().major < OLDEST_WITH_SETUP:
            return True
        self._session = session_again(settings)
        setup = session_setup(self.get_server_pid(), settings)
        return await self.execute(setup, timeout=CONNECT_WITHIN) == "SELECT 1"

    @property
    def is_worn(self) -> bool:
        """Whether its last user has left what no reset undoes, so that the next user needs another connection.

        That is: codecs of types, loggers of queries, and listeners to its end.
        """
        return self._has_codecs or bool(self._query_loggers or self._termination_listeners)

    async def reset(self, *, timeout: float | None = None) -> None:  # noqa: ASYNC109 - asyncpg's
        """As asyncpg's; if names have had another meaning, it also drops all prepared statements.

        Not always: then each run would prepare its statements anew. A statement of the same text would have the
        columns that the temporary tables of an earlier run had, which the server refuses in a transaction.
        """
        if self._has_names and not self.is_pooled:
            self._mark_stmts_as_closed()
        await super().reset(timeout=timeout)
        self._has_names = False

    def get_reset_query(self) -> str:
        """The statements that reset the session to its state after the setup, in one message."""
        return reset_query(super().get_reset_query(), self._session, drops_prepared=self._has_names)

    async def set_type_codec(self, *given: Any, **options: Any) -> None:
        """As asyncpg's, but the pool closes the connection afterwards (`is_worn`)."""
        self._has_codecs = True
        await super().set_type_codec(*given, **options)

    async def set_builtin_type_codec(self, *given: Any, **options: Any) -> None:
        """As `set_type_codec`."""
        self._has_codecs = True
        await super().set_builtin_type_codec(*given, **options)

    def execute(self, query: str, *args: Any, timeout: float | None = None) -> Coroutine[Any, Any, str]:
        """As asyncpg's."""
        self._has_names = self._has_names or names_something(query)
        return super().execute(query, *args, timeout=timeout)

    def transaction(self, *, isolation: Any = None, readonly: bool = False, deferrable: bool = False) -> Transaction:
        """As asyncpg's; if cancelled, it ends the connection instead of waiting for a roll-back."""
        return _Transaction(self, isolation, readonly, deferrable)

    async def _get_statement(self, query: str, *given: Any, **options: Any) -> Any:
        """As asyncpg's, but the server keeps none that needs a plan of its own each time (`planned_anew`)."""
        self._has_names = self._has_names or names_something(query) or isinstance(options.get("named"), str)
        if query in PLANNED_ANEW:
            options["use_cache"] = False
        return await super()._get_statement(query, *given, **options)  # type: ignore[misc] # its types lack this

    def _set_socket(self) -> None:
        found = self._transport.get_extra_info("socket")
        if found is not None and found.family != getattr(socket, "AF_UNIX", None):
            found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in OUR_SOCKET.items():
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

    asyncpg sends more than one request for a statement (first for its types, then the statement), so each has a
    transaction around it, in which the session stays the same. The transaction sets its own isolation level, because
    the session's default is not ours.
    """

    is_pooled = True

    async def begin(self, settings: dict[str, str]) -> bool:  # noqa: ARG002 - no session to set up
        """Set nothing."""
        self._set_socket()
        return True

    def get_reset_query(self) -> str:
        """Nothing: it would reset another client's session."""
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
    """A task's connection, which remembers since when it waits for an answer."""

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


def is_worn(connection: Connection) -> bool:
    """Whether it is one of ours that the pool must close (`OwnConnection.is_worn`)."""
    return bool(getattr(connection, "is_worn", False))  # (a lost one has no properties any more)


def drop(connection: Connection) -> None:
    """Close a connection at once."""
    with suppress(asyncpg.InterfaceError):  # it is gone already
        connection.terminate()

"""Connections to the database.

What holds on each connection that is made here:

- Its transactions, and its statements outside of any, are READ COMMITTED, whatever the database or the role has for a
  default.
- Where a pooler is in between, nothing is prepared and nothing of the session is set, for the next transaction may have
  another session of the server; and each statement has a transaction of its own. A connection finds out by itself: a
  pooler, which has no session of the server for it yet, makes up the process id that it tells at the start.
- A link that has gone silent is noticed in half a minute, by keepalives and limits of TCP; what waits for the link and
  is cancelled, or takes too long, ends the connection, for the roll-back of it would wait for the link once more.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import asyncpg
from asyncpg.transaction import Transaction

from joex.core.url import check_database_url, database_hosts
from joex.errors import ConfigError, DatabaseUnavailable, JoexError
from joex.store.errors import translated
from joex.store.statement import Connection, statement

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

    _Base = asyncpg.Connection[Any]
else:
    _Base = asyncpg.Connection

POLL_EVERY = 1.0
"""Seconds between two looks where notifications do not come: a pooler is in between."""

BREAKS = (TimeoutError, asyncio.CancelledError, DatabaseUnavailable)
"""After these the link may be silent: the connection is ended, and nothing is awaited of it."""

_PATIENCE = 10.0
"""Seconds to wait for a connection before the database counts as unreachable."""
_STATEMENT_WITHIN = 5.0
_KEPT_FOR = 1.0
_CLOSE_WITHIN = 5.0
_LOOK_EVERY = 5.0
_HELD = 8_000_000  # bytes at most that proxies and kernels in between hold of a statement,
_SLOWEST = 500_000  # and bytes a second with which they pass them on

_AT_WORK = statement("""
    SELECT pid FROM pg_stat_activity WHERE pid = ANY($1::int[]) AND (state IS NULL OR state NOT LIKE 'idle%')
""")

_TCP_INFO_BYTES = struct.Struct("120xQQ")
"""Of Linux's struct tcp_info: how many bytes the other end has acknowledged, and how many came from there."""

_OUR_SOCKET = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 20_000}
"""Seconds, and milliseconds: what is not acknowledged for twenty seconds is lost."""

_SESSION = {
    "default_transaction_isolation": "'read committed'",
    # The same for the server's end, which holds the locks of a transaction whose client has gone without a word. (It is
    # more patient with what it sends: a client that computes does not read.)
    "tcp_keepalives_idle": "'5'",
    "tcp_keepalives_interval": "'5'",
    "tcp_keepalives_count": "'3'",
    "tcp_user_timeout": "'60s'",
    # A statement does not outlive its client for long; a server on Windows can't look after that.
    "client_connection_check_interval": "CASE WHEN version() ~* 'visual c|msvc|mingw|windows' THEN '0' ELSE '1s' END",
}
_OLDEST_WITH_THESE = 14  # what is older is refused, with a reason, by who asks for the schema


class OwnConnection(_Base):
    """A connection that was made here, straight to the server."""

    is_pooled = False
    asked_at: float | None = None
    passed_before: tuple[int, ...] = ()
    _session = ""
    _addr: tuple[str, int] | str
    _transport: asyncio.WriteTransport

    @property
    def peer(self) -> object:
        """The server that it is connected to."""
        return self._transport.get_extra_info("peername")

    @property
    def host(self) -> dict[str, Any]:
        """The same, as arguments of asyncpg's that lead there alone; none with a Unix socket."""
        if isinstance(self._addr, str):
            return {}
        return {"host": self._addr[0], "port": self._addr[1], "target_session_attrs": "any"}

    @property
    def passed(self) -> tuple[int, ...]:
        """What has passed on the link: it differs from an earlier one if the other end has taken or sent anything.

        Bytes that are not sent yet; and where the system tells, those that the other end has acknowledged and has sent.
        """
        unsent = self._transport.get_write_buffer_size()
        found = self._transport.get_extra_info("socket")
        if found is None or found.family == getattr(socket, "AF_UNIX", None) or not hasattr(socket, "TCP_INFO"):
            return (unsent,)
        # (Not what the kernel has still to send: while there is more in the buffer it has always the same.)
        try:
            info = found.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES.size)
        except OSError:  # it has just been closed
            info = b""
        return unsent, *(_TCP_INFO_BYTES.unpack(info) if len(info) == _TCP_INFO_BYTES.size else ())

    async def begin(self, settings: dict[str, str]) -> bool:
        """Set up the session; False: there is none of its own, a pooler is in between (and nothing was set).

        One question, which sets what it sets if it finds itself in the process that the start has told of.
        """
        self._set_socket()
        if self.get_server_version().major < _OLDEST_WITH_THESE:
            return True
        values = _SESSION | {name: f"'{value}'" for name, value in settings.items()}
        calls = ", ".join(f"set_config('{name}', {value}, false)" for name, value in values.items())
        self._session = f"SELECT {calls} WHERE pg_backend_pid() = {self.get_server_pid()}"
        return await self.execute(self._session, timeout=_PATIENCE) == "SELECT 1"

    def get_reset_query(self) -> str:
        """What makes the session like new: as it was set up."""
        return f"{super().get_reset_query()}\n{self._session}"

    def transaction(self, *, isolation: Any = None, readonly: bool = False, deferrable: bool = False) -> Transaction:
        """As asyncpg's; where it is cancelled it ends the connection, instead of waiting for a roll-back."""
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

    asyncpg asks more than one question for a statement (what its types are, and then the statement), so each has a
    transaction around it, in which the session stays the same; and which says how it is isolated, for what the session
    says is not ours.
    """

    is_pooled = True

    async def begin(self, settings: dict[str, str]) -> bool:  # noqa: ARG002 - no session to set up
        """Nothing is set."""
        self._set_socket()
        return True

    def get_reset_query(self) -> str:
        """Nothing: the session that this would reach is another one's."""
        return ""

    def transaction(self, *, isolation: Any = None, readonly: bool = False, deferrable: bool = False) -> Transaction:
        """As asyncpg's, but READ COMMITTED where nothing else is said."""
        if isolation is None and not self.is_in_transaction():
            isolation = "read_committed"
        return super().transaction(isolation=isolation, readonly=readonly, deferrable=deferrable)

    def _around(self, *, is_simple: bool) -> AbstractAsyncContextManager[None]:
        # (One message needs no transaction, and may forbid one, such as VACUUM; or begin and end one.)
        return nullcontext() if is_simple or self.is_in_transaction() else self.transaction()


class TaskConnection(_Wrapped):
    """A connection of a task, which knows since when it waits for an answer."""

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
        host: dict[str, Any] | None = None,
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
        self._hosts: list[dict[str, Any]] = [{}]  # as the URL says
        if host:
            self._hosts = [host]
        elif len(hosts) > 1:
            self._hosts = [{"host": host, "port": port} for host, port in hosts]

    async def __call__(self, *_: object, **__: object) -> OwnConnection:
        """A connection; a pool asks for them with arguments that say nothing new."""
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
        """A connection to the first host that there is; each has its time, for one that is dead may not even refuse."""
        failures = []
        for host in list(self._hosts):
            try:
                async with asyncio.timeout(_PATIENCE / len(self._hosts)):
                    connection = await self._connected_to(host)
            except (OSError, asyncpg.CannotConnectNowError, asyncpg.TargetServerAttributeNotMatched) as error:
                failures.append(error)
            else:
                self._hosts.remove(host)
                self._hosts.insert(0, host)  # those before it would take their time again
                return connection
        raise failures[-1]

    async def _connected_to(self, host: dict[str, Any]) -> OwnConnection:
        made: Any = await asyncpg.connect(
            self._url,
            **host,
            server_settings={"application_name": self._name},
            command_timeout=self._within,
            statement_cache_size=0 if self._is_pooled else 100,
            connection_class=PooledConnection if self._is_pooled else self._direct,
        )
        connection: OwnConnection = made
        return connection


async def connect(
    url: str, *, pooled: bool = False, name: str = "joex", within: float | None = None, **settings: str
) -> OwnConnection:
    """A connection of one's own.

    Args:
        url: where to.
        pooled: take it that there is a pooler in between; else it is found out.
        name: shown in pg_stat_activity.
        within: seconds that a statement may take; None: no limit.
        settings: parameters of the session, such as ``synchronous_commit="off"``; not where a pooler is in between.

    Raises:
        DatabaseUnavailable: it can't be reached now.
        ConfigError: the URL, the password or the database's name is wrong.
    """
    with translated():
        return await _Connector(url, name, within, settings, pooled=pooled)()


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
    """A pool of connections, none of which stays while it is idle. Errors as with `connect`, but when they are made.

    ``for_services``: for short statements of our own. They have a time limit, so that a link that has gone silent is
    noticed; and no reset. ``for_tasks``: for `TaskConnections`.

    ``resets``: giving a connection back resets its session, which is one more question to the server each time.
    Statements of our own need none: they change nothing of the session that the next one could mind. (A transaction
    that was left open is rolled back in any case.)
    """
    with translated():
        pool: asyncpg.Pool[Any] = await asyncpg.create_pool(
            min_size=0,
            max_size=most,
            max_inactive_connection_lifetime=30.0,
            connect=_Connector(
                url,
                name,
                _STATEMENT_WITHIN if for_services else within,
                {},
                pooled=pooled,
                direct=TaskConnection if for_tasks else OwnConnection,
            ),
            connection_class=OwnConnection,
            reset=None if resets and not for_services else _no_reset,
        )
    return pool


async def close_pool(pool: asyncpg.Pool[Any]) -> None:
    """Close a pool; what is still at work after five seconds, or silent, ends with it."""
    with suppress(JoexError), translated():
        async with asyncio.timeout(_CLOSE_WITHIN):
            await pool.close()


async def is_pooled(connection: Connection) -> bool:
    """Whether a pooler is in between, so that nothing can be kept in the session, and no notification comes."""
    known = getattr(connection, "is_pooled", None)
    if known is None:  # another one's connection
        with translated():
            found = await connection.execute(f"SELECT WHERE pg_backend_pid() = {connection.get_server_pid()}")
        known = found == "SELECT 0"
    return bool(known)


@asynccontextmanager
async def lent(pool: asyncpg.Pool[Any]) -> AsyncIterator[PoolConnectionProxy[Any]]:
    """A connection of a pool for the time of a block; where the link may be silent then, nothing is awaited of it."""
    async with pool.acquire() as connection:
        try:
            yield connection
        except BREAKS:
            drop(connection)
            raise


@asynccontextmanager
async def borrowed(pool: asyncpg.Pool[Any]) -> AsyncIterator[Connection]:
    """The same, with errors translated, those of getting and returning it too."""
    with translated():
        async with lent(pool) as connection:
            yield connection


class TaskConnections:
    """The connections of a pool as tasks get them. Errors are asyncpg's.

    A task's statement may take as long as it likes, so no limit of time finds that its link has gone silent; nor does
    TCP, where a proxy in between still answers. The server knows: it is not at work on what is waited for. (Nor is it
    while a large argument is on its way to it, or the end of a large result on its way back: then bytes pass.)
    """

    def __init__(self, pool: asyncpg.Pool[Any]) -> None:
        self._pool = pool
        self._lent: set[PoolConnectionProxy[Any]] = set()

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[PoolConnectionProxy[Any]]:
        """A connection, for the time of a block."""
        async with lent(self._pool) as connection:
            self._lent.add(connection)
            try:
                yield connection
            finally:
                self._lent.discard(connection)

    async def watch(self, pool: asyncpg.Pool[Any], url: str) -> None:
        """End the connections whose links have gone silent, for ever.

        The answer may be on its way, so that a look counts if the one before saw the same; and as long as the buffers
        of proxies in between may need for what the statement has sent.

        Args:
            pool: where to ask.
            url: where else to ask: of several hosts another one may have been found for the pool.
        """
        silent: dict[PoolConnectionProxy[Any], tuple[_Seen, float]] = {}
        now = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(_LOOK_EVERY)
            before, silent = silent, {}
            waiting, looked_at = self._waiting(), now()
            for peer in {seen.peer for seen in waiting.values()}:
                there = {one: seen for one, seen in waiting.items() if seen.peer == peer}
                with suppress(JoexError):
                    at_work = await _at_work(pool, url, list(there.values()))
                    silent |= {one: (seen, looked_at) for one, seen in there.items() if seen.pid not in at_work}
            for one, (seen, _) in list(silent.items()):
                earlier, since = before.get(one, (None, 0.0))
                if earlier == seen == _Seen.of(one):
                    silent[one] = seen, since
                    if looked_at - since >= _LOOK_EVERY / 2 + min(seen.sent, _HELD) / _SLOWEST:
                        drop(one)

    def _waiting(self) -> dict[PoolConnectionProxy[Any], _Seen]:
        """The connections that have waited for some time."""
        long_ago = asyncio.get_running_loop().time() - _LOOK_EVERY
        found = {one: _Seen.of(one) for one in self._lent}
        return {one: seen for one, seen in found.items() if seen is not None and seen.asked_at < long_ago}


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a look sees of a connection that waits for an answer."""

    asked_at: float
    pid: int
    """Of its process of the server."""
    peer: Any
    host: dict[str, Any] = field(compare=False)
    passed: tuple[int, ...]
    passed_before: tuple[int, ...]
    """The statement."""

    @property
    def sent(self) -> int:
        """Bytes of the statement that have left; 0, too, where the system does not tell."""
        return self.passed[1] - self.passed_before[1] if len(self.passed) > 1 and len(self.passed_before) > 1 else 0

    @classmethod
    def of(cls, one: Any) -> _Seen | None:
        """None: it waits for nothing, or has ended."""
        asked_at = getattr(one, "asked_at", None)  # one that was ended has nothing
        if asked_at is None or one.is_closed():
            return None
        return cls(asked_at, one.get_server_pid(), one.peer, one.host, one.passed, one.passed_before)


async def _at_work(pool: asyncpg.Pool[Any], url: str, waiting: list[_Seen]) -> set[int]:
    """Those processes of a server that are at work; all, where the server can't be asked."""
    pids = [one.pid for one in waiting]
    async with borrowed(pool) as connection:
        asked: Any = connection
        if asked.peer == waiting[0].peer:
            return {row[0] for row in await asked.fetch(_AT_WORK, pids)}
    with translated():
        connection = await _Connector(url, "joex", _STATEMENT_WITHIN, {}, pooled=False, host=waiting[0].host)()
        try:
            is_there = connection.peer == waiting[0].peer
            return {row[0] for row in await connection.fetch(_AT_WORK, pids)} if is_there else set(pids)
        finally:
            connection.terminate()


def drop(connection: Connection) -> None:
    """End a connection at once."""
    with suppress(asyncpg.InterfaceError):  # it is gone already
        connection.terminate()


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

    async def give_back(
        self, connection: PoolConnectionProxy[Any], *, may_keep: bool, error: BaseException | None = None
    ) -> None:
        """Give a connection back. ``may_keep``: no error came out of what was done with it; or this ``error`` did."""
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
            drop(connection)


async def _no_reset(_connection: Connection) -> None:
    """Leave the session as it is."""

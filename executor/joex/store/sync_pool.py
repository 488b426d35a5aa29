"""A pool of connections that needs no event loop, through psycopg.

Its connections have the properties of those in `joex.store.connection`. The server ends a statement at its time limit.
A server that has stopped answers nothing, so the client gives up a second later; keepalives and limits of TCP find a
silent link sooner.

The pool has no threads, which some servers of web applications don't run: the thread that needs a connection makes it,
and so gets the error if the database refuses.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg import IsolationLevel
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus

from joex.core.url import may_show_parameters
from joex.errors import ConfigError, DatabaseUnavailable
from joex.store.adapters import PsycopgAdapter, Result
from joex.store.connection import CONNECT_WITHIN, OUR_SOCKET
from joex.store.connector import check_url, wanted_server
from joex.store.errors import reason, translate
from joex.store.session import OLDEST_WITH_SETUP, session_setup

_KEPT_FOR = 30.0
_LATER = 1.0  # seconds after the server's limit
_CONNECTION: dict[str, str | int] = {
    "application_name": "joex client",
    "connect_timeout": int(CONNECT_WITHIN),
    "keepalives_idle": OUR_SOCKET["TCP_KEEPIDLE"],
    "keepalives_interval": OUR_SOCKET["TCP_KEEPINTVL"],
    "keepalives_count": OUR_SOCKET["TCP_KEEPCNT"],
    "tcp_user_timeout": OUR_SOCKET["TCP_USER_TIMEOUT"],
}
# libpq passes on no SQLSTATE for a connection that the server refuses. (These are its messages where it speaks
# English; elsewhere the error says to try again, with the server's reason.)
_WRONG_DATABASE = re.compile(
    r"authentication failed|no password supplied|no pg_hba.conf entry|pg_hba.conf rejects"
    r"|(role|database) \".*\" (does not exist|is not permitted to log in)|permission denied for database"
)


class OwnConnection(psycopg.Connection[Any]):
    """A connection of ours: it commits each statement, and prepares none.

    Attributes:
        is_pooled: it leads through a pooler, which gives each transaction any session of the server.
        within: seconds that a statement may take; None: no limit.
        idle_since: when the pool got it back.
    """

    is_pooled = False
    within: float | None = None
    idle_since = 0.0

    def wait(self, gen: Generator[Any, Any, Any], *args: Any, **kwargs: Any) -> Any:
        """Wait for the server, as psycopg does, but not much longer than the limit.

        Raises:
            psycopg.OperationalError: the server has not answered; the connection is closed.
        """
        if self.within is None:
            return super().wait(gen, *args, **kwargs)
        return super().wait(self._until(time.monotonic() + self.within + _LATER, gen), *args, **kwargs)

    def _until(self, deadline: float, gen: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """Go on with the generator until it is resumed too late, and without data; psycopg resumes it each 0.1 s."""
        try:
            awaited = next(gen)
            while True:
                ready = yield awaited
                if not ready and time.monotonic() > deadline:
                    self.close()
                    raise psycopg.OperationalError(f"the server has not answered within {self.within:g} s")
                awaited = gen.send(ready)
        except StopIteration as end:
            return end.value

    @contextmanager
    def limited(self) -> Iterator[None]:
        """A transaction; through a pooler with what is otherwise set up in the session."""
        with self.transaction():
            if self.is_pooled and self.within is not None:
                self.execute(f"SET LOCAL statement_timeout = {_milliseconds(self.within)}")
            yield

    def is_usable(self) -> bool:
        """Whether the server has not ended it while it was idle; this asks only the own end of the link."""
        try:
            self.pgconn.consume_input()
            self.pgconn.consume_input()  # the server's last message may have come first, its end of the link then
        except psycopg.OperationalError:
            return False
        return True


class OwnAdapter(PsycopgAdapter):
    """A connection of the pool."""

    async def _run(self, sql: str, args: Sequence[Any]) -> Result:
        if not (self._given.is_pooled and self._is_idle()):
            return await super()._run(sql, args)
        with self._given.limited():
            return await super()._run(sql, args)

    async def _block(self) -> Any:
        return self._given.limited()


class Pool:
    """At most ``most`` connections to a database, which threads share.

    A process that was forked has its own connections: it leaves those of its parent alone.

    Args:
        url: the database.
        most: threads wait for one of this many.
        within: seconds that a statement may take; None: no limit.

    Raises:
        ConfigError: the URL is wrong.
    """

    def __init__(self, url: str, *, most: int, within: float | None) -> None:
        check_url(url)
        try:
            conninfo_to_dict(url)
        except psycopg.ProgrammingError as error:
            why = reason(error) if may_show_parameters(url) else "libpq can't read it"
            raise ConfigError(f"database URL: {why}") from None
        self._url = url
        self._most = most
        self._within = within
        # By the id of the process. (The connections of a parent stay referenced: psycopg would warn of them.)
        self._connections: dict[int, _Connections] = {}

    @contextmanager
    def connection(self) -> Iterator[OwnConnection]:
        """A connection for the time of a block.

        Raises:
            DatabaseUnavailable: the database can't be reached now.
            ConfigError: the password or the database's name is wrong.
        """
        own = self._own()
        with own.slots:
            connection = own.idle() or self._connected()
            try:
                yield connection
            finally:
                own.give_back(connection)

    def close(self) -> None:
        """Close the connections, those in use when they come back."""
        if (own := self._connections.pop(os.getpid(), None)) is not None:
            own.close()

    def _own(self) -> _Connections:
        found = self._connections.get(os.getpid())
        # (setdefault: two threads may come here at once.)
        return found or self._connections.setdefault(os.getpid(), _Connections(self._most))

    def _connected(self) -> OwnConnection:
        try:
            connection = OwnConnection.connect(
                make_conninfo(self._url, **_CONNECTION, target_session_attrs=wanted_server(self._url)),
                autocommit=True,
                prepare_threshold=None,
            )
        except psycopg.OperationalError as error:
            kind = ConfigError if _WRONG_DATABASE.search(str(error)) else DatabaseUnavailable
            what = "database URL" if kind is ConfigError else "the database is not available"
            raise kind(f"{what}: {reason(error)}") from error
        try:
            connection.within = self._within
            if connection.info.server_version >= OLDEST_WITH_SETUP * 10_000:
                limit = {} if self._within is None else {"statement_timeout": _milliseconds(self._within)}
                setup = session_setup(connection.info.backend_pid, limit)
                connection.is_pooled = connection.execute(setup.encode()).rowcount == 0
            if connection.is_pooled:
                connection.isolation_level = IsolationLevel.READ_COMMITTED
        except BaseException as error:
            connection.close()
            if isinstance(error, psycopg.Error):
                raise translate(error) from error
            raise
        return connection


class _Connections:
    """The connections of one process."""

    def __init__(self, most: int) -> None:
        self.slots = threading.BoundedSemaphore(most)
        self._idle: deque[OwnConnection] = deque()  # (its methods are atomic)
        self._is_closed = False

    def idle(self) -> OwnConnection | None:
        """The idle connection that was used last, if there is one."""
        with suppress(IndexError):
            while True:
                connection = self._idle.pop()
                if connection.is_usable():
                    return connection
                connection.close()
        return None

    def give_back(self, connection: OwnConnection) -> None:
        """Keep a connection for the next thread, and close those that have been idle for long."""
        if connection.info.transaction_status != TransactionStatus.IDLE:  # it is lost, or was interrupted
            connection.close()
            return
        connection.idle_since = time.monotonic()
        self._idle.append(connection)
        if self._is_closed:
            self._close_idle()
        with suppress(IndexError):
            while self._idle[0].idle_since < time.monotonic() - _KEPT_FOR:
                self._idle.popleft().close()

    def close(self) -> None:
        """Close the idle ones, and from now on those that come back."""
        self._is_closed = True  # first: a connection that comes back meanwhile sees it
        self._close_idle()

    def _close_idle(self) -> None:
        with suppress(IndexError):
            while True:
                self._idle.pop().close()


def _milliseconds(seconds: float) -> str:
    return str(max(1, round(seconds * 1000)))

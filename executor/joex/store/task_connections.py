"""The connections that tasks get, and the search for silent ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import asyncpg

from joex.errors import JoexError
from joex.places import Places, leaves_some
from joex.store.connection import BREAKS, Host, drop
from joex.store.database import SERVICE_WITHIN, borrowed, connect, lent
from joex.store.errors import translated
from joex.store.statement import statement

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from asyncpg.pool import PoolConnectionProxy

MOST_FOR_TASKS = 30
"""Connections of an executor for tasks, which groups share where it has more slots."""
_CHECK_EVERY = 5.0
_HELD = 8_000_000  # bytes of a statement that proxies and kernels on the way hold at most,
_SLOWEST = 500_000  # and bytes a second with which they pass them on

_Group: TypeAlias = tuple[str, str]

_AT_WORK = statement("""
    SELECT pid FROM pg_stat_activity WHERE pid = ANY($1::int[]) AND (state IS NULL OR state NOT LIKE 'idle%')
""")


class TaskConnections:
    """The connections of a pool, for tasks. Errors are asyncpg's.

    A task's statement may take as long as it likes, so no time limit finds a silent link; nor does TCP, if a proxy
    between still answers. The server knows: it is not at work on the statement that the task awaits. (Nor is it while a
    large argument is on its way to it, or the end of a large result on its way back: then bytes pass.)

    Args:
        pool: the connections; a run has one at a time.
        slots: runs at a time.
    """

    def __init__(self, pool: asyncpg.Pool[Any], slots: int) -> None:
        self._pool = pool
        most = pool.get_max_size()
        self._places: Places[_Group] = Places(most, None if slots <= most else leaves_some)
        self._lent: set[PoolConnectionProxy[Any]] = set()

    def of(self, queue: str, group: str) -> _OfGroup:
        """Those for the tasks of a group of a queue: those of one name in two queues may belong to two tenants."""
        return _OfGroup(self, (queue, group))

    @asynccontextmanager
    async def lend(self, group: _Group) -> AsyncIterator[PoolConnectionProxy[Any]]:
        """A connection, for the time of a block."""
        connection: Any = None
        async with self._places.one_of(group):
            try:
                async with lent(self._pool) as connection:
                    self._lent.add(connection)
                    yield connection
            except BREAKS:
                if connection is not None:  # it may be in its reset, for whose answer the pool would wait
                    drop(connection)
                raise
            finally:
                self._lent.discard(connection)

    async def watch(self, pool: asyncpg.Pool[Any], url: str) -> None:
        """End connections with silent links, until cancelled.

        An answer may be on its way, so a link counts as silent only if two checks in a row see the same, and after the
        time that buffers of proxies may need for the bytes of the statement.

        Args:
            pool: asks the server.
            url: asks other servers: of several hosts, the pool may have found another one since.
        """
        silent: dict[PoolConnectionProxy[Any], tuple[_Seen, float]] = {}
        now = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(_CHECK_EVERY)
            before, silent = silent, {}
            waiting, checked_at = self._waiting(), now()
            for peer in {seen.peer for seen in waiting.values()}:
                there = {one: seen for one, seen in waiting.items() if seen.peer == peer}
                with suppress(JoexError):
                    at_work = await _at_work(pool, url, list(there.values()))
                    silent |= {one: (seen, checked_at) for one, seen in there.items() if seen.pid not in at_work}
            for one, (seen, _) in list(silent.items()):
                earlier, since = before.get(one, (None, 0.0))
                if earlier == seen == _Seen.of(one):
                    silent[one] = seen, since
                    if checked_at - since >= _CHECK_EVERY / 2 + min(seen.sent, _HELD) / _SLOWEST:
                        drop(one)

    def _waiting(self) -> dict[PoolConnectionProxy[Any], _Seen]:
        """The connections that have waited for an answer for some time."""
        long_ago = asyncio.get_running_loop().time() - _CHECK_EVERY
        found = {one: _Seen.of(one) for one in self._lent}
        return {one: seen for one, seen in found.items() if seen is not None and seen.asked_at < long_ago}


class _OfGroup:
    """A source of connections for the tasks of a group."""

    __slots__ = ("_all", "_group")

    def __init__(self, connections: TaskConnections, group: _Group) -> None:
        self._all = connections
        self._group = group

    def acquire(self) -> AbstractAsyncContextManager[PoolConnectionProxy[Any]]:
        """See `TaskConnections.lend`."""
        return self._all.lend(self._group)


@dataclass(frozen=True, slots=True)
class _Seen:
    """The state of a connection that waits for an answer, at one check."""

    asked_at: float
    pid: int
    """Of the server's process."""
    peer: Any
    host: Host | None = field(compare=False)
    passed: tuple[int, ...]
    passed_before: tuple[int, ...]
    """`passed`, when the statement was sent."""

    @property
    def sent(self) -> int:
        """Bytes of the statement that have left; 0 also if the system does not report them."""
        return self.passed[1] - self.passed_before[1] if len(self.passed) > 1 and len(self.passed_before) > 1 else 0

    @classmethod
    def of(cls, one: Any) -> _Seen | None:
        """The state now; None: it waits for no answer, or has ended."""
        asked_at = getattr(one, "asked_at", None)  # an ended connection has none
        if asked_at is None or one.is_closed():
            return None
        return cls(asked_at, one.get_server_pid(), one.peer, one.host, one.passed, one.passed_before)


async def _at_work(pool: asyncpg.Pool[Any], url: str, waiting: list[_Seen]) -> set[int]:
    """The server processes that are at work; all of them if the server can't be asked."""
    pids = [one.pid for one in waiting]
    async with borrowed(pool) as connection:
        asked: Any = connection
        if asked.peer == waiting[0].peer:
            return {row[0] for row in await asked.fetch(_AT_WORK, pids)}
    with translated():
        connection = await connect(url, within=SERVICE_WITHIN, host=waiting[0].host)
        try:
            is_there = connection.peer == waiting[0].peer
            return {row[0] for row in await connection.fetch(_AT_WORK, pids)} if is_there else set(pids)
        finally:
            connection.terminate()

"""The connections of tasks, and the check that finds those whose links have gone silent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import asyncpg

from joex.errors import JoexError
from joex.store.connection import Host, drop
from joex.store.database import SERVICE_WITHIN, borrowed, connect, lent
from joex.store.errors import translated
from joex.store.statement import statement

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

_CHECK_EVERY = 5.0
_HELD = 8_000_000  # bytes: proxies and kernels on the way hold at most so much of a statement,
_SLOWEST = 500_000  # and pass on at least so many bytes a second

_AT_WORK = statement("""
    SELECT pid FROM pg_stat_activity WHERE pid = ANY($1::int[]) AND (state IS NULL OR state NOT LIKE 'idle%')
""")


class TaskConnections:
    """The connections of a pool, for tasks. Errors are asyncpg's.

    A task's statement may take as long as it likes, so no time limit can detect that its link has gone silent; nor does
    TCP, if a proxy on the way still answers. But the server knows: it is not at work on the statement that the task
    waits for. (Nor is it while a large argument is on its way to the server, or the end of a large result on its way
    back; but then bytes pass.)
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
        """Close the connections whose links have gone silent, until cancelled.

        The answer may be on its way, so a connection is closed only if two checks in a row see the same, and after the
        time that proxies on the way may need to pass on what the statement has sent.

        Args:
            pool: its connections ask the server.
            url: to connect to the server of a task if the pool has connected to another of several hosts.
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
        """The connections that have waited for some time."""
        long_ago = asyncio.get_running_loop().time() - _CHECK_EVERY
        found = {one: _Seen.of(one) for one in self._lent}
        return {one: seen for one, seen in found.items() if seen is not None and seen.asked_at < long_ago}


@dataclass(frozen=True, slots=True)
class _Seen:
    """A connection that waits for an answer, as a check sees it."""

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
        """Bytes of the statement that have left; also 0 if the system does not report them."""
        return self.passed[1] - self.passed_before[1] if len(self.passed) > 1 and len(self.passed_before) > 1 else 0

    @classmethod
    def of(cls, one: Any) -> _Seen | None:
        """A connection as it is now; None: it waits for nothing, or is closed."""
        asked_at = getattr(one, "asked_at", None)  # a closed one has no attributes
        if asked_at is None or one.is_closed():
            return None
        return cls(asked_at, one.get_server_pid(), one.peer, one.host, one.passed, one.passed_before)


async def _at_work(pool: asyncpg.Pool[Any], url: str, waiting: list[_Seen]) -> set[int]:
    """The processes of a server that are at work; all of them, if the server can't be asked."""
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

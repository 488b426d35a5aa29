"""Databases compared on one server in one run, in turns, so that disturbances of the machine affect all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import asyncpg

from benchmarks.cpu import cpu_seconds, server_process
from benchmarks.support import fresh_database
from joex.store.database import connect

_Of = TypeVar("_Of")
_T = TypeVar("_T")

REGISTER = """
    SELECT id FROM joex_private.register($1, NULL, 'bench', '', 1, '', '0', ARRAY[$2], '{bench.noop}', 100, NULL,
                                         '1 hour', false, 5)
"""
TAKE = "SELECT id, lock_id, grp FROM joex_private.take($1, ARRAY[$2], $3)"
FINISH = """
    SELECT joex_private.finish_many($1, $2, array_fill('success'::text, ARRAY[$3::int]), NULL, NULL, NULL, NULL, NULL)
"""
_SUBMIT = """
    SELECT joex.submit_many(array_fill('bench.noop'::text, ARRAY[cardinality($1::text[])]), grps => $1,
                            queues => array_fill($2::text, ARRAY[cardinality($1::text[])]))
"""
_STOCK = """
    INSERT INTO joex_private.job (queue, grp, task, lane)
    SELECT $1, 'group ' || n % $3, 'bench.noop', 2 FROM generate_series(1, $2::int) n
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """The duration of a statement, in seconds: elapsed time, and CPU time of the server (0 if it can't be measured)."""

    wall: float
    cpu: float


class Contender:
    """A database in the comparison, and the connection whose statements are measured.

    ``pid``: of the server's process of that connection; None if the server is on another machine.
    """

    def __init__(self, url: str, connection: asyncpg.Connection[Any], pid: int | None) -> None:
        self.url = url
        self.connection = connection
        self.pid = pid
        self._executors: dict[str, int] = {}

    async def stock(self, jobs: int, groups: int, queue: str = "default") -> None:
        """Insert waiting jobs, spread evenly over groups, in one statement, which is faster than submission."""
        await self.connection.execute(_STOCK, queue, jobs, groups)

    async def settle(self) -> None:
        """Vacuum and analyze now, so that the server does not do it during the measurement."""
        await self.connection.execute("VACUUM (ANALYZE) joex_private.job")
        await self.connection.execute("CHECKPOINT")

    async def cost(self, statement: str, *args: object) -> tuple[list[asyncpg.Record], Cost]:
        """Run a statement and measure it."""
        cpu, begin = self._cpu(), time.perf_counter()
        rows = await self.connection.fetch(statement, *args)
        wall = time.perf_counter() - begin
        return rows, Cost(wall, self._cpu() - cpu)

    async def submit(self, groups: Sequence[str], queue: str = "default") -> Cost:
        """Measure the submission of a job for each of these groups, in one statement."""
        return (await self.cost(_SUBMIT, groups, queue))[1]

    async def take(self, batch: int, queue: str = "default") -> tuple[list[asyncpg.Record], Cost]:
        """Measure a take."""
        if queue not in self._executors:
            self._executors[queue] = await self.connection.fetchval(REGISTER, f"takes from {queue}", queue)
        rows, cost = await self.cost(TAKE, self._executors[queue], queue, batch)
        if len(rows) != batch:
            raise RuntimeError("the benchmark's queue ran dry")
        return rows, cost

    async def finish(self, rows: Sequence[asyncpg.Record]) -> Cost:
        """Measure the end of runs."""
        return (await self.cost(FINISH, [row["id"] for row in rows], [row["lock_id"] for row in rows], len(rows)))[1]

    async def take_and_replace(self, batch: int, queue: str = "default") -> Cost:
        """Measure a take, then finish its jobs, and insert as many of the same groups."""
        rows, cost = await self.take(batch, queue)
        await self.finish(rows)
        await self.submit([row["grp"] for row in rows], queue)
        return cost

    def _cpu(self) -> float:
        return 0.0 if self.pid is None else cpu_seconds(self.pid)


@asynccontextmanager
async def contenders(server_url: str, number: int) -> AsyncIterator[list[Contender]]:
    """This many new databases to compare, dropped at the end."""
    async with AsyncExitStack() as stack:
        found = []
        for _ in range(number):
            url = await stack.enter_async_context(fresh_database(server_url))
            connection = await connect(url)
            stack.push_async_callback(connection.close)
            found.append(Contender(url, connection, await server_process(connection)))
        yield found


async def by_turns(those: Sequence[_Of], rounds: int, measure: Callable[[_Of], Awaitable[_T]]) -> list[list[_T]]:
    """Measure each once per round; returns the measurements of each.

    Each round begins with another contender, because the caches depend on the contender before.
    """
    found: list[list[_T]] = [[] for _ in those]
    for number in range(rounds):
        for place in range(number, number + len(those)):
            found[place % len(those)].append(await measure(those[place % len(those)]))
    return found


def ratio(these: Sequence[float], to: Sequence[float]) -> float:
    """The median of the ratios within the rounds, so that a slow round favours neither side."""
    return statistics.median(this / other for this, other in zip(these, to, strict=True))

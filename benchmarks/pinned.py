"""Throughput while an idle transaction keeps vacuum from removing dead rows.

A closed loop: one executor process drains no-op jobs of 100 groups, and the benchmark submits as many as it has
finished, so that the backlog stays the same. Dead rows stay: at full length, millions of jobs need several GB of disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

import asyncpg

from benchmarks.report import Figure
from benchmarks.support import executor, fresh_database, load, say, until
from joex.client.client import Client
from joex.store.database import connect

_BACKLOG, _GROUPS, _BATCH = 20_000, 100, 500
_SETTLED = timedelta(seconds=2)  # jobs that ended longer ago than this have been committed
_FINISHED = "SELECT count(*) FROM joex_private.job WHERE key IS NULL AND finished_at > $1 AND finished_at <= $2"


async def measure(server_url: str, *, quick: bool) -> list[Figure]:
    """Jobs finished in the first and in the last of ten minutes (quick: of three), and their ratio."""
    spans = 3 if quick else 10
    async with fresh_database(server_url) as url:
        connection = await connect(url)
        await load(connection, _BACKLOG, _GROUPS)
        async with _pinned(url), Client(url) as client:
            with executor(url, "pinned", "--pool-size", "200"):
                await until(connection, "EXISTS (SELECT FROM joex_private.job WHERE finished_at IS NOT NULL)")
                rates = await _rates(connection, client, spans)
        await connection.close()
    first, last = rates[0], rates[-1]
    return [
        Figure("pinned: first minute", first, "jobs/s"),
        Figure(f"pinned: minute {spans}", last, "jobs/s"),
        Figure(f"pinned: minute {spans} against the first", last / first, "x", "above 0.7", last / first > 0.7),
    ]


@asynccontextmanager
async def _pinned(url: str) -> AsyncIterator[None]:
    """A session that is idle in a transaction, with a snapshot and a transaction id."""
    idle = await connect(url)
    async with idle.transaction(isolation="repeatable_read"):
        await idle.execute("SELECT pg_current_xact_id()")
        yield
    await idle.close()


async def _rates(connection: asyncpg.Connection[Any], client: Client, minutes: int) -> list[float]:
    """Keep the backlog constant; returns the jobs finished per second, in each minute."""
    begin = seen = await connection.fetchval("SELECT clock_timestamp()")
    rates: list[float] = []
    count, number = 0, _BACKLOG
    while len(rates) < minutes:
        await asyncio.sleep(0.2)
        until_now: datetime = await connection.fetchval("SELECT clock_timestamp()") - _SETTLED
        if until_now <= seen:
            continue
        finished = await connection.fetchval(_FINISHED, seen, until_now)
        seen, count = until_now, count + finished
        for start in range(0, finished, _BATCH):
            size = min(_BATCH, finished - start)
            number += size
            await client.submit_many(
                {"task": "bench.noop", "group": f"group {nr % _GROUPS}"} for nr in range(number - size, number)
            )
        if (passed := (seen - begin).total_seconds()) >= 60:
            rates.append(count / passed)
            begin, count = seen, 0
            say(f"pinned: minute {len(rates)} of {minutes}: {rates[-1]:,.0f} jobs/s")
    return rates

"""How long a take lasts, with few and many jobs, in few and many groups."""

from __future__ import annotations

import statistics
import time
from typing import Any

import asyncpg

from benchmarks.report import Figure
from benchmarks.support import fresh_database, load, say
from joex.store.database import connect

_TAKES = 200
_REGISTER = """
    SELECT id FROM joex.register('bench', NULL, 'bench', '', 1, '', '0', '{default}', '{bench.noop}', 100, NULL,
                                 '1 hour', false, 5)
"""


async def measure(server_url: str, *, quick: bool) -> list[Figure]:
    """Take latencies, and the ratio between the largest and the smallest queue."""
    sizes = [(10_000, 100), (100_000 if quick else 1_000_000, 100), (100_000 if quick else 1_000_000, 10_000)]
    medians: dict[tuple[int, int, int], float] = {}
    figures = []
    for jobs, groups in sizes:
        say(f"take: {jobs:,} jobs in {groups:,} groups")
        async with fresh_database(server_url) as url:
            connection = await connect(url)
            await load(connection, jobs, groups)
            for batch in (1, 20):
                medians[jobs, groups, batch] = await _median_take(connection, batch)
                figures.append(
                    Figure(
                        f"take of {batch} at {jobs:,} jobs, {groups:,} groups, median",
                        medians[jobs, groups, batch] * 1000,
                        "ms",
                    )
                )
            await connection.close()
    for batch in (1, 20):
        base = medians[(*sizes[0], batch)]
        ratio = max(medians[(*size, batch)] for size in sizes[1:]) / base
        figures.append(
            Figure(f"take of {batch}: slowest of these against the first", ratio, "x", "below 1.5", ratio < 1.5)
        )
    return figures


async def _median_take(connection: asyncpg.Connection[Any], batch: int) -> float:
    executor = await connection.fetchval(_REGISTER)
    if executor is None:
        executor = await connection.fetchval("SELECT id FROM joex.executor WHERE app_id = 'bench'")
    seconds = []
    for _ in range(_TAKES + 20):
        begin = time.perf_counter()
        rows = await connection.fetch("SELECT * FROM joex.take($1, '{default}', $2)", executor, batch)
        seconds.append(time.perf_counter() - begin)
        if len(rows) != batch:
            raise RuntimeError("the benchmark's queue ran dry")
        await connection.execute(
            "SELECT joex.finish_many($1, $2, array_fill('success'::text, ARRAY[$3::int]), "
            "NULL, NULL, NULL, NULL, NULL)",
            [row["id"] for row in rows],
            [row["lock_id"] for row in rows],
            batch,
        )
    return statistics.median(seconds[20:])  # the first ones make their plans

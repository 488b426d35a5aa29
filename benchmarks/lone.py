"""One job beside a group with very many jobs: how many others executors take before it."""

from __future__ import annotations

import asyncio
import statistics

from benchmarks.report import Figure
from benchmarks.side_by_side import contenders
from benchmarks.support import executor, say, until

_SLOTS = 4
_SECONDS = 0.02  # how long each job of the large group holds its slot

_GIANT = """
    INSERT INTO joex_private.job (grp, task, args, lane)
    SELECT 'giant', 'bench.sleep', jsonb_build_object('seconds', $1::float8), 2 FROM generate_series(1, $2::int)
"""
_TIMES = """
    SELECT submitted_at, scheduled_at, extract(epoch FROM started_at - submitted_at)::float8 * 1000 AS waited
    FROM joex_private.job WHERE id = $1
"""
# Jobs that were scheduled between the submission and the job itself (a few more than after the commit).
_BEFORE = """
    SELECT count(*) FROM (
        SELECT scheduled_at FROM joex_private.job WHERE executor_id IS NOT NULL
        UNION ALL SELECT scheduled_at FROM joex_private.job WHERE finished_at > $1 AND key IS NULL) j
    WHERE scheduled_at > $1 AND scheduled_at < $2
"""
_BUSY = "(SELECT count(*) = $1 FROM joex_private.job WHERE executor_id IS NOT NULL)"
_DONE = "EXISTS (SELECT FROM joex_private.job WHERE id = $1 AND state = 'success')"


async def measure(server_url: str, *, quick: bool) -> list[Figure]:
    """Single jobs, each of a group of its own, while an executor works at the large group."""
    giant, jobs = (100_000, 30) if quick else (1_000_000, 100)
    say(f"lone: {jobs} times one job beside a group with {giant:,}")
    async with contenders(server_url, 1) as [one]:
        await one.connection.execute(_GIANT, _SECONDS, giant)
        await one.settle()
        before: list[int] = []
        waits: list[float] = []
        with executor(one.url, "busy", "--pool-size", str(_SLOTS)):
            for number in range(jobs):
                await until(one.connection, _BUSY, _SLOTS)
                await asyncio.sleep(_SECONDS * number / jobs)  # at any moment of their turns
                job_id = await one.connection.fetchval("SELECT joex.submit('bench.noop', grp => $1)", f"lone {number}")
                await until(one.connection, _DONE, job_id)
                [(submitted, scheduled, waited)] = await one.connection.fetch(_TIMES, job_id)
                before.append(await one.connection.fetchval(_BEFORE, submitted, scheduled))
                waits.append(waited)
    # A round serves each of the two groups once. A take that is under way goes first: at most all slots.
    most = 2 + _SLOTS
    what = f"one job beside a group with {giant:,}"
    return [
        Figure(f"{what}: others served before it, median", statistics.median(before), "jobs"),
        Figure(f"{what}: others served before it, most", max(before), "jobs", f"at most {most}", max(before) <= most),
        Figure(f"{what}: submit to start, median", statistics.median(waits), "ms"),
    ]

"""The cost of jobs that do not run: finished jobs that are kept, future jobs, and stuck jobs that wait for a retry."""

from __future__ import annotations

import asyncio
import statistics

from benchmarks.report import Figure
from benchmarks.side_by_side import Contender, Cost, by_turns, contenders, ratio
from benchmarks.support import executor, say, until
from joex.store.database import connect

_ASIDE = "aside"  # a queue that no executor process serves
_GROUPS = 100
_BATCH = 1000
_NOISE = 1.15  # a smaller ratio comes from other load of the machine, and from indexes that are one level deeper

# Finished within the last five days: retention, which would come after seven, finds nothing.
_FINISHED = """
    INSERT INTO joex_private.job (grp, task, state, attempt, progress, submitted_at, runnable_since, scheduled_at,
                                  started_at, finished_at)
    SELECT 'group ' || n % 1000, 'bench.noop', 'success', 1, 100, at, at, at, at, at
    FROM generate_series($1::int, $2::int - 1) n,
         LATERAL (SELECT now() - interval '5 days' * (1 - n / $3::float8)) t(at)
"""
_PARKED = """
    INSERT INTO joex_private.job (grp, task, state, failures, attempt, due_at, runnable_since)
    SELECT 'group ' || n % 1000, 'bench.noop', $1::joex_private.job_state, $2, $2, at, at
    FROM generate_series(1, $3::int) n, LATERAL (SELECT now() + interval '1 day' + n * interval '1 second') t(at)
"""
_UNATTENDED = """
    (SELECT count(*) = 1 FROM joex_private.asleep a JOIN joex_private.executor e ON e.id = a.executor_id WHERE e.locks)
"""
_DRAINED = """
    NOT EXISTS (SELECT FROM joex_private.job WHERE queue = 'default' AND lane IS NOT NULL)
    AND NOT EXISTS (SELECT FROM joex_private.job WHERE queue = 'default' AND executor_id IS NOT NULL)
"""
_RATE = """
    SELECT count(*) / extract(epoch FROM max(finished_at) - min(scheduled_at))::float8
    FROM joex_private.job WHERE finished_at >= $1 AND key IS NULL AND queue = 'default' AND task = 'bench.noop'
"""


async def measure(server_url: str, *, quick: bool) -> list[Figure]:
    """Submit, take and drain in turns: beside very many such jobs, and in a clean database."""
    finished, parked = (1_000_000, 10_000) if quick else (10_000_000, 100_000)
    async with contenders(server_url, 2) as those:
        await _clutter(those[1], finished, parked)
        for one in those:
            await one.settle()
            await one.stock(10_000, _GROUPS, _ASIDE)  # the statistics know no backlog, as in real life
        figures = await _measure_statements(those, 50 if quick else 150)
        return figures + await _measure_drain(those, *((20_000, 3) if quick else (40_000, 7)))


async def _clutter(one: Contender, finished: int, parked: int) -> None:
    say(f"bystanders: making {finished:,} finished, {parked:,} stuck and {parked:,} future jobs")
    await one.connection.execute("ALTER TABLE joex_private.job SET (autovacuum_enabled = off)")  # vacuumed at the end
    await asyncio.gather(*(_finish(one.url, half * finished // 2, finished // 2, finished) for half in range(2)))
    await one.connection.execute(_PARKED, "stuck", 1, parked)
    await one.connection.execute(_PARKED, "waiting", 0, parked)
    await one.connection.execute("ALTER TABLE joex_private.job RESET (autovacuum_enabled)")


async def _finish(url: str, first: int, jobs: int, of: int) -> None:
    connection = await connect(url, synchronous_commit="off")
    await connection.execute(_FINISHED, first, first + jobs, of)
    await connection.close()


async def _measure_statements(those: list[Contender], rounds: int) -> list[Figure]:
    say(f"bystanders: {rounds} times submit and take, by turns")
    groups = [f"group {i % _GROUPS}" for i in range(_BATCH)]
    submits = await by_turns(those, max(rounds // 5, 10), lambda one: one.submit(groups, _ASIDE))
    takes = await by_turns(those, rounds, lambda one: one.take_and_replace(20, _ASIDE))
    return [
        *_compare(f"submit of {_BATCH:,}, beside bystanders against without", submits),
        *_compare("take of 20, beside bystanders against without", takes),
    ]


def _compare(what: str, found: list[list[Cost]]) -> list[Figure]:
    clean, beside = found
    figures = []
    for name, of in (("by the clock", lambda cost: cost.wall), ("of the CPU", lambda cost: cost.cpu)):
        if base := statistics.median(map(of, clean)):
            value = statistics.median(map(of, beside)) / base
            figures.append(Figure(f"{what}, {name}", value, "x", f"below {_NOISE}", value < _NOISE))
    return figures


async def _measure_drain(those: list[Contender], jobs: int, rounds: int) -> list[Figure]:
    say(f"bystanders: {rounds} times a drain of {jobs:,} no-op jobs, by turns")
    with (
        executor(those[0].url, "clean", "--pool-size", "1000"),
        executor(those[1].url, "beside", "--pool-size", "1000"),
    ):
        for one in those:
            await until(one.connection, _UNATTENDED)
            await one.connection.execute("UPDATE joex_private.periodic_task SET enabled = false")  # maintenance
        clean, beside = await by_turns(those, rounds, lambda one: _drain(one, jobs))
    value = ratio(clean, beside)
    return [
        Figure("drain without bystanders, median", statistics.median(clean), "jobs/s"),
        Figure("drain beside bystanders, median", statistics.median(beside), "jobs/s"),
        Figure("drain without bystanders against beside, by the clock", value, "x", f"below {_NOISE}", value < _NOISE),
    ]


async def _drain(one: Contender, jobs: int) -> float:
    begin = await one.connection.fetchval("SELECT clock_timestamp()")
    await one.stock(jobs, _GROUPS)
    await one.connection.execute("SELECT joex_client.wake_all()")
    await until(one.connection, _DRAINED)
    rate = await one.connection.fetchval(_RATE, begin)
    await until(one.connection, _UNATTENDED)
    return float(rate)

"""One executor process: how fast it drains, how soon it starts a job, and its memory."""

from __future__ import annotations

import asyncio
import statistics
import time
from contextlib import ExitStack

import psutil

from benchmarks.report import Figure, quantile
from benchmarks.support import executor, fresh_database, load, say, until
from joex.client.client import Client
from joex.store.database import connect

_DRAINED = """
    NOT EXISTS (SELECT FROM joex_private.job WHERE lane IS NOT NULL)
    AND NOT EXISTS (SELECT FROM joex_private.job WHERE executor_id IS NOT NULL)
"""
_SLOTS = 4000
_ASLEEP = "EXISTS (TABLE joex_private.asleep)"


async def measure_submit(server_url: str, *, quick: bool) -> list[Figure]:
    """Submission from Python: in batches of 1,000, and one by one in own transactions."""
    jobs = 20_000 if quick else 100_000
    say(f"submit: {jobs:,} jobs in batches, {jobs // 20:,} one by one")
    async with fresh_database(server_url) as url, Client(url) as client:
        begin = time.perf_counter()
        for _ in range(jobs // 1000):
            await client.submit_many({"task": "bench.noop", "group": f"group {i % 100}"} for i in range(1000))
        batches = jobs / (time.perf_counter() - begin)
        begin = time.perf_counter()
        for i in range(jobs // 20):
            await client.submit("bench.noop", group=f"group {i % 100}")
        singly = jobs // 20 / (time.perf_counter() - begin)
    return [
        Figure("submit in batches of 1,000", batches, "jobs/s"),
        Figure("submit one by one, one connection", singly, "jobs/s"),
    ]


async def measure_drain(server_url: str, *, quick: bool) -> list[Figure]:
    """Take, run, finish and keep no-op jobs of 100 groups: with one process, and with four together."""
    jobs = 60_000 if quick else 200_000
    rates: dict[int, list[float]] = {1: [], 4: []}
    for turn in range(3):
        for processes, measured in rates.items():
            say(f"drain: {jobs:,} no-op jobs, {processes} process(es), turn {turn + 1} of 3")
            measured.append(await _drain(server_url, jobs, processes))
    one, four = (statistics.median(measured) for measured in rates.values())
    return [
        Figure(f"drain of no-op jobs, one process, pool size {_SLOTS:,}", one, "jobs/s"),
        Figure("drain of no-op jobs, four processes", four, "jobs/s"),
        Figure("drain by four processes, over that by one", four / one, "x", "at least 1.3", four / one >= 1.3),
    ]


async def _drain(server_url: str, jobs: int, processes: int) -> float:
    """Jobs per second, counted after the last process has started: a start takes about a second of a core."""
    async with fresh_database(server_url) as url:
        connection = await connect(url)
        await load(connection, jobs, 100)
        await connection.execute("SET enable_seqscan = off")  # the query for the end must not slow the drain down
        with ExitStack() as stack:
            for number in range(processes):
                stack.enter_context(executor(url, f"drain-{number}", "--pool-size", str(_SLOTS)))
            await until(connection, _DRAINED)
        rate = await connection.fetchval(
            """
            SELECT count(*) / extract(epoch FROM max(j.finished_at) - max(e.since))::float8
            FROM joex_private.job j, (SELECT max(started_at) AS since FROM joex_private.executor) e
            WHERE j.finished_at > e.since
            """
        )
        await connection.close()
    return float(rate)


async def measure_idle(server_url: str, *, quick: bool) -> list[Figure]:
    """An idle executor with the default pool size: its memory, and how soon it starts a job."""
    submits = 200 if quick else 1000
    say(f"latency: {submits:,} jobs, one at a time, to an idle executor")
    async with fresh_database(server_url) as url:
        connection = await connect(url)
        with executor(url, "idle", "--http-address", "127.0.0.1:0") as process:
            await until(connection, _ASLEEP)
            async with Client(url) as client:
                for _ in range(submits):
                    job_id = await client.submit("bench.noop")
                    await until(
                        connection, "EXISTS (SELECT FROM joex_private.job WHERE id = $1 AND state = 'success')", job_id
                    )
            await until(connection, _ASLEEP)
            memory = psutil.Process(process.pid).memory_info().rss / 2**20
        waits = await connection.fetch(
            "SELECT extract(epoch FROM started_at - submitted_at)::float8 * 1000 AS ms FROM joex_private.job "
            "WHERE task = 'bench.noop'"
        )
        await connection.close()
    milliseconds = [row["ms"] for row in waits]
    return [
        Figure("submit to start, idle executor, median", statistics.median(milliseconds), "ms"),
        Figure("submit to start, idle executor, p99", quantile(milliseconds, 0.99), "ms"),
        Figure("memory of an idle executor, HTTP on", memory, "MiB", "below 80", memory < 80),
    ]


async def pause() -> None:
    """Let the server clean up after the previous measurement."""
    await asyncio.sleep(1)

"""One executor process: how fast it drains, how soon it starts a job, its memory, and how fast its jobs recover."""

from __future__ import annotations

import asyncio
import signal
import statistics
import time

import psutil

from benchmarks.report import Figure, quantile
from benchmarks.support import executor, fresh_database, load, say, until
from joex.client import Client
from joex.store.database import connect

_ASLEEP = "EXISTS (SELECT FROM joex.executor WHERE left_at IS NULL AND asleep_since IS NOT NULL)"


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
    """No-op jobs of 100 groups through one process: taken, run, finished, and kept as history."""
    jobs, pool_size, rates = 30_000 if quick else 100_000, 1000, []
    for turn in range(3):
        say(f"drain: {jobs:,} no-op jobs, turn {turn + 1} of 3")
        async with fresh_database(server_url) as url:
            connection = await connect(url)
            await load(connection, jobs, 100)
            with executor(url, "drain", "--pool-size", str(pool_size)):
                await until(connection, "NOT EXISTS (SELECT FROM joex.job WHERE finished_at IS NULL)")
            seconds = await connection.fetchval(
                "SELECT extract(epoch FROM max(finished_at) - min(scheduled_at))::float8 FROM joex.job"
            )
            rates.append(jobs / seconds)
            await connection.close()
    return [Figure(f"drain of no-op jobs, one process, pool size {pool_size:,}", statistics.median(rates), "jobs/s")]


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
                    await until(connection, "EXISTS (SELECT FROM joex.job WHERE id = $1 AND state = 'success')", job_id)
            await until(connection, _ASLEEP)
            memory = psutil.Process(process.pid).memory_info().rss / 2**20
        waits = await connection.fetch(
            "SELECT extract(epoch FROM started_at - submitted_at)::float8 * 1000 AS ms FROM joex.job "
            "WHERE task = 'bench.noop'"
        )
        await connection.close()
    milliseconds = [row["ms"] for row in waits]
    return [
        Figure("submit to start, idle executor, median", statistics.median(milliseconds), "ms"),
        Figure("submit to start, idle executor, p99", quantile(milliseconds, 0.99), "ms"),
        Figure("memory of an idle executor, HTTP on", memory, "MiB", "below 80", memory < 80),
    ]


async def measure_recovery(server_url: str, *, quick: bool) -> list[Figure]:
    """Kill -9 of an executor: how long until its jobs run on another one, at default settings."""
    turns, seconds = 2 if quick else 5, []
    for turn in range(turns):
        say(f"recovery after kill -9, turn {turn + 1} of {turns}")
        async with fresh_database(server_url) as url:
            connection = await connect(url)
            async with Client(url) as client:
                for _ in range(2):
                    await client.submit("bench.sleep", {"seconds": 60})
            with executor(url, "victim") as victim:
                await until(connection, "(SELECT count(*) = 2 FROM joex.job WHERE state = 'running')")
                with executor(url, "heir"):
                    await until(connection, _ASLEEP)
                    victim.send_signal(signal.SIGKILL)
                    begin = time.perf_counter()
                    await until(
                        connection, "(SELECT count(*) = 2 FROM joex.job WHERE state = 'running' AND app_id = 'heir')"
                    )
                    seconds.append(time.perf_counter() - begin)
            await connection.close()
    worst = max(seconds)
    return [
        Figure("recovery after kill -9, defaults, median", statistics.median(seconds), "s"),
        Figure("recovery after kill -9, defaults, worst", worst, "s", "below 10", worst < 10),
    ]


async def pause() -> None:
    """Let the server finish what the measurement before left behind."""
    await asyncio.sleep(1)

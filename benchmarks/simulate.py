"""The simulator: how fast it is, and how well it predicts a load that real executors have run."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from itertools import groupby
from random import Random
from typing import Any

import asyncpg

from benchmarks.report import Figure
from benchmarks.support import executor, fresh_database, say, until
from examples.demo.fifo import Run, changeovers
from joex.client.client import Client
from joex.store.database import connect
from joex.store.stats import set_group
from joex_operator.api.objects import parse_pool
from joex_operator.simulate.clock import Timing
from joex_operator.simulate.engine import Simulation
from joex_operator.simulate.generate import generate
from joex_operator.simulate.jobs import Jobs
from joex_operator.simulate.workload import parse_workload

_EXECUTORS, _POOL_SIZE = 2, 6
# For a while more than twelve slots can do, so that all tenants wait for seconds. The tenants differ in all respects.
_REAL = {
    "period": "14s",
    "tenants": [
        {"name": "bulk", "bursts": [{"jobs": 160}], "duration": {"mean": "500ms"}},
        {"name": "steady", "rate": "14/s", "duration": {"median": "300ms", "p95": "900ms"}, "high": "20%"},
        {"name": "heavier", "rate": "12/s", "duration": "600ms", "weight": 2},
        {"name": "waves", "bursts": [{"jobs": 60, "every": "5s"}], "duration": {"mean": "400ms"}, "weight": 3},
    ],
}


async def measure(server_url: str, *, quick: bool) -> list[Figure]:
    """Speed and validity."""
    return [*_speed(100_000 if quick else 1_000_000), *await _validity(server_url)]


def _speed(jobs: int) -> list[Figure]:
    """Ten thousand tenants, with a little more work than ten thousand executors can do, for about two hours."""
    executors = jobs // 100
    workload = {
        "period": "90m",
        "tenants": [
            {
                "name": "tenant",
                "count": executors,
                "rate": f"{100 / 1.5:.3f}/h",
                "duration": {"median": "40s", "p95": "160s"},
                "failures": "1%",
            }
        ],
    }
    say(f"simulate: {jobs:,} jobs over {executors:,} executors")
    made = generate(parse_workload(workload), Random(1))
    figures = []
    for name, size in (("fixed", {"replicas": executors}), ("scaled", {"scaling": {"maxReplicas": executors}})):
        begin = time.process_time()
        totals = Simulation(made, [_pool(poolSize=1, **size)], Timing()).run()
        seconds = time.process_time() - begin
        assert totals.ended.total() == len(made)
        met = seconds < 60 if jobs >= 1_000_000 else None
        what = f"simulate {jobs:,} jobs over {executors:,} executors, {name}, one process"
        figures.append(Figure(what, seconds, "s", "below 60", met))
    return figures


def _pool(**spec: Any) -> Any:
    spec = {"app": "bench:app", "database": {"secretName": "db"}, **spec}
    return parse_pool(
        {"apiVersion": "joex.dev/v1alpha1", "kind": "JoexPool", "metadata": {"name": "bench"}, "spec": spec}
    )


async def _validity(server_url: str) -> list[Figure]:
    """The same jobs on real executors, and, from their trace, in the simulator: mean, p50 and p95 of each tenant."""
    jobs = generate(parse_workload(_REAL), Random(1))
    say(f"simulate: {len(jobs)} sleeping jobs on {_EXECUTORS} real executors, and simulated")
    async with fresh_database(server_url) as url:
        connection = await connect(url)
        with ExitStack() as stack:
            for nr in range(_EXECUTORS):
                stack.enter_context(executor(url, f"real-{nr}", "--pool-size", str(_POOL_SIZE)))
            await until(
                connection,
                "count(*) = $1 FROM joex_private.asleep",
                _EXECUTORS,
                patience=60,
            )
            async with Client(url) as client:
                for group in jobs.groups:
                    await set_group(connection, group.name, group.queue, weight=group.weight)
                await _submit(client, jobs)
            await until(connection, "NOT EXISTS (SELECT FROM joex_private.job WHERE finished_at IS NULL)")
        answer = await _simulate(connection, url)
        await connection.close()
    errors = dict(_errors(answer))
    for what, error in errors.items():
        say(f"simulate: {what}: {error:+.1%}")
    worst = max(map(abs, errors.values())) * 100
    return [
        Figure("simulate: wait error against a real run, worst of mean, p50, p95", worst, "%", "below 10", worst < 10)
    ]


async def _submit(client: Client, jobs: Jobs) -> None:
    """Submit each job at its time."""
    begin = time.monotonic()
    for at, some in groupby(jobs, key=lambda job: job.at):
        await asyncio.sleep(max(begin + at - time.monotonic(), 0))
        await client.submit_many(
            {
                "task": "bench.sleep",
                "args": {"seconds": job.seconds},
                "group": jobs.groups[job.group].name,
                "priority": "high" if job.is_high else "low",
            }
            for job in some
        )


async def _simulate(connection: asyncpg.Connection[Any], url: str) -> Mapping[str, Any]:
    """Simulate as a user would, with the commands. The time from job to job is measured on this machine."""
    rows = await connection.fetch(
        "SELECT app_id, extract(epoch FROM scheduled_at)::float8, extract(epoch FROM finished_at)::float8 "
        "FROM joex_private.job"
    )
    overhead = statistics.fmean(changeovers([Run(*row) for row in rows]))
    say(f"simulate: a slot is empty for {overhead * 1000:.1f} ms between two jobs")
    size = ("--executors", str(_EXECUTORS), "--pool-size", str(_POOL_SIZE), "--overhead", f"{overhead * 1000:.3f}ms")
    with tempfile.NamedTemporaryFile("w+", suffix=".jsonl") as trace:
        await _joex("stats", "--trace", stdout=trace, JOEX_DATABASE_URL=url)
        answer: Mapping[str, Any] = json.loads(await _joex("simulate", trace.name, *size, "--json"))
    return answer


async def _joex(*arguments: str, stdout: Any = subprocess.PIPE, **environment: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "joex", *arguments), stdout=stdout, env=os.environ | environment
    )
    printed, _ = await process.communicate()
    assert process.returncode == 0, arguments
    return printed.decode() if printed else ""


def _errors(answer: Mapping[str, Any]) -> list[tuple[str, float]]:
    """The relative error of each number."""
    [policy] = answer["policies"]
    return [
        (f"{group['group']} {name}, {group['was'][name]:.2f} s", group["waits"][name] / group["was"][name] - 1)
        for group in policy["groups"]
        for name in ("mean", "p50", "p95")
    ]

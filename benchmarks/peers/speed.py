"""The races for speed: submission, drain, and how soon an idle worker starts a job."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from benchmarks.peers.drive import RaceError, Worker, ask, stage, worker
from benchmarks.peers.systems import System
from benchmarks.report import quantile
from benchmarks.support import until
from joex.store.database import connect

_GROUPS = 100
_CONNECTIONS = 10
_LATENCY_SLOTS = 20
_PATIENCE = 60.0
_PAUSE = 10
"""Milliseconds between two jobs of the race for latency."""
WORKERS = 4

BATCHES = "submit in batches of 1,000"
SINGLY = "submit one by one, one connection"
PARALLEL = f"submit one by one, {_CONNECTIONS} connections"
DRAIN = "drain, one worker process"
DRAIN_MANY = f"drain, {WORKERS} worker processes"
MEDIAN = "submit to start, idle worker, p50"
LATE = "submit to start, idle worker, p99"
OWN = "its maker's own benchmark"

UNITS = dict.fromkeys((BATCHES, SINGLY, PARALLEL, DRAIN, DRAIN_MANY), "jobs/s") | dict.fromkeys((MEDIAN, LATE), "ms")


@dataclass(frozen=True, slots=True)
class Sizes:
    """The work of a turn. ``drained``: a factor of the number of jobs in a drain, which depends on the system."""

    drained: float
    singly: int
    late: int


async def turn(server_url: str, system: System, sizes: Sizes, *, many: bool) -> dict[str, float]:
    """One turn of a system, in its own database: all figures. Without ``many``: not those of several workers, nor
    of the maker's benchmark."""
    jobs = max(1000, int(system.jobs * sizes.drained))
    found: dict[str, float] = {}
    async with stage(server_url, system) as url:
        found[BATCHES] = await _submit(system, url, jobs, 1000, 1)
        found[DRAIN] = await _drain(system, url, jobs, 1)
        if many:
            await _submit(system, url, jobs, 1000, 1)
            found[DRAIN_MANY] = await _drain(system, url, jobs, WORKERS)
        waits = await _latencies(system, url, sizes.late)
        found[MEDIAN], found[LATE] = quantile(waits, 0.5) * 1000, quantile(waits, 0.99) * 1000
        found[SINGLY] = await _submit(system, url, sizes.singly, 1, 1)
        found[PARALLEL] = await _submit(system, url, 3 * sizes.singly, 1, _CONNECTIONS)
        if many and system.has_own_bench:
            found[OWN] = float((await ask(system, url, "own-bench", "--jobs", str(jobs)))["worked_per_s"])
    return found


async def _submit(system: System, url: str, jobs: int, batch: int, connections: int) -> float:
    given = {"jobs": jobs, "batch": batch, "groups": _GROUPS, "connections": connections}
    flags = [text for name, value in given.items() for text in (f"--{name}", str(value))]
    return jobs / float((await ask(system, url, "submit", *flags))["seconds"])


async def _drain(system: System, url: str, jobs: int, processes: int) -> float:
    """Jobs per second, from the first start of a job until the database has no unfinished job."""
    await settle(url)
    connection = await connect(url)
    try:
        async with AsyncExitStack() as stack:
            workers = [await stack.enter_async_context(worker(system, url, system.slots)) for _ in range(processes)]
            while (done := sum(_done(one) for one in workers)) < jobs:
                await _any_news(workers)
            try:
                await until(connection, f"NOT {system.unfinished}", patience=_PATIENCE)
            except TimeoutError:
                raise RaceError(f"{system.name}: jobs are unfinished {_PATIENCE:.0f} s after all have run") from None
            end = float(await connection.fetchval("SELECT extract(epoch FROM clock_timestamp())"))
            begin = min(line["started"] for one in workers for line in one.lines if "started" in line)
        return float(done / (end - begin))
    finally:
        await connection.close()


async def _any_news(workers: Sequence[Worker]) -> None:
    """Wait until a worker has reported more jobs."""
    known = [len(one.lines) for one in workers]
    waits = [
        asyncio.create_task(one.until(lambda one=one, n=n: len(one.lines) > n, "progress"))  # type: ignore[misc]
        for one, n in zip(workers, known, strict=True)
    ]
    done, others = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for task in others:
        task.cancel()
    for task in done:
        task.result()


def _done(one: Worker) -> int:
    return next((line["done"] for line in reversed(one.lines) if "done" in line), 0)


async def _latencies(system: System, url: str, jobs: int) -> list[float]:
    """Seconds from just before each submission to the start of the task's code.

    This vacuums after the drains first, as autovacuum does within a minute: each system drained another number of jobs.
    """
    await settle(url)
    async with worker(system, url, _LATENCY_SLOTS) as one:
        await ask(system, url, "trickle", "--jobs", "20", "--pause", str(_PAUSE))  # its plans and caches are made
        warm = 1 + 20
        await one.until(lambda: len(one.lines) >= warm, "the first jobs")
        await ask(system, url, "trickle", "--jobs", str(jobs), "--pause", str(_PAUSE))
        await one.until(lambda: len(one.lines) >= warm + jobs, "the last job")
    return [line["late"] for line in one.lines[warm:]]


async def settle(url: str) -> None:
    """Let the server clean up after the submission."""
    connection = await connect(url)
    await connection.execute("VACUUM (ANALYZE)")
    await connection.execute("CHECKPOINT")
    await connection.close()

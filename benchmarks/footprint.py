"""The footprint of executors: memory with all slots busy, and the load of very many idle executors."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import asyncpg
import psutil

from benchmarks.cpu import cpu_seconds, server_process, server_seconds
from benchmarks.report import Figure
from benchmarks.support import executor, fresh_database, say, until
from joex.store.database import connect

_SLOTS = 1000
_AT_ONCE = 10  # executors that start at the same time
_QUIET_AFTER = 35.0  # seconds: their connections of the start are closed after thirty
_MOST_CPU = 10  # percent of a core: all idle executors together, and the server for them

_ASLEEP = "(SELECT count(*) = $1 FROM joex_private.asleep)"
# A server limits its connections, and each executor has several until it has been idle for thirty seconds.
_ROOM = "(SELECT count(*) < current_setting('max_connections')::int * 2 / 3 FROM pg_stat_activity)"
_RUNNING = "(SELECT count(*) = $1 FROM joex_private.job WHERE state = 'running')"
_SLEEPERS = """
    SELECT count(*) FROM joex.submit_many(array_fill('bench.sleep'::text, ARRAY[$1::int]),
        args => array_fill('{"seconds": 600}'::jsonb, ARRAY[$1::int]),
        grps => (SELECT array_agg('group ' || n % 100) FROM generate_series(1, $1::int) n))
"""
_TRANSACTIONS = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"


async def measure(server_url: str, *, quick: bool) -> list[Figure]:
    """Memory with no job and with a thousand, and the load of many idle executors."""
    executors, window = (20, 20.0) if quick else (100, 60.0)
    return [*await _measure_memory(server_url), *await _measure_idle(server_url, executors, window)]


async def _measure_memory(server_url: str) -> list[Figure]:
    say(f"footprint: an executor with {_SLOTS:,} slots, idle and busy")
    async with fresh_database(server_url) as url:
        connection = await connect(url)
        with executor(url, "large", "--pool-size", str(_SLOTS)) as process:
            await until(connection, _ASLEEP, 1)
            idle = _memory(process.pid)
            await connection.execute(_SLEEPERS, _SLOTS)
            await until(connection, _RUNNING, _SLOTS)
            await asyncio.sleep(5)  # with two heartbeats that name all of them
            busy = _memory(process.pid)
        await connection.close()
    what = f"{_SLOTS:,} running jobs"
    return [
        Figure(f"memory of an executor, idle, {_SLOTS:,} slots", idle, "MiB", "below 80", idle < 80),
        Figure(f"memory of an executor with {what}", busy, "MiB", "below 100", busy < 100),
        Figure(f"memory per job of {what}", (busy - idle) * 1024 / _SLOTS, "KiB"),
    ]


def _memory(pid: int) -> float:
    return float(psutil.Process(pid).memory_info().rss / 2**20)


async def _measure_idle(server_url: str, executors: int, window: float) -> list[Figure]:
    """CPU and statements of idle executors of one database."""
    async with fresh_database(server_url) as url:
        connection = await connect(url)
        with ExitStack() as stack:
            pids: list[int] = []
            while len(pids) < executors:
                say(f"footprint: {len(pids)} of {executors} idle executors are there")
                names = [f"idle-{len(pids) + place}" for place in range(_AT_ONCE)]
                pids += [stack.enter_context(executor(url, name)).pid for name in names]
                await until(connection, f"{_ASLEEP} AND {_ROOM}", len(pids))
            await connection.execute("UPDATE joex_private.periodic_task SET enabled = false")  # maintenance
            await asyncio.sleep(_QUIET_AFTER)
            say(f"footprint: measuring for {window:.0f} s")
            figures = await _load(connection, pids, window)
            figures.append(Figure("memory of all together", sum(map(_memory, pids)), "MiB"))
        await connection.close()
    return [replace(figure, what=f"{executors} idle executors: {figure.what}") for figure in figures]


async def _load(connection: asyncpg.Connection[Any], pids: Sequence[int], window: float) -> list[Figure]:
    backend = await server_process(connection)
    begin, cpu = time.perf_counter(), sum(map(cpu_seconds, pids))
    served = 0.0 if backend is None else server_seconds(backend)
    asked = await connection.fetchval(_TRANSACTIONS)
    await asyncio.sleep(window)
    asked = await connection.fetchval(_TRANSACTIONS) - asked
    of_server = 0.0 if backend is None else server_seconds(backend) - served
    seconds = time.perf_counter() - begin
    own = (sum(map(cpu_seconds, pids)) - cpu) / seconds * 100
    figures = [
        Figure("CPU of all together", own, "% of a core", f"below {_MOST_CPU}", own < _MOST_CPU),
        Figure("statements", asked / seconds, "per second"),
    ]
    if backend is not None:
        aim, load = f"below {_MOST_CPU}", of_server / seconds * 100
        figures.append(Figure("CPU of the server", load, "% of a core", aim, load < _MOST_CPU))
    return figures

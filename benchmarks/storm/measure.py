"""A storm: 500 executors on one database for ten minutes, with kill -9, drains and new tenants.

Twenty executors share a process, because five hundred processes of Python need 30 GB. All groups have a backlog of jobs
of the same lengths. Each job leaves a trace in the transaction that ends it, so that the benchmark sees a job that is
lost, or has two effects. Twenty seconds after the last disturbance it kills two processes, drains half of the executors
of two, or stops two with SIGTERM; new processes take the place of the old ones. Meanwhile a new tenant submits its
first job each second.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import asyncpg

from benchmarks.report import Figure
from benchmarks.storm.figures import MOST_CONNECTIONS, SESSIONS_POOLED, STORM, storm_figures
from benchmarks.storm.processes import processes
from benchmarks.storm.run import SLOTS, Seen, Size, Storm
from benchmarks.support import fresh_database
from joex.client.client import Client
from joex.store.embedded import NEWEST
from tests.support.pgbouncer import PgBouncer
from tests.support.postgres import TestServer

_OTHERS = 100  # connections


async def measure(_server_url: str, *, quick: bool, minutes: float | None = None) -> list[Figure]:
    """A storm without and one with PgBouncer, on a server of its own, which allows many connections."""
    size = _size(minutes or (1 if quick else 10), quick=quick)
    most = size.executors * MOST_CONNECTIONS + _OTHERS
    server = await asyncio.to_thread(TestServer, NEWEST, settings=f"fsync = on\nmax_connections = {most}\n")
    try:
        figures = storm_figures(size, await _storm(server, size, None))
        async with AsyncExitStack() as stack:
            try:
                pgbouncer = await stack.enter_async_context(PgBouncer(server, sessions=SESSIONS_POOLED, clients=most))
            except AssertionError as error:
                missing = f"the storm through PgBouncer can't be measured: {error}"
                figures.append(Figure(missing, 0, "", "measured", met=False, table=STORM))
            else:
                figures += storm_figures(size, await _storm(server, size, pgbouncer), "PgBouncer")
    finally:
        server.close()
    return figures


def _size(minutes: float, *, quick: bool) -> Size:
    if quick:
        return Size(processes=10, each=10, together=1, seconds=minutes * 60, longest=8, every=8)
    return Size(processes=25, each=20, together=2, seconds=minutes * 60, longest=60, every=20)


async def _storm(server: TestServer, size: Size, pgbouncer: PgBouncer | None) -> Seen:
    async with fresh_database(server.tcp_url()) as direct:
        url = direct if pgbouncer is None else pgbouncer.url(direct.rpartition("/")[2])
        # (All are opened now, and stay: in the storm the server may be slow to accept another one.)
        async with asyncpg.create_pool(direct, min_size=5, max_size=5, max_inactive_connection_lifetime=0) as watcher:
            with processes(url, size.each, SLOTS) as fleet:
                async with Client(url, patience="60s") as client:
                    storm = Storm(size, fleet, watcher, client, pgbouncer)
                    await storm.run()
    return storm.seen

"""Queries the statistics of the queues at intervals: with ten million jobs a count takes seconds.

How groups share the slots is a separate query, which is as quick with ten million jobs as with few.

Pools with different roles have URLs of their own for one database. One of these reads the statistics for all; the
others only check that they can use the database. When the reader fails, the next URL that works takes over.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from joex.store import stats
from joex.store.database import must_take_writes
from joex.store.name_lookups import OWNER
from joex.trouble import Trouble
from joex_operator.control.database import Database, Databases
from joex_operator.control.trouble_lines import trouble_lines
from joex_operator.metrics.databases import DatabaseMetrics

_Query = Callable[[Database, DatabaseMetrics, bool], Awaitable[None]]
_Readers = dict[str, str]
"""Which URL reads the statistics of a database, by its name."""

_SHARE = 50
"""A query runs for at most a fiftieth of the time: one that takes a second runs every 50 seconds."""


async def refresh_queue_metrics(databases: Databases, metrics: DatabaseMetrics, every: float) -> None:
    """Query all databases in use until cancelled, every ``every`` seconds, or less often if a query is slow."""
    running: dict[str, list[asyncio.Task[None]]] = {}
    queries: list[tuple[_Query, _Readers]] = [(_count, {}), (_share, {})]
    try:
        while True:
            opened = databases.opened()
            for url in running.keys() - opened.keys():
                _cancel(running.pop(url))
                metrics.forget(url)
                for _, readers in queries:
                    _give_up(readers, url)
            for url in opened.keys() - running.keys():  # separate tasks: a database that hangs delays no other
                running[url] = [
                    asyncio.create_task(_query_at_intervals(query, readers, opened[url], metrics, every))
                    for query, readers in queries
                ]
            await asyncio.sleep(1.0)
    finally:
        for tasks in running.values():
            _cancel(tasks)


def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()


def _give_up(readers: _Readers, url: str) -> None:
    """Let another URL read what this one has read."""
    for name in [name for name, reader in readers.items() if reader == url]:
        del readers[name]


async def _query_at_intervals(
    query: _Query, readers: _Readers, database: Database, metrics: DatabaseMetrics, every: float
) -> None:
    OWNER.set(database.owner)
    what = "counting the jobs" if query is _count else "asking how the slots are shared"
    trouble = Trouble("statistics", trouble_lines(f"{what} in {database.name}"))
    while True:
        began, again_in = time.monotonic(), every
        try:
            await query(database, metrics, readers.setdefault(database.name, database.url) == database.url)
        except Exception as error:  # noqa: BLE001 - by a server that speaks no PostgreSQL, asyncpg raises any
            _give_up(readers, database.url)
            trouble.failed(error, every)
        else:
            trouble.over()
            again_in = max(every, (time.monotonic() - began) * _SHARE)
        await asyncio.sleep(again_in)


async def _count(database: Database, metrics: DatabaseMetrics, reads: bool) -> None:  # noqa: FBT001 - see `_Query`
    try:
        async with database.stats_connection() as connection:
            if reads:
                metrics.queues(database.url, await stats.queue_stats(connection))
            await must_take_writes(connection)  # a standby counts well, and no executor can work with it
    except Exception:
        metrics.reachable(database.url, value=False)
        raise
    metrics.reachable(database.url, value=True)


async def _share(database: Database, metrics: DatabaseMetrics, reads: bool) -> None:  # noqa: FBT001 - likewise
    if not reads:
        return
    try:
        async with database.stats_connection() as connection:
            metrics.shares(database.url, await stats.queue_shares(connection))
    except Exception:  # the counts alone say whether the database answers
        metrics.shares(database.url, [])
        raise

"""Queries the statistics of the queues at intervals: with ten million jobs a count takes seconds.

How groups share the slots is a separate query, which is as quick with ten million jobs as with few.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from joex.errors import JoexError
from joex.store import stats
from joex_operator.control.database import Database, Databases
from joex_operator.metrics.databases import DatabaseMetrics, database_name

_log = logging.getLogger("joex.operator")

_SHARE = 50
"""A query runs for at most a fiftieth of the time: one that takes a second runs every 50 seconds."""


async def refresh_queue_metrics(databases: Databases, metrics: DatabaseMetrics, every: float) -> None:
    """Query all databases in use until cancelled, every ``every`` seconds, or less often if a query is slow."""
    running: dict[str, list[asyncio.Task[None]]] = {}
    try:
        while True:
            opened = databases.opened()
            for url in running.keys() - opened.keys():
                _cancel(running.pop(url))
                metrics.forget(database_name(url))
            for url in opened.keys() - running.keys():  # separate tasks: a database that hangs delays no other
                running[url] = [
                    asyncio.create_task(_query_at_intervals(query, opened[url], metrics, every))
                    for query in (_count, _share)
                ]
            await asyncio.sleep(1.0)
    finally:
        for tasks in running.values():
            _cancel(tasks)


def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()


async def _query_at_intervals(
    query: Callable[[Database, DatabaseMetrics], Awaitable[bool]],
    database: Database,
    metrics: DatabaseMetrics,
    every: float,
) -> None:
    while True:
        began = time.monotonic()
        is_answered = await query(database, metrics)
        await asyncio.sleep(max(every, (time.monotonic() - began) * _SHARE) if is_answered else every)


async def _count(database: Database, metrics: DatabaseMetrics) -> bool:
    try:
        async with database.stats_connection() as connection:
            metrics.queues(database.name, await stats.queue_stats(connection))
    except (JoexError, OSError) as error:
        _log.debug("counting the jobs in %s: %s", database.name, error)
        metrics.reachable(database.name, value=False)
        return False
    metrics.reachable(database.name, value=True)
    return True


async def _share(database: Database, metrics: DatabaseMetrics) -> bool:
    try:
        async with database.stats_connection() as connection:
            metrics.shares(database.name, await stats.queue_shares(connection))
    except (JoexError, OSError) as error:  # the counts alone say whether the database answers
        _log.debug("asking how slots are shared in %s: %s", database.name, error)
        metrics.shares(database.name, [])
        return False
    return True

"""Numbers of the queues, asked for now and then: with ten million jobs a count takes its time.

How slots are shared is asked apart from that: it is known as quickly with ten million jobs as with few.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from joex.errors import JoexError
from joex_operator.control.database import Database, Databases
from joex_operator.metrics import Metrics, database_name

_log = logging.getLogger("joex.operator")

_SHARE = 50
"""Of this share of the time one question may be under way: one that takes a second is asked every 50 seconds."""


async def refresh_queue_metrics(databases: Databases, metrics: Metrics, every: float) -> None:
    """Ask all databases in use, until cancelled; ``every`` so many seconds where that is quick."""
    measuring: dict[str, list[asyncio.Task[None]]] = {}
    try:
        while True:
            opened = databases.opened()
            for url in measuring.keys() - opened.keys():
                _cancel(measuring.pop(url))
                metrics.forget_database(database_name(url))
            for url in opened.keys() - measuring.keys():  # each by itself: one that hangs delays no other
                measuring[url] = [
                    asyncio.create_task(_repeat(ask, opened[url], metrics, every)) for ask in (_count, _share)
                ]
            await asyncio.sleep(1.0)
    finally:
        for tasks in measuring.values():
            _cancel(tasks)


def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()


async def _repeat(
    ask: Callable[[Database, Metrics], Awaitable[bool]], database: Database, metrics: Metrics, every: float
) -> None:
    while True:
        began = time.monotonic()
        is_answered = await ask(database, metrics)
        await asyncio.sleep(max(every, (time.monotonic() - began) * _SHARE) if is_answered else every)


async def _count(database: Database, metrics: Metrics) -> bool:
    try:
        metrics.queues(database.name, await database.queue_stats())
    except (JoexError, OSError) as error:
        _log.debug("counting the jobs in %s: %s", database.name, error)
        metrics.database_reachable(database.name, value=False)
        return False
    metrics.database_reachable(database.name, value=True)
    return True


async def _share(database: Database, metrics: Metrics) -> bool:
    try:
        metrics.shares(database.name, await database.queue_shares())
    except (JoexError, OSError) as error:  # whether the database answers is said by the counts alone
        _log.debug("asking how slots are shared in %s: %s", database.name, error)
        metrics.shares(database.name, [])
        return False
    return True

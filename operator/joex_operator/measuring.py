"""Numbers of the queues, asked for now and then: with ten million jobs a count takes its time."""

from __future__ import annotations

import asyncio
import logging
import time

from joex.errors import JoexError
from joex_operator.database import Database, Databases
from joex_operator.metrics import Metrics, database_name

_log = logging.getLogger("joex.operator")

_SHARE = 50
"""Of this share of the time one count may be under way: one that takes a second is made every 50 seconds."""


async def keep_measuring(databases: Databases, metrics: Metrics, every: float) -> None:
    """Count the jobs of all databases in use, until cancelled; ``every`` so many seconds where that is quick."""
    measuring: dict[str, asyncio.Task[None]] = {}
    try:
        while True:
            opened = databases.opened()
            for url in measuring.keys() - opened.keys():
                measuring.pop(url).cancel()
                metrics.forget_database(database_name(url))
            for url in opened.keys() - measuring.keys():  # each by itself: one that hangs delays no other
                measuring[url] = asyncio.create_task(_measure(opened[url], metrics, every))
            await asyncio.sleep(1.0)
    finally:
        for task in measuring.values():
            task.cancel()


async def _measure(database: Database, metrics: Metrics, every: float) -> None:
    while True:
        began, pause = time.monotonic(), every
        try:
            metrics.queues(database.name, await database.queue_stats())
            metrics.database_reachable(database.name, value=True)
            pause = max(every, (time.monotonic() - began) * _SHARE)
        except (JoexError, OSError) as error:
            _log.debug("counting the jobs in %s: %s", database.name, error)
            metrics.database_reachable(database.name, value=False)
        await asyncio.sleep(pause)

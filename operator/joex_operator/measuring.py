"""Numbers of the queues, asked for now and then: with ten million jobs a count takes its time."""

from __future__ import annotations

import asyncio
import logging
import time

from joex.errors import JoexError
from joex_operator.database import Databases
from joex_operator.metrics import Metrics, database_name

_log = logging.getLogger("joex.operator")

_SHARE = 50
"""Of this share of the time one count may be under way: one that takes a second is made every 50 seconds."""


async def keep_measuring(databases: Databases, metrics: Metrics, every: float) -> None:
    """Count the jobs of all databases in use, until cancelled; ``every`` so many seconds where that is quick."""
    due: dict[str, float] = {}
    while True:
        opened = databases.opened()
        for url in due.keys() - opened.keys():
            del due[url]
            metrics.forget_database(database_name(url))
        for url, database in opened.items():
            if time.monotonic() < due.get(url, 0.0):
                continue
            began, name = time.monotonic(), database.name
            try:
                metrics.queues(name, await database.queue_stats())
                metrics.database_reachable(name, value=True)
            except (JoexError, OSError) as error:
                _log.debug("counting the jobs in %s: %s", name, error)
                metrics.database_reachable(name, value=False)
            took = time.monotonic() - began
            due[url] = time.monotonic() + max(every, took * _SHARE)
        await asyncio.sleep(1.0)

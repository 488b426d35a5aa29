"""Joex's own work, done as jobs of the system group like any others: the deletion of old finished jobs."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from joex.config import Settings
from joex.context import Context
from joex.core.duration import parse_duration
from joex.core.events import DatabaseTrouble, Emit
from joex.errors import JoexError
from joex.store import executors, jobs
from joex.store.database import borrowed
from joex.task import App, Task

if TYPE_CHECKING:
    import asyncpg

RETENTION = "joex.retention"
"""The task that deletes what has been kept long enough."""

_EVERY = timedelta(minutes=10)
_BATCH = 1000


async def retention(ctx: Context, keep: float, keep_failed: float) -> dict[str, int]:
    """Delete finished jobs and their logs, in batches; ages in seconds."""
    deleted = {}
    async with ctx.connection() as connection:
        for name, states, age in (
            ("finished", ["success", "cancelled"], keep),
            ("failed", ["failed"], keep_failed),
        ):
            deleted[name] = 0
            while batch := await jobs.delete_finished(connection, states, parse_duration(age), _BATCH):
                deleted[name] += batch
                ctx.progress(0, f"{deleted[name]} {name} jobs deleted")
        await executors.forget_ended(connection, parse_duration(max(keep, keep_failed)))
    return deleted


def add_system_tasks(app: App) -> None:
    """Add the system tasks to an app that does not have them."""
    if RETENTION not in app:
        app.add(Task(retention, RETENTION, retries=0, timeout=timedelta(hours=1)))


class Chores:
    """The service that submits the system group's jobs when they are due. Any number of executors may do so."""

    def __init__(self, pool: asyncpg.Pool[Any], settings: Settings, emit: Emit) -> None:
        self._pool = pool
        self._queue = settings.queues[0]
        self._emit = emit
        self._args = json.dumps(
            {
                "keep": settings.retention.total_seconds(),
                "keep_failed": settings.retention_failed.total_seconds(),
            }
        )

    async def run(self) -> None:
        """Submit what is due, until cancelled."""
        while True:
            await asyncio.sleep(_EVERY.total_seconds() / 10)
            try:
                async with borrowed(self._pool) as connection:
                    await executors.submit_chore(connection, RETENTION, self._args, self._queue, _EVERY)
            except (JoexError, OSError) as error:
                self._emit(DatabaseTrouble("chores", str(error), _EVERY.total_seconds() / 10))

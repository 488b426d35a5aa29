"""Joex's own work: periodic tasks of the system group, whose jobs run as any others do."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from joex.config import Settings
from joex.context import Context
from joex.core.duration import parse_duration
from joex.core.job import SYSTEM_GROUP
from joex.core.periodic import SYSTEM_OWNER, NewPeriodicTask
from joex.store import executors, jobs, periodic, runs
from joex.store.statement import Connection
from joex.task import App, Task

RETENTION = "joex.retention"
"""The task that deletes what has been kept long enough."""

_EVERY_TEN_MINUTES = "*:0/10"
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
        await runs.forget_turns(connection)
    return deleted


def add_system_tasks(app: App) -> None:
    """Add the system tasks to an app that does not have them."""
    if RETENTION not in app:
        app.add(Task(retention, RETENTION, retries=0, timeout=timedelta(hours=1)))


def system_periodic_tasks(settings: Settings) -> list[NewPeriodicTask]:
    """When the system tasks are due, with these settings: those of the executor that started last hold."""
    args: dict[str, Any] = {
        "keep": settings.retention.total_seconds(),
        "keep_failed": settings.retention_failed.total_seconds(),
    }
    return [
        NewPeriodicTask(
            RETENTION,
            RETENTION,
            _EVERY_TEN_MINUTES,
            args=args,
            group=SYSTEM_GROUP,
            queue=settings.queues[0],
            submitter="joex",
        )
    ]


async def register_periodic_tasks(connection: Connection, app: App, settings: Settings) -> list[str]:
    """Bring the rows of the app's periodic tasks, and of the system's, in line; returns the ids that others own."""
    wanted = [(task, SYSTEM_OWNER) for task in system_periodic_tasks(settings)]
    wanted += [(task, app.owner) for task in app.periodic_tasks]
    # Executors that start at the same time wait for each other at the first row, which is the system's.
    async with connection.transaction():
        answers = [(task.id, await periodic.put(connection, task, owner)) for task, owner in wanted]
        await periodic.keep(connection, app.owner, [task.id for task in app.periodic_tasks])
    return [task_id for task_id, answer in answers if answer == "not_yours"]

"""Run the jobs of Django's tasks inside a test."""

from __future__ import annotations

import asyncio
from typing import Any

import joex
from joex.django.database import database_url
from joex.django.runs import add_tasks
from joex.store.jobs import Job
from joex.testing import drain


def run_jobs(app: joex.App | None = None, **options: Any) -> list[Job]:
    """Run the jobs that have been committed, as an executor does, and return them as they are then.

    For a ``TransactionTestCase``: the jobs of a ``TestCase`` are never committed.

    Args:
        app: other tasks than those of Django; by default these.
        **options: as for `joex.testing.drain`: ``early``, ``raise_failures`` and others.

    Raises:
        RunFailed: a run failed, unless ``raise_failures=False``.
    """
    tasks = app
    if tasks is None:
        tasks = joex.App()
        add_tasks(tasks)
    return asyncio.run(_drained(tasks, options))


async def _drained(app: joex.App, options: dict[str, Any]) -> list[Job]:
    async with joex.Client(database_url()) as client:
        return await drain(app, client, **options)

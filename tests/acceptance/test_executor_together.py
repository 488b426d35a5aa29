"""Executors that share the jobs of a queue."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack

import asyncpg
import pytest

import joex
from tests.support.apps import AnyClient
from tests.support.processes_inside import executor_inside
from tests.support.waiting import eventually

_JOBS, _GROUPS, _EXECUTORS, _SLOTS = 20_000, 20, 8, 20

_MOST = _EXECUTORS * _SLOTS // _GROUPS * 3 // 2
"""How many slots a group may hold at any time, as long as each group has work: its share, and half of it.

Each take serves the group that holds the fewest slots, so none exceeds its share by much; the times of the rows of a
batch are in any order. How far a group is ahead in jobs served has no limit: for as long as the server delays an
executor that holds the share of a group, that group waits.
"""


_MOST_HELD = """
    SELECT max(held)
    FROM (
        SELECT at, sum(change) OVER (PARTITION BY grp ORDER BY at, change) AS held
        FROM (
            SELECT grp, scheduled_at AS at, 1 AS change FROM joex_private.job
            UNION ALL SELECT grp, finished_at, -1 FROM joex_private.job
        ) changes
    ) slots
    WHERE at < (SELECT min(last) FROM (SELECT max(scheduled_at) AS last FROM joex_private.job GROUP BY grp) takes)
"""
"""The most slots that a group held until one of them had no job left to take."""


@pytest.mark.heavy
async def test_eight_executors_run_each_of_twenty_thousand_jobs_once_and_give_each_group_its_share(
    client: AnyClient, database_url: str, connection: asyncpg.Connection
) -> None:
    app = joex.App()
    runs: Counter[object] = Counter()

    @app.task("task")
    async def task(ctx: joex.Context) -> None:
        runs[ctx.job_id] += 1

    # Group after group, so that first in, first out would serve one after the other.
    for group in range(_GROUPS):
        await client.submit_many([{"task": "task", "group": f"group {group}"}] * (_JOBS // _GROUPS))
    async with AsyncExitStack() as stack:
        executors = [
            await stack.enter_async_context(executor_inside(app, database_url, pool_size=_SLOTS))
            for _ in range(_EXECUTORS)
        ]

        async def all_finished() -> bool:
            await asyncio.sleep(0.2)  # a count of all of them is slow
            found = await connection.fetchval("SELECT count(*) FROM joex_private.job WHERE finished_at IS NOT NULL")
            return bool(found == _JOBS)

        await eventually(all_finished)
    assert len(executors) == _EXECUTORS
    assert set(runs.values()) == {1}
    ends = await connection.fetch(
        """
        SELECT state::text, attempt, failures, losses, count(*), count(DISTINCT app_id)
        FROM joex_private.job GROUP BY 1, 2, 3, 4
        """
    )
    assert [tuple(row) for row in ends] == [("success", 1, 0, 0, _JOBS, _EXECUTORS)]
    assert await connection.fetchval(_MOST_HELD) <= _MOST

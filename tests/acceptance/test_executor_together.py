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

_TOLERANCE = 2 * _EXECUTORS * _SLOTS // _GROUPS + _SLOTS
"""How many jobs a group may be ahead of another at any time, when each has work all the time.

The rule is by occupancy: the group that runs the fewest jobs is next. All slots together give a group its share of
them, two shares where the ends of some runs are written before those of others; and a batch is numbered by its order of
service, but its rows get their times in any order.
"""


@pytest.mark.heavy
async def test_eight_executors_run_each_of_twenty_thousand_jobs_once_and_the_groups_in_turn(
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
    assert await _furthest_ahead(connection) <= _TOLERANCE


async def _furthest_ahead(connection: asyncpg.Connection) -> int:
    """How many jobs a group was ahead of another at most, as long as both had jobs left."""
    order = await connection.fetch("SELECT grp FROM joex_private.job ORDER BY scheduled_at, seq")
    served = Counter({f"group {n}": 0 for n in range(_GROUPS)})
    most = 0
    for (group,) in order:
        served[group] += 1
        if served[group] == _JOBS // _GROUPS:
            break  # the first group without work: from here on the others have its share
        most = max(most, served[group] - min(served.values()))
    return most

"""Executors raise floors by themselves while vacuum is pinned, and remove them after a vacuum."""

import asyncpg
import pytest

import joex
from joex import Client, NewJob
from tests.support.processes_inside import executor_inside
from tests.support.waiting import eventually

JOBS = 8000


@pytest.mark.heavy
async def test_an_executor_raises_floors_while_vacuum_is_pinned_and_takes_them_away_when_it_is_not(
    client: Client, connection: asyncpg.Connection, pool: asyncpg.Pool, database_url: str
) -> None:
    app = joex.App()

    @app.task("task")
    async def task(ctx: joex.Context) -> None:
        pass

    async def there_are_floors() -> bool:
        return bool(await connection.fetchval("SELECT EXISTS (SELECT FROM joex_private.floor WHERE lane2 > 1)"))

    async def floors_are_off() -> bool:
        await connection.execute("VACUUM joex_private.job")
        return not await connection.fetchval("SELECT joex_private.is_crowded()")

    async def all_have_ended() -> bool:
        return bool(
            await connection.fetchval("SELECT count(*) = $1 FROM joex_private.job WHERE state = 'success'", JOBS + 1)
        )

    async with pool.acquire() as idle, executor_inside(app, database_url, pool_size=20):
        async with idle.transaction(isolation="repeatable_read"):
            await idle.execute("SELECT count(*) FROM joex_private.job")
            await client.submit_many(NewJob("task") for _ in range(JOBS))
            await eventually(there_are_floors)
        await eventually(floors_are_off)
        await client.submit("task")
        await eventually(all_have_ended)
    assert await connection.fetchval(
        "SELECT joex_private.floor_epoch() > 0 AND NOT EXISTS (SELECT FROM joex_private.floor)"
    )

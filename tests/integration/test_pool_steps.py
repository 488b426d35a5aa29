"""An operator writes how it sizes its pools, and why; nothing else depends on that."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import asyncpg
import pytest

from joex.store import pools
from joex_operator.control import step_writer
from tests.support.reconciles import Reconciles, reconciles
from tests.support.waiting import eventually

HOW = "the history of pools in"


@pytest.fixture
async def operators(database_url: str) -> AsyncIterator[Callable[[], Awaitable[Reconciles]]]:
    """Makes operators on the test's database, of a pool that has no executor."""
    async with AsyncExitStack() as stack:
        yield lambda: stack.enter_async_context(reconciles(database_url, replicas=0))


async def reasons(connection: asyncpg.Connection) -> list[str]:
    """The reasons of the pool's steps, the first one first."""
    return [step.why for step in reversed(await pools.list_steps(connection, "prod", "documents", most=100))]


async def test_a_reconcile_writes_a_step_when_the_size_changes_or_its_reason(operators, connection) -> None:
    operator = await operators()
    for spec in ({}, {}, {"suspend": True}, {"suspend": True}, {"replicas": None}):
        await operator.reconcile(**spec)
    assert await reasons(connection) == ["spec.replicas is 0", "spec.suspend is set", "no jobs wait or run"]


async def test_of_a_pool_that_rests_an_operator_asks_the_database_once_an_hour(
    operators, connection, monkeypatch
) -> None:
    operator = await operators()
    await operator.reconcile()
    await connection.execute("DELETE FROM joex_private.pool_step")
    await operator.reconcile()
    assert await reasons(connection) == []
    monkeypatch.setattr(step_writer, "_AGAIN_AFTER", 0.0)
    await operator.reconcile()
    assert await reasons(connection) == ["spec.replicas is 0"]


async def test_an_operator_that_takes_over_goes_on_where_the_other_has_ended(operators, connection) -> None:
    for _ in range(2):
        await (await operators()).reconcile()
    assert await reasons(connection) == ["spec.replicas is 0"]


async def test_a_table_that_is_locked_neither_holds_up_nor_fails_a_reconcile_and_is_told_once(
    operators, connection, another_connection, monkeypatch, caplog
) -> None:
    caplog.set_level(logging.INFO, "joex.operator")
    operator, other = await operators(), await another_connection()
    async with other.transaction():
        await other.execute("LOCK TABLE joex_private.pool_step IN ACCESS EXCLUSIVE MODE")
        await operator.reconcile()
        monkeypatch.setattr(step_writer, "_WITHIN", 1e9)  # the pause keeps it from asking at all
        await operator.reconcile(suspend=True)
        lines = [line for line in caplog.messages if line.startswith(HOW)]
        assert [line.partition(": ")[2] for line in lines] == ["the database has not answered within 0.5 s"]
    # (The session that was given up may get its lock yet. The pause is longer than it waits for one.)
    active = (
        "SELECT count(*) = 0 FROM pg_stat_activity WHERE query ~ 'note_pool_step' AND state = 'active' AND pid <> $1"
    )
    await eventually(lambda: connection.fetchval(active, connection.get_server_pid()))
    operator.reconciler._steps._pauses.clear()
    await operator.reconcile(suspend=True)
    assert (await reasons(connection))[-1] == "spec.suspend is set"
    assert "works again" in next(line for line in reversed(caplog.messages) if line.startswith(HOW))


async def test_a_pool_with_a_target_counts_jobs_with_the_seconds_that_runs_took(operators, bench, connection) -> None:
    for _ in range(10):
        await bench.submit(task="short")
    for job in await bench.take(await bench.executor(), 10):
        await bench.start(job)
        await bench.finish(job)
    await connection.execute("UPDATE joex_private.job SET scheduled_at = finished_at - interval '3 s'")
    for _ in range(50):
        await bench.submit(task="short")
    stays = {"scaleUp": {"selectPolicy": "Disabled"}}
    await (await operators()).reconcile(
        replicas=None, poolSize=1, scaling={"behavior": stays, "target": {"wait": "30s"}}
    )
    [why] = await reasons(connection)
    assert why.startswith("50 jobs wait or run, 5 slots for a wait of 30s, 1 slot each: 5 executors; ")

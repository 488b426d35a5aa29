"""The first takes in a queue that was never served, whose row the first transaction makes."""

import asyncio
from collections import Counter

import asyncpg
import pytest

from joex import Client, NewJob
from joex.core.priority_turns import CountingScheme
from joex.store import executors, jobs, read_floors, runs, stats, worker_runs

pytestmark = pytest.mark.postgres(16, 18)

FOUR_ONE = CountingScheme(4, 1)
WORKERS = 16


async def submit(connection: asyncpg.Connection, *groups: str) -> None:
    await jobs.submit_many(connection, [NewJob("a", group=group, queue="new") for group in groups])


async def accept(connection: asyncpg.Connection, number: int = 1) -> list[str]:
    """The groups of the jobs that a worker accepts."""
    return [job.group for job in await worker_runs.accept(connection, "new", number, "worker", None)]


@pytest.mark.parametrize("groups", [1, WORKERS])
async def test_of_sixteen_workers_that_are_the_first_to_accept_each_has_one_of_sixteen_jobs(
    bench, another_connection, groups
):
    # On a busy machine a worker may wait for more than a second for the others, and then choose beside them.
    await bench.connection.execute("ALTER FUNCTION joex_private.wait_for_ring SET lock_timeout = 0")
    await bench.connection.execute("CREATE TABLE other_than_new ()")  # this database serves no other test
    await submit(bench.connection, *(f"g{nr % groups}" for nr in range(WORKERS)))
    workers = [await another_connection() for _ in range(WORKERS)]
    everyone_has_begun = asyncio.Barrier(WORKERS)

    async def work(worker: asyncpg.Connection) -> list[str]:
        async with worker.transaction():
            await everyone_has_begun.wait()
            found = await accept(worker)
            await everyone_has_begun.wait()  # no transaction commits before all have accepted
        return found

    found = await asyncio.wait_for(asyncio.gather(*map(work, workers)), 60)
    assert [len(one) for one in found] == [1] * WORKERS
    assert (
        await bench.connection.fetchval("SELECT count(DISTINCT lock_id) FROM joex_private.job WHERE state = 'running'")
        == 16
    )
    assert await bench.connection.fetchval("SELECT count(*) FROM joex_private.queue") == 1


async def test_beside_a_first_accept_whose_transaction_stays_open_others_get_jobs_wait_and_register(
    client: Client, bench, another_connection
):
    other = await another_connection()
    await submit(bench.connection, "a", "b", "c")
    async with bench.connection.transaction():
        assert len(await accept(bench.connection)) == 1
        assert await client.keyed.accept("new", wait="30s") is not None
        call = (
            "SELECT id FROM joex_private.register('me', NULL, 'h', '', 1, '', '0', '{new}', '{a}', 4, NULL, '1h', "
            "false, 5)"
        )
        executor = await asyncio.wait_for(other.fetchval(call), 30)
        assert len(await runs.take(other, executor, ["new"], 4, FOUR_ONE)) == 1
        assert await other.fetchval("SELECT count(*) FROM joex_private.queue") == 0


async def test_slots_are_shared_by_occupancy_and_settings_hold_where_no_row_is_seen(bench, another_connection):
    other = await another_connection()
    await submit(bench.connection, *["long"] * 20, *["short"] * 20, *["two"] * 5, *["paused"] * 5)
    await stats.set_group(bench.connection, "two", "new", max_running=2)
    await stats.set_group(bench.connection, "paused", "new", paused=True)
    async with bench.connection.transaction():
        await bench.connection.execute("SELECT joex_private.serve_queue('new')")
        taken = [group for _ in range(10) for group in await accept(other)]
        assert Counter(taken) == {"long": 4, "short": 4, "two": 2}
        assert len(await accept(other, 10)) == 10
        assert Counter(
            row["grp"] for row in await other.fetch("SELECT grp FROM joex_private.job WHERE state = 'running'")
        ) == {
            "long": 9,
            "short": 9,
            "two": 2,
        }


async def test_accepts_from_queues_without_a_job_leave_nothing_behind(bench):
    """However many names a worker tries. The first accept that finds a job makes the queue, as does an executor."""
    for nr in range(300):
        assert await worker_runs.accept(bench.connection, f"nothing {nr}", 1, "worker", None) == []
    assert await _made(bench.connection) == (0, 0)
    await submit(bench.connection, "a")
    assert await accept(bench.connection) == ["a"]
    assert await _made(bench.connection) == (1, 2)
    await bench.executor(queues=["served"])
    assert await _made(bench.connection) == (2, 4)


async def test_a_due_job_alone_makes_the_queue(bench):
    await submit(bench.connection, "a")
    await bench.connection.execute(
        "UPDATE joex_private.job SET lane = NULL, due_at = clock_timestamp() WHERE queue = 'new'"
    )
    assert await accept(bench.connection) == ["a"]
    assert await _made(bench.connection) == (1, 2)


async def _made(connection: asyncpg.Connection) -> tuple[int, int]:
    """How many queues there are, and how many sequences of queues."""
    queues = await connection.fetchval("SELECT count(*) FROM joex_private.queue")
    sequences = "SELECT count(*) FROM pg_class WHERE relname LIKE 'ring_cursor%' OR relname LIKE 'drawn%'"
    return queues, await connection.fetchval(sequences)


async def test_whoever_takes_next_makes_the_row_where_the_first_transaction_is_rolled_back(bench, another_connection):
    other = await another_connection()
    await submit(bench.connection, "a", "b")
    transaction = bench.connection.transaction()
    await transaction.start()
    await accept(bench.connection)
    await transaction.rollback()
    assert await other.fetchval("SELECT count(*) FROM joex_private.queue") == 0
    executor = await bench.executor(queues=["another"])
    assert len(await runs.take(other, executor, ["new"], 1, FOUR_ONE)) == 1
    assert await other.fetchval("SELECT count(*) FROM joex_private.queue WHERE name = 'new'") == 1


async def test_an_accept_under_a_snapshot_older_than_the_queue_gets_a_job(bench, another_connection):
    old = await another_connection()
    await submit(bench.connection, "a", "b")
    async with old.transaction(isolation="repeatable_read"):
        await old.execute("SELECT count(*) FROM joex_private.job")
        await bench.connection.execute("SELECT joex_private.serve_queue('new')")
        assert len(await accept(old)) == 1
    assert await bench.connection.fetch("SELECT name, cursor::text FROM joex_private.queue") == [
        ("new", "joex_private.ring_cursor_1")
    ]
    assert await bench.connection.fetchval("SELECT count(*) FROM pg_class WHERE relname LIKE 'ring_cursor%'") == 1


async def test_what_an_executor_holds_of_a_queue_without_a_row_moves_on_though_floors_are_on(bench, another_connection):
    other = await another_connection()
    await submit(bench.connection, "a")
    executor = await bench.executor()
    transaction = other.transaction()
    await transaction.start()
    await other.execute("SELECT joex_private.serve_queue('new')")
    assert len(await runs.take(bench.connection, executor, ["new"], 1, FOUR_ONE)) == 1
    await transaction.rollback()
    await bench.connection.execute("SELECT joex_private.set_floors(true)")
    assert await read_floors.draw(bench.connection) is not None
    assert await executors.leave(bench.connection, executor) == 1

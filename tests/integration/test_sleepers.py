"""The list of sleeping executors: see `fall_asleep` in sql/60_executors.sql."""

from collections.abc import AsyncIterator

import pytest

from joex.store import executors
from tests.integration.conftest import Bench

_READ = """
    SELECT (SELECT sum(pg_stat_get_xact_tuples_returned(r) + pg_stat_get_xact_blocks_fetched(r))::bigint
            FROM (SELECT unnest(tables) UNION ALL SELECT indexrelid FROM pg_index WHERE indrelid = ANY (tables)) x(r))
    FROM (SELECT '{joex_private.executor, joex_private.sleeper}'::regclass[] AS tables) t
"""
_SLEEP = """
    DO $$ BEGIN
        FOR nr IN 1..3000 LOOP
            PERFORM joex_private.fall_asleep(id) FROM joex_private.executor WHERE app_id = 'short';
            COMMIT;
            PERFORM joex_private.get_up(id) FROM joex_private.executor WHERE app_id = 'short';
            COMMIT;
        END LOOP;
    END $$
"""


@pytest.fixture
async def old_snapshot(another_connection) -> AsyncIterator[None]:
    """A snapshot that keeps vacuum from clearing anything that dies from now on."""
    connection = await another_connection()
    async with connection.transaction(isolation="repeatable_read"):
        await connection.fetchval("SELECT count(*) FROM joex_private.executor")
        yield


async def asleep(bench: Bench) -> list[int]:
    rows = await bench.connection.fetch("SELECT executor_id FROM joex_private.asleep ORDER BY nr DESC")
    return [row["executor_id"] for row in rows]


@pytest.mark.usefixtures("old_snapshot")
async def test_thousands_of_sleeps_slow_down_nothing_under_an_old_snapshot(bench):
    """Each sleep leaves a dead entry. Those below the mark cost nothing."""
    executor = await bench.executor("short")
    await bench.connection.execute(_SLEEP)
    for call in (
        "SELECT joex_private.is_awaited('default')",
        "SELECT joex_private.wake('default', 1)",
        f"SELECT joex_private.take({executor}, '{{default}}', 1)",
        f"SELECT joex_private.fall_asleep({executor})",
        f"SELECT joex_private.get_up({executor})",
        "SELECT joex_private.another_can_take('default')",
    ):
        async with bench.connection.transaction():
            before = await bench.connection.fetchval(_READ)
            await bench.connection.execute(call)
            assert await bench.connection.fetchval(_READ) - before < 1000, call


@pytest.mark.usefixtures("old_snapshot")
async def test_those_that_the_mark_leaves_behind_are_told_that_they_are_on_the_list_no_longer(bench, heard):
    await bench.executor("short")
    long = [await bench.executor(f"long {nr}") for nr in range(3)]
    for executor in long:
        await executors.fall_asleep(bench.connection, executor)
    await bench.connection.execute(_SLEEP)
    assert await asleep(bench) == []
    (told,) = await heard()
    assert (told["queue"], sorted(told["executors"])) == ("default", sorted(long))
    assert not (await executors.sleep_state(bench.connection, long[0], ["default"])).is_asleep
    await executors.fall_asleep(bench.connection, long[0])
    assert (await executors.sleep_state(bench.connection, long[0], ["default"])).is_asleep
    assert await asleep(bench) == [long[0]]


@pytest.mark.parametrize("is_analyzed", [True, False])
async def test_of_hundreds_that_sleep_one_is_read_whatever_the_planner_knows_of_them(bench, is_analyzed):
    await bench.connection.execute(
        """
        INSERT INTO joex_private.executor (id, app_id, host, pid, version, queues, tasks, pool_size, lease, locks,
                                           left_at, ending)
        SELECT n, 'app ' || n, 'h', 1, '0', '{default}', '{a}', 4, '1 hour', false,
               CASE WHEN n > 300 THEN now() END, CASE WHEN n > 300 THEN 'left' END FROM generate_series(1, 5000) n
        """
    )
    await bench.connection.execute("SELECT joex_private.fall_asleep(n) FROM generate_series(1, 300) n")
    await bench.connection.execute("INSERT INTO joex_private.lease SELECT n, now(), 1 FROM generate_series(1, 300) n")
    if is_analyzed:
        await bench.connection.execute("VACUUM ANALYZE joex_private.executor, joex_private.sleeper, joex_private.lease")
    for call in (
        "SELECT joex_private.is_awaited('default')",
        "SELECT joex_private.wake('default', 1)",
        "SELECT joex_private.another_can_take('default')",
    ):
        async with bench.connection.transaction():
            before = await bench.connection.fetchval(_READ)
            await bench.connection.execute(call)
            assert await bench.connection.fetchval(_READ) - before < 40, call


async def test_the_mark_stays_where_vacuum_clears_the_table(bench):
    """Otherwise all sleepers would look for work each time."""
    await bench.executor("short")
    for _ in range(10):
        await bench.connection.execute("VACUUM (INDEX_CLEANUP ON) joex_private.sleeper")
        await bench.connection.execute(_SLEEP.replace("3000", "49"))
    assert await bench.connection.fetchval("SELECT joex_private.sleepers_from()") == 0


@pytest.mark.usefixtures("old_snapshot")
async def test_of_two_that_would_move_the_mark_one_does(bench, another_connection):
    """The other one might set it back. And one does, whatever the planner knows: PostgreSQL 18 may find sleepers by an
    index that begins with another column, and sort them.
    """
    await bench.executor("short")
    await bench.connection.execute("""
        INSERT INTO joex_private.sleeper
        SELECT id, -nr, '{default}' FROM joex_private.executor, generate_series(1, 300) nr;
        ANALYZE joex_private.sleeper;
        DELETE FROM joex_private.sleeper;
    """)
    mover = await another_connection()
    async with mover.transaction():
        assert await mover.fetchval("SELECT joex_private.try_mutex('sleepers')")
        await bench.connection.execute(_SLEEP)
        assert await bench.connection.fetchval("SELECT joex_private.sleepers_from()") == 0
    await bench.connection.execute("ANALYZE joex_private.sleeper")  # as autovacuum may do
    await bench.connection.execute(_SLEEP)
    assert await bench.connection.fetchval("SELECT joex_private.sleepers_from()") > 3000


async def test_an_executor_falls_asleep_though_a_restored_mark_is_above_the_numbers(bench):
    executor = await bench.executor()
    await bench.connection.execute(
        "SELECT setval('joex_private.sleepers_from', last_value + 10) FROM joex_private.sleeper_nr"
    )
    await executors.fall_asleep(bench.connection, executor)
    assert await asleep(bench) == [executor]


@pytest.mark.parametrize("is_end_first", [True, False], ids=["ends first", "falls asleep first"])
async def test_an_executor_that_ends_while_it_falls_asleep_is_not_asleep(
    bench, another_connection, waiting_for_a_lock, is_end_first
):
    executor = await bench.executor()
    one, other = bench.connection, await another_connection()
    end = "SELECT joex_private.end_executor($1, 'dead')", executor
    sleep = "SELECT joex_private.fall_asleep($1)", executor
    first, second = (end, sleep) if is_end_first else (sleep, end)
    transaction = one.transaction()
    await transaction.start()
    await one.execute(*first)
    observer = await another_connection()
    async with waiting_for_a_lock(observer, other.execute(*second)):
        await transaction.commit()
    assert not await bench.connection.fetch("TABLE joex_private.sleeper")


async def test_an_executor_that_waits_to_fall_asleep_is_on_the_list_as_before(
    bench, another_connection, waiting_for_a_lock
):
    """Whoever changes its row may take long. And who ends it locks its row first, and then its place on the list."""
    executor = await bench.executor()
    await executors.fall_asleep(bench.connection, executor)
    one, other = await another_connection(), await another_connection()
    transaction = one.transaction()
    await transaction.start()
    await one.execute("SELECT FROM joex_private.executor WHERE id = $1 FOR UPDATE", executor)
    async with waiting_for_a_lock(bench.connection, executors.fall_asleep(other, executor)):
        locked = "SELECT executor_id FROM joex_private.sleeper FOR UPDATE NOWAIT"
        assert await bench.connection.fetchval(locked) == executor
        await transaction.commit()
    assert await asleep(bench) == [executor]

"""A role that may connect, and nothing else, holds every advisory lock that it can name: nothing stops for it."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from typing import Any

import asyncpg
import pytest

from joex.core.priority_turns import CountingScheme
from joex.store import executors, pools, runs
from joex.store.database import connect
from joex.store.migrate import migrate
from tests.support.postgres import TestServer
from tests.support.waiting import eventually

pytestmark = pytest.mark.postgres(16, 18)

FOUR_ONE = CountingScheme(4, 1)

# All first keys that Joex has ever used, with each second one that fits: pg_locks shows both to everybody.
HOLD = """
    SELECT pg_advisory_lock(lock, key) FROM generate_series(1785685000, 1785685009) lock,
        unnest($1::integer[] || ARRAY(SELECT hashtext(name) FROM unnest($2::text[]) name)) key
"""


@pytest.fixture
async def hold(postgres, database_url, connection) -> AsyncIterator[Any]:
    """Hold all locks whose second key is 0, one of these, or the hash of one of these names."""
    await connection.execute("CREATE ROLE joex_test_bystander LOGIN")
    async with AsyncExitStack() as stack:
        session = await asyncpg.connect(database_url, user="joex_test_bystander")
        stack.push_async_callback(session.close)

        async def hold_them(*keys: int | str) -> asyncpg.Connection:
            numbers = [0, *(key for key in keys if isinstance(key, int))]
            await session.execute(HOLD, numbers, [key for key in keys if isinstance(key, str)])
            await connection.execute("SET lock_timeout = '5s'")  # (to fail, and not to hang)
            return session

        yield hold_them
    await connection.execute("DROP ROLE joex_test_bystander")


async def test_a_bystander_stops_no_take_no_return_of_jobs_and_no_drain(bench, hold):
    executor = await bench.executor("p/a-0", pod_uid="pod")
    lost, held = await bench.submit(), await bench.submit()
    await hold(executor)
    assert {job.id for job in await bench.take(executor, 4)} == {lost, held}
    assert await executors.give_back_unknown(bench.connection, executor, 1, []) == 2
    assert len(await bench.take(executor, 1, give_back_nr=1)) == 1
    assert await pools.retire(bench.connection, "p/a-0", only_if_idle=True) == "busy"
    assert await executors.drain(bench.connection, "p/a-0") == ["p/a-0"]
    assert await bench.take(executor) == []
    await bench.silence(executor, leases=5.1)
    assert await bench.rescue() == [(executor, "p/a-0", 1)]


async def test_a_bystander_stops_no_periodic_task(connection, hold):
    await hold()
    await connection.execute("SELECT joex.put_periodic_task('tick', 'greet', '*:*:*')")
    fired = """
        SELECT outcome FROM joex_private.periodic_task t, joex_private.fire_periodic(
            'me', ARRAY[t.id], ARRAY[t.queue], ARRAY[t.grp], ARRAY[t.revision], ARRAY[t.nextrun], ARRAY[now()],
            ARRAY[now() + interval '1 h'], ARRAY[NULL])
        WHERE t.id = 'tick'
    """
    assert await connection.fetchval(fired) == "submitted"
    assert await connection.fetchval("SELECT count(*) FROM joex.jobs") == 1


async def test_a_bystander_stops_no_group_with_a_limit_and_the_limit_holds(bench, another_connection, hold):
    await bench.connection.execute("SELECT joex.set_group('limited', max_running => 2)")
    for _ in range(4):
        await bench.submit("limited")
    executor, other = await bench.executor(), await another_connection()
    ring = await bench.connection.fetchval("SELECT joex_private.ring('limited')")
    await hold(f"default{ring}")
    async with other.transaction():
        assert len(await runs.take(other, executor, ["default"], 1, FOUR_ONE)) == 1
        assert await bench.take(executor, 4) == []  # the first take has not committed
    assert len(await bench.take(executor, 4)) == 1
    assert await bench.take(executor, 4) == []


async def test_a_take_that_finds_all_groups_at_their_limits_writes_nothing(bench):
    await bench.connection.execute("SELECT joex.set_group('limited', max_running => 1)")
    for _ in range(2):
        await bench.submit("limited")
    executor = await bench.executor()
    assert len(await bench.take(executor, 4)) == 1
    async with bench.connection.transaction():
        assert await bench.take(executor, 4) == []
        assert await bench.connection.fetchval("SELECT pg_current_xact_id_if_assigned()") is None


async def test_a_bystander_makes_no_dead_executor_look_alive(bench, hold):
    executor = await bench.executor("app", locks=True)
    job = await bench.submit()
    assert len(await bench.take(executor)) == 1
    await bench.silence(executor, leases=1.1)
    bystander = await hold(executor)
    assert await bench.rescue() == [(executor, "app", 1)]
    assert await bench.state(job) == "waiting"
    another = await bench.executor("app", locks=True)
    await bench.silence(another, leases=1.1)
    await bystander.execute(HOLD, [another], [])
    assert (await bench.register("app")).id is not None


async def test_a_session_of_a_member_of_a_role_that_runs_executors_shows_that_one_lives(
    bench, connection, database_url, hold
):
    """A login may get the rights of an executor by SET ROLE alone."""
    await connection.execute("""
        CREATE ROLE joex_test_fleet; SELECT joex_private.set_scopes('joex_test_fleet', '{executor}');
        CREATE ROLE joex_test_login LOGIN NOINHERIT; GRANT joex_test_fleet TO joex_test_login
    """)
    executor = await bench.executor("app", locks=True)
    await bench.silence(executor, leases=1.1)
    session = await asyncpg.connect(database_url, user="joex_test_login")
    try:
        assert await executors.hold_lock(session, executor)
        assert await bench.rescue() == []
    finally:
        await session.close()
    assert await bench.rescue() == [(executor, "app", 0)]
    await connection.execute("DROP OWNED BY joex_test_fleet; DROP ROLE joex_test_fleet, joex_test_login")


async def test_a_bystander_stops_no_start_and_no_removal_of_an_executor_and_no_new_queue(bench, hold):
    await hold("p/a-0", "new")
    assert await bench.executor("p/a-0", queues=["new"])
    assert await bench.connection.fetchval("SELECT cursor IS NOT NULL FROM joex_private.queue WHERE name = 'new'")
    assert await pools.retire(bench.connection, "p/a-0", only_if_idle=True) == "draining"
    assert (await bench.register("p/a-0")).retired


async def test_a_registration_and_a_removal_exclude_each_other_though_the_app_id_was_retired_before(
    bench, another_connection, waiting_for_a_lock
):
    """The one who forgets it, and the registration after that, wait for a removal that is under way."""
    await pools.retire(bench.connection, "p/a-0", only_if_idle=True)
    [[known]] = await pools.replicas(bench.connection, ["p/"])
    assert known.retired_at is not None
    remover, watcher = await another_connection(), await another_connection()
    async with remover.transaction():
        await pools.retire(remover, "p/a-0", only_if_idle=True)
        forgetting = pools.forget_retired(bench.connection, "p/a-0", known.retired_at)
        async with waiting_for_a_lock(watcher, forgetting) as forgotten:
            assert not forgotten.done()
            await remover.execute("COMMIT; BEGIN")
    assert await forgotten
    assert not (await bench.register("p/a-0")).retired


async def test_a_bystander_stops_no_change_of_floors(connection, hold):
    await hold()
    async with connection.transaction():
        assert await connection.fetchval("SELECT joex_private.try_mutex('floors')")


async def test_a_bystander_stops_no_migration(empty_database_url):
    connection = await connect(empty_database_url)
    await connection.execute("CREATE ROLE joex_test_bystander LOGIN; SET lock_timeout = '5s'")
    session = await asyncpg.connect(empty_database_url, user="joex_test_bystander")
    try:
        await session.execute(HOLD, [0], [])
        assert await migrate(connection) != []
        assert await migrate(connection) == []
    finally:
        await session.close()
        await connection.execute("DROP ROLE joex_test_bystander")
        await connection.close()


@pytest.mark.postgres(18)  # (the first version in which the queue of notifications can be a small one is 17)
async def test_a_bystander_that_fills_the_queue_of_notifications_stops_no_submission(pg_version):
    server = TestServer(pg_version, settings="max_notify_queue_pages = 64\n")
    async with AsyncExitStack() as stack:
        stack.callback(server.close)

        async def session(role: str) -> asyncpg.Connection:
            made = await asyncpg.connect(server.url().replace("postgres@", f"{role}@"))
            stack.push_async_callback(made.close)
            return made

        ours = await session("postgres")
        await migrate(ours)
        await ours.execute("CREATE ROLE bystander LOGIN")
        await pools.watch(ours, "operator", ["default"], 3600)  # each submission notifies
        deaf, loud = await session("bystander"), await session("bystander")
        await deaf.execute("LISTEN anything")
        await deaf.execute("BEGIN")  # so the server keeps all that comes for it
        await deaf.execute("SELECT 1")
        with suppress(asyncpg.ProgramLimitExceededError):
            while True:
                await loud.execute("SELECT pg_notify('anything', repeat('x', 7990))")
        assert await ours.fetchval("SELECT joex.submit('greet')")
        heard: list[str] = []
        await ours.add_listener("joex_operator", lambda *args: heard.append(args[-1]))
        await deaf.execute("ROLLBACK")
        await eventually(lambda: _notifies(ours, heard))


async def _notifies(ours: asyncpg.Connection, heard: list[str]) -> bool:
    await ours.execute("SELECT joex.submit('greet')")
    return bool(heard)

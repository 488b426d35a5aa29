"""Roles of the database that own no object of Joex, and publications of all its tables."""

from typing import Any

import asyncpg
import pytest

from joex import NewJob
from joex.core.priority_turns import CountingScheme
from joex.store import executors, jobs, read_floors, runs, stats, worker_runs

pytestmark = pytest.mark.postgres(16, 18)

FOUR_ONE = CountingScheme(4, 1)
ROLES = ("joex_test_one", "joex_test_two")


@pytest.fixture
async def login(login: Any, connection: asyncpg.Connection) -> Any:
    """As `login`; the roles may use the schema, its tables and its sequences, and no more."""
    for role in ROLES:
        await connection.execute(f"SELECT joex_private.set_scopes('{role}', '{{executor}}')")
    return login


async def test_each_of_two_roles_takes_from_a_queue_that_the_other_was_the_first_to_serve(login, bench):
    sessions = [await login(role) for role in ROLES]
    for nr, (first, second) in enumerate((sessions, sessions[::-1])):
        queue = f"queue {nr}"
        for group in ("a", "b", "c"):
            await bench.submit(group, queue=queue)
        assert len(await worker_runs.accept(first, queue, 1, "worker", None)) == 1
        call = (
            "SELECT id FROM joex_private.register($1, NULL, 'h', '', 1, '', '0', ARRAY[$1], '{a}', 4, NULL, '1h', "
            "false, 5)"
        )
        executor = await second.fetchval(call, queue)
        [job] = await runs.take(second, executor, [queue], 1, FOUR_ONE)
        assert await runs.finish_many(second, [runs.EndedRun(job.id, job.lock_id, "success")]) == []
        assert len(await runs.take(second, executor, [queue], 4, FOUR_ONE)) == 1
    owners = "SELECT DISTINCT relowner::regrole::text FROM pg_class WHERE relname LIKE 'ring_cursor%'"
    assert [row[0] for row in await bench.connection.fetch(owners)] == ["postgres"]


async def test_a_role_that_makes_a_queue_by_its_take_uses_the_cursor_at_once(login, bench, connection):
    one = await login(ROLES[0])
    executor = await bench.executor()
    await bench.submit(queue="new")
    assert len(await runs.take(one, executor, ["new"], 1, FOUR_ONE)) == 1
    moved = "SELECT pg_sequence_last_value(cursor) FROM joex_private.queue WHERE name = 'new'"
    assert await connection.fetchval(moved) is not None
    assert (await stats.cursors(one)).keys() == {"new"}


async def test_a_role_takes_due_jobs_of_a_queue_that_no_take_could_grant_it(login, bench, connection):
    """It lists the cursors, too: without the right, it takes a queue for one from which nothing was taken."""
    one = await login(ROLES[0])
    executor = await bench.executor()
    await jobs.submit_many(connection, [NewJob("a")] * 501)  # more than a take moves to their lane
    await connection.execute("UPDATE joex_private.job SET lane = NULL, due_at = clock_timestamp()")
    async with connection.transaction():  # as a grant that is not committed
        await connection.execute("LOCK TABLE joex_private.role_scope IN SHARE ROW EXCLUSIVE MODE")
        assert len(await runs.take(one, executor, ["default"], 1, FOUR_ONE)) == 1
        assert await stats.cursors(one) == {}


async def test_a_role_that_may_read_alone_makes_no_queue_and_moves_no_cursor(login, bench, connection):
    reader = await login(ROLES[0])
    await connection.execute(
        f"REVOKE INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA joex, joex_client, joex_private FROM {ROLES[0]}"
    )
    await bench.executor()
    for call in ("joex_private.serve_queue('new')", "setval('joex_private.ring_cursor_1', 1)"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await reader.execute(f"SELECT {call}")
    assert await connection.fetchval("SELECT count(*) FROM joex_private.queue") == 1


async def test_the_path_of_the_calling_role_leads_the_making_of_a_queues_sequence_nowhere(login, connection):
    """A function with the rights of its owner must not find objects of the calling role."""
    one = await login(ROLES[0])
    await connection.execute(f"CREATE SCHEMA trap AUTHORIZATION {ROLES[0]}")
    await one.execute("""
        CREATE FUNCTION trap.format(text, integer) RETURNS text LANGUAGE sql AS $$ SELECT 'CREATE ROLE caught' $$;
        SET search_path = trap, joex, joex_private, pg_catalog""")
    assert await one.fetchval("SELECT format('%s', 1)") == "CREATE ROLE caught"
    await one.execute("SELECT joex_private.serve_queue('new')")
    assert await connection.fetchval("SELECT cursor::text FROM joex_private.queue") == "joex_private.ring_cursor_1"
    assert await connection.fetchval("SELECT count(*) FROM pg_roles WHERE rolname = 'caught'") == 0


ATTACK = """
    CREATE TYPE pg_temp.e AS ENUM ('1000000;SELECT pg_temp.f()--');
    CREATE FUNCTION pg_temp.f() RETURNS void LANGUAGE plpgsql AS $$ BEGIN
        ALTER ROLE joex_test_one SUPERUSER;
        ALTER TYPE pg_temp.e RENAME VALUE '1000000;SELECT pg_temp.f()--' TO '1000000';
    END $$;
    CREATE TEMP TABLE evil (id pg_temp.e, name text, cursor regclass);
    CREATE TRIGGER evil BEFORE INSERT ON evil FOR EACH ROW EXECUTE FUNCTION joex_private.make_ring_cursor();
    INSERT INTO evil VALUES ('1000000;SELECT pg_temp.f()--')
"""


@pytest.mark.parametrize("may_execute", [False, True])
async def test_a_role_that_attaches_the_making_of_sequences_to_a_table_of_its_own_has_no_more_rights(
    login, connection, may_execute
):
    one = await login(ROLES[0])
    if may_execute:  # the function itself refuses too, before it reads a value
        await connection.execute(
            f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA joex, joex_client, joex_private TO {ROLES[0]}"
        )
    with pytest.raises(asyncpg.InsufficientPrivilegeError, match="make_ring_cursor"):
        await one.execute(ATTACK)
    assert not await connection.fetchval("SELECT rolsuper FROM pg_roles WHERE rolname = $1", ROLES[0])
    assert await connection.fetchval("SELECT count(*) FROM pg_class WHERE relname LIKE 'ring_cursor%'") == 0


# A published table whose rows change needs a replica identity.
WITHOUT_IDENTITY = """
    SELECT c.relname::text FROM pg_class c
    WHERE c.relnamespace = 'joex_private'::regnamespace AND c.relkind = 'r' AND c.relreplident <> 'f'
      AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND CASE c.relreplident
                      WHEN 'd' THEN i.indisprimary ELSE i.indisreplident END)
"""


async def test_each_table_has_an_identity_for_replication(connection):
    assert [row[0] for row in await connection.fetch(WITHOUT_IDENTITY)] == []


async def test_floors_are_raised_and_switched_off_beside_a_publication_of_all_tables(bench):
    await bench.connection.execute("CREATE PUBLICATION everything FOR ALL TABLES")
    executor = await bench.executor()
    place: tuple[str, Any] = ("default", await bench.connection.fetchval("SELECT joex_private.ring('default')"))
    await bench.connection.execute("SELECT joex_private.set_floors(true)")
    for _ in range(3):
        job_id = await bench.submit()
        assert await read_floors.raise_floors(bench.connection, await read_floors.draw(bench.connection), [place])
        assert await bench.finish(await bench.take_one(executor), "failed") == []
        await jobs.retry(bench.connection, job_id)
        assert await bench.connection.fetchval("SELECT count(*) FROM joex_private.floor_exception") == 1
        await bench.finish(await bench.take_one(executor))
    assert await read_floors.raise_floors(bench.connection, await read_floors.draw(bench.connection), [place])
    await bench.submit("other")
    await executors.leave(bench.connection, executor)
    for _ in range(2):
        await bench.connection.execute("SELECT joex_private.set_floors(false)")
    assert await bench.connection.fetchval("SELECT count(*) FROM joex_private.floor") == 0
    await bench.connection.execute("DROP PUBLICATION everything")

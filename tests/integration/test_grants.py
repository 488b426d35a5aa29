"""Grants and revocations, while a role has written rights in a transaction that it leaves open.

Whoever has a right on an object may GRANT or REVOKE it. The server changes nothing, and writes the object's row all the
same, so that every other grant on this object waits.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import asyncpg
import pytest

from joex.core.job import NewJob
from joex.core.priority_turns import CountingScheme
from joex.errors import DatabaseUnavailable, InvalidJob
from joex.store import jobs, runs
from joex.store.migrate import migrate
from joex.store.roles import RoleScopes, roles, set_scopes
from tests.support.waiting import PATIENCE, eventually

pytestmark = pytest.mark.postgres(16, 18)

ROLES = ("joex_test_tenant", "joex_test_other")
TENANT, OTHER = ROLES
WRITES = {
    "a grant on a function": f"GRANT EXECUTE ON FUNCTION joex.submit TO {OTHER}",
    "a grant on the schemas": f"GRANT USAGE ON SCHEMA joex, joex_client TO {OTHER}",
    "a revocation of its own": f"REVOKE EXECUTE ON FUNCTION joex.cancel FROM {TENANT}",
    "all of its own": f"DROP OWNED BY {TENANT}",
}
each_write = pytest.mark.parametrize("write", WRITES.values(), ids=list(WRITES))
SUBMIT = "SELECT joex.submit('a', grp => 'mine')"
WAITS = "SELECT EXISTS (SELECT FROM pg_locks WHERE pid = $1 AND NOT granted)"
RIGHTS = """
    SELECT f.proname FROM pg_proc f, aclexplode(f.proacl) a WHERE a.grantee = $1::text::regrole
    UNION ALL SELECT n.nspname FROM pg_namespace n, aclexplode(n.nspacl) a WHERE a.grantee = $1::text::regrole
    UNION ALL SELECT c.relname FROM pg_class c, aclexplode(c.relacl) a WHERE a.grantee = $1::text::regrole
    UNION ALL SELECT t.attname FROM pg_attribute t, aclexplode(t.attacl) a WHERE a.grantee = $1::text::regrole
"""


@asynccontextmanager
async def left_open(session: asyncpg.Connection, sql: str) -> AsyncIterator[None]:
    """A transaction of this session that has executed the statement, and goes on."""
    transaction = session.transaction()
    await transaction.start()
    await session.execute(sql)
    try:
        yield
    finally:
        await transaction.commit()


async def submissions_refused(*sessions: asyncpg.Connection) -> None:
    for session in sessions:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            async with session.transaction():
                await session.execute(SUBMIT)


@pytest.mark.parametrize("groups", [None, ["mine"]], ids=["everywhere", "bound"])
@each_write
async def test_a_revocation_works_at_once_whatever_rights_its_role_has_written(login, connection, write, groups):
    await set_scopes(connection, RoleScopes(TENANT, ["submit"], groups, None))
    tenant, second = await login(TENANT), await login(TENANT)
    revoked = RoleScopes(TENANT, [], None, None)
    async with left_open(tenant, write):
        await second.execute(SUBMIT)
        named = rf"session {tenant.get_server_pid()} \({TENANT}, idle in transaction since 20.*same command again"
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(DatabaseUnavailable, match=named):
                await set_scopes(connection, revoked, patience=0)
        assert await roles(connection) == []
        await submissions_refused(tenant, second)
    await submissions_refused(tenant, second)
    await set_scopes(connection, revoked)
    assert await connection.fetch(RIGHTS, TENANT) == []


@each_write
async def test_a_grant_of_another_role_gives_what_it_can_and_the_same_command_completes_it(
    login, connection, bench, write
):
    await set_scopes(connection, RoleScopes(TENANT, ["submit"], ["mine"], None))
    await set_scopes(connection, RoleScopes(OTHER, ["operate"], ["theirs"], None))
    tenant, other = await login(TENANT), await login(OTHER)
    job = await bench.submit("theirs")
    wanted = RoleScopes(OTHER, ["operate", "submit"], ["theirs"], None)
    async with left_open(tenant, write):
        if "submit" in write or "DROP" in write:
            with pytest.raises(
                DatabaseUnavailable, match=rf"rights on joex\..*session {tenant.get_server_pid()} \({TENANT}"
            ):
                await set_scopes(connection, wanted, patience=0)
        else:  # (it has these rights)
            await set_scopes(connection, wanted, patience=0)
        assert [one.scopes for one in await roles(connection) if one.role == OTHER] == [["operate", "submit"]]
        assert await other.fetchval("SELECT joex.set_priority($1, 'high')", job)  # what it had, it has
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await other.execute(SUBMIT)
    await set_scopes(connection, wanted)
    assert await other.fetchval("SELECT joex.submit('a', grp => 'theirs')") is not None


async def test_a_revocation_that_can_not_take_rights_does_not_hold_up_takes_from_a_new_queue(
    login, connection, another_connection, bench
):
    await set_scopes(connection, RoleScopes(TENANT, ["submit"], ["mine"], None))
    await set_scopes(connection, RoleScopes(OTHER, ["executor"], None, None))
    tenant, executor = await login(TENANT), await login(OTHER)
    me = await bench.executor()
    may = "SELECT has_sequence_privilege(cursor, 'UPDATE') FROM joex_private.queue WHERE name = $1"
    async with left_open(tenant, WRITES["all of its own"]):
        revoking = asyncio.ensure_future(
            set_scopes(await another_connection(), RoleScopes(TENANT, [], None, None), patience=3600)
        )
        for nr in range(3):
            await bench.submit(queue=f"queue {nr}")

            async def is_granted(queue: str = f"queue {nr}") -> bool:
                await runs.take(executor, me, [queue], 1, CountingScheme(4, 1))
                return await executor.fetchval(may, queue) is True

            await eventually(is_granted)
        assert not revoking.done()
    await asyncio.wait_for(revoking, PATIENCE)


async def test_a_revocation_goes_on_when_the_transaction_in_its_way_commits(login, connection, another_connection):
    """The server refuses it then: `tuple concurrently updated`."""
    await set_scopes(connection, RoleScopes(TENANT, ["submit"], ["mine"], None))
    await connection.execute("ALTER FUNCTION joex_private.settle_rights SET lock_timeout = '1min'")
    tenant, watch = await login(TENANT), await another_connection()
    async with left_open(tenant, WRITES["all of its own"]):
        revoking = asyncio.ensure_future(set_scopes(connection, RoleScopes(TENANT, [], None, None)))
        await eventually(lambda: watch.fetchval(WAITS, connection.get_server_pid()))
    await asyncio.wait_for(revoking, PATIENCE)
    assert await watch.fetch(RIGHTS, TENANT) == []


async def test_a_role_that_keeps_the_columns_of_payloads_sees_nothing_until_they_are_taken(login, connection, bench):
    """No view judges by the scope payloads."""
    await bench.submit("mine", args={"secret": 1})
    await set_scopes(connection, RoleScopes(TENANT, ["view", "payloads"], ["mine"], None))
    tenant = await login(TENANT)
    less = RoleScopes(TENANT, ["view"], ["mine"], None)
    async with left_open(tenant, f"GRANT SELECT (args) ON joex.jobs TO {OTHER}"):
        with pytest.raises(DatabaseUnavailable, match=rf"rights on joex.jobs.*session {tenant.get_server_pid()}"):
            await set_scopes(connection, less, patience=0)
        assert await tenant.fetch("SELECT args FROM joex.jobs") == []
    await set_scopes(connection, less)
    assert await tenant.fetchval("SELECT count(*) FROM joex.jobs") == 1
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await tenant.execute("SELECT args FROM joex.jobs")
    noted = "SELECT count(*) FROM joex.audit WHERE act = 'set_scopes' AND subject = $1"
    assert await connection.fetchval(noted, TENANT) == 3


async def test_a_grant_that_is_tried_again_is_noted_once(login, connection):
    await set_scopes(connection, RoleScopes(TENANT, ["submit"], ["mine"], None))
    tenant = await login(TENANT)
    async with left_open(tenant, WRITES["all of its own"]):
        with pytest.raises(DatabaseUnavailable):
            await set_scopes(connection, RoleScopes(TENANT, [], None, None), patience=1)
    assert await connection.fetchval("SELECT count(*) FROM joex.audit WHERE act = 'set_scopes'") == 2


async def test_a_command_that_is_tried_again_undoes_no_newer_one(login, connection, another_connection):
    await set_scopes(connection, RoleScopes(TENANT, ["submit"], ["mine"], None))
    tenant, newer = await login(TENANT), RoleScopes(TENANT, ["view"], ["mine"], None)
    async with left_open(tenant, WRITES["all of its own"]):
        older = asyncio.ensure_future(
            set_scopes(await another_connection(), RoleScopes(TENANT, [], None, None), patience=3600)
        )

        async def is_revoked() -> bool:
            return await roles(connection) == []

        await eventually(is_revoked)
        with pytest.raises(DatabaseUnavailable):
            await set_scopes(connection, newer, patience=0)
        with pytest.raises(InvalidJob, match=f"role: another command has set the scopes of {TENANT} meanwhile"):
            await asyncio.wait_for(older, PATIENCE)
        assert await roles(connection) == [newer]


async def test_an_executor_that_has_written_the_rights_on_a_table_keeps_these_and_the_command_says_so(
    login, connection
):
    """The server alone judges there."""
    await set_scopes(connection, RoleScopes(TENANT, ["executor"], None, None))
    tenant = await login(TENANT)
    both = f"{WRITES['a grant on a function']}; GRANT SELECT ON joex_private.job TO {OTHER}"
    async with left_open(tenant, both):
        with pytest.raises(DatabaseUnavailable, match=r"rights on joex_private.job and 1 more are.*uses this directly"):
            await set_scopes(connection, RoleScopes(TENANT, [], None, None), patience=0)


async def test_a_revocation_of_a_role_that_has_written_very_many_rights_waits_for_ten_of_them(login, connection):
    """The scopes are new only when it has done so."""
    await set_scopes(connection, RoleScopes(TENANT, ["executor"], None, None))
    await connection.execute("""
        CREATE SEQUENCE public.tries;
        CREATE OR REPLACE FUNCTION joex_private.try_to_change_rights(p_statement text) RETURNS boolean LANGUAGE sql
        AS $$ SELECT nextval('public.tries') = 0 $$;
    """)
    with pytest.raises(DatabaseUnavailable, match=r"and \d\d+ more"):
        await set_scopes(connection, RoleScopes(TENANT, [], None, None), patience=0)
    assert await connection.fetchval("SELECT last_value FROM public.tries") == 10


async def test_a_role_of_which_nothing_but_the_scopes_is_revoked_can_do_nothing(login, connection, bench):
    """It keeps all rights, as one that has written them all does."""
    every = ["view", "payloads", "submit", "work", "operate"]
    jobs = [await bench.job_in("failed", await bench.executor(), group="mine"), await bench.submit("mine")]
    await set_scopes(connection, RoleScopes(TENANT, every, None, ["default"]))
    tenant = await login(TENANT)
    run = await tenant.fetchrow("SELECT id, lock_id FROM joex_client.accept('default')")
    before = await connection.fetch("SELECT id, state, priority, progress FROM joex.jobs ORDER BY id")
    await connection.execute("DELETE FROM joex_private.role_scope")
    views = await connection.fetch(
        "SELECT oid::regclass::text FROM pg_class WHERE relnamespace = 'joex'::regnamespace AND relkind = 'v'"
    )
    for [view] in views:
        assert await tenant.fetchval(f"SELECT count(*) FROM {view}") == 0, view  # noqa: S608 - from the catalogue
    for call in (
        "joex.submit('a', grp => 'mine')", "joex.submit_many('{a}', grps => '{mine}')", "joex.set_group('mine')",
        "joex.set_queue('default', true)", "joex_client.accept('default')", "joex_client.add('a', '\\x02610000')",
        "joex.events_channel()", "joex.shares()", "joex_client.drain('a')",
        "joex.put_periodic_task('t', 'a', 'daily', grp => 'mine')", "joex_client.set_timeout('a', '1s')",
        "joex.subscribe('a', '1 minute')",
    ):  # fmt: skip
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match=r"may not use group|is bound to"):
            await tenant.execute(f"SELECT {call}")
    assert await tenant.fetchval("SELECT joex_client.arguments($1, $2)", *run) is None
    assert await tenant.fetchval("SELECT joex.update($1, $2, progress => 9)", *run) == "worker_conflict"
    assert await tenant.fetchval("SELECT joex.finish($1, $2)", *run) == "worker_conflict"
    for job in jobs:
        assert await tenant.fetchval("SELECT joex.cancel($1)", job) == "not_found"
        assert await tenant.fetchval("SELECT joex.remove($1)", job) == "not_found"
        assert not await tenant.fetchval("SELECT joex.retry($1)", job)
        assert not await tenant.fetchval("SELECT joex.set_priority($1, 'high')", job)
        assert await tenant.fetch("SELECT * FROM joex.log($1)", job) == []
        assert await tenant.fetch("SELECT * FROM joex.attempts($1)", job) == []
    assert await tenant.fetchval("SELECT joex.retry_failed()") == 0
    assert await connection.fetch("SELECT id, state, priority, progress FROM joex.jobs ORDER BY id") == before


@pytest.mark.parametrize("scopes", [["view"], []], ids=["narrowed", "revoked"])
async def test_where_a_role_was_bound_a_revocation_is_for_prepared_statements_of_open_transactions_too(
    login, connection, bench, scopes
):
    """The server need not judge these anew: in a transaction that holds its locks it hears of no revocation."""
    await set_scopes(connection, RoleScopes(OTHER, ["submit"], ["theirs"], None))
    await set_scopes(connection, RoleScopes(OTHER, [], None, None))
    await set_scopes(connection, RoleScopes(TENANT, ["operate", "view"], None, None))
    *jobs, last = [await bench.submit("mine") for _ in range(4)]
    tenant = await login(TENANT)
    await tenant.execute("""
        CREATE DOMAIN pg_temp.removed AS uuid CHECK (VALUE IS NULL OR joex.remove(VALUE) = 'ok');
        CREATE FUNCTION pg_temp.remove(p_id text) RETURNS void LANGUAGE plpgsql AS $$
            DECLARE v_removed pg_temp.removed; BEGIN v_removed := p_id; END $$;
    """)
    prepared = [
        await tenant.prepare(f"SELECT {call}")
        for call in ("joex.remove($1::text::uuid)", "pg_temp.remove($1)", "count(*) FROM joex.jobs WHERE id::text = $1")
    ]
    async with tenant.transaction(isolation="read_committed"):
        for one, job in zip(prepared, jobs, strict=True):
            await one.fetchval(str(job))
        await set_scopes(connection, RoleScopes(TENANT, scopes, None, None))
        assert await prepared[0].fetchval(str(last)) == "not_found"
        with pytest.raises(asyncpg.CheckViolationError):
            async with tenant.transaction():
                await prepared[1].fetchval(str(last))
        assert await prepared[2].fetchval(str(last)) == ("view" in scopes)
    assert await bench.state(last) == "waiting"


EVERY = ["view", "submit", "operate"]
SET_SCOPES = "SELECT joex_private.set_scopes($1, $2, $3)"
COUNT = "SELECT count(*) FROM joex.jobs"


@pytest.mark.parametrize("imported", [False, True], ids=["of its own", "that another role has exported"])
async def test_a_role_keeps_no_scopes_by_a_snapshot_that_is_older_than_their_change(login, connection, bench, imported):
    await set_scopes(connection, RoleScopes(TENANT, EVERY, ["mine"], None))
    job = await bench.submit("mine")
    tenant, older = await login(TENANT), await login(OTHER if imported else TENANT)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(older.transaction(isolation="repeatable_read"))
        snapshot = await older.fetchval("SELECT pg_export_snapshot()")
        await set_scopes(connection, RoleScopes(TENANT, EVERY, ["other"], None))
        if imported:
            await stack.enter_async_context(tenant.transaction(isolation="repeatable_read"))
            await tenant.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'")
        used = tenant if imported else older
        for call in (SUBMIT, f"SELECT joex.cancel('{job}')", COUNT):
            with pytest.raises(asyncpg.SerializationError, match="begin a new transaction"):
                async with used.transaction():
                    await used.execute(call)
        with pytest.raises(DatabaseUnavailable, match=r"^try again: scopes of roles have changed"):
            async with used.transaction():
                await jobs.submit(used, NewJob(task="a", group="mine"))
    assert await bench.state(job) == "waiting"


async def test_a_change_of_scopes_that_is_rolled_back_refuses_no_later_transaction(login, connection, bench):
    await set_scopes(connection, RoleScopes(TENANT, EVERY, ["mine"], None))
    await bench.submit("mine")
    tenant = await login(TENANT)
    changing = connection.transaction()
    await changing.start()
    await connection.fetchval(SET_SCOPES, TENANT, EVERY, ["other"])
    await changing.rollback()
    async with tenant.transaction(isolation="repeatable_read"):
        assert await tenant.fetchval(COUNT) == 1


async def test_a_change_of_scopes_on_the_server_of_which_a_dump_was_restored_refuses_nobody(login, connection, bench):
    """Its transaction ids may be far ahead."""
    await set_scopes(connection, RoleScopes(TENANT, EVERY, ["mine"], None))
    await bench.submit("mine")
    tenant = await login(TENANT)
    await connection.execute("SELECT setval('joex_private.scopes_changed_by', 1000000000000000000)")
    async with tenant.transaction(isolation="repeatable_read", readonly=True):
        assert await tenant.fetchval(COUNT) == 1


async def test_a_migration_names_the_session_that_has_written_rights_and_goes_on_when_it_commits(
    login, connection, another_connection, upgrade
):
    await set_scopes(connection, RoleScopes(TENANT, ["submit"], ["mine"], None))
    tenant = await login(TENANT)
    watch = await another_connection()
    upgrade("CREATE OR REPLACE FUNCTION joex.submit(")
    named = rf"session {tenant.get_server_pid()} \({TENANT}, idle in transaction since 20"
    told: asyncio.Queue[str] = asyncio.Queue()
    async with left_open(tenant, WRITES["a grant on a function"]):
        with pytest.raises(DatabaseUnavailable, match=named):
            await migrate(connection, patience=0)
        at_work = asyncio.create_task(migrate(connection, patience=3600, tell=told.put_nowait))
        assert f"{TENANT}, idle in transaction" in await asyncio.wait_for(told.get(), PATIENCE)
        await eventually(lambda: watch.fetchval(WAITS, connection.get_server_pid()))  # (the server refuses it then)
    assert await asyncio.wait_for(at_work, PATIENCE) == ["9999_next"]


async def test_a_migration_does_not_wait_for_rights_that_it_does_not_change(login, connection, upgrade):
    await set_scopes(connection, RoleScopes(TENANT, ["submit"], ["mine"], None))
    tenant = await login(TENANT)
    upgrade("CREATE OR REPLACE FUNCTION joex_private.lane(")
    async with left_open(tenant, f"{WRITES['a grant on a function']}; {WRITES['a grant on the schemas']}"):
        assert await migrate(connection, patience=0) == ["9999_next"]


async def test_a_database_that_is_migrated_already_waits_for_no_rights_that_a_role_lacks(login, connection):
    await set_scopes(connection, RoleScopes(TENANT, ["submit"], ["mine"], None))
    tenant = await login(TENANT)
    await connection.execute(f"SELECT joex_private.set_scopes('{OTHER}', '{{submit}}', '{{theirs}}')")
    await connection.execute(f"DROP OWNED BY {OTHER}")  # as a restored dump without rights
    async with left_open(tenant, WRITES["a grant on the schemas"]):
        assert await migrate(connection, patience=0) == []
    assert await migrate(connection) == []
    assert await (await login(OTHER)).fetchval("SELECT joex.submit('a', grp => 'theirs')") is not None


async def test_a_migration_takes_from_roles_and_from_whom_they_have_granted_it_what_their_scopes_do_not_need(
    login, connection, upgrade
):
    await set_scopes(connection, RoleScopes(TENANT, ["submit"], ["mine"], None))
    expected = sorted(await connection.fetch(RIGHTS, TENANT))
    await connection.execute(f"GRANT SELECT ON joex.jobs TO {TENANT} WITH GRANT OPTION")
    await (await login(TENANT)).execute(f"GRANT SELECT ON joex.jobs TO {OTHER}")
    upgrade("CREATE OR REPLACE FUNCTION joex_private.lane(")
    await migrate(connection)
    assert sorted(await connection.fetch(RIGHTS, TENANT)) == expected
    assert await connection.fetch(RIGHTS, OTHER) == []


async def test_a_migration_gives_rights_by_the_scopes_that_a_grant_under_way_sets(
    connection, another_connection, upgrade
):
    upgrade("CREATE OR REPLACE FUNCTION joex_private.lane(")
    granting = await another_connection()
    async with left_open(granting, "LOCK TABLE joex_private.role_scope IN SHARE ROW EXCLUSIVE MODE"):
        with pytest.raises(DatabaseUnavailable, match=f"session {granting.get_server_pid()}"):
            await migrate(connection, patience=0)


@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_a_prepared_transaction_that_has_written_rights_is_named(login, connection, end):
    await set_scopes(connection, RoleScopes(TENANT, ["submit"], ["mine"], None))
    tenant = await login(TENANT)
    await tenant.execute(f"BEGIN; SAVEPOINT a; {WRITES['a grant on a function']}; PREPARE TRANSACTION 'forgotten'")
    try:
        with pytest.raises(DatabaseUnavailable, match=rf"the prepared transaction 'forgotten' \({TENANT} since 20"):
            await set_scopes(connection, RoleScopes(TENANT, [], None, None), patience=0)
    finally:
        await connection.execute(f"{end} PREPARED 'forgotten'")

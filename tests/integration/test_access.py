"""Scopes of database roles: every function, table and view, with every scope, from the catalogue."""

import asyncio
import json
import re
import subprocess
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
from fastapi import HTTPException

import joex
from joex.core.tuples import pack
from joex.http.caller import Caller
from joex.notifications import job_watch
from joex.runtime.maintenance import clean
from joex.store import listing, pools, roles, runs, subscriptions, timeouts
from joex.store.migrate import definitions, migrate
from joex.store.roles import RoleScopes
from joex.store.statement import STATEMENTS
from tests.integration.conftest import FOUR_ONE
from tests.integration.test_statements import CALLS
from tests.support.cases import case
from tests.support.postgres import TestServer
from tests.support.processes_inside import executor_inside
from tests.support.waiting import PATIENCE, eventually

pytestmark = pytest.mark.postgres(16, 18)

SCOPES = ("view", "payloads", "submit", "work", "operate")
OURS = "('joex'::regnamespace, 'joex_client'::regnamespace, 'joex_private'::regnamespace)"
FUNCTIONS = f"""
    SELECT p.pronamespace::regnamespace || '.' || p.proname AS name, p.oid, p.provolatile::text AS volatility,
           p.prosecdef, l.lanname AS language, p.proconfig,
           has_function_privilege('public', p.oid, 'EXECUTE') AS is_open,
           p.prorettype = 'trigger'::regtype AS is_trigger
    FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang WHERE p.pronamespace IN {OURS}
"""  # noqa: S608 - constants
RELATIONS = f"SELECT oid::regclass::text FROM pg_class WHERE relnamespace IN {OURS} AND relkind IN ('r', 'v', 'S')"  # noqa: S608

# What a scope allows to change. A new function that changes something needs an entry here before a role may call it.
CHANGES = {
    "view": {
        "joex.horizon", "joex.subscribe", "joex.unsubscribe", "joex.wait_for", "joex.wait_no_more",
        "joex_private.floor_epoch", "joex_client.versions",
    },
    "payloads": set(),
    "submit": {
        "joex.submit", "joex.submit_many", "joex_client.add", "joex.cancel", "joex.horizon", "joex.subscribe",
        "joex.unsubscribe", "joex.wait_for", "joex.wait_no_more", "joex_client.versions",
    },
    "work": {
        "joex.update", "joex.finish", "joex.horizon", "joex_client.accept", "joex_client.accept_state",
        "joex_client.goes_round", "joex_client.watch_for_workers",
    },
    "operate": {
        "joex.cancel", "joex.set_priority", "joex.set_args", "joex.retry", "joex.retry_failed", "joex.remove",
        "joex.set_group", "joex.set_queue", "joex.put_periodic_task", "joex.remove_periodic_task",
        "joex.enable_periodic_task",
        "joex.run_periodic_task", "joex_client.drain", "joex_client.resubmit", "joex_client.set_timeout",
        "joex_client.wake_all",
    },
}  # fmt: skip
OF_THE_OWNER = {"joex.set_largest", "joex_private.set_scopes", "joex_private.secure"}


@pytest.fixture
async def roles_of(database_url: str, connection: asyncpg.Connection) -> AsyncIterator[Any]:
    """Makes a role with these scopes, and logs in as it."""
    made = []
    async with AsyncExitStack() as stack:

        async def make(*scopes: str, groups: list[str] | None = None, queues: list[str] | None = None) -> Any:
            name = f"joex_test_{uuid4().hex}"
            await connection.execute(f"CREATE ROLE {name} LOGIN")
            made.append(name)
            if scopes:
                await roles.set_scopes(connection, RoleScopes(name, list(scopes), groups, queues))
            settings = {"default_transaction_isolation": "read committed"}
            session = await asyncpg.connect(database_url, user=name, server_settings=settings)
            stack.push_async_callback(session.close)
            return session

        yield make
    for name in made:
        await connection.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


def url_of(database_url: str, role: str) -> str:
    """The URL with which a role logs in."""
    return database_url.replace("postgres@", f"{role}@")


async def may_call(session: asyncpg.Connection) -> dict[str, asyncpg.Record]:
    """The functions, except triggers, that this session may call."""
    rows = await session.fetch(FUNCTIONS)
    mine = await session.fetch(
        "SELECT oid FROM pg_proc "
        "WHERE has_function_privilege(oid, 'EXECUTE') AND has_schema_privilege(pronamespace, 'USAGE')"
    )
    allowed = {row["oid"] for row in mine}
    return {row["name"]: row for row in rows if row["oid"] in allowed and not row["is_trigger"]}


def is_named_in_python(name: str) -> bool:
    """Whether a statement of Joex calls this function, with the path of a session."""
    return any(re.search(rf"\b{re.escape(name)}\(", sql) for sql in STATEMENTS)


async def test_no_function_is_open_to_all_and_each_has_a_path_that_no_caller_changes(connection):
    for _ in range(2):
        for row in await connection.fetch(FUNCTIONS):
            assert not row["is_open"], row["name"]
            is_called = row["prosecdef"] or (row["language"] == "plpgsql" and is_named_in_python(row["name"]))
            if is_called or row["is_trigger"]:
                assert "search_path=pg_catalog, pg_temp" in (row["proconfig"] or ()), row["name"]
        async with connection.transaction():
            for one in definitions():  # as if a newer version had changed them all
                await connection.execute(one.sql)
            await connection.execute("SELECT joex_private.secure()")
    assert await migrate(connection) == []


async def test_a_function_that_a_view_or_a_session_calls_without_a_path_of_its_own_names_each_schema(connection):
    """The planner merges such functions into the caller's statement, where the path is the caller's."""
    bodies = dict(
        await connection.fetch(f"""
            SELECT p.proname::text, p.prosrc FROM pg_proc p WHERE p.pronamespace IN {OURS}
            AND 'search_path=pg_catalog, pg_temp' <> ALL (coalesce(p.proconfig, '{{}}'))""")  # noqa: S608 - constants
    )
    of_views = await connection.fetchval(f"""
        SELECT string_agg(pg_get_viewdef(oid), ' ') FROM pg_class WHERE relkind = 'v' AND relnamespace IN {OURS}""")  # noqa: S608
    defaults = await connection.fetchval("SELECT string_agg(pg_get_expr(adbin, adrelid), ' ') FROM pg_attrdef")

    def named_in(text: str) -> set[str]:
        return set(re.findall(r"joex(?:_private)?\.(\w+)\(", text)) & bodies.keys()

    called, more = set[str](), named_in(" ".join([of_views, defaults, *STATEMENTS]))
    while more:
        called |= more
        more = named_in(" ".join(bodies[name] for name in more)) - called
    assert {"in_both", "ring", "place", "uuid7"} <= called
    syntax = {"select", "case", "coalesce", "extract", "array", "bit"}
    for name in called:
        assert set(re.findall(r"(?<![\w.])([a-z_]\w*)\(", bodies[name].lower())) <= syntax, name


async def test_functions_that_others_have_planted_are_not_called_by_views(peeker, connection):
    """A view's function that is no exact match would lose to one that is, in a schema of the session's path."""
    role = await peeker.fetchval("SELECT session_user::text")
    await peeker.execute("""
        CREATE FUNCTION peek.caught() RETURNS text LANGUAGE plpgsql AS $$ BEGIN
            RAISE EXCEPTION 'caught as %', current_user; END $$""")
    planted = await connection.fetch("""
        SELECT DISTINCT p.proname::text AS name,
               replace(replace(replace(a.args, 'anyarray', 'text[]'), 'anyelement', 'text'), 'name', 'text') AS args
        FROM pg_proc p, LATERAL (SELECT string_agg(format_type(t, NULL), ', ' ORDER BY nr) AS args
                                 FROM unnest(p.proargtypes) WITH ORDINALITY AS t(t, nr)) a
        WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.prokind = 'f' AND a.args !~ '"any"|internal|anycompat'
              AND p.proname IN (SELECT (regexp_matches(o.prosrc, '\\m(\\w+)\\(', 'g'))[1] FROM pg_proc o
                                WHERE o.pronamespace::regnamespace::text IN ('joex', 'joex_client', 'joex_private'))""")
    for name, args in planted:
        await peeker.execute(
            f"CREATE FUNCTION peek.{name}({args}) RETURNS text LANGUAGE sql VOLATILE AS 'SELECT peek.caught()'"
        )
    assert ("convert_to", "text, text") in [tuple(row) for row in planted]
    await connection.execute("SET search_path = peek, public")
    try:
        with pytest.raises(asyncpg.RaiseError, match="caught as"):
            await connection.execute("SELECT convert_to('a'::text, 'UTF8')")
        for view in VIEWS:
            await connection.execute(f"SELECT * FROM joex.{view}")  # noqa: S608 - a constant
            async with connection.transaction():
                await connection.execute(f"SET LOCAL ROLE {role}")
                await connection.execute(f"SELECT count(*) FROM joex.{view}")  # noqa: S608 - a constant
    finally:
        await connection.execute("RESET search_path")


async def test_each_public_function_has_a_scope(connection):
    known = {
        name
        for row in await connection.fetch("SELECT functions FROM joex_private.functions_of_scopes()")
        for name in row["functions"]
    }
    found = {row["name"] for row in await connection.fetch(FUNCTIONS)}
    without = {name for name in found if name.startswith("joex.")} - known
    assert without == {"joex.delete_finished"}  # of executors: it deletes what retention keeps
    assert known <= found


@pytest.mark.parametrize("scope", SCOPES)
async def test_a_scope_changes_what_it_says_and_writes_no_table(roles_of, connection, scope):
    session = await roles_of(scope)
    role = await session.fetchval("SELECT session_user::text")
    allowed = await may_call(session)
    assert {name for name, row in allowed.items() if row["volatility"] == "v"} == CHANGES[scope]
    needs_rights = {name for name, row in allowed.items() if row["volatility"] == "v"} - {"joex_private.floor_epoch"}
    assert all(allowed[name]["prosecdef"] for name in needs_rights)
    for relation in [row[0] for row in await connection.fetch(RELATIONS)]:
        rights = "INSERT, UPDATE, DELETE, TRUNCATE, TRIGGER"
        ask = "SELECT has_table_privilege($1::text, $2::text, $3)"
        if "ring_cursor" not in relation and "_seq" not in relation:
            assert not await connection.fetchval(ask, role, relation, rights), relation


# Statements for which the server locks a table by its name before it judges whether the role may do this.
LOCKS_FIRST = """
    CREATE TRIGGER t BEFORE UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()
    CREATE RULE r AS ON DELETE TO {table} DO ALSO NOTHING
    CREATE TEMPORARY TABLE part PARTITION OF {table} DEFAULT
    CREATE TEMPORARY TABLE reference (number integer REFERENCES {table})
"""


@pytest.mark.parametrize(
    ("scopes", "groups"), [(SCOPES, ["mine"]), (("submit", "work", "operate"), None)], ids=["bound", "everywhere"]
)
async def test_a_statement_that_the_server_refuses_waits_for_no_table_and_so_keeps_nobody_waiting(
    roles_of, connection, scopes, groups
):
    """While it waited for a transaction that has written to the table, all others would wait behind it."""
    role = await roles_of(*scopes, groups=groups)
    await role.execute("SET lock_timeout = '20ms'")
    tables = [row[0] for row in await connection.fetch(f"{RELATIONS} AND relkind = 'r'")]
    assert {"joex_private.job", "joex_private.lease"} <= {*tables}
    for table in tables:
        async with connection.transaction():
            await connection.execute(f"LOCK TABLE {table} IN ROW EXCLUSIVE MODE")
            for statement in LOCKS_FIRST.strip().splitlines():
                with pytest.raises(asyncpg.InsufficientPrivilegeError):
                    await role.execute(statement.format(table=table))


async def test_submissions_and_runs_of_a_bound_role_wait_for_no_table_of_the_servers_catalogue(
    roles_of, another_connection
):
    """Any role that can connect may keep all others from one, by the statements of LOCKS_FIRST."""
    role = await roles_of(*SCOPES, queues=["default"])
    pid, other = await role.fetchval("SELECT pg_backend_pid()"), await another_connection()
    job_ids = [await role.fetchval("SELECT joex.submit('a')") for _ in range(2)]
    await role.execute("""
        BEGIN;
        SELECT joex.submit('a');
        SELECT joex.finish(id, lock_id) FROM joex_client.accept('default')""")
    await role.execute("SELECT joex.cancel('$1')".replace("$1", str(job_ids[1])))
    tables = await other.fetch(
        """SELECT l.relation::regclass::text, c.relnamespace = 'pg_catalog'::regnamespace AS is_of_the_server
           FROM pg_locks l JOIN pg_class c ON c.oid = l.relation WHERE l.pid = $1""",
        pid,
    )
    assert "joex_private.job" in {row[0] for row in tables}
    assert [row[0] for row in tables if row["is_of_the_server"]] == []


async def test_who_keeps_all_others_from_the_views_of_joex_stops_no_executor(
    connection, another_connection, database_url
):
    """A role that may read one can do that, by one of LOCKS_FIRST, as it may name the view."""
    app, ran = joex.App("shop"), asyncio.Event()

    @app.periodic("*-*-* *:*:*")
    @app.task("tidy")
    async def tidy(ctx):
        ran.set()

    other = await another_connection()
    held = connection.transaction()
    await held.start()
    for view in VIEWS:
        await connection.execute(f"ALTER VIEW joex.{view} SET (security_barrier)")
    async with executor_inside(app, database_url):
        await asyncio.wait_for(ran.wait(), 30)
        await clean(other)
    await held.rollback()


# Of CHANGES, the functions that write and lock no row.
NO_ROWS = {"joex.horizon", "joex_client.accept_state", "joex_private.floor_epoch", "joex_client.goes_round",
           "joex_client.versions", "joex_client.wake_all"}  # fmt: skip
# A call of each of the others that writes or locks a row.
WRITES = """
    joex.subscribe('another', '1 minute')
    joex.subscribe('me', '1 minute')
    joex.unsubscribe('me')
    joex.wait_for('me', ARRAY[{waiting}])
    joex.wait_no_more('me', ARRAY[{running}])
    joex.submit('a')
    joex.submit_many(ARRAY['a', 'b'])
    joex.submit_many(ARRAY['a', 'b'], trackers => ARRAY['x', 'y'])
    joex_client.add('a', '\x0161')
    joex.cancel({waiting})
    joex.update({running}, {lock_id})
    joex.finish({running}, {lock_id})
    joex_client.accept('default')
    joex_client.watch_for_workers('me', 'default', '1 minute')
    joex_client.watch_for_workers('me', 'work', '0')
    joex.set_priority({waiting}, 'high')
    joex.set_args({waiting}, '{{"a": 1}}')
    joex.retry({failed})
    joex.retry_failed()
    joex.remove({waiting})
    joex.remove({keyed})
    joex.remove({running})
    joex.set_group('a', paused => true)
    joex.set_queue('default', true)
    joex.put_periodic_task('new', 'a', 'daily')
    joex.put_periodic_task('old', 'a', 'daily')
    joex.enable_periodic_task('old')
    joex.enable_periodic_task('old', false)
    joex.run_periodic_task('old')
    joex.remove_periodic_task('old')
    joex_client.drain(NULL)
    joex_client.resubmit({waiting})
    joex_client.resubmit({running})
    joex_client.resubmit({failed})
    joex_client.set_timeout('a', '1 minute')
""".strip().splitlines()


async def test_no_function_of_a_scope_writes_below_very_many_nested_savepoints(connection, bench):
    """Each reader would walk up all of them for each row, as long as the transaction is open."""
    assert {call.strip().split("(")[0] for call in WRITES} == set().union(*CHANGES.values()) - NO_ROWS
    await bench.executor()
    failed, running = [await connection.fetchval("SELECT joex.submit('a', queue => 'work')") for _ in range(2)]
    taken = {row["id"]: row["lock_id"] for row in await connection.fetch("SELECT * FROM joex_client.accept('work', 2)")}
    await connection.fetchval("SELECT joex.finish($1, $2, state => 'failed')", failed, taken[failed])
    waiting = await connection.fetchval("SELECT joex.submit('a')")
    keyed = await connection.fetchval("SELECT joex_client.add('a', '\\x0162')")
    await connection.execute("SELECT joex.subscribe('me', '1 minute')")
    await connection.execute("SELECT joex.wait_for('me', ARRAY[$1]::uuid[])".replace("$1", f"'{running}'"))
    await connection.execute("SELECT joex_client.watch_for_workers('me', 'work', '1 minute')")
    await connection.execute("SELECT joex.put_periodic_task('old', 'a', 'daily')")
    ids = {"waiting": waiting, "running": running, "failed": failed, "keyed": keyed, "lock_id": taken[running]}
    for call in WRITES:
        sql = "SELECT " + call.strip().format(**{name: f"'{one}'::uuid" for name, one in ids.items()})
        for depth, refused in ((100, False), (150, True)):
            await connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED;" + "SAVEPOINT s;" * depth)
            try:
                await connection.execute(sql)
                assert not refused, call
            except asyncpg.ProgramLimitExceededError:
                assert refused, call
            await connection.execute("ROLLBACK")


async def test_a_long_transaction_has_few_nested_savepoints(connection, another_connection):
    """The ids that others have used meanwhile lie between theirs, on as many pages, of which the server keeps few."""
    other = await another_connection()
    await connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED; SELECT joex.submit('a')")
    await other.execute("DO $$ BEGIN FOR _ IN 1..20000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$")
    await connection.execute("SAVEPOINT s;" * 10)
    assert await connection.fetchval("SELECT joex.submit('a')")
    await connection.execute("SAVEPOINT s")
    with pytest.raises(asyncpg.ProgramLimitExceededError, match="too many nested savepoints: 11"):
        await connection.fetchval("SELECT joex.submit('a')")


async def test_below_very_many_savepoints_no_job_in_line_is_locked_that_another_session_has_just_submitted(
    connection, another_connection
):
    """The id that has written its row is near that of the transaction."""
    other = await another_connection()
    await connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED; SELECT pg_current_xact_id()")
    job_id = await other.fetchval("SELECT joex.submit('a')")
    await connection.execute("SAVEPOINT s;" * 150)
    with pytest.raises(asyncpg.ProgramLimitExceededError):
        await connection.execute(f"SELECT joex_client.resubmit('{job_id}')")


async def test_below_very_many_savepoints_no_row_is_removed_that_an_outer_one_has_locked(pg_version):
    """Its xmax is the number of a group of lockers, whose counter each role can bring near the ids of transactions."""
    server = TestServer(pg_version)  # a new one: its counters are small, so that they are soon as large as each other
    async with AsyncExitStack() as stack:
        stack.callback(server.close)
        url = server.url(await server.create_database(migrated=False))

        async def session() -> asyncpg.Connection:
            made = await asyncpg.connect(url)
            stack.push_async_callback(made.close)
            return made

        ours, lockers = await session(), [await session() for _ in range(8)]
        await migrate(ours)
        await ours.execute("CREATE TABLE public.mine AS SELECT generate_series(1, 255) AS id")
        for nr, locker in enumerate(lockers):
            await locker.execute(f"BEGIN; SELECT FROM public.mine WHERE id & {1 << nr} > 0 FOR SHARE")
        keyed = await ours.fetchval("SELECT joex_client.add('a', '\\x0162')")
        await ours.execute("BEGIN ISOLATION LEVEL READ COMMITTED; SAVEPOINT outer_one")
        assert await ours.fetchval("SELECT joex_client.resubmit($1)", keyed) == "ok"
        await ours.execute("SAVEPOINT s;" * 150)
        behind = "SELECT pg_current_xact_id()::xid::text::bigint - mxid_age('1')"
        while (missing := await ours.fetchval(behind)) > 0:  # (The second and third row have two lockers: a group.)
            await lockers[0].execute("COMMIT")
            await lockers[0].execute(f"BEGIN; SELECT FROM public.mine WHERE id <= {missing} + 2 FOR SHARE")
        with pytest.raises(asyncpg.ProgramLimitExceededError):
            await ours.execute(f"SELECT joex.remove('{keyed}')")


async def test_a_savepoint_for_each_row_of_a_long_transaction_is_no_nesting(connection):
    async with connection.transaction():
        for _ in range(300):
            async with connection.transaction():
                assert await connection.fetchval("SELECT joex.submit('a')")


async def test_a_grant_gives_the_same_where_the_owners_session_quotes_all_names(roles_of, connection):
    plain = await roles_of("submit")
    await connection.execute("SET quote_all_identifiers = on")
    quoted = await roles_of("submit")
    assert set(await may_call(quoted)) == set(await may_call(plain))


async def test_a_role_without_scopes_can_call_and_read_nothing(roles_of):
    nobody = await roles_of()
    assert await may_call(nobody) == {}
    for call in filter(None, CALLS.values()):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await nobody.execute(f"SELECT {call}")
    for row in await nobody.fetch(RELATIONS):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await nobody.execute(f"TABLE {row[0]}")


async def test_an_executor_does_all_but_what_the_owner_does(roles_of, connection):
    session = await roles_of("executor")
    everything = {row["name"] for row in await connection.fetch(FUNCTIONS) if not row["is_trigger"]}
    assert everything - set(await may_call(session)) == OF_THE_OWNER
    for attack in (
        "CREATE FUNCTION joex.wake(text, integer) RETURNS void LANGUAGE sql AS ''",
        "CREATE TABLE joex_private.mine ()",
        "SELECT joex_private.set_scopes('pg_monitor', '{executor}')",
        "UPDATE joex_private.this_database SET events_channel = 'mine'",
        "SELECT setval('joex_private.roles_bound', 1)",
        "SELECT setval('joex_private.scopes_changed_by', 1)",
        "INSERT INTO joex_private.role_scope (role, scopes) VALUES ('pg_monitor', '{executor}')",
        "DELETE FROM joex_private.migration",
        "INSERT INTO joex_private.api_token (name, digest, scopes) VALUES ('mine', sha256('mine'), '{operate}')",
        "UPDATE joex_private.api_token SET scopes = '{operate}'",
        "DELETE FROM joex_private.act",
        "INSERT INTO joex_private.act (role, act) VALUES ('postgres', 'forged')",
        "INSERT INTO joex_private.size_limit VALUES ('args', 32000000)",
        "UPDATE joex_private.queue SET cursor = 'joex_private.job_seq_seq'",
    ):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await session.execute(attack)


async def test_names_and_operators_of_a_caller_lead_nowhere(roles_of, connection, database_url):
    """Functions work with the owner's rights: what a caller has put on its path must not run there."""
    submitter = await roles_of("submit", "operate")
    role = await submitter.fetchval("SELECT session_user::text")
    # (Without the grants, no role could make this operator.)
    await connection.execute(f"""
        CREATE SCHEMA trap AUTHORIZATION {role}; GRANT USAGE ON TYPE joex_private.queue_name TO {role};
        GRANT USAGE ON SCHEMA joex_private TO {role}""")
    await submitter.execute("""
        CREATE FUNCTION trap.coined() RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN
            RAISE EXCEPTION 'caught as %', current_user; END $$;
        CREATE FUNCTION trap.clock_timestamp() RETURNS timestamptz LANGUAGE sql
            AS 'SELECT trap.coined()::text::timestamptz';
        CREATE FUNCTION trap.equal(joex_private.queue_name, text) RETURNS boolean LANGUAGE sql
            AS 'SELECT trap.coined()';
        CREATE OPERATOR trap.= (LEFTARG = joex_private.queue_name, RIGHTARG = text, FUNCTION = trap.equal)""")
    await submitter.execute("SET search_path = trap, pg_catalog, joex, joex_private")
    with pytest.raises(asyncpg.RaiseError, match="caught"):
        await submitter.fetchval("SELECT clock_timestamp()")
    job_id = await submitter.fetchval("SELECT joex.submit('a')")
    assert await submitter.fetchval("SELECT joex.set_priority($1, 'high')", job_id)
    assert await submitter.fetchval("SELECT joex.cancel($1)", job_id) == "cancelled"
    await connection.execute(f"""
        DROP SCHEMA trap CASCADE; REVOKE ALL ON TYPE joex_private.queue_name FROM {role};
        REVOKE ALL ON SCHEMA joex_private FROM {role}""")


# A call of each function of a bound role that compares a name which its caller gives, or passes it on to one that does.
COMPARES = (
    "joex.submit('a', grp => 'mine' COLLATE {})",
    "joex.submit('a', grp => 'mine' COLLATE {}, once => '00000000-0000-0000-0000-000000000001')",
    "joex.submit_many('{{a}}', grps => '{{mine}}'::text[] COLLATE {})",
    r"joex_client.add('a', '\x026d696e652f3100', grp => 'mine' COLLATE {}, queue => 'mine')",
    "joex.set_group('mine' COLLATE {}, 'mine', paused => false)",
    "joex.set_queue('mine' COLLATE {}, false)",
    "joex.put_periodic_task('p', 'a', 'daily', grp => 'mine' COLLATE {})",
    "joex_client.accept('mine' COLLATE {})",
    "joex_client.accept_state('mine' COLLATE {})",
    "joex_client.watch_for_workers('me', 'mine' COLLATE {}, '1 minute')",
    "joex_client.watch_for_workers('me' COLLATE {}, 'mine', '0')",
    "joex.subscribe('me' COLLATE {}, '1 minute')",
    "joex.wait_no_more('me' COLLATE {}, ARRAY(SELECT id FROM joex.jobs))",
    "joex.unsubscribe('me' COLLATE {})",
    "joex.retry_failed(grp => 'mine' COLLATE {})",
    "joex.retry_failed(task => 'a' COLLATE {})",
    "joex.remove_periodic_task('p' COLLATE {})",
    "joex.enable_periodic_task('p', grp => 'mine' COLLATE {})",
    "joex.run_periodic_task('p', queue => 'mine' COLLATE {})",
    r"joex_client.find('a' COLLATE {}, '\x0161')",
    r"joex_client.run_of('a' COLLATE {}, '\x0161', '00000000-0000-0000-0000-000000000001')",
    "joex_client.wake_all('mine' COLLATE {})",
)
# The same of those that a bound role may not call.
COMPARES_OF_ALL = ("joex_client.set_timeout('a' COLLATE {}, NULL)", "joex_client.drain('a' COLLATE {})")
# What compares its caller's texts with no name, but with states and scopes.
COMPARES_NO_NAME = {
    "joex.finish", "joex.set_priority", "joex.update", "joex.wait_for", "joex_private.bounds", "joex_private.in_both",
}  # fmt: skip


async def test_of_each_function_that_takes_texts_it_is_known_whether_it_compares_names(connection):
    rows = await connection.fetch("""
        SELECT DISTINCT joex_private.name_of(f) FROM pg_proc f CROSS JOIN joex_private.functions_of_scopes() s
        WHERE joex_private.name_of(f) = ANY (s.functions) AND s.scope NOT IN ('executor', 'owner')
              AND f.proargtypes::oid[] && ARRAY['text'::regtype, 'text[]'::regtype]::oid[]""")
    known = {call.partition("(")[0] for call in COMPARES + COMPARES_OF_ALL} | COMPARES_NO_NAME
    assert {row[0] for row in rows} == known


async def test_a_collation_of_a_caller_makes_no_two_names_equal(roles_of, connection):
    """With ICU, one of a role's own (RULES = '&mine = theirs') takes the groups of two tenants for one."""
    of_groups = await roles_of("submit", "operate", "view", groups=["mine"])
    of_queues = await roles_of("work", "operate", "submit", "view", queues=["mine"])
    await of_groups.execute('CREATE COLLATION pg_temp.own FROM "C"')
    await of_queues.execute('CREATE COLLATION pg_temp.own FROM "C"')
    job_id = await connection.fetchval("SELECT joex.submit('a', queue => 'mine')")
    await connection.execute("SELECT joex.subscribe('me', '1 minute'), joex.subscribe('other', '1 minute')")
    await connection.execute("SELECT joex.wait_for('other', ARRAY[$1::uuid])", job_id)
    for call in COMPARES:
        session = of_groups if "grp" in call or "set_group" in call else of_queues
        with pytest.raises(asyncpg.InvalidParameterValueError, match="collation: expected one of pg_catalog"):
            await session.execute(f"SELECT {call.format('pg_temp.own')}")
        await session.execute(f"SELECT {call.format(chr(34) + 'C' + chr(34))}")


async def test_a_collation_of_a_caller_makes_no_two_names_equal_where_no_role_is_bound_either(roles_of, connection):
    unbound = await roles_of("submit", "operate", "work", "view")
    await unbound.execute('CREATE COLLATION pg_temp.own FROM "C"')
    await connection.execute("SELECT joex.set_group('other', max_waiting => 1)")  # (else a submission compares nothing)
    job_id = await connection.fetchval("SELECT joex.submit('a')")
    await connection.execute("SELECT joex.subscribe('other', '1 minute')")
    await connection.execute("SELECT joex.wait_for('other', ARRAY[$1::uuid])", job_id)
    for call in COMPARES + COMPARES_OF_ALL:
        if "once" not in call and "submit_many" not in call:  # (which compares the names of the rows that it has made)
            with pytest.raises(asyncpg.InvalidParameterValueError, match="collation: expected one of pg_catalog"):
                await unbound.execute(f"SELECT {call.format('pg_temp.own')}")


# What a role that is bound to the group mine gets for a job of another group: the same as for one that does not exist.
OF_A_JOB = {
    "joex.cancel($1)": "not_found",
    "joex.set_priority($1, 'high')": False,
    "joex.set_args($1, '{}')": False,
    "joex.retry($1)": False,
    "joex.remove($1)": "not_found",
    "joex_client.resubmit($1)": "not_found",
    "(SELECT reason FROM joex.why($1))": "not_found",
    "(SELECT count(*) FROM joex.log($1))": 0,
    "(SELECT count(*) FROM joex.attempts($1))": 0,
    "(SELECT count(*) FROM joex.jobs WHERE id = $1)": 0,
    "(SELECT ids FROM joex_client.versions(ARRAY[$1]))": None,
    "joex_client.goes_round($1)": None,
}
REFUSED = (
    "joex.submit('a', grp => 'theirs')",
    "joex.submit_many('{a}', grps => '{theirs}')",
    "joex.submit('a', grp => 'theirs', once => '00000000-0000-0000-0000-000000000001')",
    "joex.submit_many('{a}', grps => '{theirs}', trackers => '{t}')",
    r"joex_client.add('a', '\x0161', grp => 'theirs', queue => 'default')",
    r"joex_client.add('a', '\x027468656972732f3100', grp => 'mine', queue => 'default')",
    "joex.set_group('theirs', paused => true)",
    "joex.set_group('mine', weight => 100)",
    "joex.set_group('mine', max_running => 1000)",
    "joex.set_queue('default', true)",
    "joex.put_periodic_task('p', 'a', 'daily', grp => 'theirs')",
    "joex_client.accept('default')",
    "joex_client.accept_state('default')",
    "joex_client.watch_for_workers('me', 'default', '1 minute')",
    "joex_client.set_timeout('a', '1 minute')",
    "joex_client.drain(NULL)",
    "joex.events_channel()",
    "joex.shares()",
    "joex_client.wake_all('default')",
)


async def test_a_bound_role_can_not_tell_whether_anything_else_exists(roles_of, connection, bench):
    bound = await roles_of(*SCOPES, groups=["mine"])
    theirs = await bench.submit("theirs")
    await connection.execute(f"SELECT {REFUSED[2]}")  # it is there
    await connection.execute("SELECT joex.put_periodic_task('theirs', 'a', 'daily', grp => 'theirs')")
    for job_id in (theirs, uuid4()):
        for call, expected in OF_A_JOB.items():
            call = call.replace("$1", "$1::uuid")  # noqa: PLW2901
            assert await bound.fetchval(f"SELECT {call}", job_id) == expected, call
    for call in REFUSED:
        with pytest.raises(
            asyncpg.InsufficientPrivilegeError, match=r"bound to groups|may not use group|all groups share these names"
        ):
            await bound.execute(f"SELECT {call}")
    for call in (
        "remove_periodic_task('theirs', any_owner => true)",
        "enable_periodic_task('theirs', false, any_owner => true)",
    ):
        assert await bound.fetchval(f"SELECT joex.{call}") == "not_found"
    assert await bound.fetchval("SELECT answer FROM joex.run_periodic_task('theirs')") == "not_found"
    await connection.execute("UPDATE joex_private.periodic_task SET grp = 'mine' WHERE owner = 'joex'")
    await pools.note_step(connection, STEP)
    for view in VIEWS:
        assert await bound.fetch(f"TABLE joex.{view}") == []
    assert await bound.fetchval("SELECT joex.retry_failed()") == 0
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await bound.execute("SELECT FROM joex_private.job")
    assert await connection.fetchval("SELECT state FROM joex.jobs WHERE id = $1", theirs) == "waiting"


@pytest.mark.parametrize("call", ["joex.cancel($1)", "joex_client.find('t', $1)", "count(*) FROM joex.why($1)"])
async def test_the_time_of_an_answer_does_not_tell_a_bound_role_that_others_have_a_job(
    roles_of, connection, bench, call
):
    """The same functions are called for the job of another group and for none."""
    bound = await roles_of("submit", "view", groups=["mine"])
    ids: list[Any] = [await bench.submit("theirs"), uuid4()]
    if "find" in call:
        ids = [pack("id", "theirs/7"), pack("id", "theirs/8")]
        await connection.execute("SELECT joex_client.add('t', $1, grp => 'theirs')", ids[0])
    role = await bound.fetchval("SELECT session_user::text")
    await connection.execute(f"SET track_functions = 'all'; SET SESSION AUTHORIZATION {role}")
    called: list[Counter[str]] = []
    async with connection.transaction():
        for one in ids:
            await connection.fetchval(f"SELECT {call}", one)
            rows = await connection.fetch("SELECT funcname, calls FROM pg_stat_xact_user_functions")
            called.append(Counter({row["funcname"]: row["calls"] for row in rows}))
    await connection.execute("RESET SESSION AUTHORIZATION; RESET track_functions")
    assert called[0]["may"] > 0
    assert called[1] == called[0] + called[0]


@pytest.mark.parametrize(
    ("setting", "call"),
    [
        ("trace_notify = on", "joex.submit('a', grp => 'mine')"),
        ("debug_print_plan = on", "joex.submit('a', grp => 'mine')"),
        ("debug_print_plan = on", "joex.cancel($1)"),
    ],
)
async def test_messages_for_developers_tell_a_bound_role_no_values_of_functions(
    roles_of, bench, connection, setting, call
):
    """Such as the group of a job of others, or the channel of events."""
    theirs = await bench.submit("theirs")
    await connection.execute("SELECT joex.subscribe('dashboard', '1 minute')")
    bound = await roles_of("submit", groups=["mine"])
    inside: list[str] = []  # (a message from within a function has a context)
    bound.add_log_listener(lambda _, message: inside.extend([message.context] if message.context else []))
    await bound.execute(f"SET client_min_messages = debug5; SET plan_cache_mode = force_custom_plan; SET {setting}")
    await bound.execute("DO $$ BEGIN PERFORM pg_notify('mine', 'x') FROM pg_class LIMIT 1; END $$")
    await bound.fetchval("SELECT 1")  # (listeners are called before it answers)
    assert inside
    inside.clear()
    await bound.fetchval(f"SELECT {call}", *[theirs] * ("$1" in call))
    await bound.fetchval("SELECT 1")
    assert inside == []


@pytest.mark.parametrize("queues", [None, ["mine"]], ids=["everywhere", "bound"])
async def test_a_role_that_has_set_a_limit_and_not_committed_keeps_nobody_from_limits_and_revocations(
    roles_of, connection, queues
):
    viewer = await roles_of("view")
    operator = await roles_of("operate", queues=queues)
    await connection.execute("SET lock_timeout = '5s'")
    async with operator.transaction():
        await operator.execute("SELECT joex.set_group('a', queue => 'mine', max_waiting => 1)")
        await connection.execute("SELECT joex.set_group('a', max_waiting => 1)")
        name = await viewer.fetchval("SELECT session_user::text")
        await roles.set_scopes(connection, RoleScopes(name, [], None, None))


# The entries of the indexes of a table that this transaction has read.
ENTRIES_READ = """
    SELECT sum(pg_stat_get_xact_tuples_returned(indexrelid))::bigint FROM pg_index
    WHERE indrelid = ('joex_private.' || $1::text)::regclass"""


async def test_a_bound_role_that_has_set_very_many_limits_and_not_committed_slows_no_end_of_a_run_in_other_groups(
    roles_of, bench
):
    bound = await roles_of("operate", queues=["mine"])
    await bench.submit()
    taken = await bench.take_one(await bench.executor())
    async with bound.transaction(), bench.connection.transaction():
        await bound.execute("SELECT joex.set_group('g' || i, 'mine', max_running => 1) FROM generate_series(1, 500) i")
        before = await bench.connection.fetchval(ENTRIES_READ, "group_setting")
        assert await bench.finish(taken) == []
        assert await bench.connection.fetchval(ENTRIES_READ, "group_setting") - before < 10


async def test_a_role_that_has_set_very_many_timeouts_and_not_committed_slows_no_take_of_other_tasks(roles_of, bench):
    operator = await roles_of("operate")
    await bench.submit()
    executor = await bench.executor()
    async with operator.transaction(), bench.connection.transaction():
        await operator.execute("SELECT joex_client.set_timeout('t' || i, '1 minute') FROM generate_series(1, 500) i")
        before = await bench.connection.fetchval(ENTRIES_READ, "task_timeout")
        await bench.take_one(executor)
        assert await bench.connection.fetchval(ENTRIES_READ, "task_timeout") - before < 10


@pytest.mark.parametrize(
    ("scope", "call"),
    [("operate", "joex.set_queue('mine', true)"), ("work", "count(*) FROM joex_client.accept('mine')")],
    ids=["pause", "accept"],
)
async def test_a_bound_role_that_has_made_its_queue_and_not_committed_keeps_nobody_from_a_new_queue(
    roles_of, bench, another_connection, scope, call
):
    """Nor does a take of its queue wait until the transaction ends."""
    bound = await roles_of(scope, queues=["mine"])
    for queue in ("mine", "mine", "theirs"):
        await bench.submit(queue=queue)
    executor = await bench.executor()
    pauser = await another_connection()
    for session in (pauser, bench.connection):
        await session.execute("SET lock_timeout = '5s'")
    async with bound.transaction():
        await bound.execute(f"SELECT {call}")
        taken = await runs.take(bench.connection, executor, ["mine", "theirs"], 4, FOUR_ONE)
        assert [job.queue for job in taken][-2:] == ["mine", "theirs"]
        await pauser.execute("SELECT joex.set_queue('another', true)")
        made = "SELECT name FROM joex_private.queue ORDER BY 1"
        assert [row["name"] for row in await pauser.fetch(made)] == ["another", "default", "theirs"]


async def test_an_executor_takes_from_a_queue_that_a_bound_role_was_making_when_the_executors_role_was_granted(
    roles_of, bench
):
    """The grant does not see the queue's sequences, and the queue's transaction does not see the grant."""
    bound = await roles_of("operate", queues=["mine"])
    executor = await bench.executor()
    async with bound.transaction():
        await bound.execute("SELECT joex.set_queue('mine', true)")
        await bound.execute("SELECT joex.set_queue('mine', false)")
        session = await roles_of("executor")
        await session.execute("SELECT joex_private.serve_queue('mine')")
    for _ in range(2):
        await bench.submit(queue="mine")
    may = "SELECT has_sequence_privilege(cursor, 'UPDATE') FROM joex_private.queue WHERE name = 'mine'"
    for locked in (True, False):
        async with bench.connection.transaction():
            if locked:  # as a grant that is not committed, and as another first take
                await bench.connection.execute("LOCK TABLE joex_private.role_scope IN SHARE ROW EXCLUSIVE MODE")
            async with asyncio.timeout(PATIENCE):
                assert len(await runs.take(session, executor, ["mine"], 1, FOUR_ONE)) == 1
        assert await session.fetchval(may) is not locked


RIGHTS_ON_QUEUES = """
    SELECT c.relname FROM pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) a
    WHERE c.relnamespace = 'joex_private'::regnamespace AND a.grantee = $1::text::regrole
"""


async def test_an_executors_role_that_is_revoked_while_a_bound_role_makes_a_queue_has_no_right_on_it(
    roles_of, connection, bench
):
    """The revocation does not see the queue's sequences."""
    bound = await roles_of("operate", queues=["mine"])
    revoked, other = await roles_of("executor"), await roles_of("executor")
    role = await revoked.fetchval("SELECT session_user::text")
    executor = await bench.executor()
    async with bound.transaction():
        await bound.execute("SELECT joex.set_queue('mine', true)")
        await bound.execute("SELECT joex.set_queue('mine', false)")
        await roles.set_scopes(connection, RoleScopes(role, [], None, None))
    assert await connection.fetch(RIGHTS_ON_QUEUES, role) == []
    await bench.submit(queue="mine")
    assert len(await runs.take(other, executor, ["mine"], 1, FOUR_ONE)) == 1
    assert await connection.fetch(RIGHTS_ON_QUEUES, role) == []


async def test_a_take_that_waits_for_a_revocation_grants_the_revoked_role_nothing(
    roles_of, connection, bench, another_connection
):
    await connection.execute("ALTER FUNCTION joex_private.grant_queue SET lock_timeout = '1min'")
    revoked, other = await roles_of("executor"), await roles_of("executor")
    role = await revoked.fetchval("SELECT session_user::text")
    executor = await bench.executor()
    await bench.submit()
    async with connection.transaction():
        await roles.set_scopes(connection, RoleScopes(role, [], None, None))
        taking = asyncio.ensure_future(runs.take(other, executor, ["default"], 1, FOUR_ONE))
        waits = "SELECT EXISTS (SELECT FROM pg_locks WHERE pid = $1 AND NOT granted)"
        await eventually(lambda: connection.fetchval(waits, other.get_server_pid()))
    assert len(await taking) == 1
    assert await connection.fetch(RIGHTS_ON_QUEUES, role) == []
    assert await other.fetchval("SELECT bool_and(has_sequence_privilege(cursor, 'UPDATE')) FROM joex_private.queue")


async def test_a_bound_worker_breaks_no_list_of_jobs_by_a_retry_before_the_first_year(roles_of, connection, bench):
    """Most languages have no such dates. The retry is due at once."""
    worker = await roles_of("work", queues=["mine"])
    job_id = await bench.submit(queue="mine")
    [run] = await worker.fetch("SELECT lock_id FROM joex_client.accept('mine')")
    finish = "SELECT joex.finish($1, $2, state => 'stuck', delay => interval '-2100 years')"
    assert await worker.fetchval(finish, job_id, run["lock_id"]) == "ok"
    [job] = await connection.fetch("TABLE joex.jobs")
    [attempt] = await connection.fetch("SELECT * FROM joex.attempts($1)", job_id)
    assert job["due_at"] == attempt["retry_at"] >= job["submitted_at"]
    [again] = await worker.fetch("SELECT id FROM joex_client.accept('mine')")
    assert again["id"] == job_id


async def test_a_bound_role_makes_the_jobs_of_others_notify_of_no_event_and_nobody_makes_them_so_for_ever(
    roles_of, connection
):
    bound = await roles_of("submit", "view", groups=["mine"])
    with pytest.raises(asyncpg.InvalidParameterValueError, match="lasts: expected at most an hour; got 24:00:00"):
        await bound.execute("SELECT joex.subscribe('for ever', '1 day')")
    await bound.execute("SELECT joex.subscribe('mine', '1 hour')")
    assert await connection.fetchval("SELECT joex_private.is_heard(false) AND NOT joex_private.is_heard(true)")
    await connection.execute("SELECT joex.subscribe('all', '1 hour')")
    assert await connection.fetchval("SELECT joex_private.is_heard(true)")


async def test_no_worker_makes_the_jobs_of_a_queue_notify_for_more_than_an_hour(roles_of, connection):
    """Others submit to the queue too, and the role may be revoked."""
    worker = await roles_of("work", queues=["mine"])
    await worker.execute("SELECT joex_client.watch_for_workers('w', 'mine', '200000 years')")
    longest = "SELECT max(until) < clock_timestamp() + interval '61 minutes' FROM joex_private.watch"
    assert await connection.fetchval(longest)


async def test_no_interval_of_a_caller_means_another_time_by_the_clock_than_in_a_comparison(roles_of, connection):
    """A month has 30 days in a comparison, and in the calendar the days that it has; a day may have 23 hours."""
    bound = await roles_of("submit", groups=["mine"])
    worker = await roles_of("work", queues=["mine"])
    operator = await roles_of("operate")
    many = ["3000000 mons -90000000 days 1 hour", "-90000000 days 2160000001 hours", "170000000 years"]
    for lasts in [*many, *["infinity"] * (connection.get_server_version().major > 16)]:
        await worker.execute("SELECT joex_client.watch_for_workers('w', 'mine', $1::text::interval)", lasts)
        longest = "SELECT max(until) < clock_timestamp() + interval '61 minutes' FROM joex_private.watch"
        assert await connection.fetchval(longest), lasts
    with pytest.raises(asyncpg.InvalidParameterValueError, match="lasts: expected at most an hour"):
        await bound.execute("SELECT joex.subscribe('a', '3000000 mons -90000000 days 1 hour')")
    with pytest.raises(asyncpg.CheckViolationError, match="at most 100 years"):
        await operator.execute("SELECT joex_client.set_timeout('a', '71000000 mons -2129999999 days')")
    await operator.execute("SELECT joex_client.set_timeout('a', '100 years')")
    for function, names, kinds, source in await connection.fetch(f"""
        SELECT proname, proargnames, ARRAY(SELECT unnest(proargtypes)::regtype::text), prosrc
        FROM pg_proc WHERE pronamespace IN {OURS} AND 'interval'::regtype = ANY (proargtypes)"""):  # noqa: S608
        if function in {"in_seconds", "put_periodic_task"}:  # (the latter calls store_periodic_task)
            continue
        for name in (name for name, kind in zip(names, kinds, strict=False) if kind == "interval"):
            first = re.search(rf"\b{name}\b.*", source)
            assert first, f"{function} uses {name}"
            assert first[0] == f"{name} := joex_private.in_seconds({name});", (
                f"{function}: count {name} in seconds first"
            )


async def test_a_worker_that_waits_by_the_name_of_an_operator_does_not_hold_up_the_operator(roles_of, connection):
    """Jobs name their executors, and so the pools that operators watch queues for."""
    worker = await roles_of("work", queues=["mine"])
    await connection.execute("SET lock_timeout = '5s'")
    async with worker.transaction():
        await worker.execute("SELECT joex_client.watch_for_workers('shop.1/docs', 'mine', '1 minute')")
        await pools.watch(connection, "shop.1/docs", ["mine"], 60.0)


async def test_an_open_transaction_of_a_tenant_has_forgotten_nothing_of_others_that_ended(roles_of, connection):
    """They come back by the same names: an operator by that of a pool, a client by its own."""
    worker, client = await roles_of("work", queues=["mine"]), await roles_of("submit", groups=["mine"])
    await pools.watch(connection, "shop.1/docs", ["mine"], 60.0)
    await connection.execute("SELECT joex.subscribe('theirs', '1 minute')")
    for table in ("watch", "subscriber"):
        await connection.execute(f"UPDATE joex_private.{table} SET until = until - interval '2 hours'")  # noqa: S608
    await connection.execute("SET lock_timeout = '5s'")
    async with worker.transaction(), client.transaction():
        await worker.execute("SELECT joex_client.watch_for_workers('w', 'mine', '1 minute')")
        await client.execute("SELECT joex.subscribe('mine', '1 minute')")
        await pools.watch(connection, "shop.1/docs", ["mine"], 60.0)
        await connection.execute("SELECT joex.subscribe('theirs', '1 minute')")


async def test_a_bound_role_does_all_that_its_scopes_allow_in_its_groups(roles_of, connection):
    bound = await roles_of(*SCOPES, groups=["mine"], queues=["default"])
    job_id = await bound.fetchval("SELECT joex.submit('a', '{\"x\": 1}', grp => 'mine')")
    await connection.execute("SELECT joex.submit('a', grp => 'theirs')")
    [row] = await bound.fetch("SELECT * FROM joex.jobs")
    assert (row["id"], row["args"]) == (job_id, '{"x": 1}')
    assert await bound.fetchval("SELECT waiting FROM joex.queue_stats") == 1
    assert await bound.fetchval("SELECT reason FROM joex.why($1)", job_id) == "no_executor"
    assert await bound.fetchval("SELECT joex.set_priority($1, 'high')", job_id)
    assert await bound.fetchval("SELECT joex.cancel($1)", job_id) == "cancelled"
    assert await bound.fetchval("SELECT joex.retry($1)", job_id)
    await bound.execute("SELECT joex.set_group('mine', paused => true)")
    assert await bound.fetchval("SELECT joex.put_periodic_task('p', 'a', 'daily', grp => 'mine')") == "set"
    assert await bound.fetchval("SELECT answer FROM joex.run_periodic_task('p')") == "submitted"
    own = r"joex_client.add('a', '\x026d696e652f3100', grp => 'mine', queue => 'default')"
    assert await bound.fetchval(f"SELECT {own}") is not None
    with pytest.raises(asyncpg.InsufficientPrivilegeError, match="may not use group 'mine' in queue 'mail'"):
        await bound.fetchval("SELECT joex.submit('a', grp => 'mine', queue => 'mail')")


IDS = {
    "acme/nightly": True, "acme/": True, "acme/eu/nightly": False, "acme/eu/": False, "acme//": False,
    "acme": False, "acmes/x": False, "x/acme/y": False, ("acme", "a/b", 7): True, ("acme",): True,
    ("acme/x",): False, ("acme\0", 7): False, ("x", "acme"): False, (): False, 7: False, None: False,
}  # fmt: skip


@pytest.mark.parametrize("bounds", [{"groups": ["acme"]}, {"queues": ["acme"]}], ids=["group", "queue"])
async def test_an_id_of_a_bound_caller_is_its_group_and_one_slash_in_sql_as_over_http(roles_of, bounds):
    """The ids of a group acme/eu are not those of acme. (Group and queue are both acme here.)"""
    own: dict[str, Any] = {kind: tuple(names) for kind, names in bounds.items()}
    caller = Caller("its token", frozenset(), **own)
    told = r"id: all .* share these names: with .*, give it as '?\"?acme/NAME'?\"?, where NAME has no slash"
    role = await roles_of("submit", "operate", **bounds)
    add = "SELECT joex_client.add('t', $1, grp => 'acme', queue => 'acme')"
    for name, is_own in IDS.items():
        if is_own:
            await role.execute(add, pack("id", name))
            caller.check_own_name("id", name, "acme", "acme")
        else:
            with pytest.raises(asyncpg.InsufficientPrivilegeError, match=told):
                await role.execute(add, pack("id", name))
            with pytest.raises(HTTPException, match=told):
                caller.check_own_name("id", name, "acme", "acme")


@pytest.mark.parametrize("kind", ["groups", "queues"])
async def test_bound_roles_whose_periodic_tasks_have_one_id_reach_each_their_own(roles_of, connection, kind):
    """And none can tell that there is another: the answers are those of a database without it."""
    column = {"groups": "grp", "queues": "queue"}[kind]
    tenants = [(place, await roles_of("view", "payloads", "operate", **{kind: [place]})) for place in ("acme", "shop")]
    for place, role in tenants:
        assert await role.fetch("TABLE joex.periodic_tasks") == []
        for call in ("remove_periodic_task('p', any_owner => true)", "enable_periodic_task('p', any_owner => true)"):
            assert await role.fetchval(f"SELECT joex.{call}") == "not_found"
        assert await role.fetchval("SELECT answer FROM joex.run_periodic_task('p')") == "not_found"
        put = f"SELECT joex.put_periodic_task('p', 'a', 'daily', {column} => $1)"
        assert [await role.fetchval(put, place) for _ in range(2)] == ["set", "same"]
        assert await role.fetchval("SELECT joex.enable_periodic_task('p', false)") == "set"
        assert await role.fetchval("SELECT answer FROM joex.run_periodic_task('p')") == "submitted"
        assert [job[column] for job in await role.fetch("TABLE joex.jobs")] == [place]
        assert [(one[column], one["enabled"]) for one in await role.fetch("TABLE joex.periodic_tasks")] == [
            (place, False)
        ]
    (_, role), (shop, other) = tenants
    remove = "SELECT joex.remove_periodic_task('p', any_owner => true)"
    assert await role.fetchval(f"SELECT joex.remove_periodic_task('p', {column} => $1)", shop) == "not_found"
    assert [await role.fetchval(remove) for _ in range(2)] == ["removed", "not_found"]
    assert [one[column] for one in await connection.fetch("TABLE joex.periodic_tasks") if one["id"] == "p"] == [shop]
    assert await other.fetchval(remove) == "removed"


@pytest.mark.parametrize("owner", ["app:shop", "kubernetes:shop.1/docs"])
async def test_a_bound_role_makes_no_periodic_tasks_of_apps_and_pools(roles_of, connection, owner):
    """Each start of an app's executors clears away what the app no longer has: a million rows took it 14 s."""
    put = "SELECT joex.put_periodic_task('p', 'a', 'daily', grp => 'acme', owner => $1)"
    calls = (put, "SELECT joex.enable_periodic_task('p', false, $1)", "SELECT joex.remove_periodic_task('p', $1)")
    bound, unbound = await roles_of("operate", groups=["acme"]), await roles_of("operate")
    assert [await unbound.fetchval(call, owner) for call in calls[:2]] == ["set", "set"]
    for call in calls:
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match=rf"^owner: .*, so it is no app .* got {owner}\n"):
            await bound.execute(call, owner)
    assert await bound.fetchval("SELECT joex.enable_periodic_task('p', any_owner => true)") == "set"
    disable = "SELECT joex.enable_periodic_task('p', false, $1, any_owner => true)"
    assert await bound.fetchval(disable, owner) == "set", "as the error says"
    assert await bound.fetchval("SELECT joex.remove_periodic_task('p', $1, any_owner => true)", owner) == "removed"
    assert [await unbound.fetchval(calls[nr], owner) for nr in (0, 2)] == ["set", "removed"]
    assert await bound.fetchval(put, "my own") == "set"


async def test_an_unbound_caller_names_the_queue_and_the_group_of_an_id_that_occurs_twice(connection):
    for place in ("acme", "shop"):
        await connection.execute("SELECT joex.put_periodic_task('p', 'a', 'daily', grp => $1)", place)
    said = 'id: several periodic tasks have the id "p": name the queue and the group too, '
    said += 'such as queue "default" and group "acme"'
    for call in ("enable_periodic_task", "run_periodic_task", "remove_periodic_task"):
        with pytest.raises(asyncpg.InvalidParameterValueError, match=f"^{said}$"):
            await connection.execute(f"SELECT joex.{call}('p')")
        await connection.execute(f"SELECT joex.{call}('p', queue => 'default', grp => 'shop')")


@pytest.mark.parametrize("by_array", [False, True], ids=["submit", "submit_many"])
async def test_a_role_that_is_bound_to_queues_alone_takes_no_tracker_of_another_queue(roles_of, connection, by_array):
    """Trackers are unique in a group, and it submits into all groups of its queue. (HTTP has the same rule.)"""
    submit = "SELECT joex.submit('t', grp => $1, queue => $2, tracker => $3)"
    if by_array:
        submit = "SELECT joex.submit_many('{t}', grps => ARRAY[$1], queues => ARRAY[$2], trackers => ARRAY[$3])"
    bound, theirs = await roles_of("submit", queues=["mine"]), await roles_of("submit", groups=["acme"])
    member = await roles_of("submit", queues=["mine"])
    names = [await one.fetchval("SELECT session_user::text") for one in (theirs, member)]
    await connection.execute(f"GRANT {names[0]} TO {names[1]}")
    assert await theirs.fetchval(submit, "acme", "default", "seven") is not None
    told = 'tracker: all queues share these names: with the role .*, give it as "mine/NAME", where NAME has no slash'
    for tracker in ("seven", "eight", "mine", "mine/eu/seven"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match=told):
            await bound.fetchval(submit, "acme", "mine", tracker)
    assert await bound.fetchval(submit, "acme", "mine", "mine/seven") is not None
    assert await bound.fetchval(submit, "acme", "mine", None) is not None
    assert await member.fetchval(submit, "acme", "mine", "seven") is None  # (it may use the group in all queues too)
    for one in (await roles_of("submit", groups=["acme"], queues=["mine"]), connection):
        assert await one.fetchval(submit, "acme", "mine", "seven") is None


async def test_a_function_of_a_bound_role_sees_no_row_that_is_not_its_own(roles_of, connection, bench):
    """The planner may not evaluate a condition of the caller before that of the view."""
    await bench.submit("theirs", args={"secret": 1})
    bound = await roles_of("view", "payloads", groups=["mine"])
    role = await bound.fetchval("SELECT session_user::text")
    await connection.execute(f"CREATE SCHEMA peek AUTHORIZATION {role}")
    await bound.execute("""
        CREATE FUNCTION peek.at(jsonb) RETURNS boolean LANGUAGE plpgsql COST 0.0001 AS $$ BEGIN
            RAISE EXCEPTION 'seen %', $1; END $$""")
    assert await bound.fetch("SELECT FROM joex.jobs WHERE peek.at(args)") == []
    await connection.execute("DROP SCHEMA peek CASCADE")


async def test_a_member_of_a_bound_role_is_bound_and_another_role_stays_free(roles_of, connection):
    bound = await roles_of("submit", "view", groups=["mine"])
    free = await roles_of("submit", "view")
    member = await roles_of()
    names = [await one.fetchval("SELECT session_user::text") for one in (bound, member)]
    await connection.execute(f"GRANT {names[0]} TO {names[1]}")
    for session in (member, bound):
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="may not use group 'theirs'"):
            await session.execute("SELECT joex.submit('a', grp => 'theirs')")
    await member.execute(f"SET ROLE {names[0]}")
    with pytest.raises(asyncpg.InsufficientPrivilegeError, match="may not use group 'theirs'"):
        await member.execute("SELECT joex.submit('a', grp => 'theirs')")
    assert await free.fetchval("SELECT joex.submit('a', grp => 'theirs')") is not None
    assert await connection.fetchval("SELECT joex.submit('a', grp => 'others')") is not None  # the owner
    assert await free.fetchval("SELECT count(*) FROM joex.jobs") == 2


READ = "SELECT {} FROM {}"


async def test_a_bound_role_learns_that_its_queue_is_held_and_not_by_which_session(roles_of, connection, bench):
    await bench.executor()
    job_id = await bench.submit("mine")
    await connection.execute("SELECT pg_advisory_lock(joex_private.ring_lock(), hashtext('default'))")
    hidden = {"queue": "default", "session": None, "role": None}
    for scopes, is_bound in ((("view",), False), (("view", "payloads"), True)):
        session = await roles_of(*scopes, groups=["mine"] if is_bound else None)

        async def is_held(session=session, is_bound=is_bound) -> bool:
            rows = await session.fetch("SELECT reason, detail::text FROM joex.why($1)", job_id)
            found = {row["reason"]: json.loads(row["detail"]) for row in rows}
            return "queue_held" in found and (found["queue_held"] == hidden) is is_bound

        await eventually(is_held)


async def test_a_role_that_takes_no_jobs_is_named_as_the_holder_of_a_queue_however_often_it_sends_statements(
    roles_of, connection, bench
):
    await bench.executor()
    job_id = await bench.submit("mine")
    bystander = await roles_of("submit", groups=["mine"])
    await bystander.execute("SELECT pg_advisory_lock(1785685003, hashtext('default'))")
    rows = await connection.fetch("SELECT reason, detail ->> 'role' AS role FROM joex.why($1)", job_id)
    assert [tuple(row) for row in rows] == [("queue_held", await bystander.fetchval("SELECT session_user::text"))]


async def test_payloads_need_their_scope(roles_of, bench):
    job_id = await bench.submit()
    viewer, reader = await roles_of("view"), await roles_of("view", "payloads")
    for column in ("args", "result", "error", "message", "progress_message", "opts"):
        for relation in ("joex.jobs", "joex_private.job"):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await viewer.execute(READ.format(column, relation))
            await reader.execute(READ.format(column, relation))
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await viewer.execute("SELECT joex.log($1)", job_id)
    assert await viewer.fetchval("SELECT state FROM joex.jobs") == "waiting"
    for secret in ("this_database", "role_scope"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await reader.execute(f"TABLE joex_private.{secret}")


async def test_an_error_shows_no_arguments_of_a_periodic_task_to_a_role_without_payloads(roles_of, connection):
    """The server shows the row that violates a constraint, to a function with the owner's rights as a whole."""
    await connection.execute("SELECT joex.put_periodic_task('a', 't', 'daily', args => '{\"x\": \"a secret\"}')")
    operator = await roles_of("operate")
    with pytest.raises(asyncpg.PostgresError) as refused:
        await operator.execute("SELECT joex.enable_periodic_task('a', enabled => NULL)")
    assert "a secret" not in str(refused.value.as_dict())


# A value of each type, or of arguments with this name; and one that most of them refuse.
ARGUMENTS = {
    "text": ("'default'", "repeat('x', 2000)"),
    "text[]": ("'{default}'", "'{x, NULL}'"),
    "jsonb": ("'{}'", "'[]'"),
    "jsonb[]": ("'{\"{}\"}'", "'{[]}'"),
    "bytea": ("'\\x0264656661756c742f3100'", "'\\xff'"),
    "uuid": ("gen_random_uuid()", "gen_random_uuid()"),
    "uuid[]": ("ARRAY[gen_random_uuid()]", "'{NULL}'"),
    "boolean": ("true", "false"),
    "integer": ("1", "-2"),
    "integer[]": ("'{1}'", "'{-2}'"),
    "bigint": ("1", "-2"),
    "interval": ("'1 minute'", "'-1 minute'"),
    "timestamptz": ("now()", "'infinity'"),
    "timestamptz[]": ("ARRAY[now()]", "'{infinity}'"),
    "priority": ("'high'", "'x'"),
    "priorities": ("'{high}'", "'{x}'"),
    "tracker": ("'default/1'", "''"),
    "trackers": ("'{default/1}'", "'{\"\"}'"),
    "trace_context": ("NULL", "'x'"),
    "state": ("'success'", "'running'"),
}


async def test_no_error_shows_the_row_that_a_function_could_not_write(roles_of, connection):
    """It has the place of the group on its ring: who knows places can choose a name that is before another group."""
    bound, unbound = await roles_of(*SCOPES, queues=["default"]), await roles_of(*SCOPES)
    await connection.execute("SELECT joex.submit('a'), joex.subscribe('default', '1 hour')")
    [run] = await bound.fetch("SELECT id, lock_id FROM joex_client.accept('default')")
    functions = await connection.fetch("""
        SELECT DISTINCT joex_private.name_of(p) AS name, p.proargnames[:p.pronargs] AS names,
               ARRAY(SELECT replace(format_type(t.oid, NULL), 'timestamp with time zone', 'timestamptz')
                     FROM unnest(p.proargtypes) WITH ORDINALITY t(oid, nr) ORDER BY t.nr) AS types
        FROM pg_proc p, joex_private.functions_of_scopes() s
        WHERE joex_private.name_of(p) = ANY (s.functions) AND s.scope NOT IN ('executor', 'owner')
              AND p.provolatile = 'v'""")
    of_a_run = {("id", "uuid"): f"'{run['id']}'", ("lock_id", "uuid"): f"'{run['lock_id']}'"}
    for function in functions:
        arguments = list(zip(function["names"] or [], function["types"], strict=True))
        known = [ARGUMENTS.get(name, ARGUMENTS[kind]) for name, kind in arguments]
        right = [of_a_run.get(argument, values[0]) for argument, values in zip(arguments, known, strict=True)]
        tries = [right]
        for nr, values in enumerate(known):
            tries += [[*right[:nr], wrong, *right[nr + 1 :]] for wrong in ("NULL", values[1])]
        for session in (unbound, bound):
            for given in tries:
                pairs = zip(arguments, given, strict=True)
                call = f"{function['name']}({', '.join(f'{name} => {value}::{kind}' for (name, kind), value in pairs)})"
                refused = ""
                transaction = session.transaction()
                await transaction.start()
                try:
                    await session.execute(f"SELECT * FROM {call}")  # noqa: S608 - constants
                except asyncpg.PostgresError as error:
                    refused = str(error.as_dict())
                assert not refused or given is not right or session is bound, (call, refused)
                assert "Failing row" not in refused, (call, refused)
                await transaction.rollback()


async def test_a_viewer_learns_no_name_of_a_subscription(roles_of):
    """By one it could end the waits of another client, or keep them waiting by a transaction that it leaves open."""
    viewer = await roles_of("view", "payloads")
    for secret in ("subscriber", "subscription", "watch"):
        with case(secret), pytest.raises(asyncpg.InsufficientPrivilegeError):
            await viewer.execute(f"TABLE joex_private.{secret}")


async def test_of_an_attempt_the_error_needs_the_scope_payloads(roles_of, bench):
    job_id = await bench.submit()
    await bench.finish(await bench.take_one(await bench.executor()), "failed", error="a secret", age=1.0)
    for scopes, error in ((["view"], None), (["view", "payloads"], "a secret")):
        [found] = await (await roles_of(*scopes)).fetch("SELECT outcome, error FROM joex.attempts($1)", job_id)
        assert (found["outcome"], found["error"]) == ("failed", error)


async def test_clients_work_with_the_scopes_of_their_calls(roles_of, database_url, connection):
    reader = await roles_of("submit", "view", "payloads", groups=["mine"])
    dashboard = await roles_of("view", "payloads")
    names = [await one.fetchval("SELECT session_user::text") for one in (reader, dashboard)]
    urls = [url_of(database_url, name) for name in names]
    async with joex.Client(urls[0]) as client:
        job_id = await client.submit("a", group="mine")
        assert job_id is not None
        assert await client.submit_many([joex.NewJob("a", group="mine")])
        with pytest.raises(joex.JoexError, match="may not use group 'theirs'"):
            await client.submit("a", group="theirs")
        assert await client.get(job_id) is not None
        assert await client.cancel(job_id) == "cancelled"
        assert getattr(await client.wait(job_id, timeout="1m"), "state", None) == "cancelled"
        with pytest.raises(joex.JoexError, match=r"database role: the role .* is bound to groups"):
            await client.events().__aenter__()
    async with joex.Client(urls[1]) as client:
        assert [job.group for job in await listing.list_queued(dashboard, None, None, 10)] == ["mine"]
        assert getattr(await client.wait(job_id, timeout="1m"), "state", None) == "cancelled"
        assert await client.why(job_id)
        async with client.events() as events:
            await connection.execute("SELECT joex.submit('a')")
            assert (await anext(events)).kind == "job-submitted"


async def test_a_worker_needs_no_other_scope_and_touches_no_run_of_another_queue(roles_of, database_url, connection):
    worker = await roles_of("work", queues=["mine"])
    name = await worker.fetchval("SELECT session_user::text")
    for queue in ("mine", "theirs"):
        await connection.execute("SELECT joex.submit('a', queue => $1) FROM generate_series(1, 4)", queue)
    accept = "SELECT id, lock_id FROM joex_client.accept('theirs')"
    async with joex.Client(url_of(database_url, name)) as client:
        ends = []
        for end in (
            lambda job, lock: client.keyed.finish("a", job, {}, lock, result=[1], message="done"),
            lambda job, lock: client.keyed.finish("a", job, {}, lock, error="no", retry=False),
            lambda job, lock: client.keyed.finish("a", job, {"data": {"n": 1}}, lock, error="later"),
            lambda job, lock: client.keyed.give_back("a", job, lock),
        ):
            job = await client.keyed.accept("mine")
            assert job is not None
            assert await client.keyed.update("a", job.id, {}, lock_id_of(job), progress=50) == "ok"
            assert await end(job.id, uuid4()) == "worker_conflict"
            assert await end(job.id, lock_id_of(job)) == "ok"
            ends.append(job.job)
            theirs = await connection.fetchrow(accept)
            assert await end(theirs["id"], theirs["lock_id"]) == "worker_conflict"
    states = "SELECT array_agg(state ORDER BY array_position($1::uuid[], id)) FROM joex.jobs WHERE id = ANY ($1)"
    assert await connection.fetchval(states, ends) == ["success", "failed", "stuck", "waiting"]
    assert await connection.fetchval("SELECT count(*) FROM joex.jobs WHERE queue = 'theirs' AND state = 'running'") == 4


async def test_a_worker_with_a_long_name_stops_no_return_of_the_jobs_of_others(roles_of, connection):
    """The events of a job name its worker, and a notification has at most 8,000 bytes."""
    worker = await roles_of("work", "submit", queues=["mine"])
    for name in ("w" * 255, "", None):
        with pytest.raises(asyncpg.InvalidParameterValueError, match="worker: expected 1 to 254 bytes"):
            await worker.execute("SELECT joex_client.accept('mine', 1, $1)", name)
    await connection.execute("SELECT joex.submit('a', queue => 'theirs')")
    mine = await worker.fetchval("SELECT joex.submit('a', queue => 'mine')")
    await worker.execute("SELECT joex_client.accept('mine', 1, $1)", "\x01" * 254)
    await connection.execute("SELECT joex_client.accept('theirs')")
    assert await worker.fetchval("SELECT joex.cancel($1)", mine) == "requested"
    await connection.execute("UPDATE joex_private.job SET overdue_at = now()")
    await connection.execute("SELECT joex.subscribe('listener', '1 minute')")
    await timeouts.recover_overdue(connection)
    states = "SELECT state FROM joex.jobs ORDER BY id = $1"
    assert [row["state"] for row in await connection.fetch(states, mine)] == ["waiting", "cancelled"]


def lock_id_of(job):
    """Return the lock id of a run that a worker has."""
    assert job.lock_id is not None
    return job.lock_id


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        (RoleScopes("no such role", ["view"], None, None), 'role: this server has no role "no such role"'),
        (
            RoleScopes("pg_monitor", ["read"], None, None),
            "scope: expected view, payloads, submit, work, operate or executor",
        ),
        (RoleScopes("pg_monitor", ["executor"], ["mine"], None), "an executor runs the jobs of all groups"),
        (RoleScopes("postgres", ["view"], None, None), "role: postgres owns the schema, and may do everything"),
    ],
)
async def test_a_wrong_grant_is_refused_in_one_line(connection, wanted, told):
    with pytest.raises(joex.JoexError, match=told):
        await roles.set_scopes(connection, wanted)
    assert await roles.roles(connection) == []


async def test_a_revoked_role_has_nothing_left(roles_of, connection):
    session = await roles_of(*SCOPES, "executor")
    name = await session.fetchval("SELECT session_user::text")
    await roles.set_scopes(connection, RoleScopes(name, [], None, None))
    assert await may_call(session) == {}
    assert await roles.roles(connection) == []


async def test_what_the_last_bound_role_has_left_open_stays_bound_when_it_is_revoked(roles_of, connection, bench):
    """The server has judged the right to execute when the statement began."""
    theirs = await bench.submit("theirs")
    bound = await roles_of("submit", "operate", "work", queues=["mine"])
    await bound.execute("SET my.name = 'mine'")
    calls = {
        "put": "joex.submit('a', grp => 'theirs', queue => current_setting('my.name'))",
        "take": "(joex_client.accept(current_setting('my.name'))).id",
        "steer": "joex.set_priority(current_setting('my.job')::uuid, 'high')",
    }
    async with bound.transaction():
        for cursor, call in calls.items():
            await bound.execute(f"DECLARE {cursor} CURSOR FOR SELECT {call} FROM generate_series(1, 9)")  # noqa: S608
        role = await bound.fetchval("SELECT session_user::text")
        await roles.set_scopes(connection, RoleScopes(role, [], None, None))
        await bound.execute(f"SET my.name = 'default'; SET my.job = '{theirs}'")
        for cursor in ("put", "take"):
            with pytest.raises(asyncpg.InsufficientPrivilegeError, match="may not use group"):
                async with bound.transaction():
                    await bound.fetch(f"FETCH 1 FROM {cursor}")
        assert await bound.fetchval("FETCH 1 FROM steer") is False
    [job] = await connection.fetch("SELECT id, state, priority FROM joex.jobs")
    assert tuple(job) == (theirs, "waiting", "low")


async def test_a_transaction_that_is_older_than_the_first_grant_with_bounds_can_do_nothing(roles_of, connection, bench):
    """The server judges by the latest grants who may call a function, and its statements read by the snapshot."""
    theirs = await bench.job_in("failed", await bench.executor(), group="theirs")
    await connection.execute("SELECT joex.put_periodic_task('a', 'a', 'daily', grp => 'theirs')")
    await bench.submit("theirs")
    await pools.note_step(connection, STEP)
    role = await roles_of()
    name = await role.fetchval("SELECT session_user::text")
    async with role.transaction(isolation="repeatable_read"):
        await role.execute("TABLE pg_namespace")  # takes the snapshot
        await roles.set_scopes(connection, RoleScopes(name, ["view", "submit", "operate"], ["mine"], None))
        for statement in (
            *(f"SELECT count(*) FROM joex.{view}" for view in VIEWS),  # noqa: S608 - constants
            f"SELECT joex.remove('{theirs}')", "SELECT joex.retry_failed()", "SELECT joex.submit('a', grp => 'theirs')",
            "SELECT joex.submit_many('{a}', grps => '{theirs}')", "SELECT joex.set_group('theirs')",
        ):  # fmt: skip
            with case(statement), pytest.raises(asyncpg.SerializationError):
                async with role.transaction():
                    await role.execute(statement)
    assert await bench.state(theirs) == "failed"
    assert await role.fetchval("SELECT count(*) FROM joex.jobs") == 0


async def test_a_role_makes_no_table_that_keeps_a_migration_from_changing_a_table_or_a_domain(roles_of, connection):
    """The server adds no column with a default to a table whose row type is that of a column of another table.

    Nor does it give a domain a constraint before it has locked and read all tables with such columns.
    """
    role = await roles_of(*SCOPES)
    kinds = (
        f"SELECT oid::regtype::text AS name FROM pg_type WHERE typnamespace IN {OURS} AND typtype IN ('c', 'd', 'e')"  # noqa: S608
    )
    private = [row["name"] for row in await connection.fetch(kinds) if row["name"].startswith("joex_private.")]
    assert {"joex_private.job", "joex_private.group_name", "joex_private.job_state"} <= {*private}
    for name in private:
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="permission denied for type"):
            await role.execute(f"CREATE TEMPORARY TABLE copy (one {name}[])")
    await role.execute("CREATE TEMPORARY TABLE copy AS TABLE joex.jobs")  # (users do this)
    async with connection.transaction():
        await connection.execute("ALTER TABLE joex_private.job ADD COLUMN more text DEFAULT 'a'")
        await connection.execute("ALTER TABLE joex_private.job DROP COLUMN more")


async def test_a_migration_gives_roles_what_their_scopes_need_now(roles_of, connection):
    session = await roles_of("submit")
    await connection.execute(
        "CREATE OR REPLACE FUNCTION joex_private.functions_of_scopes() RETURNS TABLE (scope text, functions text[]) "
        "LANGUAGE sql IMMUTABLE AS $$ VALUES ('submit', '{joex.submit, joex.retry}'::text[]) $$"
    )
    await connection.execute("SELECT joex_private.secure()")
    assert "joex.retry" in await may_call(session)
    for one in definitions():
        if "FUNCTION joex_private.functions_of_scopes" in one.sql:
            await connection.execute(one.sql)


async def test_a_migration_gives_roles_their_rights_again_that_a_restored_dump_does_not_have(roles_of, connection):
    session = await roles_of("submit", groups=["mine"])
    role = await session.fetchval("SELECT session_user::text")
    await connection.execute(f"DROP OWNED BY {role}")  # as pg_restore --no-privileges leaves it
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await session.execute("SELECT joex.submit('a', grp => 'mine')")
    assert await migrate(connection) == []
    assert await session.fetchval("SELECT joex.submit('a', grp => 'mine')") is not None


async def test_two_grants_at_a_time_leave_no_bound_role_free(roles_of, connection, another_connection):
    """The second one waits for the first, and then sees what it has done."""
    bound, other = await roles_of("submit"), await roles_of("submit", groups=["theirs"])
    names = [await one.fetchval("SELECT session_user::text") for one in (bound, other)]
    second = await another_connection()
    async with connection.transaction():
        await roles.set_scopes(connection, RoleScopes(names[0], ["submit"], ["mine"], None))
        revoke = asyncio.ensure_future(roles.set_scopes(second, RoleScopes(names[1], [], None, None)))
        waits = "SELECT EXISTS (SELECT FROM pg_locks WHERE pid = $1 AND NOT granted)"
        await eventually(lambda: connection.fetchval(waits, second.get_server_pid()))
    await revoke
    with pytest.raises(asyncpg.InsufficientPrivilegeError, match="may not use group 'theirs'"):
        await bound.execute("SELECT joex.submit('a', grp => 'theirs')")


async def test_a_view_without_payloads_sees_none_by_functions_either(roles_of, bench):
    executor = await bench.executor()
    job_id = await bench.submit(args={"secret": 1})
    await bench.finish(await bench.take_one(executor), "failed", error="a secret")
    viewer, reader = await roles_of("view"), await roles_of("view", "payloads")
    detail = "SELECT detail->>'error' FROM joex.why($1)"
    assert (await viewer.fetchval(detail, job_id), await reader.fetchval(detail, job_id)) == (None, "a secret")
    returned = await viewer.fetchval(
        "SELECT pg_get_function_result('joex_private.seen_by_floors(boolean)'::regprocedure)"
    )
    assert "args" not in returned
    assert "error" not in returned
    assert await viewer.fetchval("SELECT count(*) FROM joex_private.seen_by_floors(true)") == 0
    for secret in ("lock_id FROM joex_private.job", "run FROM joex_private.job_log"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await viewer.execute(f"SELECT {secret}")


async def test_operators_of_another_role_get_into_no_view_when_it_is_made(roles_of, connection):
    role = await (await roles_of("submit")).fetchval("SELECT session_user::text")
    await connection.execute(f"""
        CREATE SCHEMA trap AUTHORIZATION {role};
        CREATE FUNCTION trap.equal(joex_private.group_name, text) RETURNS boolean LANGUAGE sql AS 'SELECT true';
        CREATE OPERATOR trap.= (LEFTARG = joex_private.group_name, RIGHTARG = text, FUNCTION = trap.equal);
        SET search_path = trap, public;
        DROP SCHEMA joex CASCADE""")
    await migrate(connection)
    trapped = "SELECT count(*) FROM pg_depend WHERE refobjid = 'trap.=(joex_private.group_name, text)'::regoperator"
    assert await connection.fetchval(trapped) == 0
    await connection.execute("DROP SCHEMA trap CASCADE; RESET search_path")


async def test_what_a_dump_without_rights_or_default_privileges_open_is_closed_by_the_next_grant(roles_of, connection):
    await connection.execute("""
        GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA joex, joex_client, joex_private TO PUBLIC;
        GRANT SELECT ON ALL TABLES IN SCHEMA joex, joex_client, joex_private TO PUBLIC;
        GRANT SELECT ON ALL SEQUENCES IN SCHEMA joex_private TO PUBLIC;
        GRANT USAGE ON SCHEMA joex_private TO PUBLIC""")
    session = await roles_of("submit")
    assert {name for name, row in (await may_call(session)).items() if row["volatility"] == "v"} == CHANGES["submit"]
    for relation in ("joex.jobs", "joex_private.job", "joex_private.this_database"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await session.execute(f"TABLE {relation}")
    assert not await connection.fetchval("SELECT has_schema_privilege('public', 'joex_private', 'USAGE')")
    await connection.execute("GRANT EXECUTE ON FUNCTION joex.cancel(uuid) TO PUBLIC")
    assert await migrate(connection) == []
    assert not await connection.fetchval("SELECT has_function_privilege('public', 'joex.cancel(uuid)', 'EXECUTE')")


@pytest.mark.parametrize("groups", [None, ["mine"]], ids=["everywhere", "bound"])
@pytest.mark.parametrize("end", ["revoke", "migrate", "the next grant"])
async def test_what_a_dropped_role_leaves_is_listed_harms_nothing_and_can_be_removed(connection, bench, groups, end):
    await connection.execute("CREATE ROLE joex_test_leaver")
    await roles.set_scopes(connection, RoleScopes("joex_test_leaver", ["view", "submit"], groups, None))
    oid = await connection.fetchval("SELECT 'joex_test_leaver'::regrole::oid")
    await connection.execute("DROP OWNED BY joex_test_leaver; DROP ROLE joex_test_leaver")
    left = RoleScopes(f"unknown (OID={oid})", ["view", "submit"], groups, None)
    assert await roles.roles(connection) == [left]
    await bench.submit("theirs")
    assert await connection.fetchval("SELECT count(*) FROM joex.jobs") == 1
    with pytest.raises(joex.JoexError, match="role: this server has no role joex_test_leaver"):
        await roles.set_scopes(connection, RoleScopes("joex_test_leaver", [], None, None))
    if end == "revoke":
        await roles.set_scopes(connection, replace(left, scopes=[]))
    elif end == "migrate":
        assert await migrate(connection) == []
    else:
        await roles.set_scopes(connection, RoleScopes("pg_monitor", [], None, None))
    assert await roles.roles(connection) == []


async def test_a_new_role_by_the_name_of_a_dropped_one_gets_nothing(roles_of, connection, database_url):
    other = await roles_of("submit", groups=["theirs"])  # (some role stays bound)
    await connection.execute('CREATE ROLE "joex test\'s ""heir""" LOGIN')
    name = 'joex test\'s "heir"'
    await roles.set_scopes(connection, RoleScopes(name, ["submit", "view"], ["mine"], None))
    await connection.execute('DROP OWNED BY "joex test\'s ""heir"""; DROP ROLE "joex test\'s ""heir"""')
    await connection.execute('CREATE ROLE "joex test\'s ""heir""" LOGIN')
    await connection.execute("SELECT joex_private.secure()")
    heir = await asyncpg.connect(database_url, user=name)
    try:
        assert await may_call(heir) == {}
        assert [one.groups for one in await roles.roles(connection)] == [["theirs"]]
    finally:
        await heir.close()
        await connection.execute('DROP ROLE "joex test\'s ""heir"""')
    assert await other.fetchval("SELECT joex.submit('a', grp => 'theirs')") is not None


async def test_a_renamed_role_keeps_its_scopes_and_bounds(roles_of, connection):
    role = await roles_of("submit", groups=["mine"])
    name = await role.fetchval("SELECT session_user::text")
    await connection.execute(f"ALTER ROLE {name} RENAME TO joex_test_renamed")
    try:
        await connection.execute("SELECT joex_private.secure()")
        assert await roles.roles(connection) == [RoleScopes("joex_test_renamed", ["submit"], ["mine"], None)]
        assert await role.fetchval("SELECT joex.submit('a', grp => 'mine')") is not None
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="may not use group 'theirs'"):
            await role.fetchval("SELECT joex.submit('a', grp => 'theirs')")
    finally:
        await connection.execute(f"ALTER ROLE joex_test_renamed RENAME TO {name}")


@pytest.fixture
async def peeker(roles_of, connection, bench):
    """A role that is bound to the group mine, with a schema of its own; and what exists of another group."""
    await bench.executor()
    await bench.submit("theirs")
    await connection.execute("SELECT joex.put_periodic_task('theirs', 'a', 'daily', grp => 'theirs')")
    await pools.note_step(connection, STEP)
    bound = await roles_of("view", "operate", groups=["mine"])
    role = await bound.fetchval("SELECT session_user::text")
    await connection.execute(f"CREATE SCHEMA peek AUTHORIZATION {role}")
    yield bound
    await connection.execute("DROP SCHEMA peek CASCADE")


VIEWS = ("jobs", "group_stats", "queue_stats", "executors", "periodic_tasks", "audit", "pool_steps")
STEP = pools.NewPoolStep("prod", "prod", "docs", 0, 1, 0, 0, "demand", "1 job waits", 1, None, 1, 0, None)


async def test_code_of_a_bound_role_that_an_administrator_runs_sees_no_more_in_a_view(peeker, connection):
    role = await peeker.fetchval("SELECT session_user::text")
    for view in VIEWS:
        with case(view):
            count = f"SELECT count(*) FROM joex.{view}"  # noqa: S608 - a constant
            await peeker.execute(f"""
                CREATE MATERIALIZED VIEW peek.kept_{view} AS {count};
                CREATE FUNCTION peek.look_{view}() RETURNS bigint LANGUAGE sql SECURITY DEFINER AS '{count}'""")
            assert await connection.fetchval(count) > 0
            await connection.execute(f"REFRESH MATERIALIZED VIEW peek.kept_{view}")
            assert await connection.fetchval(f"TABLE peek.kept_{view}") == 0
            assert await connection.fetchval(f"SELECT peek.look_{view}()") == 0
            async with connection.transaction():
                await connection.execute(f"SET LOCAL ROLE {role}")
                assert await connection.fetchval(count) == 0


async def test_of_two_bound_roles_each_sees_by_the_others_code_what_both_may_see(peeker, roles_of, bench, connection):
    for group in ("mine", "ours"):
        await bench.submit(group)
    reader = await roles_of("view", groups=["ours", "mine"], queues=["default"])
    name = await reader.fetchval("SELECT session_user::text")
    await peeker.execute("""
        CREATE FUNCTION peek.look() RETURNS text LANGUAGE sql SECURITY DEFINER AS
            'SELECT string_agg(grp, chr(32) ORDER BY grp) FROM joex.jobs'""")
    await peeker.execute(f"GRANT USAGE ON SCHEMA peek TO {name}")
    assert await reader.fetchval("SELECT peek.look()") == "mine"
    assert await reader.fetchval("SELECT count(*) FROM joex.jobs") == 2
    assert await peeker.fetchval("SELECT peek.look()") == "mine"


async def test_a_bound_role_can_not_ask_what_another_role_is_bound_to(roles_of):
    bound = await roles_of(*SCOPES, queues=["mine"])
    takes_a_role = "SELECT proname FROM pg_proc WHERE oid = ANY ($1) AND proargtypes::oid[] && $2::regtype[]::oid[]"
    allowed = [row["oid"] for row in (await may_call(bound)).values()]
    assert await bound.fetch(takes_a_role, allowed, ["name", "oid", "regrole"]) == []
    for relation in ("role_scope", "role_bounds", "bounds_of_reader", "bounds_of_operator"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await bound.fetch(f"TABLE joex_private.{relation}")


@pytest.mark.parametrize(
    ("options", "counts"),
    [
        ("INHERIT TRUE, SET FALSE", True),
        ("INHERIT FALSE, SET TRUE", True),
        ("INHERIT FALSE, SET FALSE", False),
        ("INHERIT FALSE, SET FALSE, ADMIN TRUE", False),
    ],
)
async def test_a_membership_counts_if_it_gives_rights_or_allows_set_role(roles_of, connection, bench, options, counts):
    await bench.submit("theirs")
    member, other = await roles_of("submit", "view", groups=["mine"]), await roles_of("submit", "view")
    names = [await one.fetchval("SELECT session_user::text") for one in (other, member)]
    await connection.execute(f"GRANT {names[0]} TO {names[1]} WITH {options}")
    assert await member.fetchval("SELECT count(*) FROM joex.jobs") == counts
    if counts:
        assert await member.fetchval("SELECT joex.submit('a', grp => 'theirs')") is not None
    else:
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="may not use group"):
            await member.fetchval("SELECT joex.submit('a', grp => 'theirs')")


async def test_an_index_of_a_bound_role_that_autovacuum_evaluates_sees_and_changes_nothing(peeker, connection):
    """Autovacuum works in the session of the superuser."""
    await peeker.execute("""
        CREATE TABLE peek.seen (jobs bigint, told text);
        CREATE FUNCTION peek.act() RETURNS integer LANGUAGE plpgsql AS $$
        DECLARE
            v_told text := 'set';
        BEGIN
            BEGIN
                PERFORM joex.put_periodic_task('theirs/p', 'a', 'daily', grp => 'theirs');
            EXCEPTION WHEN insufficient_privilege THEN
                v_told := SQLERRM;
            END;
            INSERT INTO peek.seen SELECT count(*), v_told FROM joex.jobs;
            RETURN 1;
        END $$;
        CREATE FUNCTION peek.look(i integer) RETURNS integer LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN
            RETURN CASE WHEN session_user = current_user THEN i ELSE i + peek.act() END; END $$;
        CREATE TABLE peek.bait (i integer)
        WITH (autovacuum_analyze_threshold = 0, autovacuum_analyze_scale_factor = 0);
        CREATE INDEX ON peek.bait (peek.look(i))""")
    await connection.execute("ALTER SYSTEM SET autovacuum_naptime = '1s'")
    try:
        await connection.execute("SELECT pg_reload_conf()")
        await peeker.execute("INSERT INTO peek.bait SELECT generate_series(1, 10)")
        await peeker.execute("SELECT pg_stat_force_next_flush()")
        await eventually(lambda: connection.fetchval("SELECT count(*) > 0 FROM peek.seen"))
    finally:
        await connection.execute("ALTER SYSTEM RESET autovacuum_naptime")
        await connection.execute("SELECT pg_reload_conf()")
    told = "a role is bound to groups or queues, so Joex serves clients alone, and no background process of the server"
    assert {tuple(row) for row in await connection.fetch("TABLE peek.seen")} == {(0, told)}
    assert await connection.fetchval("SELECT count(*) FROM joex.periodic_tasks WHERE id = 'theirs/p'") == 0


def dumped(server: TestServer, database: str) -> bytes:
    """A dump of a database."""
    command = [str(server.binaries / "pg_dump"), "--format=custom", server.url(database)]
    return subprocess.run(command, check=True, capture_output=True).stdout


def restored(server: TestServer, dump: bytes, database: str) -> int:
    """Restore a dump; returns the exit code."""
    command = [str(server.binaries / "pg_restore"), f"--dbname={server.url(database)}"]
    return subprocess.run(command, input=dump, check=False, capture_output=True).returncode


async def test_a_dump_has_the_scopes_and_bounds_of_roles(postgres, roles_of, database_name, connection, bench):
    await bench.submit("theirs")
    bound, free = await roles_of("submit", "view", groups=["mine"]), await roles_of("view")
    names = [await one.fetchval("SELECT session_user::text") for one in (bound, free)]
    await connection.execute(f'ALTER ROLE {names[0]} RENAME TO "joex test \'s"')
    dump = await asyncio.to_thread(dumped, postgres, database_name)
    target = await postgres.create_database(migrated=False)
    try:
        assert await asyncio.to_thread(restored, postgres, dump, target) == 0
        async with postgres.administrator(target) as copy:
            assert await roles.roles(copy) == await roles.roles(connection)
            assert await migrate(copy) == []
            settings = {"default_transaction_isolation": "read committed"}
            bound = await asyncpg.connect(postgres.url(target), user="joex test 's", server_settings=settings)
            assert await bound.fetch("TABLE joex.executors") == []
            assert await bound.fetchval("SELECT joex.submit('a', grp => 'mine')") is not None
            with pytest.raises(asyncpg.InsufficientPrivilegeError, match="may not use group 'theirs'"):
                await bound.execute("SELECT joex.submit('a', grp => 'theirs')")
            await bound.close()
            free = await asyncpg.connect(postgres.url(target), user=names[1])
            assert await free.fetchval("SELECT count(*) FROM joex.jobs") == 2
            await free.close()
    finally:
        await postgres.drop_database(target)
        await connection.execute(f'ALTER ROLE "joex test \'s" RENAME TO {names[0]}')


async def test_a_dump_that_is_restored_without_one_of_the_roles_leaves_the_others_less_not_more(
    postgres, roles_of, database_name, connection, bench
):
    """The server refuses the whole table of grants then, and notes all the same that some role is bound."""
    await bench.submit("theirs")
    bound = await roles_of("submit", "view", groups=["mine"])
    name = await bound.fetchval("SELECT session_user::text")
    await connection.execute("CREATE ROLE joex_test_leaver")
    await roles.set_scopes(connection, RoleScopes("joex_test_leaver", ["view"], None, None))
    dump = await asyncio.to_thread(dumped, postgres, database_name)
    await connection.execute("DROP OWNED BY joex_test_leaver; DROP ROLE joex_test_leaver")
    target = await postgres.create_database(migrated=False)
    try:
        assert await asyncio.to_thread(restored, postgres, dump, target) == 1
        async with postgres.administrator(target) as copy:
            assert await roles.roles(copy) == []
            bound = await asyncpg.connect(postgres.url(target), user=name)
            for attack in ("TABLE joex.jobs", "SELECT joex.submit('a', grp => 'theirs')"):
                with pytest.raises(asyncpg.InsufficientPrivilegeError):
                    await bound.execute(attack)
            await bound.close()
            assert await migrate(copy) == []
            await copy.execute("SET default_transaction_isolation = 'read committed'")
            await roles.set_scopes(copy, RoleScopes(name, ["view"], ["theirs"], None))
            assert [one.role for one in await roles.roles(copy)] == [name]
    finally:
        await postgres.drop_database(target)


async def test_the_grants_are_read_once_for_all_rows_of_a_view(peeker, bench, connection):
    """And only while a role is bound."""
    for _ in range(20):
        await bench.submit("theirs")
    read = "SELECT coalesce(sum(calls), 0) FROM pg_stat_xact_user_functions WHERE funcname = 'bounds'"
    await connection.execute("SET track_functions = 'all'")
    for bound, calls in ((True, 1), (False, 0)):
        await connection.execute("SELECT setval('joex_private.roles_bound', $1)", 1 + bound)
        async with connection.transaction():
            before = await connection.fetchval(read)
            assert await connection.fetchval("SELECT count(*) FROM joex.jobs") == 21
            assert await connection.fetchval(read) - before == calls


async def test_the_grants_are_read_once_for_all_rows_that_a_bound_role_changes_or_could_mean(
    roles_of, connection, bench
):
    """And it changes those alone that it may."""
    me = await bench.executor()
    theirs, mine = [await bench.job_in("failed", me, group=group) for group in ("theirs", "mine")]
    for number in range(20):
        await bench.job_in("failed", me, group="theirs")
        await connection.execute("SELECT joex.put_periodic_task('a', 'a', 'daily', grp => $1)", f"theirs {number}")
    await connection.execute("SELECT joex.put_periodic_task('a', 'a', 'daily', grp => 'mine')")
    bound = await roles_of("operate", groups=["mine"])
    role = await bound.fetchval("SELECT session_user::text")
    read = "SELECT coalesce(sum(calls), 0) FROM pg_stat_xact_user_functions WHERE funcname = 'bounds'"
    await connection.execute(f"SET track_functions = 'all'; SET SESSION AUTHORIZATION {role}")
    for call, answer in (("joex.retry_failed()", 1), ("joex.remove_periodic_task('a', any_owner => true)", "removed")):
        async with connection.transaction():
            before = await connection.fetchval(read)
            assert await connection.fetchval(f"SELECT {call}") == answer
            assert await connection.fetchval(read) - before == 1
    await connection.execute("RESET SESSION AUTHORIZATION; RESET track_functions")
    assert [await bench.state(one) for one in (theirs, mine)] == ["failed", "waiting"]
    assert await connection.fetchval("SELECT count(*) FROM joex.periodic_tasks WHERE starts_with(grp, 'theirs')") == 20


EVERYWHERE = ["submit", "view"], None, None


CHANGES_OF_SCOPES = [
    (EVERYWHERE, ([], None, None), True),
    (EVERYWHERE, (["submit"], None, None), True),
    (EVERYWHERE, (["view"], ["mine"], None), True),
    (EVERYWHERE, (["view"], None, ["default"]), True),
    ((["executor"], None, None), (["submit"], None, None), True),
    (EVERYWHERE, (["executor"], None, None), False),
    (EVERYWHERE, (["view", "payloads"], None, None), False),
    ((["view"], ["mine"], None), ([], None, None), False),
    ((["submit"], None, None), ([], None, None), False),
    (([], None, None), EVERYWHERE, False),
]


async def test_the_channel_of_events_changes_when_a_role_may_hear_them_no_longer(roles_of, connection):
    name = await (await roles_of()).fetchval("SELECT session_user::text")
    channel = "SELECT joex.events_channel()"
    for before, after, is_new in CHANGES_OF_SCOPES:
        with case(before, after):
            await roles.set_scopes(connection, RoleScopes(name, *before))
            old = await connection.fetchval(channel)
            await roles.set_scopes(connection, RoleScopes(name, *after))
            assert (await connection.fetchval(channel) != old) == is_new


async def test_the_channel_of_events_changes_when_a_role_is_gone_that_heard_them(connection):
    await connection.execute("CREATE ROLE joex_test_leaver")
    await roles.set_scopes(connection, RoleScopes("joex_test_leaver", ["view"], None, None))
    old = await connection.fetchval("SELECT joex.events_channel()")
    await connection.execute("DROP OWNED BY joex_test_leaver; DROP ROLE joex_test_leaver")
    assert await migrate(connection) == []
    assert await connection.fetchval("SELECT joex.events_channel()") != old


@pytest.mark.parametrize("is_told", [True, False], ids=["told", "at the next renewal"])
async def test_a_watcher_goes_on_where_the_events_are_and_a_role_without_view_hears_none(
    roles_of, connection, database_url, monkeypatch, is_told
):
    monkeypatch.setattr(job_watch, "_RENEW_EVERY", 1000.0 if is_told else 0.1)
    spy, dashboard = await roles_of("view"), await roles_of("view")
    names = [await one.fetchval("SELECT session_user::text") for one in (spy, dashboard)]
    heard: list[str] = []
    await spy.add_listener(await spy.fetchval("SELECT joex.events_channel()"), lambda *args: heard.append(args[3]))
    async with joex.Client(url_of(database_url, names[1])) as client, client.events() as events:
        async with connection.transaction():
            if not is_told:
                await connection.execute("SET LOCAL joex.notify = 'off'")
            await roles.set_scopes(connection, RoleScopes(names[0], [], None, None))
        came = asyncio.ensure_future(anext(events))

        async def has_come() -> bool:
            await connection.execute("SELECT joex.submit('a')")
            return came.done()

        await eventually(has_come)
        assert (await came).kind == "job-submitted"
    await spy.fetchval("SELECT 1")  # (the server passes on what has come before it answers)
    assert heard == ['{"event": "channel-changed"}'] * is_told


async def test_a_watcher_that_may_hear_events_no_longer_is_told_and_its_waits_go_on(roles_of, connection, database_url):
    role = await roles_of("submit", "view", "payloads")
    name = await role.fetchval("SELECT session_user::text")
    async with joex.Client(url_of(database_url, name)) as client:
        job_id = await client.submit("a", group="mine")
        assert job_id is not None
        wait = asyncio.ensure_future(client.wait(job_id))
        async with client.events() as events:
            bound = RoleScopes(name, ["submit", "view", "payloads"], ["mine"], None)
            await roles.set_scopes(connection, bound)
            with pytest.raises(joex.JoexError, match="is bound to groups or queues"):
                async for _ in events:
                    pass
        await connection.execute("SELECT joex.cancel($1)", job_id)
        assert getattr(await wait, "state", None) == "cancelled"


async def test_the_watch_of_a_worker_that_is_bound_to_a_queue_concerns_that_queue_alone(roles_of, bench, connection):
    worker = await roles_of("work", queues=["mine"])
    heard: list[tuple[str, str]] = []
    for channel in ("joex_wake", "joex_operator"):
        await worker.add_listener(channel, lambda *args: heard.append((args[2], json.loads(args[3])["queue"])))
    for call in ("accept('theirs')", "accept_state('theirs')", "watch_for_workers('worker', 'theirs', '1 minute')"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="may not use group"):
            await worker.execute(f"SELECT joex_client.{call}")
    await pools.watch(connection, "operator", ["theirs"], 60)
    await worker.execute("SELECT joex_client.watch_for_workers('worker', 'mine', '1 minute')")
    await worker.execute("SELECT joex_client.watch_for_workers('operator', 'mine', '0')")  # the operator's stays
    other = await roles_of("work", queues=["theirs"])
    await other.execute(
        "SELECT joex_client.watch_for_workers('worker', 'theirs', '0')"
    )  # that of a worker elsewhere too
    assert await connection.fetchval("SELECT count(*) FROM joex_private.watch") == 2
    for queue in ("theirs", "mine"):
        await bench.submit(queue=queue)
    await eventually(lambda: len(heard) > 1)
    assert heard == [("joex_operator", "theirs"), ("joex_wake", "mine")]
    accepted = await worker.fetch("SELECT queue FROM joex_client.accept('mine', 10)")
    assert [row["queue"] for row in accepted] == ["mine"]


ACCESS = Path("docs/reference/access.md").read_text(encoding="utf-8")
FIND_AND_TAKE_LOCKS = re.findall(r"```sql[^\n]*\n(.*?)```", ACCESS[ACCESS.index("### Advisory locks") :], re.DOTALL)


async def test_joex_works_where_advisory_locks_are_taken_from_all_other_roles(postgres):
    """By the statements of docs/reference/access.md, and where the owner of the schema is no superuser."""
    find, harden = FIND_AND_TAKE_LOCKS
    database = await postgres.create_database(migrated=False)
    url, made = postgres.url(database), ("shop_owner", "shop_executor", "acme_web", "shop_worker", "eve")
    app = joex.App()

    @app.task("greet")
    async def greet(_: joex.Context) -> str:
        return "hello"

    async with AsyncExitStack() as stack:

        async def log_in(role: str) -> asyncpg.Connection:
            settings = {"default_transaction_isolation": "read committed"}
            session = await asyncpg.connect(url_of(url, role), server_settings=settings)
            stack.push_async_callback(session.close)
            return session

        superuser = await log_in("postgres")
        for role in made:
            await superuser.execute(f"CREATE ROLE {role} LOGIN")
        await superuser.execute(f"GRANT CREATE ON DATABASE {database} TO shop_owner")
        await superuser.execute(harden)
        owner, eve = await log_in("shop_owner"), await log_in("eve")
        await migrate(owner)
        await roles.set_scopes(owner, RoleScopes("shop_executor", ["executor"], None, None))
        await roles.set_scopes(owner, RoleScopes("acme_web", ["submit", "view", "payloads"], ["acme"], None))
        await roles.set_scopes(owner, RoleScopes("shop_worker", ["work"], None, ["by hand"]))
        await owner.execute("SELECT joex.set_group('acme', max_running => 1)")
        await owner.execute("SELECT joex.put_periodic_task('tick', 'greet', '*:*:*')")
        async with (
            executor_inside(app, url_of(url, "shop_executor")),
            joex.Client(url_of(url, "acme_web")) as submitter,
            joex.Client(url_of(url, "shop_worker")) as worker,
        ):
            ids = [await submitter.submit("greet", group="acme") for _ in range(3)]
            assert [getattr(await submitter.wait(one), "result", None) for one in ids] == ["hello"] * 3
            by_hand = await submitter.submit("x", group="acme", queue="by hand")
            job = await worker.keyed.accept("by hand", wait=PATIENCE)
            assert job is not None
            assert job.job == by_hand
            assert await worker.keyed.finish(job.type, job.id, {}, lock_id_of(job)) == "ok"
            ticked = "SELECT last_job_state = 'success' FROM joex.periodic_tasks WHERE id = 'tick'"
            await eventually(lambda: owner.fetchval(ticked))
            held = await superuser.fetch(find)
            assert (1785685001, "shop_executor") in {(row["lock"], row["usename"]) for row in held}
            locks = await superuser.fetch(
                "SELECT p.oid::regprocedure::text AS name FROM pg_proc p WHERE p.proname ~ 'advisory.*lock'"
            )
            refused = 0
            for name in (row["name"] for row in locks if "unlock" not in row["name"]):
                arguments = "1785685006, 0" if "integer" in name else "1785685006"
                with pytest.raises(asyncpg.InsufficientPrivilegeError):
                    await eve.execute(f"SELECT {name.partition('(')[0]}({arguments})")
                refused += 1
            assert refused == 16
    async with postgres.administrator() as administrator:
        await administrator.execute(f"DROP DATABASE {database} WITH (FORCE)")
        await administrator.execute("DROP ROLE " + ", ".join(made))


@pytest.mark.parametrize("left", ["open", "long"])
async def test_waits_that_a_bound_role_has_left_keep_no_maintenance_from_its_end(roles_of, connection, left):
    bound = await roles_of("submit", groups=["mine"])
    waits = "SELECT count(*) FROM joex_private.subscription"
    ids = await bound.fetchval(
        "SELECT array_agg(i) FROM joex.submit_many(array_fill('a'::text, '{2500}'), "
        "grps => array_fill('mine'::text, '{2500}')) s(i)"
    )
    await bound.execute("SELECT joex.subscribe('mine', '1 minute')")
    await bound.execute("SELECT joex.wait_for('mine', $1)", ids)
    await connection.execute("UPDATE joex_private.subscriber SET until = until - interval '2 hours'")
    await connection.execute("SET lock_timeout = '5s'")
    async with bound.transaction():
        if left == "open":
            await bound.execute("SELECT joex.wait_no_more('mine', $1)", ids)
        await subscriptions.forget(connection, 1)
        assert await connection.fetchval(waits) == (2500 if left == "open" else 1500)
    await subscriptions.forget(connection)
    assert await connection.fetchval(waits) == 0
    assert not await connection.fetchval("SELECT count(*) FROM joex_private.subscriber")

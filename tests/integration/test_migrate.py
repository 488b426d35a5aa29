"""The schema is installed once, however many processes migrate at the same time."""

import asyncio
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
from asyncpg.connection import LoggedQuery

from joex.core.lease import Beat
from joex.errors import ConfigError, DatabaseUnavailable, SchemaError
from joex.store import executors
from joex.store.database import connect
from joex.store.json_text import json_text
from joex.store.migrate import check_schema, definitions, migrate, migrations, schema_version
from joex.store.runs import finish
from joex.store.statement import Connection
from joex_operator.control.database import Database
from tests.support.waiting import eventually

pytestmark = pytest.mark.postgres(16, 18)

NEWEST = migrations()[-1].number


@pytest.fixture
async def empty(empty_database_url):
    connection = await connect(empty_database_url)
    yield connection
    await connection.close()


VIEWS_AND_TRIGGERS = ("CREATE OR REPLACE VIEW", "CREATE OR REPLACE TRIGGER")
IDLE = {
    "reader": "SELECT count(*) FROM joex.jobs",
    "submitter": "SELECT joex.submit('a')",
}


async def test_an_empty_database_gets_the_whole_schema(empty):
    assert await schema_version(empty) == 0
    assert await migrate(empty) == [migration.name for migration in migrations()]
    assert await schema_version(empty) == NEWEST
    await check_schema(empty)
    assert await empty.fetchval("SELECT joex.submit('a')") is not None


async def test_a_second_migration_finds_nothing_to_do(empty):
    await migrate(empty)
    assert await migrate(empty) == []


async def test_a_database_whose_schemas_were_dropped_has_nothing_of_joex_and_gets_it_anew(empty):
    await migrate(empty)
    await empty.execute("DROP SCHEMA joex, joex_client, joex_private CASCADE")
    assert await schema_version(empty) == 0
    assert await migrate(empty) == [migration.name for migration in migrations()]
    assert await empty.fetchval("SELECT joex.submit('a')") is not None


@pytest.mark.parametrize("schema", ["joex", "joex_client"])
async def test_a_database_of_whose_schemas_one_without_tables_was_dropped_gets_it_again_and_keeps_its_jobs(
    empty, schema
):
    await migrate(empty)
    job_id = await empty.fetchval("SELECT joex.submit('a')")
    functions = "SELECT count(*) FROM pg_proc WHERE pronamespace = to_regnamespace($1)"
    has_had = await empty.fetchval(functions, schema)
    await empty.execute(f"DROP SCHEMA {schema} CASCADE")
    with pytest.raises(SchemaError, match=r"lacks joex or joex_client: run 'joex migrate'"):
        await check_schema(empty)
    assert await migrate(empty) == []
    await check_schema(empty)
    assert await empty.fetchval("SELECT id FROM joex.jobs") == job_id
    assert await empty.fetchval(functions, schema) == has_had


async def test_eight_processes_may_migrate_at_once_and_one_of_them_does(empty_database_url):
    connections = [await connect(empty_database_url) for _ in range(8)]
    try:
        done = await asyncio.gather(*(migrate(connection) for connection in connections))
        assert sorted(map(len, done)) == [0] * 7 + [NEWEST]
        assert await connections[0].fetchval("SELECT count(*) FROM joex_private.migration") == NEWEST
    finally:
        for connection in connections:
            await connection.close()


async def test_a_migration_that_waits_for_another_one_that_makes_the_schema_tells_nothing(empty_database_url):
    first, second = await connect(empty_database_url), await connect(empty_database_url)
    told: list[str] = []
    looks: asyncio.Queue[str] = asyncio.Queue()

    def note(record: LoggedQuery) -> None:
        if "l.relation" in record.query:
            looks.put_nowait(record.query)

    second.add_query_logger(note)
    try:
        making = first.transaction()
        await making.start()
        await first.execute("CREATE SCHEMA joex_private")
        at_work = asyncio.create_task(migrate(second, patience=3600, tell=told.append))
        for _ in range(2):
            await asyncio.wait_for(looks.get(), 30)
        await making.rollback()
        assert len(await asyncio.wait_for(at_work, 60)) == NEWEST
        assert told == []
    finally:
        await first.close()
        await second.close()


async def test_each_definition_is_one_statement(connection):
    assert len(definitions()) > 100
    for one in definitions():
        await connection.prepare(one.sql)  # fails if there are two


async def test_an_upgrade_defines_anew_what_has_changed_and_nothing_else(connection, upgrade):
    upgrade("CREATE OR REPLACE FUNCTION joex_private.lane(", "CREATE OR REPLACE VIEW joex.jobs")
    before = await _definitions_by_transaction(connection)
    assert await migrate(connection) == ["9999_next"]
    after = await _definitions_by_transaction(connection)
    assert before.keys() == after.keys()
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"joex_private.lane(joex_private.job_priority)", "_RETURN on joex.jobs"}


@pytest.mark.parametrize("idle", IDLE.values(), ids=list(IDLE))
async def test_an_upgrade_of_functions_waits_for_nobody(connection, another_connection, upgrade, idle):
    upgrade("CREATE OR REPLACE FUNCTION")
    other = await another_connection()
    async with other.transaction():
        await other.execute(idle)
        assert await migrate(connection, patience=0) == ["9999_next"]


@pytest.mark.parametrize("idle", IDLE.values(), ids=list(IDLE))
async def test_while_an_upgrade_waits_for_an_idle_transaction_submissions_go_through(
    connection, another_connection, upgrade, idle
):
    upgrade(*VIEWS_AND_TRIGGERS)
    other, submitter = await another_connection(), await another_connection()
    told: asyncio.Queue[str] = asyncio.Queue()
    transaction = other.transaction()
    await transaction.start()
    await other.execute(idle)
    at_work = asyncio.create_task(migrate(connection, patience=3600, tell=told.put_nowait))
    line = await asyncio.wait_for(told.get(), 30)
    assert line.startswith("waiting for other transactions that use the schema: session ")
    assert f"session {other.get_server_pid()} (joex test, another, idle in transaction since 20" in line
    for _ in range(5):
        assert await asyncio.wait_for(submitter.fetchval("SELECT joex.submit('a')"), 30) is not None
    assert not at_work.done()
    await transaction.rollback()
    assert await asyncio.wait_for(at_work, 30) == ["9999_next"]
    await check_schema(connection)


@pytest.mark.parametrize("idle", IDLE.values(), ids=list(IDLE))
async def test_an_upgrade_that_could_not_be_made_says_why_and_has_changed_nothing(
    connection, another_connection, upgrade, idle
):
    upgrade("CREATE OR REPLACE FUNCTION", *VIEWS_AND_TRIGGERS)
    other = await another_connection()
    before = await _definitions_by_transaction(connection)
    async with other.transaction():
        await other.execute(idle)
        complaint = rf"session {other.get_server_pid()} \(joex test, another, idle .*; nothing was done: end them"
        with pytest.raises(DatabaseUnavailable, match=complaint):
            await migrate(connection, patience=0)
    assert await _definitions_by_transaction(connection) == before
    with pytest.raises(SchemaError, match=r"run 'joex migrate'"):
        await check_schema(connection)
    assert await migrate(connection) == ["9999_next"]


async def test_a_prepared_transaction_in_the_way_of_an_upgrade_is_named(connection, another_connection, upgrade):
    upgrade(*VIEWS_AND_TRIGGERS)
    other = await another_connection()
    await other.execute("BEGIN; SELECT joex.submit('a'); PREPARE TRANSACTION 'forgotten'")
    try:
        with pytest.raises(DatabaseUnavailable, match=r"the prepared transaction 'forgotten' \(postgres since 20"):
            await migrate(connection, patience=0)
    finally:
        await other.execute("ROLLBACK PREPARED 'forgotten'")


async def test_many_upgrade_at_once_while_an_idle_transaction_is_in_the_way(connection, another_connection, upgrade):
    upgrade(*VIEWS_AND_TRIGGERS)
    other = await another_connection()
    told: asyncio.Queue[str] = asyncio.Queue()
    transaction = other.transaction()
    await transaction.start()
    await other.execute(IDLE["submitter"])
    connections = [await another_connection() for _ in range(4)]
    at_once = asyncio.gather(*(migrate(one, patience=3600, tell=told.put_nowait) for one in connections))
    await asyncio.wait_for(told.get(), 30)
    await transaction.rollback()
    assert sorted(map(len, await asyncio.wait_for(at_once, 60))) == [0, 0, 0, 1]


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
async def test_a_database_that_can_not_store_every_character_is_refused(postgres, encoding):
    async with postgres.administrator() as administrator:
        await administrator.execute(f"CREATE DATABASE other_encoding ENCODING '{encoding}' TEMPLATE template0")
    try:
        connection = await asyncpg.connect(postgres.url("other_encoding"))
        for use in (migrate, check_schema):
            complaint = (
                rf"the encoding of the database must be UTF8; it is {encoding}: use one that was made with CREATE"
            )
            with pytest.raises(ConfigError, match=complaint):
                await use(connection)
        await connection.close()
    finally:
        await postgres.drop_database("other_encoding")


async def _definitions_by_transaction(connection):
    """Each function, view and trigger, with the transaction that has written it."""
    rows = await connection.fetch("""
        SELECT oid::regprocedure::text AS name, xmin::text FROM pg_proc
        WHERE pronamespace IN ('joex'::regnamespace, 'joex_client'::regnamespace, 'joex_private'::regnamespace)
        UNION ALL SELECT r.rulename || ' on ' || c.oid::regclass, r.xmin::text FROM pg_rewrite r
            JOIN pg_class c ON c.oid = r.ev_class
            WHERE c.relnamespace::regnamespace::text IN ('joex', 'joex_client', 'joex_private')
        UNION ALL SELECT t.tgname || ' on ' || c.oid::regclass, t.xmin::text FROM pg_trigger t
            JOIN pg_class c ON c.oid = t.tgrelid
            WHERE c.relnamespace::regnamespace::text IN ('joex', 'joex_client', 'joex_private') AND NOT t.tgisinternal
    """)
    return {row["name"]: row["xmin"] for row in rows}


async def test_each_migration_is_recorded_with_its_name(connection):
    rows = await connection.fetch("SELECT number, name FROM joex_private.migration ORDER BY number")
    assert [tuple(row) for row in rows] == [(migration.number, migration.name) for migration in migrations()]


async def test_a_failed_migration_leaves_nothing_behind(empty):
    await empty.execute("CREATE SCHEMA joex_private; CREATE TYPE joex_private.job_priority AS ENUM ('one')")
    with pytest.raises(Exception, match=r"job_priority"):
        await migrate(empty)
    assert await schema_version(empty) == 0
    assert await empty.fetchval("SELECT to_regclass('joex_private.job')") is None


async def test_an_older_schema_is_named_with_what_to_do(connection):
    await connection.execute("DELETE FROM joex_private.migration")
    await connection.execute("INSERT INTO joex_private.migration (number, name, min_reader) SELECT -1, 'none', -1")
    with pytest.raises(SchemaError, match=r"run 'joex migrate'"):
        await check_schema(connection)


async def test_a_database_without_the_schema_is_named_with_what_to_do(empty):
    with pytest.raises(SchemaError, match=r"the database has no Joex schema.* run 'joex migrate'"):
        await check_schema(empty)


async def test_whoever_uses_a_database_without_the_schema_is_told_to_migrate(empty):
    with pytest.raises(SchemaError, match=r"run 'joex migrate'"):
        await finish(empty, uuid4(), uuid4(), None, None)


async def test_an_operator_that_migrates_a_database_asks_nobody_to_do_so(empty_database_url, caplog, monkeypatch):
    class Nothing:
        def wake(self):
            """Called for each message on the channel of periodic tasks."""

        def stop(self):
            """Stop nothing; returns a task that ends."""
            return asyncio.create_task(asyncio.sleep(0))

    nothing: Any = Nothing()
    begun: list[Connection] = []
    observe = executors.observe

    async def observed(connection: Connection) -> Beat:
        begun.append(connection)
        return await observe(connection)

    monkeypatch.setattr(executors, "observe", observed)
    database = Database(
        empty_database_url, lambda _kind, _name: None, migrate=True, start_scheduler=lambda _pool, _name: nothing
    )
    try:
        await eventually(lambda: len(begun) > 1, why="it has listened, found no schema, and listened again")
        async with database.connection() as connection:
            assert await connection.fetchval("SELECT count(*) FROM joex_private.job") == 0
    finally:
        await database.close()
    assert "joex migrate" not in caplog.text


async def test_an_error_about_a_table_of_the_users_own_is_not_taken_for_a_missing_schema(connection):
    with pytest.raises(Exception, match=r"orders") as caught:
        await connection.execute("SELECT * FROM orders")
    assert not isinstance(caught.value, SchemaError)


async def test_a_user_who_may_not_create_the_schema_is_told_so(empty, postgres):
    await empty.execute("DO $$ BEGIN CREATE ROLE poor LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
    name = await empty.fetchval("SELECT current_database()")
    poor = await connect(postgres.url(name).replace("//postgres@", "//poor@"))
    try:
        with pytest.raises(ConfigError, match=r"permission denied"):
            await migrate(poor)
    finally:
        await poor.close()


async def test_a_migration_names_the_index_of_another_role_that_keeps_it_from_changing_a_table(empty, upgrade):
    """The server asks for no right on a type that an expression of an index has."""
    await migrate(empty)
    await empty.execute("DO $$ BEGIN CREATE ROLE poor LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
    await empty.execute("SELECT joex_private.set_scopes('poor', '{view}')")
    await empty.execute("CREATE SCHEMA his AUTHORIZATION poor")
    await empty.execute(
        "SET ROLE poor; CREATE TABLE his.own (); CREATE INDEX one ON his.own ((NULL::joex_private.job)); RESET ROLE"
    )
    upgrade(sql="ALTER TABLE joex_private.job ADD COLUMN more integer NOT NULL DEFAULT 0")
    with pytest.raises(
        ConfigError, match=r"^the index his.one of the role poor uses a type of Joex that the migration cha"
    ):
        await migrate(empty)
    assert await schema_version(empty) == NEWEST
    await empty.execute("DROP INDEX his.one")
    assert await migrate(empty) == ["9999_next"]


async def test_a_migration_names_the_views_of_other_roles_that_keep_it_from_dropping_a_view(empty, postgres, upgrade):
    await migrate(empty)
    await empty.execute("DO $$ BEGIN CREATE ROLE poor LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
    await empty.execute("SELECT joex_private.set_scopes('poor', '{view}', '{mine}')")
    name = await empty.fetchval("SELECT current_database()")
    poor = await connect(postgres.url(name).replace("//postgres@", "//poor@"))
    try:
        await poor.execute("""DO $$ BEGIN FOR nr IN 0..4 LOOP
            EXECUTE format('CREATE TEMPORARY VIEW own%s AS SELECT * FROM joex.queue_stats', nr); END LOOP; END $$""")
        upgrade(sql="DROP VIEW joex.queue_stats; UPDATE joex_private.migration SET definitions = '{}'")
        first = r"^the view pg_temp_\d+.own0 depends on view joex.queue_stats, view"
        with pytest.raises(
            ConfigError, match=rf"{first} .*own2 .*, and 2 more; nothing was done: drop what is not Joex's, as"
        ):
            await migrate(empty)
        assert await schema_version(empty) == NEWEST
        schema = await poor.fetchval("SELECT pg_my_temp_schema()::regnamespace::text")
        await empty.execute(f"DROP VIEW {', '.join(f'{schema}.own{nr}' for nr in range(5))}")
        assert await migrate(empty) == ["9999_next"]
    finally:
        await poor.close()


@pytest.mark.parametrize("planted", ["joex", "joex_private"])
async def test_a_superuser_does_not_migrate_a_schema_that_another_role_has_made(empty, planted):
    """Its functions would run with the rights of a superuser."""
    await empty.execute("DO $$ BEGIN CREATE ROLE poor LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
    await empty.execute(f"CREATE SCHEMA {planted} AUTHORIZATION poor")
    with pytest.raises(ConfigError, match=f"^the schema {planted} belongs to the role poor, which could run code"):
        await migrate(empty)
    await empty.execute(f"ALTER SCHEMA {planted} OWNER TO CURRENT_USER")
    assert len(await migrate(empty)) == len(migrations())


async def test_a_role_without_rights_keeps_no_migration_from_its_work_by_default_privileges(empty):
    """The server lets any role set them, for what it makes itself, in any schema."""
    await migrate(empty)
    await empty.execute("DO $$ BEGIN CREATE ROLE poor LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
    for schema in ("joex", "joex_private"):
        await empty.execute(
            f"SET ROLE poor; ALTER DEFAULT PRIVILEGES IN SCHEMA {schema} GRANT SELECT ON TABLES TO PUBLIC; RESET ROLE"
        )
    assert await migrate(empty) == []
    await empty.execute("DROP OWNED BY poor")


PLANTED = """
    CREATE TABLE joex_private.migration (number integer PRIMARY KEY, name text NOT NULL, definitions text[],
                                         applied_at timestamptz DEFAULT now());
    GRANT ALL ON joex_private.migration TO PUBLIC;
    CREATE FUNCTION joex_private.attack() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE EXCEPTION 'this ran as %', current_user; END $$;
    CREATE TRIGGER attack BEFORE INSERT ON joex_private.migration FOR EACH ROW EXECUTE FUNCTION joex_private.attack();
"""


@pytest.mark.parametrize("is_superuser", [True, False])
@pytest.mark.parametrize("whose", ["schema", "table"])
async def test_the_trigger_of_a_migration_table_that_another_role_has_planted_runs_as_nobody(
    empty, postgres, is_superuser, whose
):
    """Whoever migrates inserts into that table."""
    for role in ("poor", "rich"):
        await empty.execute(f"DO $$ BEGIN CREATE ROLE {role} LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
    name = await empty.fetchval("SELECT current_database()")
    await empty.execute(f'GRANT CREATE ON DATABASE "{name}" TO rich')
    victim = empty if is_superuser else await connect(postgres.url(name).replace("//postgres@", "//rich@"))
    await victim.execute("CREATE SCHEMA joex_private; GRANT ALL ON SCHEMA joex_private TO PUBLIC")
    if whose == "schema":
        await empty.execute("ALTER SCHEMA joex_private OWNER TO poor")
    await empty.execute(f"SET ROLE poor; {PLANTED} RESET ROLE")
    found = "schema joex_private" if whose == "schema" else "table joex_private.migration"
    with pytest.raises(ConfigError, match=f"^the {found} belongs to the role poor, which could run code"):
        await migrate(victim)
    await empty.execute("DROP SCHEMA joex_private CASCADE")
    assert len(await migrate(victim)) == len(migrations())
    if victim is not empty:
        await victim.close()


async def test_a_member_of_the_role_that_owns_the_schemas_migrates_them(empty, postgres):
    for role in ("owners", "member"):
        await empty.execute(f"DO $$ BEGIN CREATE ROLE {role} LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
    name = await empty.fetchval("SELECT current_database()")
    await empty.execute(f'GRANT owners TO member; GRANT CREATE ON DATABASE "{name}" TO owners')
    await empty.execute("CREATE SCHEMA joex AUTHORIZATION owners")
    member = await connect(postgres.url(name).replace("//postgres@", "//member@"))
    try:
        assert len(await migrate(member)) == len(migrations())
    finally:
        await member.close()


async def test_a_database_that_does_not_exist_is_a_wrong_url(postgres):
    with pytest.raises(ConfigError, match=r'^database URL: database "nowhere" does not exist'):
        await connect(postgres.url("nowhere"))


async def test_a_user_who_does_not_exist_is_a_wrong_url(postgres):
    with pytest.raises(ConfigError, match=r'^database URL: role "nobody" does not exist'):
        await connect(postgres.url().replace("//postgres@", "//nobody@"))


async def test_a_server_that_is_not_there_may_come_later(postgres):
    postgres.stop()
    with pytest.raises(DatabaseUnavailable, match=r"^the database is not available: "):
        await connect(postgres.tcp_url())
    postgres.start()
    await (await connect(postgres.tcp_url())).close()


async def test_json_that_the_database_cannot_hold_is_found_before_it_is_sent():
    with pytest.raises(ConfigError, match=r"^result: must not contain a NUL character"):
        json_text("result", {"a": "x\0y"})

"""The schema comes up, once, whoever brings it and however many do."""

import asyncio
from uuid import uuid4

import pytest

from joex.errors import ConfigError, DatabaseUnavailable, SchemaError
from joex.store.database import connect
from joex.store.jobs import json_text
from joex.store.migrate import check_schema, migrate, migrations, schema_version
from joex.store.runs import finish

NEWEST = migrations()[-1].number


@pytest.fixture
async def empty(empty_database_url):
    connection = await connect(empty_database_url)
    yield connection
    await connection.close()


async def test_an_empty_database_gets_the_whole_schema(empty):
    assert await schema_version(empty) == 0
    assert await migrate(empty) == [migration.name for migration in migrations()]
    assert await schema_version(empty) == NEWEST
    await check_schema(empty)
    assert await empty.fetchval("SELECT joex.submit('a')") is not None


async def test_a_second_migration_finds_nothing_to_do(empty):
    await migrate(empty)
    assert await migrate(empty) == []


async def test_eight_processes_may_migrate_at_once_and_one_of_them_does(empty_database_url):
    connections = [await connect(empty_database_url) for _ in range(8)]
    try:
        done = await asyncio.gather(*(migrate(connection) for connection in connections))
        assert sorted(map(len, done)) == [0] * 7 + [NEWEST]
        assert await connections[0].fetchval("SELECT count(*) FROM joex.migration") == NEWEST
    finally:
        for connection in connections:
            await connection.close()


async def test_each_migration_is_recorded_with_its_name(connection):
    rows = await connection.fetch("SELECT number, name FROM joex.migration ORDER BY number")
    assert [tuple(row) for row in rows] == [(migration.number, migration.name) for migration in migrations()]


async def test_a_failed_migration_leaves_nothing_behind(empty):
    await empty.execute("CREATE SCHEMA joex; CREATE TYPE joex.job_priority AS ENUM ('one')")
    with pytest.raises(Exception, match=r"job_priority"):
        await migrate(empty)
    assert await schema_version(empty) == 0
    assert await empty.fetchval("SELECT to_regclass('joex.job')") is None


async def test_the_schema_of_a_newer_joex_is_neither_used_nor_touched(connection):
    await connection.execute("INSERT INTO joex.migration (number, name) VALUES ($1, 'later')", NEWEST + 1)
    for use in (migrate, check_schema):
        with pytest.raises(SchemaError, match=rf"version {NEWEST + 1} .* newer than this joex .* use a newer joex"):
            await use(connection)


async def test_an_older_schema_is_named_with_what_to_do(connection):
    await connection.execute("DELETE FROM joex.migration")
    await connection.execute("INSERT INTO joex.migration (number, name) SELECT 0, 'none'")
    with pytest.raises(SchemaError, match=r"run 'joex migrate'"):
        await check_schema(connection)


async def test_a_database_without_the_schema_is_named_with_what_to_do(empty):
    with pytest.raises(SchemaError, match=r"the database has no Joex schema.* run 'joex migrate'"):
        await check_schema(empty)


async def test_whoever_uses_a_database_without_the_schema_is_told_to_migrate(empty):
    with pytest.raises(SchemaError, match=r"run 'joex migrate'"):
        await finish(empty, uuid4(), uuid4(), None, None)


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

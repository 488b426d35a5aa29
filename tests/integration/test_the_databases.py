"""A used database of a test serves another test, which must find it like a new one."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.postgres import TEMPLATE, TestServer

_STATE = """
    SELECT oid::regclass::text, pg_relation_size(oid), CASE relkind WHEN 'r' THEN reltuples END,
        CASE relkind WHEN 'S' THEN pg_sequence_last_value(oid) END,
        (SELECT count(*) FROM pg_trigger WHERE tgrelid = c.oid AND tgenabled <> 'D')
    FROM pg_class c WHERE relnamespace = 'joex_private'::regnamespace AND relkind IN ('r', 'i', 'S')
        AND relname <> 'migration'  -- which no test writes to: it is left as it is
    ORDER BY 1
"""


async def state(server: TestServer, database: str) -> list[Any]:
    async with server.administrator(database) as connection:
        return [tuple(row) for row in await connection.fetch(_STATE)]


@pytest.fixture(autouse=True)
async def no_autovacuum(postgres: TestServer) -> AsyncIterator[None]:
    """Autovacuum may analyze a table at any moment, that is, between its emptying and the look at it."""
    async with postgres.administrator() as administrator:
        await administrator.execute("ALTER SYSTEM SET autovacuum = off")
        await administrator.execute("SELECT pg_reload_conf()")
        yield
        await administrator.execute("ALTER SYSTEM RESET autovacuum")
        await administrator.execute("SELECT pg_reload_conf()")


@pytest.mark.parametrize(
    "touch",
    [
        "SELECT joex.submit('a', grp => 'g')",
        "SELECT joex.submit('a'); DELETE FROM joex_private.job",
        "BEGIN; SELECT joex.submit('a'); ROLLBACK",
        "SELECT nextval('joex_private.floor_epoch')",
        "ANALYZE",
        "UPDATE joex_private.periodic_task SET enabled = true",
        "SELECT joex.put_periodic_task('mine', 'a', 'daily')",
        "INSERT INTO joex_private.subscriber VALUES ('me', true, 'infinity')",
        "ALTER TABLE joex_private.periodic_task DISABLE TRIGGER changes",
        "CREATE SEQUENCE joex_private.ring_cursor_12",
        "CREATE TABLE mine (id integer)",
        "CREATE TABLE joex_private.mine (id uuid PRIMARY KEY)",
    ],
)
async def test_a_database_that_serves_again_is_as_one_that_was_just_made(postgres, touch):
    name = await postgres.create_database()
    async with postgres.administrator() as administrator:
        await administrator.execute(f"CREATE DATABASE just_made TEMPLATE {TEMPLATE}")
    new = await state(postgres, "just_made")
    try:
        async with postgres.administrator(name) as connection:
            await connection.execute(touch)
        await postgres.release_database(name)
        name = await postgres.create_database()
        assert await state(postgres, name) == new
        async with postgres.administrator(name) as connection:
            assert await connection.fetch("SELECT id, enabled, timer FROM joex_private.periodic_task") == [
                ("joex.retention", False, "yearly")
            ]
    finally:
        await postgres.release_database(name)
        await postgres.drop_database("just_made")


_PASSING_ROLE = """
    CREATE ROLE passing; GRANT SELECT ON ALL TABLES IN SCHEMA joex TO passing;
    GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA joex, joex_client, joex_private TO passing;
    DROP OWNED BY passing; DROP ROLE passing
"""


@pytest.mark.parametrize("passing", ["SELECT 1", _PASSING_ROLE], ids=["alone", "after a role"])
@pytest.mark.parametrize(
    ("change", "serves"),
    [
        ("SELECT 1", True),
        ("GRANT SELECT ON joex.jobs TO PUBLIC", False),
        ("ALTER TABLE joex_private.job ALTER task SET DEFAULT 'a'", False),
        ("ALTER TABLE joex_private.job ENABLE ROW LEVEL SECURITY", False),
        ("ALTER FUNCTION joex.why(uuid) SET work_mem = '1MB'", False),
        ("CREATE TYPE joex.mine AS ENUM ('a')", False),
    ],
)
async def test_a_database_whose_role_is_gone_serves_again_unless_something_else_stays(
    postgres, passing, change, serves
):
    """Each grant makes other row versions of all functions, so these alone would say that it is another database."""
    name = await postgres.create_database()
    async with postgres.administrator(name) as connection:
        await connection.execute(passing)
        await connection.execute(change)
    await postgres.release_database(name)
    async with postgres.administrator() as administrator:
        there = await administrator.fetchval("SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", name)
    assert there == serves

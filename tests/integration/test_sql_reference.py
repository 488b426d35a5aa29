"""The page of the schema `joex` agrees with the catalogue of a database."""

import re

import pytest

from scripts.generate_sql_reference import PAGE

pytestmark = pytest.mark.postgres(16, 18)

HEADING = re.compile(r"^### joex\.(\w+)$", re.MULTILINE)
OBJECTS = """
    SELECT i.type, i.identity FROM pg_depend d
    CROSS JOIN LATERAL pg_identify_object(d.classid, d.objid, d.objsubid) i
    WHERE d.refclassid = 'pg_namespace'::regclass AND d.refobjid = 'joex'::regnamespace
"""
SIGNATURE = """
    SELECT pg_get_function_arguments(p.oid) AS arguments, pg_get_function_result(p.oid) AS result
    FROM pg_proc p WHERE p.pronamespace = $1::text::regnamespace AND p.proname = $2
"""
COLUMNS = """
    SELECT a.attname, format_type(a.atttypid, NULL)
    FROM pg_attribute a WHERE a.attrelid = $1::text::regclass AND a.attnum > 0 ORDER BY a.attnum
"""
CANONICAL = "SELECT format_type($1::text::regtype, NULL)"


def documented() -> dict[str, str]:
    """The text below the heading of each function and view."""
    _, *parts = HEADING.split(PAGE.read_text("utf-8"))
    return dict(zip(parts[::2], parts[1::2], strict=True))


FUNCTIONS = {name: text for name, text in documented().items() if "```sql" in text}
VIEWS = {name: text for name, text in documented().items() if name not in FUNCTIONS}


async def test_the_schema_joex_has_the_documented_functions_and_views_and_nothing_else(connection):
    found = [(row["type"], row["identity"].partition("(")[0]) for row in await connection.fetch(OBJECTS)]
    documented = [("function", f"joex.{name}") for name in FUNCTIONS] + [("view", f"joex.{name}") for name in VIEWS]
    assert sorted(found) == sorted(documented)


async def test_a_function_has_the_documented_signature(connection):
    await connection.execute(
        "BEGIN; CREATE SCHEMA page"
    )  # (it is never committed, so the next test can have the database)
    for name, text in FUNCTIONS.items():
        [declared] = re.findall(r"^```sql\njoex\.(.*?)^```", text, re.MULTILINE | re.DOTALL)
        await connection.execute(f"CREATE FUNCTION page.{declared} LANGUAGE plpgsql AS 'BEGIN END'")
        [wanted] = await connection.fetch(SIGNATURE, "page", name)
        assert await connection.fetch(SIGNATURE, "joex", name) == [wanted], name


async def test_a_view_has_the_documented_columns(connection):
    for name, text in VIEWS.items():
        rows = re.findall(r"^\| (\w+) \| ([\w\[\]]+) \|", text, re.MULTILINE)[1:]
        wanted = [(column, await connection.fetchval(CANONICAL, kind)) for column, kind in rows]
        assert [tuple(row) for row in await connection.fetch(COLUMNS, f"joex.{name}")] == wanted, name

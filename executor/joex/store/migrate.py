"""Bring the schema ``joex`` of a database to this version, and check that it is.

The numbered files of ``migrations/`` run once each, in one transaction, under an advisory lock, so that any number of
pods may start with it. Functions and views (``sql/*.sql``) are installed anew whenever a number was added; a change of
them alone therefore comes with a numbered file too. Migrations are forward-only, and each must leave the schema usable
for the executors of the version before, which may still be running.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import resources

from joex.errors import ConfigError, SchemaError
from joex.store.errors import translated
from joex.store.statement import Connection, statement

OLDEST_SERVER = 16

_LOCK = statement("SELECT pg_advisory_xact_lock(1785685000, 0)")
_VERSIONS_TABLE = """
    CREATE SCHEMA IF NOT EXISTS joex;
    CREATE TABLE IF NOT EXISTS joex.migration (
        number      integer PRIMARY KEY,
        name        text NOT NULL,
        applied_at  timestamptz NOT NULL DEFAULT clock_timestamp()
    )
"""
_HAS_VERSIONS = statement("SELECT to_regclass('joex.migration') IS NOT NULL")
_VERSION = "SELECT coalesce(max(number), 0) FROM joex.migration"
_RECORD = "INSERT INTO joex.migration (number, name) VALUES ($1, $2)"


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered file."""

    number: int
    name: str
    sql: str


def migrations() -> list[Migration]:
    """The numbered migrations of this version, in order."""
    return [
        Migration(int(name.partition("_")[0]), name.removesuffix(".sql"), text) for name, text in _files("migrations")
    ]


def functions() -> str:
    """The functions and views of this version, in the order of installation."""
    return "\n".join(text for _, text in _files("sql"))


def functions_digest() -> str:
    """A digest of the functions and views, by which a test notices a change of them without a numbered migration."""
    return hashlib.sha256(functions().encode()).hexdigest()[:16]


async def schema_version(connection: Connection) -> int:
    """The number of the last migration that the database has; 0 where it has none."""
    with translated():
        if not await connection.fetchval(_HAS_VERSIONS):
            return 0
        return int(await connection.fetchval(_VERSION))


async def migrate(connection: Connection) -> list[str]:
    """Bring the database to this version's schema; returns the names of the migrations that were applied now.

    Safe to call from many processes at once: they wait for each other, and all but the first find nothing to do.

    Raises:
        SchemaError: the database has the schema of a newer version.
        ConfigError: the server is too old, or the user may not create the schema.
    """
    known = migrations()
    with translated():
        _check_server(connection)
        async with connection.transaction():
            await connection.execute(_LOCK)
            version = await schema_version(connection)
            _refuse_newer(version, known)
            missing = [migration for migration in known if migration.number > version]
            if not missing:
                return []
            await connection.execute("SET LOCAL client_min_messages = warning")
            await connection.execute(_VERSIONS_TABLE)
            for migration in missing:
                await connection.execute(migration.sql)
                await connection.execute(_RECORD, migration.number, migration.name)
            await connection.execute(functions())
    return [migration.name for migration in missing]


async def check_schema(connection: Connection) -> None:
    """Check that the database has the schema of this version.

    A newer schema is refused: an executor must not guess what later versions mean.

    Raises:
        SchemaError: it has none, an older or a newer one; the message says what to do.
        ConfigError: the server is too old.
    """
    known = migrations()
    _check_server(connection)
    version = await schema_version(connection)
    _refuse_newer(version, known)
    if version < known[-1].number:
        have = f"version {version} of the Joex schema" if version else "no Joex schema"
        raise SchemaError(f"the database has {have}, this joex needs version {known[-1].number}: run 'joex migrate'")


def _refuse_newer(version: int, known: list[Migration]) -> None:
    if version > known[-1].number:
        raise SchemaError(
            f"the database has version {version} of the Joex schema, newer than this joex "
            f"(version {known[-1].number}): use a newer joex"
        )


def _check_server(connection: Connection) -> None:
    server = connection.get_server_version()
    if server.major < OLDEST_SERVER:
        raise ConfigError(f"database URL: PostgreSQL {OLDEST_SERVER} or newer is needed; the server is {server.major}")


def _files(folder: str) -> list[tuple[str, str]]:
    found = [entry for entry in (resources.files("joex.store") / folder).iterdir() if entry.name.endswith(".sql")]
    return [(entry.name, entry.read_text(encoding="utf-8")) for entry in sorted(found, key=lambda entry: entry.name)]

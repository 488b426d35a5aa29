"""Migrates the schemas ``joex``, ``joex_client`` and ``joex_private`` to this version, and checks their version.

The numbered files of ``migrations/`` run once each, in one transaction. It locks the table of those that have run, so
that any number of pods may run them at their start; of those that would make the schemas, the server lets one do it.
When a number was added, the migration redefines the functions, views and triggers (``sql/*.sql``) that have changed; a
change of these alone therefore comes with a numbered file too. Migrations are forward-only. A migration adds, and
leaves the schemas usable for programs of earlier versions. One that takes something away from them names the oldest
version that may use the schema from then on (``-- min_reader: N``), and is not made while older executors live.

To redefine a view or a trigger, a migration needs a lock that waits for each transaction that has used the view, or has
written to the table, even if it is idle; and all later transactions wait behind that lock. So a migration waits for a
moment only, rolls back, lets the others pass, and tries again.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import resources

import asyncpg

from joex.errors import ConfigError, DatabaseUnavailable, SchemaError
from joex.store import in_the_way, refused_migrations
from joex.store.errors import translated
from joex.store.statement import Connection, statement

OLDEST_SERVER = 16
_PATIENCE = 60.0
_PAUSE = 1.0
_LOCK = statement("LOCK TABLE joex_private.migration IN SHARE ROW EXCLUSIVE MODE")
# (The server ends a vacuum of its own once a session has waited for its lock for deadlock_timeout.)
_WAIT_BRIEFLY = statement("""
    SELECT set_config('lock_timeout', (300 + CASE WHEN $1::boolean THEN
        extract(epoch FROM current_setting('deadlock_timeout')::interval) * 1000 ELSE 0 END)::integer::text, true)
""")
_VERSIONS_TABLE = """
    CREATE SCHEMA IF NOT EXISTS joex;
    CREATE SCHEMA IF NOT EXISTS joex_client;
    CREATE SCHEMA IF NOT EXISTS joex_private;
    CREATE TABLE IF NOT EXISTS joex_private.migration (
        number       integer PRIMARY KEY,
        name         text NOT NULL,
        applied_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
        min_reader   integer NOT NULL,              -- from here on, a program must know this version, or a newer one
        definitions  text[] NOT NULL DEFAULT '{}'   -- digests of the functions, views and triggers as they are since
    )
"""
_HAS_VERSIONS = statement("SELECT to_regclass('joex_private.migration') IS NOT NULL")
_NO_PUBLIC = "the database has the schema joex_private, and lacks joex or joex_client"
_HAS_PUBLIC = statement("SELECT num_nulls(to_regnamespace('joex'), to_regnamespace('joex_client')) = 0")
_SECURE = statement("SELECT joex_private.secure()")
_SECURE_ONLY = statement("SELECT joex_private.secure(p_grants => false)")
_LACKS_RIGHTS = statement("""
    SELECT EXISTS (SELECT FROM joex_private.role_scope s WHERE NOT has_schema_privilege(s.role, 'joex', 'USAGE'))
""")
_ENCODING = statement("SELECT getdatabaseencoding()")
# Of the schemas and all that is in them: the first whose owner is neither a superuser nor a role of this user's.
# (pg_depend says what is in a schema. pg_shdepend says who owns it, but for the superuser who made the server.)
_PLANTED = statement("""
    WITH found AS (
        SELECT 'pg_namespace'::regclass::oid AS kind, n.oid FROM pg_namespace n
        WHERE n.nspname IN ('joex', 'joex_client', 'joex_private')
        UNION ALL
        SELECT d.classid, d.objid FROM pg_depend d JOIN pg_namespace n ON n.oid = d.refobjid
        WHERE d.refclassid = 'pg_namespace'::regclass::oid AND n.nspname IN ('joex', 'joex_client', 'joex_private')
              -- (Any role may set such a default, which is for what it makes itself.)
              AND d.classid <> 'pg_default_acl'::regclass::oid)
    SELECT pg_describe_object(f.kind, f.oid, 0) AS name, o.rolname AS owner, u.rolsuper AS is_superuser
    FROM found f JOIN pg_shdepend s ON s.classid = f.kind AND s.objid = f.oid AND s.deptype = 'o'
         AND s.dbid = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
    JOIN pg_roles o ON o.oid = s.refobjid JOIN pg_roles u ON u.rolname = current_user
    WHERE NOT o.rolsuper AND (u.rolsuper OR NOT pg_has_role(u.oid, o.oid, 'MEMBER'))
    ORDER BY f.kind = 'pg_namespace'::regclass::oid DESC, f.kind DESC, f.oid LIMIT 1
""")
# What others have made with a type of the schema: the server refuses to change the tables and domains that it is of.
_USERS_OF_TYPES = statement("""
    SELECT pg_describe_object('pg_class'::regclass, c.oid, 0) AS name, c.relowner::regrole::text AS owner
    FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid JOIN pg_class c ON c.oid = a.attrelid
    WHERE t.typnamespace = to_regnamespace('joex_private') AND c.relkind <> 'v'
          AND c.relnamespace NOT IN (
              SELECT n.oid FROM pg_namespace n WHERE n.nspname IN ('joex', 'joex_client', 'joex_private'))
    ORDER BY t.typtype <> 'c', c.oid LIMIT 1
""")
_VERSION = "SELECT coalesce(max(number), 0) FROM joex_private.migration"
_MIN_READER = statement("SELECT coalesce(max(min_reader), 0) FROM joex_private.migration")
_DEFINED = "SELECT definitions FROM joex_private.migration WHERE number = $1"
_RECORD = "INSERT INTO joex_private.migration (number, name, min_reader, definitions) VALUES ($1, $2, $3, $4)"
_HOLD_REGISTRATIONS = statement("LOCK TABLE joex_private.executor IN SHARE ROW EXCLUSIVE MODE")
# (An executor lives that has renewed its lease within five: this reads a clock, and ends nothing. It does not rely on
# the rescue of dead executors: the operator, or executor, that would do it may be waiting for this very migration.)
_TOO_OLD = statement("""
    SELECT e.app_id, e.draining FROM joex_private.executor e JOIN joex_private.lease l ON l.executor_id = e.id
    WHERE e.left_at IS NULL AND e.schema_version < $1::integer AND l.heartbeat_at > clock_timestamp() - e.lease * 5
    ORDER BY e.app_id
""")
_DRAIN = statement("SELECT joex_client.drain($1::text)")
_FIELD = re.compile(r"^-- min_reader: (\d+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered file.

    ``min_reader``: the oldest version of the schema that a program may know to use the schema after this migration.
    """

    number: int
    name: str
    sql: str
    min_reader: int


@dataclass(frozen=True, slots=True)
class Definition:
    """A statement that defines, or redefines, a function, a view or a trigger."""

    sql: str

    @property
    def digest(self) -> str:
        """It changes with anything but the comments outside of the statement."""
        return _digest(re.sub(r"^--.*\n", "", self.sql, flags=re.MULTILINE).strip())

    @property
    def is_trigger(self) -> bool:
        """Whether it locks a table."""
        return self.sql.startswith("CREATE OR REPLACE TRIGGER")


def migrations() -> list[Migration]:
    """The numbered migrations of this version, in order. One without ``min_reader`` has that of the one before."""
    found: list[Migration] = []
    for name, text in _files("migrations"):
        given = _FIELD.search(text)
        min_reader = int(given[1]) if given else found[-1].min_reader
        found.append(Migration(int(name.partition("_")[0]), name.removesuffix(".sql"), text, min_reader))
    return found


def known_version() -> int:
    """The number of the newest migration that this version knows."""
    return migrations()[-1].number


def definitions() -> list[Definition]:
    """The functions, views and triggers of this version, in the order of installation.

    Triggers come last: from then on until the migration commits, submissions wait.
    """
    texts = [part for _, text in _files("sql") for part in re.split(r"^(?=CREATE |DO )", text, flags=re.MULTILINE)[1:]]
    return sorted(map(Definition, texts), key=lambda one: one.is_trigger)


def functions_digest() -> str:
    """A digest of the files: a test compares it, and so notices a change without a numbered migration."""
    return _digest("\n".join(text for _, text in _files("sql")))


async def schema_version(connection: Connection) -> int:
    """The number of the last migration that the database has; 0: it has none."""
    with translated():
        if not await connection.fetchval(_HAS_VERSIONS):
            return 0
        return int(await connection.fetchval(_VERSION))


async def migrate(
    connection: Connection,
    *,
    patience: float = _PATIENCE,
    tell: Callable[[str], None] = lambda _line: None,
    lock_out: bool = False,
) -> list[str]:
    """Migrate the database to this version's schema; returns the names of the migrations that this call applied.

    Safe to call from many processes at once: they wait for each other, and all but the first find nothing to do. So
    does a call on a newer schema that this version may use.

    Args:
        connection: in no transaction.
        patience: seconds for which it retries while other transactions are in the way.
        tell: gets a line that names these transactions, each time that they change, if they can be named.
        lock_out: migrate though executors that live are too old for the new schema: they drain, and can't start again.

    Raises:
        SchemaError: the schema is too new for this version, or the new one would be for executors that live.
        ConfigError: the server is too old, its encoding is not UTF8, the user may not create the schema,
            something in it belongs to a role that could run code with the user's rights, or another role has made
            something with a type of it that the migration changes, or on a view or function that it drops.
        DatabaseUnavailable: other transactions were in the way all the time; nothing was done.
    """
    until, told, is_long = time.monotonic() + patience, "", False
    with translated():
        await _check_database(connection)
        while True:
            try:
                return await _migrate_now(connection, is_long=is_long, lock_out=lock_out)
            except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError, asyncpg.InternalServerError) as error:
                if isinstance(error, asyncpg.InternalServerError) and "tuple concurrently" not in str(error):
                    raise
                others = await in_the_way.users_of_schema(connection)
            except asyncpg.FeatureNotSupportedError as error:
                if (found := await connection.fetchrow(_USERS_OF_TYPES)) is None:
                    raise
                raise ConfigError(refused_migrations.type_in_use(found["name"], found["owner"])) from error
            except asyncpg.DependentObjectsStillExistError as error:
                raise ConfigError(refused_migrations.has_dependents(error.detail or str(error))) from error
            is_long = not all(other.is_client for other in others)
            line = refused_migrations.named(others)
            if time.monotonic() >= until:
                raise DatabaseUnavailable(refused_migrations.schema_in_use(line))
            if line not in ("", told):  # (two commands that begin on an empty database are nothing to tell)
                told = line
                tell(f"waiting for other transactions that use the schema: {line}")
            await asyncio.sleep(_PAUSE * (3 if is_long else 1))


async def _migrate_now(connection: Connection, *, is_long: bool, lock_out: bool) -> list[str]:
    """Migrate, or give up if a lock is not free at once (is_long: after ``deadlock_timeout``)."""
    known = migrations()
    async with connection.transaction():
        # (The operators of views are looked up when the views are made: no role may put its own in the way.)
        await connection.execute("SET LOCAL search_path = pg_catalog, pg_temp; SET LOCAL client_min_messages = warning")
        await _refuse_planted(connection)
        if await connection.fetchval(_HAS_VERSIONS):
            await connection.execute(_LOCK)
        version = await schema_version(connection)
        await _refuse_too_new(connection, version, known[-1].number)
        missing = [migration for migration in known if migration.number > version]
        has_public = await connection.fetchval(_HAS_PUBLIC)  # DROP SCHEMA joex leaves all jobs where they are
        if not missing and has_public:
            await connection.execute(_WAIT_BRIEFLY, is_long)
            await connection.execute(_SECURE_ONLY)  # a dump without rights may have been restored
            if await connection.fetchval(_LACKS_RIGHTS):
                # (No migration fails by a transaction that has written rights: `joex roles grant` names it.)
                with suppress(asyncpg.LockNotAvailableError):
                    async with connection.transaction():
                        await connection.execute(_SECURE)
            return []
        if version > known[-1].number:
            raise SchemaError(f"{_NO_PUBLIC}, and version {version} of the rest: run 'joex migrate' of a newer joex")
        await connection.execute(_WAIT_BRIEFLY, is_long)
        if missing and version:
            await _spare_or_drain(connection, missing[-1], lock_out=lock_out)
        try:
            await connection.execute(_VERSIONS_TABLE)
        except asyncpg.UniqueViolationError as error:
            raise asyncpg.LockNotAvailableError("another process has just made the schemas") from error
        for migration in missing:
            await connection.execute(migration.sql)
        # (After the numbered files: one that drops a view removes its digest here.)
        defined = set(await connection.fetchval(_DEFINED, version) or ()) if has_public else set()
        wanted = definitions()
        if changed := [one.sql for one in wanted if one.digest not in defined]:  # (asyncpg fails on an empty text)
            await connection.execute("\n".join(changed))
        await connection.execute(_SECURE)
        digests = [one.digest for one in wanted]
        await connection.executemany(_RECORD, [(one.number, one.name, one.min_reader, digests) for one in missing])
    return [migration.name for migration in missing]


async def check_schema(connection: Connection) -> None:
    """Check that the database has the schema of this version, or a newer one that says that this version may use it.

    Raises:
        SchemaError: it has none, an older one, or one that is too new; the message says what to do.
        ConfigError: the server is too old, or its encoding is not UTF8.
    """
    known = known_version()
    with translated():
        await _check_database(connection)
    version = await schema_version(connection)
    await _refuse_too_new(connection, version, known)
    if not version:
        raise SchemaError(f"the database has no Joex schema, this joex needs version {known}: run 'joex migrate'")
    if version < known:
        raise SchemaError(
            f"the database has version {version} of the Joex schema, this joex needs version {known}: "
            "run 'joex migrate'",
            reason="SchemaTooOld",
        )
    with translated():
        if not await connection.fetchval(_HAS_PUBLIC):
            raise SchemaError(f"{_NO_PUBLIC}: run 'joex migrate'")


async def _refuse_too_new(connection: Connection, version: int, known: int) -> None:
    if version <= known:
        return
    with translated():
        oldest = await connection.fetchval(_MIN_READER)
    if oldest > known:
        raise SchemaError(
            f"the database has version {version} of the Joex schema, which needs programs that know version {oldest}; "
            f"this joex knows version {known}: use a newer joex",
            reason="SchemaTooNew",
        )


async def _spare_or_drain(connection: Connection, last: Migration, *, lock_out: bool) -> None:
    """Refuse a migration that would lock out executors that live; ``lock_out``: let them drain instead."""
    if last.min_reader > await connection.fetchval(_MIN_READER):
        # An executor that registers now is seen here, or waits, and then sees what the schema needs (see register).
        await connection.execute(_HOLD_REGISTRATIONS)
    too_old = await connection.fetch(_TOO_OLD, last.min_reader)
    app_ids = list(dict.fromkeys(row["app_id"] for row in too_old))
    if app_ids and not lock_out:
        said = refused_migrations.locks_out(last.number, last.min_reader, app_ids)
        raise SchemaError(said, reason="MigrationLocksOut")
    # (Beside one that drains already, a newer one may take jobs under its app-id.)
    for app_id in [row["app_id"] for row in too_old if not row["draining"]]:
        await connection.execute(_DRAIN, app_id)


async def _check_database(connection: Connection) -> None:
    server = connection.get_server_version()
    if server.major < OLDEST_SERVER:
        raise ConfigError(f"the server is PostgreSQL {server.major}; Joex needs PostgreSQL {OLDEST_SERVER} or newer")
    encoding = await connection.fetchval(_ENCODING)
    if encoding != "UTF8":
        raise ConfigError(
            f"database URL: the encoding of the database must be UTF8; it is {encoding}: use one that was made with "
            "CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0"
        )


async def _refuse_planted(connection: Connection) -> None:
    """A migration would execute what another role may have put into the schemas, such as a trigger."""
    found = await connection.fetchrow(_PLANTED)
    if found is not None:
        said = refused_migrations.planted(found["name"], found["owner"], is_superuser=found["is_superuser"])
        raise ConfigError(said)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _files(folder: str) -> list[tuple[str, str]]:
    found = [entry for entry in (resources.files("joex.store") / folder).iterdir() if entry.name.endswith(".sql")]
    return [(entry.name, entry.read_text(encoding="utf-8")) for entry in sorted(found, key=lambda entry: entry.name)]

"""The transactions that a grant or a migration may be waiting for."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from joex.store.statement import Connection, statement

_MOST = 3
_USERS_OF_SCHEMA = statement("""
    SELECT format('session %s (%s%s', a.pid, coalesce(nullif(a.application_name, ''), a.usename, a.backend_type),
                  ', ' || a.state) AS what, a.xact_start AS since, a.backend_type = 'client backend' AS is_client
    FROM pg_stat_activity a WHERE a.pid <> pg_backend_pid() AND a.pid IN (
        SELECT l.pid FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
        WHERE l.granted AND c.relnamespace IN (to_regnamespace('joex'), to_regnamespace('joex_private'))
              AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()))
    UNION ALL
    SELECT format('the prepared transaction %L (%s', p.gid, p.owner), p.prepared, true
    FROM pg_prepared_xacts p WHERE p.database = current_database()
    ORDER BY since LIMIT 3
""")
# Who has granted or revoked rights on the schemas, or what is in them, and has not ended. (A row that a transaction has
# written names it, and the transaction holds the lock of its id: it holds no lock of the table. A prepared one does not
# hold those of the ids of its savepoints, so all of these are named.)
_WRITERS_OF_RIGHTS = statement("""
    WITH written AS (
        SELECT n.xmax FROM pg_namespace n WHERE n.nspname IN ('joex', 'joex_client', 'joex_private')
        UNION SELECT f.xmax FROM pg_proc f JOIN pg_namespace n ON n.oid = f.pronamespace
              WHERE n.nspname IN ('joex', 'joex_client', 'joex_private')
        UNION SELECT c.xmax FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
              WHERE n.nspname IN ('joex', 'joex_client', 'joex_private')
        UNION SELECT a.xmax FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
              JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname IN ('joex', 'joex_client', 'joex_private'))
    SELECT DISTINCT format('session %s (%s%s', a.pid, a.usename, ', ' || a.state) AS what, a.xact_start AS since,
                    true AS is_client
    FROM written w JOIN pg_locks l ON l.locktype = 'transactionid' AND l.transactionid = w.xmax AND l.granted
    JOIN pg_stat_activity a ON a.pid = l.pid WHERE a.pid <> pg_backend_pid()
    UNION ALL
    SELECT format('the prepared transaction %L (%s', p.gid, p.owner), p.prepared, true
    FROM pg_prepared_xacts p WHERE p.database = current_database()
    ORDER BY since LIMIT 3
""")


class Other(NamedTuple):
    """A transaction. ``what`` names it, and lacks a closing bracket; ``since``: None if this role may not know it."""

    what: str
    since: datetime | None
    is_client: bool


async def writers_of_rights(connection: Connection) -> list[Other]:
    """Those that have granted or revoked rights on what Joex has, the oldest first: three at most."""
    return [Other(*row) for row in await connection.fetch(_WRITERS_OF_RIGHTS)]


async def users_of_schema(connection: Connection) -> list[Other]:
    """Those, and then others that have used tables and views: three at most."""
    found = [*await writers_of_rights(connection), *(Other(*row) for row in await connection.fetch(_USERS_OF_SCHEMA))]
    return list({one.what: one for one in found}.values())[:_MOST]

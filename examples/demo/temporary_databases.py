"""Temporary databases, in which the demo and the benchmarks run, and which they drop.

A temporary database is named after its purpose and a random part. Its user keeps a session whose name contains that
name; a killed process leaves a database without such a session.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from joex.store.database import connect
from joex.store.errors import translated
from joex.store.migrate import migrate
from joex.store.statement import Connection, statement

_LEFTOVERS = statement("""
    SELECT d.datname FROM pg_database d
    WHERE d.datname ~ ('^' || $1::text || '_[0-9a-f]{8}$') AND pg_has_role(d.datdba, 'USAGE')
      AND NOT EXISTS (SELECT FROM pg_stat_activity a WHERE a.application_name = 'joex temporary database ' || d.datname)
""")
_OTHERS = statement("""
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
""")


@asynccontextmanager
async def temporary_database(server_url: str, purpose: str) -> AsyncIterator[str]:
    """The name of a new database with the schema of Joex, dropped at the end of the block.

    Args:
        server_url: a database on the server, with a role that may create databases.
        purpose: the first part of its name: lower-case letters and underscores.
    """
    name = f"{purpose}_{secrets.token_hex(4)}"
    administrator = await connect(server_url, name=f"joex temporary database {name}")
    try:
        with translated():
            await administrator.execute(f"CREATE DATABASE {name} TEMPLATE template0")
        try:
            connection = await connect(url_of(server_url, name))
            try:
                await migrate(connection)
            finally:
                await connection.close()
            yield name
        finally:
            await drop(administrator, name)
    finally:
        await administrator.close()


def url_of(server_url: str, name: str) -> str:
    """The URL of another database on the same server.

    >>> url_of("postgresql://me@/postgres?host=/run/pg", "joex_demo_1")
    'postgresql://me@/joex_demo_1?host=/run/pg'
    >>> url_of("postgresql://127.0.0.1:5432", "joex_demo_1")
    'postgresql://127.0.0.1:5432/joex_demo_1'
    """
    return re.sub(r"^(\w+://[^/?]*)(/[^?]*)?", rf"\g<1>/{name}", server_url)


async def leftovers(connection: Connection, purpose: str) -> list[str]:
    """The temporary databases of this purpose that no process uses."""
    with translated():
        return [row[0] for row in await connection.fetch(_LEFTOVERS, purpose)]


async def other_sessions(connection: Connection) -> int:
    """How many other clients are connected to this connection's database."""
    with translated():
        return int(await connection.fetchval(_OTHERS))


async def drop(connection: Connection, name: str) -> None:
    """Drop a database, and end the sessions in it."""
    with translated():
        await connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

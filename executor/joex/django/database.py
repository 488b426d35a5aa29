"""The database of Django that Joex uses, and its schema there."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from typing import Any, TextIO
from urllib.parse import quote, urlencode

from django.conf import settings
from django.core.management.base import CommandError
from django.db import DEFAULT_DB_ALIAS, connections

from joex.errors import ConfigError, JoexError, SchemaError
from joex.store.database import connect
from joex.store.migrate import check_schema, migrate

BACKEND = "joex.django.backend.JoexBackend"
_OF_URLS = frozenset((
    "gsslib", "host", "krbsrvname", "options", "passfile", "port", "service", "sslcert", "sslcrl", "sslkey", "sslmode",
    "ssl_max_protocol_version", "ssl_min_protocol_version", "sslnegotiation", "sslpassword", "sslrootcert",
    "target_session_attrs",
))  # fmt: skip
"""The parameters of libpq that mean the same to executors. The others steer Django's own connections."""
_UNMET = ("channel_binding", "gssencmode", "hostaddr", "require_auth", "requirepeer", "sslcertmode", "sslcrldir")
"""What those demand of a server that asyncpg can't: to leave it out would trust servers that Django does not."""


def database_alias() -> str:
    """The alias of the database: that of the first backend for tasks that is Joex's; without one, Django's default."""
    backends: Mapping[str, Mapping[str, Any]] = getattr(settings, "TASKS", {})
    for params in backends.values():
        if params.get("BACKEND") == BACKEND:
            return str(params.get("OPTIONS", {}).get("database", DEFAULT_DB_ALIAS))
    return str(DEFAULT_DB_ALIAS)


def database_url(alias: str | None = None) -> str:
    """The URL of a database of Django, for executors and clients; by default of the one that Joex uses.

    In a test, this is the test database.

    Raises:
        ConfigError: there is no such database, it is none of PostgreSQL, or Django demands of its server what executors
            can't.
    """
    name = alias or database_alias()
    if name not in connections.settings:
        raise ConfigError(f"DATABASES: there is no {name!r}, which the OPTIONS of Joex's backend in TASKS name")
    connection = connections[name]
    if connection.vendor != "postgresql":
        raise ConfigError(f"DATABASES: {name!r} must be a PostgreSQL database for Joex; it is of {connection.vendor}")
    params = {key: str(value) for key, value in connection.get_connection_params().items() if value is not None}
    for demand in _UNMET:
        if params.get(demand, "prefer") not in ("allow", "disable", "prefer", ""):
            raise ConfigError(
                f"DATABASES: {name!r}: OPTIONS: {demand}: executors can't demand that of a server: leave it out, or "
                "give Joex an alias of its own in DATABASES without it"
            )
    user, password = params.get("user"), params.get("password")
    login = "" if user is None else quote(user, safe="") + ("" if password is None else f":{quote(password, safe='')}")
    # (Hosts as a parameter, because they may be folders of sockets, or several.)
    query = urlencode({key: params[key] for key in sorted(_OF_URLS & params.keys())}, quote_via=quote)
    return f"postgresql://{login}@/{quote(params.get('dbname', ''), safe='')}?{query}"


def install_schema(*, using: str, verbosity: int = 1, stdout: TextIO | None = None, **_: object) -> None:
    """Migrate Joex's schema before Django's migrations, which may use it. A receiver of ``pre_migrate``.

    A database that has the schema of this version is left as it is: its role may not own that schema.

    Raises:
        CommandError: it can't be migrated; the message says why.
    """
    if using != database_alias() or connections[using].vendor != "postgresql":
        return

    def tell(line: str) -> None:
        if verbosity >= 1:
            (stdout or sys.stdout).write(f"Joex: {line}\n")

    try:
        asyncio.run(_migrate(database_url(using), tell))
    except JoexError as error:
        raise CommandError(f"joex: {error}") from error


async def _migrate(url: str, tell: Callable[[str], None]) -> None:
    connection = await connect(url, name="joex migrate")
    try:
        try:
            await check_schema(connection)
        except SchemaError:
            for name in await migrate(connection, tell=tell):
                tell(f"applied {name}")
    finally:
        await connection.close()

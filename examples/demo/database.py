"""A database and a folder for one run of the demo, made at its start and removed at its end.

The next run cleans up after a killed run: it waits until the executors have exited, then drops the database. The name
of the folder begins with the name of the database, so that a run finds both.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from examples.demo.temporary_databases import drop, leftovers, other_sessions, temporary_database, url_of
from joex.errors import JoexError
from joex.store.database import connect
from joex.store.statement import Connection

_PURPOSE = "joex_demo"
_PATIENCE = 5.0
"""Seconds for the executors of a killed run to leave."""


@asynccontextmanager
async def own_place(server_url: str) -> AsyncIterator[tuple[str, Path]]:
    """Give the URL of a new database with the schema of Joex, and an empty folder, for the duration of a block."""
    await _remove_leftovers(server_url)
    async with temporary_database(server_url, _PURPOSE) as name:
        with tempfile.TemporaryDirectory(prefix=f"{name}-") as folder:
            yield url_of(server_url, name), Path(folder)


async def _remove_leftovers(server_url: str) -> None:
    administrator = await connect(server_url, name="joex demo cleaning")
    try:
        for name in await leftovers(administrator, _PURPOSE):
            await _remove(administrator, server_url, name)
    finally:
        await administrator.close()


async def _remove(administrator: Connection, server_url: str, name: str) -> None:
    """Clean up after a killed run. This may fail, because another run may do it at the same time."""
    with suppress(JoexError):
        await _wait_for_executors(url_of(server_url, name))
    with suppress(JoexError):
        await drop(administrator, name)
    for folder in Path(tempfile.gettempdir()).glob(f"{name}-*"):  # noqa: ASYNC240 - nothing else goes on yet
        shutil.rmtree(folder, ignore_errors=True)


async def _wait_for_executors(url: str) -> None:
    """Wait a little for the executors of a killed run: they finish their runs."""
    connection = await connect(url, name="joex demo cleaning")
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                while await other_sessions(connection):  # noqa: ASYNC110 - other processes tell no event
                    await asyncio.sleep(0.1)
    finally:
        await connection.close()

"""A database to measure on, and executor processes to measure."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import asyncpg

from examples.demo.temporary_databases import temporary_database, url_of

_ROOT = Path(__file__).parent.parent


def say(text: str) -> None:
    """Print progress."""
    print(f"bench: {text}", file=sys.stderr, flush=True)


@asynccontextmanager
async def fresh_database(server_url: str) -> AsyncIterator[str]:
    """The URL of a new, migrated database, dropped at the end."""
    async with temporary_database(server_url, "joex_bench") as name:
        yield url_of(server_url, name)


async def load(connection: asyncpg.Connection[Any], jobs: int, groups: int) -> None:
    """Submit no-op jobs, spread evenly over groups, and let the server settle."""
    for start in range(0, jobs, 10_000):
        await connection.execute(
            """
            SELECT count(*) FROM joex.submit_many(
                array_fill('bench.noop'::text, ARRAY[$2::int]),
                grps => (SELECT array_agg('group ' || (i % $3)) FROM generate_series($1::int, $1 + $2 - 1) i))
            """,
            start,
            min(10_000, jobs - start),
            groups,
        )
    await connection.execute("VACUUM (ANALYZE) joex_private.job")
    await connection.execute("CHECKPOINT")


@contextmanager
def executor(url: str, app_id: str, *flags: str, app: str = "benchmarks.apps:app") -> Iterator[subprocess.Popen[bytes]]:
    """An executor process; killed at the end, if it still runs."""
    process = subprocess.Popen(
        [sys.executable, "-m", "joex", "executor", "--app", app, "--http-address", "", *flags],
        env={**os.environ, "JOEX_DATABASE_URL": url, "JOEX_APP_ID": app_id, "JOEX_LOG_LEVEL": "warning"},
        cwd=_ROOT,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait()


async def until(
    connection: asyncpg.Connection[Any] | asyncpg.Pool[Any], condition: str, *args: object, patience: float = 600
) -> None:
    """Wait until a condition in the database holds."""
    async with asyncio.timeout(patience):
        while not await connection.fetchval(f"SELECT {condition}", *args):  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.02)

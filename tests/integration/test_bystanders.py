"""A role that may connect, and nothing else, holds every advisory lock that it can name: nothing stops for it."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import asyncpg
import pytest

from joex.store import executors, pools

pytestmark = pytest.mark.postgres(16, 18)

# All first keys that Joex has ever used, with each second one that fits: pg_locks shows both to everybody.
HOLD = """
    SELECT pg_advisory_lock(lock, key) FROM generate_series(1785685000, 1785685009) lock,
        unnest($1::integer[] || ARRAY(SELECT hashtext(name) FROM unnest($2::text[]) name)) key
"""


@pytest.fixture
async def hold(postgres, database_url, connection) -> AsyncIterator[Any]:
    """Hold all locks whose second key is 0, one of these, or the hash of one of these names."""
    await connection.execute("CREATE ROLE joex_test_bystander LOGIN")
    async with AsyncExitStack() as stack:
        session = await asyncpg.connect(database_url, user="joex_test_bystander")
        stack.push_async_callback(session.close)

        async def hold_them(*keys: int | str) -> asyncpg.Connection:
            numbers = [0, *(key for key in keys if isinstance(key, int))]
            await session.execute(HOLD, numbers, [key for key in keys if isinstance(key, str)])
            await connection.execute("SET lock_timeout = '5s'")  # (to fail, and not to hang)
            return session

        yield hold_them
    await connection.execute("DROP ROLE joex_test_bystander")


async def test_a_bystander_stops_no_take_no_return_of_jobs_and_no_drain(bench, hold):
    executor = await bench.executor("p/a-0", pod_uid="pod")
    lost, held = await bench.submit(), await bench.submit()
    await hold(executor)
    assert {job.id for job in await bench.take(executor, 4)} == {lost, held}
    assert await executors.give_back_unknown(bench.connection, executor, []) == 2
    assert len(await bench.take(executor, 1)) == 1
    assert await pools.retire(bench.connection, "p/a-0", only_if_idle=True) == "busy"
    assert await executors.drain(bench.connection, "p/a-0") == ["p/a-0"]
    assert await bench.take(executor) == []
    await bench.silence(executor, leases=5.1)
    assert await bench.rescue() == [(executor, "p/a-0", 1)]

"""What lends a client's connections: one is kept for the next, and no one waits for it, or gets it spoilt."""

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from joex.store.database import create_pool
from joex.store.lender import Lender
from tests.support.waiting import PATIENCE, eventually


@pytest.fixture
async def pool(database_url: str) -> AsyncIterator[asyncpg.Pool]:
    """A pool of at most two connections."""
    pool = await create_pool(database_url, most=2, resets=False)
    yield pool
    await asyncio.wait_for(pool.close(), 30)


@pytest.fixture
async def lender(pool: asyncpg.Pool) -> AsyncIterator[Lender]:
    """A lender that keeps one."""
    lender = Lender(pool, keeps=True)
    yield lender
    await lender.close()


async def test_a_connection_is_kept_for_the_next_and_goes_to_the_pool_soon(pool, lender):
    lent = await lender.borrow()
    await lender.give_back(lent, may_keep=True)
    assert await lender.borrow() is lent
    await lender.give_back(lent, may_keep=True)
    assert pool.get_idle_size() == 0
    await eventually(lambda: pool.get_idle_size() == 1)
    again = await lender.borrow()
    assert again is not lent  # the same session, which the pool has had meanwhile
    assert pool.get_size() == 1
    await lender.give_back(again, may_keep=True)


async def test_a_connection_that_is_used_all_the_time_goes_to_the_pool_too(pool, lender):
    first = await lender.borrow()
    await lender.give_back(first, may_keep=True)

    async def is_another() -> bool:
        lent = await lender.borrow()
        await lender.give_back(lent, may_keep=True)
        return lent is not first

    await eventually(is_another)
    assert pool.get_size() == 1


async def test_who_waits_gets_the_next_that_is_given_back(lender):
    one, two = await lender.borrow(), await lender.borrow()
    waiting = asyncio.create_task(lender.borrow())
    await asyncio.sleep(0)  # it begins
    await lender.give_back(one, may_keep=True)
    assert lender._kept is None  # that is not what lets it go on, a second later
    three = await asyncio.wait_for(waiting, PATIENCE)
    for lent in (two, three):
        await lender.give_back(lent, may_keep=True)


async def test_after_an_error_it_is_not_kept(pool, lender):
    await lender.give_back(await lender.borrow(), may_keep=False)
    assert pool.get_idle_size() == 1


async def test_a_transaction_that_was_left_open_is_rolled_back(pool, lender):
    lent = await lender.borrow()
    await lent.execute("CREATE TABLE mine ()")
    await lent.execute("BEGIN; DROP TABLE mine")
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # asyncpg tells of it there
    await lender.give_back(lent, may_keep=True)
    assert pool.get_idle_size() == 1
    again = await lender.borrow()
    assert await again.fetch("SELECT FROM mine") == []
    await lender.give_back(again, may_keep=True)


async def test_one_that_is_lost_while_it_is_kept_is_not_lent(lender, connection):
    lent = await lender.borrow()
    session = lent.get_server_pid()
    await lender.give_back(lent, may_keep=True)
    await connection.execute("SELECT pg_terminate_backend($1)", session)

    async def another() -> asyncpg.pool.PoolConnectionProxy | None:
        found: asyncpg.pool.PoolConnectionProxy = await lender.borrow()
        if found is not lent:
            return found
        await lender.give_back(found, may_keep=True)  # the news has not come yet
        return None

    found = await eventually(another)
    assert await found.fetchval("SELECT 1") == 1
    assert found.get_server_pid() != session
    await lender.give_back(found, may_keep=True)


async def test_one_that_is_given_back_after_the_end_is_not_kept(pool, lender):
    lent = await lender.borrow()
    await lender.close()
    await lender.give_back(lent, may_keep=True)
    assert pool.get_idle_size() == 1


async def test_the_connections_of_another_ones_pool_are_not_kept(pool):
    lender = Lender(pool, keeps=False)
    await lender.give_back(await lender.borrow(), may_keep=True)
    assert pool.get_idle_size() == 1

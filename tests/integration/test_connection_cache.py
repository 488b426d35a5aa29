"""The cache of a client's connections: it keeps one for the next caller, which never waits for it or gets it broken."""

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from joex.store.connection_cache import ConnectionCache
from joex.store.database import create_pool
from tests.support.waiting import PATIENCE, eventually


@pytest.fixture
async def pool(database_url: str) -> AsyncIterator[asyncpg.Pool]:
    """A pool of at most two connections."""
    pool = await create_pool(database_url, most=2)
    yield pool
    await asyncio.wait_for(pool.close(), 30)


@pytest.fixture
async def cache(pool: asyncpg.Pool) -> AsyncIterator[ConnectionCache]:
    """A cache that keeps one connection."""
    cache = ConnectionCache(pool, keeps=True)
    yield cache
    await cache.close()


async def test_a_connection_is_kept_for_the_next_and_goes_to_the_pool_soon(pool, cache):
    borrowed = await cache.borrow()
    await cache.give_back(borrowed, may_keep=True)
    assert await cache.borrow() is borrowed
    await cache.give_back(borrowed, may_keep=True)
    assert pool.get_idle_size() == 0
    await eventually(lambda: pool.get_idle_size() == 1)
    again = await cache.borrow()
    assert again is not borrowed  # the same session, which was in the pool meanwhile
    assert pool.get_size() == 1
    await cache.give_back(again, may_keep=True)


async def test_a_connection_that_is_used_all_the_time_goes_to_the_pool_too(pool, cache):
    first = await cache.borrow()
    await cache.give_back(first, may_keep=True)

    async def is_another() -> bool:
        borrowed = await cache.borrow()
        await cache.give_back(borrowed, may_keep=True)
        return borrowed is not first

    await eventually(is_another)
    assert pool.get_size() == 1


async def test_who_waits_gets_the_next_that_is_given_back(cache):
    one, two = await cache.borrow(), await cache.borrow()
    waiting = asyncio.create_task(cache.borrow())
    await asyncio.sleep(0)  # it begins
    await cache.give_back(one, may_keep=True)
    assert cache._kept is None  # so this does not release it a second later
    three = await asyncio.wait_for(waiting, PATIENCE)
    for borrowed in (two, three):
        await cache.give_back(borrowed, may_keep=True)


async def test_after_an_error_it_is_not_kept(pool, cache):
    await cache.give_back(await cache.borrow(), may_keep=False)
    assert pool.get_idle_size() == 1


async def test_a_transaction_that_was_left_open_is_rolled_back(pool, cache):
    borrowed = await cache.borrow()
    await borrowed.execute("CREATE TABLE mine ()")
    await borrowed.execute("BEGIN; DROP TABLE mine")
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # asyncpg reports it there
    await cache.give_back(borrowed, may_keep=True)
    assert pool.get_idle_size() == 1
    again = await cache.borrow()
    assert await again.fetch("SELECT FROM mine") == []
    await cache.give_back(again, may_keep=True)


async def test_one_that_is_lost_while_it_is_kept_is_not_lent(cache, connection):
    borrowed = await cache.borrow()
    session = borrowed.get_server_pid()
    await cache.give_back(borrowed, may_keep=True)
    await connection.execute("SELECT pg_terminate_backend($1)", session)

    async def another() -> asyncpg.pool.PoolConnectionProxy | None:
        found: asyncpg.pool.PoolConnectionProxy = await cache.borrow()
        if found is not borrowed:
            return found
        await cache.give_back(found, may_keep=True)  # the notice has not arrived yet
        return None

    found = await eventually(another)
    assert await found.fetchval("SELECT 1") == 1
    assert found.get_server_pid() != session
    await cache.give_back(found, may_keep=True)


async def test_one_that_is_given_back_after_the_end_is_not_kept(pool, cache):
    borrowed = await cache.borrow()
    await cache.close()
    await cache.give_back(borrowed, may_keep=True)
    assert pool.get_idle_size() == 1


async def test_the_connections_of_another_ones_pool_are_not_kept(pool):
    cache = ConnectionCache(pool, keeps=False)
    await cache.give_back(await cache.borrow(), may_keep=True)
    assert pool.get_idle_size() == 1

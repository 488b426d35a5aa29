"""Waiting for keyed jobs: for a state, for a state in the data, for any change."""

import asyncio

import pytest

import joex
from tests.support.waiting import eventually


@pytest.fixture
async def keyed(database_url):
    async with joex.Client(database_url) as client:
        yield client.keyed


@pytest.fixture
def subscribed(connection):
    """Wait until callers wait for this many jobs."""

    async def wait(jobs: int = 1) -> None:
        async def found() -> bool:
            return bool(await connection.fetchval("SELECT count(*) FROM joex_private.subscription") == jobs)

        await eventually(found)

    return wait


async def test_a_wait_ends_when_the_job_has_finished(keyed, subscribed):
    await keyed.add("index", ("db", 1))
    waiting = asyncio.create_task(keyed.wait("index", ("db", 1)))
    await subscribed()
    job = await keyed.accept("index")
    await keyed.finish(job.type, job.id, {"data": {"seq": 7}}, job.lock_id)
    found = await waiting
    assert (found.id, found.state, found.data) == (("db", 1), "finished", {"seq": 7})


async def test_a_wait_is_for_pending_or_running_too(keyed, subscribed):
    await keyed.add("index", 1)
    assert (await keyed.wait("index", 1, "pending")).state == "pending"
    waiting = asyncio.create_task(keyed.wait("index", 1, "running"))
    await subscribed()
    await keyed.accept("index")
    assert (await waiting).state == "running"


async def test_a_wait_may_be_for_a_state_of_the_types_own(keyed, subscribed):
    await keyed.add("index", 1, {"data": {"state": "new"}})
    job = await keyed.accept("index")
    waiting = asyncio.create_task(keyed.wait("index", 1, lambda job: job.data["state"] == "halfway"))
    await subscribed()
    await keyed.update(job.type, job.id, {"data": {"state": "begun"}}, job.lock_id)
    await keyed.update(job.type, job.id, {"data": {"state": "halfway"}}, job.lock_id)
    assert (await waiting).data == {"state": "halfway"}


async def test_a_wait_for_many_gives_them_in_the_order_given_and_none_for_those_that_are_not_there(keyed, subscribed):
    for nr in range(50):
        await keyed.add("index", nr)
    waiting = asyncio.create_task(keyed.wait_many("index", [*range(49, -1, -1), "nobody"]))
    await subscribed(50)
    while (job := await keyed.accept("index")) is not None:
        await keyed.finish(job.type, job.id, {}, job.lock_id)
    *found, missing = await waiting
    assert [job.id for job in found] == list(range(49, -1, -1))
    assert missing is None


async def test_a_job_that_is_not_there_is_none_at_once(keyed):
    assert await keyed.wait("index", 1) is None


async def test_a_job_that_is_removed_is_none(keyed, subscribed):
    await keyed.add("index", 1)
    waiting = asyncio.create_task(keyed.wait("index", 1))
    await subscribed()
    await keyed.remove("index", 1)
    assert await waiting is None


async def test_a_wait_has_an_end(keyed):
    await keyed.add("index", 1)
    with pytest.raises(TimeoutError, match="1 of 1 jobs are not"):
        await keyed.wait("index", 1, timeout="50ms")


async def test_a_subscriber_hears_of_each_change_by_the_id_until_the_job_is_gone(keyed):
    await keyed.add("index", "a", {"priority": 1})
    await keyed.add("index", "b", {"priority": 2})
    async with keyed.subscribe("index", "a", "b", "nobody") as changes:
        heard = {job_id: job.state for job_id, job in [await anext(changes), await anext(changes)]}
        assert heard == {"a": "pending", "b": "pending"}
        job = await keyed.accept("index")
        assert [(job_id, job.state) for job_id, job in [await anext(changes)]] == [("a", "running")]
        await keyed.update("index", "a", {"data": {"seq": 1}}, job.lock_id)
        assert [(job_id, job.data) for job_id, job in [await anext(changes)]] == [("a", {"seq": 1})]
        await keyed.finish("index", "a", {}, job.lock_id)
        assert [(job_id, job.state) for job_id, job in [await anext(changes)]] == [("a", "finished")]
        await keyed.remove("index", "a")
        await keyed.remove("index", "b")
        assert {job_id: job async for job_id, job in changes} == {"a": None, "b": None}

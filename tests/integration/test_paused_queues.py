"""A queue that is paused: no job of it begins, and nothing else changes."""

import asyncio
import json
from collections import Counter
from functools import partial
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from joex import InvalidJob
from joex.client.explain import Reason
from joex.store import executors, jobs, pools, runs, stats
from joex.store.errors import translate
from tests.integration.conftest import FOUR_ONE
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.postgres(16, 18)


@pytest.fixture
async def me(bench):
    """An executor."""
    return await bench.executor("me")


async def late(bench, job_id: UUID) -> None:
    """Let a job be due that no take has moved into line yet."""
    await bench.connection.execute(
        "UPDATE joex_private.job SET lane = NULL, due_at = now() - interval '1 second' WHERE id = $1", job_id
    )


async def test_no_job_of_it_begins_while_runs_go_on_and_submissions_are_accepted(bench, me, client):
    await bench.submit()
    taken = await bench.take_one(me)
    first = await bench.submit("a")
    await client.queues.set("default", paused=True)
    second = await bench.submit("b", "high")
    await bench.start(taken)
    assert await bench.finish(taken) == []
    assert await bench.take(me, 5) == []
    assert await bench.connection.fetch("SELECT FROM joex_client.accept('default')") == []
    other = await bench.submit(queue="other")
    both = await runs.take(bench.connection, me, ["default", "other"], 5, FOUR_ONE)
    assert [one.id for one in both] == [other]
    await client.queues.set("default", paused=False)
    assert {one.id for one in await bench.take(me, 5)} == {first, second}


@pytest.mark.parametrize("is_served", [True, False])
async def test_a_job_says_that_its_queue_is_paused_by_whom_and_since_when(bench, me, client, is_served):
    job_id = await bench.submit()
    if is_served:
        await bench.take_one(me)
        job_id = await bench.submit()
    await client.queues.set("default", paused=True)
    [paused] = await client.queues.paused()
    await client.queues.set("default", paused=True)
    assert await client.queues.paused() == [paused]
    role = await bench.connection.fetchval("SELECT session_user::text")
    assert (paused.queue, paused.by) == ("default", role)
    [reason] = [Reason(*one) for one in await jobs.why(bench.connection, job_id)]
    assert (reason.reason, reason.detail["by"]) == ("queue_paused", role)
    assert reason.message.endswith(f" by {role}: joex queues set default --resume")
    await client.queues.set("default", paused=False)
    assert await client.queues.paused() == []
    assert [one[0] for one in await jobs.why(bench.connection, job_id)] == ["next"]


async def test_its_jobs_ask_for_no_executor_and_are_not_late(bench, me, client):
    await bench.submit()
    await bench.submit(queue="other")
    await late(bench, await bench.submit())
    queues = ["default", "other"]
    await client.queues.set("default", paused=True)
    demand, _ = await pools.demand_and_replicas(bench.connection, queues, 100, "p/a-")
    assert (demand.runnable, demand.next_due) == (1, None)
    shares = "SELECT runnable FROM joex_private.work($1, 1, 100, '{}', 1)"
    assert await bench.connection.fetchval(shares, queues) == 1
    found = {one.queue: one for one in await stats.queue_stats(bench.connection)}
    assert (found["default"].paused, found["default"].oldest_runnable_seconds) == (True, None)
    assert not found["other"].paused
    assert found["other"].oldest_runnable_seconds is not None
    assert [one.queue for one in await stats.queue_shares(bench.connection)] == ["other"]
    await client.queues.set("default", paused=False)
    demand, _ = await pools.demand_and_replicas(bench.connection, queues, 100, "p/a-")
    assert demand.runnable == 3


async def test_executors_sleep_though_its_jobs_are_due_and_are_woken_when_it_is_resumed(
    bench, me, client, another_connection
):
    await bench.submit()
    await late(bench, await bench.submit())
    await client.queues.set("default", paused=True)
    await executors.fall_asleep(bench.connection, me)
    assert not await bench.connection.fetchval("SELECT joex_private.has_work('{default}')")
    assert await bench.connection.fetchval("SELECT next_due FROM joex_private.sleep_state('{default}')") is None
    listener = await another_connection()
    heard = asyncio.get_running_loop().create_future()
    await listener.add_listener("joex_wake", lambda *arguments: heard.set_result(json.loads(arguments[-1])))
    await client.queues.set("default", paused=False)
    assert await asyncio.wait_for(heard, PATIENCE) == {"queue": "default", "executors": [me]}
    assert await bench.connection.fetchval("SELECT joex_private.has_work('{default}')")
    assert len(await bench.take(me, 5)) == 2


async def test_no_take_waits_for_a_transaction_that_pauses_a_queue_which_none_has_served(bench, me, another_connection):
    """Nor does it make sequences that it can't keep: that would fill the catalogue with dead rows."""
    job_id = await bench.submit(queue="new")
    other = await another_connection()
    made = "SELECT pg_stat_get_xact_function_calls('joex_private.make_ring_cursor()'::regprocedure)"
    async with other.transaction(), asyncio.timeout(PATIENCE):
        await other.execute("SELECT joex.set_queue('new', true)")
        async with bench.connection.transaction():
            await bench.connection.execute("SET LOCAL track_functions = 'pl'")
            [job] = await runs.take(bench.connection, me, ["new"], 1, FOUR_ONE)
            assert job.id == job_id
            assert await bench.connection.fetchval(made) is None
    await bench.submit(queue="new")
    assert await runs.take(bench.connection, me, ["new"], 1, FOUR_ONE) == []


@pytest.mark.parametrize("isolation", ["read_committed", "repeatable_read"])
async def test_of_two_pauses_of_a_queue_which_none_has_served_the_second_one_waits_and_both_hold(
    client, another_connection, waiting_for_a_lock, isolation
):
    """Or the second one is refused, where its snapshot does not show the queue."""
    first, second, watcher = [await another_connection() for _ in range(3)]

    async def pause() -> str:
        async with second.transaction(isolation=isolation):
            await second.execute("SELECT count(*) FROM joex_private.queue")
            try:
                await second.execute("SELECT joex.set_queue('new', true)")
            except asyncpg.PostgresError as error:
                return error.sqlstate
        return "paused"

    async with first.transaction():
        await first.execute("SELECT joex.set_queue('new', true)")
        async with waiting_for_a_lock(watcher, pause()) as paused:
            assert not paused.done()
            await first.execute("COMMIT; BEGIN")
    assert await paused == {"read_committed": "paused", "repeatable_read": "JX002"}[isolation]
    assert [one.queue for one in await client.queues.paused()] == ["new"]
    assert await watcher.fetchval("SELECT count(*) FROM pg_class WHERE relname LIKE 'ring_cursor%'") == 1


async def test_wrong_values_are_refused(bench, client):
    with pytest.raises(InvalidJob, match=r"^queue: "):
        await client.queues.set("", paused=True)
    with pytest.raises(Exception, match="paused: expected true or false; got NULL") as refused:
        await bench.connection.execute("SELECT joex.set_queue('default', NULL)")
    assert isinstance(translate(refused.value), InvalidJob)


async def test_nothing_is_lost_or_doubled_while_it_is_paused_and_resumed_under_load(bench, client, another_connection):
    """Takes that begin after a pause has committed take nothing, and each job runs once."""
    number, rounds = 400, 8
    await client.submit_many([{"task": "a", "group": f"g{nr % 7}"} for nr in range(number)])
    pause, ended, broken, tries = 0, Counter[UUID](), list[Any](), Counter[int]()  # pause 0: it is not paused
    names = [await bench.executor(f"executor {nr}") for nr in range(4)]
    connections = [await another_connection() for _ in names]
    passed = asyncio.Condition()

    def has_ended(jobs: int) -> bool:
        return ended.total() >= jobs

    def has_tried(nr: int) -> bool:
        return tries[nr] >= 2 * len(names)

    async def work(executor, connection):
        while ended.total() < number:
            begun_in = pause
            taken = await runs.take(connection, executor, ["default"], 3, FOUR_ONE)
            if begun_in and begun_in == pause:
                broken.extend(taken)
            if taken:
                await runs.start_many(connection, [(one.id, one.lock_id, 0.0) for one in taken])
                ends = [runs.EndedRun(one.id, one.lock_id, "success", age=0.0) for one in taken]
                assert await runs.finish_many(connection, ends) == []
            async with passed:
                ended.update(one.id for one in taken)
                tries[begun_in] += 1
                passed.notify_all()

    async def steer():
        nonlocal pause
        for nr in range(1, rounds + 1):
            async with passed:
                await passed.wait_for(partial(has_ended, nr * number // (2 * rounds)))
            await client.queues.set("default", paused=True)
            pause = nr
            await client.submit("a", group="late")
            async with passed:
                await passed.wait_for(partial(has_tried, nr))
            pause = 0
            await client.queues.set("default", paused=False)

    async with asyncio.timeout(3 * PATIENCE):
        await asyncio.gather(steer(), *map(work, names, connections))
        number += rounds
        await asyncio.gather(*map(work, names, connections))
    assert broken == []
    assert set(ended.values()) == {1}
    states = await bench.connection.fetch("SELECT state, attempt, count(*) FROM joex.jobs GROUP BY 1, 2")
    assert [tuple(row) for row in states] == [("success", 1, number)]

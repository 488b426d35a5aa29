"""A pool grows with the work and shrinks without it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import timedelta

import asyncpg
import pytest

from joex import Client
from joex.store.database import create_pool
from tests.support.cluster.connection import Object
from tests.support.cluster.system import System, condition
from tests.support.postgres import TestServer
from tests.support.waiting import eventually


async def test_from_zero_to_the_most_and_back(system: System) -> None:
    operator = system.operator()
    await system.pool()
    await system.until_reason("AtZero")
    assert await system.replicas() == set()

    jobs = [await system.submit("hold", flag="go") for _ in range(5)]
    await system.until_replicas("pool-0", "pool-1", "pool-2")
    pool = await system.until_ready(3)
    assert condition(pool, "ScalingLimited", what="reason") == "TooManyReplicas"

    await system.effects.flag("go")
    assert await system.effects.all_finished(jobs) == {"success": 5}
    await system.until_replicas()
    await system.until_reason("AtZero")
    await system.check()
    assert "Watcher for" not in operator.log  # so kopf begins to complain; another list would hide its messages


async def test_submissions_wake_pools_at_zero_though_nobody_polls(system: System) -> None:
    """Each pool serves its own queue, and gets a notification, however the job is submitted."""
    system.operator(poll_interval="1h", resync_period="1h")
    names = ("python", "sql", "later")
    for name in names:
        await system.pool(name, queues=[name])
    for name in names:
        await system.until_reason("AtZero", name=name)
    await every_submission_is_watched(system)

    python = await system.client.submit("hold", {"flag": "go"}, queue="python")
    await system.until_replicas("python-0")
    sql = await system.db.fetchval("""SELECT joex.submit('hold', '{"flag": "go"}', queue => 'sql')""")
    await system.until_replicas("python-0", "sql-0")
    later = await system.client.submit("hold", {"flag": "go"}, queue="later", not_before=timedelta(seconds=2))
    await system.until_replicas("python-0", "sql-0", "later-0")
    another = await system.client.submit("hold", {"flag": "go"}, queue="python")  # that has one, which is busy
    await system.until_replicas("python-0", "python-1", "sql-0", "later-0")
    await system.effects.flag("go")
    assert await system.effects.all_finished([python, sql, later, another]) == {"success": 4}


async def test_a_retry_that_is_due_wakes_a_pool_at_zero(system: System) -> None:
    system.operator()
    await system.pool(retryDelay="1h")
    job = await system.submit("second.time")
    await system.effects.begun(job)
    await system.until_replicas()
    soon = "UPDATE joex_private.job SET due_at = now() + interval '1 second' WHERE id = $1 RETURNING state::text"
    assert await system.db.fetchval(soon, job) == "stuck"

    assert await system.effects.all_finished([job]) == {"success": 1}
    assert len(await system.effects.of(job)) == 2
    assert await system.db.fetchval("SELECT count(*) FROM joex_private.executor") == 2


async def test_one_job_makes_one_executor(system: System) -> None:
    """A job does not count twice while an executor takes it."""
    system.operator(poll_interval="100ms")
    await system.pool(scaling={"maxReplicas": 2})
    async with replicas_seen(system) as seen:
        for _ in range(4):
            job = await system.submit()
            assert await system.effects.all_finished([job]) == {"success": 1}
            await system.until_replicas()
        await eventually(
            lambda: len(set().union(*seen)) >= 4 and not seen[-1], why="all that was made is seen to be gone"
        )
    assert len(set().union(*seen)) == 4


async def test_the_least_and_the_reserve_are_kept(system: System) -> None:
    system.operator()
    await system.pool(scaling={"minReplicas": 1})
    pool = await system.until_ready(1)
    assert condition(pool, "ScalingLimited", what="reason") == "TooFewReplicas"

    await system.pool(scaling={"minReplicas": 1, "idleReserve": 1})
    await system.until_pool(lambda pool: pool["status"]["desiredReplicas"] == 1)
    job = await system.submit("hold", flag="go")
    await system.until_ready(2)
    await system.effects.flag("go")
    await system.effects.all_finished([job])
    await system.until_ready(1)
    await system.until_pool(lambda pool: pool["status"]["replicas"] == 1)


async def test_jobs_that_may_not_run_call_for_nobody(system: System) -> None:
    system.operator()
    await system.db.execute("SELECT joex.set_group('paused', paused => true), joex.set_group('one', max_running => 1)")
    paused = [await system.client.submit("effect", group="paused") for _ in range(3)]
    limited = [await system.client.submit("hold", {"flag": "go"}, group="one") for _ in range(3)]
    await system.pool()
    pool = await system.until_ready(1)
    assert pool["status"]["desiredReplicas"] == 1
    assert await system.replicas() == {"pool-0"}

    await system.effects.flag("go")
    assert await system.effects.all_finished(limited) == {"success": 3}
    await system.until_replicas()  # though three jobs wait
    await system.db.execute("SELECT joex.set_group('paused', paused => false)")
    assert await system.effects.all_finished(paused) == {"success": 3}


async def test_two_pools_share_a_queue_and_settle(system: System) -> None:
    system.operator()
    for name in ("east", "west"):
        await system.pool(name, scaling={"maxReplicas": 2})
    jobs = [await system.submit("hold", flag="go") for _ in range(2)]
    for job in jobs:
        await system.effects.begun(job)

    async def as_many_as_jobs() -> bool:
        return len(await system.replicas()) == len(jobs) and {one["held"] for one in await in_use(system)} == {1}

    async def in_use(system: System) -> list[asyncpg.Record]:
        return list((await system.executors()).values())

    await eventually(as_many_as_jobs, why="as many executors as jobs")
    settled = {name: one["pod_uid"] for name, one in (await system.executors()).items()}
    # Both reconcile again, a few times.
    for name in ("east", "west"):
        await looked_at(system, name)
    assert {name: one["pod_uid"] for name, one in (await system.executors()).items()} == settled
    assert await system.replicas() == settled.keys()
    await system.effects.flag("go")
    assert await system.effects.all_finished(jobs) == {"success": 2}
    await system.until_replicas()
    await system.check()


async def test_pools_on_two_databases(system: System, other_database: Client) -> None:
    system.operator()
    await system.pool("here")
    await system.pool("there", database={"secretName": OTHER})
    for name in ("here", "there"):
        await system.until_reason("AtZero", name=name)

    there = await other_database.submit("hold", {"flag": "there"})
    assert there is not None
    await system.effects.begun(there)
    assert await system.replicas() == {"there-0"}
    await system.effects.flag("there")
    here = await system.submit("hold", flag="go")
    await system.effects.begun(here)
    assert await system.executor_of(here) == "here-0"
    await system.until_replicas("here-0")
    await system.effects.flag("go")
    await system.until_replicas()


OTHER = "other-db"


@pytest.fixture
async def other_database(system: System, postgres: TestServer) -> AsyncIterator[Client]:
    """Another database, with its own secret."""
    name = await postgres.create_database()
    url = system.cluster.database_url(postgres, name)
    await system.set_url(url, OTHER)
    pool = await create_pool(url, most=2, name="joex test pool")
    yield Client(pool)
    await pool.close()
    await postgres.drop_database(name)


async def every_submission_is_watched(system: System) -> None:
    """Wait until the operator's watches are armed."""

    async def armed() -> bool:
        return bool(await system.db.fetchval("SELECT count(*) >= 3 FROM joex_private.watch WHERE until > now()"))

    await eventually(armed)


@asynccontextmanager
async def replicas_seen(system: System) -> AsyncIterator[list[set[str]]]:
    """The uids of the Deployments, after each change, even if they are soon gone."""
    seen: list[set[str]] = []

    async def watch() -> None:
        path = f"/apis/apps/v1/namespaces/{system.namespace}/deployments"
        async with aclosing(system.api.states(path)) as states:
            async for found in states:
                seen.append({one["metadata"]["uid"] for one in found})  # noqa: PERF401 - it is read meanwhile

    watching = asyncio.create_task(watch())
    try:
        yield seen
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching


async def looked_at(system: System, name: str) -> None:
    """Wait until the operator has reconciled a pool after a change without effect."""
    generation = (await system.change(name, rollout={"maxUnavailable": 2}))["metadata"]["generation"]

    def seen(pool: Object) -> bool:
        return bool(pool["status"]["observedGeneration"] >= generation)

    await system.until_pool(seen, name)

"""A changed template reaches the executors: new ones first, then the old ones leave; no job is interrupted."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from urllib.parse import urlsplit

from tests.support.cluster.connection import Object
from tests.support.cluster.system import DEPLOYMENTS, POOLS, System, condition
from tests.support.cluster.terminations import Terminations
from tests.support.postgres import TestServer


async def test_executors_are_replaced_one_by_one_and_finish_first(system: System) -> None:
    system.operator()
    job = await system.submit("hold", flag="go")
    await system.pool(replicas=3)
    await system.until_ready(3)
    busy = await system.executor_of(job)
    before = await system.executors()

    async with Terminations(system) as terminations, numbers_ready(system) as numbers:
        await system.change(poolSize=2, template={"metadata": {"labels": {"round": "second"}}})
        # Idle executors come first.
        await system.api.until_all(DEPLOYMENTS, lambda found: old(found) == {busy}, system.namespace)
        await system.until_pool(lambda pool: pool["status"]["drainingReplicas"] == 1)
        assert (await system.executors())[busy]["pid"] == before[busy]["pid"]

        await system.effects.flag("go")
        await system.until_reason("Ready")
        await system.until_pool(
            lambda pool: pool["status"]["updatedReplicas"] == pool["status"]["readyReplicas"] == 3,
            why="all are replaced",
        )
        assert min(numbers) >= 3, "a new one is ready before an old one drains"
        assert terminations.too_early == []
    await system.api.until_all(DEPLOYMENTS, lambda found: not old(found), system.namespace, why="the old ones are gone")
    pods = await system.api.get_all("pods", system.namespace, labels="round=second")
    assert len(pods) == 3
    sizes = await system.db.fetch("SELECT pool_size FROM joex_private.executor WHERE left_at IS NULL")
    assert [row[0] for row in sizes] == [2, 2, 2]
    [run] = await system.effects.of(job)
    assert run["pid"] == before[busy]["pid"]
    assert await system.effects.all_finished([job]) == {"success": 1}


async def test_a_template_that_fails_is_told_and_stops_at_the_first(system: System) -> None:
    system.operator()
    await system.pool(replicas=2)
    await system.until_ready(2)
    before = await system.executors()

    await system.change(app="tests.support.apps:nothing")
    pool = await system.until_reason("ExecutorFailing")
    assert condition(pool, "Ready") == "False"
    message = condition(pool, "Ready", what="message")
    assert "exit code" in message
    assert "tests.support.apps" in message
    assert "nothing" in message
    assert await system.executors() == before
    assert await system.effects.all_finished([await system.submit()]) == {"success": 1}

    await system.change(app="tests.support.apps:app")
    await system.until_reason("Ready")
    await system.until_replicas("pool-0", "pool-1")
    assert await system.executors() == before  # their template is valid again


async def test_a_changed_password_reaches_executors_that_the_database_lets_in_no_more(system: System) -> None:
    """Here it is another role: the database refuses the old one, and its sessions end."""
    roles = [f"{system.namespace}-{name}" for name in ("old", "new")]
    old_url, new_url = (with_user(system.url, role) for role in roles)
    for role in roles:
        await system.db.execute(f'CREATE ROLE "{role}" LOGIN SUPERUSER')
    try:
        await system.set_url(old_url)
        system.operator()
        await system.pool(scaling={"minReplicas": 1})
        await system.until_ready(1)

        await system.set_url(new_url)
        await system.db.execute(f'ALTER ROLE "{roles[0]}" NOLOGIN')
        await system.db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1", roles[0])
        job = await system.submit()
        assert await system.effects.all_finished([job]) == {"success": 1}
        await system.until_replicas("pool-1")
        await system.until_ready(1)
        await system.pool(suspend=True)
        await system.until_replicas()
    finally:
        await system.api.delete(POOLS, "pool", system.namespace)
        for role in roles:
            await system.db.execute(f'ALTER ROLE "{role}" NOLOGIN')
            ended = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE usename = $1"
            await system.db.execute(ended, role)
            await system.db.execute(f'DROP OWNED BY "{role}"; DROP ROLE "{role}"')


async def test_a_secret_that_names_another_database_moves_the_pool_and_interrupts_no_job(
    system: System, postgres: TestServer
) -> None:
    other = await postgres.create_database()
    first = system.operator()
    try:
        await system.pool(scaling={"minReplicas": 1})
        held = await system.submit("hold", flag="go")
        await system.effects.begun(held)
        assert await first.stop() == 0
        await system.set_url(system.cluster.database_url(postgres, other))
        system.operator()  # which has never seen the old URL
        await system.until_pool(
            lambda pool: pool["status"]["drainingReplicas"] == pool["status"]["readyReplicas"] == 1,
            why="one drains in the old database, one takes jobs in the new one",
        )
        await system.effects.flag("go")
        await system.until_replicas("pool-1")
        assert await system.effects.all_finished([held]) == {"success": 1}
        assert len(await system.effects.of(held)) == 1
        await system.pool(suspend=True)
        await system.until_replicas()
    finally:
        await system.api.delete(POOLS, "pool", system.namespace)
        await postgres.drop_database(other)


def with_user(url: str, user: str) -> str:
    """The URL of another user of the same database."""
    parts = urlsplit(url)
    return parts._replace(netloc=f"{user}@{parts.netloc.rpartition('@')[2]}").geturl()


def old(deployments: list[Object]) -> set[str]:
    """The replicas whose executors run one job at a time."""
    return {one["metadata"]["name"] for one in deployments if variables(one)["JOEX_POOL_SIZE"] == "1"}


def variables(deployment: Object) -> dict[str, str]:
    """The environment of its executor."""
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    return {one["name"]: one.get("value", "") for one in container["env"]}


@asynccontextmanager
async def numbers_ready(system: System) -> AsyncIterator[list[int]]:
    """All numbers of ready executors that the pool's status has meanwhile."""
    numbers: list[int] = []

    async def watch() -> None:
        path = f"/apis/joex.dev/v1alpha1/namespaces/{system.namespace}/joexpools"
        async with aclosing(system.api.states(path)) as states:
            async for pools in states:
                numbers.extend(pool["status"]["readyReplicas"] for pool in pools)

    watching = asyncio.create_task(watch())
    try:
        yield numbers
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching

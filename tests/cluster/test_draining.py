"""The choice of executors to drain: idle ones first, never one that runs a job, and none that is just taking one."""

import random
from uuid import UUID

from tests.support.cluster.connection import Object
from tests.support.cluster.system import DEPLOYMENTS, System
from tests.support.cluster.terminations import Terminations
from tests.support.waiting import eventually


async def test_idle_executors_go_and_busy_ones_stay(system: System) -> None:
    system.operator()
    jobs = {flag: await system.submit("hold", flag=flag) for flag in ("a", "b", "c")}
    async with Terminations(system) as terminations:
        await system.pool()
        replicas = {flag: await system.executor_of(job) for flag, job in jobs.items()}
        assert set(replicas.values()) == {"pool-0", "pool-1", "pool-2"}
        before = await system.executors()

        # The oldest and the youngest of them become idle, one after the other.
        by_replica = sorted(replicas, key=lambda flag: replicas[flag])
        for done, flag in enumerate((by_replica[0], by_replica[2], by_replica[1]), start=1):
            await system.effects.flag(flag)
            left = {
                replicas[other]
                for other in by_replica
                if other not in (by_replica[0], by_replica[2], by_replica[1])[:done]
            }
            await system.until_replicas(*left)
            assert await system.executors() == {replica: before[replica] for replica in left}
        assert terminations.too_early == []
    for job in jobs.values():
        assert await ran_once(system, job)


async def test_a_busy_executor_that_is_not_needed_leaves_new_jobs_to_another_one_and_goes(system: System) -> None:
    system.operator(poll_interval="100ms")
    jobs = {flag: await system.submit("hold", flag=flag) for flag in "abcdef"}
    async with Terminations(system) as terminations:
        await system.pool(poolSize=3)
        flags: dict[str, list[str]] = {"pool-0": [], "pool-1": []}
        for flag, job in jobs.items():
            flags[await system.executor_of(job)].append(flag)
        # (Those of the younger one first: of two with an unlike number of jobs, the one with fewer is marked.)
        for _, *others in (flags["pool-1"], flags["pool-0"]):
            for flag in others:
                await system.effects.flag(flag)
            await system.effects.all_finished([jobs[flag] for flag in others])
        # Two jobs are left, one on each: one executor would do. (Until the younger one is marked, and as long as the
        # other one is not asleep, either may take a new one.)
        marked = "SELECT state = 'spare' FROM joex.executors WHERE app_id LIKE '%/pool-1'"
        await eventually(lambda: system.db.fetchval(marked), why="the younger one is marked")
        asleep = """
            SELECT count(*) > 0 FROM joex_private.asleep a JOIN joex_private.executor e ON e.id = a.executor_id
            WHERE e.app_id LIKE '%/pool-0'
        """
        await eventually(lambda: system.db.fetchval(asleep), why="the other one has found nothing more, and sleeps")
        later = await system.submit("hold", flag="later")
        assert await system.executor_of(later) == "pool-0"
        await system.effects.flag(flags["pool-1"][0])
        await system.until_replicas("pool-0")
        assert (terminations.pods != [], terminations.too_early) == (True, [])
    for flag in (flags["pool-0"][0], "later"):
        await system.effects.flag(flag)
    assert await system.effects.all_finished([*jobs.values(), later]) == {"success": 7}


async def test_those_that_start_go_before_those_that_are_idle(system: System) -> None:
    system.operator()
    await system.pool(replicas=2)
    await system.until_ready(2)
    # There is no room for another pod: the successor of this one does not start.
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "one"}, "spec": {"hard": {"pods": "1"}}}
    await system.api.create(quota, system.namespace)
    await system.api.until("resourcequotas", "one", lambda found: found["status"].get("used"), system.namespace)
    [old] = [one for one in await system.api.get_all(DEPLOYMENTS, system.namespace) if named(one, "pool-0")]
    await system.api.delete(DEPLOYMENTS, "pool-0", system.namespace, propagation="Foreground")

    def starts_anew(found: list[Object]) -> bool:
        return len(found) == 2 and all(one["metadata"]["uid"] != old["metadata"]["uid"] for one in found)

    await system.api.until_all(DEPLOYMENTS, starts_anew, system.namespace, why="a replica in place of the deleted one")
    idle = (await system.executors())["pool-1"]
    await system.scale(1)
    await system.until_replicas("pool-1")
    assert await system.executors() == {"pool-1": idle}


async def test_an_executor_that_is_just_taking_a_job_is_not_let_go(system: System) -> None:
    """It was idle when the operator observed it; the operator removes the other one."""
    system.operator()
    await system.pool(replicas=2)
    await system.until_ready(2)
    before = await system.executors()
    both_sleep = "SELECT count(*) = 2 FROM joex_private.asleep"
    await eventually(lambda: system.db.fetchval(both_sleep), why="both have fallen asleep")
    # The operator removes the youngest idle executor first; a submission wakes the one first that fell asleep last.
    await system.db.execute(
        "SELECT joex_private.fall_asleep(id) FROM joex_private.executor WHERE app_id LIKE '%/pool-1'"
    )
    # Each take reads the timeouts of tasks, after it has locked its executor.
    async with system.db.acquire() as connection, connection.transaction():
        await connection.execute("LOCK TABLE joex_private.task_timeout")
        job = await system.submit("hold", flag="go")
        await eventually(lambda: waits_for(system, "relation"), why="an executor is about to take the job")
        await system.scale(1)
        await eventually(lambda: waits_for(system, "transactionid"), why="the operator asks whether it may go")
    assert await system.executor_of(job) == "pool-1"
    await system.until_replicas("pool-1")
    after = await system.executors()
    assert [(replica, one["pid"], one["draining"]) for replica, one in after.items()] == [
        ("pool-1", before["pool-1"]["pid"], False)
    ]
    await system.effects.flag("go")
    assert await system.effects.all_finished([job]) == {"success": 1}
    assert await ran_once(system, job)


async def test_jobs_that_come_while_executors_go_are_safe(system: System) -> None:
    """The pool may go to zero whenever no job runs, and jobs come just then."""
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    dice = random.Random(seed)
    system.operator(poll_interval="100ms")
    await system.pool(scaling={"maxReplicas": 2})
    jobs: list[UUID] = []
    async with Terminations(system) as terminations:
        for _ in range(15):
            jobs += [
                await system.submit("sleep", milliseconds=dice.randrange(60)) for _ in range(dice.choice((1, 1, 3)))
            ]
            await system.effects.all_finished(jobs)
            if dice.randrange(3) == 0:
                await eventually(lambda: one_leaves(system), why="an executor is asked to go")
        assert await system.effects.all_finished(jobs) == {"success": len(jobs)}
        await system.until_replicas()
        assert len(terminations.pods) > 1
        assert terminations.too_early == []
    for job in jobs:
        assert await ran_once(system, job)
    await system.check()


async def test_a_busy_executor_that_must_go_finishes_first(system: System) -> None:
    system.operator()
    jobs = [await system.submit("hold", flag=flag) for flag in ("first", "second")]
    async with Terminations(system) as terminations:
        await system.pool(replicas=2)
        replicas = [await system.executor_of(job) for job in jobs]
        before = await system.executors()

        await system.scale(1)
        await system.until_pool(lambda pool: pool["status"]["drainingReplicas"] == 1)
        executors = await system.executors()
        [leaving] = [replica for replica, executor in executors.items() if executor["draining"]]
        [staying] = executors.keys() - {leaving}
        assert executors[leaving]["pid"] == before[leaving]["pid"]
        waiting = await system.submit()

        await system.effects.flag(("first", "second")[replicas.index(leaving)])
        await system.until_replicas(staying)
        # The removed executor has taken no more jobs.
        assert await system.db.fetchval("SELECT state::text FROM joex_private.job WHERE id = $1", waiting) == "waiting"
        await system.effects.flag("first", "second")
        assert await system.effects.all_finished([*jobs, waiting]) == {"success": 3}
        assert terminations.too_early == []
    for job in (*jobs, waiting):
        assert await ran_once(system, job)


async def test_a_slow_drain_is_waited_for_and_told(system: System) -> None:
    system.operator()
    job = await system.submit("hold", flag="go")
    async with Terminations(system) as terminations:
        await system.pool(drain={"timeout": "100ms", "onTimeout": "Wait"})
        await system.effects.begun(job)
        await system.change(suspend=True)
        pool = await system.until_reason("DrainSlow", "AbleToScale")
        assert pool["status"]["drainingReplicas"] == 1
        await system.effects.flag("go")
        await system.until_replicas()
        assert terminations.too_early == []
    assert await ran_once(system, job)


async def test_a_drain_that_is_over_gives_its_job_to_another(system: System) -> None:
    system.operator()
    jobs = {flag: await system.submit("hold", flag=flag) for flag in ("first", "second")}
    async with Terminations(system) as terminations:
        await system.pool(replicas=2, drain={"timeout": "100ms", "onTimeout": "Terminate"})
        replicas = {await system.executor_of(job): flag for flag, job in jobs.items()}

        await system.scale(1)
        await eventually(lambda: is_left(system, 1), why="the one that drained has left")
        [staying] = await system.executors()
        [given_back] = [flag for replica, flag in replicas.items() if replica != staying]
        await system.effects.flag(replicas[staying])
        again = await system.effects.begun(jobs[given_back], runs=2)
        assert again["pid"] == (await system.executors())[staying]["pid"]
        await system.effects.flag(given_back)
        assert await system.effects.all_finished(jobs.values()) == {"success": 2}
        await system.until_replicas(staying)
        assert terminations.too_early == []
    await system.check()


async def waits_for(system: System, kind: str) -> bool:
    """Whether a session waits for a lock of this kind."""
    query = """
        SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid)
        WHERE NOT granted AND locktype = $1 AND datname = current_database()
    """
    return bool(await system.db.fetchval(query, kind))


async def one_leaves(system: System) -> bool:
    """Whether an executor drains, or none is left."""
    executors = await system.executors()
    return not executors or any(one["draining"] for one in executors.values())


async def is_left(system: System, executors: int) -> bool:
    return len(await system.executors()) == executors


async def ran_once(system: System, job: UUID) -> bool:
    """Whether a job has succeeded at once: no executor was lost with it."""
    [row] = await system.db.fetch("SELECT state::text, attempt, losses FROM joex_private.job WHERE id = $1", job)
    return tuple(row) == ("success", 1, 0) and len(await system.effects.of(job)) == 1


def named(one: Object, name: str) -> bool:
    return bool(one["metadata"]["name"] == name)

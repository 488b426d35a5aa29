"""Operator, API server or PostgreSQL is away for a while: work continues, and each action that was begun is completed.

An operator's state is in the cluster and the database, so the next one continues from any point.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.support.cluster.connection import Object
from tests.support.cluster.local import LocalCluster
from tests.support.cluster.system import OperatorProcess, System, condition
from tests.support.postgres import TestServer
from tests.support.proxy import Proxy
from tests.support.waiting import eventually

LONG = "120s"
"""A lease that ends in no test."""
MANY = 70
"""Pools: more than the operator reconciles at a time."""
_WAITING = "SELECT pid FROM pg_locks WHERE relation = 'joex_private.retired'::regclass AND NOT granted"


async def retired(system: System) -> list[str]:
    """The replicas whose names are retired."""
    rows = await system.db.fetch("SELECT app_id FROM joex_private.retired ORDER BY app_id")
    return [row["app_id"].partition("/")[2] for row in rows]


@asynccontextmanager
async def held_up(system: System) -> AsyncIterator[None]:
    """No operator can retire or forget a name."""
    async with system.db.acquire() as connection, connection.transaction():
        await connection.execute("LOCK TABLE joex_private.retired IN SHARE MODE")
        yield


async def kill_as_it_writes(system: System, operator: OperatorProcess) -> None:
    waiting = await eventually(lambda: system.db.fetchval(_WAITING), why="the operator is about to write")
    await operator.kill()
    await system.db.execute("SELECT pg_terminate_backend($1, 10000)", waiting)


async def test_a_drain_is_finished_by_the_next_operator_from_any_point(system: System) -> None:
    """The test kills the operator before it retires the name, before it deletes the replica and before it forgets.

    Those could not release their Leases. The same process takes it, as the next container of its pod.
    """
    operator = system.operator()
    await system.pool(replicas=1)
    held = await system.submit("hold", flag="go")
    await system.effects.begun(held)
    async with held_up(system):
        await system.pool(replicas=0)
        await kill_as_it_writes(system, operator)
    assert await retired(system) == []

    operator = system.operator()
    await eventually(lambda: retired(system))
    operator.pause()
    await system.effects.flag("go")
    gone = "SELECT NOT EXISTS (SELECT FROM joex_private.executor WHERE left_at IS NULL)"
    await eventually(lambda: system.db.fetchval(gone), why="the executor has drained and left")
    await operator.kill()
    assert await system.replicas() == {"pool-0"}

    async with held_up(system):
        operator = system.operator()
        await system.until_replicas()
        await kill_as_it_writes(system, operator)
    assert await retired(system) == ["pool-0"]

    system.operator()
    await eventually(lambda: _is_empty(system), why="the name is free again")
    assert await system.effects.all_finished([held]) == {"success": 1}
    assert await system.db.fetchval("SELECT losses FROM joex_private.job WHERE id = $1", held) == 0
    assert await system.db.fetchval("SELECT array_agg(ending) FROM joex_private.executor") == ["left"]
    await system.check()


async def _is_empty(system: System) -> bool:
    return not await retired(system)


async def test_what_happened_while_no_operator_was_there_is_caught_up(system: System) -> None:
    first = system.operator()
    await system.pool("grows", replicas=1, queues=["grows"])
    await system.pool("goes", replicas=1, queues=["goes"])
    for name in ("grows", "goes"):
        await system.until_pool(lambda pool: pool["status"]["readyReplicas"] == 1, name)
    await first.kill()

    await system.pool("grows", replicas=2, queues=["grows"])
    await system.pool("new", queues=["new"])
    job = await system.client.submit("effect", {}, queue="new")
    await system.api.delete("joexpools.joex.dev", "goes", system.namespace)
    system.operator()
    assert await system.effects.all_finished([job]) == {"success": 1}
    await system.until_pool(lambda pool: pool["status"]["readyReplicas"] == 2, "grows")
    await system.until_replicas("grows-0", "grows-1")


async def test_an_api_server_that_is_away_stops_no_work_and_everything_goes_on_after(
    system: System, local_cluster: LocalCluster
) -> None:
    operator = system.operator(times={"leader_election._RENEW_EVERY": 1, "leader_election._DEADLINE": 4})
    await system.pool()
    held = await system.submit("hold", flag="go")
    await system.effects.begun(held)
    local_cluster.control_plane.stop_api(grace=0)
    await eventually(lambda: "leads no more" in operator.log, why="the operator has noticed, and steps down")
    next_one = await system.submit("effect")
    await system.effects.flag("go")
    assert await system.effects.all_finished([held, next_one]) == {"success": 2}
    assert len(await system.effects.of(held)) == 1

    local_cluster.control_plane.start_api()
    await system.until_replicas()
    jobs = [await system.submit("hold", flag="later") for _ in range(3)]
    await system.until_pool(lambda pool: pool["status"]["readyReplicas"] == 3)
    await system.effects.flag("later")
    assert await system.effects.all_finished(jobs) == {"success": 3}


async def test_what_was_deleted_while_the_watches_were_cut_is_noticed(
    system: System, local_cluster: LocalCluster
) -> None:
    operator = system.operator()
    await system.pool(replicas=1)
    await system.pool("other", replicas=0)
    await system.until_pool(lambda pool: pool["status"]["readyReplicas"] == 1)
    await eventually(lambda: _tells(operator, "other"))
    operator.pause()
    local_cluster.control_plane.restart_api(grace=0)
    await system.api.delete("joexpools.joex.dev", "other", system.namespace)
    await system.api.delete("deployments.apps", "pool-0", system.namespace, propagation="Foreground")
    await system.until_replicas()
    local_cluster.control_plane.restart_api(grace=0)  # and it knows no changes from before its start
    operator.resume()
    await system.api.until_all("deployments.apps", lambda found: len(found) == 1, system.namespace)
    await eventually(lambda: _tells_not(operator, "other"))


async def _tells(operator: OperatorProcess, pool: str) -> bool:
    return f'pool="{pool}"' in await operator.get("/metrics")


async def _tells_not(operator: OperatorProcess, pool: str) -> bool:
    return not await _tells(operator, pool)


def is_blind(pool: Object) -> bool:
    reasons = {kind: condition(pool, kind, what="reason") for kind in ("DatabaseReachable", "ScalingActive")}
    return reasons == {"DatabaseReachable": "Unreachable", "ScalingActive": "DemandUnknown"}


def sees(pool: Object) -> bool:
    kinds = ("Ready", "ScalingActive", "AbleToScale", "DatabaseReachable")
    return all(condition(pool, kind) == "True" for kind in kinds)


async def test_without_its_database_a_pool_keeps_its_executors_and_says_why(
    system: System, postgres: TestServer
) -> None:
    system.operator()
    await system.pool(lease=LONG)
    held = await system.submit("hold", flag="go")
    await system.effects.begun(held)
    await system.until_pool(sees)
    postgres.stop()
    pool = await system.until_pool(is_blind)
    assert condition(pool, "DatabaseReachable") == condition(pool, "ScalingActive") == "False"
    assert condition(pool, "AbleToScale", what="reason") == "DatabaseUnreachable"
    assert condition(pool, "Ready") == "Unknown"
    assert (await system.until_event("Unreachable"))["type"] == "Warning"
    assert pool["status"]["desiredReplicas"] == 1
    assert await system.replicas() == {"pool-0"}

    postgres.start()
    await system.db.expire_connections()
    await system.until_pool(sees)
    await system.effects.flag("go")
    assert await system.effects.all_finished([held]) == {"success": 1}
    assert len(await system.effects.of(held)) == 1
    await system.until_replicas()


async def test_a_restart_of_the_database_costs_no_executor(system: System, postgres: TestServer) -> None:
    system.operator()
    await system.pool(lease=LONG)
    held = await system.submit("hold", flag="go")
    await system.effects.begun(held)
    [before] = await system.api.get_all("pods", system.namespace)
    postgres.restart("immediate")
    await system.db.expire_connections()
    more = [await system.submit("effect") for _ in range(3)]
    await system.effects.flag("go")
    assert await system.effects.all_finished([held, *more]) == {"success": 4}
    assert len(await system.effects.of(held)) == 1
    await system.until_pool(sees)
    await system.until_replicas()
    lives = "SELECT count(*) FROM joex_private.executor WHERE pod_uid = $1"
    assert await system.db.fetchval(lives, before["metadata"]["uid"]) == 1


async def test_a_fallback_makes_executors_while_the_work_is_unknown(system: System, postgres: TestServer) -> None:
    system.operator()
    await system.pool(scaling={"fallback": {"after": "100ms", "replicas": 2}})
    await system.until_pool(lambda pool: condition(pool, "Ready", what="reason") == "AtZero")
    postgres.stop()
    await system.until_replicas("pool-0", "pool-1")
    await system.until_pool(lambda pool: condition(pool, "ScalingActive", what="reason") == "Fallback")
    postgres.start()
    await system.until_replicas()
    await system.until_pool(sees)


async def test_a_silent_database_does_not_hold_up_the_pools_of_another(
    system: System, postgres: TestServer, database_name: str
) -> None:
    """It neither answers nor refuses."""
    async with Proxy(postgres.port) as silent:
        silent.freeze()
        await system.set_url(postgres.tcp_url(database_name, port=silent.port), "silent")
        for number in range(MANY):
            await system.pool(f"silent-{number}", database={"secretName": "silent"}, replicas=0)
        await system.pool("the-last")
        job = await system.submit("effect")
        system.operator()
        assert await system.effects.all_finished([job]) == {"success": 1}

        def all_told(pools: list[Object]) -> bool:
            return sum(condition(pool, "DatabaseReachable", what="reason") == "Unreachable" for pool in pools) == MANY

        await system.api.until_all("joexpools.joex.dev", all_told, system.namespace)

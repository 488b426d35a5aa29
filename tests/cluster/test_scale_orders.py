"""Orders of users about a pool: fixed numbers, bounds, suspension, deletion; and their changes of its Deployments."""

import pytest

from tests.support.cluster.connection import ApiError
from tests.support.cluster.system import DEPLOYMENTS, POOLS, System, condition
from tests.support.waiting import eventually


async def test_kubectl_scale_sets_a_number_until_it_is_taken_away(system: System) -> None:
    system.operator()
    await system.pool()
    await system.until_reason("AtZero")
    with pytest.raises(ApiError, match=r"spec.replicas.* does not exist"):  # as docs/how-to/operator.md says
        await system.api.get(POOLS, "pool", system.namespace, part="scale")
    await system.scale(2)
    pool = await system.until_ready(2)
    assert condition(pool, "ScalingActive", what="reason") == "FixedReplicas"
    scale = await system.api.get(POOLS, "pool", system.namespace, part="scale")
    assert scale["spec"]["replicas"] == scale["status"]["replicas"] == 2
    pods = await system.api.get_all("pods", system.namespace, labels=scale["status"]["selector"])
    assert len(pods) == 2

    await system.change(replicas=None)
    pool = await system.until_reason("AtZero")
    assert condition(pool, "ScalingActive", what="reason") == "ByDemand"
    await system.until_replicas()


async def test_a_suspended_pool_finishes_and_rests(system: System) -> None:
    system.operator()
    await system.pool()
    first = await system.submit("hold", flag="go")
    await system.effects.begun(first)
    await system.change(suspend=True)
    pool = await system.until_pool(lambda pool: pool["status"]["drainingReplicas"] == 1)
    assert condition(pool, "Suspended") == condition(pool, "Reconciling") == "True"
    second = await system.submit()

    await system.effects.flag("go")
    await system.until_replicas()
    assert await system.effects.all_finished([first]) == {"success": 1}
    assert await system.effects.of(second) == []
    await system.until_pool(lambda pool: condition(pool, "Ready") == "True" != condition(pool, "Reconciling"))
    await system.change(suspend=False)
    assert await system.effects.all_finished([second]) == {"success": 1}


async def test_changed_bounds_hold_at_once(system: System) -> None:
    """Even though the window would keep the pool as it is."""
    system.operator()
    window = {"behavior": {"scaleDown": {"stabilizationWindowSeconds": 3600}}}
    await system.pool(scaling=window)
    await system.until_reason("AtZero")
    await system.change(scaling={"minReplicas": 2})
    await system.until_ready(2)
    await system.change(scaling={"minReplicas": 0})
    await system.until_reason("ScaleDownStabilized", "AbleToScale")
    assert len(await system.executors()) == 2
    await system.change(scaling={"maxReplicas": 1})
    await system.until_replicas("pool-0")


async def test_a_deployment_that_somebody_scales_is_put_right(system: System) -> None:
    system.operator(poll_interval="1h", resync_period="1h")
    await system.pool(scaling={"minReplicas": 1})
    await system.until_ready(1)
    uid = (await system.executors())["pool-0"]["pod_uid"]
    await system.api.patch(DEPLOYMENTS, "pool-0", {"spec": {"replicas": 0}}, system.namespace, part="scale")

    async def is_back() -> bool:
        found = (await system.executors()).get("pool-0")
        return found is not None and found["pod_uid"] != uid

    await eventually(is_back, why="another pod of the replica")
    found = await system.api.get(DEPLOYMENTS, "pool-0", system.namespace)
    assert found["spec"]["replicas"] == 1
    await system.until_ready(1)


async def test_a_deployment_that_somebody_deletes_is_replaced(system: System) -> None:
    """Its executor finishes its job, within the grace period of its pod."""
    system.operator(poll_interval="1h", resync_period="1h")
    job = await system.submit("hold", flag="go")
    await system.pool(scaling={"minReplicas": 1})
    replica = await system.executor_of(job)
    await system.api.delete(DEPLOYMENTS, replica, system.namespace)
    await system.until_pool(lambda pool: pool["status"]["drainingReplicas"] == 1)
    other = await system.submit()
    assert await system.effects.all_finished([other]) == {"success": 1}

    await system.effects.flag("go")
    assert await system.effects.all_finished([job]) == {"success": 1}
    assert len(await system.effects.of(job)) == 1
    await system.until_ready(1)
    await eventually(lambda: is_alone(system), why="the executor of the deleted Deployment is gone")


@pytest.mark.parametrize("propagation", ["Background", "Foreground"])
async def test_a_deleted_pool_finishes_what_it_runs(system: System, propagation: str) -> None:
    system.operator()
    busy = await system.submit("hold", flag="go")
    idle = await system.submit()
    pool = await system.pool()
    assert "finalizers" not in pool["metadata"]  # its deletion needs no operator
    await system.effects.begun(busy)
    await system.effects.all_finished([idle])
    await system.api.delete(POOLS, "pool", system.namespace, propagation=propagation)
    await eventually(lambda: one_drains(system), why="only the busy one is left, and drains")

    await system.effects.flag("go")
    assert await system.effects.all_finished([busy]) == {"success": 1}
    assert len(await system.effects.of(busy)) == 1
    await system.until_replicas()
    await system.api.until_all("pods", lambda pods: not pods, system.namespace)
    await system.api.until(POOLS, "pool", lambda pool: pool is None, system.namespace)


async def test_a_pool_that_is_made_again_at_once_works(system: System) -> None:
    """While the executors of its predecessor still finish their jobs."""
    system.operator()
    job = await system.submit("hold", flag="go")
    await system.pool(scaling={"maxReplicas": 2})
    await system.effects.begun(job)
    [before] = (await system.executors()).values()
    await system.api.delete(POOLS, "pool", system.namespace)
    await system.pool(scaling={"maxReplicas": 2})
    other = await system.submit("hold", flag="go")
    await system.effects.begun(other)
    assert before["pod_uid"] in {one["pod_uid"] for one in (await system.executors()).values()}

    await system.effects.flag("go")
    assert await system.effects.all_finished([job, other]) == {"success": 2}
    assert len(await system.effects.of(job)) == 1
    await system.until_replicas()
    await system.until_reason("AtZero")
    await system.check()


async def is_alone(system: System) -> bool:
    return [one["held"] for one in (await system.executors()).values()] == [0]


async def one_drains(system: System) -> bool:
    return [(one["held"], one["draining"]) for one in (await system.executors()).values()] == [(1, True)]

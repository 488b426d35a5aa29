"""A ResourceQuota of the namespace, as the real API server and its controllers keep it."""

from datetime import UTC, datetime, timedelta
from typing import Any

from tests.support.cluster.connection import STRATEGIC_PATCH, Object
from tests.support.cluster.system import DEPLOYMENTS, System, condition

LONG_AGO = timedelta(minutes=6)
"""Longer than the operator still counts on a pod that is refused."""


async def allow(system: System, what: str, number: int) -> None:
    """Limit the objects of a kind in the namespace by the quota "narrow"."""
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "narrow"}}
    await system.api.apply({**quota, "spec": {"hard": {what: str(number)}}}, system.namespace)

    def is_kept(found: Object | None) -> bool:
        return bool(found and found.get("status", {}).get("hard") == {what: str(number)} == found["spec"]["hard"])

    await system.api.until("resourcequotas", "narrow", is_kept, system.namespace, why="the quota is kept")


async def has_been_refused_for_long(system: System, replica: str) -> None:
    """Wait until the API server has refused the pod of a replica, and let that be long ago.

    (The controller of Deployments leaves the time of a condition as it is while its reason is the same.)
    """
    await system.api.until(DEPLOYMENTS, replica, _is_refused, system.namespace, why=f"{replica} is refused its pod")
    at = (datetime.now(UTC) - LONG_AGO).strftime("%Y-%m-%dT%H:%M:%SZ")
    change = {"status": {"conditions": [{"type": "ReplicaFailure", "lastTransitionTime": at}]}}
    await system.api.patch(DEPLOYMENTS, replica, change, system.namespace, part="status", media=STRATEGIC_PATCH)


def _is_refused(found: Object | None) -> bool:
    return found is not None and condition(found, "ReplicaFailure", of="deployment") == "True"


async def all_begun(system: System, jobs: list[Any]) -> None:
    for job in jobs:
        await system.effects.begun(job)


async def test_executors_that_a_quota_refuses_for_minutes_are_no_capacity_until_it_is_raised(system: System) -> None:
    system.operator()
    await allow(system, "pods", 1)
    await system.pool(scaling={"maxReplicas": 4})
    jobs = [await system.submit("hold", flag="go") for _ in range(3)]
    await system.until_replicas("pool-0", "pool-1", "pool-2")
    refused = [one["metadata"]["name"] for one in await _without_pod(system)]
    assert len(refused) == 2
    for replica in refused:
        await has_been_refused_for_long(system, replica)
    await system.until_reason("PodRefused", "ScalingLimited")
    found = await system.until_pool(
        lambda pool: "(2 of 3 executors): no more are created before these have a pod" in _said(pool),
        why="the pool says of how many, when the operator has seen both",
    )
    assert "exceeded quota: narrow" in _said(found)

    jobs.append(await system.submit("hold", flag="go"))
    await system.until_pool(lambda pool: pool["status"]["desiredReplicas"] == 4, why="the pool wants a fourth executor")
    assert await system.replicas() == {"pool-0", "pool-1", "pool-2"}
    await allow(system, "pods", 10)
    await all_begun(system, jobs)
    assert await system.replicas() == {"pool-0", "pool-1", "pool-2", "pool-3"}
    await system.until_reason("DesiredWithinRange", "ScalingLimited")
    await system.effects.flag("go")
    assert await system.effects.all_finished(jobs) == {"success": 4}


def _said(pool: Object) -> str:
    return condition(pool, "ScalingLimited", what="message")


async def _without_pod(system: System) -> list[Object]:
    """Wait until all Deployments but one are refused a pod."""

    def all_but_one(found: list[Object]) -> bool:
        return sum(_is_refused(one) for one in found) == len(found) - 1

    found = await system.api.until_all(DEPLOYMENTS, all_but_one, system.namespace, why="all but one are refused")
    return [one for one in found if _is_refused(one)]


async def test_a_pool_that_a_quota_refuses_deployments_says_so_and_grows_when_it_is_raised(system: System) -> None:
    system.operator()
    await allow(system, "count/deployments.apps", 1)
    await system.pool()
    jobs = [await system.submit("hold", flag="go") for _ in range(3)]
    found = await system.until_reason("ActionFailed", "AbleToScale")
    assert "exceeded quota: narrow" in condition(found, "AbleToScale", what="message")
    assert "exceeded quota: narrow" in (await system.until_event("ActionFailed"))["message"]
    assert len(await system.replicas()) == 1
    await allow(system, "count/deployments.apps", 10)
    await all_begun(system, jobs)
    await system.until_reason("ReadyForNewScale", "AbleToScale")
    await system.effects.flag("go")
    assert await system.effects.all_finished(jobs) == {"success": 3}


async def test_a_pool_without_surge_is_rolled_out_where_a_quota_has_no_room_for_another_deployment(
    system: System,
) -> None:
    """An old executor makes room. Whether its successor would be accepted was asked before, and the quota said no."""
    system.operator()
    await allow(system, "count/deployments.apps", 1)
    await system.pool(replicas=1, rollout={"maxSurge": 0})
    await system.until_ready(1)
    await system.change(template={"metadata": {"labels": {"round": "second"}}})
    await system.until_replicas("pool-1")
    await system.until_ready(1)

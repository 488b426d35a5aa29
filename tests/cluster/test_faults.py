"""Sudden losses of pods and nodes: jobs move on as soon as that is safe, and no sooner.

If the lease is long, only the mechanism of the test can move a job within seconds.
"""

from uuid import UUID, uuid4

import asyncpg
import pytest

from tests.support.cluster.connection import Object
from tests.support.cluster.local import LocalCluster
from tests.support.cluster.nodes import LocalNode
from tests.support.cluster.objects import is_ready, restarted
from tests.support.cluster.system import System, condition
from tests.support.postgres import TestServer
from tests.support.proxy import Proxy
from tests.support.waiting import eventually

LONG, SHORT = "120s", "3s"
"""A lease that ends in no test, and one whose end a test waits for. Other pools have the default lease."""
STAYS = [
    {"key": f"node.kubernetes.io/{kind}", "operator": "Exists", "effect": "NoExecute"}
    for kind in ("not-ready", "unreachable")
]
"""Tolerations: the pod is not deleted when its node is silent, as in the first minutes on other clusters."""
GOES = [{**one, "tolerationSeconds": 1} for one in STAYS]
"""Tolerations: the pod is deleted a second after its node is found silent."""


async def job(system: System, job_id: UUID) -> asyncpg.Record:
    found = await system.db.fetchrow("SELECT * FROM joex_private.job WHERE id = $1", job_id)
    assert found is not None
    return found


async def endings(system: System, replica: str) -> list[str | None]:
    """How the executors of a replica ended, in order; None: it lives."""
    rows = await system.db.fetch(
        "SELECT ending FROM joex_private.executor WHERE split_part(app_id, '/', 2) = $1 ORDER BY started_at", replica
    )
    return [row["ending"] for row in rows]


async def until_drains(system: System, replica: str) -> None:
    query = "SELECT draining FROM joex_private.executor WHERE split_part(app_id, '/', 2) = $1 AND left_at IS NULL"
    await eventually(lambda: system.db.fetchval(query, replica), why=f"{replica} drains")


def near(node: LocalNode) -> Object:
    """An affinity that makes pods run on this node while it exists, and elsewhere without it."""
    wanted = [{"key": key, "operator": "In", "values": [value]} for key, value in node.pod_selector.items()]
    preferred = [{"weight": 100, "preference": {"matchExpressions": wanted}}]
    return {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}}


async def no_more_pods(system: System) -> None:
    """Let no further pod be made; the present ones stay."""
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    await system.api.create(quota, system.namespace)
    await system.api.until("resourcequotas", "none", lambda found: found["status"].get("used"), system.namespace)


async def cordon(system: System, node: LocalNode) -> None:
    """Let no further pod be placed on a node.

    The taint that keeps pods from a silent node may come a quarter of a second after its pods are marked as not ready:
    the node controller writes another one meanwhile, and tries again. The operator replaces an executor within half of
    that time, and the scheduler may place the new pod on the silent node, where one that tolerates its silence waits
    until the node is back. The scheduler watches nodes and pods each by itself: it has heard of the change when it has
    refused a pod.
    """
    await system.api.patch("nodes", node.name, {"spec": {"unschedulable": True}})
    placed = "True"
    while placed == "True":
        name = f"probe-{uuid4().hex[:8]}"
        containers = [{"name": "probe", "image": "joex:test"}]
        spec = {"nodeSelector": node.pod_selector, "containers": containers, "terminationGracePeriodSeconds": 0}
        await system.api.create(
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}, system.namespace
        )
        judged = await system.api.until("pods", name, lambda found: condition(found, "PodScheduled"), system.namespace)
        placed = condition(judged, "PodScheduled")
        await system.api.delete("pods", name, system.namespace, grace=0)


async def test_a_container_that_is_killed_takes_its_own_job_up_again_at_once(
    system: System, local_cluster: LocalCluster
) -> None:
    system.operator()
    await system.pool(lease=LONG)
    held = await system.submit("hold", flag="go")
    run = await system.effects.begun(held)
    pod = await system.pod_of("pool-0")
    local_cluster.node_of(pod).kill(pod, out_of_memory=True)
    await system.effects.end_of(run["pid"])
    await system.effects.begun(held, runs=2)

    after = await system.api.until("pods", pod["metadata"]["name"], restarted(1), system.namespace)
    assert after["metadata"]["uid"] == pod["metadata"]["uid"]
    await system.effects.flag("go")
    assert await system.effects.all_finished([held]) == {"success": 1}
    assert (await job(system, held))["losses"] == 1
    assert (await endings(system, "pool-0"))[0] == "replaced"
    await system.check()


async def test_a_pod_that_somebody_deletes_finishes_its_job(system: System) -> None:
    system.operator()
    await system.pool()
    held = await system.submit("hold", flag="go")
    replica = await system.executor_of(held)
    pod = await system.pod_of(replica)
    await system.api.delete("pods", pod["metadata"]["name"], system.namespace)
    await until_drains(system, replica)

    other = await system.submit("effect")
    assert await system.effects.all_finished([other]) == {"success": 1}
    assert (await job(system, held))["state"] == "running"
    await system.effects.flag("go")
    assert await system.effects.all_finished([held]) == {"success": 1}
    assert (await job(system, held))["losses"] == 0
    assert len(await system.effects.of(held)) == 1
    await system.until_replicas()


@pytest.mark.parametrize("own_node", [{"restart_delay": 600.0, "most_restart_delay": 600.0}], indirect=True)
async def test_a_job_that_kills_its_executors_takes_no_other_tenant_down(system: System, own_node: LocalNode) -> None:
    """The first executor dies twice, and restarts after ten minutes; until then others replace it."""
    system.operator()
    await system.pool(poolSize=4, scaling={"minReplicas": 1, "maxReplicas": 3}, template=near(own_node))
    await system.pod_of("pool-0")
    await system.api.patch("nodes", own_node.name, {"spec": {"unschedulable": True}})
    poison = await system.submit("kill")
    await system.until_pool(
        lambda pool: condition(pool, "Ready", what="message").startswith("pool-0: "),
        why="the pool says that pool-0 crashes",
    )
    other = await system.client.submit("effect", group="another tenant")

    assert await system.effects.all_finished([other, poison]) == {"success": 1, "failed": 1}
    assert (await job(system, poison))["losses"] == 6


async def test_the_successor_of_a_pod_that_ends_works_while_the_pod_finishes_its_job(system: System) -> None:
    system.operator()
    await system.pool(poolSize=1, replicas=1)
    held = await system.submit("hold", flag="go")
    pod = await system.pod_of("pool-0")
    await system.effects.begun(held)
    await system.api.delete("pods", pod["metadata"]["name"], system.namespace)
    other = await system.submit("effect")

    assert await system.effects.all_finished([other]) == {"success": 1}
    assert await system.executor_of(other) == "pool-0"
    await system.effects.flag("go")
    assert await system.effects.all_finished([held]) == {"success": 1}
    assert ((await job(system, held))["attempt"], (await job(system, held))["losses"]) == (1, 0)
    assert [one["metadata"]["name"] for one in await system.api.get_all("deployments", system.namespace)] == ["pool-0"]


@pytest.mark.parametrize("how", ["deleted", "evicted"])
async def test_the_jobs_of_a_pod_that_has_ended_move_on_at_once(
    system: System, local_cluster: LocalCluster, how: str
) -> None:
    system.operator()
    await system.pool(lease=LONG, scaling={"minReplicas": 2})
    await system.until_pool(lambda pool: pool["status"]["readyReplicas"] == 2)
    held = await system.submit("hold", flag="go")
    replica = await system.executor_of(held)
    pod = await system.pod_of(replica)
    pid = (await system.effects.begun(held))["pid"]
    # Only the operator can report the death: the replica's next pod would notice by itself that the process is gone.
    await no_more_pods(system)
    if how == "evicted":
        local_cluster.node_of(pod).evict(pod)
    else:
        await system.api.delete("pods", pod["metadata"]["name"], system.namespace, grace=1)

    await system.effects.begun(held, runs=2)
    await system.effects.end_of(pid)
    assert await endings(system, replica) == ["dead"]
    await system.effects.flag("go")
    assert await system.effects.all_finished([held]) == {"success": 1}
    assert (await job(system, held))["losses"] == 1


async def test_a_pod_deleted_by_force_is_not_taken_for_dead(system: System, own_node: LocalNode) -> None:
    """Its object is gone, and no kubelet has reported that its processes are."""
    system.operator()
    await system.pool(lease=LONG, template={"nodeSelector": own_node.pod_selector})
    held = await system.submit("hold", flag="go")
    await system.effects.begun(held)
    pod = await system.pod_of("pool-0")
    await cordon(system, own_node)
    await system.api.delete("pods", pod["metadata"]["name"], system.namespace, grace=0)

    # The next pod can't start, so it can't notice it.
    def waits(pods: list[Object]) -> bool:
        return any(condition(one, "PodScheduled") == "False" for one in pods)

    await system.api.until_all("pods", waits, system.namespace, labels="joex.dev/replica=pool-0")
    looked = await system.submit("effect")
    await system.until_replicas("pool-0", "pool-1")
    assert (await job(system, held))["losses"] == 0
    assert await endings(system, "pool-0") == [None]
    assert (await job(system, looked))["state"] == "waiting"


async def test_a_silent_node_that_reaches_the_database_goes_on_with_its_jobs(
    system: System, own_node: LocalNode
) -> None:
    system.operator()
    await system.pool(template={"nodeSelector": own_node.pod_selector, "tolerations": GOES})
    held = await system.submit("hold", flag="go")
    await system.effects.begun(held)
    pod = await system.pod_of("pool-0")
    own_node.silence()

    def is_deleted(found: Object) -> bool:
        return "deletionTimestamp" in found["metadata"]

    await system.api.until("pods", pod["metadata"]["name"], is_deleted, system.namespace)
    assert (await job(system, held))["losses"] == 0
    next_one = await system.submit("effect")
    await system.effects.flag("go")
    assert await system.effects.all_finished([held, next_one]) == {"success": 2}
    assert await endings(system, "pool-0") in ([None], ["left"])
    await system.check()

    own_node.resume()
    await system.api.until("nodes", own_node.name, is_ready)
    await system.until_replicas()
    assert len(await system.effects.of(held)) == 1


async def test_the_only_executor_died_with_its_node_and_its_jobs_move_on_by_the_lease(
    system: System, own_node: LocalNode
) -> None:
    """No executor is left that could rescue its jobs."""
    system.operator()
    await system.pool(lease=SHORT, template={**near(own_node), "tolerations": STAYS})
    held = await system.submit("hold", flag="go")
    run = await system.effects.begun(held)
    pod = await system.pod_of("pool-0")
    assert pod["spec"]["nodeName"] == own_node.name
    await cordon(system, own_node)
    own_node.crash()
    await system.effects.end_of(run["pid"])

    await system.effects.begun(held, runs=2)
    assert await system.executor_of(held) == "pool-1"
    # The operator removes the replica of the lost pod; the pod stays until its node is back and ends it.
    await system.until_pool(lambda pool: pool["status"]["replicas"] == 1)
    own_node.start()
    await system.until_replicas("pool-1")
    await system.effects.flag("go")
    assert await system.effects.all_finished([held]) == {"success": 1}
    assert await endings(system, "pool-0") == ["dead"]
    assert len(await system.effects.of(held)) == 2
    await system.check()


async def test_a_node_that_is_cut_off_from_everything_is_replaced_and_takes_nothing_when_it_is_back(
    system: System, own_node: LocalNode, postgres: TestServer, database_name: str
) -> None:
    async with Proxy(postgres.port) as far:
        await system.set_url(postgres.tcp_url(database_name, port=far.port))
        first = system.operator("first")
        # (No patience: its run ends before the next one begins.)
        await system.pool(lease=SHORT, outagePatience="0s", template={**near(own_node), "tolerations": STAYS})
        held = await system.submit("hold", flag="go")
        run = await system.effects.begun(held)
        assert (await system.pod_of("pool-0"))["spec"]["nodeName"] == own_node.name
        await cordon(system, own_node)
        # From now on all but the executor on the far node reach the database by another way.
        await first.stop()
        await system.set_url(system.url)
        system.operator("second")
        far.freeze()
        own_node.silence()

        assert (await system.effects.begun(held, runs=2))["pid"] != run["pid"]
        assert await system.executor_of(held) == "pool-1"
        await system.until_pool(lambda pool: pool["status"]["replicas"] == 1)
        far.thaw()
        own_node.resume()
        await system.until_replicas("pool-1")
        await system.effects.flag("go")
        assert await system.effects.all_finished([held]) == {"success": 1}
        assert await endings(system, "pool-0") == ["dead"]
        assert len(await system.effects.of(held)) == 2
        await system.check()

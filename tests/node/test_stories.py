"""Actions of users and nodes on a real node, in the order in which a user would meet them.

The stories begin with the tutorial and the commands of the README. Each story restores the cluster, except the release.
"""

import asyncio
import json
import os
import signal
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import pytest

from tests.support.cluster.connection import ApiError, Object
from tests.support.node.images import SHOPS
from tests.support.node.node import NAME as NODE
from tests.support.node.story import JOBS, PATIENCE, Story
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(400)


@pytest.mark.timeout(900)
async def test_the_tutorial_leads_to_a_pool_that_scales(story: Story) -> None:
    with story.timed("the tutorial's page about a cluster, from its first command to its last"):
        await story.follow("learn/cluster.md")
    story.sh("kubectl delete secret joex-db")  # as the end of a cluster of kind does
    await story.api.until_all("pods", lambda found: not found, "default", timeout=PATIENCE)


async def test_the_readmes_commands_give_pools_that_run_jobs(story: Story) -> None:
    with story.timed("helm install, until its first pool is ready"):
        story.documented("helm install joex charts/joex")
        await story.until_ready("default", 1, "default")
    story.sh("kubectl rollout status deployment/joex-operator --timeout=60s")
    with story.timed("helm test"):
        assert "Succeeded" in story.documented("helm test joex")
    story.documented("kubectl create secret generic joex-db")
    story.documented("kubectl label secret joex-db")
    story.documented("kubectl apply -f examples/joexpool.yaml")
    await story.until_pool("documents", lambda pool: pool["status"].get("observedGeneration"), "default")
    story.sh("kubectl wait --for=condition=DatabaseReachable joexpool/documents --timeout=60s")
    assert story.documented("kubectl run submit")
    story.sh("kubectl delete -f examples/joexpool.yaml")
    await story.until_pods("documents", 0, "default")
    await story.make_namespace()


async def test_a_policy_refuses_pools_that_ask_for_too_much(story: Story) -> None:
    story.documented("kubectl apply -f examples/kubernetes/pool_policy.yaml")
    story.documented("kubectl label namespace shop", shop=JOBS)
    path = f"/apis/joex.dev/v1alpha1/namespaces/{JOBS}/joexpools"
    spec = {"app": "tasks:app", "database": {"secretName": "other"}}
    pool = {"apiVersion": "joex.dev/v1alpha1", "kind": "JoexPool", "metadata": {"name": "greedy"}, "spec": spec}

    async def refusal() -> str:  # (the API server reads its policies a moment later)
        try:
            await story.api.request("POST", path, pool, dryRun="All")
        except ApiError as error:
            return str(error)
        return ""

    assert "spec.database.secretName: expected one of joex-db" in await eventually(
        refusal, PATIENCE, why="it is refused"
    )
    await story.pool("modest")  # which the policy accepts
    await story.drop("modest")
    story.sh(f"kubectl label namespace {JOBS} joex.dev/pool-policy-")
    story.sh("kubectl delete -f examples/kubernetes/pool_policy.yaml")


async def test_a_container_runs_without_rights_and_writes_to_its_volumes_alone(story: Story) -> None:
    await story.pool("look")
    [job] = await story.finished(await story.submit("shop.look", "look"))
    result = story_json(job["result"])
    assert (result["uid"], result["gid"], result["writable"]) == (65532, 65532, ["/tmp"])  # noqa: S108
    story.note_job("a job of a pool at zero starts", job)
    await story.drop("look")


async def test_a_pool_grows_from_zero_to_five_and_back(story: Story) -> None:
    await story.pool("grow")
    await story.until_pool("grow", lambda pool: pool["status"].get("replicas") == 0)
    jobs = [await story.submit("shop.hold", "grow", seconds=20) for _ in range(10)]
    with story.timed("five executors are ready"):
        await story.until_ready("grow", 5)
    await story.finished_undisturbed(*jobs)
    with story.timed("all of them are gone again"):
        await story.until_pods("grow", 0)
    await story.drop("grow")


async def test_a_killed_process_is_started_again_and_its_job_runs_again(story: Story) -> None:
    pod, job_id = await story.busy("kill", seconds=3)
    with story.timed("from kill -9 to the job's end (it takes 3 s)"):
        os.kill(story.node.process_of(pod), signal.SIGKILL)
        [job] = await story.finished(job_id)
    assert (job["now"], job["losses"]) == ("success", 1)
    await story.drop("kill")


async def test_a_deleted_pod_finishes_its_job(story: Story) -> None:
    pod, job_id = await story.busy("delete", seconds=8)
    story.sh(f"kubectl --namespace {JOBS} delete pod {pod} --wait=false")
    await story.finished_undisturbed(job_id)
    await story.drop("delete")


async def test_an_evicted_pod_finishes_its_job_while_its_successor_takes_others(story: Story) -> None:
    pod, job_id = await story.busy("evict", seconds=45)
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": JOBS}}
    await story.api.request("POST", f"/api/v1/namespaces/{JOBS}/pods/{pod}/eviction", eviction)
    with story.timed("the successor is ready"):
        assert (await story.pod("evict"))["metadata"]["name"] != pod
    [other] = await story.finished(await story.submit("shop.hold", "evict", "globex", seconds=0.1))
    assert other["now"] == "success"
    await story.finished_undisturbed(job_id)
    assert (await story.job(job_id))["finished_at"] > other["finished_at"]
    await story.until_ready("evict", 1)
    await story.drop("evict")


async def test_draining_the_node_lets_jobs_finish(story: Story) -> None:
    _, job_id = await story.busy("drain", seconds=10)
    try:
        story.sh(f"kubectl drain {NODE} --pod-selector=joex.dev/pool=drain --delete-emptydir-data --timeout=90s")
        await story.finished_undisturbed(job_id)
    finally:
        story.sh(f"kubectl uncordon {NODE}")
    await story.until_ready("drain", 1)
    await story.drop("drain")


async def test_a_job_that_runs_out_of_memory_takes_no_other_tenant_down(story: Story) -> None:
    await story.pool("memory", scaling={"minReplicas": 1})
    await story.pod("memory")
    beside = await story.submit("shop.hold", "memory", "acme", seconds=20)
    await story.begun(beside)
    eater = await story.submit("shop.eat", "memory", "acme", megabytes=600)
    other = await story.submit("shop.hold", "memory", "globex", seconds=0.1)
    with story.timed("another tenant's short job is done"):
        [job] = await story.finished(other)
    assert job["now"] == "success"
    [job] = await story.finished(beside)
    assert job["now"] == "success"
    [job] = await story.finished(eater)
    assert job["now"] == "failed"
    await story.drop("memory")


async def test_a_pod_that_fills_its_disk_is_evicted_and_its_neighbour_runs_again(story: Story) -> None:
    limits = {"memory": "256Mi", "ephemeral-storage": "50Mi"}
    container = {"name": "executor", "resources": {"requests": {"cpu": "20m"}, "limits": limits}}
    await story.pool("disk", scaling={"minReplicas": 1}, template={"spec": {"containers": [container]}})
    await story.pod("disk")
    beside = await story.submit("shop.hold", "disk", seconds=40)
    await story.begun(beside)
    await story.submit("shop.fill", "disk", megabytes=120, seconds=30)
    [job] = await story.finished(beside)
    assert job["now"] == "success"
    await story.drop("disk")


async def test_a_new_image_replaces_executors_one_by_one_and_interrupts_nothing(story: Story) -> None:
    await story.pool("roll", scaling={"minReplicas": 3})
    await story.until_ready("roll", 3)
    jobs = [await story.submit("shop.hold", "roll", seconds=15) for _ in range(6)]
    for job_id in jobs:
        await story.begun(job_id)
    with story.timed("a rollout of three busy executors (jobs of 15 s)"):
        await story.pool("roll", scaling={"minReplicas": 3}, image=SHOPS[1])
        for job in await story.finished(*jobs):
            assert (job["now"], job["attempt"], job["losses"]) == ("success", 1, 0)
        await story.api.until_all(
            "pods",
            lambda pods: [pod["spec"]["containers"][0]["image"] for pod in pods] == [SHOPS[1]] * 3,
            JOBS,
            labels="joex.dev/pool=roll",
            timeout=PATIENCE,
        )
        await story.until_ready("roll", 3)
    await story.drop("roll")


async def test_a_pool_with_more_executors_than_it_needs_interrupts_no_job(story: Story) -> None:
    await story.pool("shrink", scaling={"minReplicas": 3})
    await story.until_ready("shrink", 3)
    jobs = [await story.submit("shop.hold", "shrink", seconds=seconds) for seconds in (1, 1, 1, 30, 30, 30)]
    await story.finished(*jobs[:3])
    for job_id in jobs[3:]:
        await story.begun(job_id)
    await story.pool("shrink")
    await story.finished_undisturbed(*jobs)
    await story.until_pods("shrink", 0)
    await story.drop("shrink")


async def test_a_changed_password_reaches_executors(story: Story) -> None:
    """Here it is another role: the database refuses the old one, and its sessions end."""
    url = await story.url()
    for role in ("first", "second"):
        await story.sql(f"CREATE ROLE {role} LOGIN SUPERUSER PASSWORD '{role}'")
    await story.secret("rotated", with_login(url, "first"))
    await story.pool("password", database={"secretName": "rotated"}, scaling={"minReplicas": 1})
    await story.until_ready("password", 1)
    await story.secret("rotated", with_login(url, "second"))
    await story.sql("ALTER ROLE first NOLOGIN")
    await story.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'first'")
    with story.timed("a job of a pool whose password was changed is done"):
        [job] = await story.finished(await story.submit("shop.hold", "password", seconds=0.1))
    assert job["now"] == "success"
    await story.until_ready("password", 1)
    await story.drop("password")
    await story.api.delete("secrets", "rotated", JOBS)


async def test_a_secret_that_names_another_database_moves_the_pool_and_interrupts_no_job(story: Story) -> None:
    url = await story.url()
    await story.sql("CREATE DATABASE moved")
    await story.secret("moving", url)
    await story.pool("move", database={"secretName": "moving"}, scaling={"minReplicas": 1})
    await story.until_ready("move", 1)
    job_id = await story.submit("shop.hold", "move", seconds=45)
    await story.begun(job_id)
    await story.secret("moving", urlsplit(url)._replace(path="/moved").geturl())
    story.sh("kubectl delete pod --selector app.kubernetes.io/component=operator")  # the next one reads it at once
    await story.until_pool(
        "move", lambda pool: pool["status"].get("drainingReplicas") == pool["status"].get("readyReplicas") == 1
    )
    assert (await story.job(job_id))["now"] == "running"
    await story.finished_undisturbed(job_id)
    await story.until_pods("move", 1)
    await story.drop("move")
    await story.api.delete("secrets", "moving", JOBS)


async def test_a_second_release_leaves_the_pools_of_the_first_alone_and_says_so(story: Story) -> None:
    await story.pool("theirs", scaling={"minReplicas": 1})
    before = (await story.pod("theirs"))["metadata"]["uid"]
    story.sh("kubectl create namespace second")
    try:
        story.sh(f"""
            helm install second charts/joex --namespace second --set 'watchNamespaces={{{JOBS}}}' \
                --set pool.enabled=false,postgresql.enabled=false,crds.install=false
        """)

        async def says_so() -> bool:
            said = f"manages the namespace {JOBS}: second/"
            return said in story.sh("kubectl --namespace second logs deployment/second-joex-operator || true")

        await eventually(says_so, PATIENCE, why="its log names the release that acts there")
        [job] = await story.finished(await story.submit("shop.hold", "theirs", seconds=0.1))
        assert job["now"] == "success"
        assert (await story.pod("theirs"))["metadata"]["uid"] == before
    finally:
        story.sh("helm uninstall second --namespace second; kubectl delete namespace second --wait=false")
    await story.drop("theirs")


async def test_a_wrong_secret_is_named_and_its_mend_is_noticed(story: Story) -> None:
    await story.pool("secret", database={"secretName": "mistyped"})

    def says(reason: str, kind: str) -> Callable[[Object], bool]:
        return lambda pool: any(
            one["type"] == kind and one["reason"] == reason for one in pool["status"].get("conditions", [])
        )

    await story.until_pool("secret", says("SecretMissing", "DatabaseReachable"))
    assert "SecretMissing" in story.sh(f"kubectl --namespace {JOBS} get joexpool secret")
    secret = await story.api.get("secrets", "joex-db", JOBS)
    made = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "mistyped"}, "data": secret["data"]}
    await story.api.apply(made, JOBS)
    await story.until_pool("secret", says("SecretNotAllowed", "DatabaseReachable"))
    story.sh(f"kubectl --namespace {JOBS} label secret mistyped joex.dev/pools=allowed")
    [job] = await story.finished(await story.submit("shop.hold", "secret", seconds=0.1))
    assert job["now"] == "success"
    await story.drop("secret")
    await story.api.delete("secrets", "mistyped", JOBS)


async def test_a_suspended_pool_finishes_and_rests(story: Story) -> None:
    _, job_id = await story.busy("rest", seconds=6)
    await story.pool("rest", scaling={"minReplicas": 1}, suspend=True)
    await story.finished_undisturbed(job_id)
    await story.until_pods("rest", 0)
    await story.pool("rest", scaling={"minReplicas": 1}, suspend=False)
    await story.until_ready("rest", 1)
    await story.drop("rest")


async def test_kubectl_scale_orders_a_size(story: Story) -> None:
    await story.pool("order")
    story.sh(f"kubectl --namespace {JOBS} scale joexpool/order --replicas=2")
    await story.until_ready("order", 2)
    story.sh(f"kubectl --namespace {JOBS} scale joexpool/order --replicas=0")
    await story.until_pods("order", 0)
    await story.drop("order")


@pytest.mark.parametrize("moment", [0.0, 0.3, 0.8])
async def test_a_pod_that_is_deleted_while_it_starts_ends_at_once(story: Story, moment: float) -> None:
    """The moments come after the container is seen running: before, during and after the start of its program."""
    name = f"start-{moment * 10:.0f}"
    await story.pool(name, drain={"timeout": "1h"})
    story.sh(f"kubectl --namespace {JOBS} scale joexpool/{name} --replicas=1")

    def runs(pods: list[Object]) -> bool:
        return any("running" in one["state"] for pod in pods for one in pod["status"].get("containerStatuses", []))

    await story.api.until_all("pods", runs, JOBS, labels=f"joex.dev/pool={name}", timeout=PATIENCE)
    await asyncio.sleep(moment)
    with story.timed(f"a pod that is deleted {moment} s after its start is gone"):
        await story.drop(name)


async def test_a_burst_that_is_called_off_leaves_no_pod_behind(story: Story) -> None:
    await story.pool("burst", drain={"timeout": "1h"})
    story.sh(f"kubectl --namespace {JOBS} scale joexpool/burst --replicas=4")
    await story.until_pods("burst", 4)
    story.sh(f"kubectl --namespace {JOBS} scale joexpool/burst --replicas=0")
    with story.timed("four pods that start are gone"):
        await story.until_pods("burst", 0)
    await story.drop("burst")


async def test_a_busy_pool_that_is_deleted_finishes_what_it_runs(story: Story) -> None:
    _, job_id = await story.busy("gone", seconds=8)
    await story.drop("gone")
    await story.finished_undisturbed(job_id)


async def test_a_periodic_task_wakes_a_pool_at_zero(story: Story) -> None:
    await story.pool("clock")
    await story.until_pool("clock", lambda pool: pool["status"].get("replicas") == 0)
    task = {
        "apiVersion": "joex.dev/v1alpha1",
        "kind": "PeriodicTask",
        "metadata": {"name": "often", "namespace": JOBS},
        "spec": {"pool": "clock", "task": "shop.hold", "timer": "*-*-* *:*:00/15", "args": {"seconds": 0.1}},
    }
    await story.api.apply(task)
    made = await story.api.until(
        "periodictasks.joex.dev",
        "often",
        lambda found: found is not None and found.get("status", {}).get("lastJob"),
        JOBS,
        timeout=PATIENCE,
    )
    await story.finished_undisturbed(UUID(made["status"]["lastJob"]["id"]))
    story.documented("kubectl get periodictasks")
    assert "Stored" in story.sh(f"kubectl --namespace {JOBS} get periodictasks")
    await story.api.delete("periodictasks.joex.dev", "often", JOBS)
    await story.drop("clock")


async def test_executors_work_while_the_operator_is_restarted(story: Story) -> None:
    await story.pool("alone", scaling={"minReplicas": 1})
    await story.pod("alone")
    with story.timed("the operator's pod is deleted, and another one is ready"):
        story.sh("kubectl delete pod --selector app.kubernetes.io/component=operator")
        [job] = await story.finished(await story.submit("shop.hold", "alone", seconds=0.1))
        assert job["now"] == "success"
        story.sh("kubectl rollout status deployment/joex-operator --timeout=90s")
    await story.drop("alone")


async def test_jobs_outlast_an_absence_of_containerd(story: Story) -> None:
    _, job_id = await story.busy("runtime", seconds=15)
    story.node.containerd.stop(0)
    await story.finished_undisturbed(job_id)
    story.node.start_runtime()
    await story.drop("runtime")


async def test_an_upgrade_and_a_rollback_interrupt_nothing(story: Story) -> None:
    _, job_id = await story.busy("own", seconds=25)
    with story.timed("helm upgrade, until the new operator is ready"):
        story.sh("helm upgrade joex charts/joex --reuse-values --set operator.logLevel=debug --wait --timeout 120s")
    story.documented("kubectl annotate crd joexpools.joex.dev", NAME="joex", NAMESPACE="default")
    story.documented("kubectl label crd joexpools.joex.dev")
    story.documented("helm upgrade joex charts/joex")
    with story.timed("helm rollback, until the old operator is ready"):
        story.documented("helm rollback joex")
    await story.finished_undisturbed(job_id)
    await story.drop("own")
    await story.nothing_hangs()


async def test_the_database_comes_back_and_so_do_the_pools(story: Story) -> None:
    """The trial database has no volume: it keeps its data if its container restarts, not its pod."""
    await story.pool("again", scaling={"minReplicas": 1})
    await story.pod("again")
    pods = await story.api.get_all("pods", "default", labels="app.kubernetes.io/component=postgresql")
    os.kill(story.node.process_of(pods[0]["metadata"]["name"], "postgresql"), signal.SIGKILL)
    [job] = await story.finished(await story.submit("shop.hold", "again", seconds=0.1))
    assert job["now"] == "success"
    await story.drop("again")


async def test_uninstalling_leaves_nothing_that_hangs(story: Story) -> None:
    held = await story.submit("documents.count", "default", path="/opt/joex/bin/python")
    await story.finished(held)
    with story.timed("helm uninstall, until all pods are gone"):
        story.sh("helm uninstall joex")
        await story.api.until_all("pods", lambda found: all(map(has_ended, found)), "default", timeout=PATIENCE)
    await story.nothing_hangs()
    await story.note_unhealthy()


def has_ended(pod: Object) -> bool:
    """Whether a pod has completed, as that of helm test, which stays for its log."""
    return pod["status"].get("phase") in ("Succeeded", "Failed")


def with_login(url: str, name: str) -> str:
    """The URL of a role whose password is its name."""
    parts = urlsplit(url)
    return parts._replace(netloc=f"{name}:{name}@{parts.netloc.rpartition('@')[2]}").geturl()


def story_json(text: str) -> dict[str, Any]:
    """A result, as a job has it."""
    result: dict[str, Any] = json.loads(text)
    return result

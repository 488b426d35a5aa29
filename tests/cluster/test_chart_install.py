"""The chart installed in a namespace with restricted pods: its operator works under its own account.

The API server must never refuse its requests: `Release.let_go` checks that.
"""

import asyncio
import itertools
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from uuid import UUID

import pytest
import yaml

from tests.support.cluster.api import Api
from tests.support.cluster.audit import Right
from tests.support.cluster.chart import CHART
from tests.support.cluster.connection import Object
from tests.support.cluster.definitions import FILES, KIND, NAMES, is_served, remove_definitions
from tests.support.cluster.helm import Helm
from tests.support.cluster.local import LocalCluster
from tests.support.cluster.namespaces import Namespaces
from tests.support.cluster.objects import is_available
from tests.support.cluster.providers import Cluster
from tests.support.cluster.release import NAME, OPERATOR, Release, own_database
from tests.support.cluster.system import APP, DEPLOYMENTS, POOL_LABEL, POOLS, SECRET, System
from tests.support.waiting import eventually

RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount"


@pytest.fixture
async def namespace(namespaces: Namespaces) -> str:
    """The namespace of `system` too."""
    return await namespaces.make(RESTRICTED)


@pytest.fixture
async def release(cluster: Cluster, api: Api, helm: Helm, system: System) -> AsyncIterator[Release]:
    """A release that is not installed yet; uninstalled at the end, before the test's database is dropped."""
    if cluster.provider == "context":
        pytest.skip(
            "the definitions and the operator of the chart are for a whole cluster, and this one belongs to the user"
        )
    release = Release(cluster, api, helm, system.namespace)
    yield release
    print(await release.logs())
    await release.uninstall()


async def test_one_command_installs_all_that_a_job_needs_and_another_takes_it_away_except_the_definitions(
    api: Api, release: Release, system: System
) -> None:
    await remove_definitions(api)
    await release.install()
    [operator] = await release.until_operator()
    for name in NAMES:
        await api.until(KIND, name, is_served)
    await api.until("deployments", "joex-postgresql", is_available(1), release.namespace)
    await system.until_ready(1, "default")
    assert "succeeded" in (await release.test()).lower()

    pods = await api.get_all("pods", release.namespace)
    with_token = {pod["metadata"]["name"] for pod in pods if TOKEN in str(pod["spec"])}
    assert with_token == {operator["metadata"]["name"]}

    # The executors exit though their database is removed with them.
    await api.delete("pods", "joex-test", release.namespace)  # of `helm test`, which leaves it
    await release.uninstall()
    await api.until(POOLS, "default", lambda found: found is None, release.namespace)
    await api.until_all("pods", lambda found: not found, release.namespace)
    # The operator of the next release would wait for the end of this one.
    await api.until("leases", OPERATOR, lambda found: found is None, release.namespace)
    assert {found["metadata"]["name"] for found in await api.get_all(KIND)} >= set(NAMES)


async def test_upgrades_of_the_chart_of_the_operator_and_of_the_pool_leave_what_runs_alone(
    api: Api, helm: Helm, release: Release, system: System, tmp_path: Path
) -> None:
    await remove_definitions(api)
    before = await chart_before(helm, tmp_path)
    values = own_database(system.manifest("first", poolSize=2, scaling={"maxReplicas": 2}))
    await release.install(values, chart=before)
    await release.until_operator()
    await system.until_reason("AtZero", name="first")
    assert await description(api) == BEFORE
    held = [await system.submit("hold", flag="go") for _ in range(3)]
    for job in held:
        await system.effects.begun(job)
    at_first = await executors(system)
    assert at_first.keys() == {"first-0", "first-1"}

    # There is no earlier chart yet: this chart replaces one with another version and another text in a definition.
    await release.upgrade()
    assert await description(api) == DEFINITION["description"]
    assert await system.effects.all_finished([await system.submit()]) == {"success": 1}
    assert await executors(system) == at_first

    # The operator alone. While it is replaced, executors take new jobs.
    upgrade = asyncio.create_task(release.upgrade("operator.logLevel=debug"))
    while not upgrade.done():
        assert await system.effects.all_finished([await system.submit()]) == {"success": 1}
    await upgrade
    assert await executors(system) == at_first

    # The pool. The operator replaces its executors when their jobs have ended.
    await release.upgrade("pool.spec.poolSize=3")
    await system.until_pool(lambda pool: pool["spec"]["poolSize"] == 3 and pool["status"]["drainingReplicas"], "first")
    assert (await executors(system)).items() >= at_first.items()
    await system.effects.flag("go")
    assert await system.effects.all_finished(held) == {"success": 3}
    assert await runs(system, *held) == [1, 1, 1]

    await system.until_replicas()
    await system.until_reason("AtZero", name="first")
    await system.check()


async def test_an_upgrade_of_image_and_pool_replaces_executors_once(
    release: Release, system: System, local_cluster: LocalCluster
) -> None:
    """Each tag exists. The new operator has the new image, and the pool of its ConfigMap, before its first action."""
    first = system.manifest("first", replicas=1)
    del first["spec"]["image"]
    await release.install(own_database(first))
    await system.until_ready(1, "first")
    await release.upgrade("image.tag=two", "pool.spec.poolSize=2")
    registered = "SELECT pool_size FROM joex_private.executor ORDER BY started_at"

    async def is_replaced() -> bool:
        return [row["pool_size"] for row in await system.db.fetch(registered)][-1:] == [2]

    await eventually(is_replaced)
    await system.until_reason("Ready", name="first")
    assert [row["pool_size"] for row in await system.db.fetch(registered)] == [1, 2]


async def test_uninstalling_ends_the_first_pool_after_its_jobs_and_leaves_other_pools(
    api: Api, release: Release, system: System
) -> None:
    values = own_database(system.manifest("first", queues=["first"]))
    await release.install(values)
    await release.until_operator()
    await system.pool("own", queues=["own"], poolSize=2)
    first, own = [await hold(system, queue) for queue in ("first", "own")]
    of_own = {"own-0": (await executors(system))["own-0"]}

    await release.uninstall()
    await system.until_replicas("own-0")
    assert [pool["metadata"]["name"] for pool in await api.get_all(POOLS, release.namespace)] == ["own"]
    after = await system.client.submit("effect", queue="own")
    assert await system.effects.all_finished([after]) == {"success": 1}
    await system.effects.flag("first")
    assert await system.effects.all_finished([first]) == {"success": 1}
    await until_pods_of(system, "own")
    assert await executors(system) == of_own

    # The next release takes over the objects. The last operator could not release its Lease: its rights were deleted
    # first.
    await release.install(values)
    [operator] = await release.until_operator()
    await api.until("leases", OPERATOR, is_held_by(operator), release.namespace)
    await system.until_reason("AtZero", name="first")
    await system.scale(2, "own")
    await system.until_ready(2, "own")
    await system.scale(1, "own")
    await system.until_replicas("own-0")
    assert await executors(system) == of_own

    # Without an operator, users can delete pools like any object.
    await release.uninstall()
    await api.delete(POOLS, "own", release.namespace)
    await system.until_replicas()
    await system.effects.flag("own")
    assert await system.effects.all_finished([own]) == {"success": 1}
    await until_pods_of(system)
    assert await runs(system, first, own) == [1, 1]


async def test_a_namespace_with_live_pools_is_deleted_within_their_grace(
    api: Api, release: Release, system: System
) -> None:
    in_time = {"drain": {"timeout": "3s"}}
    values = own_database(system.manifest("first", queues=["first"], **in_time))
    await release.install(values)
    await release.until_operator()
    await system.pool("own", queues=["own"], **in_time)
    for queue in ("first", "own"):
        await hold(system, queue)
    release.let_go()
    await api.delete("namespaces", release.namespace)
    await api.until("namespaces", release.namespace, lambda found: found is None)


async def test_by_default_the_operator_leaves_pools_and_secrets_elsewhere_alone_and_uses_each_right(
    cluster: Cluster, api: Api, release: Release, system: System, namespaces: Namespaces
) -> None:
    elsewhere = await namespaces.make(RESTRICTED)
    there = system.manifest("elsewhere", replicas=1)
    await api.apply({**there, "metadata": {"name": "elsewhere", "namespace": elsewhere}})
    await release.install({**own_database(system.manifest("first")), "database": {"url": system.url}})
    await release.until_operator()
    await use_each_right(cluster, api, release, system, everywhere=False)
    assert "status" not in await api.get(POOLS, "elsewhere", elsewhere)
    assert await api.get_all(DEPLOYMENTS, elsewhere) == []
    roles = {role["metadata"]["name"] for role in await api.get_all("clusterroles")}
    assert f"{release.namespace}:{OPERATOR}" not in roles
    own, other = [await may_read_secrets(api, release, namespace) for namespace in (release.namespace, elsewhere)]
    assert (own, other) == (True, False)
    await api.delete(POOLS, "elsewhere", elsewhere)  # before an operator of the whole cluster finds it


async def test_of_two_operators_one_leads_and_the_other_takes_over(api: Api, release: Release, system: System) -> None:
    await release.install({**own_database(system.manifest("first")), "operator": {"replicas": 2}})
    operators = await release.until_operator()
    assert len(operators) == 2
    await system.until_reason("AtZero", name="first")
    lease = await api.get("leases", OPERATOR, release.namespace)
    [leader] = [pod for pod in operators if is_held_by(pod)(lease)]

    await api.delete("pods", leader["metadata"]["name"], release.namespace)
    job = await system.submit()
    assert await system.effects.all_finished([job]) == {"success": 1}
    assert not is_held_by(leader)(await api.get("leases", OPERATOR, release.namespace))


async def test_an_operator_of_all_namespaces_runs_pools_in_others_than_its_own_and_uses_each_right(
    cluster: Cluster, api: Api, release: Release, system: System, namespaces: Namespaces
) -> None:
    elsewhere = await namespaces.make(RESTRICTED)
    for kind, name in (("secrets", SECRET), ("configmaps", APP)):  # what its pods read
        found = await api.get(kind, name, release.namespace)
        labels = found["metadata"].get("labels", {})
        await api.apply({**found, "metadata": {"name": name, "namespace": elsewhere, "labels": labels}})
    await release.install({**own_database(system.manifest("first")), "watchNamespaces": ["*"]})
    await release.until_operator()
    there = system.manifest("elsewhere", queues=["elsewhere"], scaling={"minReplicas": 0, "maxReplicas": 1})
    await api.apply({**there, "metadata": {"name": "elsewhere", "namespace": elsewhere}})
    await system.until_reason("AtZero", name="first")
    job = await system.client.submit("effect", queue="elsewhere")
    assert await system.effects.all_finished([job]) == {"success": 1}
    assert await may_read_secrets(api, release, elsewhere)
    await use_each_right(cluster, api, release, system, everywhere=True)
    # While there is an operator, which waits for the pool's executor to drain.
    await api.delete(POOLS, "elsewhere", elsewhere)
    await api.until_all("pods", lambda found: not found, elsewhere)


BEFORE = "Of the chart before."
DEFINITION = FILES[POOLS]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
ASKED_BY_THE_API_SERVER = {
    Right("create", "joex.dev", "joexpools"),  # for an apply, if there is no such object
}


async def chart_before(helm: Helm, folder: Path) -> Path:
    """The chart as a package of an earlier version, with another text in the definition of pools."""
    source = Path(shutil.copytree(CHART, folder / NAME))
    path = source / "files" / "crds" / f"{POOLS}.yaml"
    crd = yaml.safe_load(path.read_text())
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["description"] = BEFORE
    path.write_text(yaml.safe_dump(crd))
    await helm("package", source, "--version", "0.0.1", "--destination", folder)
    return folder / f"{NAME}-0.0.1.tgz"


async def description(api: Api) -> str:
    """The description in the cluster's definition of pools."""
    crd = await api.get(KIND, POOLS)
    return str(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["description"])


async def rights(api: Api, release: Release, *, everywhere: bool) -> set[Right]:
    """The rights in the roles of a release whose operator watches its own namespace, or all."""
    name = f"{release.namespace}:{OPERATOR}"
    for_pools = await (api.get("clusterroles", name) if everywhere else api.get("roles", name, release.namespace))
    to_lead = await api.get("roles", OPERATOR, release.namespace)
    rules = [rule for role in (for_pools, to_lead) for rule in role["rules"]]
    return {
        Right(verb, group, resource)
        for rule in rules
        for verb, group, resource in itertools.product(rule["verbs"], rule["apiGroups"], rule["resources"])
    }


async def use_each_right(cluster: Cluster, api: Api, release: Release, system: System, *, everywhere: bool) -> None:
    """Let the operator of a release use each right that it has. (Only a local cluster has a log that shows it.)"""
    await system.until_reason("AtZero", name="first")
    task = {"task": "effect", "timer": "daily", "pool": "first"}
    kind = {"apiVersion": "joex.dev/v1alpha1", "kind": "PeriodicTask", "metadata": {"name": "nightly"}}
    await api.apply({**kind, "spec": task}, release.namespace)
    await api.until("periodictasks", "nightly", lambda found: found and "status" in found, release.namespace)
    for _ in range(2):  # the second time the same Events get a higher count
        assert await system.effects.all_finished([await system.submit()]) == {"success": 1}
        await system.until_replicas()
        await system.until_reason("AtZero", name="first")
    await system.scale(1, "first")
    await system.until_ready(1, "first")
    [replica] = await system.replicas()
    await api.patch(DEPLOYMENTS, replica, {"spec": {"replicas": 0}}, release.namespace)
    await api.until(DEPLOYMENTS, replica, lambda found: found["spec"]["replicas"] == 1, release.namespace)
    await api.until("leases", OPERATOR, is_renewed, release.namespace)
    await api.delete("leases", OPERATOR, release.namespace)  # as an administrator may
    await api.until("leases", OPERATOR, lambda found: bool(found) and is_renewed(found), release.namespace)

    may = await rights(api, release, everywhere=everywhere)

    def is_all_used() -> bool:  # (the log has a request when it is answered: its effect may come before)
        return may - {request.right for request in release.requests()} == ASKED_BY_THE_API_SERVER

    if cluster.local is not None:
        await eventually(is_all_used, why=f"each right is used, of {may}")
    await api.delete("periodictasks", "nightly", release.namespace)  # before an operator of the whole cluster finds it


async def may_read_secrets(api: Api, release: Release, namespace: str) -> bool:
    """Whether the API server lets the operator read a secret in a namespace."""
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": f"system:serviceaccount:{release.namespace}:{OPERATOR}",
            "resourceAttributes": {"verb": "get", "resource": "secrets", "namespace": namespace},
        },
    }
    answer = await api.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    return bool(answer["status"]["allowed"])


def is_held_by(pod: Object) -> Callable[[Object], bool]:
    """Whether an operator's pod holds the Lease."""
    return lambda lease: bool(lease["spec"]["holderIdentity"] == pod["metadata"]["name"])


def is_renewed(lease: Object) -> bool:
    """Whether the Lease has been renewed by its holder."""
    spec = lease.get("spec", {})
    return bool(spec.get("renewTime") != spec.get("acquireTime"))


async def hold(system: System, queue: str) -> UUID:
    """Begin a job that runs until there is a flag with its queue's name."""
    job = await system.client.submit("hold", {"flag": queue}, queue=queue)
    assert job is not None
    await system.effects.begun(job)
    return job


async def executors(system: System) -> dict[str, int]:
    """The ids of the living executors, by replica: another process is another executor."""
    return {replica: row["id"] for replica, row in (await system.executors()).items()}


async def runs(system: System, *jobs: UUID) -> list[int]:
    """How often each job has run."""
    return [len(await system.effects.of(job)) for job in jobs]


async def until_pods_of(system: System, *pools: str) -> None:
    """Wait until only these pools have pods."""

    def just_these(found: list[Object]) -> bool:
        return {pod["metadata"]["labels"][POOL_LABEL] for pod in found} == set(pools)

    await system.api.until_all("pods", just_these, system.namespace, labels=POOL_LABEL)

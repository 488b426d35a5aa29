"""The chart's CRDs: installed, upgraded and kept, over CRDs of any origin; and what its operator may do.

They belong to the whole cluster, so each test begins without any, and restores the earlier ones.
"""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import yaml

from tests.support.cluster.api import Api
from tests.support.cluster.chart import CHART, render, sets
from tests.support.cluster.connection import ApiError
from tests.support.cluster.definitions import KIND, NAMES, apply_definition, remove_definitions
from tests.support.cluster.helm import Helm
from tests.support.cluster.local import LocalCluster
from tests.support.cluster.namespaces import Namespaces
from tests.support.cluster.providers import Cluster

LEFT = "THE CHART HAS NOT CHANGED THE CRD"


@pytest.fixture(autouse=True)
async def no_definitions(local_cluster: LocalCluster, api: Api) -> AsyncIterator[None]:
    """Remove the definitions; at the end restore the earlier ones from the files."""
    there = {found["metadata"]["name"] for found in await api.get_all(KIND)}
    await remove_definitions(api)
    yield
    await remove_definitions(api)
    for name in there.intersection(NAMES):
        await apply_definition(api, name)


class Release:
    """A release of the chart without a database and a pool, whose operator has no pool."""

    def __init__(self, helm: Helm, name: str, namespace: str) -> None:
        self._helm, self._name, self._namespace = helm, name, namespace

    async def install(self, *values: str) -> str:
        return await self._run("install", *values)

    async def upgrade(self, *values: str) -> str:
        return await self._run("upgrade", *values)

    async def uninstall(self) -> str:
        return await self._helm("uninstall", self._name, "--wait", namespace=self._namespace)

    async def _run(self, action: str, *values: str) -> str:
        quiet = ("postgresql.enabled=false", "pool.enabled=false", f"watchNamespaces={{{self._namespace}}}")
        return await self._helm(action, self._name, CHART, *sets(*quiet, *values), namespace=self._namespace)


async def owners(api: Api) -> set[str]:
    """The releases that the definitions belong to."""
    found = [await api.get(KIND, name) for name in NAMES]
    return {crd["metadata"].get("annotations", {}).get("meta.helm.sh/release-name", "") for crd in found}


async def make_stale(api: Api) -> None:
    """Make the CRDs those of an older version."""
    for name in NAMES:
        await api.patch(KIND, name, {"spec": {"names": {"categories": ["old"]}}})


async def categories(api: Api) -> set[str]:
    found = [await api.get(KIND, name) for name in NAMES]
    return {category for crd in found for category in crd["spec"]["names"]["categories"]}


async def test_they_are_upgraded_and_outlive_the_release_and_the_next_of_its_name_takes_them_over(
    api: Api, helm: Helm, namespace: str
) -> None:
    release = Release(helm, "one", namespace)
    assert LEFT not in await release.install()
    assert await owners(api) == {"one"}
    await make_stale(api)
    assert LEFT not in await release.upgrade("operator.logLevel=debug")
    assert await categories(api) == {"joex"}
    await release.upgrade("crds.install=false")
    assert await owners(api) == {"one"}
    await release.upgrade()
    await release.uninstall()
    assert await owners(api) == {"one"}
    await make_stale(api)
    assert LEFT not in await release.install()
    assert await categories(api) == {"joex"}


async def test_a_release_of_another_name_leaves_them_and_says_how_to_bring_them_up_to_date(
    api: Api, helm: Helm, namespaces: Namespaces
) -> None:
    """Whether the release that made them is still there or not."""
    first, second = (
        Release(helm, "one", place := await namespaces.make()),
        Release(helm, "two", await namespaces.make()),
    )
    await first.install()
    await make_stale(api)
    beside = await second.install()
    await first.uninstall()
    for said in (beside, await second.upgrade()):
        for name in NAMES:
            assert f"{LEFT} {name}: it was made by the release {place}/one." in said
            assert f"kubectl apply --server-side --force-conflicts -f crds/{name}.yaml" in said
    assert (await owners(api), await categories(api)) == ({"one"}, {"old"})
    await second.uninstall()
    assert await owners(api) == {"one"}


async def test_those_applied_by_hand_are_left_to_the_hand_until_they_are_handed_over(
    api: Api, helm: Helm, namespace: str
) -> None:
    for name in NAMES:
        await apply_definition(api, name)
    release = Release(helm, "two", namespace)
    assert "it was not made by Helm" in await release.install()
    await release.uninstall()
    assert await owners(api) == {""}

    await release.install()
    await make_stale(api)
    helms = {"meta.helm.sh/release-name": "two", "meta.helm.sh/release-namespace": namespace}
    for name in NAMES:
        metadata = {"annotations": helms, "labels": {"app.kubernetes.io/managed-by": "Helm"}}
        await api.patch(KIND, name, {"metadata": metadata})
    assert LEFT not in await release.upgrade()
    assert await categories(api) == {"joex"}


async def test_one_that_was_removed_comes_back_with_the_next_upgrade(api: Api, helm: Helm, namespace: str) -> None:
    for name in NAMES:
        await apply_definition(api, name)
    release = Release(helm, "one", namespace)
    await release.install()
    await remove_definitions(api)
    assert LEFT not in await release.upgrade()
    assert await owners(api) == {"one"}


async def test_the_operators_account_can_do_its_work_and_no_more(
    local_cluster: LocalCluster, cluster: Cluster, api: Api, helm: Helm, namespace: str
) -> None:
    """With the operator's own requests: an apply that creates needs other rights than one that changes."""
    for name in NAMES:
        await apply_definition(api, name)
    rendered = await render(helm, f"watchNamespaces={{{namespace}}}", namespace=namespace)
    for (kind, _), manifest in rendered.items():
        if kind in ("Role", "RoleBinding", "ConfigMap", "Lease"):
            await api.apply(manifest, namespace)
    user = f"system:serviceaccount:{namespace}:joex-operator"
    async with cluster.api(local_cluster.control_plane.kubeconfig_for(user, "system:serviceaccounts")) as operator:
        [text] = (await operator.get("configmaps", "joex-pools", namespace))["data"].values()
        pool: dict[str, Any] = yaml.safe_load(text)
        await operator.apply(pool, manager="joex-operator")
        pool["spec"]["poolSize"] = 3
        made = await operator.apply(pool, manager="joex-operator")
        await operator.patch("joexpools", "default", {"status": {"replicas": 0}}, namespace, part="status")
        owner = {
            "apiVersion": pool["apiVersion"],
            "kind": "JoexPool",
            "name": "default",
            "uid": made["metadata"]["uid"],
        }
        child: dict[str, Any] = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "default-0", "ownerReferences": [owner]},
            "spec": rendered["Deployment", "joex-postgresql"]["spec"],
        }
        for replicas in (0, 1):
            child["spec"]["replicas"] = replicas
            await operator.apply(child, namespace, manager="joex-operator")
        await operator.delete("deployments", "default-0", namespace)
        lease = await operator.get("leases", "joex-operator", namespace)
        path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/joex-operator"
        await operator.request("PUT", path, {**lease, "spec": {"holderIdentity": "me"}})
        assert await operator.get_all("pods", namespace) is not None

        another = {**pool, "metadata": {"name": "another", "namespace": namespace}}
        for refused in (
            operator.apply(another),
            operator.delete("joexpools", "default", namespace),
            operator.get_all("secrets", namespace),
            operator.get("configmaps", "kube-root-ca.crt", namespace),
            operator.get_all("pods", "default"),
            operator.create({**rendered["Lease", "joex-operator"], "metadata": {"name": "other"}}, "default"),
        ):
            with pytest.raises(ApiError) as error:
                await refused
            assert error.value.code == 403

"""The chart's admission policy: who may create or change a pool. The API server asks about the user of each request."""

from collections.abc import AsyncIterator

import pytest
import yaml

from joex_operator.api.names import ALLOWED
from tests.support.cluster.api import Api
from tests.support.cluster.chart import manifests, render
from tests.support.cluster.connection import ApiError, Object
from tests.support.cluster.definitions import FILES, KIND, is_served
from tests.support.cluster.helm import Helm
from tests.support.cluster.namespaces import Namespaces
from tests.support.cluster.providers import Cluster
from tests.support.cluster.system import POOLS
from tests.support.waiting import eventually

POLICIES = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
DEPLOYMENTS = {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["create"]}
ALL_OF_CONFIG_MAPS = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["*"]}
ALL_OF_POOLS = {"apiGroups": ["joex.dev"], "resources": ["joexpools", "joexpools/scale"], "verbs": ["*"]}


class User(Api):
    """A user with these rights in a namespace, as whom the administrator acts."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        super().__init__(cluster.kubeconfig)
        self.name = name

    def _headers(self) -> dict[str, str]:
        return {**super()._headers(), "Impersonate-User": self.name}


async def grant(api: Api, user: str, namespace: str, *rules: Object) -> None:
    group = "rbac.authorization.k8s.io"
    metadata = {"name": user, "namespace": namespace}
    await api.apply({"apiVersion": f"{group}/v1", "kind": "Role", "metadata": metadata, "rules": list(rules)})
    await api.apply(
        {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": group, "kind": "Role", "name": user},
            "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
        }
    )


@pytest.fixture
async def namespace(api: Api, helm: Helm, namespaces: Namespaces, cluster: Cluster) -> AsyncIterator[str]:
    """A namespace that a release watches, with its policy in force, and two users: ``deployer`` and ``author``."""
    for definition in FILES.values():
        await api.apply(definition)
    await api.until(KIND, POOLS, is_served)
    namespace = await namespaces.make()
    await grant(api, "author", namespace, ALL_OF_POOLS)
    await grant(api, "deployer", namespace, ALL_OF_POOLS, DEPLOYMENTS)
    rendered = await render(helm, namespace=namespace)
    policies = [found for (kind, _), found in rendered.items() if kind in POLICIES]
    for found in policies:
        await api.apply(found)

    async def is_in_force() -> bool:  # the API server reads its policies a moment later
        async with User(cluster, "author") as author:
            return "deployments.apps" in await refusal(author, namespace)

    await eventually(is_in_force, why="the policy is in force")
    yield namespace
    for found in policies:
        await api.delete(found["kind"], found["metadata"]["name"])


@pytest.fixture
async def author(cluster: Cluster, namespace: str) -> AsyncIterator[User]:
    """May do everything with pools, and create no pod."""
    async with User(cluster, "author") as user:
        yield user


@pytest.fixture
async def deployer(cluster: Cluster, namespace: str) -> AsyncIterator[User]:
    """May create Deployments too, and read no secret."""
    async with User(cluster, "deployer") as user:
        yield user


def manifest(namespace: str) -> Object:
    return {
        "apiVersion": "joex.dev/v1alpha1",
        "kind": "JoexPool",
        "metadata": {"name": "shop", "namespace": namespace},
        "spec": {"app": "shop.tasks:app", "database": {"secretName": "joex-db"}, "replicas": 1},
    }


async def refusal(user: Api, namespace: str) -> str:
    """Why the API server would refuse a pool of a user, by a dry run; empty: it would accept it."""
    path = f"/apis/joex.dev/v1alpha1/namespaces/{namespace}/joexpools"
    try:
        await user.request("POST", path, manifest(namespace), dryRun="All")
    except ApiError as error:
        return str(error)
    return ""


async def test_who_may_create_no_deployment_creates_no_pool_and_is_told_why(author: User, namespace: str) -> None:
    answer = await refusal(author, namespace)
    assert answer.startswith("403 Forbidden")
    assert f"may create deployments.apps in the namespace {namespace}" in answer
    assert "author may not" in answer


async def test_who_may_create_deployments_creates_and_changes_pools(deployer: User, namespace: str) -> None:
    await deployer.create(manifest(namespace))
    await deployer.patch(POOLS, "shop", {"spec": {"image": "shop:2"}}, namespace)


@pytest.mark.parametrize(
    "change",
    [
        {"image": "evil:1"},
        {"app": "evil:app"},
        {"template": {"spec": {"serviceAccountName": "admin"}}},
        {"template": {"spec": {"volumes": [{"name": "all", "secret": {"secretName": "other"}}]}}},
    ],
    ids=str,
)
async def test_who_may_create_no_deployment_changes_no_spec(
    author: User, deployer: User, namespace: str, change: Object
) -> None:
    await deployer.create(manifest(namespace))
    with pytest.raises(ApiError, match=r"deployments\.apps"):
        await author.patch(POOLS, "shop", {"spec": change}, namespace)


async def test_who_may_create_no_deployment_still_scales_labels_and_deletes_a_pool(
    api: Api, author: User, deployer: User, namespace: str
) -> None:
    await deployer.create(manifest(namespace))
    await author.patch(POOLS, "shop", {"metadata": {"labels": {"team": "shop"}}}, namespace)
    await author.patch(POOLS, "shop", {"spec": {"replicas": 2}}, namespace, part="scale")
    await api.patch(POOLS, "shop", {"status": {"replicas": 0}}, namespace, part="status")  # the operator's part
    await author.delete(POOLS, "shop", namespace)
    await api.until(POOLS, "shop", lambda found: found is None, namespace)


async def test_who_may_create_no_deployment_does_not_have_the_operator_apply_another_first_pool(
    api: Api, helm: Helm, author: User, deployer: User, namespace: str
) -> None:
    await grant(api, "author", namespace, ALL_OF_CONFIG_MAPS)
    await grant(api, "deployer", namespace, ALL_OF_CONFIG_MAPS, DEPLOYMENTS)
    made = (await render(helm, namespace=namespace))["ConfigMap", "joex-pools"]
    another = {"data": {"default.yaml": "another"}}
    with pytest.raises(ApiError, match=r"deployments\.apps"):
        await author.create(made, namespace)
    await deployer.create(made, namespace)
    with pytest.raises(ApiError, match=r"deployments\.apps"):
        await author.patch("configmaps", "joex-pools", another, namespace)
    await author.patch("configmaps", "joex-pools", {"metadata": {"labels": {"team": "shop"}}}, namespace)
    await author.create({**made, "metadata": {"name": "another"}}, namespace)
    await deployer.patch("configmaps", "joex-pools", another, namespace)


async def test_a_right_to_deployments_of_another_namespace_is_none_here(
    api: Api, author: User, namespace: str, namespaces: Namespaces
) -> None:
    await grant(api, "author", await namespaces.make(), DEPLOYMENTS)
    assert "deployments.apps" in await refusal(author, namespace)


async def test_the_policy_is_for_the_namespaces_of_the_release_alone(
    api: Api, author: User, namespaces: Namespaces
) -> None:
    elsewhere = await namespaces.make()
    await grant(api, "author", elsewhere, ALL_OF_POOLS)
    assert await refusal(author, elsewhere) == ""


async def test_the_operator_itself_may_apply_the_first_pool(
    api: Api, helm: Helm, cluster: Cluster, namespace: str
) -> None:
    rendered = await render(helm, namespace=namespace)
    for (kind, _), found in rendered.items():
        if kind in ("Role", "RoleBinding"):
            await api.apply(found, namespace)
    async with User(cluster, f"system:serviceaccount:{namespace}:joex-operator") as operator:
        pool = {**manifest(namespace), "metadata": {"name": "default", "namespace": namespace}}
        await operator.apply(pool)


async def test_no_expression_of_the_policy_has_a_warning_of_the_type_checker(api: Api, namespace: str) -> None:
    def is_checked(found: Object | None) -> bool:
        return bool(found and found.get("status", {}).get("observedGeneration") == found["metadata"]["generation"])

    policy = await api.until("validatingadmissionpolicies", f"{namespace}.joex-operator", is_checked)
    assert policy["status"].get("typeChecking", {}).get("expressionWarnings", []) == []


async def test_the_policy_of_a_release_for_all_namespaces_leaves_out_none(helm: Helm) -> None:
    async def watched(*values: str) -> Object | None:
        text = await manifests(helm, *values, "pool.enabled=false")
        [policy] = [found for found in yaml.safe_load_all(text) if found and found["kind"] == POLICIES[0]]
        selector: Object | None = policy["spec"]["matchConstraints"].get("namespaceSelector")
        return selector

    assert await watched("watchNamespaces={*}") is None
    names = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["prod", "shop"]}
    assert await watched("watchNamespaces={prod,shop}") == {"matchExpressions": [names]}


async def test_the_secrets_that_the_chart_makes_allow_pools(helm: Helm) -> None:
    label, value = ALLOWED
    trial = (await render(helm))["Secret", "joex-postgresql"]
    own = (await render(helm, "database.url=postgresql://u:p@db.example/shop"))["Secret", "joex-database"]
    assert [found["metadata"]["labels"][label] for found in (trial, own)] == [value, value]

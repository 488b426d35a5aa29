"""examples/kubernetes/pool_policy.yaml: the API server refuses pools that ask for more than the policy permits."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.cluster.api import Api
from tests.support.cluster.connection import ApiError, Object
from tests.support.cluster.definitions import FILES, KIND, is_served
from tests.support.cluster.namespaces import Namespaces
from tests.support.cluster.system import POOLS
from tests.support.waiting import eventually

EXAMPLE = Path(__file__).parents[2] / "examples" / "kubernetes" / "pool_policy.yaml"
BOUND = {"joex.dev/pool-policy": "restricted"}


def executor(**fields: Any) -> Object:
    return {"containers": [{"name": "executor", **fields}]}


def beside(**fields: Any) -> Object:
    return {"containers": [{"name": "executor"}, {"name": "beside", "image": "any", **fields}]}


def volume(**source: Any) -> Object:
    return {"volumes": [{"name": "tmp", "emptyDir": {}}, {"name": "data", **source}]}


def variable(secret: str) -> Object:
    return {"env": [{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": secret, "key": "key"}}}]}


PERMITTED: dict[str, Object | None] = {
    "no pod": {},
    "no value": None,
    "the defaults": {
        "hostNetwork": False,
        "hostPID": None,
        "serviceAccountName": "default",
        "nodeSelector": {"a": "b"},
    },
    "volumes": volume(configMap={"name": "any"}),
    "a permitted secret as a volume": volume(secret={"secretName": "joex-db"}),
    "a permitted secret for images": {"imagePullSecrets": [{"name": "joex-db"}]},
    "a permitted secret in a variable": executor(**variable("joex-db")),
    "variables": executor(env=[{"name": "A", "value": "b"}], envFrom=[{"configMapRef": {"name": "any"}}]),
    "no rights": beside(securityContext={"privileged": False, "capabilities": {"drop": ["ALL"]}}),
    "removed fields": {"volumes": None, **executor(env=None, envFrom=None, securityContext=None)},
}
HOST = "hostNetwork, hostPID and hostIPC are forbidden"
ACCOUNT = "spec.template.spec.serviceAccountName: expected default"
PRIVILEGED = "privileged containers, and containers with more capabilities, are forbidden"
VOLUMES = "spec.template.spec.volumes: expected configMap, downwardAPI,"
SECRETS = "expected a secret among joex-db, joex-postgresql, joex-database"
FORBIDDEN: dict[str, tuple[Object, str]] = {
    "hostNetwork": ({"hostNetwork": True}, HOST),
    "hostPID": ({"hostPID": True}, HOST),
    "hostIPC": ({"hostIPC": True}, HOST),
    "an account": ({"serviceAccountName": "joex-operator"}, ACCOUNT),
    "an account by its old name": ({"serviceAccount": "joex-operator"}, ACCOUNT),
    "nodeName": ({"nodeName": "node-1"}, "spec.template.spec.nodeName is forbidden"),
    "privileged": (executor(securityContext={"privileged": True}), PRIVILEGED),
    "privileged beside": (beside(securityContext={"privileged": True}), PRIVILEGED),
    "privileged before": (
        {"initContainers": [{"name": "first", "image": "any", "securityContext": {"privileged": True}}]},
        PRIVILEGED,
    ),
    "capabilities": (executor(securityContext={"capabilities": {"add": ["SYS_ADMIN"]}}), PRIVILEGED),
    "hostPath": (volume(hostPath={"path": "/"}), VOLUMES),
    "projected": (volume(projected={"sources": [{"secret": {"name": "other"}}]}), VOLUMES),
    "csi": (volume(csi={"driver": "any", "nodePublishSecretRef": {"name": "other"}}), VOLUMES),
    "a secret as a volume": (volume(secret={"secretName": "other"}), SECRETS),
    "a secret in a variable": (executor(**variable("other")), SECRETS),
    "a secret in a variable before": (
        {"initContainers": [{"name": "first", "image": "any", **variable("other")}]},
        SECRETS,
    ),
    "a secret for images": ({"imagePullSecrets": [{"name": "joex-db"}, {"name": "other"}]}, SECRETS),
    "a secret in variables": (beside(envFrom=[{"secretRef": {"name": "other"}}]), SECRETS),
}


@pytest.fixture
async def namespace(api: Api, namespaces: Namespaces) -> AsyncIterator[str]:
    """A namespace for which the policy of the example is in force."""
    for definition in FILES.values():
        await api.apply(definition)
    await api.until(KIND, POOLS, is_served)
    namespace = await namespaces.make(BOUND)
    objects = [found for found in yaml.safe_load_all(EXAMPLE.read_text()) if found]
    for found in objects:
        await api.apply(found)

    async def is_in_force() -> bool:  # the API server reads its policies a moment later
        return await refusal(api, namespace, database="other") != ""

    await eventually(is_in_force, why="the policy is in force")
    yield namespace
    for found in objects:
        await api.delete(found["kind"], found["metadata"]["name"])


def manifest(namespace: str, *, database: str = "joex-db", **spec: Any) -> Object:
    return {
        "apiVersion": "joex.dev/v1alpha1",
        "kind": "JoexPool",
        "metadata": {"name": "shop", "namespace": namespace},
        "spec": {"app": "shop.tasks:app", "database": {"secretName": database}, **spec},
    }


async def refusal(api: Api, namespace: str, *, database: str = "joex-db", **spec: Any) -> str:
    """Why the API server would refuse a pool, by a dry run; empty: it would accept it."""
    path = f"/apis/joex.dev/v1alpha1/namespaces/{namespace}/joexpools"
    try:
        await api.request("POST", path, manifest(namespace, database=database, **spec), dryRun="All")
    except ApiError as error:
        return str(error)
    return ""


async def test_pools_that_ask_for_what_is_permitted_are_accepted(api: Api, namespace: str) -> None:
    pods = [{"spec": pod} for pod in PERMITTED.values()]
    answers = [await refusal(api, namespace, template=template) for template in pods]
    assert {what: answer for what, answer in zip(PERMITTED, answers, strict=True) if answer} == {}
    assert await refusal(api, namespace) == ""
    assert await refusal(api, namespace, template={"metadata": {"labels": {"a": "b"}}}) == ""
    assert await refusal(api, namespace, template={"metadata": {"labels": None}}) == ""
    assert await refusal(api, namespace, template={"metadata": None}) == ""


async def test_each_forbidden_request_is_refused_with_its_field(api: Api, namespace: str) -> None:
    unclear = {}
    for what, (pod, message) in FORBIDDEN.items():
        answer = await refusal(api, namespace, template={"spec": pod})
        if message not in answer or "ValidatingAdmissionPolicy 'joex-pools'" not in answer:
            unclear[what] = answer or "accepted"
    assert unclear == {}


async def test_no_pod_takes_the_labels_of_another_app(api: Api, namespace: str) -> None:
    for key in ("app", "k8s-app", "app.kubernetes.io/component"):
        answer = await refusal(api, namespace, template={"metadata": {"labels": {"a": "b", key: "console"}}})
        assert "spec.template.metadata.labels: app, k8s-app and app.kubernetes.io/... are forbidden" in answer


async def test_a_pool_reads_only_the_secrets_of_the_list(api: Api, namespace: str) -> None:
    answer = await refusal(api, namespace, database="other")
    assert "spec.database.secretName: expected one of joex-db, joex-postgresql, joex-database; got other" in answer


async def test_a_pool_is_not_changed_to_a_forbidden_one_either(api: Api, namespace: str) -> None:
    await api.create(manifest(namespace))
    with pytest.raises(ApiError, match="hostNetwork"):
        await api.patch(POOLS, "shop", {"spec": {"template": {"spec": {"hostNetwork": True}}}}, namespace)
    await api.patch(POOLS, "shop", {"status": {"replicas": 0}}, namespace, part="status")  # the operator's part


async def test_namespaces_without_the_label_are_left_alone(api: Api, namespace: str, namespaces: Namespaces) -> None:
    elsewhere = await namespaces.make()
    assert await refusal(api, elsewhere, database="other", template={"spec": {"hostNetwork": True}}) == ""


async def test_no_expression_of_the_policy_has_a_warning_of_the_type_checker(api: Api, namespace: str) -> None:
    def is_checked(found: Object | None) -> bool:
        return bool(found and found.get("status", {}).get("observedGeneration") == found["metadata"]["generation"])

    policy = await api.until("validatingadmissionpolicies", "joex-pools", is_checked)
    assert policy["status"].get("typeChecking", {}).get("expressionWarnings", []) == []

"""The operator as a process: its probes, its exit, its settings, its waits, and its bootstrap pools."""

from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.support.cluster.local import LocalCluster
from tests.support.cluster.system import ROOT, OperatorProcess, System, condition
from tests.support.waiting import PATIENCE, eventually

CRDS = ("joexpools.joex.dev", "periodictasks.joex.dev")


async def answers(operator: OperatorProcess, path: str) -> int | None:
    """The status of a page; None: no answer."""
    try:
        async with httpx.AsyncClient(verify=False, trust_env=False, timeout=1) as client:  # noqa: S501 - no TLS
            return (await client.get(f"{operator.address}{path}")).status_code
    except (httpx.TransportError, IndexError):
        return None


async def until_answers(
    operator: OperatorProcess,
    path: str,
    expected: int | None,
    timeout: float = PATIENCE,  # noqa: ASYNC109 - it fails the test, no more
) -> None:
    async def as_expected() -> bool:
        return await answers(operator, path) == expected

    await eventually(as_expected, timeout, why=f"{path} answers {expected}")


async def test_probes_and_metrics_tell_the_truth(system: System) -> None:
    operator = system.operator()
    await system.pool(replicas=1)
    await system.until_pool(lambda pool: pool["status"]["readyReplicas"] == 1)
    for page in ("/healthz", "/readyz"):
        await until_answers(operator, page, 200)
    metrics = await operator.get("/metrics")
    assert 'pool="pool"' in metrics
    assert "joex_operator_leader 1.0" in metrics
    assert operator.log.count("operator leads") == 1, "it has not restarted"
    operator.pause()
    assert await answers(operator, "/healthz") is None
    operator.resume()
    await until_answers(operator, "/healthz", 200)


async def until_says(operator: OperatorProcess, what: str) -> None:
    """Wait until it reports why it is not ready. (A leader may lose its watches before its Lease.)"""

    async def says() -> bool:
        return what in await operator.get("/readyz")

    await eventually(says, why=what)


async def test_without_the_api_server_it_is_not_ready_and_says_why(system: System, local_cluster: LocalCluster) -> None:
    times = {"leader_election._RENEW_EVERY": 1, "leader_election._ANSWER_WITHIN": 6}
    leads, waits = (system.operator(name, times=times) for name in ("first", "second"))
    for operator in (leads, waits):
        await until_answers(operator, "/readyz", 200)
    local_cluster.control_plane.stop_api()
    for operator in (leads, waits):
        await until_answers(operator, "/readyz", 503, timeout=90)
        await until_says(operator, "can neither read nor renew the Lease: can't reach the API server")
        assert await answers(operator, "/healthz") == 200, "a restart would not help yet"
    local_cluster.control_plane.start_api()
    for operator in (leads, waits):
        await until_answers(operator, "/readyz", 200)


async def test_an_operator_that_may_not_watch_is_not_ready_and_says_why(
    system: System, local_cluster: LocalCluster
) -> None:
    user = f"no-watches-{system.namespace}"
    await allow_all_but_watches(system, user)
    path = local_cluster.control_plane.kubeconfig_for(user)
    operator = OperatorProcess(path, system.namespace, "operator", {})
    try:
        await until_answers(operator, "/readyz", 503)

        async def says_why() -> bool:
            return "403 Forbidden" in await operator.get("/readyz")

        await eventually(says_why)
        assert (await operator.get("/readyz")).startswith("the watch on /api")
        assert "operator leads" in operator.log
        assert await answers(operator, "/healthz") == 200
        assert await answers(operator, "/readyz") == 503
    finally:
        operator.close()


async def allow_all_but_watches(system: System, user: str) -> None:
    verbs = ["get", "list", "create", "update", "patch", "delete"]
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": "all-but-watches"},
        "rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": verbs}],
    }
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "all-but-watches"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "all-but-watches"},
        "subjects": [{"kind": "User", "name": user}],
    }
    await system.api.apply(role, system.namespace)
    await system.api.apply(binding, system.namespace)


async def test_asked_to_end_it_gives_its_lease_up_and_leaves_the_executors_at_work(system: System) -> None:
    operator = system.operator()
    await system.pool()
    held = await system.submit("hold", flag="go")
    await system.effects.begun(held)
    assert await operator.stop() == 0
    lease = await system.api.get("leases.coordination.k8s.io", "joex-operator", system.namespace)
    assert lease["spec"]["holderIdentity"] == ""
    assert "Traceback" not in operator.log
    await system.effects.flag("go")
    assert await system.effects.all_finished([held]) == {"success": 1}
    assert await system.replicas() == {"pool-0"}


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("poll_interval", "soon"),
        ("resync_period", "1ms"),
        ("http_address", "nowhere"),
        ("http_address", "192.0.2.1:80"),
        ("http_tls_certificate", "nowhere.crt"),
        ("http_tls_key", "nowhere.key"),
        ("log_level", "loud"),
        ("lease_name", ""),
        ("migrate", "perhaps"),
    ],
)
async def test_a_wrong_setting_ends_it_with_one_line_that_names_it(system: System, setting: str, value: str) -> None:
    settings: dict[str, Any] = {setting: value}
    operator = system.operator(**settings)
    await eventually(lambda: not operator.is_alive)
    assert await operator.stop() == 2
    [line] = [line for line in operator.log.splitlines() if line]
    assert f"JOEX_OPERATOR_{setting.upper()}" in line or "--" + setting.replace("_", "-") in line


async def test_without_a_kubeconfig_it_ends_with_one_line(system: System, tmp_path: Path) -> None:
    operator = OperatorProcess(tmp_path / "nothing", system.namespace, "operator", {})
    try:
        await eventually(lambda: not operator.is_alive)
        assert await operator.stop() == 2
        [line] = [line for line in operator.log.splitlines() if line]
        assert "KUBECONFIG" in line
    finally:
        operator.close()


async def test_it_waits_for_the_crds_and_is_not_ready_meanwhile(system: System, local_cluster: LocalCluster) -> None:
    for name in CRDS:
        await system.api.delete("customresourcedefinitions.apiextensions.k8s.io", name)
        await system.api.until("customresourcedefinitions.apiextensions.k8s.io", name, lambda found: found is None)
    operator = system.operator()
    await eventually(lambda: "waiting for the CRDs of joex.dev/v1alpha1" in operator.log)
    await until_answers(operator, "/healthz", 200)
    await until_answers(operator, "/readyz", 503)
    for path in sorted((ROOT / "crds").glob("*.yaml")):
        await system.api.apply(yaml.safe_load(path.read_text()))
    await until_answers(operator, "/readyz", 200)
    assert operator.log.count("waiting for the CRDs") == 1
    await eventually(lambda: _is_taken(system))
    await system.until_pool(lambda pool: condition(pool, "Ready") == "True")


async def _is_taken(system: System) -> bool:
    """The API server takes a moment to serve a kind that is new to it."""
    try:
        await system.pool(replicas=1)
    except Exception as error:  # noqa: BLE001 - whatever it says meanwhile
        print(error)
        return False
    return True


async def apply_bootstrap_pools(system: System, **pools: Any) -> None:
    data = {f"{name}.yaml": yaml.safe_dump(pool) if isinstance(pool, dict) else pool for name, pool in pools.items()}
    made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "first-pools"}, "data": data}
    await system.api.apply(made, system.namespace)


async def test_first_pools_come_from_a_config_map_follow_it_and_go_with_it(system: System) -> None:
    wrong = system.manifest("wrong", poolSize=0)
    await apply_bootstrap_pools(
        system, good=system.manifest("good", replicas=1), wrong=wrong, text="a: [b", date="a: 2026-02-30"
    )
    operator = system.operator(pools_config_map="first-pools", resync_period="1s")
    await system.until_pool(lambda pool: pool["status"]["readyReplicas"] == 1, "good")
    assert "first-pools, wrong.yaml: spec.poolSize: " in operator.log
    assert "first-pools, text.yaml: " in operator.log
    assert [pool["metadata"]["name"] for pool in await system.api.get_all("joexpools.joex.dev", system.namespace)] == [
        "good"
    ]
    await apply_bootstrap_pools(system, good=system.manifest("good", replicas=2))
    await system.until_pool(lambda pool: pool["status"]["readyReplicas"] == 2, "good")
    await system.api.delete("configmaps", "first-pools", system.namespace)
    await system.api.until("joexpools.joex.dev", "good", lambda found: found is None, system.namespace)
    await system.until_replicas()

"""The manifests of the chart, rendered by the real helm and checked by the real API server."""

from typing import Any

import pytest
import yaml

from joex_operator.api.names import SCHEME_ANNOTATION, selector
from joex_operator.api.objects import Pool, parse_pool
from joex_operator.cluster.settings import OperatorSettings
from joex_operator.decide.manifests import replica_deployment
from tests.support.cluster.api import Api
from tests.support.cluster.chart import CHART, OLDEST, Key, manifests, pod_templates, render, sets
from tests.support.cluster.connection import APPLY_PATCH, Object
from tests.support.cluster.helm import Helm, HelmError
from tests.support.cluster.namespaces import Namespaces

RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
CRDS = ["joexpools.joex.dev", "periodictasks.joex.dev"]
DEFAULT = {
    *(("CustomResourceDefinition", name) for name in CRDS),
    ("ServiceAccount", "joex-operator"),
    ("Role", "prod:joex-operator"),
    ("RoleBinding", "prod:joex-operator"),
    ("Role", "joex-operator"),
    ("RoleBinding", "joex-operator"),
    ("Deployment", "joex-operator"),
    ("Service", "joex-operator"),
    ("Lease", "joex-operator"),
    ("ConfigMap", "joex-pools"),
    ("Deployment", "joex-postgresql"),
    ("Service", "joex-postgresql"),
    ("Secret", "joex-postgresql"),
    ("Pod", "joex-test"),
    ("ValidatingAdmissionPolicy", "prod.joex-operator"),
    ("ValidatingAdmissionPolicyBinding", "prod.joex-operator"),
}
TRIAL = {("Deployment", "joex-postgresql"), ("Service", "joex-postgresql"), ("Secret", "joex-postgresql")}
POLICY = {(f"ValidatingAdmissionPolicy{part}", "prod.joex-operator") for part in ("", "Binding")}
POOL = {("ConfigMap", "joex-pools"), ("Pod", "joex-test")}
CLUSTER_WIDE = {("ClusterRole", "prod:joex-operator"), ("ClusterRoleBinding", "prod:joex-operator")}
CONSOLE = {("Deployment", "joex-console"), ("Service", "joex-console")}
OWN_NAMESPACE = {("Role", "prod:joex-operator"), ("RoleBinding", "prod:joex-operator")}
SWITCHES: dict[str, tuple[set[Key], set[Key]]] = {
    # values: what they add, what they take away
    "enabled=true": (set(), set()),  # as the dependency of another chart
    "crds.install=false": (set(), {("CustomResourceDefinition", name) for name in CRDS}),
    "admissionPolicy.enabled=false": (set(), POLICY),
    "pool.enabled=false": (set(), POOL),
    "pool.spec.app=shop.tasks:app": (set(), {("Pod", "joex-test")}),
    "database.existingSecret=shop": (set(), TRIAL),
    "database.url=postgresql://u:p@db.example/shop": ({("Secret", "joex-database")}, TRIAL),
    "postgresql.enabled=false pool.enabled=false": (set(), TRIAL | POOL),
    "postgresql.persistence.enabled=true": ({("PersistentVolumeClaim", "joex-postgresql")}, set()),
    "watchNamespaces={prod}": (set(), set()),
    "watchNamespaces={*}": (CLUSTER_WIDE, OWN_NAMESPACE),
    "serviceAccount.name=mine": ({("ServiceAccount", "mine")}, {("ServiceAccount", "joex-operator")}),
    "serviceAccount.create=false serviceAccount.name=mine": (set(), {("ServiceAccount", "joex-operator")}),
    "rbac.create=false": (set(), OWN_NAMESPACE | {("Role", "joex-operator"), ("RoleBinding", "joex-operator")}),
    "podDisruptionBudget.enabled=true": ({("PodDisruptionBudget", "joex-operator")}, set()),
    "metrics.serviceMonitor.enabled=true": (
        {("ServiceMonitor", "joex-operator"), ("PodMonitor", "joex-executors")},
        set(),
    ),
    "metrics.prometheusRule.enabled=true": ({("PrometheusRule", "joex")}, set()),
    "metrics.grafanaDashboard.enabled=true": ({("ConfigMap", "joex-dashboard")}, set()),
    "networkPolicy.enabled=true": (
        {("NetworkPolicy", name) for name in ("joex-operator", "joex-postgresql", "prod.joex-executors")},
        set(),
    ),
    "console.enabled=true": (CONSOLE, set()),
    "console.enabled=true database.existingSecret=shop pool.enabled=false": (CONSOLE, TRIAL | POOL),
    "console.enabled=true networkPolicy.enabled=true": (
        CONSOLE
        | {("NetworkPolicy", f"joex-{part}") for part in ("operator", "postgresql", "console")}
        | {("NetworkPolicy", "prod.joex-executors")},
        set(),
    ),
}
EVERYTHING = [
    *("podDisruptionBudget.enabled=true", "networkPolicy.enabled=true", "metrics.grafanaDashboard.enabled=true"),
    *("operator.replicas=2", "operator.podAnnotations.a=b", "operator.podLabels.c=d", "operator.nodeSelector.e=f"),
    *("operator.extraEnv[0].name=A", "operator.extraEnv[0].value=b", "operator.tolerations[0].operator=Exists"),
    "operator.tlsSecret=tls",
    *("operator.extraVolumes[0].name=ca", "operator.extraVolumes[0].configMap.name=db-ca"),
    *("operator.extraVolumeMounts[0].name=ca", "operator.extraVolumeMounts[0].mountPath=/etc/joex/ca"),
    "networkPolicy.executorsFrom[0].podSelector.matchLabels.app=prometheus",
    *("commonLabels.team=shop", "operator.topologySpreadConstraints[0].maxSkew=1"),
    *(
        "operator.topologySpreadConstraints[0].topologyKey=zone",
        "operator.topologySpreadConstraints[0].whenUnsatisfiable=ScheduleAnyway",
    ),
    *("operator.priorityClassName=system-cluster-critical", "imagePullSecrets[0].name=registry"),
    *("postgresql.persistence.enabled=true", "postgresql.persistence.storageClass=fast"),
    *(
        "console.enabled=true",
        "console.tokenSecret=owner",
        "console.tlsSecret=tls",
        "console.proxies={10.0.0.0/8,fd00::/8}",
    ),
    *("console.operators={ann,bob}", "console.allowFrom[0].podSelector.matchLabels.app=proxy"),
    *("console.podAnnotations.a=b", "console.podLabels.c=d", "console.nodeSelector.e=f"),
    *("console.extraEnv[0].name=A", "console.extraEnv[0].value=b", "console.tolerations[0].operator=Exists"),
    *("console.extraVolumes[0].name=ca", "console.extraVolumes[0].configMap.name=db-ca"),
    *("console.extraVolumeMounts[0].name=ca", "console.extraVolumeMounts[0].mountPath=/etc/joex/ca"),
    "console.priorityClassName=system-cluster-critical",
]
DIGITS = [
    *("nameOverride", "fullnameOverride", "pool.name", "serviceAccount.name"),
    *("database.existingSecret", "database.existingSecretKey", "console.tokenSecret"),
    *(f"{part}.{name}" for part in ("operator", "console") for name in ("tlsSecret", "priorityClassName")),
]
"""Values that are names."""
WRONG = {
    # values: the text of the one message
    "replica=2": "'replica'",
    "operator.replica=2": "at '/operator': additional properties 'replica'",
    "operator.replicas=many": "/operator/replicas",
    "operator.replicas=0": "/operator/replicas",
    "operator.pollInterval=fast": "/operator/pollInterval",
    "operator.logLevel=loud": "/operator/logLevel",
    "image.pullPolicy=Sometimes": "/image/pullPolicy",
    "image.digest=latest": "/image/digest",
    "watchNamespaces=prod": "/watchNamespaces",
    "watchNamespaces={prod*}": "/watchNamespaces/0",
    "watchNamespaces={*,prod}": "watchNamespaces: * means all namespaces; name no other beside it",
    "postgresql.enabled=maybe": "/postgresql/enabled",
    "postgresql.password=a/b": "/postgresql/password",
    "crds.install=sure": "/crds/install",
    "pool.name=Big_Pool": "/pool/name",
    "pool.spec=null": "at '/pool': missing property 'spec'",
    "pool.spec.app=tasks": "/pool/spec/app",
    "pool.spec.queue=default": "pool.spec.queue: a pool has no such field; it has app, countingScheme,",
    "pool.spec.database.secretName=a": "pool.spec.database: set database.existingSecret",
    "database.url=mysql://u:hidden@h/d": "database.url: expected postgresql://",
    "database.url=postgresql://h/d database.existingSecret=s": "database.existingSecret, database.url: set only one",
    "database.existingSecret=s postgresql.enabled=true": "postgresql.enabled: a database is set",
    "postgresql.enabled=false": "pool.enabled: the first pool needs a database",
    "serviceAccount.create=false": "serviceAccount.name: name the existing account",
    "global=null image=null": "at '': missing properties 'global', 'image'",
    "commonLabels.cost={a}": "/commonLabels/cost",
    r"commonLabels.joex\.dev/pool=a": "/commonLabels/joex.dev",  # by which others find the executors
    r"operator.podLabels.joex\.dev/pool=a": "/operator/podLabels/joex.dev",
    r"console.podLabels.joex\.dev/pool=a": "/console/podLabels/joex.dev",
    "metrics.prometheusRule.runbookUrl=docs": "/metrics/prometheusRule/runbookUrl",
    "metrics.prometheusRule.runbookUrl=https://a:\tb": "/metrics/prometheusRule/runbookUrl",
    "metrics.prometheusRule.enabled=true metrics.prometheusRule.runbookUrl=https://\a": (
        "metrics.prometheusRule.runbookUrl: error converting"
    ),
    "console.proxies={proxy}": "/console/proxies/0",
    "console.userScopes={executor}": "/console/userScopes/0",
    "console.enabled=true pool.enabled=false postgresql.enabled=false": "console.enabled: the console needs a database",
    "watchNamespaces={a,b}": "watchNamespaces: the first pool is in prod, which is not among them",
}


async def test_helm_finds_no_fault_with_the_chart(helm: Helm) -> None:
    assert "0 chart(s) failed" in await helm("lint", "--strict", CHART)


async def test_by_default_there_is_all_that_a_trial_needs(helm: Helm) -> None:
    assert (await render(helm)).keys() == DEFAULT


@pytest.mark.parametrize("values", SWITCHES)
async def test_a_switch_adds_and_removes_just_what_it_says(helm: Helm, values: str) -> None:
    added, removed = SWITCHES[values]
    assert (await render(helm, *values.split())).keys() == (DEFAULT | added) - removed


@pytest.mark.parametrize("values", WRONG)
async def test_a_wrong_value_is_refused_with_one_message_that_names_it(helm: Helm, values: str) -> None:
    with pytest.raises(HelmError) as refused:
        await render(helm, *values.split(" "))
    message = str(refused.value).partition("failed:\n")[2]
    assert WRONG[values] in message
    assert message.count("- at '") + message.count("execution error") == 1, message
    assert "hidden" not in message  # a password in a URL


async def test_the_definitions_are_those_of_the_operator_and_outlive_the_release(helm: Helm) -> None:
    rendered = await render(helm)
    for name in CRDS:
        definition = rendered["CustomResourceDefinition", name]
        assert definition["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
        del definition["metadata"]["labels"]
        assert definition == yaml.safe_load((CHART.parents[1] / "crds" / f"{name}.yaml").read_text())


FOR_POOLS = {
    ("joex.dev", "joexpools"): "list watch",
    ("joex.dev", "periodictasks"): "list watch",
    ("joex.dev", "joexpools/status"): "patch",
    ("joex.dev", "periodictasks/status"): "patch",
    ("apps", "deployments"): "get list watch create patch delete",
    ("", "pods"): "list watch",
    ("", "secrets"): "get",
    ("", "events"): "create patch",
    ("", "namespaces"): "get",
    ("coordination.k8s.io", "leases"): "create",
    ("coordination.k8s.io", "leases", "joex.dev"): "get update",
}
TO_LEAD = {
    ("coordination.k8s.io", "leases"): "create",
    ("coordination.k8s.io", "leases", "joex-operator"): "get update",
}
FOR_THE_FIRST_POOL = {
    ("", "configmaps", "joex-pools"): "get",
    ("joex.dev", "joexpools", "default"): "create patch",
}


async def test_the_operator_has_these_rights_in_the_namespace_of_its_release_and_no_other(helm: Helm) -> None:
    rendered = await render(helm)
    assert _rights(rendered) == {("Role", "prod"): FOR_POOLS, ("Role", ""): TO_LEAD | FOR_THE_FIRST_POOL}
    assert _watched(rendered) == "prod"


async def test_the_operator_of_all_namespaces_has_its_rights_in_the_whole_cluster(helm: Helm) -> None:
    rendered = await render(helm, "watchNamespaces={*}")
    assert _rights(rendered) == {("ClusterRole", ""): FOR_POOLS, ("Role", ""): TO_LEAD | FOR_THE_FIRST_POOL}
    assert _watched(rendered) == ""


async def test_the_operator_of_some_namespaces_has_rights_in_these_alone(helm: Helm) -> None:
    text = await manifests(helm, "watchNamespaces={a,b}", "pool.enabled=false")
    roles = [found for found in yaml.safe_load_all(text) if found and "Role" in found["kind"]]
    places = {(found["kind"], found["metadata"].get("namespace", "the release's")) for found in roles}
    assert 'value: "a,b"' in text  # the operator's settings
    assert places == {(kind, place) for kind in ("Role", "RoleBinding") for place in ("a", "b", "the release's")}


async def test_without_a_first_pool_the_operator_may_make_none(helm: Helm) -> None:
    assert _rights(await render(helm, "pool.enabled=false"))["Role", ""] == TO_LEAD


def _watched(objects: dict[Key, Object]) -> str:
    """The namespaces that the operator's settings name."""
    [container] = pod_templates(objects)["joex-operator"]["spec"]["containers"]
    [value] = [entry["value"] for entry in container["env"] if entry["name"] == "JOEX_OPERATOR_NAMESPACES"]
    return str(value)


def _rights(objects: dict[Key, Object]) -> dict[Any, dict[Any, str]]:
    """Verbs by group, resource and, if given, name; by role and namespace. Checks that each role is bound."""
    found: dict[Any, dict[Any, str]] = {}
    for (kind, name), role in objects.items():
        if kind not in ("Role", "ClusterRole"):
            continue
        place = found.setdefault((kind, role["metadata"].get("namespace", "")), {})
        for rule in role["rules"]:
            assert rule.keys() <= {"apiGroups", "resources", "resourceNames", "verbs"}
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    key = (group, resource, *rule.get("resourceNames", []))
                    assert key not in place
                    place[key] = " ".join(rule["verbs"])
        binding = objects[f"{kind}Binding", name]
        assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) == (kind, name)
        assert binding["metadata"].get("namespace") == role["metadata"].get("namespace")
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "joex-operator", "namespace": "prod"}]
    return found


async def test_the_first_pool_is_one_that_the_operator_understands(helm: Helm) -> None:
    values = (
        "pool.name=shop",
        "pool.spec.queues={a,b}",
        "pool.spec.logBufferSize=1000000",
        "imagePullSecrets[0].name=r",
    )
    rendered = await render(helm, *values, "pool.spec.template.spec.nodeSelector.disk=fast")
    pool = _pool(rendered)
    assert (pool.name, pool.namespace, pool.spec.queues, pool.spec.log_buffer_size) == (
        "shop",
        "prod",
        ["a", "b"],
        10**6,
    )
    assert (pool.spec.database.secret_name, pool.spec.database.secret_key) == ("joex-postgresql", "url")
    assert pool.spec.template == {"spec": {"nodeSelector": {"disk": "fast"}, "imagePullSecrets": [{"name": "r"}]}}


def _pool(objects: dict[Key, Object]) -> Pool:
    [text] = objects["ConfigMap", "joex-pools"]["data"].values()
    return parse_pool(yaml.safe_load(text))


async def test_the_database_of_the_first_pool_is_the_secret_that_was_named(helm: Helm) -> None:
    rendered = await render(helm, "database.existingSecret=mine", "database.existingSecretKey=dsn")
    database = _pool(rendered).spec.database
    assert (database.secret_name, database.secret_key) == ("mine", "dsn")
    [url] = rendered["Pod", "joex-test"]["spec"]["containers"][0]["env"]
    assert url["valueFrom"]["secretKeyRef"] == {"name": "mine", "key": "dsn"}


async def test_the_operator_starts_anew_when_its_first_pool_changes_and_for_no_monitoring(helm: Helm) -> None:
    plain = pod_templates(await render(helm))["joex-operator"]
    monitored = pod_templates(await render(helm, "metrics.serviceMonitor.enabled=true"))["joex-operator"]
    changed = pod_templates(await render(helm, "pool.spec.poolSize=4"))["joex-operator"]
    assert monitored == plain
    assert changed["metadata"]["annotations"] != plain["metadata"]["annotations"]
    assert changed["spec"] == plain["spec"]


async def test_the_operator_is_told_where_it_is_and_what_to_watch(helm: Helm) -> None:
    values = ("watchNamespaces={prod}", "image.tag=v2", "operator.migrate=false", "operator.pollInterval=1m")
    [container] = pod_templates(await render(helm, *values))["joex-operator"]["spec"]["containers"]
    given = {entry["name"].removeprefix("JOEX_OPERATOR_"): entry.get("value") for entry in container["env"]}
    assert given == {
        "IDENTITY": None,
        "NAMESPACE": None,
        "NAMESPACES": "prod",
        "IMAGE": "joex:v2",
        "HTTP_ADDRESS": "0.0.0.0:7879",
        "LEASE_NAME": "joex-operator",
        "POOLS_CONFIG_MAP": "joex-pools",
        "POLL_INTERVAL": "1m",
        "RESYNC_PERIOD": "5m",
        "STRICT_X509": "true",
        "MIGRATE": "false",
        "LOG_FORMAT": "json",
        "LOG_LEVEL": "info",
    }
    assert (container["command"], container["args"], container["image"]) == (["joex"], ["operator"], "joex:v2")


async def test_with_a_secret_the_operator_serves_https_and_the_kubelet_and_prometheus_ask_for_it(
    helm: Helm, monkeypatch: pytest.MonkeyPatch
) -> None:
    rendered = await render(helm, "operator.tlsSecret=operator-tls", "metrics.serviceMonitor.enabled=true")
    spec = pod_templates(rendered)["joex-operator"]["spec"]
    [container] = spec["containers"]
    for entry in container["env"]:
        monkeypatch.setenv(entry["name"], entry.get("value", "from the pod"))
    settings, [mount] = OperatorSettings(), [one for one in container["volumeMounts"] if one["name"] == "tls"]
    files = (settings.http_tls_certificate, settings.http_tls_key)
    assert files == tuple(f"{mount['mountPath']}/{name}" for name in ("tls.crt", "tls.key"))
    assert {"name": "tls", "secret": {"secretName": "operator-tls"}} in spec["volumes"]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["scheme"] == "HTTPS"
    [endpoint] = rendered["ServiceMonitor", "joex-operator"]["spec"]["endpoints"]
    assert (endpoint["scheme"], endpoint["tlsConfig"]) == ("https", {"insecureSkipVerify": True})


async def test_a_digest_is_taken_instead_of_the_tag(helm: Helm) -> None:
    digest = f"sha256:{'0' * 64}"
    [container] = pod_templates(await render(helm, f"image.digest={digest}"))["joex-operator"]["spec"]["containers"]
    assert container["image"] == f"joex@{digest}"


async def test_a_global_registry_comes_before_all_images(helm: Helm) -> None:
    rendered = await render(helm, "console.enabled=true", "global.imageRegistry=mirror.example:5000/")
    images = {
        name: template["spec"]["containers"][0]["image"].removeprefix("mirror.example:5000/")
        for name, template in pod_templates(rendered).items()
    }
    assert images.pop("joex-postgresql") == "postgres:18"
    assert len(images) == 3
    assert {image.partition(":")[0] for image in images.values()} == {"joex"}
    [container] = pod_templates(rendered)["joex-operator"]["spec"]["containers"]
    [of_executors] = [one["value"] for one in container["env"] if one["name"] == "JOEX_OPERATOR_IMAGE"]
    assert of_executors == container["image"]


async def test_common_labels_are_on_all_objects_and_leave_selectors_and_the_labels_of_the_chart(helm: Helm) -> None:
    values = ("commonLabels.team=shop", r"commonLabels.app\.kubernetes\.io/name=other", "operator.podLabels.team=ops")
    all_of_it = ("console.enabled=true", "metrics.serviceMonitor.enabled=true", "metrics.grafanaDashboard.enabled=true")
    plain, rendered = await render(helm, *all_of_it), await render(helm, *all_of_it, *values)
    assert plain.keys() == rendered.keys()
    for key, found in rendered.items():
        assert found["metadata"]["labels"] == {**plain[key]["metadata"]["labels"], "team": "shop"}
        if found["kind"] in ("Deployment", "Service"):
            assert found["spec"]["selector"] == plain[key]["spec"]["selector"]
    of_pods = {name: template["metadata"]["labels"].get("team") for name, template in pod_templates(rendered).items()}
    # A label that an upgrade changes would replace the pod of the trial PostgreSQL.
    assert of_pods == {"joex-operator": "ops", "joex-console": "shop", "joex-test": "shop", "joex-postgresql": None}


async def test_security_contexts_are_those_of_all_pods_and_postgresql_keeps_its_user(helm: Helm) -> None:
    values = ("podSecurityContext.runAsUser=7", "securityContext.readOnlyRootFilesystem=false")
    templates = pod_templates(await render(helm, "console.enabled=true", *values))
    users = {name: template["spec"]["securityContext"].pop("runAsUser") for name, template in templates.items()}
    assert users == {"joex-operator": 7, "joex-console": 7, "joex-test": 7, "joex-postgresql": 999}
    for template in templates.values():
        assert template["spec"]["securityContext"]["runAsNonRoot"] is True
        [container] = template["spec"]["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": False,
        }


async def test_pods_that_can_lose_their_volumes_hold_up_no_autoscaler(helm: Helm) -> None:
    for name, template in pod_templates(await render(helm, "console.enabled=true")).items():
        lost = [volume["name"] for volume in template["spec"].get("volumes", []) if "emptyDir" in volume]
        annotations = template["metadata"].get("annotations", {})
        said = annotations.get("cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes")
        assert said == (",".join(lost) if lost and name != "joex-postgresql" else None)


async def test_the_account_of_the_operator_is_the_one_that_is_named(helm: Helm) -> None:
    rendered = await render(helm, "serviceAccount.create=false", "serviceAccount.name=mine")
    assert pod_templates(rendered)["joex-operator"]["spec"]["serviceAccountName"] == "mine"
    assert {one["name"] for one in rendered["RoleBinding", "joex-operator"]["subjects"]} == {"mine"}


async def test_alerts_point_to_the_page_of_the_docs_that_says_what_to_do(helm: Helm) -> None:
    url = "https://docs.example/joex/metrics.html"
    rendered = await render(helm, "metrics.prometheusRule.enabled=true", f"metrics.prometheusRule.runbookUrl={url}")
    for group in rendered["PrometheusRule", "joex"]["spec"]["groups"]:
        for rule in group["rules"]:
            if "alert" in rule:
                assert rule["annotations"]["runbook_url"] == f"{url}#{rule['alert'].lower()}"


async def test_the_monitors_find_the_operator_and_all_executors(helm: Helm) -> None:
    rendered = await render(helm, "metrics.serviceMonitor.enabled=true")
    wanted = rendered["ServiceMonitor", "joex-operator"]["spec"]["selector"]["matchLabels"]
    service = rendered["Service", "joex-operator"]
    assert wanted.items() <= service["metadata"]["labels"].items()
    [endpoint], [port] = rendered["ServiceMonitor", "joex-operator"]["spec"]["endpoints"], service["spec"]["ports"]
    assert (endpoint["port"], endpoint["honorLabels"]) == (port["name"], True)
    executors = rendered["PodMonitor", "joex-executors"]["spec"]
    [wanted] = executors["selector"]["matchExpressions"]
    assert (wanted["key"], wanted["operator"]) == (selector("any").partition("=")[0], "Exists")
    assert executors["namespaceSelector"] == {"matchNames": ["prod"]}
    [endpoint] = executors["podMetricsEndpoints"]
    executor = replica_deployment(_pool(rendered), 0, "joex", "prod.1")["spec"]["template"]["spec"]["containers"][0]
    [port] = executor["ports"]
    assert endpoint["port"] == port["name"]
    of_pool, of_scheme = endpoint["relabelings"]
    assert of_pool == {"sourceLabels": ["__meta_kubernetes_pod_label_joex_dev_pool"], "targetLabel": "pool"}
    annotation = SCHEME_ANNOTATION.translate(str.maketrans("./", "__"))
    assert of_scheme["sourceLabels"] == [f"__meta_kubernetes_pod_annotation_{annotation}"]
    assert of_scheme["targetLabel"] == "__scheme__"
    everywhere = await render(helm, "metrics.serviceMonitor.enabled=true", "watchNamespaces={*}")
    assert everywhere["PodMonitor", "joex-executors"]["spec"]["namespaceSelector"] == {"any": True}


async def test_other_pods_reach_no_port_of_an_executor_but_its_http(helm: Helm) -> None:
    peer = "networkPolicy.executorsFrom[0].podSelector.matchLabels.app=prometheus"
    rendered = await render(helm, "networkPolicy.enabled=true", peer)
    executor = replica_deployment(_pool(rendered), 0, "joex", "prod.1")["spec"]["template"]
    spec = rendered["NetworkPolicy", "prod.joex-executors"]["spec"]
    [wanted] = spec["podSelector"]["matchExpressions"]
    assert (wanted["key"], wanted["operator"]) == (selector("any").partition("=")[0], "Exists")
    assert wanted["key"] in executor["metadata"]["labels"]
    [port] = executor["spec"]["containers"][0]["ports"]
    assert spec["ingress"] == [
        {
            "ports": [{"port": port["name"], "protocol": "TCP"}],
            "from": [{"podSelector": {"matchLabels": {"app": "prometheus"}}}],
        }
    ]


async def test_each_watched_namespace_has_a_network_policy_for_its_executors(helm: Helm) -> None:
    async def places(*values: str) -> list[str]:
        text = await manifests(helm, "networkPolicy.enabled=true", "pool.enabled=false", *values)
        found = [one["metadata"] for one in yaml.safe_load_all(text) if one and one["kind"] == "NetworkPolicy"]
        return [one["namespace"] for one in found if one["name"] == "prod.joex-executors"]

    assert await places("watchNamespaces={a,b}") == ["a", "b"]
    assert await places("watchNamespaces={*}") == ["prod"]


async def test_names_of_digits_are_names_and_no_numbers(helm: Helm) -> None:
    def numbers(found: object) -> list[object]:
        inner = found.values() if isinstance(found, dict) else found if isinstance(found, list) else []
        return [found] if found == 123 else [one for part in inner for one in numbers(part)]

    async def rendered(*switches: str) -> list[Object]:
        on = sets(*(f"{one}.enabled=true" for one in switches))
        given = ["--set-string", ",".join(f"{name}=123" for name in DIGITS)]
        text = await helm("template", "123", CHART, "--kube-version", OLDEST, *on, *given, namespace="123")
        return [one for one in yaml.safe_load_all(text) if one]

    found = await rendered("networkPolicy", "console", "metrics.prometheusRule", "metrics.serviceMonitor")
    [pools] = [one for one in found if one["metadata"]["name"] == "123-pools"]
    assert numbers([*found, yaml.safe_load(pools["data"]["123.yaml"])]) == []


async def test_rules_and_dashboard_come_whole_out_of_their_files(helm: Helm) -> None:
    rendered = await render(helm, "metrics.prometheusRule.enabled=true", "metrics.grafanaDashboard.enabled=true")
    rules = yaml.safe_load((CHART / "files" / "prometheus" / "rules.yaml").read_text())
    assert rendered["PrometheusRule", "joex"]["spec"] == rules
    dashboard = rendered["ConfigMap", "joex-dashboard"]
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert dashboard["data"] == {"joex.json": (CHART / "files" / "grafana" / "joex.json").read_text()}


async def test_long_names_stay_within_what_labels_and_services_may_have(helm: Helm) -> None:
    rendered = await render(helm, release="r" * 53)
    assert max(len(name) for kind, name in rendered if kind in ("Service", "Deployment")) <= 63


@pytest.mark.parametrize("values", [[], EVERYTHING], ids=["default", "everything"])
async def test_the_api_server_takes_everything_and_the_pods_are_restricted(
    helm: Helm, api: Api, namespaces: Namespaces, values: list[str]
) -> None:
    namespace = await namespaces.make(RESTRICTED)
    rendered = await render(helm, *values, namespace=namespace)
    for manifest in rendered.values():
        await _try(api, manifest, namespace)
    # The API server admits pods of an existing account, and of a priority that the namespace allows.
    await api.create(rendered["ServiceAccount", "joex-operator"], namespace)
    for name, template in pod_templates(rendered).items():
        template["spec"].pop("priorityClassName", None)
        metadata = {**template["metadata"], "name": name}
        await _try(api, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}, namespace)


async def _try(api: Api, manifest: Object, namespace: str) -> None:
    """Check by a dry run that the API server accepts this, without an unknown field."""
    resource, namespace_, name = await api._placed(manifest, namespace)
    options = {"dryRun": "All", "fieldValidation": "Strict", "fieldManager": "joex-tests", "force": "true"}
    await api.request("PATCH", resource.path(namespace_, name), manifest, media=APPLY_PATCH, **options)

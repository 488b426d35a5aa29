"""The Deployment of a replica: all of it, its settings, and the fields that a template may change."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from joex.config import load_settings
from joex_operator.api.objects import SpecError
from joex_operator.api.spec import JoexPoolSpec
from joex_operator.decide.manifests import deployment as module
from joex_operator.decide.manifests import replica_deployment, template_hash
from joex_operator.decide.manifests.environment import literal
from tests.unit.joex_operator.builders import pool

TMP = "/tmp"  # noqa: S108 - the pod's own
HOME = "prod.3f2a9c1e"
MOVABLE = {"cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes": "tmp"}
LABELS = {
    "app.kubernetes.io/name": "joex",
    "app.kubernetes.io/component": "executor",
    "app.kubernetes.io/instance": "documents",
    "app.kubernetes.io/managed-by": "joex-operator",
    "joex.dev/pool": "documents",
    "joex.dev/replica": "documents-3",
}


def deployment(index=3, image="joex:1", **spec):
    return replica_deployment(pool(**spec), index, image, HOME)


def pod(**spec):
    return deployment(**spec)["spec"]["template"]["spec"]


def container(**spec):
    return pod(**spec)["containers"][0]


def variables(**spec):
    return {variable["name"]: variable.get("value") for variable in container(**spec)["env"]}


def refused(template):
    with pytest.raises(SpecError) as caught:
        deployment(template=template)
    return str(caught.value)


def test_an_executor_requests_what_an_idle_one_needs_unless_the_pool_says_anything_of_its_resources():
    requests = {"requests": {"cpu": "50m", "memory": "128Mi"}}
    assert container()["resources"] == requests
    for given in ({"limits": {"memory": "64Mi"}}, {"requests": {"cpu": "1"}}):
        one = {"spec": {"containers": [{"name": "executor", "resources": given}, {"name": "beside", "image": "x"}]}}
        executor, beside = pod(template=one)["containers"]
        assert executor["resources"] == given
        assert "resources" not in beside


def test_the_deployment_of_a_replica():
    assert deployment() == {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": "documents-3",
            "namespace": "prod",
            "labels": LABELS,
            "annotations": {"joex.dev/template-hash": template_hash(pool(), "joex:1", HOME), "joex.dev/database": ""},
            "ownerReferences": [
                {
                    "apiVersion": "joex.dev/v1alpha1",
                    "kind": "JoexPool",
                    "name": "documents",
                    "uid": "pool-uid",
                    "controller": True,
                }
            ],
        },
        "spec": {
            "replicas": 1,
            "revisionHistoryLimit": 0,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": {"joex.dev/pool": "documents", "joex.dev/replica": "documents-3"}},
            "template": {
                "metadata": {"labels": LABELS, "annotations": MOVABLE},
                "spec": {
                    "automountServiceAccountToken": False,
                    "enableServiceLinks": False,
                    "terminationGracePeriodSeconds": 3630,
                    "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
                    "containers": [
                        {
                            "name": "executor",
                            "image": "joex:1",
                            "command": ["joex"],
                            "args": ["executor", "--app", "shop.tasks:app"],
                            "env": [
                                {"name": "JOEX_APP_ID", "value": "prod.3f2a9c1e/documents-3"},
                                *(
                                    {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
                                    for name, path in (
                                        ("JOEX_POD_NAME", "metadata.name"),
                                        ("JOEX_POD_NAMESPACE", "metadata.namespace"),
                                        ("JOEX_POD_UID", "metadata.uid"),
                                    )
                                ),
                                {
                                    "name": "JOEX_DATABASE_URL",
                                    "valueFrom": {"secretKeyRef": {"name": "joex-db", "key": "url"}},
                                },
                                {"name": "JOEX_QUEUES", "value": "default"},
                                {"name": "JOEX_POOL_SIZE", "value": "2"},
                                {"name": "JOEX_COUNTING_SCHEME", "value": "4,1"},
                                {"name": "JOEX_RETRIES", "value": "5"},
                                {"name": "JOEX_RETRY_DELAY", "value": "1m"},
                                {"name": "JOEX_MOST_LOSSES", "value": "5"},
                                {"name": "JOEX_LOG_BUFFER_SIZE", "value": "500"},
                                {"name": "JOEX_WAKEUP_PERIOD", "value": "30m"},
                                {"name": "JOEX_LEASE", "value": "6s"},
                                {"name": "JOEX_OUTAGE_PATIENCE", "value": "1m"},
                                {"name": "JOEX_SIGNAL_TIMEOUT", "value": "1h"},
                                {"name": "JOEX_HTTP_ADDRESS", "value": "0.0.0.0:7878"},
                                {"name": "JOEX_LOG_FORMAT", "value": "json"},
                                {"name": "JOEX_STARTUP_WAIT", "value": "4m"},
                            ],
                            "ports": [{"name": "http", "containerPort": 7878, "protocol": "TCP"}],
                            "startupProbe": {
                                "httpGet": {"path": "/healthz", "port": "http"},
                                "periodSeconds": 1,
                                "failureThreshold": 300,
                                "timeoutSeconds": 5,
                                "initialDelaySeconds": 2,
                            },
                            "livenessProbe": {
                                "httpGet": {"path": "/healthz", "port": "http"},
                                "periodSeconds": 15,
                                "failureThreshold": 20,
                                "timeoutSeconds": 10,
                            },
                            "readinessProbe": {
                                "httpGet": {"path": "/readyz", "port": "http"},
                                "periodSeconds": 5,
                                "failureThreshold": 2,
                                "timeoutSeconds": 5,
                            },
                            "lifecycle": {"preStop": {"sleep": {"seconds": 1}}},
                            "securityContext": {
                                "allowPrivilegeEscalation": False,
                                "capabilities": {"drop": ["ALL"]},
                                "readOnlyRootFilesystem": True,
                            },
                            "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}},
                            "terminationMessagePolicy": "FallbackToLogsOnError",
                            "volumeMounts": [{"name": "tmp", "mountPath": TMP}],
                        }
                    ],
                    "volumes": [{"name": "tmp", "emptyDir": {}}],
                },
            },
        },
    }


def test_executors_with_a_certificate_are_probed_and_scraped_over_https():
    name = "JOEX_HTTP_TLS_CERTIFICATE"
    container = {"name": "executor", "env": [{"name": name, "value": "/etc/tls/tls.crt"}]}
    own = {**container, "livenessProbe": {"httpGet": {"scheme": "HTTP"}}}
    for given, liveness in ((container, "HTTPS"), (own, "HTTP")):
        one = pool(template={"spec": {"containers": [given]}})
        template = replica_deployment(one, 0, "joex:1", HOME)["spec"]["template"]
        assert template["metadata"]["annotations"]["joex.dev/scheme"] == "https"
        [found] = template["spec"]["containers"]
        assert (found["startupProbe"]["httpGet"]["scheme"], found["livenessProbe"]["httpGet"]["scheme"]) == (
            "HTTPS",
            liveness,
        )


def test_every_setting_of_a_pool_reaches_its_executors(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given: dict[str, Any] = {
        "queues": ["mail", "ingest"],
        "poolSize": 7,
        "countingScheme": "3,2",
        "retries": 9,
        "retryDelay": "1h30m",
        "mostLosses": 2,
        "timeout": "10m",
        "logBufferSize": 50,
        "wakeupPeriod": "5m",
        "lease": "1500ms",
        "outagePatience": "3m",
        "drain": {"timeout": "2m", "onTimeout": "Terminate"},
    }
    for name, value in variables(**given).items():
        if value is not None:
            monkeypatch.setenv(name, value)
    settings, spec = load_settings(), pool(**given).spec
    assert settings.app_id == "prod.3f2a9c1e/documents-3"
    assert settings.drain_timeout == settings.signal_timeout == timedelta(minutes=2)
    for name in ("queues", "pool_size", "counting_scheme", "retries", "retry_delay", "most_losses", "timeout", "lease"):
        assert getattr(settings, name) == getattr(spec, name), name
    assert settings.log_buffer_size == spec.log_buffer_size
    assert settings.wakeup_period == spec.wakeup_period
    assert settings.outage_patience == spec.outage_patience


def test_an_executor_that_is_to_wait_has_no_limit_of_its_own():
    assert "JOEX_DRAIN_TIMEOUT" not in variables(drain={"timeout": "2m", "onTimeout": "Wait"})


def test_a_pod_has_the_time_of_a_drain_and_a_little_more_to_leave():
    assert pod(drain={"timeout": "90s"})["terminationGracePeriodSeconds"] == 120
    assert pod(drain={"timeout": "100ms"})["terminationGracePeriodSeconds"] == 31


@pytest.mark.parametrize(
    ("grace", "given"),
    [(110, "1m20s"), (20, "0s"), (-(10**15), "0s"), (None, "0s"), (7200, "1h"), (10**15, "1h"), ("x", "1h")],
)
def test_an_executor_gives_its_jobs_back_within_the_grace_period_of_the_template(grace, given):
    template = {"spec": {"terminationGracePeriodSeconds": grace}}
    assert variables(drain={"timeout": "1h"}, template=template)["JOEX_SIGNAL_TIMEOUT"] == given


def test_the_pools_own_image_stands_above_the_operators():
    assert container(image="shop:7")["image"] == "shop:7"


def test_text_is_not_taken_for_a_variable_by_kubernetes():
    assert variables(queues=["$(HOME)"])["JOEX_QUEUES"] == "$$(HOME)"
    assert literal("a$b") == "a$b"


def test_the_hash_is_the_same_for_all_replicas_and_each_time():
    assert template_hash(pool(), "joex:1", HOME) == template_hash(pool(), "joex:1", HOME)
    hashes = {deployment(index)["metadata"]["annotations"]["joex.dev/template-hash"] for index in range(3)}
    assert len(hashes) == 1


@pytest.mark.parametrize(
    "spec",
    [
        {"poolSize": 3},
        {"image": "shop:7"},
        {"queues": ["mail"]},
        {"drain": {"timeout": "2h"}},
        {"drain": {"onTimeout": "Terminate"}},
        {"template": {"metadata": {"annotations": {"restarted": "today"}}}},
        {"template": {"spec": {"nodeSelector": {"disk": "fast"}}}},
    ],
)
def test_the_hash_changes_with_whatever_changes_the_pods(spec):
    assert template_hash(pool(**spec), "joex:1", HOME) != template_hash(pool(), "joex:1", HOME)


def test_the_hash_changes_with_the_operators_image_where_the_pool_has_none():
    assert template_hash(pool(), "joex:2", HOME) != template_hash(pool(), "joex:1", HOME)
    assert template_hash(pool(image="shop:7"), "joex:2", HOME) == template_hash(pool(image="shop:7"), "joex:1", HOME)


@pytest.mark.parametrize(
    "spec", [{"replicas": 3}, {"suspend": True}, {"scaling": {"maxReplicas": 3}}, {"rollout": {"maxUnavailable": 2}}]
)
def test_the_hash_does_not_change_with_what_leaves_the_pods_alone(spec):
    assert template_hash(pool(**spec), "joex:1", HOME) == template_hash(pool(), "joex:1", HOME)


OWN_PARTS = {
    "requests": ("_REQUESTS", {"cpu": "1"}),
    "security": ("_RESTRICTED", {}),
    "annotations": ("_MOVABLE", {"new": "yes"}),
    "probes": ("_probe", lambda path, **_: {"exec": {"command": ["joex", path]}}),
    "environment": ("environment", lambda _pool, index, _home: [{"name": "JOEX_NEW", "value": str(index)}]),
}


@pytest.mark.parametrize(("name", "changed"), OWN_PARTS.values(), ids=list(OWN_PARTS))
def test_a_version_of_the_operator_that_adds_something_else_to_the_pods_replaces_none(monkeypatch, name, changed):
    given: dict[str, Any] = {"image": "shop:7", "template": {"spec": {"nodeSelector": {"disk": "fast"}}}}
    before = deployment(**given)
    monkeypatch.setattr(module, name, changed)
    after = deployment(**given)
    assert after["spec"] != before["spec"]
    assert after["metadata"]["annotations"] == before["metadata"]["annotations"]


def test_a_version_of_the_crd_that_has_another_field_replaces_no_executor():
    class NewerSpec(JoexPoolSpec):
        colour: str = "red"

    def newer(**more):
        given = pool(image="shop:7", retries=9).spec.model_dump(exclude_defaults=True)
        return replace(pool(), spec=NewerSpec.model_validate({**given, **more}))

    assert template_hash(newer(), "joex:1", HOME) == template_hash(pool(image="shop:7", retries=9), "joex:1", HOME)
    assert template_hash(newer(colour="blue"), "joex:1", HOME) != template_hash(newer(), "joex:1", HOME)


def test_the_hash_stays_from_version_to_version():
    """Another one replaces every executor with the upgrade: only a change in what users mean is worth that."""
    one = pool(queues=["mail"], drain={"timeout": "2m"}, template={"metadata": {"annotations": {"restarted": "today"}}})
    assert template_hash(one, "joex:1", HOME, "0123") == "a1b00a262549a7c0"


def test_a_template_adds_what_is_not_there_and_merges_what_is():
    merged = deployment(
        template={
            "metadata": {"labels": {"team": "shop"}, "annotations": {"scrape": "yes"}},
            "spec": {
                "nodeSelector": {"disk": "fast"},
                "securityContext": {"runAsUser": 1000},
                "containers": [
                    {"name": "executor", "resources": {"requests": {"cpu": "1"}}},
                    {"name": "proxy", "image": "proxy:1"},
                ],
                "tolerations": [{"key": "batch"}],
            },
        }
    )["spec"]["template"]
    assert merged["metadata"] == {"labels": {**LABELS, "team": "shop"}, "annotations": {**MOVABLE, "scrape": "yes"}}
    assert merged["spec"]["securityContext"] == {
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
        "runAsUser": 1000,
    }
    executor, proxy = merged["spec"]["containers"]
    assert executor == {**container(), "resources": {"requests": {"cpu": "1"}}}
    assert proxy == {"name": "proxy", "image": "proxy:1"}
    assert merged["spec"]["tolerations"] == [{"key": "batch"}]


def executor_with(**given):
    return {"spec": {"containers": [{"name": "executor", **given}]}}


def test_a_template_replaces_a_variable_as_a_whole_and_keeps_the_others():
    source = {"name": "JOEX_LEASE", "valueFrom": {"configMapKeyRef": {"name": "shop", "key": "lease"}}}
    env = container(template=executor_with(env=[source, {"name": "JOEX_RETENTION", "value": "1d"}]))["env"]
    assert source in env
    assert {"name": "JOEX_RETENTION", "value": "1d"} in env
    assert sum(variable["name"] == "JOEX_LEASE" for variable in env) == 1
    assert len(env) == len(container()["env"]) + 1


def test_a_template_replaces_a_volume_as_a_whole_and_finds_mounts_by_path():
    claim = {"name": "tmp", "persistentVolumeClaim": {"claimName": "scratch"}}
    merged = pod(
        template={
            "spec": {
                "volumes": [claim, {"name": "models", "emptyDir": {}}],
                "containers": [
                    {
                        "name": "executor",
                        "volumeMounts": [{"mountPath": TMP, "subPath": "t"}, {"mountPath": "/m", "name": "models"}],
                    }
                ],
            }
        }
    )
    assert merged["volumes"] == [claim, {"name": "models", "emptyDir": {}}]
    assert merged["containers"][0]["volumeMounts"] == [
        {"name": "tmp", "mountPath": TMP, "subPath": "t"},
        {"mountPath": "/m", "name": "models"},
    ]


def test_null_takes_something_away():
    assert "livenessProbe" not in container(template=executor_with(livenessProbe=None))


@pytest.mark.parametrize(
    ("template", "path"),
    [
        ({"metadata": None}, "metadata"),
        ({"metadata": {"labels": None}}, "metadata.labels"),
        ({"spec": None}, "spec"),
        ({"spec": {"containers": None}}, "spec.containers"),
        (executor_with(env=None), "spec.containers[0].env"),
        (executor_with(command=None), "spec.containers[0].command"),
        (executor_with(args=None), "spec.containers[0].args"),
        (executor_with(image=None), "spec.containers[0].image"),
    ],
)
def test_null_does_not_take_away_what_an_executor_needs(template, path):
    assert refused(template) == f"spec.template.{path}: null would remove what an executor needs; leave the field out"


def test_a_probe_changes_by_the_field():
    probe = container(template=executor_with(livenessProbe={"failureThreshold": 100}))["livenessProbe"]
    assert probe == {**container()["livenessProbe"], "failureThreshold": 100}


def test_a_template_leaves_what_was_built_as_it_was():
    before = deployment()
    deployment(template=executor_with(env=[{"name": "JOEX_LEASE", "value": "1s"}], image="other"))
    assert deployment() == before


@pytest.mark.parametrize("metadata", [{"annotations": 5}, {"labels": "x"}])
def test_labels_and_annotations_that_are_none_are_named(metadata):
    assert refused({"metadata": metadata}).startswith(f"spec.template.metadata.{next(iter(metadata))}: ")


@pytest.mark.parametrize("name", ["JOEX_APP_ID", "JOEX_DATABASE_URL", "JOEX_POD_UID", "JOEX_QUEUES", "JOEX_POOL_SIZE"])
def test_a_template_may_not_change_what_the_operator_reckons_with(name):
    message = refused(executor_with(env=[{"name": name, "value": "x"}]))
    assert message == f"spec.template.spec.containers[executor].env: {name} follows the spec"


@pytest.mark.parametrize("variable", [{"name": "A=B", "value": "x"}, {"name": "A", "value": "\0"}])
def test_a_template_has_no_variable_that_no_process_can_have(variable):
    said = f"spec.template.spec.containers[executor].env: {variable['name']!r}: no variable can have "
    assert refused(executor_with(env=[variable])).startswith(said)


def test_another_container_may_have_any_variable():
    sidecar = {"name": "proxy", "env": [{"name": "JOEX_APP_ID", "value": "x"}]}
    assert pod(template={"spec": {"containers": [sidecar]}})["containers"][1] == sidecar


def test_a_template_may_not_change_the_operators_own_labels():
    message = refused({"metadata": {"labels": {"joex.dev/pool": "other"}}})
    assert message == "spec.template.metadata.labels: joex.dev/pool is the operator's own"


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ({"spec": []}, "spec.template.spec: expected an object"),
        ({"metadata": "x"}, "spec.template.metadata: expected an object"),
        ({"spec": {"containers": {}}}, "spec.template.spec.containers: expected a list of objects"),
        ({"spec": {"containers": [{"image": "x"}]}}, "spec.template.spec.containers[0].name: required"),
        (executor_with(env=["A=b"]), "spec.template.spec.containers[0].env: expected a list of objects"),
        (executor_with(env=[{"value": "b"}]), "spec.template.spec.containers[0].env[0].name: required"),
    ],
)
def test_a_template_of_the_wrong_form_is_refused_by_its_path(template, expected):
    assert refused(template).startswith(expected)

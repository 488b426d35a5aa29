"""The objects: defaults, and one line for each error."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from joex.config import Settings
from joex.core.priority_turns import CountingScheme
from joex_operator.api.objects import SpecError, parse_periodic, parse_pool
from joex_operator.api.spec import JoexPoolSpec
from tests.unit.joex_operator.builders import manifest

SHARED = set(JoexPoolSpec.model_fields) & set(Settings.model_fields)


def periodic(**spec):
    return {
        "apiVersion": "joex.dev/v1alpha1",
        "kind": "PeriodicTask",
        "metadata": {"name": "nightly"},
        "spec": {"pool": "documents", "task": "maintenance.cleanup", "timer": "*-*-* 03:00", **spec},
    }


def problem(parse, written):
    with pytest.raises(SpecError) as caught:
        parse(written)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_pool_as_in_the_documentation_is_read():
    pool = parse_pool(
        manifest(
            queues=["default"],
            app="joex.examples.documents:app",
            image="joex:latest",
            database={"secretName": "joex-db", "secretKey": "url"},
            poolSize=2,
            countingScheme="4,1",
            retries=5,
            retryDelay="1m",
            logBufferSize=500,
            wakeupPeriod="30m",
            scaling={
                "minReplicas": 0,
                "maxReplicas": 20,
                "idleReserve": 0,
                "behavior": {"scaleDown": {"stabilizationWindowSeconds": 120}},
            },
            drain={"timeout": "1h", "onTimeout": "Wait"},
            template={},
        )
    )
    assert (pool.name, pool.namespace, pool.uid, pool.generation) == ("documents", "prod", "pool-uid", 3)
    assert pool.spec.counting_scheme == CountingScheme(4, 1)
    assert pool.spec.retry_delay == timedelta(minutes=1)
    assert pool.spec.scaling.behavior.scale_down.stabilization_window_seconds == 120
    assert pool.deleted_at is None


def test_a_periodic_task_as_in_the_documentation_is_read():
    task = parse_periodic(periodic(timeZone="Europe/Zurich", group="system", priority="low", args={}))
    assert (task.name, task.namespace, task.spec.time_zone) == ("nightly", "default", "Europe/Zurich")
    assert task.spec.queue is None


def test_what_is_not_said_is_as_for_an_executor_on_its_own():
    spec = parse_pool(manifest()).spec
    assert {"pool_size", "retries", "retry_delay", "lease", "queues", "timeout", "most_losses"} <= SHARED
    for name in SHARED:
        assert getattr(spec, name) == Settings.model_fields[name].get_default(), name


@pytest.mark.parametrize("name", sorted(SHARED - {"queues", "counting_scheme"}))
def test_bounds_of_numbers_are_those_of_the_settings(name):
    def bounds(model):
        found = (item for item in model.model_fields[name].metadata if hasattr(item, "ge") or hasattr(item, "le"))
        return {(key, getattr(item, key)) for item in found for key in ("ge", "le") if hasattr(item, key)}

    if Settings.model_fields[name].annotation is int:
        assert bounds(JoexPoolSpec) == bounds(Settings)


def test_every_field_says_what_it_is():
    assert all(field.description for field in JoexPoolSpec.model_fields.values())


def test_an_operator_that_is_older_than_the_definition_of_a_pool_ignores_fields_of_the_newer_version():
    """Helm upgrades the definition first, and the API server fills in its defaults."""
    newer: dict[str, Any] = {
        "colour": "red",
        "scaling": {"maxReplicas": 3, "shape": {"a": 1}, "behavior": {"scaleUp": {"speed": 1}}},
        "template": {"colour": "kept"},
    }
    pool = parse_pool(manifest(**newer), stored=True)
    assert pool == parse_pool(manifest(scaling={"maxReplicas": 3}, template={"colour": "kept"}))
    with pytest.raises(SpecError, match=r"^spec\.poolSize: Input should be greater than or equal to 1; got 0$"):
        parse_pool(manifest(**newer, poolSize=0), stored=True)
    assert parse_periodic(periodic(colour="red"), stored=True) == parse_periodic(periodic())


@pytest.mark.parametrize("name", ["../../other/secrets/joex-db", "..", "joex-db?x", "joex-db/x", "joex-db\n"])
def test_a_pool_names_a_secret_and_no_path_to_one_of_another_namespace(name):
    """The operator itself refuses it: the definition in the cluster may be of a version before."""
    with pytest.raises(SpecError, match=r"^spec\.database\.secretName: "):
        parse_pool(manifest(database={"secretName": name}), stored=True)


def test_deletion_is_read_with_its_time():
    for wrong in ("yesterday", 7, "2026-11-20T12:00:00", ""):
        said = problem(parse_pool, manifest(metadata={"deletionTimestamp": wrong}))
        assert said.startswith("metadata.deletionTimestamp: expected a time such as")
    pool = parse_pool(manifest(metadata={"deletionTimestamp": "2026-11-20T12:00:00Z"}))
    assert pool.deleted_at == datetime(2026, 11, 20, 12, tzinfo=UTC)


WRONG = [
    ({"poolSize": 0}, "spec.poolSize: "),
    ({"poolSize": "2"}, "spec.poolSize: "),
    ({"poolsize": 2}, "spec.poolsize: there is no such field"),
    ({"app": "shop.tasks"}, "spec.app: "),
    ({"app": "shop:tasks:app"}, "spec.app: "),
    ({"app": None}, "spec.app: "),
    ({"queues": []}, "spec.queues: "),
    ({"queues": ["a", "a"]}, "spec: queues: each queue once"),
    ({"queues": ["a,b"]}, "spec.queues[0]: "),
    ({"queues": [" a"]}, "spec.queues[0]: "),
    ({"queues": ["ä" * 200]}, "spec.queues[0]: name: at most 254 bytes"),
    ({"countingScheme": "4"}, "spec.countingScheme: counting scheme: expected two numbers like '4,1'"),
    ({"countingScheme": 4}, "spec.countingScheme: expected two numbers like '4,1'"),
    ({"countingScheme": "0,1"}, "spec.countingScheme: "),
    ({"retryDelay": 60}, "spec.retryDelay: expected a duration such as '30s', '1m' or '1h30m'; got 60"),
    ({"retryDelay": "1 minute"}, "spec.retryDelay: expected a duration"),
    ({"retryDelay": "1m\n"}, "spec.retryDelay: expected a duration"),
    ({"lease": "200ms"}, "spec.lease: "),
    ({"lease": "2h"}, "spec.lease: "),
    ({"wakeupPeriod": "1ms"}, "spec.wakeupPeriod: "),
    ({"retries": -1}, "spec.retries: "),
    ({"replicas": -1}, "spec.replicas: "),
    ({"replicas": 10_001}, "spec.replicas: "),
    ({"suspend": "yes"}, "spec.suspend: "),
    ({"database": {}}, "spec.database.secretName: required"),
    ({"scaling": {"minReplicas": 11}}, "spec.scaling: minReplicas must not be above maxReplicas"),
    ({"scaling": {"idleReserve": 11}}, "spec.scaling: idleReserve must not be above maxReplicas"),
    ({"scaling": {"fallback": {"replicas": 11}}}, "spec.scaling: fallback.replicas must not be above maxReplicas"),
    ({"scaling": {"maxReplicas": 0}}, "spec.scaling.maxReplicas: "),
    ({"scaling": {"tolerance": 0.9}}, "spec.scaling.tolerance: "),
    ({"scaling": {"targetUtilization": 0}}, "spec.scaling.targetUtilization: "),
    (
        {"scaling": {"behavior": {"scaleUp": {"policies": [{"type": "Pods", "value": 1, "periodSeconds": 1}]}}}},
        "spec.scaling.behavior.scaleUp.policies[0].type: ",
    ),
    ({"drain": {"timeout": "soon"}}, "spec.drain.timeout: "),
    ({"drain": {"onTimeout": "Kill"}}, "spec.drain.onTimeout: "),
    ({"rollout": {"maxUnavailable": "101%"}}, "spec.rollout.maxUnavailable: expected a number of at least 0"),
    ({"rollout": {"maxSurge": True}}, "spec.rollout.maxSurge: expected a number of at least 0"),
    (
        {"rollout": {"maxSurge": 0, "maxUnavailable": "0%"}},
        "spec.rollout: maxSurge and maxUnavailable must not both be 0",
    ),
    ({"template": []}, "spec.template: "),
    (
        {"template": {"spec": {"x": [[]] * 250_000}}},
        "spec.template: expected at most 256 kB of JSON; got 750 kB; large values belong in a ConfigMap",
    ),
]


@pytest.mark.parametrize(("spec", "expected"), WRONG, ids=lambda value: str(value)[:60])
def test_a_wrong_field_is_one_line_that_begins_with_its_path(spec, expected):
    assert problem(parse_pool, manifest(**spec)).startswith(expected)


def test_several_wrong_fields_are_named_together():
    message = problem(parse_pool, manifest(poolSize=0, retries="five"))
    assert "spec.poolSize: " in message
    assert "; spec.retries: " in message


@pytest.mark.parametrize("name", ["", "Documents", "my.pool", "-a", "a-", "x" * 41, None])
def test_a_name_that_would_not_fit_a_pod_is_refused(name):
    assert problem(parse_pool, manifest(name=name)).startswith("metadata.name: expected 1 to 40 of a-z")


def test_an_object_of_another_kind_is_refused():
    assert problem(parse_pool, periodic()) == "kind: expected JoexPool; got 'PeriodicTask'"
    assert problem(parse_pool, {**manifest(), "metadata": ["a"]}) == "metadata: expected an object, with a name"
    assert problem(parse_pool, {}).startswith("apiVersion: expected joex.dev/v1alpha1")


def test_an_object_without_a_spec_is_refused():
    written = manifest()
    del written["spec"]
    assert problem(parse_pool, written).startswith("spec: ")


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"pool": "My Pool"}, "spec.pool: "),
        ({"task": ""}, "spec.task: "),
        ({"timer": ""}, "spec.timer: "),
        ({"timer": "daily 25:00"}, "spec.timer: "),
        ({"timer": "0 25 * * *"}, "spec.timer: hour: expected 0 to 23; got '25'"),
        ({"timeZone": "Mars"}, "spec.timeZone: expected a name like 'Europe/Zurich' or 'UTC'; got 'Mars'"),
        ({"priority": "urgent"}, "spec.priority: "),
        ({"args": []}, "spec.args: "),
        ({"startingDeadline": "late"}, "spec.startingDeadline: "),
    ],
)
def test_a_wrong_field_of_a_periodic_task_is_named(spec, expected):
    assert problem(parse_periodic, periodic(**spec)).startswith(expected)


def test_a_spec_can_not_be_changed_once_it_is_read():
    with pytest.raises(ValueError, match="frozen"):
        parse_pool(manifest()).spec.pool_size = 3  # type: ignore[misc]

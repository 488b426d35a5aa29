"""The environment of a local process of a pool."""

from datetime import timedelta

import pytest

from joex.config import Settings
from joex_operator.api.objects import SpecError, parse_pool
from joex_operator.local.environment import environment, template_hash, unused

CONTAINER = "spec.template.spec.containers[executor]"


def pool(**spec):
    given = {"app": "shop.tasks:app", "database": {"secretName": "db"}, **spec}
    metadata = {"name": "docs", "namespace": "laptop"}
    return parse_pool({"apiVersion": "joex.dev/v1alpha1", "kind": "JoexPool", "metadata": metadata, "spec": given})


def with_container(**container):
    return pool(template={"spec": {"containers": [{"name": "executor", **container}]}})


def environment_of(pool, **inherited):
    return environment(pool, 3, uid="a-uid", url="postgresql://db", inherited=inherited)


def test_it_is_what_the_settings_of_an_executor_read(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    given = pool(queues=["a", "b"], lease="2s", timeout="1m", drain={"timeout": "5m", "onTimeout": "Terminate"})
    for name, value in environment_of(given).items():
        monkeypatch.setenv(name, value)
    settings = Settings()
    assert settings.effective_app_id == "laptop/docs-3"
    assert settings.pod_uid == "a-uid"
    assert settings.url == "postgresql://db"
    assert settings.queues == ["a", "b"]
    assert (settings.lease, settings.timeout) == (timedelta(seconds=2), timedelta(minutes=1))
    assert settings.drain_timeout == settings.signal_timeout == timedelta(minutes=5)
    assert settings.http_address == "127.0.0.1:0"


def test_the_file_wins_over_what_is_inherited_and_names_and_urls_over_all():
    found = environment_of(
        with_container(env=[{"name": "JOEX_LOG_LEVEL", "value": "debug"}, {"name": "COLOUR", "value": "red"}]),
        JOEX_LOG_LEVEL="info", JOEX_POOL_SIZE="99", JOEX_APP_ID="mine", JOEX_DATABASE_URL="mine",
        JOEX_API_TOKEN="t" * 16,
    )  # fmt: skip
    assert (found["JOEX_LOG_LEVEL"], found["COLOUR"], found["JOEX_POOL_SIZE"]) == ("debug", "red", "2")
    assert (found["JOEX_APP_ID"], found["JOEX_DATABASE_URL"]) == ("laptop/docs-3", "postgresql://db")
    assert found["JOEX_API_TOKEN"] == "t" * 16, "the file has no field for it"


def test_the_file_of_the_url_of_joex_up_is_not_that_of_its_executors(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "joex.toml").write_text("database_url_file = 'missing'\n")
    for name, value in environment_of(pool(), JOEX_DATABASE_URL_FILE="missing").items():
        monkeypatch.setenv(name, value)
    assert Settings().url == "postgresql://db"


def test_a_variable_that_a_cluster_would_look_up_is_inherited():
    looked_up = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
    given = with_container(env=[looked_up, {"name": "EMPTY"}])
    assert environment_of(given, TOKEN="here")["TOKEN"] == "here"
    assert "TOKEN" not in environment_of(given)
    assert environment_of(given)["EMPTY"] == ""


def test_the_hash_changes_with_what_a_process_is_made_of_and_with_nothing_else():
    plain = template_hash(pool())
    assert template_hash(pool(scaling={"maxReplicas": 3}, replicas=2)) == plain
    assert template_hash(pool(image="other", template={"metadata": {"labels": {"a": "b"}}})) == plain
    changed = [pool(app="shop:app"), pool(poolSize=3), pool(lease="2s"), with_container(env=[{"name": "A"}])]
    assert len({plain, *map(template_hash, changed)}) == 5


def test_what_means_nothing_without_a_cluster_is_named():
    template = {
        "metadata": {"labels": {"a": "b"}},
        "spec": {
            "volumes": [],
            "containers": [
                {
                    "name": "executor",
                    "resources": {},
                    "env": [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {}}],
                },
                {"name": "proxy"},
            ],
        },
    }
    assert not list(unused(pool().spec))
    assert list(unused(pool(image="joex:1", template=template).spec)) == [
        "spec.image",
        "spec.template.metadata",
        "spec.template.spec.volumes",
        f"{CONTAINER}.resources",
        f"{CONTAINER}.env[B].valueFrom",
        "spec.template.spec.containers[proxy]",
    ]


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ({"spec": []}, "spec.template.spec: expected an object"),
        ({"spec": {"containers": {}}}, "spec.template.spec.containers: expected a list of objects"),
        ({"spec": {"containers": [{"image": "x"}]}}, r"spec.template.spec.containers\[0\].name: required"),
        (
            {"spec": {"containers": [{"name": "executor", "env": [{"name": "JOEX_QUEUES", "value": "x"}]}]}},
            "JOEX_QUEUES",
        ),
        ({"spec": {"containers": [{"name": "executor", "env": [{"name": "A", "value": 5}]}]}}, "A: expected a text"),
        ({"metadata": {"annotations": 5}}, "spec.template.metadata.annotations: expected an object"),
    ],
)
def test_a_wrong_template_is_refused_by_its_field(template, said):
    with pytest.raises(SpecError, match=said):
        environment_of(pool(template=template))


@pytest.mark.parametrize("name", ["", "A=B", "A\0", "A\udfff"])
def test_a_name_that_no_process_can_have_in_its_environment_is_refused(name):
    with pytest.raises(SpecError) as caught:
        environment_of(with_container(env=[{"name": name, "value": "x"}]))
    assert str(caught.value) == f"{CONTAINER}.env: {name!r}: no variable can have this name"


@pytest.mark.parametrize("value", ["a\0b", "\ud800"])
def test_a_value_that_no_process_can_have_in_its_environment_is_refused(value):
    with pytest.raises(SpecError) as caught:
        environment_of(with_container(env=[{"name": "A", "value": value}]))
    assert str(caught.value) == f"{CONTAINER}.env: 'A': no variable can have a NUL or a lone surrogate in its value"
    assert environment_of(with_container(env=[{"name": "A", "value": "=\n\x7f\U0001f600"}]))["A"] == "=\n\x7f\U0001f600"

"""The API server or the operator names the invalid field of an object; one broken pool never stops another."""

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support.cluster.connection import ApiError, Object
from tests.support.cluster.objects import FOR_POOLS
from tests.support.cluster.system import POOLS, System, condition
from tests.support.postgres import TestServer

POLICY = {"type": "Executors", "value": 1, "periodSeconds": 60}


def scaling(**fields: Any) -> Object:
    return {"scaling": fields}


def rules(**fields: Any) -> Object:
    return scaling(behavior={"scaleUp": fields})


REFUSED: list[tuple[Object, str]] = [
    ({"app": "no-colon"}, "spec.app"),
    ({"app": None}, "spec.app"),
    ({"app": "a:" + "b" * 254}, "spec.app"),
    ({"image": ""}, "spec.image"),
    ({"image": "i" * 1025}, "spec.image"),
    ({"queues": []}, "spec.queues"),
    ({"queues": ["a", "a"]}, "spec.queues[1]"),
    ({"queues": [f"q{number}" for number in range(65)]}, "spec.queues"),
    ({"queues": ["a,b"]}, "spec.queues[0]"),
    ({"queues": ["q" * 255]}, "spec.queues[0]"),
    ({"database": None}, "spec.database"),
    ({"database": {}}, "spec.database.secretName"),
    ({"database": {"secretName": ""}}, "spec.database.secretName"),
    ({"database": {"secretName": "../../other/secrets/joex-db"}}, "spec.database.secretName"),
    ({"database": {"secretName": "a", "secretKey": ""}}, "spec.database.secretKey"),
    ({"poolSize": 0}, "spec.poolSize"),
    ({"poolSize": 100_001}, "spec.poolSize"),
    ({"poolSize": "two"}, "spec.poolSize"),
    ({"countingScheme": "4"}, "spec.countingScheme"),
    ({"countingScheme": "0,1"}, "spec.countingScheme"),
    ({"countingScheme": "1001,1"}, "spec.countingScheme"),
    ({"retries": -1}, "spec.retries"),
    ({"retries": 1_000_001}, "spec.retries"),
    ({"retryDelay": "soon"}, "spec.retryDelay"),
    ({"retryDelay": "99999h"}, "spec.retryDelay"),
    ({"mostLosses": -1}, "spec.mostLosses"),
    ({"mostLosses": 1001}, "spec.mostLosses"),
    ({"timeout": "9ms"}, "spec.timeout"),
    ({"timeout": "10"}, "spec.timeout"),
    ({"logBufferSize": 0}, "spec.logBufferSize"),
    ({"logBufferSize": 1_000_001}, "spec.logBufferSize"),
    ({"wakeupPeriod": "1ms"}, "spec.wakeupPeriod"),
    ({"lease": "299ms"}, "spec.lease"),
    ({"lease": "61m"}, "spec.lease"),
    ({"replicas": -1}, "spec.replicas"),
    ({"replicas": 10_001}, "spec.replicas"),
    ({"suspend": "yes"}, "spec.suspend"),
    (scaling(minReplicas=-1), "spec.scaling.minReplicas"),
    (scaling(minReplicas=3, maxReplicas=2), "spec.scaling: Invalid value: minReplicas must not be above maxReplicas"),
    (scaling(maxReplicas=0), "spec.scaling.maxReplicas"),
    (scaling(maxReplicas=10_001), "spec.scaling.maxReplicas"),
    (scaling(idleReserve=-1), "spec.scaling.idleReserve"),
    (scaling(idleReserve=3, maxReplicas=2), "idleReserve must not be above maxReplicas"),
    (scaling(tolerance=-0.1), "spec.scaling.tolerance"),
    (scaling(tolerance=0.6), "spec.scaling.tolerance"),
    (scaling(targetUtilization=0), "spec.scaling.targetUtilization"),
    (scaling(targetUtilization=101), "spec.scaling.targetUtilization"),
    (scaling(fallback={}), "spec.scaling.fallback.replicas"),
    (scaling(fallback={"replicas": 3}, maxReplicas=2), "fallback.replicas must not be above maxReplicas"),
    (scaling(fallback={"replicas": 1, "after": "x"}), "spec.scaling.fallback.after"),
    (rules(stabilizationWindowSeconds=-1), "spec.scaling.behavior.scaleUp.stabilizationWindowSeconds"),
    (rules(stabilizationWindowSeconds=3601), "spec.scaling.behavior.scaleUp.stabilizationWindowSeconds"),
    (rules(selectPolicy="Best"), "spec.scaling.behavior.scaleUp.selectPolicy"),
    (rules(policies=[POLICY] * 11), "spec.scaling.behavior.scaleUp.policies"),
    (rules(policies=[{**POLICY, "type": "Pods"}]), "spec.scaling.behavior.scaleUp.policies[0].type"),
    (rules(policies=[{**POLICY, "value": 0}]), "spec.scaling.behavior.scaleUp.policies[0].value"),
    (rules(policies=[{**POLICY, "periodSeconds": 1801}]), "spec.scaling.behavior.scaleUp.policies[0].periodSeconds"),
    ({"drain": {"timeout": "-1s"}}, "spec.drain.timeout"),
    ({"drain": {"onTimeout": "Kill"}}, "spec.drain.onTimeout"),
    ({"rollout": {"maxSurge": -1}}, "spec.rollout.maxSurge"),
    ({"rollout": {"maxSurge": 0, "maxUnavailable": "0%"}}, "maxSurge and maxUnavailable must not both be 0"),
    ({"rollout": {"maxUnavailable": "101%"}}, "spec.rollout.maxUnavailable"),
    ({"template": "text"}, "spec.template"),
    ({"colour": "green"}, "spec.colour"),
    (scaling(maxReplica=3), "spec.scaling.maxReplica"),
    ({"database": {"secretName": "a", "url": "b"}}, "spec.database.url"),
]


async def refusal(system: System, manifest: Object) -> str:
    """The reason why the API server would refuse a pool, by a dry run as in kubectl; empty: it would accept it."""
    path = f"/apis/joex.dev/v1alpha1/namespaces/{system.namespace}/joexpools"
    try:
        await system.api.request("POST", path, manifest, fieldValidation="Strict", dryRun="All")
    except ApiError as error:
        return str(error)
    return ""


async def test_a_wrong_pool_is_refused_by_its_field(system: System) -> None:
    assert await refusal(system, system.manifest()) == ""
    said = {}
    for change, field in REFUSED:
        manifest = system.manifest()
        manifest["spec"] = {name: value for name, value in {**manifest["spec"], **change}.items() if value is not None}
        answer = await refusal(system, manifest)
        if field not in answer:
            said[str(change)[:80]] = answer or "taken"
    assert said == {}


@pytest.mark.parametrize(("name", "why"), [("p" * 41, "at most 40 characters"), ("a.b", "no dots")])
async def test_a_name_from_which_no_replica_could_be_named_is_refused(system: System, name: str, why: str) -> None:
    answer = await refusal(system, system.manifest(name))
    assert "metadata.name: " in answer
    assert why in answer


async def test_the_database_of_a_pool_can_not_be_changed(system: System) -> None:
    await system.pool()
    with pytest.raises(ApiError, match=r"spec\.database: .*database can't be changed: make another pool"):
        await system.pool(database={"secretName": "other"})


@pytest.mark.parametrize("depth", [1200, 9000])
async def test_an_object_hides_no_other_however_deeply_it_is_nested(system: System, depth: int) -> None:
    """The API server takes it. Python's parser, which must read it together with all others, does not."""
    first = system.operator()
    manifest = json.dumps({**system.manifest("deep"), "spec": {**system.manifest()["spec"], "template": {"x": "deep"}}})
    manifest = manifest.replace('"deep"}', '{"a":' * depth + "1" + "}" * (depth + 1))
    path = f"/apis/joex.dev/v1alpha1/namespaces/{system.namespace}/joexpools"
    # (The answer is a table, because this client could not read the object either.)
    table = {"accept": "application/json;as=Table;v=v1;g=meta.k8s.io", "includeObject": "None"}
    await system.api.request("POST", path, manifest.encode(), **table)
    try:
        await system.pool("before", replicas=0)
        await system.until_reason("AtZero", name="before")
        await first.kill()
        system.operator("next")  # which finds both
        await system.pool("after", replicas=0)
        await system.until_reason("AtZero", name="after")
    finally:
        await system.api.delete(POOLS, "deep", system.namespace)


async def test_a_pool_with_the_wrong_secret_says_what_is_wrong_and_goes_on_when_it_is_mended(
    system: System, postgres: TestServer, database_name: str
) -> None:
    """Only the operator sees it. Each fault has its own pool, and another pool works all the time."""
    async with password_wanted(postgres, "guarded"):
        urls = {
            "nokey": "",
            "nourl": "mysql://somewhere",
            "password": postgres.tcp_url(database_name).replace("postgres@", "guarded:wrong@"),
            "nodatabase": postgres.url("not_there"),
        }
        reasons = dict.fromkeys(urls, "ConnectionRefused")
        reasons |= {"missing": "SecretMissing", "nokey": "SecretKeyMissing", "nourl": "InvalidURL"}
        reasons["notallowed"] = "SecretNotAllowed"
        named = {"missing": "'missing'", "nokey": "'url'", "nourl": "'url'", "password": "guarded"}
        named["notallowed"] = "label secret notallowed joex.dev/pools=allowed"
        named |= {"nodatabase": "not_there"}
        for name, url in urls.items():
            await (system.set_url(url, name) if url else set_other_key(system, name, FOR_POOLS))
        await set_other_key(system, "notallowed", {})
        system.operator()
        for name in reasons:
            await system.pool(name, database={"secretName": name}, queues=[name])
        await system.pool()
        job = await system.submit("effect")
        assert await system.effects.all_finished([job]) == {"success": 1}
        for name, reason in reasons.items():
            found = await system.until_pool(refused(reason), name)
            assert named[name] in condition(found, "DatabaseReachable", what="message")
            assert any(event["involvedObject"]["name"] == name for event in await events(system, reason))

        jobs = [await system.client.submit("effect", {}, queue=name) for name in reasons]
        for name in reasons:
            await system.set_url(system.url, name)
        assert await system.effects.all_finished(jobs) == {"success": len(reasons)}


async def set_other_key(system: System, name: str, labels: dict[str, str]) -> None:
    data = {"other": base64.b64encode(system.url.encode()).decode()}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "labels": labels}, "data": data}
    await system.api.apply(secret, system.namespace)


def refused(reason: str) -> Any:
    return lambda pool: condition(pool, "DatabaseReachable", what="reason") == reason


async def events(system: System, reason: str) -> list[Object]:
    await system.until_event(reason)
    return await system.events(reason)


@asynccontextmanager
async def password_wanted(postgres: TestServer, user: str) -> AsyncIterator[None]:
    """The server requires a password of this user only."""
    path = postgres.data / "pg_hba.conf"
    before = path.read_text()
    async with postgres.administrator() as administrator:
        await administrator.execute(f"CREATE ROLE {user} LOGIN PASSWORD 'right'")
        path.write_text(f"host all {user} 127.0.0.1/32 scram-sha-256\n{before}")
        await administrator.execute("SELECT pg_reload_conf()")
        try:
            yield
        finally:
            path.write_text(before)
            await administrator.execute("SELECT pg_reload_conf()")
            await administrator.execute(f"DROP ROLE {user}")


async def with_template(system: System, template: Object) -> None:
    """A pool with only this template."""
    manifest = system.manifest("broken", replicas=1)
    manifest["spec"]["template"] = template
    await system.api.apply(manifest)


async def test_a_template_that_can_not_be_merged_stops_nothing_but_its_changes(system: System) -> None:
    system.operator()
    await system.pool(replicas=1)
    await with_template(system, {"spec": {"containers": [{"image": "x"}]}})
    found = await system.until_pool(lambda pool: condition(pool, "Ready", what="reason") == "InvalidSpec", "broken")
    assert condition(found, "Ready", what="message").startswith("spec.template.spec.containers[0].name: ")
    assert (await system.until_event("InvalidSpec"))["involvedObject"]["name"] == "broken"
    await system.until_pool(lambda pool: pool["status"]["readyReplicas"] == 1)
    await system.pool("broken", replicas=1)
    await system.until_pool(lambda pool: condition(pool, "Ready") == "True", "broken")


async def test_a_deployment_that_the_api_server_refuses_is_told_by_its_field(system: System) -> None:
    system.operator()
    ports = [{"name": "more", "containerPort": 70000}]
    await with_template(system, {"spec": {"containers": [{"name": "executor", "ports": ports}]}})
    found = await system.until_pool(lambda pool: condition(pool, "AbleToScale") == "False", "broken")
    assert "containers[0].ports" in condition(found, "AbleToScale", what="message")
    assert condition(found, "AbleToScale", what="reason") == "ActionFailed"
    assert "containerPort" in (await system.until_event("ActionFailed"))["message"]
    await system.pool()
    job = await system.submit("effect")
    assert await system.effects.all_finished([job]) == {"success": 1}
    await system.pool("broken", replicas=1)
    await system.until_pool(lambda pool: condition(pool, "Ready") == condition(pool, "AbleToScale") == "True", "broken")


async def test_a_misspelt_field_of_a_template_is_told_and_costs_no_executor(system: System) -> None:
    """The API server would drop it, and nothing would show that it is missing."""
    system.operator()
    await system.pool(replicas=1)
    await system.until_ready(1)
    before = await system.executors()
    await system.pool(replicas=1, template={"nodeSelecter": {"disk": "ssd"}})
    found = await system.until_pool(lambda pool: condition(pool, "AbleToScale", what="reason") == "ActionFailed")
    assert 'unknown field "spec.template.spec.nodeSelecter"' in condition(found, "AbleToScale", what="message")
    assert "nodeSelecter" in (await system.until_event("ActionFailed"))["message"]
    job = await system.submit("effect")
    assert await system.effects.all_finished([job]) == {"success": 1}
    assert await system.executors() == before
    await system.pool(replicas=1)
    await system.until_pool(lambda pool: condition(pool, "Ready", what="reason") == "Ready")
    await system.until_pool(lambda pool: condition(pool, "AbleToScale") == "True")


async def test_programs_that_are_too_old_for_the_schema_are_told_and_go_on_when_it_suits_them_again(
    system: System,
) -> None:
    operator = system.operator()
    await system.pool(replicas=1)
    await system.until_ready(1)
    taken_away = "INSERT INTO joex_private.migration (number, name, min_reader) VALUES (9999, 'later', 9999)"
    await system.db.execute(taken_away)
    await system.pool(replicas=2)
    found = await system.until_pool(lambda pool: condition(pool, "Ready", what="reason") == "ExecutorFailing")
    assert "pool-1: " in condition(found, "Ready", what="message")
    assert "needs programs that know version 9999" in condition(found, "Ready", what="message")

    assert await operator.stop() == 0
    system.operator()
    found = await system.until_pool(refused("SchemaTooNew"))
    assert condition(found, "Ready", what="reason") == "SchemaTooNew"
    assert list(await system.executors()) == ["pool-0"]
    await system.db.execute("DELETE FROM joex_private.migration WHERE number = 9999")
    await system.until_ready(2)


async def test_an_app_that_is_not_in_the_image_is_told_by_the_executors_own_words(system: System) -> None:
    system.operator()
    await system.pool(app="nowhere:app", replicas=1)
    found = await system.until_pool(lambda pool: condition(pool, "Ready", what="reason") == "ExecutorFailing")
    assert "nowhere" in condition(found, "Ready", what="message")
    assert "pool-0" in (await system.until_event("ExecutorFailing"))["message"]
    await system.pool(replicas=1)
    await system.until_pool(lambda pool: condition(pool, "Ready", what="reason") == "Ready")

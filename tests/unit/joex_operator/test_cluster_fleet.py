"""The fleet on Kubernetes: its requests, and what it makes of the answers."""

import base64
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from joex_operator.cluster.fleet import ClusterFleet
from joex_operator.cluster.kubernetes_api import Conflict, Forbidden, Invalid
from joex_operator.control.fleet import FleetError
from joex_operator.decide import manifests
from tests.unit.joex_operator.builders import pool

UIDS = {"prod": "3f2a9c1e-0b7d-4f0e-9d39-0a4b8a2f6f11"}
TYPO = 'strict decoding error: unknown field "spec.template.spec.nodeSelecter"'


class Api:
    """Answers requests as told, and keeps them."""

    def __init__(self) -> None:
        self.refuses: Exception | None = None
        self.created: list[tuple[str, dict[str, str]]] = []
        self.bodies: list[Any] = []
        self.existing: dict[str, Any] = {}

    async def create(self, _path: str, body: Any, **query: str) -> Any:
        self.created.append((body["metadata"]["name"], query))
        self.bodies.append(body)
        if self.refuses is not None:
            raise self.refuses
        if body["metadata"]["name"] in self.existing:
            raise Conflict("it exists already")
        return {**body, "metadata": {**body["metadata"], "uid": "made", "resourceVersion": "1"}}

    async def get(self, path: str, **_: str) -> Any:
        return self.existing[path.rpartition("/")[2]]


@pytest.fixture
def api() -> Api:
    return Api()


@pytest.fixture
def fleet(api: Any) -> ClusterFleet:
    return ClusterFleet(api, image="joex:1", identity="operator", uid_of=UIDS.__getitem__)


async def test_a_template_is_checked_once_by_a_dry_run_that_accepts_no_unknown_field(fleet: ClusterFleet, api: Api):
    for _ in range(2):
        await fleet.check(pool())
    [(name, query)] = api.created
    assert (name, query["dryRun"], query["fieldValidation"]) == ("documents-10000", "All", "Strict")
    await fleet.check(pool(poolSize=7))
    assert len(api.created) == 2


def test_the_hash_of_a_template_is_computed_once_for_each_content_of_a_pool(fleet: ClusterFleet, monkeypatch):
    """It takes tens of milliseconds for a large one, and each notification causes a reconcile."""
    made = map(str, count(1))
    monkeypatch.setattr(manifests, "template_hash", lambda *_: next(made))
    first, second = pool(), pool(poolSize=7)
    assert [fleet.template(one) for one in (first, first, second, second)] == ["1", "1", "2", "2"]


async def test_a_template_that_the_api_server_refuses_is_checked_again_until_it_is_accepted(
    fleet: ClusterFleet, api: Api
):
    api.refuses = Invalid(TYPO)
    for _ in range(2):
        with pytest.raises(Invalid, match="nodeSelecter"):
            await fleet.check(pool())
    api.refuses = Invalid("admission webhook 'x' does not support dry run")
    await fleet.check(pool())


@pytest.mark.parametrize("surge", [1, "1%"])
async def test_a_quota_without_room_keeps_old_replicas_where_new_ones_may_start_beside_them(
    fleet: ClusterFleet, api: Api, surge: int | str
):
    api.refuses = Forbidden('deployments.apps "documents-10000" is forbidden: exceeded quota: narrow')
    with pytest.raises(Forbidden):
        await fleet.check(pool(rollout={"maxSurge": surge}))
    for none in (0, "0%"):
        await fleet.check(pool(rollout={"maxSurge": none}))
    api.refuses = Forbidden('deployments.apps "documents-10000" is forbidden: violates PodSecurity')
    with pytest.raises(Forbidden):
        await fleet.check(pool(poolSize=7, rollout={"maxSurge": 0}))


async def test_a_replica_is_created_with_no_unknown_field(fleet: ClusterFleet, api: Api):
    await fleet.create(pool(), 0)
    assert api.created[0][1]["fieldValidation"] == "Strict"
    assert [one.uid for one in fleet.replicas(pool())] == ["made"]


async def test_an_executor_has_an_app_id_that_no_other_clusters_executor_has(fleet: ClusterFleet, api: Api):
    await fleet.create(pool(), 0)
    [container] = api.bodies[0]["spec"]["template"]["spec"]["containers"]
    assert {"name": "JOEX_APP_ID", "value": "prod.3f2a9c1e/documents-0"} in container["env"]
    assert fleet.home("prod") == "prod.3f2a9c1e"


async def test_a_name_that_another_owner_has_is_told_once_and_then_left_alone(fleet: ClusterFleet, api: Api):
    api.existing["documents-0"] = {"metadata": {"name": "documents-0"}}
    with pytest.raises(FleetError, match="'documents-0' exists in namespace 'prod' and belongs to another owner"):
        await fleet.create(pool(), 0)
    assert fleet.taken(pool()) == {0}
    assert fleet.taken(replace(pool(), name="other")) == fleet.taken(replace(pool(), namespace="other")) == set()


async def test_a_deployment_whose_label_somebody_has_removed_stops_no_pool(fleet: ClusterFleet, api: Api):
    """No watch shows it, so the operator would try to create it again and again."""
    api.existing["documents-0"] = {"metadata": {"name": "documents-0", "ownerReferences": [{"uid": pool().uid}]}}
    with pytest.raises(FleetError, match=r"'documents-0' .* has no label joex\.dev/pool=documents"):
        await fleet.create(pool(), 0)
    assert fleet.taken(pool()) == {0}


async def test_pools_that_come_and_go_leave_nothing_behind(fleet: ClusterFleet, api: Api) -> None:
    url = base64.b64encode(b"postgresql:///shop").decode()
    for number in range(3):
        name = f"preview-{number}"
        one = replace(pool(database={"secretName": name}), name=name)
        api.existing[name] = {"metadata": {"labels": {"joex.dev/pools": "allowed"}}, "data": {"url": url}}
        fleet.keep_status(body_of(name))
        await fleet.database_url(one)
        await fleet.check(one)
        fleet.mark_deleted(body_of(name))
        await fleet.check(one)  # by a reconcile that has begun before
        kept = [*fleet._templates, *fleet._checked, *fleet._secrets._values]
        assert kept == [], "the next list may be a long time away, and a template large"
        assert fleet.forget_absent("JoexPool", (), 10, "") == [("prod", name)]
    assert {name: some for name, some in vars(fleet).items() if isinstance(some, dict) and some} == {}
    assert [some for some in vars(fleet._secrets).values() if isinstance(some, dict) and some] == []


def body_of(name: str) -> dict[str, Any]:
    return {"kind": "JoexPool", "metadata": {"namespace": "prod", "name": name, "resourceVersion": "5"}}

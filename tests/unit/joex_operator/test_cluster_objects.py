"""The cache of pools and periodic tasks, if older lists come after newer events."""

import asyncio
import weakref
from collections.abc import Mapping
from typing import Any

import kopf
import pytest
from kubernetes.aio.client import ApiClient, Configuration

from joex.garbage import collection_paused
from joex_operator.api.objects import Ref
from joex_operator.cluster import kopf_handlers, kopf_watches
from joex_operator.cluster.fleet import ClusterFleet
from joex_operator.cluster.kopf_watches import KopfWatches, RestoredError
from joex_operator.cluster.kubernetes_api import ApiError, Conflict, Forbidden, KubernetesApi, NotFound
from joex_operator.cluster.namespace_claims import NamespaceClaims
from joex_operator.control.controller import Controller
from joex_operator.control.periodic_reconciler import PeriodicReconciler
from joex_operator.control.pool_reconciler import PoolReconciler
from joex_operator.metrics import OperatorMetrics
from tests.support.waiting import PATIENCE
from tests.unit.joex_operator.builders import manifest

PLACE = ("prod", "documents")
POOL = manifest()["spec"]


def body(version, name="documents", namespace="prod", **status):
    metadata = {"namespace": namespace, "name": name, "resourceVersion": str(version)}
    return {"kind": "JoexPool", "metadata": metadata, "status": status}


class Pages(KubernetesApi):
    """The lists of an API server, in pages of two."""

    def __init__(self, client, bodies):
        super().__init__(client, OperatorMetrics())
        self.bodies = bodies

    async def get(self, path, **query):
        if not path.endswith("/deployments"):
            return {"metadata": {"resourceVersion": "10"}, "items": []}
        assert query["limit"]
        begin = int(query.get("continue", "0"))
        more = {"continue": str(begin + 2)} if begin + 2 < len(self.bodies) else {}
        return {"metadata": {"resourceVersion": "10", **more}, "items": self.bodies[begin : begin + 2]}


class Weak(list[str]):
    """A part of an object that tells whether anything has it still."""


def test_what_kopf_makes_of_an_event_keeps_nothing_of_its_object():
    """kopf's objects refer to each other, so they live until the garbage collector comes, which may be long."""
    part = Weak(["x" * 1_000_000])
    there = weakref.ref(part)
    raw: Any = {"metadata": {"name": "a", "namespace": "b", "annotations": {"c": part}}, "spec": {"d": part}}
    with collection_paused():
        made = kopf.Body(raw)
        event: kopf.RawEvent = {"type": "MODIFIED", "object": raw}
        taken = kopf_handlers.taken(event)
        assert taken["object"]["spec"] == {"d": part}
        assert made.metadata.name == "a"
        del made, taken, part
        assert there() is None


async def test_lists_are_read_in_pages_and_what_is_on_none_is_gone():
    async with ApiClient(Configuration()) as client:
        api = Pages(client, [deployment(f"documents-{number}") for number in range(5)])
        fleet = ClusterFleet(api, image="joex", identity="operator", uid_of=str)
        controller = Controller(fleet, worker="operator")
        claims = NamespaceClaims(api, "joex")
        watches = KopfWatches(api, fleet, controller, (), claims=claims, identity="operator", binding="joex:operator")

        def known():
            return sorted(one.replica for one in fleet.cache.deployments.of("prod", "documents"))

        await watches.resync()
        assert known() == [f"documents-{number}" for number in range(5)]
        del api.bodies[1]
        await watches.resync()
        assert known() == [f"documents-{number}" for number in (0, 2, 3, 4)]


def deployment(name):
    labels = {"joex.dev/pool": "documents", "joex.dev/replica": name}
    metadata = {"namespace": "prod", "name": name, "uid": f"uid of {name}", "resourceVersion": "5", "labels": labels}
    return {"kind": "Deployment", "metadata": metadata, "spec": {"replicas": 1, "template": {"metadata": {}}}}


class Objects(KubernetesApi):
    """A cluster with a pool and its periodic task, and a Lease that is free until it has a ``holder``."""

    holder = ""
    uid = "1"
    version = "10"
    refused: Mapping[str, ApiError] = {}
    answers_in = 0.01

    async def get(self, path, **_):
        await asyncio.sleep(self.answers_in)  # as over a network: all else goes on meanwhile
        for end, error in self.refused.items():
            if path.endswith(end):
                raise error
        if path.endswith("/leases/joex.dev"):
            return {"metadata": {"name": "joex.dev", "uid": self.uid}, "spec": {"holderIdentity": self.holder}}
        if "/namespaces/shop/" in path:
            return {"metadata": {"resourceVersion": self.version}, "items": []}
        metadata = {"namespace": "prod", "uid": self.uid, "resourceVersion": self.version}
        pool = {"metadata": {**metadata, "name": "documents"}, "spec": POOL}
        task = {"metadata": {**metadata, "name": "nightly"}, "spec": {"pool": "documents", "task": "a", "timer": "*:*"}}
        items = {"joexpools": [pool], "periodictasks": [task]}.get(path.rpartition("/")[2], [])
        return {"metadata": metadata, "items": items}

    async def replace(self, path, body):
        if self.holder or body["metadata"]["uid"] != self.uid:
            raise Conflict(path)
        return body


@pytest.fixture
def namespaces():
    """None: the whole cluster."""
    return ()


@pytest.fixture
async def claimed_late(monkeypatch, namespaces):
    """A release that watches ``namespaces``, and claims at work; notes how many tasks and pools it has reconciled, and
    which owners have left rows behind."""
    seen: asyncio.Queue[tuple[int, int, list[str]]] = asyncio.Queue()

    gone: list[str] = []

    async def remove(_, left):
        gone[:] = [one.owner for one in left]
        return set()

    async def reconcile(_, _owners, tasks, pools, _databases, _left):
        seen.put_nowait((len(tasks), len(pools), gone.copy()))

    async def nothing(*_):
        return 60.0

    async def note_url(controller, key, _pool):
        controller._urls[key] = "postgresql:///x"
        return controller._urls[key]

    monkeypatch.setattr(PeriodicReconciler, "remove", remove)
    monkeypatch.setattr(PeriodicReconciler, "reconcile", reconcile)
    monkeypatch.setattr(PoolReconciler, "reconcile", nothing)
    monkeypatch.setattr(Controller, "_note_url", note_url)
    async with ApiClient(Configuration()) as client:
        api = Objects(client, OperatorMetrics())
        claims = NamespaceClaims(api, "joex")
        fleet = ClusterFleet(api, image="joex", identity="operator", uid_of=claims.uid_of)
        controller = Controller(fleet, worker="operator")
        watches = KopfWatches(
            api, fleet, controller, namespaces, claims=claims, identity="operator", binding="joex:operator"
        )
        running = asyncio.create_task(controller.run())
        async with asyncio.timeout(PATIENCE):
            yield api, claims, watches, controller, seen
        running.cancel()
        await asyncio.wait({running})


BROKEN = ApiError("unable to decode an object")
ALL = 1, 1, list[str]()
NONE = 0, 0, list[str]()


async def test_the_objects_of_a_namespace_that_is_claimed_late_reach_the_controller_together(claimed_late):
    """A pool without its periodic tasks would mean that these are deleted."""
    _, claims, watches, _, seen = claimed_late
    await watches.resync()
    await claims.claim(["prod"])
    await watches.resync()
    assert await seen.get() == ALL


async def test_a_namespace_that_another_release_has_taken_is_left_alone_and_none_of_its_objects_taken_for_deleted(
    claimed_late,
):
    api, claims, watches, controller, seen = claimed_late
    await claims.claim(["prod"])
    await watches.resync()
    assert await seen.get() == ALL
    api.holder = "another"
    await claims.claim(["prod"])
    assert await seen.get() == NONE
    await watches.resync()
    controller.enqueue("prod", "documents")
    assert controller._objects == {}
    api.holder = ""
    await claims.claim(["prod"])
    await watches.resync()
    assert await seen.get() == ALL


async def test_the_objects_of_a_namespace_that_is_made_again_between_two_renewals_are_new_ones(claimed_late):
    api, claims, watches, controller, seen = claimed_late
    await claims.claim(["prod"])
    await watches.resync()
    assert await seen.get() == ALL
    api.uid = "2"
    await claims.claim(["prod"])
    assert await seen.get() == (0, 0, ["kubernetes:prod.1/documents"])
    assert controller._fleet.home("prod") == "prod.2"
    await watches.resync()
    assert await seen.get() == ALL


@pytest.mark.parametrize("namespaces", [("shop", "prod")])
@pytest.mark.parametrize("error", [Forbidden("no right"), NotFound("no such kind"), BROKEN])
async def test_a_namespace_that_the_api_server_does_not_list_is_left_out_and_keeps_no_other_from_being_listed(
    claimed_late, caplog, error
):
    api, claims, watches, _, seen = claimed_late
    await claims.claim(["shop", "prod"])
    api.refused = {"/shop/deployments": error}
    await watches.resync()
    assert await seen.get() == ALL
    assert not watches._is_complete("shop")
    said = watches.left_out()
    assert f"the namespace shop: {error}" in said
    assert ("RoleBinding joex:operator" in said) == (error is not BROKEN)
    await watches.resync()
    assert [one.getMessage() for one in caplog.records].count(said) == 1
    api.refused = {}
    await watches.resync()
    assert watches.left_out() is None
    assert watches._is_complete("shop")


@pytest.mark.parametrize("namespaces", [("shop", "prod")])
async def test_a_namespace_that_is_listed_late_keeps_no_other_waiting_and_is_not_taken_for_restored(
    claimed_late, monkeypatch
):
    api, claims, watches, _, seen = claimed_late
    await claims.claim(["shop", "prod"])
    get, late = api.get, asyncio.Event()

    async def get_late(path, **query):
        answer = await get(path, **query)
        if path.endswith("/shop/deployments"):
            answer["metadata"]["resourceVersion"] = "9"
            await late.wait()
        return answer

    monkeypatch.setattr(api, "get", get_late)
    listing = asyncio.create_task(watches.resync())
    assert await seen.get() == ALL
    assert not watches._is_complete("shop")
    late.set()
    await listing
    assert watches._is_complete("shop")


@pytest.mark.parametrize("namespaces", [("shop", "prod")])
@pytest.mark.parametrize(
    "errors", [{"/shop/pods": BROKEN}, {"/shop/pods": BROKEN, "/prod/pods": Forbidden("no right")}]
)
async def test_an_api_server_that_lists_no_namespace_is_an_error_and_leaves_none_out(claimed_late, errors):
    api, _, watches, _, _ = claimed_late
    api.refused = {"/prod/periodictasks": BROKEN, **errors}
    with pytest.raises(ApiError, match=str(BROKEN)):
        await watches.resync()
    assert watches.left_out() is None


@pytest.mark.parametrize("namespaces", [("shop", "prod")])
async def test_a_namespace_is_tried_again_by_its_whole_list(claimed_late, monkeypatch):
    """If one object of it is the reason, all others would be listed again and again for an answer about the first."""
    api, _, watches, _, _ = claimed_late
    monkeypatch.setattr(kopf_watches, "_LEFT_OUT_AGAIN_IN", 0.0)
    monkeypatch.setattr(kopf_watches, "_PROBES_APART", 0.0)
    get, tries, end = api.get, asyncio.Queue[object](), {"continue": "end"}

    async def get_page(path, **query):
        if not path.endswith("/shop/pods"):
            return await get(path, **query)
        if query.get("continue") and tries.qsize() < 3:
            tries.put_nowait(query)
            raise BROKEN
        return {"metadata": {"resourceVersion": "10", **({} if query.get("continue") else end)}, "items": []}

    monkeypatch.setattr(api, "get", get_page)
    await watches.resync()
    await watches.missed()
    assert tries.qsize() == 3


@pytest.mark.parametrize("namespaces", [("shop", "prod")])
async def test_a_namespace_that_was_refused_is_listed_as_soon_as_the_rights_are_back(claimed_late, monkeypatch):
    api, _, watches, _, _ = claimed_late
    monkeypatch.setattr(kopf_watches, "_LEFT_OUT_AGAIN_IN", 0.01)
    monkeypatch.setattr(kopf_watches, "_PROBES_APART", 0.01)
    api.refused = {"/shop/deployments": Forbidden("no right")}
    await watches.resync()
    missed = asyncio.create_task(watches.missed())
    await asyncio.wait({missed}, timeout=0.2)
    assert not missed.done()
    api.refused = {"/shop/deployments": ApiError("the API server does not answer")}
    await asyncio.wait({missed}, timeout=0.2)
    assert not missed.done()
    api.refused = {}
    await missed


@pytest.mark.parametrize("namespaces", [tuple(f"n{number}" for number in range(100))])
async def test_of_many_namespaces_that_were_refused_one_is_asked_at_a_time_and_none_once_the_rights_are_back(
    claimed_late, monkeypatch
):
    api, _, watches, _, _ = claimed_late
    api.refused = {"/deployments": Forbidden("no right")}
    await watches.resync()
    pauses = []
    sleep = asyncio.sleep

    async def pause(seconds):
        pauses.append(seconds)
        if len(pauses) == 19:  # before the tenth question
            api.refused = {}
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", pause)
    await watches.missed()
    assert pauses == [kopf_watches._PROBES_APART, api.answers_in] * 10


@pytest.mark.parametrize("namespaces", [("shop", "prod")])
async def test_an_api_server_that_does_not_answer_whether_rights_are_back_keeps_no_list_waiting(
    claimed_late, monkeypatch
):
    api, _, watches, _, _ = claimed_late
    monkeypatch.setattr(kopf_watches, "_LEFT_OUT_AGAIN_IN", 0.01)
    monkeypatch.setattr(kopf_watches, "_PROBES_APART", 0.01)
    asked = asyncio.Event()

    async def silent(*_, **__):
        asked.set()
        await asyncio.Event().wait()

    api.refused = {"/shop/deployments": Forbidden("no right")}
    await watches.resync()
    monkeypatch.setattr(api, "get", silent)
    missed = asyncio.create_task(watches.missed())
    await asked.wait()
    watches.request_resync()
    async with asyncio.timeout(PATIENCE):
        await missed


@pytest.mark.parametrize("namespaces", [("prod", "shop")])
@pytest.mark.parametrize("error", [Forbidden("no right"), BROKEN])
async def test_of_a_namespace_that_is_listed_in_part_nothing_reaches_the_controller_nor_is_taken_for_deleted(
    claimed_late, error
):
    api, claims, watches, controller, seen = claimed_late
    await claims.claim(["prod", "shop"])
    api.refused = {"/prod/periodictasks": error}
    await watches.resync()
    assert controller._objects == {}
    api.refused = {}
    await watches.resync()
    assert await seen.get() == ALL
    known = dict(controller._objects)
    api.refused = {"/prod/periodictasks": error}
    await watches.resync()
    assert controller._objects == known


@pytest.mark.parametrize("namespaces", [("prod", "shop")])
async def test_the_objects_of_a_namespace_that_is_lost_and_claimed_again_during_a_list_reach_the_controller_together(
    claimed_late, monkeypatch
):
    api, claims, watches, _, seen = claimed_late
    await claims.claim(["prod", "shop"])
    await watches.resync()
    assert await seen.get() == ALL
    get = api.get

    async def get_meanwhile(path, **query):
        if path.endswith("/prod/periodictasks"):  # the last list: its pools have been read
            for api.holder in ("another", ""):
                await claims.claim(["prod"])
        return await get(path, **query)

    with monkeypatch.context() as patch:
        patch.setattr(api, "get", get_meanwhile)
        await watches.resync()
    assert claims.holds("prod")
    assert await seen.get() == NONE
    await watches.resync()
    assert await seen.get() == ALL


@pytest.mark.parametrize("namespaces", [(), ("prod", "shop")])
async def test_an_api_server_whose_etcd_was_restored_is_noticed(claimed_late):
    """Its objects have lower versions than before, and would count as older than those that are known."""
    api, _, watches, _, _ = claimed_late
    for api.version in ("10", "10", "11"):
        await watches.resync()
    api.version = "9"
    with pytest.raises(ExceptionGroup) as raised:
        await watches.resync()
    found = raised.value.exceptions[0]
    assert isinstance(found, RestoredError)
    assert str(found).startswith("version 9 of deployments after 11")


async def test_an_operator_of_the_whole_cluster_without_its_rights_lists_nothing(claimed_late):
    api, _, watches, _, _ = claimed_late
    api.refused = {"/pods": Forbidden("no right")}
    with pytest.raises(Forbidden):
        await watches.resync()


@pytest.fixture
async def cluster():
    async with ApiClient(Configuration()) as client:  # nothing here asks an API server
        yield ClusterFleet(KubernetesApi(client, OperatorMetrics()), image="joex", identity="operator", uid_of=str)


def test_what_is_older_than_what_is_known_is_not_taken(cluster):
    assert cluster.keep_status(body(5, replicas=5))
    assert not cluster.keep_status(body(4, replicas=4))
    assert cluster.keep_status(body(5, replicas=5))
    assert cluster.status(Ref("JoexPool", *PLACE)) == {"replicas": 5}


def test_an_object_that_is_gone_does_not_come_back_with_an_older_list(cluster):
    cluster.keep_status(body(5, replicas=5))
    cluster.mark_deleted(body(7, replicas=5))
    assert not cluster.keep_status(body(6, replicas=5))
    assert cluster.status(Ref("JoexPool", *PLACE)) == {}
    assert cluster.keep_status(body(8)), "another one of this name"


def test_a_deletion_that_is_told_late_is_not_that_of_another_one_of_this_name(cluster):
    cluster.keep_status(body(8, replicas=8))
    assert not cluster.mark_deleted(body(7))
    assert cluster.status(Ref("JoexPool", *PLACE)) == {"replicas": 8}
    assert cluster.mark_deleted(body(9))


def test_an_object_that_is_newer_than_a_list_is_not_missing_in_it(cluster):
    cluster.keep_status(body(5))
    assert cluster.forget_absent("JoexPool", (), 4, "") == []
    assert cluster.forget_absent("JoexPool", {PLACE}, 6, "") == []
    assert cluster.forget_absent("JoexPool", (), 5, "test") == []
    assert cluster.forget_absent("PeriodicTask", (), 5, "") == []
    assert cluster.forget_absent("JoexPool", (), 5, "prod") == [PLACE]
    assert cluster.forget_absent("JoexPool", (), 5, "") == []

"""The operator before an API server that is slow, or answers only some requests: a fake one."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio.client import ApiClient, Configuration

from joex.store.name_lookups import OWNER
from joex_operator.cluster import kubernetes_api, leader_election, namespace_claims
from joex_operator.cluster import operator as operator_module
from joex_operator.cluster.kopf_watches import KopfWatches, RestoredError
from joex_operator.cluster.kubernetes_api import ApiError
from joex_operator.cluster.operator import Operator
from joex_operator.cluster.settings import OperatorSettings
from joex_operator.control.controller import Controller
from tests.support.waiting import PATIENCE, eventually

LEAD, CLAIM = "joex-operator", "joex.dev"
MOST_OF_ONE = 20
"""Connections of a namespace."""
LEASES = "/apis/coordination.k8s.io/v1/namespaces/shop/leases"


class ApiServer:
    """Has the CRDs, namespaces and Leases; never answers anything else.

    Attributes:
        renewed: how often each Lease was replaced.
        unanswered: requests that wait.
        slowness: seconds that it takes to renew a Lease.
    """

    def __init__(self) -> None:
        self.renewed = Counter[str]()
        self.unanswered = 0
        self.slowness = 0.0

    async def crds(self, _: web.Request) -> web.Response:
        return web.json_response({"resources": [{"name": "joexpools"}, {"name": "periodictasks"}]})

    async def namespace(self, _: web.Request) -> web.Response:
        return web.json_response({"metadata": {"uid": "3f2a9c1e"}})

    async def lease(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        return web.json_response({"metadata": {"name": name, "uid": "1"}, "spec": {}})

    async def renew(self, request: web.Request) -> web.Response:
        await asyncio.sleep(self.slowness)
        self.renewed[request.match_info["name"]] += 1
        return web.json_response(await request.json())

    async def wait(self, _: web.Request) -> web.Response:
        self.unanswered += 1
        await asyncio.Event().wait()
        raise AssertionError


@asynccontextmanager
async def operator_before(api_server: ApiServer, *more: str) -> AsyncIterator[Operator]:
    app = web.Application()
    app.router.add_get("/apis/joex.dev/v1alpha1", api_server.crds)
    app.router.add_get("/api/v1/namespaces/shop", api_server.namespace)
    app.router.add_get(f"{LEASES}/{{name}}", api_server.lease)
    app.router.add_put(f"{LEASES}/{{name}}", api_server.renew)
    app.router.add_route("*", "/{path:.*}", api_server.wait)
    settings = OperatorSettings(namespace="shop", namespaces=["shop", *more], http_address="", identity="one")
    async with TestServer(app) as server:
        configuration = Configuration(host=str(server.make_url("")).rstrip("/"))
        configuration.connection_pool_maxsize = operator_module._CONNECTIONS
        async with ApiClient(configuration) as client:
            made = Operator(settings, client)
            running = asyncio.create_task(made.run())
            try:
                yield made
            finally:
                running.cancel()
                await asyncio.wait({running})


async def for_ever(_: Any) -> None:
    await asyncio.Event().wait()


async def nothing(_: Any) -> None:
    pass


async def ask(operator: Operator, namespace: str, path: str) -> Any:
    """A request of a reconcile in a namespace."""
    OWNER.set(namespace)
    return await operator._api.get(path)


@pytest.fixture
async def silenced(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Operator, list[asyncio.Task[Any]]]]:
    """An operator, and its requests for one namespace, which wait for an answer: more than it has connections."""
    monkeypatch.setattr(kubernetes_api, "_WITHIN", 10 * PATIENCE)
    monkeypatch.setattr(KopfWatches, "resync", nothing)
    monkeypatch.setattr(KopfWatches, "run", for_ever)
    api_server = ApiServer()
    async with operator_before(api_server) as operator:
        silent = [
            asyncio.create_task(ask(operator, "slow", "/silent")) for _ in range(2 * operator_module._CONNECTIONS)
        ]
        await eventually(
            lambda: api_server.unanswered >= MOST_OF_ONE, why="it has all the connections that it may have"
        )
        yield operator, silent
        for task in silent:
            task.cancel()
        await asyncio.wait(silent)


async def test_a_namespace_whose_requests_get_no_answer_leaves_connections_to_others(
    silenced: tuple[Operator, list[asyncio.Task[Any]]],
) -> None:
    """Four pools whose Deployments a webhook never admits held up the pools of all other namespaces."""
    operator, _ = silenced
    async with asyncio.timeout(PATIENCE):
        for namespace in ("shop", ""):  # the resyncs are of no namespace
            assert await ask(operator, namespace, "/api/v1/namespaces/shop")


async def test_a_request_has_its_time_from_when_it_has_a_connection(
    silenced: tuple[Operator, list[asyncio.Task[Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    operator, silent = silenced
    with monkeypatch.context() as patch:
        patch.setattr(kubernetes_api, "_WITHIN", 0.01)
        late = asyncio.create_task(ask(operator, "slow", "/api/v1/namespaces/shop"))
        await asyncio.wait({late}, timeout=0.2)
        assert not late.done()
    for task in silent:
        task.cancel()
    async with asyncio.timeout(PATIENCE):
        assert await late


async def test_requests_that_wait_for_an_answer_keep_no_lease_from_being_renewed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Twenty pools that grow at once have two hundred requests under way: an operator lost the lead again and again."""
    monkeypatch.setattr(kubernetes_api, "_WITHIN", 10 * PATIENCE)
    monkeypatch.setattr(KopfWatches, "resync", nothing)
    monkeypatch.setattr(KopfWatches, "run", for_ever)
    monkeypatch.setattr(leader_election, "_RENEW_EVERY", 0.01)
    monkeypatch.setattr(namespace_claims, "_RENEW_EVERY", 0.01)
    monkeypatch.setattr(namespace_claims, "_LOOK_EVERY", 0.01)
    api_server = ApiServer()
    async with operator_before(api_server) as operator:
        await eventually(lambda: api_server.renewed[CLAIM], why="the operator has claimed the namespace")
        all_of_them = range(operator_module._CONNECTIONS)
        waiting = [asyncio.create_task(ask(operator, f"{one}", "/silent")) for one in all_of_them]
        await eventually(lambda: api_server.unanswered == len(waiting), why="all connections wait for an answer")
        before = api_server.renewed.copy()
        await eventually(lambda: api_server.renewed[LEAD] > before[LEAD] + 1, why="the lead is renewed")
        await eventually(lambda: api_server.renewed[CLAIM] > before[CLAIM] + 1, why="the claim is renewed")
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)


async def test_an_operator_whose_renewals_take_too_long_is_not_ready_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leader_election, "_DEADLINE", 0.5)
    monkeypatch.setattr(leader_election, "_RENEW_EVERY", 0.01)
    monkeypatch.setattr(leader_election, "_TRY_EVERY", 0.01)
    monkeypatch.setattr(operator_module, "_START_OVER_IN", 0.01)
    api_server = ApiServer()
    async with operator_before(api_server) as operator:
        await eventually(lambda: api_server.renewed[LEAD] > 1, why="it leads")
        api_server.slowness = PATIENCE
        await eventually(lambda: "the Lease could not be renewed" in (operator.readiness() or ""))


async def test_an_operator_begins_with_what_it_has_claimed_and_listed_when_a_lease_and_a_list_get_no_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    began = asyncio.Event()

    async def reconcile(_: Any) -> None:
        began.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(KopfWatches, "resync", for_ever)
    monkeypatch.setattr(KopfWatches, "run", for_ever)
    monkeypatch.setattr(Controller, "run", reconcile)
    monkeypatch.setattr(operator_module, "_BEGUN_AFTER", 0.01)
    for module, seconds in (kubernetes_api, "_WITHIN"), (namespace_claims, "_ANSWER_WITHIN"):
        monkeypatch.setattr(module, seconds, 10 * PATIENCE)
    async with operator_before(ApiServer(), "slow") as operator, asyncio.timeout(PATIENCE):
        await began.wait()
        assert operator.readiness() == "leads, and has not listed the cluster yet"
        await eventually(lambda: operator._claims and operator._claims.holds("shop"))


async def test_a_list_that_fails_is_made_again_soon_and_asks_for_a_restart_when_it_has_failed_for_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lists, is_refused = Counter[str](), False

    async def resync(_: Any) -> None:
        lists["all"] += 1
        if is_refused:
            raise ApiError("etcdserver: request timed out")

    monkeypatch.setattr(KopfWatches, "resync", resync)
    monkeypatch.setattr(KopfWatches, "run", for_ever)
    monkeypatch.setattr(operator_module, "_FIRST_RESYNC_AFTER", 0.01)
    monkeypatch.setattr(operator_module, "_RESYNC_AGAIN_IN", 0.01)
    async with operator_before(ApiServer()) as operator:
        await eventually(lambda: operator._listed_at is not None, why="the operator has listed everything at its start")
        is_refused = True
        operator._listed_at = -10_000.0
        before = lists["all"]
        assert operator._watches is not None
        operator._watches.request_resync()
        await eventually(lambda: lists["all"] > before + 2, why="it lists again and again")
        assert operator.health() == "the operator has not listed the cluster for too long"
        is_refused = False
        await eventually(lambda: operator.health() is None, why="a list that succeeds is the end of it")


async def test_an_operator_whose_api_server_was_restored_starts_over_without_what_it_knew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listing: list[KopfWatches] = []

    async def resync(watches: KopfWatches) -> None:
        listing.append(watches)
        if len(listing) == 2:
            raise RestoredError("version 9 of deployments after 11")

    monkeypatch.setattr(KopfWatches, "resync", resync)
    monkeypatch.setattr(KopfWatches, "run", for_ever)
    monkeypatch.setattr(operator_module, "_FIRST_RESYNC_AFTER", 0.01)
    monkeypatch.setattr(operator_module, "_START_OVER_IN", 0.01)
    async with operator_before(ApiServer()):
        await eventually(lambda: len(set(listing)) == 2, why="others watch")
        assert listing[0]._fleet is not listing[-1]._fleet

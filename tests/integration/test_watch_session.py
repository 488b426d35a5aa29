"""The HTTP session of the operator's watches, against a fake API server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any
from unittest.mock import Mock

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kopf._cogs.clients import auth, watching
from kopf._cogs.configs.configuration import OperatorSettings
from kopf._cogs.structs.credentials import Vault
from kopf._cogs.structs.references import NamespaceName, Resource
from kubernetes.aio.client import ApiClient, Configuration

from joex_operator.cluster import kopf_settings, watch_session
from joex_operator.cluster.kopf_watches import KopfWatches
from joex_operator.cluster.kubernetes_api import ApiError, KubernetesApi
from joex_operator.cluster.watch_session import WatchSession
from joex_operator.metrics import OperatorMetrics
from tests.support.waiting import PATIENCE, eventually

PODS, POOLS = "/api/v1/pods", "/apis/joex.dev/v1alpha1/joexpools"
SHOP, PROD = "/api/v1/namespaces/shop/pods", "/api/v1/namespaces/prod/pods"


class ApiServer:
    """Answers every request with ``status``, and remembers the credentials it came with.

    ``events`` are those of each watch.
    """

    def __init__(self) -> None:
        self.status = 200
        self.events = b""
        self.tokens: list[str] = []
        self.asked = asyncio.Event()
        self._told_versions = asyncio.Event()

    async def answer(self, request: web.Request) -> web.Response:
        self.tokens.append(request.headers.get("Authorization", ""))
        self.asked.set()
        if request.path.endswith("/api"):
            self._told_versions.set()
            return web.json_response({"versions": []})
        if request.path.endswith("/apis"):
            # (The second of two questions that fail is a task of kopf's whose traceback is logged when it is collected.
            # While Python 3.11 parses a source, as another test may, that log parses one too, and fails it.)
            await self._told_versions.wait()
        is_watch = request.query.get("watch") == "true" and self.status < 400  # nothing happens before it ends
        headers = {"Retry-After": "Wed, 21 Oct 2065 07:28:00 GMT"} if self.status >= 500 else {}
        return (
            web.Response(body=self.events) if is_watch else web.json_response({}, status=self.status, headers=headers)
        )


@pytest.fixture
async def api_server() -> ApiServer:
    return ApiServer()


@pytest.fixture
async def client(api_server: ApiServer) -> AsyncIterator[ApiClient]:
    app = web.Application()
    app.router.add_get("/{path:.*}", api_server.answer)
    async with TestServer(app) as server:
        # As behind a proxy that serves several clusters.
        configuration = Configuration(host=f"{server.make_url('/')}clusters/one")
        configuration.api_key["BearerToken"] = "bearer first"
        async with ApiClient(configuration) as client:
            yield client


@pytest.fixture
async def session(client: ApiClient) -> AsyncIterator[WatchSession]:
    session = WatchSession(client, [PODS, POOLS], lambda: None)
    yield session
    await session.close()


async def get(session: aiohttp.ClientSession, client: ApiClient, path: str) -> None:
    async with session.get(f"{client.configuration.host}{path}") as response:
        await response.read()


async def watch(session: aiohttp.ClientSession, client: ApiClient, *paths: str) -> None:
    for path in paths:
        await get(session, client, f"{path}?watch=true")


async def test_the_watches_are_live_when_the_latest_request_of_each_began_well(
    api_server: ApiServer, client: ApiClient, session: WatchSession
) -> None:
    http = (await session.login()).aiohttp_session
    assert session.problem() == f"the watch on {PODS} has not started"
    await get(http, client, PODS)
    assert session.problem() == f"the watch on {PODS} has not started", "a list is no watch"
    await watch(http, client, PODS)
    assert session.problem() == f"the watch on {POOLS} has not started"
    await watch(http, client, POOLS)
    assert session.problem() is None
    api_server.status = 403
    await watch(http, client, PODS)
    assert session.problem() == f"the watch on {PODS}: 403 Forbidden"
    api_server.status = 200
    await watch(http, client, PODS)
    assert session.problem() is None


async def test_a_list_of_what_was_watched_before_is_told_because_no_watch_reports_what_has_gone_before_it(
    api_server: ApiServer, client: ApiClient
) -> None:
    told: list[bool] = []
    session = WatchSession(client, [PODS, POOLS], lambda: told.append(True))
    http = (await session.login()).aiohttp_session
    await get(http, client, PODS)
    await watch(http, client, PODS, PODS)
    await get(http, client, POOLS)
    assert told == []
    api_server.status = 503
    await get(http, client, PODS)
    assert told == []
    api_server.status = 200
    await get(http, client, PODS)
    assert told == [True]
    await session.close()


@pytest.mark.parametrize("status", [403, 404, 500, 503])
async def test_kopf_goes_on_trying_a_watch_in_a_namespace_that_the_api_server_refuses_or_can_not_answer(
    api_server: ApiServer, client: ApiClient, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setattr(watch_session, "_LONGEST_PAUSE", 0.0)
    told = asyncio.Event()
    session = WatchSession(client, [SHOP, PROD], told.set, mend="; grant it")
    info = await session.login()
    await watch(info.aiohttp_session, client, PROD)
    auth.vault_var.set(Vault({"one": info}))
    settings = OperatorSettings()
    settings.networking.error_backoffs = (0.0,)
    pods = Resource(group="", version="v1", plural="pods", namespaced=True)

    async def watch_for_ever() -> None:
        async for _ in watching.infinite_watch(settings=settings, resource=pods, namespace=NamespaceName("shop")):
            pass

    async def another_request() -> None:
        api_server.asked.clear()
        asked = asyncio.create_task(api_server.asked.wait())
        await asyncio.wait({asked, kopf_watch}, return_when=asyncio.FIRST_COMPLETED)
        assert asked.done(), kopf_watch

    api_server.status = status
    kopf_watch = asyncio.create_task(watch_for_ever())
    async with asyncio.timeout(PATIENCE):
        for _ in range(5):
            await another_request()
        said = session.left_out()
        assert said is not None
        assert said.startswith(f"the watch on {SHOP}: {status}")
        assert said.endswith("; grant it") == (status < 500)
        assert session.problem() is None, "no restart would help"
        monkeypatch.setattr(watch_session, "_LEFT_OUT_FOR", 0.0)
        assert session.problem() == said, "as if nothing tried the watch again"
        api_server.status = 200
        await told.wait()
        while session.problem() is not None:
            await another_request()
    assert session._left_out_at == {}
    kopf_watch.cancel()
    await asyncio.wait({kopf_watch})
    await session.close()


async def test_a_namespace_is_left_out_only_while_other_watches_are_live(
    api_server: ApiServer, client: ApiClient
) -> None:
    """Otherwise the API server is away, and a restart of the operator may help."""
    session = WatchSession(client, [SHOP, PROD], lambda: None)
    http = (await session.login()).aiohttp_session
    await watch(http, client, SHOP, PROD)
    api_server.status = 503
    await watch(http, client, SHOP)
    assert session.problem() is None
    assert session.left_out() == f"the watch on {SHOP}: 503 Service Unavailable"
    await watch(http, client, PROD, SHOP)
    assert session.left_out() is None
    assert session.problem() == f"the watch on {SHOP}: 503 Service Unavailable"
    await session.close()


async def test_kopf_learns_the_later_of_an_error_in_a_namespace_the_longer_it_lasts(
    api_server: ApiServer, client: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A watch that breaks for a moment is back in a moment, and one that does not come back fills no log."""
    pauses: list[float] = []
    clock = Mock(monotonic=Mock(return_value=1000.0))

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    session = WatchSession(client, [SHOP, PROD], lambda: None)
    http = (await session.login()).aiohttp_session
    await watch(http, client, SHOP, PROD)
    monkeypatch.setattr(watch_session, "asyncio", Mock(wraps=asyncio, sleep=pause))
    monkeypatch.setattr(watch_session, "time", clock)
    api_server.status = 500
    for clock.monotonic.return_value in (1000.0, 1004.0, 2000.0):
        await watch(http, client, SHOP)
    api_server.status = 200
    await watch(http, client, SHOP)
    api_server.status = 500
    await watch(http, client, SHOP)
    assert pauses == [0.0, 4.0, watch_session._LONGEST_PAUSE, 0.0]
    await session.close()


@pytest.fixture
def _lists_anew_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_session, "_LIST_ANEW_IN", 0.0)


OUTDATED = b'{"type":"ERROR","object":{"code":410,"message":"too old"}}\n'


@pytest.mark.parametrize(
    "line",
    [
        OUTDATED,
        b'{"type":"ERROR","object":{"code":500,"message":"a fault"}}\n',
        b'{"object":{"code":500,"message":"a fault"},"type":"ERROR"}\n',
        b'{"type":"MODIFIED","object":null}\n',
        b'{"type":"MODIFIED","object":{"a":"\xff"}}\n',
        b'{"type":"MODIFIED","object":{"metada',
        b"<html>bad gateway</html>\n",
        b"[]\n",
    ],
)
@pytest.mark.parametrize("path", [PODS, POOLS])
@pytest.mark.usefixtures("_lists_anew_at_once")
async def test_kopf_lists_anew_after_a_line_of_a_watch_that_is_no_event(
    api_server: ApiServer, client: ApiClient, caplog: pytest.LogCaptureFixture, path: str, line: bytes
) -> None:
    """After any but an error 410, kopf would end all watches for good."""
    listed = asyncio.Event()
    session = WatchSession(client, [path], listed.set)
    auth.vault_var.set(Vault({"one": await session.login()}))
    group, version, plural = path.removeprefix("/api").removeprefix("s/").split("/")
    kind = Resource(group=group, version=version, plural=plural, namespaced=True)

    async def watch_for_ever() -> None:
        async for _ in watching.infinite_watch(settings=OperatorSettings(), resource=kind, namespace=None):
            pass

    api_server.events = line
    kopf_watch = asyncio.create_task(watch_for_ever())
    await eventually(lambda: listed.is_set() or kopf_watch.done())
    assert not kopf_watch.done(), kopf_watch
    said = [one.getMessage() for one in caplog.records if one.name == "joex.operator"]
    assert bool(said) == (line != OUTDATED), "the API server ends old watches with 410"
    text = line.decode(errors="replace").strip()
    assert all(f"the watch on /clusters/one{path}" in one and text in one for one in said)
    kopf_watch.cancel()
    await asyncio.wait({kopf_watch})
    await session.close()


@pytest.mark.parametrize("status", [400, 404, 410, 422])
async def test_kopf_goes_on_trying_a_watch_and_lists_anew_after_an_error_of_a_client(
    api_server: ApiServer, client: ApiClient, status: int
) -> None:
    """After one such answer, to one watch, kopf would end all of them for good."""
    listed = asyncio.Event()
    session = WatchSession(client, [PODS], listed.set)
    auth.vault_var.set(Vault({"one": await session.login()}))
    settings = OperatorSettings()
    settings.networking.error_backoffs = (0.0,)
    pods = Resource(group="", version="v1", plural="pods", namespaced=True)

    async def watch_for_ever() -> None:
        async for _ in watching.infinite_watch(settings=settings, resource=pods, namespace=None):
            pass

    kopf_watch = asyncio.create_task(watch_for_ever())
    await eventually(lambda: session.problem() is None)
    api_server.status, before = status, len(api_server.tokens)
    await eventually(lambda: len(api_server.tokens) > before + 4 or kopf_watch.done())
    said = session.problem()
    assert said is not None
    assert said.startswith(f"the watch on {PODS}: {status}")
    listed.clear()
    api_server.status = 200
    await eventually(lambda: listed.is_set() or kopf_watch.done())
    assert not kopf_watch.done(), kopf_watch
    kopf_watch.cancel()
    await asyncio.wait({kopf_watch})
    await session.close()


async def test_the_operator_starts_over_when_kopf_has_ended(client: ApiClient) -> None:
    """Its thread hung, and the operator went on without watches, until kopf killed the process ten minutes later."""
    api = KubernetesApi(client, OperatorMetrics())
    fleet: Any = Mock()  # kopf ends at once: the API server names no groups of kinds
    watches = KopfWatches(api, fleet, Mock(), (), claims=Mock(), identity="operator", binding="joex:operator")
    with pytest.raises(ApiError, match="the watches on the API server have ended: KeyError: 'groups'"):
        async with asyncio.timeout(PATIENCE):
            await watches.run()


KINDS = {
    "/api/v1": ["Pod", "Namespace"],
    "/apis/apps/v1": ["Deployment"],
    "/apis/joex.dev/v1alpha1": ["JoexPool", "PeriodicTask"],
}


def kinds_at(path: str) -> dict[str, Any]:
    verbs = ["get", "list", "watch"]
    return {
        "resources": [
            {"name": f"{kind.lower()}s", "singularName": kind.lower(), "kind": kind, "namespaced": True, "verbs": verbs}
            for kind in KINDS[path]
        ]
    }


async def test_it_starts_over_too_when_other_watches_of_kopf_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """kopf cancels these once, and waits for them without an end."""
    monkeypatch.setattr(kopf_settings, "_TRY_AGAIN_IN", (0.0,))
    watched, is_broken = set[str](), False

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal is_broken
        path = request.path
        if path in KINDS:
            return web.json_response(kinds_at(path))
        if path in ("/api", "/apis"):
            groups = [one.removeprefix("/apis/").split("/") for one in KINDS if one.startswith("/apis/")]
            versions = [
                {"name": group, "versions": [{"version": v}], "preferredVersion": {"version": v}} for group, v in groups
            ]
            return web.json_response({"versions": ["v1"], "groups": versions})
        if is_broken and path == PODS:
            return web.json_response({}, status=500)
        if request.query.get("watch") != "true":
            return web.json_response({"metadata": {"resourceVersion": "1"}, "items": []})
        stream = web.StreamResponse()
        await stream.prepare(request)
        watched.add(path)
        if path == PODS:
            await eventually(lambda: len(watched) == 4)
            is_broken = True
        else:
            await asyncio.Event().wait()
        return stream

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    async with TestServer(app) as server, ApiClient(Configuration(host=str(server.make_url("")))) as client:
        fleet: Any = Mock()
        api = KubernetesApi(client, OperatorMetrics())
        watches = KopfWatches(api, fleet, Mock(), (), claims=Mock(), identity="operator", binding="joex:operator")
        with pytest.raises(ApiError, match="the watches on the API server have ended: APIServerError"):
            async with asyncio.timeout(PATIENCE):
                await watches.run()


async def test_what_fails_before_the_first_watch_is_told(client: ApiClient, session: WatchSession) -> None:
    client.configuration.host = "http://127.0.0.1:1"
    http = (await session.login()).aiohttp_session
    with suppress(aiohttp.ClientError):
        await get(http, client, "/apis/joex.dev/v1alpha1")
    said = session.problem()
    assert said is not None
    assert said.startswith(f"the watch on {PODS} has not started: Cannot connect to host 127.0.0.1:1")


async def test_each_request_has_the_token_of_its_moment(
    api_server: ApiServer, client: ApiClient, session: WatchSession
) -> None:
    """The tokens of pods are files that the kubelet rewrites, and our client rereads."""
    http = (await session.login()).aiohttp_session
    await watch(http, client, PODS)
    client.configuration.api_key["BearerToken"] = "bearer second"
    await watch(http, client, PODS)
    assert api_server.tokens == ["bearer first", "bearer second"]


async def test_another_login_closes_the_session_before_and_has_the_very_tls_of_our_client(
    client: ApiClient, session: WatchSession
) -> None:
    first = (await session.login()).aiohttp_session
    second = (await session.login()).aiohttp_session
    assert (first.closed, second.closed) == (True, False)
    connector = second.connector
    assert isinstance(connector, aiohttp.TCPConnector)
    assert connector._ssl is client.rest_client.ssl_context
    await session.close()
    assert second.closed

"""Large answers of the API server, of which the operator has few in memory at once: against a fake one."""

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer
from kubernetes.aio.client import ApiClient, Configuration

from joex_operator.cluster import body_turns
from joex_operator.cluster.kubernetes_api import ApiError, KubernetesApi
from joex_operator.cluster.watch_session import WatchSession
from joex_operator.metrics import OperatorMetrics
from tests.support.waiting import PATIENCE, eventually

NAMESPACES = [f"shop-{number}" for number in range(20)]
LARGE = 8_000_000
BEGIN, END = b'{"metadata":{"name":"', b'"}}'
MOST_AT_ONCE = len(NAMESPACES) * LARGE // 2
"""Bytes: two large answers with their copies, and a MB of each other one in the buffers of both sides, are a third."""


class ApiServer:
    """Answers with an object of a large name: in a list, or as an event. It begins when ``crowd`` requests have come.

    Of each namespace in ``stalled`` it sends only a half, and of the others in ``small`` a short name.
    """

    def __init__(self) -> None:
        self.crowd = 1
        self.asked = 0
        self.stalled: set[str] = set()
        self.halves = 0
        self.is_small = False
        self._all_there = asyncio.Event()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked += 1
        if self.asked == self.crowd:
            self._all_there.set()
        await self._all_there.wait()
        response = web.StreamResponse()
        await response.prepare(request)
        is_watch = request.query.get("watch") == "true"
        begin, end = (b'{"type":"ADDED","object":', b"}\n") if is_watch else (b'{"items":[', b"]}")
        await response.write(begin + BEGIN)
        namespace = request.match_info["namespace"]
        for number in range(1 if self.is_small and namespace not in self.stalled else LARGE // 60_000):
            if namespace in self.stalled and number == 20:
                self.halves += 1
                await asyncio.Event().wait()
            await response.write(b"\\u003c" * 10_000)
        await response.write(END + end)
        return response


@asynccontextmanager
async def serving(api_server: ApiServer) -> AsyncIterator[ApiClient]:
    app = web.Application()
    app.router.add_get("/api/v1/namespaces/{namespace}/pods", api_server.answer)
    async with TestServer(app) as server, ApiClient(Configuration(host=str(server.make_url("")).rstrip("/"))) as client:
        yield client


Read = Callable[[str], Awaitable[object]]


@asynccontextmanager
async def reading(client: ApiClient, how: str) -> AsyncIterator[Read]:
    """Reads the pods of a namespace, as the operator or kopf does; returns a true value."""
    api, session = KubernetesApi(client, OperatorMetrics()), WatchSession(client, [], lambda: None)
    http: ClientSession = (await session.login()).aiohttp_session

    async def list_of(namespace: str) -> object:
        return (await api.get(f"/api/v1/namespaces/{namespace}/pods"))["items"]

    async def kopf_list(namespace: str) -> object:
        async with http.get(f"{client.configuration.host}/api/v1/namespaces/{namespace}/pods") as answer:
            return (await answer.json())["items"]

    async def kopf_watch(namespace: str) -> object:
        async with http.get(f"{client.configuration.host}/api/v1/namespaces/{namespace}/pods?watch=true") as answer:
            return [len(line) async for line in answer.content.iter_chunked(2**20) if line]

    try:
        yield {"list": list_of, "list of kopf": kopf_list, "watch of kopf": kopf_watch}[how]
    finally:
        await session.close()


HOW = pytest.mark.parametrize("how", ["list", "list of kopf", "watch of kopf"])


@HOW
async def test_of_large_answers_for_many_namespaces_few_are_in_memory_at_once(how: str) -> None:
    """Two namespaces with Deployments of nothing but "<", six bytes of JSON each, took the operator over 512 MiB."""
    api_server = ApiServer()
    api_server.crowd = len(NAMESPACES)
    async with serving(api_server) as client, reading(client, how) as read:
        tracemalloc.start()
        try:
            async with asyncio.timeout(PATIENCE):
                assert all(await asyncio.gather(*map(read, NAMESPACES)))
            assert tracemalloc.get_traced_memory()[1] < MOST_AT_ONCE
        finally:
            tracemalloc.stop()


@HOW
async def test_a_namespace_whose_large_answers_stall_leaves_a_turn_to_others_and_small_ones_need_none(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body_turns, "_WITHIN", 10 * PATIENCE)
    api_server = ApiServer()
    api_server.stalled = {"slow"}
    async with serving(api_server) as client, reading(client, how) as read:
        stalled = [asyncio.ensure_future(read("slow")) for _ in range(4)]
        await eventually(lambda: api_server.halves == len(stalled), why="each has sent a half")
        async with asyncio.timeout(PATIENCE):
            assert await read("shop")
            api_server.stalled.add("slower")
            stalled.append(asyncio.ensure_future(read("slower")))
            await eventually(lambda: api_server.halves == len(stalled), why="it has the other turn")
            api_server.is_small = True
            assert await read("shop")
        for task in stalled:
            task.cancel()
        await asyncio.wait(stalled)


@HOW
async def test_a_large_answer_that_stalls_has_its_turn_for_a_limited_time(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body_turns, "_WITHIN", 0.01)
    api_server = ApiServer()
    api_server.stalled = {"slow", "slower"}
    async with serving(api_server) as client, reading(client, how) as read:
        async with asyncio.timeout(PATIENCE):
            for namespace in api_server.stalled:
                with pytest.raises((TimeoutError, ApiError)):
                    await read(namespace)
        monkeypatch.undo()
        async with asyncio.timeout(PATIENCE):
            assert await read("shop")

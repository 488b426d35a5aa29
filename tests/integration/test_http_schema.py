"""The HTTP interface does what its own description says, for each route, including future ones.

schemathesis reads the description, makes valid and invalid calls from it, and checks the answers: status, headers, type
and schema, that the server refuses invalid calls and accepts valid ones, and that it serves no call without the token
except the public ones. It runs in its own process, against the real server, with a real executor beside it; its choices
are the same each time.
"""

import asyncio
import re
import socket
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

import joex
from joex import Client
from joex.config import Settings
from joex.core.events import RunStarted
from joex.http.api import create_api
from joex.http.listening import listen
from joex.http.server import serve
from joex.observe.metrics import Metrics
from joex.runtime.executor import Executor
from tests.support import schemathesis_hooks
from tests.support.apps import AnyClient
from tests.support.asgi import transport
from tests.support.processes_inside import LONG, Inside, executor_inside

TOKEN = "0123456789abcdef"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
PUBLIC = {(method, path) for method in ("GET", "HEAD") for path in ("/healthz", "/readyz", "/metrics")}
DESCRIPTION = "openapi.json"
EXAMPLES = 10
"""Calls of each kind for each route, in addition to those for each limit in its schema."""
WITHIN = 500
"""Seconds; an idle machine needs a tenth of them."""
CONFIGURATION = f"""
hooks = "{schemathesis_hooks.__file__}"
request-timeout = 20
parameters = {{ "query.wait" = 0, "body.wait" = 0 }}  # where a call can wait, it does not
auth.openapi.HTTPBearer.bearer = "{TOKEN}"
generation = {{ deterministic = true, max-examples = {EXAMPLES} }}
"""


class Face:
    """The real executor, except that it only records a request to drain."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.drains = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)

    def drain(self) -> None:
        self.drains += 1


@pytest.fixture
def app() -> joex.App:
    app = joex.App()

    @app.task("echo")
    async def echo(ctx: joex.Context, text: str) -> dict[str, str]:
        ctx.log.info("%s", text)
        return {"text": text}

    @app.task("hold")
    async def hold(ctx: joex.Context) -> None:
        ctx.progress(50, "half")
        await asyncio.Event().wait()

    @app.task("fail", retries=0)
    async def fail(ctx: joex.Context) -> None:
        raise ValueError("broken")

    return app


async def jobs_of_all_kinds(client: AnyClient, inside: Inside) -> None:
    """Submit jobs, so that the lists are not empty."""
    await client.submit("hold", group="acme", subject="a long one")
    await inside.log.wait_for(RunStarted)
    for job_id in (await client.submit("echo", {"text": "hello"}), await client.submit("fail", tracker="one")):
        await inside.ended(job_id)
    await client.submit("echo", not_before="1h", tracker="two")
    await client.cancel(await client.submit("echo", queue="nobody's"))
    await client.submit("echo", queue="nobody's", priority="high")


@asynccontextmanager
async def served(settings: Settings, client: Client, executor: Any) -> AsyncIterator[str]:
    """The address of a server."""
    metrics = Metrics(slots=4, busy=lambda: 1, tasks=())
    with listen("127.0.0.1:0") as listener:
        # The executor's own loop does this by itself; without it each answer waits 40 ms for an acknowledgement.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        serving = asyncio.create_task(serve(create_api(settings, client, executor, metrics.render), listener))
        try:
            yield "http://{}:{}".format(*listener.getsockname())
        finally:
            serving.cancel()
            await asyncio.wait([serving])


async def judge(address: str, folder: Path) -> tuple[int | None, str]:
    """Run schemathesis with the description in a folder; returns its exit code and its output."""
    configuration = folder / "schemathesis.toml"
    configuration.write_text(CONFIGURATION)
    command = (sys.executable, "-m", "schemathesis.cli", "--no-color", "--config-file", configuration)
    process = await asyncio.create_subprocess_exec(
        *(*command, "run", DESCRIPTION, "--url", address, "--checks", "all", "--continue-on-failure"),
        cwd=folder,
        stdout=PIPE,
        stderr=STDOUT,
    )
    try:
        async with asyncio.timeout(WITHIN):
            said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode, said.decode()


@pytest.mark.heavy
@pytest.mark.soak
async def test_every_answer_is_as_the_description_says(client, database_url, app, tmp_path):
    async with executor_inside(app, database_url, lease=LONG) as inside:
        await jobs_of_all_kinds(client, inside)
        face = Face(inside.executor)
        async with served(Settings(api_token=TOKEN), client, face) as address:
            async with httpx.AsyncClient(base_url=address, headers=BEARER) as http:
                description = await http.get("/openapi.json")
            (tmp_path / DESCRIPTION).write_bytes(description.content)
            code, said = await judge(address, tmp_path)
    assert code == 0, said
    operations = sum(map(len, description.json()["paths"].values()))
    assert f"Selected: {operations}/{operations}\n  Tested: {operations}\n" in said
    assert "❌" not in said, said
    assert face.drains > 0


HERE, ELSEWHERE = ("127.0.0.1", "http://127.0.0.1"), ("10.1.2.3", "http://joex.example.org")


@pytest.mark.parametrize(
    ("token", "caller", "headers", "refusal"),
    [
        (TOKEN, ELSEWHERE, {}, 401),
        (TOKEN, HERE, {}, 401),
        (TOKEN, ELSEWHERE, {"Authorization": f"Bearer {TOKEN}0"}, 401),
        (TOKEN, ELSEWHERE, BEARER, None),
        (None, ELSEWHERE, {}, 403),
        (None, ("127.0.0.1", "http://rebound.example.org"), {}, 403),
        (None, HERE, {"X-Forwarded-For": "10.1.2.3"}, 403),
        (None, HERE, {"Origin": "https://example.org"}, 403),
        (None, HERE, {}, None),
    ],
)
async def test_only_probes_and_metrics_are_served_to_every_caller(app, token, caller, headers, refusal):
    async with Client("postgresql://nobody@127.0.0.1:1/nothing") as nowhere:
        face: Any = Face(Executor(app, Settings(), ""))
        api = create_api(Settings(api_token=token), nowhere, face, lambda: (b"", "text/plain"))
        async with httpx.AsyncClient(transport=transport(api, caller[0]), base_url=caller[1], headers=headers) as http:
            for method, path in {*every_route(api.routes), ("GET", "/no/such/route"), ("POST", "/metrics")}:
                answer = await http.request(method, path)
                refused = answer.status_code if answer.status_code in (401, 403) else None
                assert refused == (None if (method, path) in PUBLIC else refusal), (method, path)
                assert not refused or method == "HEAD" or "Authorization: Bearer" in answer.json()["detail"]
    assert refusal is None or face.drains == 0


async def test_the_routes_that_the_test_above_walks_are_all_that_are_described(app):
    async with Client("postgresql://nobody@127.0.0.1:1/nothing") as nowhere:
        face: Any = Face(Executor(app, Settings(), ""))
        api = create_api(Settings(), nowhere, face, lambda: (b"", "text/plain"))
    described = {(method.upper(), filled(path)) for path, by in api.openapi()["paths"].items() for method in by}
    assert len(described) > 40
    assert described <= set(every_route(api.routes))
    unprotected = {
        (method.upper(), path)
        for path, by in api.openapi()["paths"].items()
        for method, one in by.items()
        if "security" not in one or not {"401", "403"} <= set(one["responses"])
    }
    assert unprotected == {one for one in PUBLIC if one[0] == "GET"}


async def test_each_route_refuses_a_parameter_that_it_does_not_have_or_that_comes_twice_and_names_those_that_it_has(
    app,
):
    async with Client("postgresql://nobody@127.0.0.1:1/nothing") as nowhere:
        face = Face(Executor(app, Settings(), ""))
        api = create_api(Settings(), nowhere, face, lambda: (b"", "text/plain"))
        async with httpx.AsyncClient(transport=transport(api), base_url="http://127.0.0.1") as http:
            paths = (await http.get("/openapi.json")).json()["paths"]
            for path, methods in paths.items():
                for method, operation in methods.items():
                    parameters = [one for one in operation.get("parameters", []) if one["in"] == "query"]
                    known = [one["name"] for one in parameters]
                    answer = await http.request(method, path, params={"limti": "1"})
                    said = f"known are {', '.join(known)}" if known else "this call has none"
                    told = {"detail": f"limti: there is no such parameter: {said}"}
                    assert (answer.status_code, answer.json()) == (400, told), (method, path)
                    assert "400" in operation["responses"], (method, path)
                    for name in known:
                        answer = await http.request(method, path, params={name: "1"})
                        assert "there is no such parameter" not in answer.text, (method, path, name)
                    for one in parameters:
                        answer = await http.request(method, path, params=[(one["name"], "1"), (one["name"], "")])
                        twice = f"{one['name']}: is given 2 times: give it once"
                        is_list = any(shape.get("type") == "array" for shape in one["schema"].get("anyOf", []))
                        assert (answer.json() == {"detail": twice}) != is_list, (method, path, one)
    assert face.drains == 0


def every_route(routes: Any) -> Iterator[tuple[str, str]]:
    """The methods and paths of all routes, also of routers within each other."""
    for route in routes:
        if included := getattr(route, "original_router", None):
            yield from every_route(included.routes)
        else:
            yield from ((method, filled(route.path)) for method in route.methods)


def filled(path: str) -> str:
    """A path with a value for each parameter."""
    return re.sub(r"{[^}]*}", "019f0000-0000-7000-8000-000000000000", path)

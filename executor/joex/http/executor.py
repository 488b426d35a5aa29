"""Routes about this executor: its runs, looking for work, shutdown, and probes."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response, status

from joex.core.access import Scope
from joex.core.job import RunningJob
from joex.errors import JoexError
from joex.http.caller import TheCaller, acting, needs
from joex.http.dependencies import Done, TheClient, TheExecutor, refusals
from joex.http.models import Name
from joex.http.route import Route
from joex.scrapes import Scrapes
from joex.store import audit

routes = APIRouter(route_class=Route, tags=["executor"])

_VERSION = version("joex")
_NOTE_WITHIN = 2.0  # seconds


@dataclass(frozen=True, slots=True)
class Version:
    """The program that answers."""

    version: str
    app_id: str


@dataclass(frozen=True, slots=True)
class Running:
    """The runs of this executor."""

    running: list[RunningJob]


@dataclass(frozen=True, slots=True)
class Health:
    """The answer to a probe, and the state of the executor."""

    ok: bool
    phase: str


@routes.get("/api/info/version", dependencies=[needs(*Scope)])
async def info_version(executor: TheExecutor) -> Version:
    """Return the version of this executor."""
    return Version(_VERSION, executor.app_id)


@routes.post("/api/v1/notify", responses=refusals(503), dependencies=[needs(Scope.OPERATE, whole_system=True)])
async def notify(
    executor: TheExecutor,
    client: TheClient,
    queue: Annotated[Name | None, Query(description="notify all executors of this queue")] = None,
) -> Done:
    """Make this executor, or all executors of a queue, look for work now."""
    if queue is None:
        executor.wake()
        return Done("looking for work")
    return Done(f"executors of the queue {queue!r} asked to look for work: {await client.notify(queue)}")


@routes.get("/openapi.json", include_in_schema=False, dependencies=[needs(*Scope)])
async def describe(request: Request) -> Response:
    """Describe all calls, by OpenAPI."""
    return Response(request.app.description_as_json, media_type="application/json")


@routes.get("/api/v1/running", dependencies=[needs(Scope.VIEW)])
async def list_running(executor: TheExecutor, caller: TheCaller) -> Running:
    """List what this executor runs."""
    return Running([run for run in executor.running() if caller.bounds.holds(run.queue, run.group)])


@routes.post("/api/v1/shutdownAndExit", responses=refusals(), dependencies=[needs(Scope.OPERATE, whole_system=True)])
async def shut_down(executor: TheExecutor, client: TheClient, caller: TheCaller) -> Done:
    """Take no more jobs, and exit when the running jobs are done. Answers at once; without the database too."""
    executor.drain()
    with suppress(JoexError, TimeoutError):
        async with asyncio.timeout(_NOTE_WITHIN), acting(client, caller) as connection:
            await audit.note(connection, "drain", executor.app_id)
    return Done(f"taking no more jobs; exiting when {len(executor.running())} running ones are done")


@routes.get(
    "/healthz", responses={503: {"model": Health, "description": "Restart the executor"}}, dependencies=[needs()]
)
async def healthz(executor: TheExecutor, response: Response) -> Health:
    """Check whether the executor is alive: its services run, and its lease is valid."""
    return _health(executor.phase, response, ok=executor.alive)


@routes.get("/readyz", responses={503: {"model": Health, "description": "It takes no jobs"}}, dependencies=[needs()])
async def readyz(executor: TheExecutor, response: Response) -> Health:
    """Check whether the executor takes jobs."""
    return _health(executor.described, response, ok=executor.ready)


@routes.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "For Prometheus"}},
    dependencies=[needs()],
)
async def metrics(request: Request) -> Response:
    """Return the metrics in the text format of Prometheus."""
    scrapes: Scrapes = request.app.state.scrapes
    content, content_type = await scrapes.page()
    return Response(content, media_type=content_type)


def _health(phase: str, response: Response, *, ok: bool) -> Health:
    if not ok:
        response.status_code = status.HTTP_503_SERVICE_UNAVAILABLE
    return Health(ok, phase)

"""Routes about this executor: its runs, looking for work, shutdown, and probes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response, status

from joex.core.job import RunningJob
from joex.http.dependencies import Done, TheClient, TheExecutor, refusals
from joex.http.models import Name

routes = APIRouter(tags=["executor"])

_VERSION = version("joex")


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


@routes.get("/api/info/version")
async def info_version(executor: TheExecutor) -> Version:
    """Return the version of this executor."""
    return Version(_VERSION, executor.app_id)


@routes.post("/api/v1/notify", responses=refusals(503))
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


@routes.get("/api/v1/running")
async def list_running(executor: TheExecutor) -> Running:
    """List what this executor runs."""
    return Running(executor.running())


@routes.post("/api/v1/shutdownAndExit", responses=refusals())
async def shut_down(executor: TheExecutor) -> Done:
    """Take no more jobs, and exit when the running jobs are done. Answers at once."""
    executor.drain()
    return Done(f"taking no more jobs; exiting when {len(executor.running())} running ones are done")


@routes.get("/healthz", responses={503: {"model": Health, "description": "Restart the executor"}})
async def healthz(executor: TheExecutor, response: Response) -> Health:
    """Check whether the executor is alive: its services run, and its lease is valid."""
    return _health(executor.phase, response, ok=executor.alive)


@routes.get("/readyz", responses={503: {"model": Health, "description": "It takes no jobs"}})
async def readyz(executor: TheExecutor, response: Response) -> Health:
    """Check whether the executor takes jobs."""
    return _health(executor.phase, response, ok=executor.ready)


@routes.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "For Prometheus"}},
)
async def metrics(request: Request) -> Response:
    """Return the metrics in the text format of Prometheus."""
    render: Callable[[], tuple[bytes, str]] = request.app.state.metrics
    content, content_type = render()
    return Response(content, media_type=content_type)


def _health(phase: str, response: Response, *, ok: bool) -> Health:
    if not ok:
        response.status_code = status.HTTP_503_SERVICE_UNAVAILABLE
    return Health(ok, phase)

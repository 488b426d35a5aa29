"""The application: routes, authorization, errors, documentation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from fastapi import Depends, FastAPI

from joex.client.client import Client
from joex.client.keyed_jobs import KeyedJobs
from joex.config import Settings
from joex.http import executor as of_executor
from joex.http import jobs, keyed, periodic, queues, workers
from joex.http.auth import PUBLIC, AuthMiddleware
from joex.http.dependencies import BEARER, refuse_unknown_parameters
from joex.http.errors import add_handlers, problems
from joex.http.executor_protocol import ExecutorProtocol

LARGEST_BODY = 10_000_000
"""The largest request body, in bytes."""

_ABOUT = """
Submit, manage and read jobs, run jobs in your own programs, and monitor this executor.

If JOEX_API_TOKEN is set, all calls need `Authorization: Bearer <token>`; without a token, the executor serves only
programs on its own machine. It serves `/healthz`, `/readyz` and `/metrics` to every caller. A refused call answers
with `{"detail": "why"}`.
"""


def create_api(
    settings: Settings, client: Client, executor: ExecutorProtocol, metrics: Callable[[], tuple[bytes, str]]
) -> FastAPI:
    """The HTTP interface of an executor, as an ASGI application.

    Args:
        settings: the token, and the retries of workers' jobs, come from here.
        client: reads and changes the database.
        executor: the executor in this process.
        metrics: returns the page for Prometheus, and its content type.
    """
    api = _Api(
        title="Joex",
        version=version("joex"),
        description=_ABOUT,
        docs_url=None,  # FastAPI's pages run scripts of a CDN in the origin of this interface
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,  # the name of the function in generated clients
        dependencies=[Depends(refuse_unknown_parameters), BEARER],
        responses=problems(400, 401, 403),
    )
    api.state.client, api.state.executor, api.state.metrics = client, executor, metrics
    api.state.closing = asyncio.Event()  # set when the server stops: waiting calls end (see joex.http.disconnect)
    api.state.keyed = KeyedJobs(
        client.connections,
        retries=settings.retries,
        retry_delay=settings.retry_delay,
        retry_jitter=settings.retry_jitter,
    )
    for part in (of_executor, jobs, keyed, workers, queues, periodic):
        api.include_router(part.routes)
    add_handlers(api)
    token = settings.api_token.get_secret_value() if settings.api_token else None
    api.add_middleware(AuthMiddleware, token=token, largest_body=LARGEST_BODY)
    return api


class _Api(FastAPI):
    """Corrects the documentation: wrong parameters and bodies get a 400, not a 422, and public calls need no token."""

    def openapi(self) -> dict[str, Any]:
        schema = super().openapi()
        for path in schema["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
        for path in PUBLIC:
            schema["paths"][path]["get"].pop("security", None)
            for status in ("401", "403"):
                schema["paths"][path]["get"]["responses"].pop(status, None)
        for name in ("HTTPValidationError", "ValidationError"):
            schema["components"]["schemas"].pop(name, None)
        return schema

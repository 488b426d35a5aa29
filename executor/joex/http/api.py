"""The application: routes, gate, errors, documentation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from fastapi import Depends, FastAPI
from fastapi.routing import APIRoute

from joex.client.client import Client
from joex.client.keyed_jobs import KeyedJobs
from joex.config import Settings
from joex.http import executor as of_executor
from joex.http import jobs, keyed, periodic, queues, workers
from joex.http.auth import AuthMiddleware
from joex.http.dependencies import refuse_unknown_parameters
from joex.http.errors import add_handlers, problems
from joex.http.executor_protocol import ExecutorProtocol

LARGEST_BODY = 10_000_000
"""Bytes of a body."""

_ABOUT = """
Submit jobs, steer and read them, run them in programs of your own, and look after this executor.

Calls that change something need `Authorization: Bearer <token>` when JOEX_API_TOKEN is set; without a token they are
served on loopback only. A call that is not served answers with `{"detail": "why"}`.
"""


def create_api(
    settings: Settings, client: Client, executor: ExecutorProtocol, metrics: Callable[[], tuple[bytes, str]]
) -> FastAPI:
    """The HTTP interface of an executor, as an ASGI application.

    Args:
        settings: of which the token counts here, and the retries of workers' jobs.
        client: for what is in the database.
        executor: for what is in this process.
        metrics: gives the page for Prometheus, and its content type.
    """
    api = _Api(
        title="Joex",
        version=version("joex"),
        description=_ABOUT,
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=_operation_id,
        dependencies=[Depends(refuse_unknown_parameters)],
        responses=problems(400),
    )
    api.state.client, api.state.executor, api.state.metrics = client, executor, metrics
    api.state.closing = asyncio.Event()  # it stops: calls that wait end (see joex.http.disconnect)
    api.state.keyed = KeyedJobs(
        client.connections,
        retries=settings.retries,
        retry_delay=settings.retry_delay,
        retry_jitter=settings.retry_jitter,
    )
    for part in (of_executor, jobs, keyed, workers, queues, periodic):
        api.include_router(part.routes)
    add_handlers(api)
    # An empty token counts as none: it would let everybody in.
    token = settings.api_token.get_secret_value() if settings.api_token else ""
    api.add_middleware(AuthMiddleware, token=token or None, largest_body=LARGEST_BODY)
    return api


class _Api(FastAPI):
    """Its documentation says what holds: wrong parameters and bodies are answered with 400, not with 422."""

    def openapi(self) -> dict[str, Any]:
        schema = super().openapi()
        for path in schema["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
        for name in ("HTTPValidationError", "ValidationError"):
            schema["components"]["schemas"].pop(name, None)
        return schema


def _operation_id(route: APIRoute) -> str:
    """What generated clients call their functions."""
    return route.name

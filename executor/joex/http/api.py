"""The application: routes, authorization, errors, documentation."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import cached_property
from importlib.metadata import version
from typing import Any

from fastapi import Depends, FastAPI
from fastapi.routing import APIRoute

from joex.client.client import Client
from joex.client.keyed_jobs import KeyedJobs
from joex.config import Settings
from joex.http import executor as of_executor
from joex.http import jobs, keyed, periodic, queues, workers
from joex.http.auth import PUBLIC, AuthMiddleware
from joex.http.caller import needs_of
from joex.http.dependencies import BEARER, refuse_repeated_parameters, refuse_unknown_parameters
from joex.http.errors import add_handlers, problems
from joex.http.executor_protocol import ExecutorProtocol
from joex.http.route import Calls, Route, routes_of, together
from joex.http.tokens import Tokens
from joex.http.turns import Turns, line_of_acts, line_of_reports
from joex.scrapes import Scrapes

LARGEST_BODY = 10_000_000
"""The largest request body, in bytes."""

_ABOUT = """
Submit, manage and read jobs, run jobs in your own programs, and monitor this executor.

A call carries a token: `Authorization: Bearer <token>`. JOEX_API_TOKEN is the owner's token, which may do everything.
If it is not set, programs on the executor's own machine that run as its user or as root need no token. `joex tokens
create` creates tokens with scopes. Each route says which scope it needs; of several, one is enough. Without the scope
`payloads`, a token gets no arguments, results, errors and messages (they are null), and no logs (they are empty). For a
token that is bound to groups and queues, only these exist. The executor serves `/healthz`, `/readyz` and `/metrics` to
every caller. A refused call answers with `{"detail": "why"}`.
"""

_ROUTERS = (of_executor.routes, jobs.routes, keyed.routes, workers.routes, queues.routes, periodic.routes)


def check_route(route: APIRoute) -> None:
    """Check that a route has `needs`, and is of the class that judges by it.

    Raises:
        RuntimeError: it does not.
    """
    needs_of(route)
    if type(route) is not Route:
        raise RuntimeError(f"the route {route.path} must be of the class Route, which judges who may call it")


_ALL = together(
    _ROUTERS,
    check_route,
    dependencies=[Depends(refuse_unknown_parameters), Depends(refuse_repeated_parameters), BEARER],
    responses=problems(400, 401, 403, 503),
    generate_unique_id_function=lambda route: route.name,  # the name of the function in generated clients
)


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
        openapi_url=None,  # FastAPI's route knows no limits of calls, and writes the same text for each
        docs_url=None,  # FastAPI's pages run scripts of a CDN in the origin of this interface
        redoc_url=None,
        redirect_slashes=False,
        routes=[*_ALL.routes],
    )
    api.state.client, api.state.executor = client, executor
    api.state.scrapes = Scrapes(metrics)
    api.state.turns, api.state.calls = Turns(), Calls()
    api.state.reports = line_of_reports(api.state.calls.pace)
    api.state.acts, api.state.accepting = line_of_acts(), Turns()
    api.state.closing = asyncio.Event()  # set when the server stops: waiting calls end (see joex.http.disconnect)
    api.state.keyed = KeyedJobs(
        client.connections,
        retries=settings.retries,
        retry_delay=settings.retry_delay,
        retry_jitter=settings.retry_jitter,
    )
    add_handlers(api, [route for router in _ROUTERS for route in routes_of(router)])
    token = settings.api_token.get_secret_value() if settings.api_token else None
    api.add_middleware(AuthMiddleware, token=token, tokens=Tokens(client), largest_body=LARGEST_BODY)
    return api


class _Api(FastAPI):
    """Corrects the documentation: wrong parameters and bodies get a 400, not a 422, and public calls need no token.

    It also names the scopes of each route: ``x-scopes``, of which a token needs one; and with ``x-whole-system`` those
    that refuse bound tokens.
    """

    @cached_property
    def description_as_json(self) -> bytes:
        """What `/openapi.json` answers: to write it takes the event loop several times as long as a probe."""
        return json.dumps(self.openapi(), ensure_ascii=False, separators=(",", ":")).encode()

    def openapi(self) -> dict[str, Any]:
        schema = super().openapi()
        for path in schema["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
        for route in (one for router in _ROUTERS for one in routes_of(router) if one.include_in_schema):
            for method in route.methods or ():
                operation = schema["paths"][route.path_format][method.lower()]
                operation["x-whole-system"] = needs_of(route).whole_system
                operation["x-scopes"] = [str(scope) for scope in needs_of(route).scopes]
        for path in PUBLIC:
            schema["paths"][path]["get"].pop("security", None)
            for status in ("401", "403"):
                schema["paths"][path]["get"]["responses"].pop(status, None)
        schema["paths"]["/metrics"]["get"]["responses"].pop("503", None)  # the probes have a 503 of their own
        for name in ("HTTPValidationError", "ValidationError"):
            schema["components"]["schemas"].pop(name, None)
        return schema

"""The console as an ASGI application."""

from __future__ import annotations

import asyncio
from weakref import WeakValueDictionary

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

from joex.client.client import Client
from joex.console import executors, groups, jobs, metrics, periodic, pools, queues, session, simulate
from joex.console.acts import BulkActs
from joex.console.calls import Console
from joex.console.pace import Pace
from joex.console.sign_in import Access, Callers, SignIn
from joex.console.snapshot import Snapshots
from joex.console.views import AWAY, Views
from joex.errors import ConfigError, DatabaseUnavailable, InvalidJob, NotYours
from joex.http.caller import judged, needs_of
from joex.http.dependencies import refuse_repeated_parameters
from joex.http.errors import RETRY_AFTER, told
from joex.http.route import together
from joex.http.state import CALLER
from joex.http.tokens import Tokens
from joex.http.turns import line_of_acts, line_of_reports
from joex.store.errors import Locked

ROUTERS = (
    queues.routes, groups.routes, jobs.routes, executors.routes, pools.routes, periodic.routes, simulate.routes,
    session.routes, metrics.routes,
)  # fmt: skip
_ALL = together(ROUTERS, needs_of, dependencies=[Depends(judged), Depends(refuse_repeated_parameters)])


def create_console(client: Client, access: Access | None = None) -> FastAPI:
    """The console, as an ASGI application, which you can also mount in your own.

    >>> app.mount("/joex", create_console(client))  # doctest: +SKIP

    Args:
        client: reads and changes the database. Its role must have the scope `executor`, or own the schema.
        access: who may sign in; None: callers with a token of ``joex tokens create``, and browsers on this machine;
            on Linux only those of this process's user and of root, and none where you have mounted it.
    """
    pace = Pace(client)
    views, callers = Views(pace), Callers(access or Access(), Tokens(client))
    app = FastAPI(
        title="Joex console",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        middleware=[Middleware(SignIn, callers=callers, views=views)],
        routes=[*_ALL.routes],
    )
    app.state.closing = asyncio.Event()  # see joex.http.server.serve
    snapshots = Snapshots(client, closing=app.state.closing)
    acts, searches = line_of_acts(), line_of_reports()
    bulk_acts = BulkActs(client, acts, searches, snapshots.expire)
    app.state.client, app.state.acts = client, acts  # see joex.http.turns
    app.state.console = Console(
        client, snapshots, pace, views, callers, bulk_acts, searches, asyncio.Semaphore(1), WeakValueDictionary()
    )
    app.mount("/static", StaticFiles(packages=[("joex.console", "static")]))
    _add_handlers(app, views)
    return app


def _add_handlers(app: FastAPI, views: Views) -> None:
    """Errors become pages of one line."""

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)  # noqa: S101 - as it is registered
        detail = "There is no such page." if error.detail == "Not Found" else error.detail
        return views.error(request.scope, error.status_code, detail, error.headers)

    async def wrong(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)  # noqa: S101 - likewise
        found = error.errors()[0]
        return views.error(request.scope, 400, f"{found['loc'][1]}: {found['msg']}")

    async def invalid(request: Request, error: Exception) -> Response:
        return views.error(request.scope, 400, str(error))

    async def locked(request: Request, error: Exception) -> Response:
        return views.error(request.scope, 409, f"{str(error).capitalize()}.", title="This can't be done now")

    async def away(request: Request, error: Exception) -> Response:
        detail = told(error, getattr(request.state, CALLER, None))
        return views.error(request.scope, 503, detail, RETRY_AFTER, AWAY)

    async def unusable(request: Request, error: Exception) -> Response:
        detail = told(error, getattr(request.state, CALLER, None))
        return views.error(request.scope, 503, detail, RETRY_AFTER, "The database can't be used")

    async def failed(request: Request, _: Exception) -> Response:
        return views.error(request.scope, 500, "Internal error: see the log of the console.")

    app.add_exception_handler(HTTPException, refused)
    app.add_exception_handler(RequestValidationError, wrong)
    app.add_exception_handler(InvalidJob, invalid)
    app.add_exception_handler(NotYours, invalid)
    app.add_exception_handler(Locked, locked)
    app.add_exception_handler(DatabaseUnavailable, away)
    app.add_exception_handler(ConfigError, unusable)
    app.add_exception_handler(Exception, failed)

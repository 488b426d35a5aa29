"""The page of executors."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from joex.console.calls import Done, TheConsole, TheForm, not_found, to
from joex.core.access import Scope
from joex.http.caller import TheCaller, needs
from joex.http.dependencies import TheTurn
from joex.store import executors, stats

routes = APIRouter()

_MOST = 500


@routes.get("/executors", dependencies=[needs(Scope.VIEW, whole_system=True)])
async def list_executors(
    console: TheConsole, caller: TheCaller, request: Request, done: Done, ended: Annotated[str, Query()] = ""
) -> Response:
    """The executors: what they serve, how full they are, and when they were heard last."""
    async with console.pace.reading(caller.tenant) as connection:
        found = await executors.list_executors(connection, ended=ended == "yes", most=_MOST + 1)
        now = await stats.now(connection)
    return console.views.page(
        request, "executors.html", executors=found[:_MOST], has_more=len(found) > _MOST, ended=ended == "yes", now=now,
        done=done,
    )  # fmt: skip


@routes.post("/executors/drain", dependencies=[needs(Scope.OPERATE, whole_system=True)])
async def drain(  # noqa: PLR0917 - the form, and the page that it is on
    console: TheConsole,
    caller: TheCaller,
    request: Request,
    form: TheForm,
    turn: TheTurn,
    ended: Annotated[str, Query()] = "",
) -> Response:
    """Ask an executor to take no more jobs, and to exit when its runs have ended."""
    app_id = form.get("app_id", "")
    if not app_id:  # (Of the function in SQL, no app-id means all executors.)
        not_found("There is no such executor.")
    async with turn as connection:
        asked = await executors.drain(connection, app_id)
    if not asked:
        not_found(f"No executor {app_id!r} is alive.")
    console.snapshots.expire(caller.key)
    return to(request, "/executors", ended=ended, done="draining")

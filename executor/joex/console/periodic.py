"""The page of periodic tasks, and what a timer means."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from joex.client.periodic import TimerCheck, check_timer
from joex.console.calls import Done, TheConsole, TheForm, not_found, to, way_back
from joex.console.views import params
from joex.core.access import Scope
from joex.errors import InvalidJob
from joex.http.caller import Caller, TheCaller, needs
from joex.http.dependencies import TheTurn
from joex.store import stats
from joex.store.bounded import NOTHING
from joex.store.periodic import TaskKey, TaskName, find, page_of_tasks
from joex.store.statement import Connection

routes = APIRouter()

After = Annotated[str, Query(max_length=5000)]

PAGE = 100
"""Periodic tasks."""


@routes.get("/periodic", dependencies=[needs(Scope.VIEW)])
async def list_tasks(  # noqa: PLR0917 - the fields of the form
    console: TheConsole,
    caller: TheCaller,
    request: Request,
    done: Done,
    after: After = "",
    timer: Annotated[str, Query(max_length=254)] = "",
    zone: Annotated[str, Query(max_length=64)] = "UTC",
) -> Response:
    """The periodic tasks: when each is due, and how its last time went; and a field in which to try a timer."""
    async with console.searches.turn(request):
        async with console.client.using() as connection:
            tasks, has_more = await page_of_tasks(
                connection,
                after=after or None,
                most=PAGE,
                bounds=caller.bounds,
                most_bytes=NOTHING,
                errors=caller.sees_payloads,
            )
            now = await stats.now(connection)
        meaning = await _meaning(timer, zone)
    return console.views.page(
        request, "periodic.html", tasks=tasks, next=tasks[-1].key if has_more else None, now=now, timer=timer,
        zone=zone, meaning=meaning, done=done, after=after,
        back=way_back(params({"after": after})),
    )  # fmt: skip


@routes.get("/periodic/timer", dependencies=[needs(Scope.VIEW)])
async def explain_timer(
    console: TheConsole,
    request: Request,
    timer: Annotated[str, Query(max_length=254)] = "",
    zone: Annotated[str, Query(max_length=64)] = "UTC",
) -> Response:
    """What a timer means: the part of the page that changes while a user types."""
    async with console.searches.turn(request):
        meaning = await _meaning(timer, zone)
    return console.views.page(request, "timer.html", meaning=meaning)


async def _meaning(timer: str, zone: str) -> TimerCheck | str | None:
    """What a timer means; a text: why it is wrong; None: there is none.

    Of one that is seldom due it may take tens of milliseconds of the interpreter: in the line of searches.
    """
    if not timer.strip():
        return None
    try:
        return await asyncio.to_thread(check_timer, timer, zone)
    except InvalidJob as error:
        return str(error)


@routes.post("/periodic/{act}", dependencies=[needs(Scope.OPERATE)])
async def act_on_task(  # noqa: PLR0917 - the form, and the page that it is on
    console: TheConsole, caller: TheCaller, request: Request, act: str, form: TheForm, turn: TheTurn, after: After = ""
) -> Response:
    """Run a periodic task now, enable it or disable it."""
    task_id = form.get("id", "")
    if act not in {"run", "enable", "disable"}:
        not_found("There is no such act.")
    tasks = console.client.periodic
    async with turn as connection:
        name = await _named(connection, caller, (task_id, form.get("queue"), form.get("group")))
        if act == "run":
            ran = await tasks.run_now(name.id, queue=name.queue, group=name.group, connection=connection)
            answer, job = str(ran.answer), ran.job
        else:
            change = tasks.enable if act == "enable" else tasks.disable
            found = await change(name.id, queue=name.queue, group=name.group, connection=connection)
            answer, job = f"{act}d" if found else "not_found", None
    if answer == "not_found":
        not_found(f"There is no periodic task {task_id!r}.")
    if job is not None:
        return to(request, f"/jobs/{job}", done="created")
    return to(request, "/periodic", after=after, done=answer)


async def _named(connection: Connection, caller: Caller, name: TaskName) -> TaskKey:
    """Answer for a periodic task outside of the caller's bounds as for one that does not exist."""
    found = await find(connection, name, bounds=caller.bounds, most_bytes=NOTHING, errors=False)
    if found is None:
        not_found(f"There is no periodic task {name[0]!r}.")
    return found.name

"""Routes about periodic tasks and timers.

Ids may contain slashes (``prod/nightly``): the rest of the path is the id, and the method says what to do. An id that
several periodic tasks have needs the query parameters ``queue`` and ``group``, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Annotated, Any, NoReturn
from uuid import UUID

from fastapi import APIRouter, Depends, HTTPException, Path, Query, status
from pydantic import Field, PlainSerializer
from starlette.concurrency import run_in_threadpool

from joex.client.periodic import check_timer
from joex.core.access import Scope
from joex.core.duration import format_duration
from joex.errors import InvalidJob, NotYours
from joex.http.caller import Caller, TheCaller, needs
from joex.http.dependencies import Done, Limit, TheClient, TheReport, TheTurn, refusals
from joex.http.errors import Answers, Problem, problems
from joex.http.models import Body, Name, WorkBody
from joex.http.route import Route
from joex.http.visible import most_bytes
from joex.store.bounded import NOTHING
from joex.store.periodic import PeriodicTask, TaskName, find, page_of_tasks
from joex.store.statement import Connection

routes = APIRouter(route_class=Route, tags=["periodic tasks"])

_TIMERS = ["Mon..Fri 08:00", "*:0/10", "30 2 * * 1-5"]
_NOT_FOUND: Answers = {404: {"model": Problem, "description": "There is no such periodic task."}}
_NOT_YOURS: Answers = {409: {"model": Problem, "description": "It has another owner, which the detail names."}}
_NOT_RUN: Answers = {
    409: {"model": Problem, "description": "Its last job is not finished; or it belongs to Joex, and creates no jobs."}
}
_FORCE = "; or add any_owner=true"

Id = Annotated[Name, Path(description="its id, which may contain slashes")]


async def _name(
    task_id: Id,
    queue: Annotated[Name | None, Query(description="its queue; if you leave it out: any")] = None,
    group: Annotated[Name | None, Query(description="its group; if you leave it out: any")] = None,
) -> TaskName:
    """What a path and its query say of a periodic task."""
    return task_id, queue, group


AnyOwner = Annotated[bool, Query(description="even if it has another owner")]


@dataclass(frozen=True, slots=True)
class ShownTask(PeriodicTask):
    """A periodic task. Durations are strings such as 1h30m. Without the scope payloads, args and error are null."""

    args: dict[str, Any] | None  # type: ignore[assignment]  # a stored task has some
    starting_deadline: Annotated[timedelta, PlainSerializer(format_duration)] | None


@dataclass(frozen=True, slots=True)
class TaskPage:
    """A page of periodic tasks in the order of their ids, and the ``after`` of the next page.

    A page ends before ``limit`` where arguments have 4 MB together.
    """

    tasks: list[ShownTask]
    next: str | None


@dataclass(frozen=True, slots=True)
class Ran:
    """The id of the new job."""

    job: UUID


@dataclass(frozen=True, slots=True)
class TimerAnswer:
    """The meaning of a timer: its normal form and its next five times; without success, the reason why it is wrong."""

    success: bool
    message: str
    event: str | None
    next: list[datetime]


class PeriodicBody(WorkBody):
    """A periodic task. A field that you leave out gets its default, except ``enabled``."""

    timer: str = Field(
        description="when: a systemd calendar event, or a cron line", examples=_TIMERS, min_length=1, max_length=254
    )
    zone: str = Field("UTC", description="the time zone of a timer that names none", examples=["Europe/Zurich"])
    starting_deadline: str | None = Field(
        None,
        description="skip a time missed by more than this; null: catch up on the latest, however late",
        examples=["1h"],
    )
    enabled: bool | None = Field(None, description="null: leave as it is; a new one is enabled")


class EnabledBody(Body):
    """Whether a periodic task creates jobs."""

    enabled: bool


class TimerBody(Body):
    """A timer."""

    event: str = Field(description="a systemd calendar event, or a cron line", examples=_TIMERS)
    zone: str = Field("UTC", description="the time zone of a timer that names none", examples=["Europe/Zurich"])


@routes.get("/api/v1/periodic", responses=problems(503), dependencies=[needs(Scope.VIEW)])
async def list_periodic_tasks(
    client: TheClient,
    caller: TheCaller,
    report: TheReport,
    *,
    owner: Annotated[Name | None, Query(description="only of this owner")] = None,
    after: Annotated[str | None, Query(description="the 'next' of the previous page", max_length=5000)] = None,
    limit: Limit = 100,
) -> TaskPage:
    """List the periodic tasks of all owners; to a bound token, those whose jobs are of its groups and queues."""
    async with report, client.using() as connection:
        page, more = await page_of_tasks(
            connection,
            owners=None if owner is None else [owner],
            after=after,
            most=limit,
            bounds=caller.bounds,
            most_bytes=most_bytes(caller),
            errors=caller.sees_payloads,
        )
    return TaskPage([_shown(task) for task in page], page[-1].key if more else None)


@routes.get("/api/v1/periodic/{task_id:name}", responses=problems(503) | _NOT_FOUND, dependencies=[needs(Scope.VIEW)])
async def read_periodic_task(
    client: TheClient, caller: TheCaller, name: Annotated[TaskName, Depends(_name)]
) -> ShownTask:
    """Read a periodic task."""
    async with client.using() as connection:
        named = await _named(connection, caller, name)
        one = (named["task_id"], named["queue"], named["group"])
        task = await find(connection, one, most_bytes=most_bytes(caller), errors=caller.sees_payloads)
    if task is None:
        _no_such(named["task_id"])
    return _shown(task)


@routes.put(
    "/api/v1/periodic/{task_id:name}", responses=refusals(503) | _NOT_YOURS, dependencies=[needs(Scope.OPERATE)]
)
async def set_periodic_task(
    client: TheClient, caller: TheCaller, turn: TheTurn, task_id: Id, body: PeriodicBody
) -> Done:
    """Create a periodic task, or replace the one with this id in this queue and group."""
    caller.check_place(body.queue, body.group)
    with _owned():
        async with turn as connection:
            changed = await client.periodic.put(task_id, **dict(body), connection=connection)
    return Done(f"periodic task {task_id!r} is {'set' if changed else 'as it was'}")


@routes.patch(
    "/api/v1/periodic/{task_id:name}",
    responses=refusals(503) | _NOT_FOUND | _NOT_YOURS,
    dependencies=[needs(Scope.OPERATE)],
)
async def enable_periodic_task(
    client: TheClient,
    turn: TheTurn,
    caller: TheCaller,
    name: Annotated[TaskName, Depends(_name)],
    body: EnabledBody,
    *,
    any_owner: AnyOwner = False,
) -> Done:
    """Enable or disable a periodic task."""
    change = client.periodic.enable if body.enabled else client.periodic.disable
    with _owned("" if any_owner else _FORCE):
        async with turn as connection:
            named = await _named(connection, caller, name)
            found = await change(**named, any_owner=any_owner, connection=connection)
    if not found:
        _no_such(named["task_id"])
    return Done(f"periodic task {named['task_id']!r} is {'enabled' if body.enabled else 'disabled'}")


@routes.delete(
    "/api/v1/periodic/{task_id:name}",
    responses=refusals(503) | _NOT_FOUND | _NOT_YOURS,
    dependencies=[needs(Scope.OPERATE)],
)
async def remove_periodic_task(
    client: TheClient,
    turn: TheTurn,
    caller: TheCaller,
    name: Annotated[TaskName, Depends(_name)],
    *,
    any_owner: AnyOwner = False,
) -> Done:
    """Remove a periodic task; its jobs stay."""
    with _owned("" if any_owner else _FORCE):
        async with turn as connection:
            named = await _named(connection, caller, name)
            found = await client.periodic.remove(**named, any_owner=any_owner, connection=connection)
    if not found:
        _no_such(named["task_id"])
    return Done(f"periodic task {named['task_id']!r} is removed")


@routes.post(
    "/api/v1/periodic/{task_id:name}",
    status_code=status.HTTP_201_CREATED,
    responses=refusals(503) | _NOT_FOUND | _NOT_RUN,
    dependencies=[needs(Scope.OPERATE)],
)
async def run_periodic_task_now(
    client: TheClient, turn: TheTurn, caller: TheCaller, name: Annotated[TaskName, Depends(_name)]
) -> Ran:
    """Create the job of a periodic task now, whatever its timer and its owner are, and even if it is disabled."""
    with _owned():
        async with turn as connection:
            named = await _named(connection, caller, name)
            answer, job = await client.periodic.run_now(**named, connection=connection)
    if answer == "overlapping":
        detail = f"the last job of periodic task {named['task_id']!r} is not finished"
        raise HTTPException(status.HTTP_409_CONFLICT, detail)
    if job is None:
        _no_such(named["task_id"])
    return Ran(job)


@routes.post("/api/v1/calevent/check", responses=refusals(503), dependencies=[needs(*Scope)])
async def check_calendar_event(body: TimerBody, report: TheReport) -> TimerAnswer:
    """Explain a timer, with its next times. A wrong timer gets an answer too, without success."""
    try:
        async with report:  # (it may take tens of milliseconds of the interpreter, beside which runs wait)
            found = await run_in_threadpool(check_timer, body.event, body.zone)
    except InvalidJob as error:
        return TimerAnswer(success=False, message=str(error), event=None, next=[])
    said = "valid" if found.next else "valid, but never due again"
    return TimerAnswer(success=True, message=said, event=found.normal, next=found.next)


async def _named(connection: Connection, caller: Caller, name: TaskName) -> dict[str, str]:
    """The periodic task with this name. One outside of the caller's bounds counts as one that does not exist."""
    found = await find(connection, name, bounds=caller.bounds, most_bytes=NOTHING, errors=False)
    if found is None:
        _no_such(name[0])
    return {"task_id": found.id, "queue": found.queue, "group": found.group}


@contextmanager
def _owned(fix: str = "") -> Iterator[None]:
    """Answer for a periodic task of another owner."""
    try:
        yield
    except NotYours as error:
        raise HTTPException(status.HTTP_409_CONFLICT, f"{error}{fix}") from error


def _shown(task: PeriodicTask) -> ShownTask:
    return ShownTask(**{one.name: getattr(task, one.name) for one in fields(task)} | {"error": task.error or None})


def _no_such(task_id: str) -> NoReturn:
    raise HTTPException(status.HTTP_404_NOT_FOUND, f"there is no periodic task {task_id!r}")

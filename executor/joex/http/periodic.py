"""Routes about periodic tasks, and what timers mean.

Ids have slashes in them (``prod/nightly``): all of the path that follows is the id, and the method says what to do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Annotated, Any, NoReturn, TypeAlias
from uuid import UUID

from fastapi import APIRouter, HTTPException, Path, Query, status
from pydantic import Field, PlainSerializer

from joex.client.periodic import check_timer
from joex.core.duration import format_duration
from joex.errors import InvalidJob, NotYours
from joex.http.dependencies import CHANGING, Done, Limit, TheClient, refusals
from joex.http.errors import Problem, problems
from joex.http.models import Body, Name, WorkBody
from joex.store.periodic import PeriodicTask

routes = APIRouter(tags=["periodic tasks"])

_TIMERS = ["Mon..Fri 08:00", "*:0/10", "30 2 * * 1-5"]
_Documented: TypeAlias = dict[int | str, dict[str, Any]]
_NOT_FOUND: _Documented = {404: {"model": Problem, "description": "There is no such periodic task."}}
_NOT_YOURS: _Documented = {409: {"model": Problem, "description": "Somebody else owns it: the detail says who."}}
_FORCE = "; or add any_owner=true"

Id = Annotated[Name, Path(description="its id; it may have slashes in it")]
AnyOwner = Annotated[bool, Query(description="though somebody else owns it")]


@dataclass(frozen=True, slots=True)
class ShownTask(PeriodicTask):
    """A periodic task. Durations are texts such as 1h30m."""

    starting_deadline: Annotated[timedelta, PlainSerializer(format_duration)] | None


@dataclass(frozen=True, slots=True)
class TaskPage:
    """A page of periodic tasks in the order of their ids, and what to say as ``after`` for the next page."""

    tasks: list[ShownTask]
    next: str | None


@dataclass(frozen=True, slots=True)
class Ran:
    """The id of the job that was made."""

    job: UUID


@dataclass(frozen=True, slots=True)
class TimerAnswer:
    """How a timer is read: its normal form, and its next five times; or, without success, why it can't be."""

    success: bool
    message: str
    event: str | None
    next: list[datetime]


class PeriodicBody(WorkBody):
    """A periodic task. A field that is left out has its default, but for ``enabled``."""

    timer: str = Field(
        description="when: a systemd calendar event, or a cron line", examples=_TIMERS, min_length=1, max_length=254
    )
    zone: str = Field("UTC", description="the time zone of a timer that names none", examples=["Europe/Zurich"])
    starting_deadline: str | None = Field(
        None,
        description="a time that was missed by more is left out; null: one is caught up, however late",
        examples=["1h"],
    )
    enabled: bool | None = Field(None, description="null: as it is; a new one is")


class EnabledBody(Body):
    """Whether a periodic task comes."""

    enabled: bool


class TimerBody(Body):
    """A timer."""

    event: str = Field(description="a systemd calendar event, or a cron line", examples=_TIMERS)
    zone: str = Field("UTC", description="the time zone of one that names none", examples=["Europe/Zurich"])


@routes.get("/api/v1/periodic", responses=problems(400, 503))
async def list_periodic_tasks(
    client: TheClient,
    owner: Annotated[Name | None, Query(description="of this owner only")] = None,
    after: Annotated[Name | None, Query(description="the 'next' of the page before")] = None,
    limit: Limit = 100,
) -> TaskPage:
    """List the periodic tasks of all owners."""
    found = await client.periodic.list(owner, after=after, most=limit + 1)
    page = [_shown(task) for task in found[:limit]]
    return TaskPage(page, page[-1].id if len(found) > limit else None)


@routes.get("/api/v1/periodic/{task_id:path}", responses=problems(400, 503) | _NOT_FOUND)
async def read_periodic_task(client: TheClient, task_id: Id) -> ShownTask:
    """Read a periodic task."""
    task = await client.periodic.get(task_id)
    if task is None:
        _no_such(task_id)
    return _shown(task)


@routes.put("/api/v1/periodic/{task_id:path}", dependencies=CHANGING, responses=refusals(400, 503) | _NOT_YOURS)
async def set_periodic_task(client: TheClient, task_id: Id, body: PeriodicBody) -> Done:
    """Set a periodic task: a new one, or all of one that is there."""
    with _owned():
        changed = await client.periodic.put(task_id, **dict(body))
    return Done(f"periodic task {task_id!r} is {'set' if changed else 'as it was'}")


@routes.patch(
    "/api/v1/periodic/{task_id:path}",
    dependencies=CHANGING,
    responses=refusals(400, 503) | _NOT_FOUND | _NOT_YOURS,
)
async def enable_periodic_task(
    client: TheClient, task_id: Id, body: EnabledBody, *, any_owner: AnyOwner = False
) -> Done:
    """Enable or disable a periodic task."""
    change = client.periodic.enable if body.enabled else client.periodic.disable
    with _owned(_FORCE):
        found = await change(task_id, any_owner=any_owner)
    if not found:
        _no_such(task_id)
    return Done(f"periodic task {task_id!r} is {'enabled' if body.enabled else 'disabled'}")


@routes.delete(
    "/api/v1/periodic/{task_id:path}",
    dependencies=CHANGING,
    responses=refusals(400, 503) | _NOT_FOUND | _NOT_YOURS,
)
async def remove_periodic_task(client: TheClient, task_id: Id, *, any_owner: AnyOwner = False) -> Done:
    """Remove a periodic task; its jobs stay."""
    with _owned(_FORCE):
        found = await client.periodic.remove(task_id, any_owner=any_owner)
    if not found:
        _no_such(task_id)
    return Done(f"periodic task {task_id!r} is removed")


@routes.post(
    "/api/v1/periodic/{task_id:path}",
    status_code=status.HTTP_201_CREATED,
    dependencies=CHANGING,
    responses=refusals(400, 503)
    | _NOT_FOUND
    | {
        409: {
            "model": Problem,
            "description": "Its job before is not finished; or it is Joex's own, and makes no jobs.",
        }
    },
)
async def run_periodic_task_now(client: TheClient, task_id: Id) -> Ran:
    """Make the job of a periodic task now, whatever its timer says, whoever owns it, and though it is disabled."""
    with _owned():
        answer, job = await client.periodic.run_now(task_id)
    if answer == "overlapping":
        raise HTTPException(status.HTTP_409_CONFLICT, f"the job before of periodic task {task_id!r} is not finished")
    if job is None:
        _no_such(task_id)
    return Ran(job)


@routes.post("/api/v1/calevent/check", dependencies=CHANGING, responses=refusals(400))
def check_calendar_event(body: TimerBody) -> TimerAnswer:
    """Say how a timer is read, and when it comes next. One that can't be read is an answer too, without success."""
    try:
        found = check_timer(body.event, body.zone)
    except InvalidJob as error:
        return TimerAnswer(success=False, message=str(error), event=None, next=[])
    said = "valid" if found.next else "valid, but it never comes again"
    return TimerAnswer(success=True, message=said, event=found.normal, next=found.next)


@contextmanager
def _owned(mend: str = "") -> Iterator[None]:
    """Answer where somebody else owns it."""
    try:
        yield
    except NotYours as error:
        raise HTTPException(status.HTTP_409_CONFLICT, f"{error}{mend}") from error


def _shown(task: PeriodicTask) -> ShownTask:
    return ShownTask(**{one.name: getattr(task, one.name) for one in fields(task)})


def _no_such(task_id: str) -> NoReturn:
    raise HTTPException(status.HTTP_404_NOT_FOUND, f"there is no periodic task {task_id!r}")

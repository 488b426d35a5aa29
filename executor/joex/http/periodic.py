"""Routes about periodic tasks and timers.

Ids may contain slashes (``prod/nightly``): the rest of the path is the id, and the method says what to do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Annotated, NoReturn
from uuid import UUID

from fastapi import APIRouter, HTTPException, Path, Query, status
from pydantic import Field, PlainSerializer

from joex.client.periodic import check_timer
from joex.core.duration import format_duration
from joex.errors import InvalidJob, NotYours
from joex.http.dependencies import Done, Limit, TheClient, refusals
from joex.http.errors import Answers, Problem, problems
from joex.http.models import Body, Name, WorkBody
from joex.store.periodic import PeriodicTask

routes = APIRouter(tags=["periodic tasks"])

_TIMERS = ["Mon..Fri 08:00", "*:0/10", "30 2 * * 1-5"]
_NOT_FOUND: Answers = {404: {"model": Problem, "description": "There is no such periodic task."}}
_NOT_YOURS: Answers = {409: {"model": Problem, "description": "It has another owner, which the detail names."}}
_NOT_RUN: Answers = {
    409: {"model": Problem, "description": "Its last job is not finished; or it belongs to Joex, and creates no jobs."}
}
_FORCE = "; or add any_owner=true"

Id = Annotated[Name, Path(description="its id, which may contain slashes")]
AnyOwner = Annotated[bool, Query(description="even if it has another owner")]


@dataclass(frozen=True, slots=True)
class ShownTask(PeriodicTask):
    """A periodic task. Durations are strings such as 1h30m."""

    starting_deadline: Annotated[timedelta, PlainSerializer(format_duration)] | None


@dataclass(frozen=True, slots=True)
class TaskPage:
    """A page of periodic tasks in the order of their ids, and the ``after`` of the next page."""

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


@routes.get("/api/v1/periodic", responses=problems(503))
async def list_periodic_tasks(
    client: TheClient,
    owner: Annotated[Name | None, Query(description="only of this owner")] = None,
    after: Annotated[Name | None, Query(description="the 'next' of the previous page")] = None,
    limit: Limit = 100,
) -> TaskPage:
    """List the periodic tasks of all owners."""
    found = await client.periodic.list(owner, after=after, most=limit + 1)
    page = [_shown(task) for task in found[:limit]]
    return TaskPage(page, page[-1].id if len(found) > limit else None)


@routes.get("/api/v1/periodic/{task_id:name}", responses=problems(503) | _NOT_FOUND)
async def read_periodic_task(client: TheClient, task_id: Id) -> ShownTask:
    """Read a periodic task."""
    task = await client.periodic.get(task_id)
    if task is None:
        _no_such(task_id)
    return _shown(task)


@routes.put("/api/v1/periodic/{task_id:name}", responses=refusals(503) | _NOT_YOURS)
async def set_periodic_task(client: TheClient, task_id: Id, body: PeriodicBody) -> Done:
    """Create a periodic task, or replace the one with this id."""
    with _owned():
        changed = await client.periodic.put(task_id, **dict(body))
    return Done(f"periodic task {task_id!r} is {'set' if changed else 'as it was'}")


@routes.patch("/api/v1/periodic/{task_id:name}", responses=refusals(503) | _NOT_FOUND | _NOT_YOURS)
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


@routes.delete("/api/v1/periodic/{task_id:name}", responses=refusals(503) | _NOT_FOUND | _NOT_YOURS)
async def remove_periodic_task(client: TheClient, task_id: Id, *, any_owner: AnyOwner = False) -> Done:
    """Remove a periodic task; its jobs stay."""
    with _owned(_FORCE):
        found = await client.periodic.remove(task_id, any_owner=any_owner)
    if not found:
        _no_such(task_id)
    return Done(f"periodic task {task_id!r} is removed")


@routes.post(
    "/api/v1/periodic/{task_id:name}",
    status_code=status.HTTP_201_CREATED,
    responses=refusals(503) | _NOT_FOUND | _NOT_RUN,
)
async def run_periodic_task_now(client: TheClient, task_id: Id) -> Ran:
    """Create the job of a periodic task now, whatever its timer and its owner are, and even if it is disabled."""
    with _owned():
        answer, job = await client.periodic.run_now(task_id)
    if answer == "overlapping":
        raise HTTPException(status.HTTP_409_CONFLICT, f"the last job of periodic task {task_id!r} is not finished")
    if job is None:
        _no_such(task_id)
    return Ran(job)


@routes.post("/api/v1/calevent/check", responses=refusals())
def check_calendar_event(body: TimerBody) -> TimerAnswer:
    """Explain a timer, with its next times. A wrong timer gets an answer too, without success."""
    try:
        found = check_timer(body.event, body.zone)
    except InvalidJob as error:
        return TimerAnswer(success=False, message=str(error), event=None, next=[])
    said = "valid" if found.next else "valid, but never due again"
    return TimerAnswer(success=True, message=said, event=found.normal, next=found.next)


@contextmanager
def _owned(fix: str = "") -> Iterator[None]:
    """Answer for a periodic task of another owner."""
    try:
        yield
    except NotYours as error:
        raise HTTPException(status.HTTP_409_CONFLICT, f"{error}{fix}") from error


def _shown(task: PeriodicTask) -> ShownTask:
    return ShownTask(**{one.name: getattr(task, one.name) for one in fields(task)})


def _no_such(task_id: str) -> NoReturn:
    raise HTTPException(status.HTTP_404_NOT_FOUND, f"there is no periodic task {task_id!r}")

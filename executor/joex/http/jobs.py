"""Routes about jobs: submit, list, read, cancel, change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, NoReturn
from uuid import UUID

from fastapi import APIRouter, Body, HTTPException, Query, Response, status
from pydantic import BaseModel, FailFast, Field
from starlette.concurrency import run_in_threadpool

from joex.client.submissions import new_job
from joex.core.access import Scope
from joex.core.job import NewJob, State
from joex.errors import InvalidJob
from joex.http.caller import Caller, TheCaller, needs
from joex.http.dependencies import (
    Done,
    GroupFilter,
    JobId,
    Limit,
    QueueFilter,
    TheClient,
    TheReport,
    TheTraceContext,
    TheTurnOfJob,
    no_such_job,
    refusals,
)
from joex.http.errors import problems
from joex.http.models import MOST_AT_ONCE, ArgsBody, JobberBody, JobBody, Name, PriorityBody
from joex.http.route import Route
from joex.http.visible import MOST_BYTES, VisibleJob, WhyNot, most_bytes, visible, visible_reasons
from joex.store.job_logs import Attempt, LogEntry, attempts, job_log
from joex.store.job_pages import LONGEST_CURSOR, check_cursor
from joex.store.jobs import get_job
from joex.store.listing import Filter, list_jobs
from joex.store.statement import Connection
from joex.tracing import receiving

routes = APIRouter(route_class=Route, tags=["jobs"], responses=problems(503))


@dataclass(frozen=True, slots=True)
class Submitted:
    """The id of the job; null if it was skipped, because an unfinished job of its group has the same tracker."""

    id: UUID | None
    skipped: bool


@dataclass(frozen=True, slots=True)
class SubmittedMany:
    """The ids of the jobs, in order; null for a skipped submission."""

    ids: list[UUID | None]


@dataclass(frozen=True, slots=True)
class JobPage:
    """A page of jobs, and the cursor of the next page; null on the last page.

    A page ends before ``limit`` where arguments, results and texts have 4 MB together.
    """

    jobs: list[VisibleJob]
    next: str | None


@dataclass(frozen=True, slots=True)
class JobAndLog:
    """A job, its latest 100 attempts, and the log of all; without the scope payloads, no log, and no error.

    ``more``: there are further lines: read them with ``after``.
    """

    job: VisibleJob
    attempts: list[Attempt]
    log: list[LogEntry]
    more: bool


@dataclass(frozen=True, slots=True)
class Cancelled:
    """``cancelled``: the job was waiting; ``requested``: it is running, and its run is asked to end."""

    result: Literal["cancelled", "requested"]


class JobberAnswer(BaseModel):
    """The id of the job, as Jobber names it."""

    job_id: UUID = Field(alias="job-id")


@routes.post(
    "/api/v1/jobs",
    status_code=status.HTTP_201_CREATED,
    responses=refusals(429)
    | {200: {"model": Submitted, "description": "Skipped: an unfinished job of its group has the same tracker"}},
    dependencies=[needs(Scope.SUBMIT)],
)
async def submit_job(
    body: JobBody, client: TheClient, caller: TheCaller, trace: TheTraceContext, response: Response
) -> Submitted:
    """Submit a job."""
    _check_place(caller, body)
    with receiving(trace):
        job_id = await client.submit(**body.fields())
    if job_id is None:
        response.status_code = status.HTTP_200_OK
    return Submitted(job_id, skipped=job_id is None)


@routes.post(
    "/api/v1/jobs/many",
    status_code=status.HTTP_201_CREATED,
    responses=refusals(429),
    dependencies=[needs(Scope.SUBMIT)],
)
async def submit_jobs(
    body: Annotated[list[JobBody], FailFast(), Body(max_length=MOST_AT_ONCE)],
    client: TheClient,
    caller: TheCaller,
    trace: TheTraceContext,
) -> SubmittedMany:
    """Submit many jobs: all of them or none."""
    # In a thread, as their body was read: 10,000 jobs would hold up the event loop.
    new_jobs = await run_in_threadpool(_checked, caller, body)
    with receiving(trace):
        return SubmittedMany(await client.submit_many(new_jobs))


@routes.get("/api/v1/jobs", dependencies=[needs(Scope.VIEW)])
async def read_jobs(
    client: TheClient,
    caller: TheCaller,
    report: TheReport,
    *,
    state: Annotated[list[State] | None, Query(description="only in these states")] = None,
    queue: QueueFilter = None,
    group: GroupFilter = None,
    task: Annotated[Name | None, Query(description="only of this task")] = None,
    cursor: Annotated[
        str | None, Query(description="the 'next' of the previous page", max_length=LONGEST_CURSOR)
    ] = None,
    limit: Limit = 100,
) -> JobPage:
    """List jobs: running ones, runnable ones group by group, jobs that are not due yet, and finished ones."""
    check_cursor(cursor)
    async with report, client.using() as connection:
        wanted = Filter(queue, group, task, state, caller.bounds)
        page = await list_jobs(connection, wanted, cursor, limit, most_bytes(caller))
    return JobPage([visible(job) for job in page.jobs], page.next)


@routes.get("/api/v1/job/{job_id}", responses=problems(404), dependencies=[needs(Scope.VIEW, Scope.SUBMIT)])
async def read_job(
    client: TheClient,
    caller: TheCaller,
    job_id: JobId,
    after: Annotated[int, Query(ge=0, le=2**63 - 1, description="the seq of the last line that you know")] = 0,
) -> JobAndLog:
    """Read a job, its attempts, and its log, at most 10,000 lines, and 4 MB; read more with ``after``."""
    log: list[LogEntry] = []
    more = False
    async with client.using() as connection:
        job = await get_job(connection, job_id, payloads=caller.sees_payloads)
        if job is None:
            no_such_job(job_id)
        runs = await attempts(connection, job_id, payloads=caller.sees_payloads)
        if caller.sees_payloads:
            log = await job_log(connection, job_id, after=after, most_bytes=MOST_BYTES)
            more = bool(log and await job_log(connection, job_id, after=log[-1].seq, most=1))
    return JobAndLog(visible(job), runs, log, more)


@routes.get("/api/v1/job/{job_id}/why", responses=problems(404), dependencies=[needs(Scope.VIEW, Scope.SUBMIT)])
async def why_not(client: TheClient, caller: TheCaller, job_id: JobId) -> list[WhyNot]:
    """Explain why a job is not running: the reasons that block it, then its place in line."""
    reasons = await client.why(job_id)
    if [reason.reason for reason in reasons] == ["not_found"]:
        no_such_job(job_id)
    return visible_reasons(caller, reasons)


@routes.post(
    "/api/v1/job/{job_id}/cancel",
    responses=refusals(404, 409) | {202: {"model": Cancelled, "description": "Its run is asked to end"}},
    dependencies=[needs(Scope.SUBMIT, Scope.OPERATE)],
)
async def cancel_job(client: TheClient, turn: TheTurnOfJob, job_id: UUID, response: Response) -> Cancelled:
    """Cancel a job."""
    async with turn as connection:
        answer = await client.cancel(job_id, connection=connection)
    if answer == "not_found":
        no_such_job(job_id)
    if answer == "finished":
        raise HTTPException(status.HTTP_409_CONFLICT, "the job is finished already")
    if answer == "requested":
        response.status_code = status.HTTP_202_ACCEPTED
        return Cancelled("requested")
    return Cancelled("cancelled")


@routes.post("/api/v1/job/{job_id}/priority", responses=refusals(404, 409), dependencies=[needs(Scope.OPERATE)])
async def change_priority(client: TheClient, turn: TheTurnOfJob, job_id: UUID, body: PriorityBody) -> Done:
    """Change the priority of a waiting job."""
    async with turn as connection:
        is_changed = await client.set_priority(job_id, body.priority, connection=connection)
        if not is_changed:
            await _refuse(connection, job_id, "only the priority of a waiting job can change")
    return Done(f"the priority is {body.priority}")


@routes.post("/api/v1/job/{job_id}/args", responses=refusals(404, 409), dependencies=[needs(Scope.OPERATE)])
async def change_args(client: TheClient, turn: TheTurnOfJob, job_id: UUID, body: ArgsBody) -> Done:
    """Replace all arguments of a waiting job."""
    async with turn as connection:
        is_changed = await client.set_args(job_id, body.args, connection=connection)
        if not is_changed:
            await _refuse(connection, job_id, "only the arguments of a waiting job can change")
    return Done("the arguments are changed")


@routes.delete("/api/v1/job/{job_id}", responses=refusals(404), dependencies=[needs(Scope.OPERATE)])
async def delete_job(client: TheClient, turn: TheTurnOfJob, job_id: UUID) -> Done:
    """Remove a job and its log. A running job is asked to stop, and removed when its run has ended."""
    async with turn as connection:
        answer = await client.remove(job_id, connection=connection)
    if answer == "not_found":
        no_such_job(job_id)
    return Done("the job is removed now, or when its run has ended")


@routes.post("/api/v1/job/{job_id}/retry", responses=refusals(404, 409), dependencies=[needs(Scope.OPERATE)])
async def retry_job(client: TheClient, turn: TheTurnOfJob, job_id: UUID) -> Done:
    """Run a failed or cancelled job again, or now one that is stuck or not due."""
    async with turn as connection:
        is_retried = await client.retry(job_id, connection=connection)
        if not is_retried:
            await _refuse(
                connection, job_id, "only a job that failed, was cancelled, is stuck or not due can be retried"
            )
    return Done("the job waits to run again")


@routes.post(
    "/jobber/queue",
    tags=["jobber"],
    status_code=status.HTTP_201_CREATED,
    responses=refusals(429),
    dependencies=[needs(Scope.SUBMIT)],
)
async def submit_by_type(
    body: JobberBody, client: TheClient, caller: TheCaller, trace: TheTraceContext
) -> JobberAnswer:
    """Submit a job as Jobber does: the type names both the task and the queue. Its group is ``default``."""
    caller.check_place(body.type, "default", of_queue="type")
    with receiving(trace):
        job_id = await client.submit(body.type, body.args, queue=body.type)
    return JobberAnswer.model_validate({"job-id": job_id})


def _check_place(caller: Caller, body: JobBody, at: str = "") -> None:
    caller.check_place(body.queue, body.group, at=at)
    if body.tracker is not None and caller.groups is None:  # trackers are unique within a group
        caller.check_own_name(f"{at}tracker", body.tracker, body.queue, body.group)


def _checked(caller: Caller, body: list[JobBody]) -> list[NewJob]:
    for nr, one in enumerate(body):
        _check_place(caller, one, f"jobs[{nr}].")
    jobs: list[NewJob] = []
    try:
        for one in body:
            jobs.append(new_job(**one.fields()))  # noqa: PERF401 - its length says which one is wrong
    except InvalidJob as error:
        raise InvalidJob(f"jobs[{len(jobs)}].{error}") from error
    return jobs


async def _refuse(connection: Connection, job_id: UUID, rule: str) -> NoReturn:
    """Raise the reason why a job did not change."""
    job = await get_job(connection, job_id, payloads=False)
    if job is None:
        no_such_job(job_id)
    raise HTTPException(status.HTTP_409_CONFLICT, f"the job is {job.state}: {rule}")

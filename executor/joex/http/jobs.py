"""Routes about jobs: submit, list, read, cancel, change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, NoReturn
from uuid import UUID

from fastapi import APIRouter, Body, HTTPException, Query, Response, status
from pydantic import BaseModel, Field

from joex.client.client import Client
from joex.client.submissions import new_job
from joex.core.job import NewJob, State
from joex.errors import InvalidJob
from joex.http.dependencies import Done, GroupFilter, Limit, QueueFilter, TheClient, refusals
from joex.http.errors import problems
from joex.http.models import MOST_AT_ONCE, ArgsBody, JobberBody, JobBody, Name, PriorityBody
from joex.store.jobs import Job, LogEntry
from joex.store.listing import Filter, check_cursor, list_jobs

routes = APIRouter(tags=["jobs"], responses=problems(503))


@dataclass(frozen=True, slots=True)
class Submitted:
    """The id of the job; null if the submission was skipped, because an unfinished job has the same tracker."""

    id: UUID | None
    skipped: bool


@dataclass(frozen=True, slots=True)
class SubmittedMany:
    """The ids of the jobs, in order; null for a skipped submission."""

    ids: list[UUID | None]


@dataclass(frozen=True, slots=True)
class JobPage:
    """A page of jobs, and the cursor of the next page; null on the last page."""

    jobs: list[Job]
    next: str | None


@dataclass(frozen=True, slots=True)
class JobAndLog:
    """A job, and the log of all its attempts."""

    job: Job
    log: list[LogEntry]


@dataclass(frozen=True, slots=True)
class WhyNot:
    """A reason why a job is not running: a word, its details, and a sentence."""

    reason: str
    detail: dict[str, Any]
    message: str


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
    responses=refusals()
    | {200: {"model": Submitted, "description": "Skipped: an unfinished job has the same tracker"}},
)
async def submit_job(body: JobBody, client: TheClient, response: Response) -> Submitted:
    """Submit a job."""
    job_id = await client.submit(**body.fields())
    if job_id is None:
        response.status_code = status.HTTP_200_OK
    return Submitted(job_id, skipped=job_id is None)


@routes.post("/api/v1/jobs/many", status_code=status.HTTP_201_CREATED, responses=refusals())
async def submit_jobs(
    body: Annotated[list[JobBody], Body(max_length=MOST_AT_ONCE)], client: TheClient
) -> SubmittedMany:
    """Submit many jobs: all of them or none."""
    return SubmittedMany(await client.submit_many([_checked(nr, one) for nr, one in enumerate(body)]))


@routes.get("/api/v1/jobs")
async def read_jobs(
    client: TheClient,
    *,
    state: Annotated[list[State] | None, Query(description="only in these states")] = None,
    queue: QueueFilter = None,
    group: GroupFilter = None,
    task: Annotated[Name | None, Query(description="only of this task")] = None,
    cursor: Annotated[str | None, Query(description="the 'next' of the previous page", max_length=4000)] = None,
    limit: Limit = 100,
) -> JobPage:
    """List jobs: running ones, runnable ones group by group, jobs that are not due yet, and finished ones."""
    check_cursor(cursor)
    async with client.using() as connection:
        page = await list_jobs(connection, Filter(queue, group, task, state), cursor, limit)
    return JobPage(page.jobs, page.next)


@routes.get("/api/v1/job/{job_id}", responses=problems(404))
async def read_job(
    client: TheClient,
    job_id: UUID,
    after: Annotated[int, Query(ge=0, le=2**63 - 1, description="the seq of the last line that you know")] = 0,
) -> JobAndLog:
    """Read a job and its log, at most 10,000 lines; read more with ``after``."""
    async with client.using() as connection:
        job = await client.get(job_id, connection=connection)
        if job is None:
            _no_such(job_id)
        return JobAndLog(job, await client.log(job_id, after=after, connection=connection))


@routes.get("/api/v1/job/{job_id}/why", responses=problems(404))
async def why_not(client: TheClient, job_id: UUID) -> list[WhyNot]:
    """Explain why a job is not running: the reasons that block it, then its place in line."""
    reasons = await client.why(job_id)
    if [reason.reason for reason in reasons] == ["not_found"]:
        _no_such(job_id)
    return [WhyNot(one.reason, dict(one.detail), one.message) for one in reasons]


@routes.post(
    "/api/v1/job/{job_id}/cancel",
    responses=refusals(404, 409) | {202: {"model": Cancelled, "description": "Its run is asked to end"}},
)
async def cancel_job(client: TheClient, job_id: UUID, response: Response) -> Cancelled:
    """Cancel a job."""
    answer = await client.cancel(job_id)
    if answer == "not_found":
        _no_such(job_id)
    if answer == "finished":
        raise HTTPException(status.HTTP_409_CONFLICT, "the job is finished already")
    if answer == "requested":
        response.status_code = status.HTTP_202_ACCEPTED
        return Cancelled("requested")
    return Cancelled("cancelled")


@routes.post("/api/v1/job/{job_id}/priority", responses=refusals(404, 409))
async def change_priority(client: TheClient, job_id: UUID, body: PriorityBody) -> Done:
    """Change the priority of a waiting job."""
    if not await client.set_priority(job_id, body.priority):
        await _refuse(client, job_id, "only the priority of a waiting job can change")
    return Done(f"the priority is {body.priority}")


@routes.post("/api/v1/job/{job_id}/args", responses=refusals(404, 409))
async def change_args(client: TheClient, job_id: UUID, body: ArgsBody) -> Done:
    """Replace all arguments of a waiting job."""
    if not await client.set_args(job_id, body.args):
        await _refuse(client, job_id, "only the arguments of a waiting job can change")
    return Done("the arguments are changed")


@routes.delete("/api/v1/job/{job_id}", responses=refusals(404))
async def delete_job(client: TheClient, job_id: UUID) -> Done:
    """Remove a job and its log. A running job is asked to stop, and removed when its run has ended."""
    if await client.remove(job_id) == "not_found":
        _no_such(job_id)
    return Done("the job is removed now, or when its run has ended")


@routes.post("/api/v1/job/{job_id}/retry", responses=refusals(404, 409))
async def retry_job(client: TheClient, job_id: UUID) -> Done:
    """Run a failed or cancelled job again, or a stuck one now."""
    if not await client.retry(job_id):
        await _refuse(client, job_id, "only a failed, stuck or cancelled job can run again")
    return Done("the job waits to run again")


@routes.post("/jobber/queue", tags=["jobber"], status_code=status.HTTP_201_CREATED, responses=refusals())
async def submit_by_type(body: JobberBody, client: TheClient) -> JobberAnswer:
    """Submit a job as Jobber does: the type names both the task and the queue."""
    job_id = await client.submit(body.type, body.args, queue=body.type)
    return JobberAnswer.model_validate({"job-id": job_id})


def _checked(nr: int, body: JobBody) -> NewJob:
    try:
        return new_job(**body.fields())
    except InvalidJob as error:
        raise InvalidJob(f"jobs[{nr}].{error}") from error


def _no_such(job_id: UUID) -> NoReturn:
    raise HTTPException(status.HTTP_404_NOT_FOUND, f"there is no job {job_id}")


async def _refuse(client: Client, job_id: UUID, rule: str) -> NoReturn:
    """Raise the reason why a job did not change."""
    job = await client.get(job_id)
    if job is None:
        _no_such(job_id)
    raise HTTPException(status.HTTP_409_CONFLICT, f"the job is {job.state}: {rule}")

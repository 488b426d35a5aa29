"""Routes about keyed jobs, for the programs that add them.

Ids may be any values, so they are in the body, and all calls are POST.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal
from uuid import UUID

from fastapi import APIRouter, Depends, Request, Response, status
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, TypeAdapter

from joex.client.client import Client
from joex.client.keyed_jobs import KeyedJobs
from joex.client.keyed_model import STATES, JobState, KeyedJob, keyed_job, name_of, pack, type_and_id
from joex.core import tuples
from joex.core.access import Scope
from joex.errors import JobExists
from joex.http.caller import Caller, TheCaller, needs
from joex.http.dependencies import TheClient, TheReport, TheTraceContext, TheTurn, refusals
from joex.http.errors import Answers, Problem, problem, problems
from joex.http.keyed_pages import TheOnlyPage, page
from joex.http.route import Route
from joex.http.turns import acting_in_turn
from joex.http.values import Shown
from joex.http.visible import most_bytes
from joex.http.worker_models import ActiveBody, AddBody, CountBody, JobNameBody, ListBody, ResubmitBody
from joex.store import keyed
from joex.store.jobs import cancel
from joex.store.statement import Connection
from joex.tracing import receiving

routes = APIRouter(route_class=Route, tags=["keyed jobs"], responses=refusals(503))


async def _jobs(request: Request) -> KeyedJobs:
    jobs: KeyedJobs = request.app.state.keyed
    return jobs


TheJobs = Annotated[KeyedJobs, Depends(_jobs)]


class Ok(BaseModel):
    """The call succeeded."""

    answer: Literal["ok"] = "ok"


class Reported(Ok):
    """The run continues. ``resubmit``: a client has called resubmit, so the job runs once more when this run ends."""

    resubmit: bool


class Refusal(Problem):
    """The call changed nothing. ``worker_conflict``: the run has lost its job; ``canceled``: the run must stop."""

    answer: Literal["not_found", "worker_conflict", "canceled"]


class Added(BaseModel):
    """The UUID of a new job, its id in all other calls."""

    job: UUID


class ShownOpts(BaseModel):
    """The options of a job: ``priority``, ``cancel`` and ``resubmit`` if given, and free fields.

    Without the scope payloads, ``data`` is null, and there are no free fields.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow")

    data: dict[str, Any] | None
    priority: Shown = None
    cancel: bool = False
    resubmit: bool = False


class ShownJob(BaseModel):
    """A job. ``attempt``: the number of runs that have started."""

    job: UUID
    state: JobState
    attempt: int
    type: Shown
    id: Shown
    opts: ShownOpts


_JOB: TypeAdapter[ShownJob] = TypeAdapter(ShownJob)
_ID: TypeAdapter[Any] = TypeAdapter(Shown)


class JobsOfType(BaseModel):
    """A page of jobs in the order of their ids; ``more``: whether others follow.

    A page ends before ``limit`` where options have 4 MB together, or types, ids and priorities 400 kB (packed).
    """

    jobs: list[ShownJob]
    more: bool


class Counts(BaseModel):
    """The number of jobs of a type."""

    pending: int
    running: int
    finished: int


class ActiveIds(BaseModel):
    """A page of the ids of the running jobs of a type, in their order; ``more``: whether others follow.

    A page ends before ``limit`` where the ids have 400 kB together (packed).
    """

    ids: list[Shown]
    more: bool


_CONFLICT: Answers = {
    409: {"model": Refusal, "description": "The run has lost its job, or must stop: the answer says which"}
}
_NOT_FOUND: Answers = {404: {"model": Refusal, "description": "There is no such job"}}
RUN_REFUSALS = refusals() | _CONFLICT
"""The documented errors of a call that a run makes."""

_WORDS = {
    "not_found": "there is no such job",
    "worker_conflict": "the run has lost its job: stop, and leave the job alone",
    "canceled": "the job was cancelled: stop",
}


def answered(answer: str) -> Ok | Response:
    """The answer to a call about keyed jobs, with its status."""
    return Ok() if answer == "ok" else refused(answer)


def refused(answer: str) -> Response:
    """The answer, other than ok, to a call about keyed jobs, with its status."""
    code = status.HTTP_404_NOT_FOUND if answer == "not_found" else status.HTTP_409_CONFLICT
    return JSONResponse({"answer": answer, "detail": _WORDS[answer]}, code)


async def named(client: Client, caller: Caller, body: JobNameBody) -> tuple[Any, Any] | None:
    """The type and id of a run's job, named in either way; None: there is none that the caller may reach.

    (The run's lock id says which one it is, where two jobs have this name. A name whose job may not exist comes back
    too, unless the caller is bound.)
    """
    if body.uuid is None and not caller.bounds.are_set:
        return body.type, body.id
    row = await _find(client, caller, body, payloads=False)
    return None if row is None else type_and_id(row)


async def _find(
    client: Client, caller: Caller, body: JobNameBody, *, payloads: bool, given: Connection | None = None
) -> keyed.KeyedRow | None:
    """The job that the body names; None: there is none that the caller may reach."""
    uuid = body.uuid
    async with client.using(given) as connection:
        if uuid is None:
            uuid = await keyed.find(connection, name_of("type", body.type), pack("id", body.id))
        # (Also where there is none: a bound caller must not tell it by the time from a job that it may not reach.)
        return await keyed.get(connection, uuid, payloads=payloads, bounds=caller.bounds)


@routes.post(
    "/api/v1/keyed/add",
    status_code=status.HTTP_201_CREATED,
    response_model=Added,
    responses=problems(429) | {409: {"model": Problem, "description": "The type has a job with this id"}},
    dependencies=[needs(Scope.SUBMIT)],
)
async def add_job(body: AddBody, jobs: TheJobs, caller: TheCaller, trace: TheTraceContext) -> Added | Response:
    """Add a job. It stays until you remove it, even when it is finished."""
    name = name_of("type", body.type)
    queue, group = (name if given is None else given for given in (body.queue, body.group))
    caller.check_place(queue, group)
    caller.check_own_name("id", body.id, queue, group)
    try:
        with receiving(trace):
            job = await jobs.add(
                body.type,
                body.id,
                body.opts.given(),
                group=body.group,
                queue=body.queue,
                subject=body.subject,
                submitter=body.submitter,
            )
    except JobExists as error:
        return problem(status.HTTP_409_CONFLICT, str(error))
    return Added(job=job)


@routes.post(
    "/api/v1/keyed/remove", response_model=Ok, responses=_NOT_FOUND, dependencies=[needs(Scope.SUBMIT, Scope.OPERATE)]
)
async def remove_job(body: JobNameBody, client: TheClient, caller: TheCaller, request: Request) -> Ok | Response:
    """Remove a job and its log. Where it runs, its run is told to stop, and it is removed when that has ended.

    With the scope submit alone, a token removes keyed jobs only.
    """
    async with client.using() as connection:
        row = await _find(client, caller, body, payloads=False, given=connection)
        if row is None or not _may_change(caller, row, Scope.OPERATE):
            return refused("not_found")
        if row.key is not None:
            return answered(await keyed.remove(connection, row.id))
    async with acting_in_turn(request) as connection:  # (the audit notes this one, as `DELETE /api/v1/job/{job_id}`)
        return answered(await keyed.remove(connection, row.id))


@routes.post(
    "/api/v1/keyed/cancel", response_model=Ok, responses=_NOT_FOUND, dependencies=[needs(Scope.SUBMIT, Scope.OPERATE)]
)
async def cancel_keyed_job(body: JobNameBody, client: TheClient, caller: TheCaller, turn: TheTurn) -> Ok | Response:
    """Cancel a job: it is finished now, or when its run has stopped. It stays, and you can resubmit it."""
    async with turn as connection:
        row = await _find(client, caller, body, payloads=False, given=connection)
        return answered("not_found" if row is None or await cancel(connection, row.id) == "not_found" else "ok")


@routes.post(
    "/api/v1/keyed/resubmit",
    response_model=Ok,
    responses=_NOT_FOUND | _CONFLICT,
    dependencies=[needs(Scope.SUBMIT, Scope.OPERATE)],
)
async def resubmit_job(body: ResubmitBody, jobs: TheJobs, client: TheClient, caller: TheCaller) -> Ok | Response:
    """Run a job once more. A running job runs again when its run ends; the run itself may ask for it.

    With the scope submit alone, a token resubmits keyed jobs only.
    """
    lock_id = body.lock_id
    async with client.using() as connection:
        row = await _find(client, caller, body, payloads=False, given=connection)
        # (With the scope work, a run asks for it by its update, too.)
        if row is None or not _may_change(caller, row, Scope.OPERATE, *([] if lock_id is None else [Scope.WORK])):
            return refused("not_found" if lock_id is None else "worker_conflict")
        if lock_id is None:
            return answered(await keyed.resubmit(connection, row.id))
        return answered(await jobs.resubmit(*type_and_id(row), lock_id, connection=connection))


def _may_change(caller: Caller, row: keyed.KeyedRow, *scopes: Scope) -> bool:
    """Whether a caller with the scope submit may change a job: one that is not keyed, with one of these scopes too."""
    return row.key is not None or not caller.scopes.isdisjoint(scopes)


@routes.post(
    "/api/v1/keyed/get",
    response_model=ShownJob,
    response_model_exclude_unset=True,
    responses=_NOT_FOUND,
    dependencies=[needs(Scope.VIEW, Scope.SUBMIT)],
)
async def get_keyed_job(body: JobNameBody, client: TheClient, caller: TheCaller) -> ShownJob | Response:
    """Read a job."""
    row = await _find(client, caller, body, payloads=caller.sees_payloads)
    return refused("not_found") if row is None else _shown(keyed_job(row))


@routes.post("/api/v1/keyed/list", response_model=JobsOfType, dependencies=[needs(Scope.VIEW, Scope.SUBMIT)])
async def list_keyed_job(
    body: ListBody, client: TheClient, caller: TheCaller, report: TheReport, only_page: TheOnlyPage
) -> Response:
    """List the jobs of a type in the order of their ids."""
    states = None if body.state is None else [ours for ours, theirs in STATES.items() if theirs == body.state]
    async with only_page:
        async with report, client.using() as connection:
            rows, more = await keyed.list_keyed(
                connection,
                name_of("type", body.type),
                _after(body),
                states,
                body.limit,
                bounds=caller.bounds,
                most_bytes=most_bytes(caller),
            )
        return await page(
            "jobs",
            rows,
            lambda row: len(row.type) + len(row.key or b"") + len(row.rank),
            lambda row: _JOB.dump_json(_shown(keyed_job(row)), exclude_unset=True),
            more=more,
        )


@routes.post("/api/v1/keyed/count", dependencies=[needs(Scope.VIEW, Scope.SUBMIT)])
async def count_keyed_job(body: CountBody, client: TheClient, caller: TheCaller, report: TheReport) -> Counts:
    """Count the jobs of a type."""
    most = pack("max_priority", body.max_priority) if "max_priority" in body.model_fields_set else None
    async with report, client.using() as connection:
        return Counts(**await keyed.count(connection, name_of("type", body.type), most, caller.bounds))


@routes.post("/api/v1/keyed/active", response_model=ActiveIds, dependencies=[needs(Scope.VIEW, Scope.SUBMIT)])
async def list_active_jobs(
    body: ActiveBody, client: TheClient, caller: TheCaller, report: TheReport, only_page: TheOnlyPage
) -> Response:
    """List the ids of the running jobs of a type, in their order."""
    name, after, most = name_of("type", body.type), _after(body), body.limit
    async with only_page:
        async with report, client.using() as connection:
            keys = await keyed.active(connection, name, caller.bounds, after=after, most=most + 1)
        return await page("ids", keys[:most], len, lambda key: _ID.dump_json(tuples.unpack(key)), more=len(keys) > most)


def _after(body: ActiveBody) -> bytes | None:
    return pack("after", body.after) if "after" in body.model_fields_set else None


def _shown(job: KeyedJob) -> ShownJob:
    opts = ShownOpts.model_validate(job.opts)
    return ShownJob(job=job.job, state=job.state, attempt=job.attempt, type=job.type, id=job.id, opts=opts)

"""Routes for workers in any language: accept a job, report, finish it; and the timeouts of types."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from uuid import UUID

from fastapi import APIRouter, Request, Response, status
from pydantic import BaseModel

from joex.client.client import Client
from joex.client.keyed_jobs import KeyedJobs
from joex.client.keyed_model import TypeTimeout, known_opts, name_of, type_and_id
from joex.core import tuples
from joex.core.access import Scope
from joex.core.text import cut
from joex.core.trace_context import headers_of
from joex.http.caller import TheCaller, needs, refuse_if_bound, refuse_if_revoked
from joex.http.connection_shares import judged_by
from joex.http.dependencies import Done, TheClient, TheTurn, refusals
from joex.http.disconnect import unless_disconnected
from joex.http.errors import problems
from joex.http.keyed import RUN_REFUSALS, Ok, Reported, ShownOpts, TheJobs, answered, named, refused
from joex.http.passed_on import PassedOn, members, readable
from joex.http.route import Calls, Route
from joex.http.turns import MOST_ACCEPTING, PacedTurn, Turns
from joex.http.values import Shown
from joex.http.worker_models import AcceptBody, FinishBody, RunBody, TimeoutBody, UpdateBody
from joex.store import keyed, runs
from joex.store.errors import translated
from joex.store.job_logs import attempts
from joex.store.json_text import json_text
from joex.store.keyed import KeyedRow
from joex.store.statement import Connection

routes = APIRouter(route_class=Route, tags=["workers"], responses=problems(503))

_ANSWERS = {"success": "ok", "failed": "ok", "cancelled": "canceled"}
"""To the end of a run, by its outcome. (A run that was given back has no end of its own.)"""


class Accepted(BaseModel):
    """A job for the worker to run. ``job`` and ``lock_id`` come first, for programs that can't parse JSON.

    ``traceparent`` and ``tracestate``: of the caller that submitted it (W3C Trace Context); left out if it had none.
    """

    job: UUID
    lock_id: UUID
    attempt: int
    type: Shown
    id: Shown
    opts: ShownOpts
    traceparent: str | None = None
    tracestate: str | None = None


class ShownTimeout(BaseModel):
    """When Joex puts back runs of a type, in seconds: after the last report (activity), or after their start."""

    type: Shown
    activity: float | None
    visibility: float | None


class Timeouts(BaseModel):
    """The types that have a timeout."""

    timeouts: list[ShownTimeout]


@routes.post(
    "/api/v1/accept",
    response_model=Accepted,
    responses=refusals() | {204: {"description": "There is no job now"}},
    dependencies=[needs(Scope.WORK)],
)
async def accept_job(body: AcceptBody, jobs: TheJobs, caller: TheCaller, request: Request) -> Response:
    """Take the next job of a type, to run it yourself.

    The job belongs to this run as long as it reports (update) within the timeout of the type, by default within 60
    seconds. The run ends with finish or give-back. A caller that hangs up while it waits takes no job. A token may be
    bound to queues; one that is bound to groups is refused, because a worker takes jobs of all groups.
    """
    if caller.groups is not None:
        refuse_if_bound(caller)
    caller.check_place(name_of("type", body.type), "", of_queue="type")
    calls: Calls = request.app.state.calls
    calls.make_place(caller.tenant)
    limit = {"max_priority": body.max_priority} if "max_priority" in body.model_fields_set else {}
    turns: Turns = request.app.state.accepting
    turn = None
    if caller.bounds.are_set:  # (It has waited for the pace of answers before: by now others may have been made.)
        own = turns.of(caller.tenant, MOST_ACCEPTING)
        turn = PacedTurn(own, calls.pace, caller.tenant, request.app.state.closing)
    clock = asyncio.get_running_loop().time
    deadline = clock() + body.wait.total_seconds() if body.wait else None
    accept = jobs._accept_in_turn  # noqa: SLF001 - it is for no other callers
    take = partial(accept, body.type, worker=body.worker, turn=turn, deadline=deadline, **limit)
    job = await unless_disconnected(request, take())  # and fail at once if the database is away
    if job is None and deadline is not None and clock() < deadline:
        with calls.waiting(caller.tenant) as must_end:
            job = await unless_disconnected(request, take(waits=True), must_end)
    if job is not None:
        try:
            await refuse_if_revoked(request)  # the call may have waited
        except BaseException:  # also where the database does not answer: the worker has no job then
            await _give_back(job, jobs)
            raise
    if job is None or await _is_given_back(job, jobs, request):
        return Response(status_code=status.HTTP_204_NO_CONTENT)
    return _accepted(job)


@routes.post("/api/v1/update", response_model=Reported, responses=RUN_REFUSALS, dependencies=[needs(Scope.WORK)])
async def update_job(body: UpdateBody, jobs: TheJobs, client: TheClient, caller: TheCaller) -> Reported | Response:
    """Report that a run continues, and change the options of its job."""
    name = await named(client, caller, body)
    if name is None:
        return refused("worker_conflict")
    async with _transaction(client) as connection:
        answer = await jobs.update(
            *name,
            body.opts.given(),
            body.lock_id,
            progress=body.progress,
            message=body.message,
            connection=connection,
        )
        await _write_log(jobs, name, body.lock_id, body.log, connection)
    return Reported(resubmit=answer.resubmit) if answer == "ok" else refused(answer)


@routes.post("/api/v1/finish", response_model=Ok, responses=RUN_REFUSALS, dependencies=[needs(Scope.WORK)])
async def finish_job(body: FinishBody, jobs: TheJobs, client: TheClient, caller: TheCaller) -> Ok | Response:
    """End a run: the job is finished. With an error, Joex retries it after a delay, until no retries are left.

    If the job was cancelled, the run has ended too. You can repeat a call whose answer was lost.
    """
    name = await named(client, caller, body)
    if name is None:
        return answered("worker_conflict")
    async with _transaction(client) as connection:
        await _write_log(jobs, name, body.lock_id, body.log, connection)  # first: the end's line is the last
        answer: str = await jobs.finish(
            *name,
            body.opts.given(),
            body.lock_id,
            result=body.result,
            message=body.message,
            error=body.error,
            retry=body.retry,
            connection=connection,
        )
    if answer == "canceled":  # in a transaction that could roll back, this does not end the run yet
        answer = await jobs.finish(*name, {}, body.lock_id)
    if answer == "worker_conflict":
        answer = await _first_answer(client, jobs, name, body.lock_id)
    return answered(answer)


@routes.post("/api/v1/give-back", response_model=Ok, responses=RUN_REFUSALS, dependencies=[needs(Scope.WORK)])
async def give_back_job(body: RunBody, jobs: TheJobs, client: TheClient, caller: TheCaller) -> Ok | Response:
    """End a run without counting it: the job waits again, at its old place in line, for others to take."""
    name = await named(client, caller, body)
    return answered("worker_conflict" if name is None else await jobs.give_back(*name, body.lock_id))


@routes.get("/api/v1/timeouts", dependencies=[needs(Scope.VIEW, whole_system=True)])
async def list_timeouts(jobs: TheJobs) -> Timeouts:
    """List the timeouts of types."""
    return Timeouts(timeouts=[_timeout(one) for one in await jobs.timeouts()])


@routes.post("/api/v1/timeouts", responses=refusals(), dependencies=[needs(Scope.OPERATE, whole_system=True)])
async def set_timeout(body: TimeoutBody, jobs: TheJobs, turn: TheTurn) -> Done:
    """Set when Joex puts back runs of a type, so that others may take the jobs. Applies to runs that begin later."""
    async with turn as connection:
        await jobs.set_timeout(body.type, activity=body.activity, visibility=body.visibility, connection=connection)
    taken_away = body.activity is None and body.visibility is None
    return Done("the type has no timeout" if taken_away else "the timeout of the type is set")


def _accepted(job: KeyedRow) -> PassedOn:
    """An answer as `Accepted` describes it."""
    job_type, job_id = type_and_id(job)
    names = {"type": tuples.to_json(job_type), "id": tuples.to_json(job_id)}
    head = members({"job": job.id, "lock_id": job.lock_id, "attempt": job.attempt, **names})
    known = members({name: tuples.to_json(value) for name, value in known_opts(job).items()})
    trace = members({} if job.trace_context is None else headers_of(job.trace_context))
    data, free = readable(json_text("data", job.data)), readable(json_text("opts", job.opts))[1:-1]
    opts = b",".join(part for part in (b'"data":%b' % data, known, free) if part)
    content = b",".join(part for part in (head, b'"opts":{%b}' % opts, trace) if part)
    return PassedOn(b"{%b}" % content, own=head + known + trace)


async def _is_given_back(job: KeyedRow, jobs: KeyedJobs, request: Request) -> bool:
    """Give a job back if its worker has hung up in the meantime."""
    if not await request.is_disconnected():
        return False
    await _give_back(job, jobs)
    return True


async def _give_back(job: KeyedRow, jobs: KeyedJobs) -> None:
    with judged_by(None):  # also when its worker's token is revoked
        await jobs.give_back(*type_and_id(job), _lock_of(job))


def _lock_of(job: KeyedRow) -> UUID:
    assert job.lock_id is not None  # noqa: S101 - it was accepted
    return job.lock_id


@asynccontextmanager
async def _transaction(client: Client) -> AsyncIterator[Connection]:
    async with client.using() as connection:
        with translated():
            async with connection.transaction():
                yield connection


async def _write_log(
    jobs: KeyedJobs, name: tuple[Any, Any], lock_id: UUID, lines: Sequence[str], connection: Connection
) -> None:
    """Write the lines of a run into the log; none if the run has lost its job, or has ended."""
    job = await jobs.get_job(*name, connection=connection) if lines else None
    if job is not None and job.state == "running":
        said = [runs.LogLine(job.job, lock_id, job.attempt, 0.0, "info", cut(line)) for line in lines]
        await runs.note_many(connection, said, [])


async def _first_answer(client: Client, jobs: KeyedJobs, name: tuple[Any, Any], lock_id: UUID) -> str:
    """The answer that a run got when it ended itself; the run repeats the call because that answer was lost."""
    async with client.using() as connection:
        job = await jobs.get_job(*name, connection=connection)
        if job is None:
            return "worker_conflict"
        ended = await attempts(connection, job.job, most=1, payloads=False)
        row = await keyed.get(connection, job.job, payloads=False)  # (then: if it still is the run's, no other ran)
    is_latest = row is not None and row.lock_id == lock_id
    return _ANSWERS.get(ended[-1].outcome, "worker_conflict") if is_latest and ended else "worker_conflict"


def _timeout(one: TypeTimeout) -> ShownTimeout:
    activity, visibility = (limit and limit.total_seconds() for limit in (one.activity, one.visibility))
    return ShownTimeout(type=one.type, activity=activity, visibility=visibility)

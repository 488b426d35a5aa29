"""The pages of jobs: the list with its filters, and a job with the reasons why it waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import accumulate
from math import ceil
from typing import Annotated
from urllib.parse import urlencode
from uuid import UUID

from fastapi import APIRouter, Depends, HTTPException, Path, Query, Request, status
from starlette.responses import Response

from joex.client.explain import Reason
from joex.client.options import FINAL
from joex.console.acts import ACTS, MOST_RUNNING, BulkAct
from joex.console.calls import Done, Storable, Text, TheConsole, TheForm, not_found, to, way_back
from joex.console.views import MOST_SHOWN
from joex.core.access import Scope
from joex.core.duration import span
from joex.core.job import State
from joex.http.caller import Caller, TheCaller, needs, still_valid
from joex.http.dependencies import TheTurn
from joex.http.visible import visible_reasons
from joex.store import jobs, stats
from joex.store.job_logs import Attempt, LogEntry, attempts, latest_log
from joex.store.job_pages import LONGEST_CURSOR
from joex.store.jobs import Job
from joex.store.search import Search, count_jobs, search_jobs
from joex.store.statement import Connection
from joex.store.value_beginnings import beginnings

routes = APIRouter()

PAGE = 50
"""Jobs."""
LINES = 200
"""Of a log: the latest ones."""
_LOG_BYTES = 1_000_000
_LOG_SHOWN = 100_000
"""Characters of the lines that a page shows, which may become five times as many as HTML."""
ATTEMPTS = 50
"""Of a job: the latest ones."""
MOST_SOUGHT = 64
"""Characters of a part of a subject: the longer it is, the longer each comparison takes the server."""
MOST_COUNTED, MOST_SUBJECTS_COUNTED = 200_000, 50_000
"""Jobs that are read to count those that match; and where their subjects are compared."""
STATES = ("running", "scheduled", "waiting", "stuck", "failed", "success", "cancelled")


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment in the life of a job; ``then``: what follows from it; ``error``: of the attempt that has ended."""

    icon: str
    what: str
    at: datetime
    app_id: str | None = None
    then: str = ""
    error: str | None = None


async def _search(  # noqa: PLR0917 - the filters
    caller: TheCaller,
    state: Annotated[list[State], Query(default_factory=list)],
    queue: Text = "",
    group: Text = "",
    task: Text = "",
    submitter: Text = "",
    tracker: Text = "",
    text: Annotated[str, Query(max_length=MOST_SOUGHT), Storable] = "",
) -> Search:
    states = list(dict.fromkeys(state)) or None
    return Search(
        queue or None, group or None, task or None, states, caller.bounds,
        submitter=submitter or None, tracker=tracker or None, subject=text or None,
    )  # fmt: skip


TheSearch = Annotated[Search, Depends(_search)]
"""The filter in the query of a call.

What a page shows and links of it, what a user confirms and what the audit has are made of this, not of the query."""
Cursor = Annotated[str, Query(max_length=LONGEST_CURSOR)]


@routes.get("/jobs", dependencies=[needs(Scope.VIEW)])
async def list_jobs(  # noqa: PLR0917 - what they depend on
    console: TheConsole,
    caller: TheCaller,
    request: Request,
    wanted: TheSearch,
    done: Done,
    cursor: Cursor = "",
) -> Response:
    """The jobs that match a filter, page by page."""
    if (job_id := _as_id(wanted.subject)) is not None:
        return to(request, f"/jobs/{job_id}")
    is_asked_again = not (cursor or _given(wanted))  # see jobs.html: a search is what a user does
    reading = console.pace.reading(caller.tenant) if is_asked_again else console.client.using()
    async with console.searches.turn(request), reading as connection:
        page = await search_jobs(connection, wanted, cursor or None, PAGE)
        now = await stats.now(connection)
    chosen = wanted.states or ()
    return console.views.page(
        request, "jobs.html", page=page, wanted=wanted, chosen=chosen, states=STATES, cursor=cursor, now=now,
        query=_query(_given(wanted)), back=_back(wanted, cursor), most_sought=MOST_SOUGHT,
        acts={name: act for name, act in ACTS.items() if not chosen or any(one in act.states for one in chosen)},
        done=done, size=PAGE,
    )  # fmt: skip


def _as_id(text: str | None) -> UUID | None:
    try:
        return UUID((text or "").strip())
    except ValueError:
        return None


async def _check_reachable(connection: Connection, caller: Caller, job_id: UUID) -> None:
    """Answer for a job outside of the caller's bounds as for one that does not exist."""
    place = await jobs.place_of(connection, job_id)
    if place is None or not caller.bounds.holds(*place):
        not_found(f"There is no job {job_id}.")


@routes.get("/jobs/{job_id}", dependencies=[needs(Scope.VIEW)])
async def show_job(  # noqa: PLR0917 - what they depend on
    console: TheConsole,
    caller: TheCaller,
    request: Request,
    job_id: UUID,
    wanted: TheSearch,
    done: Done,
    cursor: Cursor = "",
) -> Response:
    """A job: why it waits, what it has done, and its log."""
    sees = Scope.PAYLOADS in caller.scopes
    async with console.pace.reading(caller.tenant) as connection:
        await _check_reachable(connection, caller, job_id)
        job = await jobs.get_job(connection, job_id, payloads=sees, values=False)
        if job is None:
            not_found(f"There is no job {job_id}.")
        values = await beginnings(connection, job_id, MOST_SHOWN) if sees else []
        found = await jobs.why(connection, job_id)
        runs = await attempts(connection, job_id, most=ATTEMPTS, payloads=sees)
        logs = await latest_log(connection, [job_id] if sees else [], LINES, _LOG_BYTES)
        now = await stats.now(connection)
    return console.views.page(
        request, "job.html", job=job, reasons=visible_reasons(caller, [Reason(*one) for one in found]),
        life=_life(job, runs), is_cut=len(runs) == ATTEMPTS, attempts=ATTEMPTS,
        log=_shown(logs.get(job_id, [])), now=now, values=zip(("Arguments", "Result"), values, strict=False),
        can={name: act for name, act in ACTS.items() if act.can(job)},
        done=done, is_over=job.state in FINAL, back=_back(wanted, cursor),
    )  # fmt: skip


def _shown(log: list[LogEntry]) -> list[LogEntry]:
    """The latest lines that a page has room for: some, because each of them is cut."""
    sizes = accumulate(min(len(line.message), MOST_SHOWN) for line in reversed(log))
    return log[-sum(size <= _LOG_SHOWN for size in sizes) :]


_ENDS = {
    "success": ("success", "succeeded"),
    "failed": ("failed", "failed"),
    "cancelled": ("cancelled", "was cancelled"),
    "lost": ("warn", "was lost"),
    "given_back": ("waiting", "was given back, and does not count"),
}
"""The icon and the words for each outcome of an attempt that has ended."""


def _life(job: Job, runs: Sequence[Attempt]) -> list[Moment]:
    """The moments of a job: its submission, each attempt, and where it stands."""
    life = [Moment("submitted", "Submitted", job.submitted_at)]
    for run in runs:
        if run.started_at is not None:
            life.append(Moment("running", f"Attempt {run.attempt} began", run.started_at, run.app_id))
        if run.ended_at is not None:
            icon, words = _ENDS[run.outcome]
            # (The line of the end is written a moment after the delay began.)
            delay = None if run.retry_at is None else ceil((run.retry_at - run.ended_at).total_seconds())
            then = "" if delay is None else f", to be retried after {span(delay)}"
            life.append(Moment(icon, f"Attempt {run.attempt} {words}", run.ended_at, run.app_id, then, run.error))
    if job.state == "scheduled" and job.scheduled_at is not None:
        life.append(Moment("scheduled", f"Attempt {job.attempt + 1} is about to begin", job.scheduled_at, job.app_id))
    if job.due_at is not None:
        life.append(Moment("stuck" if job.state == "stuck" else "clock", "Not before", job.due_at))
    if job.finished_at is not None:
        life.append(Moment(job.state, f"Ended: {job.state}", job.finished_at))
    return life


@routes.post("/jobs/{job_id}/{act}", dependencies=[needs(Scope.OPERATE)])
async def act_on_job(  # noqa: PLR0917 - what they depend on
    console: TheConsole,
    caller: TheCaller,
    request: Request,
    job_id: UUID,
    act: str,
    wanted: TheSearch,
    _: TheForm,
    turn: TheTurn,
    cursor: Cursor = "",
) -> Response:
    """Cancel a job, run it again, change its priority, or delete it."""
    if act not in ACTS:
        not_found("There is no such act.")
    async with turn as connection:
        await _check_reachable(connection, caller, job_id)
        done = await ACTS[act].do(connection, job_id)
    console.snapshots.expire(caller.key)
    return to(request, "/jobs" if done == "deleted" else f"/jobs/{job_id}", _back(wanted, cursor), done=done)


@routes.get("/all", dependencies=[needs(Scope.OPERATE)])
async def confirm(console: TheConsole, request: Request, wanted: TheSearch, act: Annotated[str, Query()]) -> Response:
    """Ask whether an act on all jobs that match is meant, and say how many these are."""
    if act not in ACTS:
        not_found("There is no such act.")
    states = [state for state in ACTS[act].states if wanted.states is None or state in wanted.states]
    most = MOST_COUNTED if wanted.subject is None else MOST_SUBJECTS_COUNTED
    async with console.searches.turn(request), console.client.using() as connection:
        number, is_all = await count_jobs(connection, replace(wanted, states=states), most_read=most)
    return console.views.page(
        request, "all.html", act=act, label=ACTS[act].label, number=number, is_all=is_all, most=most,
        states=states, given=_given(wanted), query=_query(_given(wanted)),
    )  # fmt: skip


@routes.post("/all", dependencies=[needs(Scope.OPERATE)])
async def act_on_all(  # noqa: PLR0917 - what they depend on
    console: TheConsole,
    caller: TheCaller,
    request: Request,
    form: TheForm,
    wanted: TheSearch,
    act: Annotated[str, Query()],
) -> Response:
    """Begin an act on all jobs that match, but on no more than the user has confirmed."""
    number = form.get("number", "")
    if act not in ACTS:
        not_found("There is no such act.")
    if not (number.isdecimal() and number.isascii() and int(number[:10]) > 0):
        raise HTTPException(status.HTTP_400_BAD_REQUEST, "number: expected how many jobs are meant.")
    bulk = BulkAct(act, _given(wanted), int(number[:10]), form.get("is_all") != "no", caller.key)
    act_id = await console.bulk_acts.begin(bulk, wanted, caller, partial(still_valid, request))
    if act_id is None:
        detail = f"{MOST_RUNNING} acts of {caller.name} on many jobs go on: stop one, or wait until one has ended."
        raise HTTPException(status.HTTP_409_CONFLICT, detail)
    return to(request, f"/all/{act_id}")


async def _known(console: TheConsole, caller: TheCaller, act_id: Annotated[UUID, Path()]) -> BulkAct:
    bulk = console.bulk_acts.find(act_id, caller)
    if bulk is None:
        not_found("This console does not know the act any more: see 'joex audit'.")
    return bulk


TheAct = Annotated[BulkAct, Depends(_known)]
"""The act on many jobs in a path, of the caller's own."""


@routes.get("/all/{act_id}", dependencies=[needs(Scope.OPERATE)])
async def show_act(console: TheConsole, request: Request, act_id: UUID, bulk: TheAct) -> Response:
    """How far an act on many jobs is."""
    return console.views.page(
        request, "act.html", bulk=bulk, label=ACTS[bulk.act].label, act_id=act_id, query=_query(bulk.given)
    )


@routes.post("/all/{act_id}/stop", dependencies=[needs(Scope.OPERATE)])
async def stop_act(request: Request, act_id: UUID, bulk: TheAct, _: TheForm) -> Response:
    """Stop an act on many jobs: it changes no further job."""
    if not bulk.is_over:
        bulk.is_stopped = True
    return to(request, f"/all/{act_id}")


def _given(wanted: Search) -> dict[str, str]:
    """The filter, by the names of its fields, without what is empty; several states are joined."""
    fields = {
        "state": " ".join(wanted.states or ()), "queue": wanted.queue, "group": wanted.group, "task": wanted.task,
        "submitter": wanted.submitter, "tracker": wanted.tracker, "text": wanted.subject,
    }  # fmt: skip
    return {name: value for name, value in fields.items() if value}


def _query(given: Mapping[str, str]) -> str:
    """The filter as the query of a link."""
    return urlencode(
        [(name, one) for name, value in given.items() for one in (value.split() if name == "state" else [value])]
    )


def _back(wanted: Search, cursor: str) -> str:
    """The query of the page of the list that has a job."""
    return way_back(_query(_given(wanted) | ({"cursor": cursor} if cursor else {})))

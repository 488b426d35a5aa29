"""Dependencies of routes: the client and the executor of the application, common parameters and answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any, NoReturn, get_args, get_origin
from uuid import UUID

from fastapi import Depends, Header, HTTPException, Query, Request, Security, params, status
from fastapi.security import HTTPBearer
from starlette.convertors import PathConvertor, register_url_convertor

from joex.client.client import Client
from joex.core.trace_context import trace_context_of
from joex.http.caller import Caller, TheCaller
from joex.http.errors import Answers, cut, problems
from joex.http.executor_protocol import ExecutorProtocol
from joex.http.models import Name
from joex.http.turns import Line, acting_in_turn
from joex.store.jobs import place_of
from joex.store.statement import Connection


@dataclass(frozen=True, slots=True)
class Done:
    """The call succeeded; the message says what has changed, in a sentence."""

    message: str
    success: bool = True


async def _client(request: Request) -> Client:
    client: Client = request.app.state.client
    return client


async def _executor(request: Request) -> ExecutorProtocol:
    executor: ExecutorProtocol = request.app.state.executor
    return executor


async def _report(request: Request) -> AbstractAsyncContextManager[None]:
    reports: Line = request.app.state.reports
    return reports.turn(request)


async def _turn(request: Request) -> AbstractAsyncContextManager[Connection]:
    return acting_in_turn(request)


async def _trace_context(
    request: Request,
    traceparent: Annotated[
        str | None, Header(description="the trace of the caller, by W3C Trace Context: the jobs carry it")
    ] = None,
    tracestate: Annotated[str | None, Header(description="likewise")] = None,
) -> str | None:
    # (The header may come several times, which a schema of headers can't express.)
    return trace_context_of(traceparent, tracestate and ",".join(request.headers.getlist("tracestate")))


TheClient = Annotated[Client, Depends(_client)]
TheExecutor = Annotated[ExecutorProtocol, Depends(_executor)]
TheReport = Annotated[AbstractAsyncContextManager[None], Depends(_report)]
"""Held while a route reads, or passes over, what other groups have: few such calls read at a time, so that the
others find a connection."""
TheTurn = Annotated[AbstractAsyncContextManager[Connection], Depends(_turn)]
"""A transaction in which the caller changes something, when it is its turn (`joex.http.turns`).

What a change must read, it reads here: beside its turn, its caller would have as many reads at a time as calls."""
QueueFilter = Annotated[Name | None, Query(description="only of this queue")]
GroupFilter = Annotated[Name | None, Query(description="only of this group")]
TheTraceContext = Annotated[str | None, Depends(_trace_context)]
"""The trace context of the request. As W3C wants it, an invalid one is ignored."""
Limit = Annotated[int, Query(ge=1, le=1000, description="at most this many")]


async def _reachable(client: TheClient, caller: TheCaller, job_id: UUID) -> UUID:
    if caller.bounds.are_set:  # (Others need no connection.)
        async with client.using() as connection:
            await _check_reachable(connection, caller, job_id)
    return job_id


async def _turn_of_job(turn: TheTurn, caller: TheCaller, job_id: UUID) -> AbstractAsyncContextManager[Connection]:
    return _reaching(turn, caller, job_id)


@asynccontextmanager
async def _reaching(
    turn: AbstractAsyncContextManager[Connection], caller: Caller, job_id: UUID
) -> AsyncIterator[Connection]:
    async with turn as connection:
        await _check_reachable(connection, caller, job_id)
        yield connection


async def _check_reachable(connection: Connection, caller: Caller, job_id: UUID) -> None:
    if caller.bounds.are_set:
        place = await place_of(connection, job_id)
        if place is None or not caller.bounds.holds(*place):
            no_such_job(job_id)


def no_such_job(job_id: UUID) -> NoReturn:
    """Answer that there is no such job.

    Raises:
        HTTPException: 404.
    """
    raise HTTPException(status.HTTP_404_NOT_FOUND, f"there is no job {job_id}")


JobId = Annotated[UUID, Depends(_reachable)]
"""The id of a job in a path. A job outside of the caller's bounds is answered as one that does not exist."""
TheTurnOfJob = Annotated[AbstractAsyncContextManager[Connection], Depends(_turn_of_job)]
"""`TheTurn` of a change of the job in a path, which refuses one as `JobId` does."""


class _NameConvertor(PathConvertor):
    """The rest of a path as a name: any character may be in it, also a line break, which Starlette's ``path`` omits."""

    regex = "(?s:.*)"


register_url_convertor("name", _NameConvertor())

# Only documents the token: the check itself is `joex.http.auth`, before all routes.
BEARER: params.Depends = Security(
    HTTPBearer(auto_error=False, description="JOEX_API_TOKEN, or a token of 'joex tokens create'")
)


def has_line(dependant: Any) -> bool:
    """Whether the calls of a route wait for their turn in a line of their own: lists, reports and changes."""
    return any(one.call in {_report, _turn} or has_line(one) for one in dependant.dependencies)


def _query_parameters(dependant: Any) -> Iterator[tuple[str, bool]]:
    """The query parameters of a route, with those of its dependencies: their names, and which are lists."""
    for parameter in dependant.query_params:
        annotation = parameter.field_info.annotation
        yield parameter.alias, any(get_origin(one) is list for one in (annotation, *get_args(annotation)))
    for one in dependant.dependencies:
        yield from _query_parameters(one)


async def refuse_unknown_parameters(request: Request) -> None:
    """Refuse a parameter that the route does not have, like an unknown field of a body: a typo must not pass.

    Runs before all routes (`joex.http.api`).
    """
    known = [name for name, _ in _query_parameters(request.scope["route"].dependant)]
    for name in request.query_params:
        if name not in known:
            fix = f"known are {', '.join(known)}" if known else "this call has none"
            raise HTTPException(status.HTTP_400_BAD_REQUEST, f"{cut(name)}: there is no such parameter: {fix}")


async def refuse_repeated_parameters(request: Request) -> None:
    """Refuse a parameter that comes twice, unless it is a list: FastAPI takes the last one.

    A proxy in front may have judged the first one. Runs before all routes.
    """
    lists = {name for name, is_list in _query_parameters(request.scope["route"].dependant) if is_list}
    refuse_repeated(name for name, _ in request.query_params.multi_items() if name not in lists)


def refuse_repeated(names: Iterable[str]) -> None:
    """Refuse a call in which a name comes twice that must come once.

    Raises:
        HTTPException: 400.
    """
    for name, number in Counter(names).items():
        if number > 1:
            raise HTTPException(status.HTTP_400_BAD_REQUEST, f"{cut(name)}: is given {number} times: give it once")


def refusals(*statuses: int) -> Answers:
    """The documented errors of a call that changes something: those of its body in `joex.http.auth`, and its own."""
    return problems(413, 415, *statuses)

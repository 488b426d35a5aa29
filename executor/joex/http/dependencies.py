"""Dependencies of routes: the client and the executor of the application, common parameters and answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, HTTPException, Query, Request, Security, params, status
from fastapi.security import HTTPBearer
from starlette.convertors import PathConvertor, register_url_convertor

from joex.client.client import Client
from joex.http.errors import Answers, cut, problems
from joex.http.executor_protocol import ExecutorProtocol
from joex.http.models import Name


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


TheClient = Annotated[Client, Depends(_client)]
TheExecutor = Annotated[ExecutorProtocol, Depends(_executor)]
QueueFilter = Annotated[Name | None, Query(description="only of this queue")]
GroupFilter = Annotated[Name | None, Query(description="only of this group")]
Limit = Annotated[int, Query(ge=1, le=1000, description="at most this many")]


class _NameConvertor(PathConvertor):
    """The rest of a path as a name: any character may be in it, also a line break, which Starlette's ``path`` omits."""

    regex = "(?s:.*)"


register_url_convertor("name", _NameConvertor())

# Only documents the token: the check itself is `joex.http.auth`, before all routes.
BEARER: params.Depends = Security(HTTPBearer(auto_error=False, description="JOEX_API_TOKEN, if it is set"))


async def refuse_unknown_parameters(request: Request) -> None:
    """Refuse a parameter that the route does not have, like an unknown field of a body: a typo must not pass.

    Runs before all routes (`joex.http.api`).
    """
    known = [parameter.alias for parameter in request.scope["route"].dependant.query_params]
    for name in request.query_params:
        if name not in known:
            fix = f"known are {', '.join(known)}" if known else "this call has none"
            raise HTTPException(status.HTTP_400_BAD_REQUEST, f"{cut(name)}: there is no such parameter: {fix}")


def refusals(*statuses: int) -> Answers:
    """The documented errors of a call that changes something: those of its body in `joex.http.auth`, and its own."""
    return problems(413, 415, *statuses)

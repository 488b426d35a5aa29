"""What routes share: the client and the executor of the application, the usual parameters and answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, HTTPException, Query, Request, Security, params, status
from fastapi.security import HTTPBearer

from joex.client.client import Client
from joex.http.errors import cut, problems
from joex.http.executor_protocol import ExecutorProtocol
from joex.http.models import Name


@dataclass(frozen=True, slots=True)
class Done:
    """It was done; the message says what, for people."""

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
QueueFilter = Annotated[Name | None, Query(description="of this queue only")]
GroupFilter = Annotated[Name | None, Query(description="of this group only")]
Limit = Annotated[int, Query(ge=1, le=1000, description="at most so many")]

# Routes that change something say so, for the documentation: the gate itself is `joex.http.auth`, before all routes.
CHANGING: Sequence[params.Depends] = [
    Security(
        HTTPBearer(auto_error=False, description="JOEX_API_TOKEN: calls that change something need it, when it is set")
    )
]


async def refuse_unknown_parameters(request: Request) -> None:
    """Refuse a parameter that the route does not have, as a body's unknown field is: a typo must not be ignored.

    Stands before all routes (`joex.http.api`).
    """
    known = [parameter.alias for parameter in request.scope["route"].dependant.query_params]
    for name in request.query_params:
        if name not in known:
            mend = f"known are {', '.join(known)}" if known else "this call has none"
            raise HTTPException(status.HTTP_400_BAD_REQUEST, f"{cut(name)}: there is no such parameter: {mend}")


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The documentation of the problems of a call that changes something: those of the gate, and its own."""
    return problems(401, 403, 413, 415, *statuses)

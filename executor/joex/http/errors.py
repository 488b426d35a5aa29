"""Errors -> answers: ``{"detail": "one line"}``, with the status that tells the caller what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.routing import Match, Route

from joex.errors import ConfigError, DatabaseUnavailable, GroupFull, InvalidJob, JoexError
from joex.http.state import CALLER
from joex.store.errors import Locked
from joex.store.tokens import OWNER

RETRY_AFTER = {"Retry-After": "2"}
"""The header of answers that say: try again."""
_TO_OTHERS = {
    ConfigError: "Joex's database URL, role or schema is wrong",
    DatabaseUnavailable: "the database does not answer, or refuses the work for now",
}
_MOST_SHOWN = 5
_LONGEST_NAME = 100
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
_MEANINGS = {
    400: "The call is wrong: the detail names the field. Nothing was done.",
    401: "The call needs a token, or its token is unknown, expired or revoked.",
    403: "The token lacks a scope, or is bound to other groups or queues: the detail says which. Or the call has no "
    "token, and does not come from a program on this machine.",
    404: "There is no such job.",
    409: "The job is in a state that does not allow it.",
    413: "The body is too large.",
    429: "The group has as many waiting jobs as it may: submit again later. Nothing was stored.",
    415: "The body is not declared as application/json, or has a Content-Encoding.",
    503: "The database is unreachable, or has another schema; another transaction holds what the call changes; or the "
    "executor serves too many calls: try again later.",
}


Answers: TypeAlias = dict[int | str, dict[str, Any]]
"""The documentation of answers, by their status."""


class Unjudged(DatabaseUnavailable):
    """Joex can't judge a token now. The caller may be a stranger: the message names no server, role or database."""


class Problem(BaseModel):
    """Why a call failed."""

    detail: str = Field(description="the reason, in one line")


def problem(status: int, detail: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """An error answer."""
    # The detail may quote a name from the body that is not valid Unicode.
    text = " ".join(detail.split()).encode(errors="backslashreplace").decode()
    return JSONResponse({"detail": text}, status, headers)


def told(error: Exception, caller: object) -> str:
    """What an error says to a `Caller`. The owner alone learns where the database is, and what it says."""
    is_owner = getattr(caller, "name", None) == OWNER
    if isinstance(error, Locked | Unjudged) or (is_owner and isinstance(error, JoexError)):
        return str(error)
    return next((text for kind, text in _TO_OTHERS.items() if isinstance(error, kind)), "internal error: see the log")


def problems(*statuses: int) -> Answers:
    """The documentation of the errors that a call can answer with."""
    return {status: {"model": Problem, "description": _MEANINGS[status]} for status in statuses}


def cut(name: str) -> str:
    """A name from the caller, cut to fit into a line."""
    return name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}..."


def add_handlers(api: FastAPI, routes: Sequence[Route]) -> None:
    """Translate the exceptions of these routes."""
    api.add_exception_handler(RequestValidationError, _bad_request)
    api.add_exception_handler(405, partial(_no_such_method, routes=routes))
    api.add_exception_handler(HTTPException, _refused)
    api.add_exception_handler(InvalidJob, _invalid)
    api.add_exception_handler(GroupFull, _full)
    api.add_exception_handler(DatabaseUnavailable, _unavailable)
    api.add_exception_handler(ConfigError, _unavailable)  # the schema or the password of the database has changed
    api.add_exception_handler(Exception, _failed)


async def _bad_request(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)  # noqa: S101 - as it was registered
    found = error.errors()
    lines = [_problem_line(one) for one in found[:_MOST_SHOWN]]
    if len(found) > _MOST_SHOWN:
        lines.append(f"and {len(found) - _MOST_SHOWN} more")
    return problem(400, "; ".join(lines))


async def _refused(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)  # noqa: S101 - as it was registered
    return problem(error.status_code, error.detail, error.headers)


async def _no_such_method(request: Request, _: Exception, *, routes: Sequence[Route]) -> JSONResponse:
    # The router knows the methods of the first route with this path; others may have more.
    here = [route for route in routes if route.matches(request.scope)[0] is not Match.NONE]
    served = {method for route in here for method in route.methods or ()}
    allowed = ", ".join(method for method in _METHODS if method in served)
    return problem(405, f"{request.method} is not served here: use {allowed}", {"Allow": allowed})


async def _invalid(_: Request, error: Exception) -> JSONResponse:
    return problem(400, str(error))


async def _full(_: Request, error: Exception) -> JSONResponse:
    return problem(429, str(error), RETRY_AFTER)


async def _unavailable(request: Request, error: Exception) -> JSONResponse:
    return problem(503, told(error, getattr(request.state, CALLER, None)), RETRY_AFTER)


async def _failed(request: Request, error: Exception) -> JSONResponse:
    return problem(500, told(error, getattr(request.state, CALLER, None)))


def _problem_line(found: Mapping[str, Any]) -> str:
    if found["type"] == "json_invalid":
        return f"body: not JSON: {found['ctx']['error']} at character {found['loc'][-1]}"
    where = _place(found["loc"])
    if found["type"] == "extra_forbidden":
        return f"{where}: there is no such field"
    if found["type"] == "missing":
        return f"{where}: is required"
    return f"{where}: {found['msg'].removeprefix('Value error, ')}"


def _place(loc: Sequence[int | str]) -> str:
    """``("body", "task")`` is the field task; ``("body", 3, "task")`` that of one of many; ``("body",)`` the body."""
    parts = "".join(f"[{part}]" if isinstance(part, int) else f".{cut(part)}" for part in loc[1:])
    return f"jobs{parts}" if parts.startswith("[") else parts.removeprefix(".") or str(loc[0])

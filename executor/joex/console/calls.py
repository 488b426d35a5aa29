"""What routes have in common: the console that they belong to, who may call them, forms, and answers to changes."""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NoReturn
from urllib.parse import parse_qsl
from weakref import WeakValueDictionary

from fastapi import Depends, HTTPException, Query, Request, status
from fastapi.responses import RedirectResponse
from pydantic import AfterValidator
from pydantic_core import PydanticCustomError
from starlette.requests import ClientDisconnect

from joex.client.client import Client
from joex.console.acts import BulkActs
from joex.console.pace import Pace
from joex.console.sign_in import Callers, path_of
from joex.console.snapshot import Snapshot, Snapshots
from joex.console.views import Views
from joex.console.views import params as query_of
from joex.http.caller import Caller, refuse_if_revoked
from joex.http.dependencies import refuse_repeated
from joex.http.state import CALLER
from joex.http.turns import Line

LARGEST_FORM = 100_000
"""Bytes."""
_MOST_FIELDS = 100
_KEY = secrets.token_bytes(32)
LONGEST_BACK = 1_000
"""Characters. A page has this up to three times in each of 100 rows, and a call may bring it 60,000."""


@dataclass(frozen=True, slots=True)
class Console:
    """A console: what its routes share.

    ``searches``: what passes over the jobs or periodic tasks of others, and checks of timers, for which the callers
    take turns.
    ``simulation``: held while one runs. ``simulating``: by caller, held while its simulation runs, or waits for it.
    """

    client: Client
    snapshots: Snapshots
    pace: Pace
    views: Views
    callers: Callers
    bulk_acts: BulkActs
    searches: Line
    simulation: asyncio.Semaphore
    simulating: WeakValueDictionary[str, asyncio.Lock]

    async def snapshot(self, caller: Caller, *, with_changes: bool = True) -> tuple[Snapshot, str | None]:
        """What this caller sees of the latest snapshot, and why that is older than it should be; None: it is not.

        ``with_changes``: wait for one that has what the caller has changed.
        """
        snapshot = await self.snapshots.get(caller.key if with_changes else "")
        why_old = self.snapshots.why_old(caller.key)  # (at once: a younger one may come while the page waits)
        return await snapshot.within(caller.bounds), why_old


async def _console(request: Request) -> Console:
    console: Console = request.app.state.console
    return console


TheConsole = Annotated[Console, Depends(_console)]


def not_found(detail: str) -> NoReturn:
    """Answer that there is no such thing.

    Raises:
        HTTPException: 404.
    """
    raise HTTPException(status.HTTP_404_NOT_FOUND, detail)


async def _form(request: Request) -> Mapping[str, str]:
    body = b""
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > LARGEST_FORM:
                raise HTTPException(status.HTTP_413_CONTENT_TOO_LARGE, "The form is too large.")
    except ClientDisconnect as error:
        raise HTTPException(status.HTTP_400_BAD_REQUEST, "The form has no end.") from error  # (the caller has gone)
    if hasattr(request.state, CALLER):  # else the caller signs in
        await refuse_if_revoked(request)  # the form may have been on the way for a minute
    try:
        fields = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_MOST_FIELDS, errors="strict")
    except ValueError as error:
        raise HTTPException(status.HTTP_400_BAD_REQUEST, f"The form can't be read: {error}") from error
    refuse_repeated(name for name, _ in fields)
    return dict(fields)


TheForm = Annotated[Mapping[str, str], Depends(_form)]
"""The fields of a form."""


def _storable(value: str) -> str:
    if "\0" in value:
        raise PydanticCustomError("nul", "must not contain a NUL character")
    return value


Storable = AfterValidator(_storable)
"""PostgreSQL can store the text in the query of a call: else the answer names the field."""
Text = Annotated[str, Query(max_length=254), Storable]
"""A name, or a part of one, in the query of a call."""


def way_back(query: str) -> str:
    """The query of a page, for its links in each of its rows that lead back to it; empty: it is too long for that."""
    return query if len(query) <= LONGEST_BACK else ""


def to(request: Request, path: str, back: str = "", *, done: str = "", **query: Any) -> RedirectResponse:
    """Lead the browser to a page of the console.

    Args:
        request: the call.
        path: of the page.
        back: a part of its query.
        done: what the page says that the console has done.
        query: the rest of the query.
    """
    said = f"{done}.{_seal(request, path, done)}" if done else ""
    text = "&".join(part for part in (back, query_of(query | {"done": said})) if part)
    return RedirectResponse(f"{request.scope.get('root_path', '')}{path}{'?' if text else ''}{text}", 303)


def _seal(request: Request, path: str, done: str) -> str:
    """What shows that this console has done it for this caller: nobody else can make a link that claims so."""
    caller: Caller = getattr(request.state, CALLER)
    text = json.dumps([caller.key, path, done])
    return hmac.new(_KEY, text.encode(), "sha256").hexdigest()[:32]


async def _done(request: Request, done: Annotated[str, Query()] = "") -> str:
    done, _, seal = done.partition(".")
    known = _seal(request, path_of(request.scope), done)
    return done if hmac.compare_digest(seal.encode(), known.encode()) else ""


Done = Annotated[str, Depends(_done)]
"""What a page says that the console has done; empty: nothing, or a link only claims it."""

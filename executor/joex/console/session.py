"""Signing in and out, and the probe."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import PlainTextResponse, Response

from joex.console.calls import TheConsole, TheForm, to
from joex.console.sign_in import SIGN_IN, SIGN_OUT, cookie, own_path
from joex.http.caller import needs

routes = APIRouter()


@routes.get(SIGN_IN, dependencies=[needs()])
async def sign_in_form(console: TheConsole, request: Request, to: Annotated[str, Query()] = "/") -> Response:
    """Ask for a token."""
    return console.views.page(request, "sign_in.html", to=own_path(to), is_wrong=False)


@routes.post(SIGN_IN, dependencies=[needs()])
async def sign_in(console: TheConsole, request: Request, form: TheForm) -> Response:
    """Exchange a token for a cookie."""
    token, path = form.get("token", "").strip(), own_path(form.get("to", "/"))
    caller = await console.callers.with_token(token) if token.isascii() and token.isprintable() else None
    if caller is None:
        return console.views.page(request, "sign_in.html", status=401, to=path, is_wrong=True)
    answer = to(request, path)
    answer.headers["Set-Cookie"] = cookie(token, request.scope)
    return answer


@routes.post(SIGN_OUT, dependencies=[needs()])
async def sign_out(request: Request) -> Response:
    """Forget the token."""
    answer = to(request, SIGN_IN)
    answer.headers["Set-Cookie"] = cookie(None, request.scope)
    return answer


@routes.get("/healthz", dependencies=[needs()])
async def healthz() -> Response:
    """Answer a probe: this process serves, also while the database is away."""
    return PlainTextResponse("ok\n")

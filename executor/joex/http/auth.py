"""Authentication: one middleware before all routes, so that no new route lacks it. Only `PUBLIC` needs none.

Reads need it too, because jobs carry the data of all tenants. A call that carries a token must carry a valid one: the
owner's (JOEX_API_TOKEN), or one of the database, whose scopes say what it may do (`joex.http.caller`). A call without a
token is refused if the owner's is set. If not, the call must come from this machine, from a program of the executor's
user or of root (`joex.http.peer`), and not from a web page in a browser here: neither a page of another site (its
Origin is not ours), nor one whose name an attacker has pointed to this machine (its Host is not a loopback name). Every
body must be declared as JSON, which an HTML form can't do.
"""

from __future__ import annotations

import hmac
from functools import partial
from ipaddress import IPv6Address, ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from joex.http.caller import OWNER, Caller, refuse_if_revoked
from joex.http.connection_shares import Holder, holding_as, judged_by
from joex.http.errors import RETRY_AFTER, Unjudged, problem
from joex.http.peer import is_own_user
from joex.http.state import ASK_AGAIN, CALLER
from joex.http.tokens import Tokens

PUBLIC = frozenset({"/healthz", "/readyz", "/metrics"})
"""The paths that every caller may read: kubelets and Prometheus call from other machines, without the token."""
_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_PROXIED = frozenset({"forwarded", "via", "x-real-ip", "x-client-ip", "cf-connecting-ip", "true-client-ip"})
_WITH_PAYLOADS = frozenset({
    "/api/v1/jobs", "/api/v1/jobs/many", "/jobber/queue", "/api/v1/keyed/add", "/api/v1/update", "/api/v1/finish",
})  # fmt: skip
_WITH_PAYLOADS_BELOW = ("/api/v1/job/", "/api/v1/periodic/")
_LARGEST_WITHOUT = 100_000
"""The largest body, in bytes, of all other calls: to read a large one takes long, and holds up the whole executor."""
_FIX = "set JOEX_API_TOKEN, and send it as 'Authorization: Bearer ...'"


class AuthMiddleware:
    """Refuses calls of unknown callers, and bodies that are too large or not JSON.

    Args:
        app: serves the other calls; it finds the `Caller` in the state of the request.
        token: the owner's; None: programs of this process's user on this machine need none.
        tokens: those in the database.
        largest_body: in bytes, of calls that carry payloads of jobs.
    """

    def __init__(self, app: ASGIApp, token: str | None, tokens: Tokens, largest_body: int) -> None:
        self._app = app
        self._tokens = tokens
        self._token = None if token is None else token.encode()
        self._largest = largest_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a call, or answer why not."""
        if scope["type"] != "http":  # the server accepts no WebSockets
            await self._app(scope, receive, send)
            return
        is_reading = scope["method"] in _READING
        if is_reading and scope["path"] in PUBLIC:
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        state = scope.setdefault("state", {})
        caller = await self._identify(scope, headers)
        if not isinstance(caller, Caller):
            await caller(scope, receive, send)
            return
        largest = self._largest if _has_payload(scope["path"]) else _LARGEST_WITHOUT
        refusal = None if is_reading else _refuse_body(headers, largest)
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        state[CALLER] = caller
        holder, judge = Holder(caller.tenant, caller.bounds.are_set), partial(refuse_if_revoked, Request(scope))
        with holding_as(holder), judged_by(judge):
            await self._app(scope, _limited(receive, largest), send)

    async def _identify(self, scope: Scope, headers: Headers) -> Caller | Response:
        """The caller, or the answer to one that is not served."""
        if len(headers.getlist("authorization")) > 1:  # (a proxy in front may have judged the other one)
            return problem(400, "Authorization: is given more than once: give it once")
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return await self._judge(scope, given.strip())
        if self._token is not None:
            return _unauthorized("this call needs a token: 'Authorization: Bearer ...'")
        reason = await why_not_local(scope, headers)
        return OWNER if reason is None else problem(403, reason)

    async def _judge(self, scope: Scope, token: str) -> Caller | Response:
        if self._token is not None and hmac.compare_digest(token.encode("latin-1"), self._token):
            return OWNER
        try:
            caller = await self._tokens.find(token)
        except Unjudged as error:
            return problem(503, str(error), RETRY_AFTER)
        scope["state"][ASK_AGAIN] = partial(self._tokens.find, token)
        unknown = "the token of this call ('Authorization: Bearer ...') is unknown, expired or revoked"
        return _unauthorized(unknown) if caller is None else caller


def _has_payload(path: str) -> bool:
    return path in _WITH_PAYLOADS or path.startswith(_WITH_PAYLOADS_BELOW)


def _refuse_body(headers: Headers, largest: int) -> Response | None:
    length = headers.get("content-length", "0")
    if length == "0" and "transfer-encoding" not in headers:
        return None
    if not _is_json(", ".join(headers.getlist("content-type"))):
        return problem(415, "the body must be declared as JSON: 'Content-Type: application/json'")
    if any(one.lower() != "identity" for one in headers.getlist("content-encoding")):
        return problem(415, "the body must have no Content-Encoding: send it as it is")
    if length.isdecimal() and int(length) > largest:
        return problem(413, _too_large(largest))
    return None


def _limited(receive: Receive, largest: int) -> Receive:
    size = 0

    async def limited() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > largest:
            raise HTTPException(413, _too_large(largest))
        return message

    return limited


def _too_large(largest: int) -> str:
    return f"the body is larger than {largest} bytes"


def _unauthorized(detail: str) -> Response:
    return problem(401, detail, {"WWW-Authenticate": "Bearer"})


async def why_not_local(scope: Scope, headers: Headers) -> str | None:
    """Why a call is not from a program of this process's user, or of root, on this machine; None: it is."""
    client, host = scope.get("client"), headers.get("host", "")
    is_forwarded = any(name in _PROXIED or name.startswith("x-forwarded-") for name in headers)
    if client is None or not _is_loopback(client[0]) or is_forwarded:
        return f"without a token, this executor serves only programs on its own machine: {_FIX}"
    if not _is_loopback(_name(host)):
        return f"without a token, the host must be localhost, 127.0.0.1 or [::1]; got {host!r}: {_FIX}"
    origin = headers.get("origin")
    if headers.get("sec-fetch-site", "none") not in {"none", "same-origin"}:
        return f"without a token, this executor serves no web page of another site: {_FIX}"
    if origin is not None and authority_of(origin) != host.lower():
        return f"without a token, this executor serves no web page of another site ({origin!r}): {_FIX}"
    if not await is_own_user(scope):
        return f"without a token, this executor serves only programs of its own user and of root: {_FIX}"
    return None


def _is_loopback(name: str) -> bool:
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        address = ip_address(name)
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback


def _name(authority: str) -> str:
    try:
        return (urlsplit(f"//{authority}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def authority_of(origin: str) -> str:
    """The host and the port of an origin, in small letters; empty: it has none."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))

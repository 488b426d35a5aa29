"""Authorization: one middleware before all routes, so that no new route lacks it. Only `PUBLIC` needs none.

Reads need it too, because jobs carry the data of all tenants. With a token (JOEX_API_TOKEN), the call must carry it.
Without one, the call must come from this machine, and not from a web page in a browser here: neither a page of another
site (its Origin is not ours), nor one whose name an attacker has pointed to this machine (its Host is not a loopback
name). Every body must be declared as JSON, which an HTML form can't do.
"""

from __future__ import annotations

import hmac
from ipaddress import IPv6Address, ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from joex.http.errors import problem

PUBLIC = frozenset({"/healthz", "/readyz", "/metrics"})
"""The paths that every caller may read: kubelets and Prometheus call from other machines, without the token."""
_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_PROXIED = ("forwarded", "x-forwarded-for", "x-real-ip")
_FIX = "set JOEX_API_TOKEN, and send it as 'Authorization: Bearer ...'"


class AuthMiddleware:
    """Refuses unauthorized calls, and bodies that are too large or not JSON."""

    def __init__(self, app: ASGIApp, token: str | None, largest_body: int) -> None:
        self._app = app
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
        refusal = self._refuse_caller(scope, headers) or (None if is_reading else self._refuse_body(headers))
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        await self._app(scope, self._limited(receive), send)

    def _refuse_caller(self, scope: Scope, headers: Headers) -> Response | None:
        if self._token is None:
            reason = _not_local(scope, headers)
            return None if reason is None else problem(403, reason)
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode("latin-1"), self._token):
            return None
        return problem(401, "this call needs the token: 'Authorization: Bearer ...'", {"WWW-Authenticate": "Bearer"})

    def _refuse_body(self, headers: Headers) -> Response | None:
        length = headers.get("content-length", "0")
        if length == "0" and "transfer-encoding" not in headers:
            return None
        if not _is_json(headers.get("content-type", "")):
            return problem(415, "the body must be declared as JSON: 'Content-Type: application/json'")
        if length.isdecimal() and int(length) > self._largest:
            return problem(413, self._too_large)
        return None

    def _limited(self, receive: Receive) -> Receive:
        size = 0

        async def limited() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self._largest:
                raise HTTPException(413, self._too_large)
            return message

        return limited

    @property
    def _too_large(self) -> str:
        return f"the body is larger than {self._largest} bytes"


def _not_local(scope: Scope, headers: Headers) -> str | None:
    """Why a call is not from a program on this machine; None: it is."""
    client, host = scope.get("client"), headers.get("host", "")
    if client is None or not _is_loopback(client[0]) or any(name in headers for name in _PROXIED):
        return f"without a token, this executor serves only programs on its own machine: {_FIX}"
    if not _is_loopback(_name(host)):
        return f"without a token, the host must be localhost, 127.0.0.1 or [::1]; got {host!r}: {_FIX}"
    origin = headers.get("origin")
    if origin is not None and _authority(origin) != host.lower():
        return f"without a token, this executor serves no web page of another site ({origin!r}): {_FIX}"
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


def _authority(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))

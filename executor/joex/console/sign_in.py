"""Who calls the console: one middleware before all routes, so that no new route lacks it.

A user signs in by one of three ways. A proxy that the settings name has signed the user in, and says who it is in a
header; the same header from any other address is refused. Or the user gives a token, once, and the browser keeps it in
a cookie that no script can read and no other site can send; a program, such as Prometheus, sends it in Authorization.
Or the settings name neither a proxy nor an owner's token, and the browser runs on the console's own machine, as its
user or as root: then it needs nothing, like programs that call an executor there.

A call that changes something must come from a page of the console itself: a browser says so in Sec-Fetch-Site, or in
Origin.
"""

from __future__ import annotations

import hmac
from collections import Counter
from collections.abc import Hashable, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Network, IPv6Network, ip_address
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from joex.console.views import AWAY, Views
from joex.core import access
from joex.http.auth import authority_of, why_not_local
from joex.http.caller import OWNER, Caller, refuse_if_gone, refuse_if_revoked
from joex.http.connection_shares import Holder, holding_as, judged_by
from joex.http.errors import RETRY_AFTER, Unjudged
from joex.http.route import Calls
from joex.http.slow_callers import until_read
from joex.http.state import ASK_AGAIN, CALLER
from joex.http.tokens import Tokens
from joex.http.turns import counted, held, refuse

COOKIE = "joex-console"
SIGN_IN = "/sign-in"
SIGN_OUT = "/sign-out"
MOST_CALLS = 200
"""Calls of a tenant whose answers are not read; of all, `joex.http.route.MOST_REQUESTS` are served at a time."""
MOST_FORMS = 50
"""Of them, forms: they may be on the way for a minute, and have places that others need meanwhile."""
MOST_AT_WORK = 4
"""Of them, calls of a user who is bound that are at work at a time: pages of others find a connection to the database,
and wait for few of these in the event loop."""
_LONGEST_PATH = 4_000
"""Characters, with the query: anybody may send 60,000, and the page of the sign-in has them again."""
_PUBLIC = ("/static/", "/healthz")
_READING = frozenset({"GET", "HEAD"})
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@dataclass(frozen=True, slots=True)
class Access:
    """Who may sign in.

    Attributes:
        token: the owner's (JOEX_API_TOKEN); None: there is none.
        proxies: where calls come from whose header names a user.
        user_header: this header.
        user_scopes: what these users may do.
        operators: those of them who may also see payloads, and steer.
    """

    token: str | None = None
    proxies: Sequence[IPv4Network | IPv6Network] = ()
    user_header: str = "X-Forwarded-User"
    user_scopes: frozenset[access.Scope] = frozenset({access.Scope.VIEW})
    operators: frozenset[str] = frozenset()

    @property
    def is_open_here(self) -> bool:
        """Whether a browser on this machine needs no sign-in."""
        return self.token is None and not self.proxies

    def user(self, name: str) -> Caller:
        """A user whom a proxy has signed in."""
        more = {access.Scope.PAYLOADS, access.Scope.OPERATE} if name in self.operators else ()
        return Caller(name, self.user_scopes.union(more), is_user=True)


class Callers:
    """Finds out who calls.

    Args:
        who: who may sign in.
        tokens: those in the database.
    """

    def __init__(self, who: Access, tokens: Tokens) -> None:
        self._who = who
        self._tokens = tokens

    async def identify(  # noqa: PLR0911 - one for each refusal
        self, scope: Scope, headers: Headers
    ) -> Caller | str | None:
        """The caller; None: it has not signed in; a text: why it is refused.

        Raises:
            Unjudged: see `joex.http.tokens.Tokens.find`.
        """
        if names := headers.getlist(self._who.user_header):
            if not self._is_proxy(scope):
                return f"{self._who.user_header}: this address is not one of the proxies that sign users in."
            try:
                name = names[0].encode("latin-1").decode()  # (Starlette reads all headers as Latin-1)
            except UnicodeDecodeError:
                return f"{self._who.user_header}: expected a name in UTF-8."
            name = name.strip(" \t")  # (Other spaces may be a part of another user's name.)
            if len(names) > 1 or not name:
                return f"{self._who.user_header}: expected one user."
            if name == OWNER.name:
                return f"{self._who.user_header}: {name!r} is the name of the caller with JOEX_API_TOKEN in the audit."
            return self._who.user(name)
        if len(headers.getlist("authorization")) > 1:  # (a proxy in front may have judged the other one)
            return "Authorization: is given more than once: give it once."
        if token := _token_of(scope, headers):
            scope.setdefault("state", {})[ASK_AGAIN] = partial(self.with_token, token)
            return await self.with_token(token)
        is_here = self._who.is_open_here and await why_not_local(scope, headers) is None
        return OWNER if is_here else None

    async def with_token(self, token: str) -> Caller | None:
        """The caller with this token; None: it is unknown, expired, revoked, or may not view anything."""
        if self._who.token is not None and hmac.compare_digest(token.encode(), self._who.token.encode()):
            return OWNER
        caller = await self._tokens.find(token)
        return caller if caller is not None and access.Scope.VIEW in caller.scopes else None

    def _is_proxy(self, scope: Scope) -> bool:
        client = scope.get("client")
        try:
            address = ip_address(client[0]) if client else None
        except ValueError:
            return False
        address = getattr(address, "ipv4_mapped", None) or address
        return address is not None and any(address in network for network in self._who.proxies)


class SignIn:
    """Refuses callers that have not signed in, and changes that other sites ask for; adds the headers of all answers.

    Args:
        app: serves the other calls; it finds the `Caller` in the state of the request.
        callers: finds out who calls.
        views: renders refusals.
    """

    def __init__(self, app: ASGIApp, callers: Callers, views: Views) -> None:
        self._app = app
        self._callers = callers
        self._views = views
        self._calls, self._forms = Calls(), Counter[Hashable]()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a call, or answer why not."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_static, send_and_wait = path_of(scope).startswith("/static/"), until_read(send)
        unread, turn = ExitStack(), AsyncExitStack()

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                # (A browser asks for a file by its digest. Pages are nobody else's business, and change all the time.)
                headers["Cache-Control"] = "public, max-age=86400" if is_static else "no-store"
            elif not message.get("more_body", False):
                await turn.aclose()  # it is for calls that are at work: this one counts until its page is read
            await send_and_wait(message)

        answer = await self._refusal(scope)
        caller: Caller | None = scope.get("state", {}).get(CALLER)
        with unread:
            async with turn:
                if answer is None and caller is not None:
                    answer = await self._wait(Request(scope, receive), caller, unread, turn)
                holder = None if caller is None else Holder(caller.tenant, caller.bounds.are_set)
                with holding_as(holder), judged_by(partial(refuse_if_revoked, Request(scope))):
                    await (answer or self._app)(scope, receive, send_with_headers)

    async def _wait(self, request: Request, caller: Caller, unread: ExitStack, turn: AsyncExitStack) -> Response | None:
        """Count a call, and wait for its turn; the answer, if it is not served then.

        ``unread`` ends when its page is read, ``turn`` when that is made.
        """
        calls, closing = self._calls, request.app.state.closing
        try:
            if request.method not in _READING:
                if self._forms[caller.tenant] >= MOST_FORMS:
                    refuse(f"{MOST_FORMS} of your forms are being served: try again")
                unread.enter_context(counted(self._forms, caller.tenant))
            turn.enter_context(calls.served(caller.tenant, MOST_CALLS, unread))
            if caller.bounds.are_set:
                await turn.enter_async_context(held(calls.at_work.of(caller.key, MOST_AT_WORK), closing))
            async with calls.to_begin.beginning(caller.tenant, closing):
                await refuse_if_gone(request)
                return await self._refusal(request.scope)  # its token may have been revoked meanwhile
        except HTTPException as error:
            return self._views.error(request.scope, error.status_code, error.detail, error.headers)

    async def _refusal(self, scope: Scope) -> Response | None:
        """The answer to a call that is not served; None: it is, and its caller is in the state."""
        path, headers = path_of(scope), Headers(scope=scope)
        if scope["method"] not in _READING and not _is_from_here(headers):
            return self._views.error(scope, 403, "Another site has asked for this change: open the console itself.")
        if path.startswith(_PUBLIC):
            return None
        try:
            caller = await self._callers.identify(scope, headers)
        except Unjudged as error:
            return self._views.error(scope, 503, str(error), RETRY_AFTER, AWAY)
        if isinstance(caller, str):
            return self._views.error(scope, 403, caller)
        if caller is not None:
            scope.setdefault("state", {})[CALLER] = caller
        elif path not in {SIGN_IN, SIGN_OUT}:
            return self._ask(scope, path)
        return None

    def _ask(self, scope: Scope, path: str) -> Response:
        if scope["method"] not in _READING:
            return self._views.error(scope, 401, "Sign in, and do this again.")
        query = scope["query_string"].decode("latin-1")
        to = quote(own_path(f"{path}?{query}" if query else path), safe="")
        return RedirectResponse(f"{scope.get('root_path', '')}{SIGN_IN}?to={to}", 303)


def path_of(scope: Scope) -> str:
    """The path of a call below the place where the console is mounted."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", "")) or "/"


def cookie(token: str | None, scope: Scope) -> str:
    """The Set-Cookie header that keeps a token until the browser is closed; None: it forgets the token."""
    kept, path = "Max-Age=0; " if token is None else "", scope.get("root_path", "") or "/"
    return f"{_cookie_name(scope)}={token or ''}; {kept}Path={path}; HttpOnly; Secure; SameSite=Strict"


def _cookie_name(scope: Scope) -> str:
    # (Browsers take a cookie of such a name from this very host alone, with the path /, over HTTPS or from their own
    # machine: no sibling host can put its own before it. The Host of a call decides nothing: a proxy may rewrite it.)
    return COOKIE if scope.get("root_path", "") else f"__Host-{COOKIE}"


def own_path(given: str) -> str:
    """A path of the console to go to; "/" for anything else, such as another site, and for a very long one.

    >>> own_path("/jobs?state=failed"), own_path("//evil.example"), own_path("https://evil.example")
    ('/jobs?state=failed', '/', '/')
    """
    is_own = given.startswith("/") and not given.startswith("//") and "\\" not in given and given.isprintable()
    return given if is_own and len(given) <= _LONGEST_PATH else "/"


def _token_of(scope: Scope, headers: Headers) -> str | None:
    wanted = _cookie_name(scope)
    # (A browser sends the one of the longest path first. SimpleCookie knows none beside a cookie that has, say, JSON.)
    for part in headers.get("cookie", "").split(";"):
        name, _, value = part.strip().partition("=")
        if name == wanted and value:
            return value
    scheme, _, given = headers.get("authorization", "").partition(" ")
    return (given.strip() or None) if scheme.lower() == "bearer" else None


def _is_from_here(headers: Headers) -> bool:
    """Whether a page of the console asks; programs that are no browsers use the HTTP interface of an executor."""
    site = headers.get("sec-fetch-site")
    if site is not None:  # which no page can forge; a proxy may have changed the host
        return site == "same-origin"
    return authority_of(headers.get("origin", "")) == headers.get("host", "").lower() != ""

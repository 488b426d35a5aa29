"""Routes judge a call before its body is read (`joex.http.bodies`).

They count a call from the end of its body on: callers that send nothing keep no place from those that do.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Hashable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from math import inf
from typing import Any, NoReturn

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from joex.http.bodies import JsonRequest
from joex.http.caller import OWNER, caller_of, needs_of, refuse_if_gone, refuse_if_revoked
from joex.http.dependencies import has_line
from joex.http.passed_on import PassedOn
from joex.http.slow_callers import until_read
from joex.http.state import CALLER, UNREAD
from joex.http.turns import OF_BODY, Pace, Turns, counted, held, refuse

MOST_REQUESTS = 700
"""Calls that are being served, besides `joex.http.auth.PUBLIC` ones; more get a 503."""
MOST_OF_TENANT = 200
"""Calls of a tenant that is bound to groups or queues, each until its answer is read: one tenant leaves places to the
others, and keeps so many answers in memory."""
MOST_OF_UNBOUND = 650
"""The same for a token that is not bound, such as that of all workers."""
MOST_WAITING = 600
"""Of all, calls that wait for a job: beside as many idle workers, runs can still report. The tenants share these."""
MOST_AT_WORK = 4
"""Calls of a tenant that is bound that are parsed and answered at a time, and as many reports of runs, besides lists,
changes (`joex.http.turns`) and calls for a job: those of others find a connection to the database, and wait for few of
them in the event loop."""
_WAITS = "/api/v1/accept"
_REPORTS = frozenset({"/api/v1/update", "/api/v1/finish", "/api/v1/give-back"})
MOST_UNJUDGED = 50
"""Calls for a job beyond `MOST_REQUESTS` until each ends a wait: first it is judged by its body, too."""
MOST_COMING = 50
"""Calls of a tenant whose bodies are on the way: they hold connections, which probes need too."""


class Route(APIRoute):
    """A route that declares its scopes (`joex.http.caller.needs`)."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a call, and wait until its answer is read."""
        state = scope.get("state", {})
        if CALLER not in state:  # a public call
            await super().handle(scope, receive, send)
            return
        with ExitStack() as unread:
            state[UNREAD] = unread
            await super().handle(scope, receive, until_read(send))

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """What serves a call."""
        handle, needs = super().get_route_handler(), needs_of(self)
        may_wait, reports = self.path == _WAITS, self.path in _REPORTS
        takes_turns = not may_wait and not has_line(self.dependant)

        async def judge_and_handle(request: Request) -> Response:
            await needs.judge(request)
            if not hasattr(request.state, CALLER):  # a public call: probes are served beside all others
                return await handle(request)
            async with AsyncExitStack() as turn:
                whole = JsonRequest(request.scope, request.receive, turn, reports=reports)
                calls: Calls = request.app.state.calls
                caller = await caller_of(request)
                try:
                    with calls.coming((caller.tenant, reports)):
                        await whole.body()
                        await refuse_if_revoked(request)  # its body may have been on the way for a minute
                except ClientDisconnect as error:
                    raise HTTPException(400, "the body has no end") from error  # (the caller has gone)
                unbound = inf if caller == OWNER else MOST_OF_UNBOUND
                most = MOST_OF_TENANT if caller.bounds.are_set else unbound
                unread: ExitStack = getattr(request.state, UNREAD)
                with calls.served(caller.tenant, most, unread, may_wait=may_wait, reports=reports):
                    # (Reports have turns and a pace of their own: others submit what a worker is answered, and its
                    # runs would lose their jobs. Other calls of the tenant wait for what its reports cost, too.)
                    pacers = ((caller.tenant, "reports"), caller.tenant) if reports else (caller.tenant,)
                    if caller.bounds.are_set:
                        if takes_turns:
                            at_work = calls.at_work.of(pacers[0], MOST_AT_WORK)
                            await turn.enter_async_context(held(at_work, request.app.state.closing))
                        await calls.pace.wait(pacers[0], request.app.state.closing)
                        # (Before the next one of its calls goes on; and also if this one is refused later.)
                        for one in pacers:
                            calls.pace.count(one, await whole.body(), OF_BODY)
                    if caller != OWNER:
                        async with calls.to_begin.beginning(caller.tenant, request.app.state.closing):
                            await refuse_if_revoked(request)  # likewise
                            await refuse_if_gone(whole)
                    response = await handle(whole)
                    if caller.bounds.are_set:
                        own = response.own if isinstance(response, PassedOn) else bytes(response.body)
                        for one in pacers:
                            calls.pace.count(one, own, passed=len(response.body) - len(own))
                    return response

        return judge_and_handle


def together(routers: Sequence[APIRouter], check: Callable[[APIRoute], object], **options: Any) -> APIRouter:
    """Join routers, once: FastAPI prepares their routes at the first call, which takes it a tenth of a second.

    Args:
        routers: whose routes there are.
        check: raises a RuntimeError about a route without `needs`.
        options: of the router that has them all.
    """
    made = APIRouter(**options)
    for router in routers:
        for route in routes_of(router):
            check(route)
        made.include_router(router)
    return made


def routes_of(router: APIRouter) -> list[APIRoute]:
    """The routes of a router, without what is mounted in it."""
    return [route for route in router.routes if isinstance(route, APIRoute)]


class Calls:
    """Counts the calls of each tenant that are being served (`joex.http.caller.Caller.tenant`).

    ``at_work``: the turns of those that are parsed and answered; ``to_begin``: of those that begin, lists too;
    ``pace``: the bytes that it sends, and is answered with.
    """

    def __init__(self) -> None:
        self.at_work, self.to_begin, self.pace = Turns(), Turns(), Pace()
        self._waiting: dict[asyncio.Event, Hashable] = {}  # the tenants, those that have waited for longest first
        self._served: Counter[Hashable] = Counter()
        self._unread: Counter[Hashable] = Counter()
        self._coming: Counter[Hashable] = Counter()

    @contextmanager
    def coming(self, tenant: Hashable) -> Iterator[None]:
        """While the body of a call of this tenant, or of a report of a run of it, is on the way.

        Raises:
            HTTPException: 503: it has too many such calls.
        """
        if self._coming[tenant] >= MOST_COMING:
            refuse(f"{MOST_COMING} bodies of your calls are on the way: try again")
        with counted(self._coming, tenant):
            yield

    @contextmanager
    def served(
        self, tenant: Hashable, most: float, unread: ExitStack, *, may_wait: bool = False, reports: bool = False
    ) -> Iterator[None]:
        """While a call of this tenant is served, whose body is here.

        Until its answer is read, it counts for its tenant alone: callers that do not read keep no place from others,
        as the server ends their connections where it needs them.

        Args:
            tenant: who calls.
            most: calls of the tenant whose answers are not read.
            unread: ends when the answer is read.
            may_wait: it may wait for a job: where all places are taken, it ends a wait for its own by `make_place`.
            reports: it reports a run, which may be lost otherwise: likewise, but at once; or of its own tenant.

        Raises:
            HTTPException: 503: there are too many, of this tenant or of all.
        """
        if self._unread[tenant] >= most and not (reports and self._ends_a_wait_of(tenant)):
            refuse(f"{most} of your calls are being served: try again")
        if (beyond := self._served.total() - MOST_REQUESTS) >= 0:
            other = self._with_more_waits(self._served[tenant])
            may_go_on = may_wait and other is not None and beyond < MOST_UNJUDGED
            if not may_go_on and not (reports and (self._ends_a_wait_of(other) or self._ends_a_wait_of(tenant))):
                _refuse_all()
        unread.enter_context(counted(self._unread, tenant))
        with counted(self._served, tenant):
            yield

    def make_place(self, tenant: Hashable) -> None:
        """End a wait for a call of this tenant that may wait and is right, if more are served than may be.

        Raises:
            HTTPException: 503: no other tenant has more waits than this one has calls.
        """
        others = self._served[tenant] - 1
        if self._served.total() > MOST_REQUESTS and not self._ends_a_wait_of(self._with_more_waits(others)):
            _refuse_all()

    @contextmanager
    def waiting(self, tenant: Hashable) -> Iterator[asyncio.Event]:
        """While one of them waits for a job, at most until this event: a tenant with fewer such calls needs the place.

        Raises:
            HTTPException: 503: too many wait, and no other tenant has more of them than this one.
        """
        own = [*self._waiting.values()].count(tenant)
        if len(self._waiting) >= MOST_WAITING and not self._ends_a_wait_of(self._with_more_waits(own)):
            refuse(f"{MOST_WAITING} calls wait for a job: try again")
        must_end = asyncio.Event()
        self._waiting[must_end] = tenant
        try:
            yield must_end
        finally:
            self._waiting.pop(must_end, None)

    def _with_more_waits(self, own: int) -> Hashable | None:
        """The tenant with most waits, if it has at least two more than these."""
        [(tenant, most)] = Counter(self._waiting.values()).most_common(1) or [(None, 0)]
        return tenant if most > own + 1 else None

    def _ends_a_wait_of(self, tenant: Hashable | None) -> bool:
        """Whether this tenant has a wait: its longest one ends."""
        longest = next((one for one, other in self._waiting.items() if other == tenant), None)
        if longest is None:
            return False
        del self._waiting[longest]
        longest.set()
        return True


def _refuse_all() -> NoReturn:
    refuse(f"{MOST_REQUESTS} calls are being served: try again")

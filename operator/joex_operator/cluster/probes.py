"""The operator's HTTP interface: ``/healthz``, ``/readyz``, ``/metrics``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeAlias

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from joex.http.certificate import Certificate
from joex.http.listening import address_of, listen
from joex.http.server import serve
from joex.scrapes import Scrapes
from joex_operator.metrics import OperatorMetrics

Problem = Callable[[], str | None]
"""Returns a problem in one line; None: there is none."""

_Answer: TypeAlias = Callable[[], Awaitable[Response]]


class LastingProblem:
    """Tells a lasting problem from a passing one: if an operator is not ready for too long, a restart may help.

    Args:
        problem: the present problem.
        longest: seconds that a problem may last.
        clock: monotonic, in seconds.
    """

    def __init__(self, problem: Problem, longest: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._problem = problem
        self._longest = longest
        self._clock = clock
        self._since: float | None = None

    def now(self) -> str | None:
        """The present problem."""
        wrong = self._problem()
        if wrong is None:
            self._since = None
        elif self._since is None:
            self._since = self._clock()
        return wrong

    def for_too_long(self) -> str | None:
        """The present problem, if each call for longer than ``longest`` has found one."""
        wrong = self.now()
        if wrong is None or self._since is None or self._clock() - self._since <= self._longest:
            return None
        return f"not ready for {self._clock() - self._since:.0f} s: {wrong}"


@asynccontextmanager
async def probes(
    address: str,
    metrics: OperatorMetrics,
    certificate: Certificate | None = None,
    *,
    health: Problem,
    readiness: Problem,
) -> AsyncIterator[str]:
    """Serve the endpoints during the block; gives their URL, with the actual port instead of 0.

    Args:
        address: host:port; empty: serve none.
        metrics: of the endpoint ``/metrics``.
        certificate: to speak HTTPS alone; None: HTTP.
        health: the problem that ``/healthz`` answers.
        readiness: likewise ``/readyz``.

    Raises:
        ConfigError: the operator can't listen on the address.
    """
    if not address:
        yield ""
        return
    endpoints = {"/healthz": _probe(health), "/readyz": _probe(readiness), "/metrics": _pages(Scrapes(metrics.render))}
    app = Starlette(routes=[Route(path, _without_parameters(answer)) for path, answer in endpoints.items()])
    app.state.closing = asyncio.Event()
    with listen(address, "JOEX_OPERATOR_HTTP_ADDRESS") as listener:
        serving = asyncio.create_task(serve(app, listener, certificate), name="joex operator http")
        try:
            yield f"{'http' if certificate is None else 'https'}://{address_of(listener)}"
        finally:
            serving.cancel()
            await asyncio.wait([serving])


def _without_parameters(answer: _Answer) -> Callable[[Request], Awaitable[Response]]:
    """An endpoint that refuses query parameters: none here has any."""

    async def endpoint(request: Request) -> Response:
        for name in request.query_params:
            return PlainTextResponse(f"{name}: there is no such parameter: this endpoint has none\n", 400)
        return await answer()

    return endpoint


def _probe(problem: Problem) -> _Answer:
    async def answer() -> Response:
        wrong = problem()
        return PlainTextResponse("ok\n") if wrong is None else PlainTextResponse(f"{wrong}\n", 503)

    return answer


def _pages(scrapes: Scrapes) -> _Answer:
    async def answer() -> Response:
        page, content_type = await scrapes.page()
        return Response(page, headers={"Content-Type": content_type})

    return answer

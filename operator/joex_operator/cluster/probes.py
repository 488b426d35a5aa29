"""The operator's HTTP interface: ``/healthz``, ``/readyz``, ``/metrics``."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from joex.config import split_address
from joex.errors import ConfigError
from joex_operator.metrics import OperatorMetrics

Problem = Callable[[], str | None]
"""Returns a problem in one line; None: there is none."""


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
async def probes(address: str, metrics: OperatorMetrics, *, health: Problem, readiness: Problem) -> AsyncIterator[str]:
    """Serve the endpoints during the block; gives the address, with the actual port instead of 0.

    Raises:
        ConfigError: the operator can't listen on the address.
    """
    app = web.Application(middlewares=[_refuse_parameters])
    app.add_routes(
        [
            web.get("/healthz", _probe(health)),
            web.get("/readyz", _probe(readiness)),
            web.get("/metrics", _page(metrics)),
        ]
    )
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    host, port = split_address(address) or ("", 0)
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
    except OSError as error:
        await runner.cleanup()
        raise ConfigError(f"--http-address: can't listen on {address}: {error.strerror or error}") from error
    try:
        yield f"{host}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@web.middleware
async def _refuse_parameters(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Refuse query parameters: no endpoint here has any."""
    for name in request.query:
        return web.Response(status=400, text=f"{name}: there is no such parameter: this endpoint has none\n")
    return await handler(request)


def _probe(problem: Problem) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(_: web.Request) -> web.Response:
        wrong = problem()
        return web.Response(text="ok\n") if wrong is None else web.Response(status=503, text=f"{wrong}\n")

    return answer


def _page(metrics: OperatorMetrics) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(_: web.Request) -> web.Response:
        page, content_type = metrics.render()
        return web.Response(body=page, headers={"Content-Type": content_type})

    return answer

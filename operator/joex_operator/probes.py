"""The operator's HTTP interface: ``/healthz``, ``/readyz``, ``/metrics``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from joex.config import split_address
from joex.errors import ConfigError
from joex_operator.metrics import Metrics

Problem = Callable[[], str | None]
"""What is wrong, in one line; None: nothing."""


@asynccontextmanager
async def probes(address: str, metrics: Metrics, *, health: Problem, readiness: Problem) -> AsyncIterator[str]:
    """Serve for as long as the block; gives the address, with the port that was found where 0 was asked for.

    Raises:
        ConfigError: nothing can listen there.
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
    """Refuse parameters: no page here has any."""
    for name in request.query:
        return web.Response(status=400, text=f"{name}: there is no such parameter: this page has none\n")
    return await handler(request)


def _probe(problem: Problem) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(_: web.Request) -> web.Response:
        wrong = problem()
        return web.Response(text="ok\n") if wrong is None else web.Response(status=503, text=f"{wrong}\n")

    return answer


def _page(metrics: Metrics) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(_: web.Request) -> web.Response:
        page, content_type = metrics.render()
        return web.Response(body=page, headers={"Content-Type": content_type})

    return answer

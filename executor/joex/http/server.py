"""The web server, inside the executor's own event loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from joex.http.certificate import Certificate
from joex.http.slow_callers import PARTS_WITHIN, TimedProtocol
from joex.http.tls import accept, in_parts

MOST_PARAMETERS = 100
"""Parameters of a query: thousands of them take the event loop as long as ten probes, also of callers without a token.
"""

_PATIENCE = 5
"""Seconds that open calls have to end when the server stops."""
_GO_ON_WITHIN = 4
"""Of them, those in which callers must send their bodies, and read their answers: a call that must be cancelled leaves
a traceback."""


async def serve(api: Starlette, listener: socket.socket, certificate: Certificate | None = None) -> None:
    """Answer calls until cancelled; then stop listening, and let open calls end, without waiting for them.

    Args:
        api: the application; its ``state.closing`` is set when the server stops.
        listener: from `joex.http.listening.listen`; closed in the end (by the caller, if cancelled before
            it started).
        certificate: to speak HTTPS alone; None: HTTP.
    """
    app = _with_few_parameters(api)
    config = uvicorn.Config(
        app if certificate is None else in_parts(app),
        loop="none",
        http=TimedProtocol,
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level="error",  # it warns of each request that is no HTTP, and of each that asks for WebSockets
        access_log=False,
        server_header=False,
        proxy_headers=False,  # authorization needs the real address of the caller
        timeout_graceful_shutdown=_PATIENCE,
    )
    server = _Server(config) if certificate is None else _TlsServer(config, certificate)
    serving = asyncio.create_task(server.serve(sockets=[listener]), name="joex http")
    try:
        await asyncio.shield(serving)
    finally:
        api.state.closing.set()
        server.should_exit = True
        # Also when this is cancelled again: a socket that is closed while the loop still has it in its selector would
        # give its number to the next connection, which would then get no events.
        while not serving.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([serving])
        serving.result()


def _with_few_parameters(api: ASGIApp) -> ASGIApp:
    """The application, which gets no call whose query has very many parameters."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        app, number = api, scope["query_string"].count(b"&") + 1
        if number > MOST_PARAMETERS:
            app = JSONResponse({"detail": f"at most {MOST_PARAMETERS} query parameters; got {number}"}, 400)
        await app(scope, receive, send)

    return answer


class _Server(uvicorn.Server):
    """uvicorn as a guest: it leaves the signals to the executor."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals alone."""
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more, and let open calls end; but wait for no caller that does not go on."""
        ending = asyncio.get_running_loop().call_later(_GO_ON_WITHIN, self._end_slow)
        try:
            await super().shutdown(sockets)
        finally:
            ending.cancel()

    def _end_slow(self) -> None:
        for connection in list(self.server_state.connections):
            if isinstance(connection, TimedProtocol) and connection.waits_for_caller():
                connection.end()


class _TlsServer(_Server):
    """It accepts connections by `joex.http.tls.accept`."""

    def __init__(self, config: uvicorn.Config, certificate: Certificate) -> None:
        super().__init__(config)
        self._certificate = certificate
        self._accepting: list[asyncio.Task[NoReturn]] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept."""
        await super().startup(sockets=[])
        for listener in sockets or []:
            accepts = accept(listener, self._certificate, self._protocol, self.server_state.connections)
            self._accepting.append(asyncio.create_task(accepts, name="joex https"))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more, and let open calls end; but wait for no caller that keeps a connection without a call.

        TLS waits until the caller, too, says that it ends: one that keeps connections for later calls reads nothing.
        """
        for accepting in self._accepting:
            accepting.cancel()
        parting = asyncio.get_running_loop().call_later(PARTS_WITHIN, self._end_idle)
        try:
            await super().shutdown(sockets)
        finally:
            parting.cancel()

    def _end_idle(self) -> None:
        for connection in list(self.server_state.connections):
            if isinstance(connection, TimedProtocol) and connection.has_said_all():
                connection.end()

    def _protocol(self) -> TimedProtocol:
        return TimedProtocol(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

"""The web server, inside the executor's own event loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import uvicorn
from fastapi import FastAPI

_PATIENCE = 5
"""Seconds that calls under way have to end when the server stops."""


async def serve(api: FastAPI, listener: socket.socket) -> None:
    """Answer calls until this is cancelled; it then stops listening and lets the calls under way end, without waiting.

    Args:
        api: what answers, from `joex.http.api.create_api`.
        listener: from `joex.http.listening.listen`; it is closed in the end (by the caller, where this is cancelled
            before it began).
    """
    config = uvicorn.Config(
        api,
        loop="none",
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,  # the guard must see who really calls
        timeout_graceful_shutdown=_PATIENCE,
    )
    server = _Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]), name="joex http")
    try:
        await asyncio.shield(serving)
    finally:
        api.state.closing.set()
        server.should_exit = True
        # Also where this is cancelled again: a socket that is closed while the loop still has it in its selector would
        # give its number to the next connection, which then hears nothing.
        while not serving.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([serving])
        serving.result()


class _Server(uvicorn.Server):
    """uvicorn as a guest: it leaves the signals to the executor."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals alone."""
        yield

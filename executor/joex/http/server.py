"""The web server, inside the executor's own event loop."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import uvicorn
from fastapi import FastAPI

from joex.config import split_address
from joex.errors import ConfigError

_PATIENCE = 5
"""Seconds that calls under way have to end when the server stops."""
_BACKLOG = 128


def listen(address: str) -> socket.socket:
    """Open the port, so that calls wait there until `serve` answers them. Port 0 means any free one.

    Raises:
        ConfigError: it is in use, or can't be had; the message names the setting and the mend.
    """
    parts = split_address(address)
    if parts is None:
        raise ConfigError(f"JOEX_HTTP_ADDRESS: expected host:port, such as 127.0.0.1:7878; got {address!r}")
    host, port = parts
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    dual = host == "::" and socket.has_dualstack_ipv6()
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG, dualstack_ipv6=dual)
    except (OSError, UnicodeError) as error:
        in_use = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        reason = "another program (another executor?) listens there" if in_use else " ".join(str(error).split())
        raise ConfigError(
            f"JOEX_HTTP_ADDRESS: can't listen on {address}: {reason}; "
            "set another port (0: any free one), or nothing for no HTTP interface"
        ) from error


async def serve(api: FastAPI, listener: socket.socket) -> None:
    """Answer calls until this is cancelled; it then stops listening and lets the calls under way end, without waiting.

    Args:
        api: what answers, from `joex.http.create_api`.
        listener: from `listen`; it is closed in the end (by the caller, where this is cancelled before it began).
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
        server.stop()
        await serving


class _Server(uvicorn.Server):
    """uvicorn as a guest: it leaves the signals alone, and wakes once a second when it is idle, not ten times."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._stopped = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals alone."""
        yield

    async def main_loop(self) -> None:
        """Keep the date header right until `stop`."""
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopped.wait(), 1.0)

    def stop(self) -> None:
        """Let `serve` come to its end."""
        self.should_exit = True
        self._stopped.set()

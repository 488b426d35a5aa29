"""The web console of the demo, in the demo's own process."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from joex.client.client import Client
from joex.console.app import create_console
from joex.errors import ConfigError
from joex.http.listening import listen
from joex.http.server import serve

_ADDRESS, _ANY_PORT = "127.0.0.1:7880", "127.0.0.1:0"


@asynccontextmanager
async def console_of(client: Client) -> AsyncIterator[str]:
    """Serve the console for the duration of a block, which gets its address."""
    listener = _listen()
    serving = asyncio.create_task(serve(create_console(client), listener))
    try:
        yield "http://{}:{}/".format(*listener.getsockname())
    finally:
        serving.cancel()
        with suppress(asyncio.CancelledError):
            await serving


def _listen() -> socket.socket:
    """The usual port of consoles; any other, if another console has it."""
    try:
        return listen(_ADDRESS)
    except ConfigError:
        return listen(_ANY_PORT)

"""Connections with TLS: their handshakes, and the limits of their callers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import NoReturn

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from joex.http.certificate import Certificate
from joex.http.listening import READ_WITHIN
from joex.http.slow_callers import LEAST_READ, MOST_CONNECTIONS

HANDSHAKE_WITHIN = 10.0
"""Seconds from the connection to the end of its handshake."""

MOST_HANDSHAKES = 100
"""Handshakes at a time, besides the connections that may still be opened (`MOST_CONNECTIONS`).

Beyond, each new one ends the oldest, so that callers who begin and stop leave descriptors.
"""

PASSED_ON = 65_536
"""Bytes of an answer that TLS passes on without waiting for its caller, whatever follows."""

_PAUSE = 0.1
"""Seconds after a connection that could not be accepted."""


async def accept(
    listener: socket.socket,
    certificate: Certificate,
    protocol: Callable[[], asyncio.Protocol],
    connections: Collection[object],
) -> NoReturn:
    """Accept connections, and let ``protocol`` serve each one whose handshake has ended, until cancelled.

    ``connections``: those that are open.

    Not by asyncio's servers: they know no limit of handshakes, and have one certificate. (Nor by a protocol that begins
    TLS by itself: uvloop would give it what is for TLS.)
    """
    loop = asyncio.get_running_loop()
    handshakes: dict[asyncio.Task[None], None] = {}
    listener.setblocking(False)  # noqa: FBT003 - that is its signature
    try:
        while True:
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError:  # the caller has gone, or the process has no descriptor left
                await asyncio.sleep(_PAUSE)
                continue
            handshake = loop.create_task(_shake(connection, certificate, protocol), name="joex http handshake")
            handshakes[handshake] = None
            handshake.add_done_callback(lambda done: handshakes.pop(done, None))
            if len(handshakes) > MOST_HANDSHAKES + max(MOST_CONNECTIONS - len(connections), 0):
                oldest = next(iter(handshakes))
                del handshakes[oldest]
                oldest.cancel()
            await asyncio.sleep(0)  # while callers wait in the queue, accepting them does not give way
    finally:
        for handshake in handshakes:
            handshake.cancel()


async def _shake(connection: socket.socket, certificate: Certificate, protocol: Callable[[], asyncio.Protocol]) -> None:
    # A caller that speaks no TLS, trusts another authority, is too slow or has gone: all of these are OSErrors.
    with suppress(OSError):
        await asyncio.get_running_loop().connect_accepted_socket(
            protocol,
            connection,
            ssl=certificate.context(),
            ssl_handshake_timeout=HANDSHAKE_WITHIN,
            ssl_shutdown_timeout=READ_WITHIN,  # for what is left of the last answer
        )


def in_parts(app: ASGIApp) -> ASGIApp:
    """The application, whose answers come in parts of the size that a caller must read in `READ_WITHIN`.

    TLS passes a part on at once, and waits for its caller only with the next one: so a large part is never the last.
    """

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_parts(message: Message) -> None:
            body = message.get("body", b"")
            while len(body) > PASSED_ON:
                size = min(LEAST_READ, len(body) - 1)
                await send({"type": "http.response.body", "body": body[:size], "more_body": True})
                body = body[size:]
                message = {**message, "body": body}
            await send(message)

        await app(scope, receive, send_parts)

    return answer

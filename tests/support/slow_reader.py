"""Callers that do not read what they have asked for."""

import asyncio
import socket
from typing import Any

import pytest

from joex.http import slow_callers


async def slowly_connected(address: str, **more: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection whose system keeps little of an answer that is not read; ``more``: of TLS."""
    call = socket.socket()
    call.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    call.setblocking(False)  # noqa: FBT003 - as Python has it
    host, _, port = address.rpartition(":")
    await asyncio.get_running_loop().sock_connect(call, (host, int(port)))
    return await asyncio.open_connection(sock=call, limit=1024, **more)


def unread_answers(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The connections whose answers wait for their callers: as they begin to."""
    unread: list[Any] = []
    pause = slow_callers.TimedProtocol.pause_writing

    def pause_writing(self: Any) -> None:
        pause(self)
        unread.append(self)

    monkeypatch.setattr(slow_callers.TimedProtocol, "pause_writing", pause_writing)
    return unread

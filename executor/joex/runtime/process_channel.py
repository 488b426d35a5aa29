"""The messages between an executor and its processes: JSON behind a header, over a socket. Nothing is pickled.

A process runs code that may write into any of its file descriptors, so the executor believes no byte of it: a message
begins with a mark, and has a largest size.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
from typing import Any

Message = dict[str, Any]

_HEADER = struct.Struct("!4sI")
_MARK = b"joex"


ASK, KILL, PAUSE_WITH_EXECUTOR, GO_ON = b"T", b"K", b"P", b"G"
"""What an executor says to a keeper. ASK ends the process by SIGTERM, KILL with all that it has started by SIGKILL;
after PAUSE_WITH_EXECUTOR the process is stopped while the executor is, until GO_ON."""

STATUS = struct.Struct("!i")
"""What a keeper says in the end: how its process ended, as `os.waitpid` says it."""

READY = b"R"
"""What the server says when it has loaded the app."""


def blocking_pair() -> tuple[socket.socket, socket.socket]:
    """Two sockets that are connected, and block.

    Where a task, or the app, has called `socket.setdefaulttimeout`, a new socket has that timeout, and its file does
    not block, which holds for the process that gets it, too.
    """
    pair = socket.socketpair()
    for end in pair:
        end.setblocking(True)  # noqa: FBT003 - as the method has it
    return pair


def blocking_socket(descriptor: int) -> socket.socket:
    """A socket of this file descriptor, which blocks, see `blocking_pair`."""
    end = socket.socket(fileno=descriptor)
    end.setblocking(True)  # noqa: FBT003 - likewise
    return end


class NotAMessage(Exception):
    """The other end has written something else than messages."""


def packed(message: Message) -> bytes:
    """A message as bytes."""
    body = json.dumps(message).encode()
    return _HEADER.pack(_MARK, len(body)) + body


async def read_bytes(reader: asyncio.StreamReader, largest: int) -> bytes | None:
    """The bytes of the next message, for `parsed`; None: the other end has closed the socket, perhaps halfway.

    Raises:
        NotAMessage: there is none, or it has more than ``largest`` bytes.
    """
    try:
        size = _size(await reader.readexactly(_HEADER.size), largest)
        return await reader.readexactly(size)
    except (asyncio.IncompleteReadError, OSError):
        return None


async def read_message(reader: asyncio.StreamReader, largest: int) -> Message | None:
    """The next message, see `read_bytes` and `parsed`."""
    body = await read_bytes(reader, largest)
    return None if body is None else parsed(body)


class Channel:
    """The end of a process, which blocks."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self._lock = threading.RLock()
        self._is_mute = False

    def mute(self) -> None:
        """Send nothing any more."""
        self._is_mute = True

    def send(self, message: Message) -> None:
        """Send a message. If a signal interrupts it halfway, nothing can follow."""
        with self._lock:
            if self._is_mute:
                return
            try:
                self.end.sendall(packed(message))
            except BaseException:
                self.mute()
                raise

    def receive(self) -> Message | None:
        """The next message; None: the executor is gone."""
        header = self._exactly(_HEADER.size)
        body = None if header is None else self._exactly(_size(header, 2**32))
        return None if body is None else parsed(body)

    def _exactly(self, size: int) -> bytes | None:
        found = bytearray()
        while len(found) < size:
            some = self.end.recv(min(size - len(found), 1 << 20))
            if not some:
                return None
            found += some
        return bytes(found)


def _size(header: bytes, largest: int) -> int:
    mark, size = _HEADER.unpack(header)
    if mark != _MARK or size > largest:
        raise NotAMessage
    return int(size)


def parsed(body: bytes) -> Message:
    """The message that these bytes are.

    Raises:
        NotAMessage: they are none.
    """
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        raise NotAMessage from None
    if not isinstance(message, dict):
        raise NotAMessage
    return message

"""Checks what a server sends before asyncpg reads it: some messages would stop the whole process.

A message of the kind 0 lets asyncpg loop for ever (a URL with the port of another service is enough). A SCRAM login
that goes on without having begun ends the process by SIGSEGV. And asyncpg derives the key of such a login on the event
loop, with as many iterations as the server wants: of two thousand millions, for many minutes. An operator has databases
of many owners in one process.
"""

from __future__ import annotations

import asyncio
import re
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import asyncpg
from asyncpg.protocol import Protocol

_HEAD = struct.Struct("!Bi")
_LEAST = 4
"""The length of a message counts its own four bytes."""
_LOGIN, _SASL, _SASL_CONTINUE, _SASL_FINAL = ord("R"), 10, 11, 12
_LONGEST_LOGIN = 65_536
_BEFORE = {_SASL: None, _SASL_CONTINUE: _SASL, _SASL_FINAL: _SASL_CONTINUE}
"""After which message of the login each step of SCRAM may come."""
_MOST_ITERATIONS = 200_000
"""PostgreSQL's default is 4,096. So many take a twentieth of a second."""

NO_POSTGRES = "the server does not speak PostgreSQL's protocol"


class CheckedLoop:
    """An event loop whose connections to PostgreSQL check what the server sends."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    async def create_connection(self, protocol: Any, *where: Any, **options: Any) -> Any:
        """As the loop's."""
        transport, made = await self._loop.create_connection(lambda: _checked(protocol()), *where, **options)
        return (transport if isinstance(made, Protocol) else _Changing(transport)), made

    async def create_unix_connection(self, protocol: Any, *where: Any, **options: Any) -> Any:
        """As the loop's."""
        return await self._loop.create_unix_connection(lambda: _checked(protocol()), *where, **options)

    async def start_tls(self, transport: _Changing, *given: Any, **options: Any) -> Any:
        """As the loop's."""
        made = await self._loop.start_tls(transport.changed, *given, **options)
        return made and _Changing(made)  # None: the server has closed the connection


class _Changing:
    """A transport that asyncpg gives its protocol later: when it knows whether the server offers TLS."""

    def __init__(self, transport: Any) -> None:
        self.changed = transport

    def __getattr__(self, name: str) -> Any:
        return getattr(self.changed, name)

    def set_protocol(self, protocol: Any) -> None:
        """As the transport's."""
        self.changed.set_protocol(_checked(protocol))


def _checked(protocol: Any) -> Any:
    if isinstance(protocol, Protocol):  # and none that asks for TLS, or cancels
        setattr(protocol, "data_received", _Check(protocol.data_received, protocol.abort).received)  # noqa: B010 - a method
    return protocol


class _Check:
    """Passes on what a server sends, but for a message that it may not send: that ends the connection.

    Args:
        receive: takes data.
        abort: ends the connection.
    """

    def __init__(self, receive: Callable[[bytes], None], abort: Callable[[], None]) -> None:
        self._receive = receive
        self._abort = abort
        self._held = b""
        self._to_come = 0
        self._latest: int | None = None  # message of the login
        self._is_over = False

    def received(self, data: bytes) -> None:
        """Take a piece of any length."""
        if self._is_over:
            return
        data, self._held = self._held + data, b""
        at, end, wrong = self._to_come, len(data), ""
        while at + _HEAD.size <= end and not wrong:
            kind, length = _HEAD.unpack_from(data, at)
            if kind == 0 or length < _LEAST or (kind == _LOGIN and length > _LONGEST_LOGIN):
                wrong = NO_POSTGRES
            elif kind == _LOGIN:
                if at + 1 + length > end:
                    break  # asyncpg gets it when it is whole
                wrong = self._judged(data[at + _HEAD.size : at + 1 + length])
            at += 0 if wrong else 1 + length
        self._held, self._to_come = data[at:] if not wrong else b"", max(at - end, 0)
        try:
            if at:
                self._receive(data[:at])
            if wrong:
                self._receive(_error(wrong))
        except Exception:  # noqa: BLE001 - a message at a wrong time: asyncpg raises any
            wrong = NO_POSTGRES
        if wrong:
            self._is_over = True
            with suppress(asyncpg.InternalClientError):  # it has not logged in, and that ends with the error
                self._abort()

    def _judged(self, message: bytes) -> str:
        """What is wrong with a message about the login; empty: nothing."""
        code = int.from_bytes(message[:_LEAST])
        if len(message) < _LEAST or self._latest != _BEFORE.get(code, self._latest):
            return NO_POSTGRES
        self._latest = code
        wanted = re.search(rb",i=0*(\d+)", message) if code == _SASL_CONTINUE else None
        if wanted is not None and (len(wanted[1]) > len(str(_MOST_ITERATIONS)) or int(wanted[1]) > _MOST_ITERATIONS):
            return f"the server wants more than {_MOST_ITERATIONS} iterations for a login (scram_iterations)"
        return ""


def _error(text: str) -> bytes:
    """An error message as a server sends it."""
    fields = f"SFATAL\0C{asyncpg.ProtocolViolationError.sqlstate}\0M{text}\0\0".encode()
    return b"E" + (_LEAST + len(fields)).to_bytes(4) + fields

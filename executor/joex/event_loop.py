"""The event loop of executors and operators: uvloop's where there is one, which is not the case on Windows."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable
from typing import Any

_LONGEST_NAME = 253
"""Characters of the name of a host, or of an address: to encode a longer text takes long."""


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A new event loop, whose look-ups of names are calls of its default executor."""
    try:
        import uvloop  # noqa: PLC0415 - the other commands do without
    except ImportError:
        return asyncio.new_event_loop()

    class Loop(uvloop.Loop):
        """Looks names up as asyncio's own does, so that the groups of an executor share the threads of these calls.

        (uvloop has two threads for that, first come, first served: two names whose servers are silent occupy them.)
        """

        async def getaddrinfo(self, host: Any, port: Any, **more: Any) -> Any:
            # Here and now: `sock_connect` asks for that, too. (A port may be the name of a service, in some directory.)
            if host and (port is None or isinstance(port, int)) and _is_address(host):
                return socket.getaddrinfo(host, port, **more)
            return await self.run_in_executor(None, lambda: socket.getaddrinfo(host, port, **more))

        async def create_connection(
            self, protocol_factory: Any, host: Any = None, port: Any = None, **more: Any
        ) -> tuple[Any, Any]:
            if not host or _is_address(host) or more.get("local_addr") is not None or more.get("sock") is not None:
                return await super().create_connection(protocol_factory, host, port, **more)
            if more.get("ssl") and more.get("server_hostname") is None:
                more["server_hostname"] = host
            asked = {name: more.pop(name) for name in ("family", "proto", "flags") if name in more}
            sock = await _connected(self, await self.getaddrinfo(host, port, type=socket.SOCK_STREAM, **asked))
            try:
                return await super().create_connection(protocol_factory, sock=sock, **more)
            except BaseException:
                sock.close()
                raise

    return Loop()


def _is_address(host: str | bytes) -> bool:
    if len(host) > _LONGEST_NAME:
        return False
    try:
        socket.getaddrinfo(host, None, flags=socket.AI_NUMERICHOST)
    except (OSError, UnicodeError):
        return False
    return True


async def _connected(loop: asyncio.AbstractEventLoop, found: Iterable[tuple[Any, ...]]) -> socket.socket:
    """A socket that is connected to the first of these addresses that answers; the errors are as those of asyncio."""
    failed: list[OSError] = []
    try:
        for family, kind, proto, _, (host, port, *more) in found:
            scope = f"%{more[1]}" if more and more[1] else ""  # of an address that is local to a link
            try:
                sock = socket.socket(family, kind, proto)
            except OSError as error:
                failed.append(error)
                continue
            try:
                sock.settimeout(0)
                await loop.sock_connect(sock, (f"{host}{scope}", port))
            except BaseException as error:
                sock.close()
                if not isinstance(error, OSError):
                    raise
                failed.append(error)
            else:
                return sock
        if len({(type(error), error.errno) for error in failed}) == 1:
            raise failed[0]
        raise OSError("; ".join(map(str, failed)) or "no address was found")
    finally:
        failed = []  # (which the errors' tracebacks refer to)

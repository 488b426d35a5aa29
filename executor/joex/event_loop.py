"""The event loop of executors and operators: uvloop's where there is one, which is not the case on Windows."""

from __future__ import annotations

import asyncio
import socket
from typing import Any


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
            return await self.run_in_executor(None, lambda: socket.getaddrinfo(host, port, **more))

        async def create_connection(
            self, protocol_factory: Any, host: Any = None, port: Any = None, **more: Any
        ) -> tuple[Any, Any]:
            if host is None or _is_address(host):
                return await super().create_connection(protocol_factory, host, port, **more)
            if more.get("ssl") and more.get("server_hostname") is None:
                more["server_hostname"] = host
            asked = {name: more.pop(name) for name in ("family", "proto", "flags") if name in more}
            failed: list[OSError] = []
            for family, _, proto, _, (address, number, *_) in await self.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, **asked
            ):
                try:
                    return await super().create_connection(
                        protocol_factory, address, number, family=family, proto=proto, **more
                    )
                except OSError as error:
                    failed.append(error)
            raise failed[0] if len(failed) == 1 else OSError("; ".join(map(str, failed)))

    return Loop()


def _is_address(host: str | bytes) -> bool:
    try:
        socket.getaddrinfo(host, None, flags=socket.AI_NUMERICHOST)
    except OSError:
        return False
    return True

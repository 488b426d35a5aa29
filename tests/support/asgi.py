"""Calls an application without a socket, whose owner the system could tell."""

from dataclasses import dataclass
from typing import Any

import httpx

from joex.http.state import PEER


@dataclass
class Caller:
    """A user who calls; None: nobody can tell which one."""

    its_uid: int | None

    async def uid(self) -> int | None:
        return self.its_uid


def transport(api: Any, caller: str = "127.0.0.1", *, uid: int | None = 0, **options: Any) -> httpx.ASGITransport:
    """Calls in this process, from an address and a user."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scope["state"] = {PEER: Caller(uid)}
        await api(scope, receive, send)

    return httpx.ASGITransport(app, client=(caller, 1234), **options)

"""Calls an application without a socket, whose owner the system could tell."""

from typing import Any

import httpx

from joex.http.peer import PEER, UID


def transport(api: Any, caller: str = "127.0.0.1", *, uid: int | None = 0, **options: Any) -> httpx.ASGITransport:
    """Calls in this process, from an address; ``uid``: of the user who calls; None: there is no such connection."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scope["state"] = {PEER: {} if uid is None else {UID: uid}}
        await api(scope, receive, send)

    return httpx.ASGITransport(app, client=(caller, 1234), **options)

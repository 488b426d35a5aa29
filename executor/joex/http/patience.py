"""Calls that wait: for as long as their callers do, and the server is there."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request

T = TypeVar("T")


async def while_heard(request: Request, work: Coroutine[Any, Any, T]) -> T | None:
    """What this work gives; None: it was cancelled, because the caller has hung up, or the server stops."""
    working = asyncio.create_task(work)
    leaving = [asyncio.create_task(_hung_up(request)), asyncio.create_task(request.app.state.closing.wait())]
    try:
        await asyncio.wait([working, *leaving], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (working, *leaving):
            task.cancel()  # one that is done stays as it is
        await asyncio.wait([working, *leaving])
    return None if working.cancelled() else working.result()


async def _hung_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass

"""Waiting calls end when the caller disconnects, or the server stops."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request

T = TypeVar("T")


async def unless_disconnected(request: Request, work: Coroutine[Any, Any, T]) -> T | None:
    """The result of this work; None if the caller disconnected or the server stops, which cancels the work."""
    working = asyncio.create_task(work)
    leaving = [asyncio.create_task(_disconnected(request)), asyncio.create_task(request.app.state.closing.wait())]
    try:
        await asyncio.wait([working, *leaving], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (working, *leaving):
            task.cancel()  # no effect on the one that is done
        await asyncio.wait([working, *leaving])
    return None if working.cancelled() else working.result()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass

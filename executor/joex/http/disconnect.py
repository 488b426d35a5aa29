"""Waiting calls end when the caller disconnects, or the server stops."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import copy_context
from typing import Any, TypeVar

from fastapi import Request

from joex.http.connection_shares import judge_no_more

T = TypeVar("T")


async def unless_disconnected(request: Request, work: Coroutine[Any, Any, T], *until: asyncio.Event) -> T | None:
    """The result of this work; None if the caller disconnected or the server stops, which cancels the work.

    Args:
        request: of the caller.
        work: what it waits for.
        until: other events that cancel the work.
    """
    context = copy_context()
    working = asyncio.create_task(work, context=context)
    ends = [one.wait() for one in (request.app.state.closing, *until)]
    leaving = [asyncio.create_task(one) for one in (_disconnected(request), *ends)]
    try:
        await asyncio.wait([working, *leaving], return_when=asyncio.FIRST_COMPLETED)
    finally:
        context.run(judge_no_more)  # (the work may have a job to give back, also when the caller's token is revoked)
        for task in (working, *leaving):
            task.cancel()  # no effect on the one that is done
        await asyncio.wait([working, *leaving])
    return None if working.cancelled() else working.result()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass

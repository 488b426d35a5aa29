"""Waiting for one of several things, for a time, or for what has no event."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")
_POLL_EVERY = 0.01  # seconds


async def first_of(*waits: Awaitable[Any]) -> None:
    """Wait for the first of several."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


async def wait_for(event: asyncio.Event, seconds: float | None) -> None:
    """Wait for an event, so many seconds at most; None: however long it takes."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


async def until(is_over: Callable[[], bool]) -> None:
    """Wait for the end of a thread or process, without a thread of the loop: tasks may occupy those for ever."""
    while not is_over():  # noqa: ASYNC110 - it has no event
        await asyncio.sleep(_POLL_EVERY)


async def unless(event: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """The result of some work; None if the event came first, which cancels the work: nothing delays an exit."""
    task, came = asyncio.ensure_future(work), asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({task, came}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        came.cancel()
        is_given_up = task.cancel()
    if is_given_up:
        await asyncio.wait({task})
    return None if is_given_up else task.result()

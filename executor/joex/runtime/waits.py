"""Waiting for one of several things, or for a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any


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

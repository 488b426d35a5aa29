"""The order to end: it stays, and its grace can only become shorter."""

import asyncio
import time
from typing import Any

_LOOK_EVERY = 0.1


class Stop:
    """An order to end within a grace."""

    def __init__(self) -> None:
        self._requested = asyncio.Event()
        self._deadline = float("inf")

    @property
    def requested(self) -> bool:
        """Whether the order was given."""
        return self._requested.is_set()

    @property
    def left(self) -> float:
        """Seconds until the grace is over; infinite before the order."""
        return self._deadline - time.monotonic()

    def request(self, grace: float) -> None:
        """Give the order, or shorten its grace."""
        self._deadline = min(self._deadline, time.monotonic() + grace)
        self._requested.set()

    async def wait(self) -> None:
        """Wait for the order."""
        await self._requested.wait()

    async def within(self, seconds: float) -> bool:
        """Wait for the order at most this long; returns whether it was given."""
        try:
            async with asyncio.timeout(seconds):
                await self._requested.wait()
        except TimeoutError:
            return False
        return True


async def ends_in_time(task: asyncio.Future[Any], *stops: Stop) -> bool:
    """Wait for a task until the first grace is over; returns whether it ended."""
    while not task.done() and (left := min(stop.left for stop in stops)) > 0:
        await asyncio.wait({task}, timeout=min(left, _LOOK_EVERY))
    return task.done()

"""How often pages ask again."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from joex.client.client import Client
from joex.store.statement import Connection

SHARE = 0.01
"""The part of the time that pages may read, about, all of them together."""
WINDOW = 30.0
"""Seconds from one look at what was read to the next one; up to four times as long while pages ask seldom."""
LONGEST = 60.0
"""Seconds after which each page asks again at the latest."""


class Pace:
    """Reads for pages that show what the snapshot has not, and lets them ask again the less often the more they read.

    So the server spends a hundredth of one of its processors on them, about, however many viewers look at such pages;
    unless these are so many that they read more though each asks but once in `LONGEST`.

    Args:
        client: reads.
        clock: seconds that never go back.
    """

    def __init__(self, client: Client, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._since = clock()
        self._spent = 0.0
        self._slower = 1.0

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[Connection]:
        """A connection on which to read what a page shows."""
        async with self._client.using() as connection:
            begun = self._clock()
            try:
                yield connection
            finally:
                self._spent += self._clock() - begun

    def every(self, seconds: float) -> float:
        """The seconds after which a page asks again that asks after these if there is time enough."""
        elapsed = self._clock() - self._since
        if elapsed >= WINDOW * min(self._slower, 4):  # (pages that ask seldom must have asked as they were told last)
            self._slower = min(max(1.0, self._slower * self._spent / (elapsed * SHARE)), LONGEST)
            self._since, self._spent = self._clock(), 0.0
        return round(min(seconds * self._slower, LONGEST), 1)

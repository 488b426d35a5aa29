"""How often pages ask again."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager

from joex.client.client import Client
from joex.console.shares import Want, fair_shares
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
    unless these are so many that they read more though each asks but once in `LONGEST`. The tenants share this part of
    the time fairly: one that loads its pages again and again makes those of no other ask less often.

    Args:
        client: reads.
        clock: seconds that never go back.
    """

    def __init__(self, client: Client, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._since = clock()
        self._spent: defaultdict[Hashable, float] = defaultdict(float)
        self._slower: dict[Hashable, float] = {}  # the tenants that read more than their part

    @asynccontextmanager
    async def reading(self, tenant: Hashable) -> AsyncIterator[Connection]:
        """A connection on which to read what a page of this tenant shows."""
        async with self._client.using() as connection:
            begun = self._clock()
            try:
                yield connection
            finally:
                self._spent[tenant] += self._clock() - begun

    def every(self, tenant: Hashable, seconds: float) -> float:
        """The seconds after which a page of this tenant asks again that asks after these if there is time enough."""
        elapsed = self._clock() - self._since
        if elapsed >= WINDOW * min(max(self._slower.values(), default=1.0), 4):
            # (Pages that ask seldom must have asked as they were told last. The shares are of microseconds.)
            wants = {one: Want(round(1e6 * spent * self._slower.get(one, 1.0))) for one, spent in self._spent.items()}
            parts = zip(wants.items(), fair_shares([*wants.values()], round(1e6 * elapsed * SHARE)), strict=True)
            self._slower = {one: min(want.jobs / part, LONGEST) for (one, want), part in parts if part < want.jobs}
            self._since, self._spent = self._clock(), defaultdict(float)
        return round(min(seconds * self._slower.get(tenant, 1.0), LONGEST), 1)

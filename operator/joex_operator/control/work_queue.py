"""What to look at, and when: many reasons to look at something make one look.

A key has one appointment, the earliest that was asked for. It is looked at by one worker at a time: who asks for it
meanwhile gets another look afterwards, because the one under way may have seen the world as it was before.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable, Hashable
from contextlib import suppress
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class WorkQueue(Generic[Key]):
    """Appointments by key. To be used on one event loop."""

    def __init__(self) -> None:
        self._due: dict[Key, float] = {}
        self._heap: list[tuple[float, int, Key]] = []
        self._order = 0
        self._busy: set[Key] = set()
        self._changed = asyncio.Event()

    def add(self, key: Key, after: float = 0.0) -> None:
        """Look at this in so many seconds, or sooner if that is said already."""
        due = asyncio.get_running_loop().time() + max(after, 0.0)
        known = self._due.get(key)
        if known is None or due < known:
            self._due[key] = due
            self._push(key, due)
            self._changed.set()

    def drop(self, key: Key) -> None:
        """Forget the appointment of a key."""
        self._due.pop(key, None)

    async def run(self, look: Callable[[Key], Awaitable[None]], workers: int) -> None:
        """Keep the appointments, so many at a time. ``look`` must not raise."""
        async with asyncio.TaskGroup() as group:
            for _ in range(workers):
                group.create_task(self._work(look))

    async def _work(self, look: Callable[[Key], Awaitable[None]]) -> None:
        while True:
            key = await self._next()
            try:
                await look(key)
            finally:
                self._busy.discard(key)
                if key in self._due:
                    self._push(key, self._due[key])
                    self._changed.set()

    async def _next(self) -> Key:
        loop = asyncio.get_running_loop()
        while True:
            self._changed.clear()
            now = loop.time()
            while self._heap and self._heap[0][0] <= now:
                due, _, key = heapq.heappop(self._heap)
                # An entry that an earlier appointment has made obsolete; or its key is busy: then it is put back after.
                if self._due.get(key) != due or key in self._busy:
                    continue
                del self._due[key]
                self._busy.add(key)
                return key
            with suppress(TimeoutError):
                async with asyncio.timeout_at(self._heap[0][0] if self._heap else None):
                    await self._changed.wait()

    def _push(self, key: Key, due: float) -> None:
        self._order += 1  # keys need not be comparable
        heapq.heappush(self._heap, (due, self._order, key))

"""The work queue of the controller: it merges many reasons to reconcile a key into one reconcile.

Each key has at most one entry, due at the earliest time that a caller asked for. One worker at a time reconciles a key.
A key added during its own reconcile is reconciled again afterwards, because the reconcile under way may have observed
the state from before the change.

The keys of one owner, a namespace, get half of the workers at most: a reconcile may wait for ten seconds for a database
that does not answer, and a namespace may have any number of those.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from contextlib import suppress
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class WorkQueue(Generic[Key]):
    """Keys to reconcile, each with the time at which it is due. Use it on one event loop.

    Args:
        owner: of a key.
    """

    def __init__(self, owner: Callable[[Key], Hashable] = lambda key: key) -> None:
        self._owner = owner
        self._most = 1
        self._held_back: dict[Hashable, deque[tuple[float, Key]]] = {}
        self._due: dict[Key, float] = {}
        self._heap: list[tuple[float, int, Key]] = []
        self._order = 0
        self._busy: set[Key] = set()
        self._changed = asyncio.Event()
        self._turn = asyncio.Lock()
        """Whose turn it is to wait for the next key: a key that is added or due would wake all idle workers."""

    def add(self, key: Key, after: float = 0.0) -> None:
        """Reconcile a key after so many seconds, or sooner if it is due sooner already."""
        due = asyncio.get_running_loop().time() + max(after, 0.0)
        known = self._due.get(key)
        if known is None or due < known:
            self._due[key] = due
            self._push(key, due)
            self._changed.set()

    def drop(self, key: Key) -> None:
        """Remove the entry of a key."""
        self._due.pop(key, None)

    async def run(self, reconcile: Callable[[Key], Awaitable[None]], workers: int) -> None:
        """Reconcile each key when it is due, with so many workers. ``reconcile`` must not raise."""
        self._most = max(workers // 2, 1)
        async with asyncio.TaskGroup() as group:
            for _ in range(workers):
                group.create_task(self._work(reconcile))

    async def _work(self, reconcile: Callable[[Key], Awaitable[None]]) -> None:
        while True:
            async with self._turn:
                key = await self._next()
            try:
                # (A reconcile may wait for nothing, as when a socket refuses it, and its key be due again.)
                await asyncio.sleep(0)
                await reconcile(key)
            finally:
                self._busy.discard(key)
                if key in self._due:
                    self._push(key, self._due[key])
                if key in self._due or self._held_back:
                    self._changed.set()

    async def _next(self) -> Key:
        loop = asyncio.get_running_loop()
        while True:
            self._changed.clear()
            now = loop.time()
            while (entry := self._next_entry(now)) is not None:
                due, key = entry
                # An earlier entry has replaced this one; or its key is busy, and its worker adds it again afterwards.
                if self._due.get(key) != due or key in self._busy:
                    continue
                owner = self._owner(key)
                if self._at_work(owner) >= self._most:
                    self._held_back.setdefault(owner, deque()).append(entry)
                    continue
                del self._due[key]
                self._busy.add(key)
                return key
            with suppress(TimeoutError):
                async with asyncio.timeout_at(self._heap[0][0] if self._heap else None):
                    await self._changed.wait()

    def _next_entry(self, now: float) -> tuple[float, Key] | None:
        """Take the next entry that is due, first of an owner that was held back and has a worker again."""
        for owner, entries in self._held_back.items():
            if self._at_work(owner) < self._most:
                entry = entries.popleft()
                if not entries:
                    del self._held_back[owner]
                return entry
        if self._heap and self._heap[0][0] <= now:
            due, _, key = heapq.heappop(self._heap)
            return due, key
        return None

    def _at_work(self, owner: Hashable) -> int:
        return sum(self._owner(key) == owner for key in self._busy)

    def _push(self, key: Key, due: float) -> None:
        self._order += 1  # keys need not be comparable
        heapq.heappush(self._heap, (due, self._order, key))

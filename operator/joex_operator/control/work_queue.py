"""The work queue of the controller: it merges many reasons to reconcile a key into one reconcile.

Each key has at most one entry, due at the earliest time that a caller asked for. One worker at a time reconciles a key.
A key added during its own reconcile is reconciled again afterwards, because the reconcile under way may have observed
the state from before the change.

A reconcile may wait for ten seconds for a database that does not answer, and an owner, a namespace, may have any number
of those. So the next worker is for the owner that has fewest, and some workers stay free for owners that have none.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable
from contextlib import suppress
from typing import Generic, TypeVar

from joex.places import leaves_some

Key = TypeVar("Key", bound=Hashable)


class WorkQueue(Generic[Key]):
    """Keys to reconcile, each with the time at which it is due. Use it on one event loop.

    Args:
        owner: of a key.
    """

    def __init__(self, owner: Callable[[Key], Hashable] = lambda key: key) -> None:
        self._owner = owner
        self._workers = 1
        self._waiting: dict[Hashable, list[tuple[float, int, Key]]] = {}
        """What is due of each owner, the earliest first. Of owners with as many workers, the first one has its turn."""
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
        self._workers = workers
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
                if key in self._due or self._waiting:
                    self._changed.set()

    async def _next(self) -> Key:
        loop = asyncio.get_running_loop()
        while True:
            self._changed.clear()
            self._take_due(loop.time())
            if (owner := self._next_owner()) is not None:
                entries = self._waiting.pop(owner)
                _, _, key = heapq.heappop(entries)
                if entries:
                    self._waiting[owner] = entries  # behind its equals
                del self._due[key]
                self._busy.add(key)
                return key
            with suppress(TimeoutError):
                async with asyncio.timeout_at(self._heap[0][0] if self._heap else None):
                    await self._changed.wait()

    def _take_due(self, now: float) -> None:
        """Let what is due wait with its owner."""
        while self._heap and self._heap[0][0] <= now:
            entry = heapq.heappop(self._heap)
            if self._is_present(entry):
                heapq.heappush(self._waiting.setdefault(self._owner(entry[2]), []), entry)

    def _next_owner(self) -> Hashable | None:
        """The owner that has fewest workers, of those that wait and may have one more."""
        at_work = Counter(map(self._owner, self._busy))
        free = self._workers - len(self._busy)
        fewest: Hashable | None = None
        for owner, entries in list(self._waiting.items()):
            while entries and not self._is_present(entries[0]):
                heapq.heappop(entries)
            if not entries:
                del self._waiting[owner]
            elif not at_work[owner]:
                return owner  # (the first one nearly always: hundreds may wait)
            elif leaves_some(owner, at_work[owner], free) and (fewest is None or at_work[owner] < at_work[fewest]):
                fewest = owner
        return fewest

    def _is_present(self, entry: tuple[float, int, Key]) -> bool:
        """Whether an entry is to be reconciled: no earlier one has replaced it, and its key is not busy.

        (The worker of a busy key adds it again afterwards.)
        """
        due, _, key = entry
        return self._due.get(key) == due and key not in self._busy

    def _push(self, key: Key, due: float) -> None:
        self._order += 1  # keys need not be comparable
        heapq.heappush(self._heap, (due, self._order, key))

"""How groups share the connections and processes of an executor."""

import asyncio
from collections import Counter
from typing import Any

from joex.places import Places, leaves_some
from joex.store import task_connections


class Holders:
    """Those that have a place, or wait for one."""

    def __init__(self, places: Places[Any]) -> None:
        self._places = places
        self._ends: dict[str, list[asyncio.Event]] = {}
        self._works: set[asyncio.Task[None]] = set()
        self.has: Counter[str] = Counter()

    async def begin(self, group: str, number: int) -> None:
        for _ in range(number):
            self._works.add(asyncio.create_task(self._hold(group)))
        await self._settled()

    async def _hold(self, group: str) -> None:
        async with self._places.one_of(group):
            self.has[group] += 1
            self._ends.setdefault(group, []).append(end := asyncio.Event())
            await end.wait()
            self.has[group] -= 1

    async def end(self, group: str) -> None:
        """End the first one that has a place."""
        self._ends[group].pop(0).set()
        await self._settled()

    async def _settled(self) -> None:
        for _ in range(3):
            await asyncio.sleep(0)


async def test_what_a_group_has_counts_by_its_slots_which_follow_its_weight() -> None:
    holders = Holders(Places(4, in_slots=lambda: {"heavy": 6, "light": 2}))
    await holders.begin("heavy", 20)
    await holders.begin("light", 20)
    for _ in range(4):
        await holders.end("heavy")
    assert holders.has == {"heavy": 3, "light": 1}
    for group in ("heavy", "light", "heavy"):
        await holders.end(group)
        assert holders.has == {"heavy": 3, "light": 1}


async def test_a_group_leaves_connections_for_tasks_to_others_by_how_many_are_free() -> None:
    def all_of_them() -> Holders:
        return Holders(Places(task_connections.MOST_FOR_TASKS, leaves_some))

    alone, together = all_of_them(), all_of_them()
    for group in "abcdefghi":
        await alone.begin(group, 50)
    assert [*alone.has.values()] == [20, 4, 1, 1, 1, 1, 1, 1]
    for group in "ab" * 50:
        await together.begin(group, 1)
    assert together.has == {"a": 12, "b": 12}

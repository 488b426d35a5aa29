"""Whose turn it is to have a connection for large values."""

import asyncio

import pytest

from joex.runtime.bulk import Turns


class Transfers:
    """Transfers that have a connection, or wait for one."""

    def __init__(self) -> None:
        self.now = 0.0
        self._turns = Turns(lambda: self.now)
        self._open: list[tuple[str, asyncio.Event, asyncio.Task[None]]] = []
        self.having: list[str] = []

    async def begin(self, group: str, number: int = 1) -> None:
        for _ in range(number):
            end = asyncio.Event()
            self._open.append((group, end, asyncio.create_task(self._move(group, end))))
        await asyncio.sleep(0)

    async def _move(self, group: str, end: asyncio.Event) -> None:
        async with self._turns.of(("default", group)):
            self.having.append(group)
            await end.wait()
            self.having.remove(group)

    def end(self, group: str) -> asyncio.Task[None]:
        """Let the first one end."""
        found = next(one for one in self._open if one[0] == group)
        self._open.remove(found)
        found[1].set()
        return found[2]

    async def ended(self, group: str) -> list[str]:
        """Who has connections when the first one has ended."""
        await self.end(group)
        await asyncio.sleep(0)
        return sorted(self.having)

    async def cancelled(self, group: str) -> None:
        """Cancel the last one."""
        found = next(one for one in reversed(self._open) if one[0] == group)
        self._open.remove(found)
        found[2].cancel()
        with pytest.raises(asyncio.CancelledError):
            await found[2]


async def test_groups_have_the_connections_for_large_values_in_turns_and_one_group_has_both_while_no_other_waits():
    transfers = Transfers()
    await transfers.begin("a", 9)
    assert transfers.having == ["a", "a"]
    await transfers.begin("b", 3)
    await transfers.begin("c", 2)
    having = [await transfers.ended(group) for group in "aabacbacb"]
    assert ["".join(groups) for groups in having] == ["ab", "ab", "ac", "bc", "ab", "ac", "bc", "ab", "aa"]


async def test_groups_share_the_connections_for_large_values_by_the_time_for_which_they_have_them():
    """Results of one may take a hundred times as long as those of another."""
    transfers = Transfers()
    await transfers.begin("a", 4)
    await transfers.begin("b", 4)
    await transfers.begin("small", 40)
    transfers.now += 10
    assert [await transfers.ended("a"), await transfers.ended("a")] == [["a", "b"], ["b", "small"]]
    moved = 0
    while "small" in transfers.having:
        transfers.now += 1
        await transfers.ended("small")
        moved += 1
    assert (moved, sorted(transfers.having)) == (20, ["a", "b"])  # a has had both for 10 seconds


async def test_transfers_that_are_cancelled_give_their_turn_to_the_next_one():
    transfers = Transfers()
    await transfers.begin("a", 2)
    await transfers.begin("b", 2)
    await transfers.begin("c")
    await transfers.cancelled("b")  # it waits
    assert await transfers.ended("a") == ["a", "b"]
    await transfers.begin("b")
    ending = transfers.end("a")
    await asyncio.sleep(0)  # it ends: the turn of the next one has come, which has not begun
    await transfers.cancelled("c")
    await ending
    await asyncio.sleep(0)
    assert transfers.having == ["b", "b"]
    assert await transfers.ended("b") == ["b"]
    assert await transfers.ended("b") == []
    await transfers.begin("d", 3)
    assert transfers.having == ["d", "d"]

"""Whose turn it is to have a connection, of those that calls share."""

import asyncio
from collections.abc import Hashable
from contextlib import AsyncExitStack

import pytest

from joex.http import connection_shares, tokens, turns
from joex.http.connection_shares import Holder
from joex.places import Places


@pytest.fixture
def places() -> Places[Holder]:
    return Places(6, connection_shares._may)


def test_there_are_connections_for_all_that_has_a_bound_of_its_own_beside_those_that_calls_share() -> None:
    of_lines, of_look_ups = turns.MOST_REPORTS + turns.MOST_ACTING, 2 * tokens._MOST_CONNECTIONS
    assert connection_shares.MOST_SHARED + of_lines + of_look_ups + 1 == connection_shares.MOST


class Calls:
    """Calls that have a connection, or wait for one."""

    def __init__(self, places: Places[Holder]) -> None:
        self._places = places
        self.having: list[Hashable] = []
        self._open: list[tuple[Hashable, asyncio.Event, asyncio.Task[None]]] = []

    async def begin(self, tenant: str, number: int = 1, *, is_bound: bool = True) -> None:
        for _ in range(number):
            end = asyncio.Event()
            self._open.append((tenant, end, asyncio.create_task(self._call(tenant, end, is_bound=is_bound))))
        await asyncio.sleep(0)

    async def _call(self, tenant: Hashable, end: asyncio.Event, *, is_bound: bool) -> None:
        async with self._places.one_of(Holder(tenant, is_bound)):
            self.having.append(tenant)
            await end.wait()
            self.having.remove(tenant)

    async def end(self, tenant: str) -> None:
        """End the first one."""
        found = next(one for one in self._open if one[0] == tenant)
        self._open.remove(found)
        found[1].set()
        await found[2]
        await asyncio.sleep(0)


@pytest.fixture
def calls(places: Places[Holder]) -> Calls:
    return Calls(places)


async def test_a_tenant_leaves_connections_to_those_who_have_none_and_the_bound_ones_one_to_the_others(calls):
    await calls.begin("many", 10)
    assert calls.having == ["many"] * 3
    for name in "abc":
        await calls.begin(name, 2)
    assert calls.having == ["many"] * 3 + ["a", "b"]
    await calls.begin("owner", 2, is_bound=False)
    assert calls.having == ["many"] * 3 + ["a", "b", "owner"]


async def test_who_is_not_bound_leaves_connections_to_those_who_have_none(calls):
    await calls.begin("owner", 10, is_bound=False)
    assert calls.having == ["owner"] * 4
    await calls.begin("a", 2)
    assert calls.having == ["owner"] * 4 + ["a"]
    for _ in range(2):  # nobody else may have the last one
        await calls.begin("b")
        assert "b" not in calls.having
    await calls.end("owner")
    assert calls.having == ["owner"] * 3 + ["a", "b"]


async def test_a_connection_that_is_given_back_is_for_who_has_fewest_and_of_equals_for_the_first(calls):
    for name in "aabcab":  # the last two wait
        await calls.begin(name, is_bound=False)
    assert calls.having == [*"aabc"]
    await calls.end("c")
    assert calls.having == [*"aabb"]
    for name in "cdef":  # likewise
        await calls.begin(name, is_bound=False)
    for name in "ab":
        await calls.end(name)
    assert calls.having == [*"abcdef"]


@pytest.mark.parametrize("has_its_turn", [False, True], ids=["waits", "has just got it"])
async def test_a_call_that_is_cancelled_keeps_no_turn(places, has_its_turn):
    async def wait() -> None:
        async with places.one_of(Holder("late", is_bound=True)):
            pass

    async with AsyncExitStack() as holding:
        for name in "abcde":
            await holding.enter_async_context(places.one_of(Holder(name, is_bound=True)))
        late = asyncio.create_task(wait())
        await asyncio.sleep(0)
        assert len(places._waiting) == 1
        if has_its_turn:
            await holding.aclose()
            assert places._has == {Holder("late", is_bound=True): 1}
        late.cancel()
        await asyncio.wait([late])
    assert late.cancelled()
    assert (places._free, places._has, places._waiting) == (6, {}, {})

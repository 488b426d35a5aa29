"""How long an operator leads that can't renew its Lease."""

import asyncio
import math
from collections.abc import Callable
from typing import Any

import pytest

from joex_operator.cluster import leader_election
from joex_operator.cluster.leader_election import LeaderElection


class Clock:
    """The time, which passes only where somebody waits for it."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += max(seconds, 0.0)
        await asyncio.sleep(0)


class Lock:
    """A Lease. Each answer about it takes so many seconds; it is renewed until some time, and refused from then on."""

    def __init__(self, clock: Clock, answers: Callable[[float], tuple[float, bool]]) -> None:
        self._clock = clock
        self._answers = answers
        self.answered_at: float | None = None
        self.renewed_at = 0.0

    async def acquire(self, within: float | None = None) -> bool:
        assert within is not None
        assert within > 0.0
        began = self._clock.now
        seconds, is_mine = self._answers(began)
        await self._clock.sleep(min(seconds, within))
        if is_mine and seconds <= within:
            self.renewed_at = began
        return self.renewed_at == began


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(leader_election, "time", clock)
    monkeypatch.setattr(leader_election, "asyncio", clock)
    return clock


async def led(clock: Clock, answers: Callable[[float], tuple[float, bool]]) -> float:
    """Until when an operator leads that has renewed the Lease at 0.0, which has these answers from now on."""
    unused: Any = None
    election = LeaderElection(unused, name="joex-operator", namespace="shop", identity="one")
    lock: Any = Lock(clock, answers)
    election._lock = lock
    await election._renew()
    return clock.now


@pytest.mark.parametrize("hangs_after", [0.0, 5.5, 9.0, 9.5, 100.0])
async def test_a_leader_that_can_not_renew_its_lease_leads_for_ten_seconds_and_no_longer(
    clock: Clock, hangs_after: float
) -> None:
    """Its renewals are refused at once, or without an answer."""
    assert await led(clock, lambda now: (math.inf if now >= hangs_after else 0.0, False)) == pytest.approx(10.0)


async def test_a_leader_counts_from_its_attempt_and_not_from_a_late_answer(clock: Clock) -> None:
    clock.now = 9.0
    assert await led(clock, lambda _: (math.inf, False)) == pytest.approx(10.0)


async def test_a_leader_leads_on_where_each_answer_takes_almost_five_seconds(clock: Clock) -> None:
    assert await led(clock, lambda now: (4.9, now < 100.0)) == pytest.approx(110.0, abs=5.0)

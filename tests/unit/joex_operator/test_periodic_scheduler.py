"""The operator's scheduler of a database takes a share of its process, in which it serves other databases too."""

import asyncio
from typing import Any

import pytest

from joex.errors import DatabaseUnavailable
from joex.periodic_scheduler import PeriodicScheduler
from joex_operator.control.periodic_scheduler import SchedulerService
from joex_operator.metrics import OperatorMetrics


async def test_a_database_in_which_something_is_always_due_takes_a_fifth_of_the_time_in_the_long_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its owner may have it answer so. Ten thousand tasks that are really due take some seconds, at full speed."""
    worked = rested = undisturbed = 0.0

    async def work(_: PeriodicScheduler) -> float:
        nonlocal worked, undisturbed
        worked += 0.25
        undisturbed = undisturbed if rested else worked
        if worked >= 1000.0:
            raise asyncio.CancelledError
        return 0.0

    async def rest(seconds: float) -> None:
        nonlocal rested
        rested += max(seconds, 0.0)

    monkeypatch.setattr(PeriodicScheduler, "_round", work)
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: worked + rested)
    monkeypatch.setattr(asyncio, "sleep", rest)
    pool: Any = "not asked"
    service = SchedulerService(pool, "the database", worker="me", poll=15.0, metrics=OperatorMetrics())
    await asyncio.wait([service._running])
    assert undisturbed >= 10.0
    assert 0.19 < worked / (worked + rested) < 0.21


async def test_a_database_that_was_away_has_its_turn_at_once_when_it_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that does not answer takes no time of this process."""
    now, rests = 0.0, []

    async def wait_for_an_answer(scheduler: PeriodicScheduler) -> float:
        nonlocal now
        now += 600.0
        if now > 2000.0:
            raise asyncio.CancelledError
        scheduler.wake()
        raise DatabaseUnavailable("no answer in time")

    async def rest(seconds: float) -> None:
        rests.append(seconds)

    monkeypatch.setattr(PeriodicScheduler, "_round", wait_for_an_answer)
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    monkeypatch.setattr(asyncio, "sleep", rest)
    pool: Any = "not asked"
    service = SchedulerService(pool, "the database", worker="me", poll=15.0, metrics=OperatorMetrics())
    await asyncio.wait([service._running])
    assert len(rests) == 3
    assert max(rests) <= 0.0

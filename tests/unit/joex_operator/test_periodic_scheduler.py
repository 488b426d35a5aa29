"""The operator's scheduler of a database takes a share of its process, in which it serves other databases too."""

import asyncio
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from joex import periodic_scheduler
from joex.errors import DatabaseUnavailable
from joex.periodic_scheduler import PeriodicScheduler
from joex.store import periodic_due
from joex.store.periodic import TaskKey
from joex.store.periodic_due import FIRST_TURN
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


async def test_decisions_that_the_database_does_not_take_count_as_work_and_its_wait_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its owner may have it refuse them each time, and say at once that a task has changed."""
    worked = rested = 0.0

    async def next_in(*_: object, **__: object) -> float:
        return 0.0

    async def due(*_: object, **__: object) -> tuple[list[Any], tuple[str, str]]:
        key = TaskKey("a", "default", "default")
        return 200 * [SimpleNamespace(key=key, schedule="daily", now="now")], FIRST_TURN

    def decided(*_: object) -> None:
        nonlocal worked
        worked += 0.01

    async def fire(*_: object) -> None:
        if worked >= 1000.0:
            raise asyncio.CancelledError
        await rest(1.0)
        service._scheduler.wake()
        raise DatabaseUnavailable("not now")

    async def rest(seconds: float) -> None:
        nonlocal rested
        rested += max(seconds, 0.0)

    monkeypatch.setattr(periodic_scheduler, "borrowed", lambda _: nullcontext())
    monkeypatch.setattr(periodic_due, "clock", next_in)
    monkeypatch.setattr(periodic_due, "recompute", next_in)
    monkeypatch.setattr(periodic_due, "next_in", next_in)
    monkeypatch.setattr(periodic_due, "due", due)
    monkeypatch.setattr(periodic_scheduler, "decide", decided)
    monkeypatch.setattr(periodic_due, "fire", fire)
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: worked + rested)
    monkeypatch.setattr(asyncio, "sleep", rest)
    pool: Any = "not asked"
    service = SchedulerService(pool, "the database", worker="me", poll=15.0, metrics=OperatorMetrics())
    await asyncio.wait([service._running])
    assert 0.19 < worked / (worked + rested) < 0.22

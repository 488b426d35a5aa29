"""What a taker does after statements whose answers it has not got."""

import asyncio
from collections.abc import Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from joex.core.priority_turns import CountingScheme
from joex.errors import DatabaseUnavailable, LeaseLost
from joex.runtime import taker
from joex.store import executors, runs
from tests.support.waiting import EventLog


@asynccontextmanager
async def borrowed(_pool: Any) -> Any:
    yield None


async def at_once(_wakeup: asyncio.Event, _seconds: float) -> None:
    await asyncio.sleep(0)


def of_one_slot() -> taker.Taker:
    runner: Any = SimpleNamespace(free=1, runs={})
    pool: Any = None
    return taker.Taker(
        pool, runner, executor=1, queues=["default"], scheme=CountingScheme(4, 1), wakeup_period=60.0,
        poll_interval=None, is_trusted=lambda: True, emit=EventLog(),
    )  # fmt: skip


async def test_after_a_take_without_an_answer_it_takes_nothing_until_a_give_back_was_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each attempt to give back has a number of its own, and the takes after it have that number."""
    said: list[tuple[str, int]] = []
    answers: list[Exception | int] = [DatabaseUnavailable("take"), DatabaseUnavailable("give back"), 0, LeaseLost()]

    def answer(statement: str, nr: int) -> int:
        said.append((statement, nr))
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def take(*_: Any, give_back_nr: int) -> Any:
        return answer("take", give_back_nr)

    async def give_back_unknown(_connection: Any, _executor: int, nr: int, _known: Any) -> int:
        return answer("give back", nr)

    monkeypatch.setattr(taker, "borrowed", borrowed)
    monkeypatch.setattr(taker, "wait_for", at_once)
    monkeypatch.setattr(runs, "take", take)
    monkeypatch.setattr(executors, "give_back_unknown", give_back_unknown)
    with pytest.raises(LeaseLost):
        await of_one_slot().run()
    assert said == [("take", 0), ("give back", 1), ("give back", 2), ("take", 2)]


async def test_however_many_looks_find_an_unknown_job_one_more_is_to_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another transaction may keep the row of such a job locked, so that each look finds it."""

    async def give_back_unknown(*_: Any) -> int:
        return 1

    monkeypatch.setattr(executors, "give_back_unknown", give_back_unknown)
    loop = asyncio.get_running_loop()
    looks: list[asyncio.Handle] = []

    def call_later(_seconds: float, call: Callable[[], None]) -> asyncio.Handle:
        looks.append(loop.call_soon(call))
        return looks[-1]

    monkeypatch.setattr(loop, "call_later", call_later)
    one = of_one_slot()
    for _ in range(3):
        await one._give_back_unknown(None)
    assert [look.cancelled() for look in looks] == [True, True, False]

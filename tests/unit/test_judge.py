"""Texts of errors that take long leave time for others."""

import asyncio
import threading
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from joex.core.job import TakenJob
from joex.core.text import is_quick
from joex.runtime import judge
from joex.runtime.judge import ErrorTexting
from tests.support.waiting import PATIENCE, eventually


class SlowError(Exception):
    """An error whose text takes long."""


def job_of(group: str) -> TakenJob:
    """A job of this group."""
    return TakenJob(UUID(int=1), UUID(int=2), 1, "default", group, "t", "{}", "low", "", "", 0, 0, None, 0.0)


async def test_the_next_text_after_one_that_takes_long_waits_as_long_and_is_that_of_another_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, said = 0.0, []

    def text(name: str, seconds: float) -> str:
        nonlocal now
        now += seconds
        said.append(name)
        return name

    sleep = asyncio.sleep

    async def pause(seconds: float) -> None:
        said.append(f"pause of {seconds}")
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", pause)
    turns = ErrorTexting(lambda: now)
    texts = [("a", "a1", 0.5), ("a", "a2", 0.5), ("a", "a3", 0.0), ("b", "b", 0.25), ("c", "c", 0.0)]
    made = await asyncio.gather(
        *(turns.made(job_of(group), SlowError(), partial(text, name, seconds), str) for group, name, seconds in texts)
    )
    assert made == ["a1", "a2", "a3", "b", "c"]
    assert said == ["a1", "pause of 0.5", "b", "pause of 0.25", "c", "a2", "pause of 0.5", "a3"]


async def test_a_run_whose_code_has_cancelled_its_own_asyncio_task_has_its_text_once() -> None:
    now, made = 0.0, []

    def text() -> str:
        nonlocal now
        now += 60.0
        made.append("text")
        return "text"

    async def run() -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return await ErrorTexting(lambda: now).made(job_of("a"), SlowError(), text, str)

    assert await asyncio.create_task(run()) == "text"
    assert made == ["text"]


async def test_the_loop_goes_on_while_a_text_is_made() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def text() -> str:
        begun.set()
        return "text" if go_on.wait(PATIENCE) else ""

    making = asyncio.create_task(ErrorTexting().made(job_of("a"), SlowError(), text, str))
    await eventually(begun.is_set)
    go_on.set()
    assert await making


@pytest.mark.parametrize("error", [ValueError("no luck"), KeyError("a"), FileNotFoundError(2, "no such file")])
async def test_the_text_of_a_plain_error_is_made_at_once(error: Exception) -> None:
    making = ErrorTexting().made(job_of("a"), error, lambda: "text", str)
    with pytest.raises(StopIteration, match="text"):
        making.send(None)


def with_strerror(value: Any) -> OSError:
    error = FileNotFoundError(2, "no such file")
    error.strerror = value
    return error


@pytest.mark.parametrize(
    "error",
    [
        SlowError("short"),
        ValueError("long" * 1000),
        ValueError(["a list"]),
        ValueError(10**1000),
        ExceptionGroup("group", [ValueError()]),
        FileNotFoundError(2, "no such file", "long" * 1000),
        with_strerror(["a list"]),
        AttributeError("no such name", name="a", obj=SlowError()),
        ImportError("long" * 1000),
    ],
)
def test_the_texts_of_other_errors_may_take_long(error: Exception) -> None:
    assert not is_quick(error)


async def test_a_text_that_takes_very_long_keeps_its_run_and_no_text_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread goes on, so that each run has one at most."""
    monkeypatch.setattr(judge, "_LONGEST", 0.05)
    over = threading.Event()
    texting = ErrorTexting()
    stuck = asyncio.create_task(texting.made(job_of("a"), SlowError(), lambda: str(over.wait()), str))
    try:
        assert await asyncio.wait_for(texting.made(job_of("b"), SlowError(), lambda: "text", str), PATIENCE) == "text"
        assert not stuck.done()
    finally:
        over.set()
    assert await asyncio.wait_for(stuck, PATIENCE) == "True"


async def test_of_texts_of_a_group_that_take_very_long_two_go_on_and_others_of_it_end_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of them keeps a thread, and, if it computes, Python's lock for a part of the time; perhaps for ever."""
    monkeypatch.setattr(judge, "_LONGEST", 0.05)
    over, begun, texting = threading.Event(), [0], ErrorTexting()

    def text() -> str:
        begun[0] += 1
        return str(over.wait())

    def stuck() -> asyncio.Task[str]:
        return asyncio.create_task(texting.made(job_of("a"), SlowError(), text, lambda: "none"))

    first = [stuck(), stuck()]
    try:
        await eventually(lambda: begun[0] == 2)
        waiting = stuck()
        for group in ("b", "c"):
            made = texting.made(job_of(group), SlowError(), lambda: "text", str)
            assert await asyncio.wait_for(made, PATIENCE) == "text"
        assert not waiting.done()
        monkeypatch.setattr(judge, "_WAITS_FOR_LEFT", 0.05)
        assert await asyncio.wait_for(stuck(), PATIENCE) == "none"
        assert begun[0] == 2
    finally:
        over.set()
    assert await asyncio.wait_for(asyncio.gather(*first, waiting), PATIENCE) == ["True"] * 3

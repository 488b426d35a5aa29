"""Texts of errors that take long leave time for others."""

import asyncio
from functools import partial
from uuid import UUID

import pytest

from joex.core.job import TakenJob
from joex.runtime.judge import ErrorTexting


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
        *(turns.made(job_of(group), partial(text, name, seconds)) for group, name, seconds in texts)
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
        return await ErrorTexting(lambda: now).made(job_of("a"), text)

    assert await asyncio.create_task(run()) == "text"
    assert made == ["text"]

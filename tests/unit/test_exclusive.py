"""What belongs to an exclusive run: as long as it is at work, no other executor may begin the job."""

import asyncio
import threading

import pytest

import joex
from joex.core.job import TakenJob
from joex.runtime import judge
from joex.runtime.task_threads import TaskThreads
from tests.support.slots import Slots
from tests.support.waiting import PATIENCE, eventually


class Waits(Exception):
    """Its text is there when ``go_on`` is set."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()

    def __str__(self) -> str:
        self.begun.set()
        return str(self.go_on.wait())


@pytest.mark.parametrize("exclusive", [True, False])
@pytest.mark.parametrize("where", ["code", "handler"])
async def test_the_text_of_an_error_of_an_exclusive_run_is_its_code(*, where: str, exclusive: bool) -> None:
    """That of another one keeps no executor from leaving."""
    app, error = joex.App(), Waits()

    @app.task("t", exclusive=exclusive)
    async def task(ctx: joex.Context) -> None:
        raise joex.Cancel if where == "handler" else error

    @task.on_cancel
    async def clean_up(ctx: joex.Context) -> None:
        raise error

    slots = Slots(app)
    job = slots.start(suspect=False)
    try:
        await eventually(error.begun.is_set)
        assert (slots.runner.executing, slots.runner.executing_exclusively) == (exclusive, exclusive)
    finally:
        error.go_on.set()
    await eventually(lambda: slots.of(job)[-1] == ("failed" if where == "code" else "cancelled"))
    assert slots.runner.executing == 0
    slots.runner.close()


@pytest.mark.parametrize("exclusive", [True, False])
async def test_an_exclusive_run_that_goes_on_after_its_error_is_at_work_while_the_text_waits(
    *, exclusive: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judge, "_LONGEST", PATIENCE)
    app, other, waits = joex.App(), Waits(), asyncio.Event()

    @app.task("t", exclusive=exclusive)
    async def task(ctx: joex.Context) -> None:
        if ctx.group == "other":
            raise other
        error = Waits()
        error.go_on.set()
        judging = asyncio.wrap_future(ctx.judge(error))
        waits.set()
        await judging
        assert slots.runner.executing == 1

    slots = Slots(app)
    slots.start(suspect=False, group="other")
    try:
        await eventually(other.begun.is_set)
        job = slots.start(suspect=False)
        await waits.wait()
        await slots.settled()
        runs = [run for run in slots.runner.runs.values() if run.job is job]
        assert [run.is_executing for run in runs] == [exclusive]
    finally:
        other.go_on.set()
    await eventually(lambda: slots.of(job) == ["begins", "success"])
    slots.runner.close()


async def asked_to_end(app: joex.App) -> tuple[Slots, TakenJob]:
    """A run whose code is over, or whose time is, and that waits for its calls in threads."""
    asyncio.get_running_loop().set_default_executor(TaskThreads(4))
    slots = Slots(app)
    job = slots.start(suspect=False)
    run = slots.runner.runs[job.lock_id]
    await eventually(lambda: run.context is not None and run.context.cancelled)
    return slots, job


@pytest.mark.parametrize("how", ["timeout", "return", "handler"])
async def test_calls_of_an_exclusive_run_in_threads_are_its_code(how: str) -> None:
    """Python can't end them; the run is over when they are."""
    app, go_on = joex.App(), threading.Event()

    async def work(ctx: joex.Context) -> None:
        call = asyncio.create_task(asyncio.to_thread(go_on.wait))
        if how == "timeout":
            await call
        else:
            await asyncio.sleep(0)  # it begins

    task = app.task("t", exclusive=True, timeout="0.05s" if how == "timeout" else None)

    if how == "handler":

        @task
        async def cancels(ctx: joex.Context) -> None:
            raise joex.Cancel

        cancels.on_cancel(work)
    else:
        task(work)

    try:
        slots, job = await asked_to_end(app)
        assert (slots.of(job), slots.runner.executing_exclusively) == (["begins"], 1)
    finally:
        go_on.set()
    ends = {"timeout": "failed", "return": "success", "handler": "cancelled"}
    await eventually(lambda: slots.of(job) == ["begins", ends[how]])
    slots.runner.close()


async def test_the_text_of_the_error_of_a_handler_waits_for_the_calls_that_it_has_left() -> None:
    """While a text waits for its turn, nothing of the run counts as its code."""
    app, told, go_on = joex.App(), threading.Event(), threading.Event()

    class Tells(Exception):
        def __str__(self) -> str:
            told.set()
            return ""

    @app.task("t", exclusive=True)
    async def task(ctx: joex.Context) -> None:
        raise joex.Cancel

    @task.on_cancel
    async def clean_up(ctx: joex.Context) -> None:
        call = asyncio.create_task(asyncio.to_thread(go_on.wait))
        await asyncio.sleep(0)  # it begins
        raise Tells(call)

    try:
        slots, job = await asked_to_end(app)
        assert (told.is_set(), slots.runner.executing_exclusively) == (False, 1)
    finally:
        go_on.set()
    await eventually(lambda: slots.of(job) == ["begins", "cancelled"])
    assert told.is_set()
    slots.runner.close()

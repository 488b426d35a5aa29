"""A plain function runs in a thread, and so does the code of the types that its annotations name."""

import asyncio
import threading
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, BaseModel, computed_field

import joex
from joex.core.outcome import Interruption
from joex.errors import ConfigError
from tests.support.slots import Slots
from tests.support.waiting import eventually


async def test_validators_and_serializers_of_a_plain_function_run_in_its_thread() -> None:
    """They may wait, for a file or a service: in the event loop all other runs would."""
    app, begun, go_on = joex.App(), threading.Event(), threading.Event()

    def waits(value: int) -> int:
        begun.set()
        go_on.wait()
        return value

    class Report(BaseModel):
        @computed_field  # type: ignore[prop-decorator] # as pydantic's documentation says
        @property
        def size(self) -> int:
            return waits(2)

    @app.task("t")
    def task(ctx: joex.Context, number: Annotated[int, AfterValidator(waits)]) -> Report:
        begun.clear()
        go_on.clear()
        return Report()

    slots = Slots(app)
    job = slots.start(suspect=False, args='{"number": 1}')
    try:
        for _ in ("arguments", "result"):
            await eventually(lambda: begun.is_set() and not go_on.is_set())
            assert (slots.of(job), slots.runner.executing) == (["begins"], 1)
            go_on.set()
        await eventually(lambda: slots.of(job) == ["begins", "success"])
    finally:
        go_on.set()
        slots.runner.close()


async def test_what_makes_the_result_of_a_plain_function_is_asked_to_end_at_its_timeout() -> None:
    app = joex.App()

    class Report(BaseModel):
        @computed_field  # type: ignore[prop-decorator] # as pydantic's documentation says
        @property
        def is_asked_to_end(self) -> bool:
            return contexts[0].wait_cancelled(3600)

    contexts: list[joex.Context] = []

    @app.task("t", timeout="0.01s")
    def task(ctx: joex.Context) -> Report:
        contexts.append(ctx)
        return Report()

    slots = Slots(app)
    job = slots.start(suspect=False)
    await eventually(lambda: slots.of(job) == ["begins", "success"])
    slots.runner.close()


async def test_a_cancel_handler_is_not_called_without_the_arguments_that_did_not_fit() -> None:
    app, called = joex.App(), asyncio.Event()

    @app.task("t")
    def task(ctx: joex.Context, number: int) -> None: ...

    @task.on_cancel
    async def clean_up(ctx: joex.Context, number: int = 0) -> None:
        called.set()

    slots = Slots(app)
    job = slots.start(suspect=False)
    await asyncio.sleep(0)  # it begins
    slots.runner.interrupt(slots.runner.runs[job.lock_id], Interruption.CANCEL)
    await eventually(lambda: slots.of(job) == ["begins", "cancelled"])
    assert not called.is_set()
    slots.runner.close()


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_validator_that_raises_anything_fails_its_run_as_the_code_of_the_task_does(*, is_async: bool) -> None:
    app = joex.App()

    def raises(value: int) -> int:
        raise KeyError(value)

    async def code(ctx: joex.Context, number: Annotated[int, AfterValidator(raises)]) -> None: ...

    def plain(ctx: joex.Context, number: Annotated[int, AfterValidator(raises)]) -> None: ...

    app.task("t")(code if is_async else plain)
    slots = Slots(app)
    job = slots.start(suspect=False, args='{"number": 1}')
    await eventually(lambda: slots.of(job) == ["begins", "failed"])
    slots.runner.close()


def test_a_function_that_yields_is_no_task() -> None:
    app = joex.App()
    with pytest.raises(ConfigError, match="task 't': the function yields, and a result is one value: return a list"):

        @app.task("t")
        def task(ctx: joex.Context) -> Any:
            yield 1

"""`Task.result`: what a job's run returned, as the type that the task's annotation names."""

from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any
from uuid import UUID

import asyncpg
import pytest
from pydantic import BaseModel, ConfigDict, Field

import joex
from joex.testing import drain


class Colour(Enum):
    RED = "red"


@dataclass
class Point:
    x: float


class Order(BaseModel):
    model_config = ConfigDict(strict=True)

    day: date
    price: Decimal
    pair: tuple[int, int] = (1, 2)


@pytest.fixture
def app():
    return joex.App()


@pytest.fixture
async def client(database_url):
    async with joex.Client(database_url) as client:
        yield client


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (date, date(2030, 1, 2)),
        (timedelta | None, timedelta(minutes=5)),
        (dict[str, Decimal], {"a": Decimal("1.10")}),
        (list[UUID], [UUID(int=7)]),
        (tuple[int, str], (1, "a")),
        (Colour, Colour.RED),
        (Point, Point(0.5)),
        (Order, Order(day=date(2030, 1, 2), price=Decimal("1.10"))),
        (float, 1e22),
        (Annotated[int, Field(ge=0)], 3),
        (type(None), None),
        (Any, {"a": [1]}),
    ],
    ids=str,
)
async def test_a_result_is_of_the_type_that_the_annotation_names(kind, value, app, client):
    async def on_the_loop(ctx):
        return value

    def in_a_thread(ctx):
        return value

    for function in (on_the_loop, in_a_thread):
        function.__annotations__["return"] = kind
        task = app.task(function.__name__)(function)
        job_id = await task.submit(client)
        await drain(app, client)
        result = await task.result(client, job_id)
        assert result == value
        assert type(result) is type(value)


async def test_without_an_annotation_a_result_is_what_json_holds(app, client):
    @app.task("a")
    async def task(ctx):
        return {"day": date(2030, 1, 2)}

    job_id = await task.submit(client)
    await drain(app, client)
    assert await task.result(client, job_id) == {"day": "2030-01-02"}


async def test_a_result_that_a_transaction_has_stored_counts(app, client):
    @app.task("a")
    async def task(ctx) -> Point:
        async with ctx.transaction(result=Point(2)):
            return Point(1)

    job_id = await task.submit(client)
    await drain(app, client)
    assert await task.result(client, job_id) == Point(2)


async def test_a_job_that_has_failed_has_no_result(app, client):
    @app.task("a")
    async def task(ctx) -> int:
        raise joex.Fail("no ink")

    job_id = await task.submit(client)
    await drain(app, client, raise_failures=False)
    with pytest.raises(joex.NoResult, match=f"^job {job_id} of task 'a' is failed: .*no ink") as raised:
        await task.result(client, job_id)
    assert raised.value.job == await client.get(job_id)


async def test_a_job_that_was_cancelled_or_removed_has_no_result(app, client):
    task = app.task("a")(lambda _ctx: None)
    job_id = await task.submit(client)
    await client.cancel(job_id)
    with pytest.raises(joex.NoResult, match=f"^job {job_id} of task 'a' is cancelled$"):
        await task.result(client, job_id)
    await client.remove(job_id)
    with pytest.raises(joex.NoResult, match=f"^job {job_id} is gone") as raised:
        await task.result(client, job_id)
    assert raised.value.job is None


async def test_a_result_of_another_type_is_refused(app, client):
    @app.task("a")
    async def task(ctx) -> list[int]:
        return [1, "two"]  # type: ignore[list-item]

    job_id = await task.submit(client)
    await drain(app, client)
    with pytest.raises(joex.NoResult, match=f"^job {job_id} of task 'a': result.1: Input should be") as raised:
        await task.result(client, job_id)
    assert getattr(raised.value.job, "result", None) == [1, "two"]


async def test_a_job_of_another_task_is_refused(app, client):
    task, other = (app.task(name)(lambda _ctx: None) for name in ("a", "b"))
    job_id = await other.submit(client)
    await client.cancel(job_id)
    with pytest.raises(joex.ConfigError, match=f"^job {job_id} is of task 'b', not of 'a'$"):
        await task.result(client, job_id)


async def test_an_annotation_that_nothing_can_be_checked_against_is_refused_when_a_result_is_read(app, client):
    @app.task("a")
    async def task(ctx) -> asyncpg.Record | None:
        return None

    job_id = await task.submit(client)
    await drain(app, client)
    with pytest.raises(joex.ConfigError, match=r"^task 'a': pydantic can't check its result: "):
        await task.result(client, job_id)


async def test_a_job_that_is_not_finished_in_time_is_waited_for_no_longer(app, client):
    task = app.task("a")(lambda _ctx: None)
    job_id = await task.submit(client)
    with pytest.raises(TimeoutError):
        await task.result(client, job_id, timeout="10ms")

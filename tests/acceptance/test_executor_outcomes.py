"""The outcome of a job whose task returns, raises, times out, or is invalid."""

import asyncio
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, ClassVar
from uuid import UUID

import asyncpg
import pytest

import joex
from joex.core.events import RunEnded, RunStarted
from joex.core.job import State
from tests.support.apps import AnyClient
from tests.support.processes_inside import LONG, Inside, executor_inside
from tests.support.waiting import PATIENCE, eventually


async def _run(client: AnyClient, url: str, app: joex.App, task: str = "task", **settings: Any) -> Any:
    """Submit one job, and let an executor run it once."""
    async with executor_inside(app, url, **settings) as inside:
        job_id = await client.submit(task)
        await inside.ended(job_id)
    return await client.get(job_id)


async def test_a_submitted_job_runs_and_its_result_is_stored(client: AnyClient, database_url: str) -> None:
    app = joex.App()

    @app.task("add")
    async def add(ctx: joex.Context, a: int, b: int) -> dict[str, int]:
        return {"sum": a + b}

    async with executor_inside(app, database_url) as inside:
        job_id = await client.submit("add", {"a": 2, "b": 3}, group="acme")
        await inside.ended(job_id)
    job = await client.get(job_id)
    assert (job.state, job.result, job.attempt, job.progress, job.error) == ("success", {"sum": 5}, 1, 100, None)
    assert job.submitted_at <= job.scheduled_at <= job.started_at <= job.finished_at
    assert job.app_id == inside.executor.app_id


async def test_a_plain_function_runs_in_a_thread_and_not_on_the_loop(client: AnyClient, database_url: str) -> None:
    app = joex.App()

    @app.task("task")
    def task(ctx: joex.Context) -> bool:
        return threading.current_thread() is threading.main_thread()

    job = await _run(client, database_url, app)
    assert (job.state, job.result, job.attempt) == ("success", False, 1)


async def test_what_a_task_knows_of_its_job_is_what_was_submitted(client: AnyClient, database_url: str) -> None:
    app = joex.App()

    @app.task("task")
    async def task(ctx: joex.Context) -> list[object]:
        given = [ctx.task, ctx.queue, ctx.group, ctx.priority, ctx.subject, ctx.submitter, ctx.attempt]
        return [*given, ctx.is_last_attempt, str(ctx.job_id)]

    async with executor_inside(app, database_url, queues=["mail"]) as inside:
        job_id = await client.submit(
            "task", group="acme", queue="mail", priority="high", subject="s", submitter="me", retries=0
        )
        await inside.ended(job_id)
    assert (await client.get(job_id)).result == ["task", "mail", "acme", "high", "s", "me", 1, True, str(job_id)]


@pytest.mark.parametrize("in_thread", [False, True], ids=["async", "thread"])
async def test_a_job_that_raises_is_tried_again_after_delays_that_double_until_it_has_failed(
    client: AnyClient, database_url: str, connection: asyncpg.Connection, *, in_thread: bool
) -> None:
    app = joex.App()
    last: list[bool] = []

    def fail(ctx: joex.Context) -> None:
        last.append(ctx.is_last_attempt)
        raise ValueError(f"no luck\nin attempt {ctx.attempt}")

    async def fail_async(ctx: joex.Context) -> None:
        fail(ctx)

    app.task("task")(fail if in_thread else fail_async)
    async with executor_inside(app, database_url, lease=LONG, retries=3, retry_delay="100s", retry_jitter=0) as inside:
        before = await connection.fetchval("SELECT clock_timestamp()")
        job_id = await client.submit("task")
        for attempt, delay in enumerate((100, 200, 400), start=1):
            await inside.log.wait_for(RunEnded, count=attempt)
            after = await connection.fetchval("SELECT clock_timestamp()")
            job = await client.get(job_id)
            assert (job.state, job.attempt, job.failures) == ("stuck", attempt, attempt)
            assert job.error == f"ValueError: no luck in attempt {attempt}"
            assert before + timedelta(seconds=delay) <= job.due_at <= after + timedelta(seconds=delay)
            before = await _make_due(connection, job_id)
            inside.executor.wake()
        await inside.log.wait_for(RunEnded, lambda event: event.verdict.state is State.FAILED)
    job = await client.get(job_id)
    assert (job.state, job.attempt, job.failures, job.due_at) == ("failed", 4, 4, None)
    assert last == [False, False, False, True]


async def test_jobs_that_fail_together_are_not_all_tried_again_at_one_moment(
    client: AnyClient, database_url: str, connection: asyncpg.Connection
) -> None:
    app = joex.App()

    @app.task("task")
    async def task(ctx: joex.Context) -> None:
        raise ValueError

    async with executor_inside(app, database_url, retry_delay="10h", retry_jitter=1) as inside:
        await client.submit_many([{"task": "task"}] * 20)
        await inside.log.wait_for(RunEnded, count=20)
    # How much longer than their delay they wait. One statement may write the ends of all twenty.
    delays = await connection.fetch(
        "SELECT extract(epoch FROM due_at - started_at)::float8 / 3600 FROM joex_private.job"
    )
    assert len({round(row[0], 2) for row in delays}) > 2
    assert all(10 <= row[0] < 20.5 for row in delays)


async def test_the_log_has_the_traceback_of_each_failed_run_even_where_the_next_run_follows_at_once(
    client: AnyClient, database_url: str
) -> None:
    app = joex.App()

    @app.task("task", retries=29, retry_delay=0)
    async def task(ctx: joex.Context) -> None:
        ctx.log.info("attempt %d", ctx.attempt)
        raise ValueError("no luck")

    async with executor_inside(app, database_url) as inside:
        job_id = await client.submit("task")
        await inside.log.wait_for(RunEnded, count=30)
    log = await client.log(job_id)
    assert [(line.attempt, line.level) for line in log] == [
        (attempt, level)
        for attempt in range(1, 31)
        for level in ("info", "error", "warning" if attempt < 30 else "error")
    ]
    assert all("Traceback" in line.message and "no luck" in line.message for line in log[1::3])
    assert all(line.message.startswith("failed: ValueError: no luck; ") for line in log[2::3])
    assert log[-1].message == "failed: ValueError: no luck; no retries left"


async def test_a_job_that_fails_at_first_succeeds_later(client: AnyClient, database_url: str) -> None:
    app = joex.App()

    @app.task("task")
    async def task(ctx: joex.Context) -> int:
        if ctx.attempt < 3:
            raise OSError("not yet")
        return ctx.attempt

    async with executor_inside(app, database_url, retry_delay=0.01) as inside:
        job_id = await client.submit("task")
        await inside.log.wait_for(RunEnded, lambda event: event.verdict.state is State.SUCCESS)
    job = await client.get(job_id)
    assert (job.state, job.result, job.attempt, job.failures) == ("success", 3, 3, 2)


async def test_joex_fail_is_final(client: AnyClient, database_url: str) -> None:
    app = joex.App()

    @app.task("task")
    async def task(ctx: joex.Context) -> None:
        raise joex.Fail("the document is encrypted")

    job = await _run(client, database_url, app)
    assert (job.state, job.error, job.attempt) == ("failed", "the document is encrypted", 1)


async def test_joex_retry_asks_for_its_own_delay(
    client: AnyClient, database_url: str, connection: asyncpg.Connection
) -> None:
    app = joex.App()

    @app.task("task")
    async def task(ctx: joex.Context) -> None:
        raise joex.Retry("rate limited", after="1h")

    before = await connection.fetchval("SELECT clock_timestamp()")
    job = await _run(client, database_url, app, retry_delay="1s")
    after = await connection.fetchval("SELECT clock_timestamp()")
    assert (job.state, job.attempt, job.failures) == ("stuck", 1, 1)
    assert before + timedelta(hours=1) <= job.due_at <= after + timedelta(hours=1)


async def test_joex_cancel_ends_a_job_as_cancelled(client: AnyClient, database_url: str) -> None:
    app = joex.App()

    @app.task("task")
    def task(ctx: joex.Context) -> None:
        raise joex.Cancel("not needed any more")

    job = await _run(client, database_url, app)
    assert (job.state, job.attempt, job.failures) == ("cancelled", 1, 0)


async def test_wrong_arguments_fail_a_job_at_once_and_without_running_it(client: AnyClient, database_url: str) -> None:
    app = joex.App()
    runs: list[int] = []

    @app.task("task")
    async def task(ctx: joex.Context, pages: list[int]) -> None:
        runs.append(1)

    job = await _run(client, database_url, app, retries=5)
    assert (job.state, job.failures) == ("failed", 1)
    assert "pages" in job.error
    assert "'task'" in job.error
    assert runs == []


async def test_an_unknown_task_is_tried_again_and_then_fails_with_a_line_that_names_no_other_task(
    client: AnyClient, database_url: str
) -> None:
    app = joex.App()

    @app.task("known")
    async def known(ctx: joex.Context) -> None:
        pass

    async with executor_inside(app, database_url, retries=2, retry_delay=0.01) as inside:
        job_id = await client.submit("unknown")
        ends = [await inside.ended(job_id), await inside.log.wait_for(RunEnded, count=2)]
        await inside.log.wait_for(RunEnded, count=3)
        after = await client.submit("known")
        await inside.ended(after)
    assert [end.verdict.state for end in ends] == [State.STUCK, State.STUCK]
    job = await client.get(job_id)
    assert (job.state, job.failures) == ("failed", 3)
    assert job.error == "task 'unknown' is unknown to this executor"  # a tenant reads it: others have tasks, too


async def test_a_result_that_json_can_not_hold_fails_the_job_without_a_retry(
    client: AnyClient, database_url: str
) -> None:
    app = joex.App()

    @app.task("task")
    async def task(ctx: joex.Context) -> object:
        return object()

    job = await _run(client, database_url, app)
    assert (job.state, job.attempt) == ("failed", 1)
    assert "result" in job.error


@pytest.mark.parametrize(
    ("result", "error"),
    [
        ({"scores": [1.0, float("nan")]}, "result.scores[1]: can't be stored as JSON: got nan, "),
        ({1: 2}, "result: can't be stored as JSON: expected texts as names; got 1"),
        ({"blob": b"x"}, "result.blob: can't be stored as JSON: got bytes: "),
        ([{1}], "result[0]: can't be stored as JSON: got set: give a list"),
        (10**5000, "result: can't be stored as JSON: "),
    ],
    ids=["nan", "a number as a name", "bytes", "a set", "a number that can't be read again"],
)
async def test_a_result_that_json_would_change_fails_its_job_and_says_where(
    client: AnyClient, database_url: str, result: object, error: str
) -> None:
    app = joex.App()

    @app.task("t")
    async def t(ctx: joex.Context) -> object:
        return result

    async with executor_inside(app, database_url) as inside:
        job_id = await client.submit("t")
        await inside.ended(job_id)
    job = await client.get(job_id)
    assert (job.state, job.result) == ("failed", None)
    assert job.error.startswith(error)


async def test_a_result_that_the_database_refuses_fails_its_job_and_no_other(
    client: AnyClient, database_url: str
) -> None:
    app = joex.App()
    both = asyncio.Barrier(2)

    @app.task("huge")
    async def huge(ctx: joex.Context) -> object:
        await both.wait()
        return "huge"

    @app.task("small")
    async def small(ctx: joex.Context) -> int:
        await both.wait()
        return 1

    async with client.acquire() as connection:
        await connection.execute("ALTER TABLE joex_private.job ADD CHECK (result <> '\"huge\"')")
    async with executor_inside(app, database_url) as inside:
        ids = [await client.submit("huge"), await client.submit("small")]
        ends = [await inside.ended(job_id) for job_id in ids]
    assert [end.verdict.state for end in ends] == [State.FAILED, State.SUCCESS]
    assert (await client.get(ids[0])).state == "failed"


async def test_an_async_task_is_interrupted_at_its_timeout(client: AnyClient, database_url: str) -> None:
    app = joex.App()
    interrupted: list[bool] = []

    @app.task("task", timeout=0.05, retry_delay="1h")
    async def task(ctx: joex.Context) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            interrupted.append(True)

    job = await _run(client, database_url, app)
    assert (job.state, job.failures) == ("stuck", 1)
    assert "timed out after 0.05 s" in job.error
    assert interrupted == [True]


async def test_a_timeout_error_of_the_task_itself_is_not_taken_for_its_timeout(
    client: AnyClient, database_url: str
) -> None:
    app = joex.App()

    @app.task("task", timeout="1h", retry_delay="1h")
    async def task(ctx: joex.Context) -> None:
        raise TimeoutError("the mail server does not answer")

    assert (await _run(client, database_url, app)).error == "TimeoutError: the mail server does not answer"


async def test_code_in_a_thread_is_asked_to_end_at_its_timeout_and_keeps_its_slot_until_it_does(
    client: AnyClient, database_url: str
) -> None:
    app = joex.App()
    asked, may_end = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    @app.task("slow", timeout=0.05, retry_delay="1h")
    def slow(ctx: joex.Context) -> None:
        ctx.wait_cancelled(PATIENCE)
        loop.call_soon_threadsafe(asked.set)
        may_end.wait(PATIENCE)
        ctx.check_cancelled()

    @app.task("next")
    async def after(ctx: joex.Context) -> None:
        pass

    async with executor_inside(app, database_url, pool_size=1) as inside:
        first = await client.submit("slow")
        await asked.wait()
        second = await client.submit("next")
        inside.executor.wake()
        await eventually(lambda: _is(client, first, "running"), why="it is marked as running, and goes on")
        waits = await _is(client, second, "waiting")
        may_end.set()
        await inside.ended(second)
    assert waits
    events = [event for event in inside.log.events if isinstance(event, RunEnded | RunStarted)]
    assert [(type(event), event.job.id) for event in events] == [
        (RunStarted, first),
        (RunEnded, first),
        (RunStarted, second),
        (RunEnded, second),
    ]
    job = await client.get(first)
    assert (job.state, job.failures) == ("stuck", 1)
    assert "timed out after 0.05 s" in job.error


class BareRetry(joex.Retry):
    """A class of an application, which does not call the base's ``__init__``."""

    def __init__(self) -> None:
        pass


class FieldsError(Exception):
    """An error whose missing attributes raise something else, as in a client of some API."""

    fields: ClassVar[dict[str, str]] = {}

    def __getattr__(self, name: str) -> str:
        return self.fields[name]


class ClosedError(Exception):
    """An error that has no attributes at all."""

    def __getattribute__(self, name: str) -> object:
        raise RuntimeError(name)


class LazyGroup(ExceptionGroup[Exception]):
    """A group whose members can't be read."""

    @property
    def exceptions(self) -> tuple[Exception, ...]:
        raise RuntimeError


class MuteFail(joex.Fail):
    """An error without a message."""

    def __str__(self) -> str:
        raise RuntimeError


def caused() -> Exception:
    """An error whose cause is one of these."""
    error = ValueError("caused")
    error.__cause__ = FieldsError()
    return error


def masked() -> Exception:
    """An error whose class has no name."""

    class Masked(type):
        def __getattribute__(cls, name: str) -> object:
            raise RuntimeError(name)

    class MaskedError(Exception, metaclass=Masked):
        pass

    return MaskedError()


def lazy() -> Exception:
    """A group whose members can't be read."""
    return LazyGroup("lazy", [ValueError()])


@pytest.mark.parametrize("in_thread", [False, True], ids=["async", "thread"])
@pytest.mark.parametrize(
    "raised",
    [
        SystemExit,
        KeyboardInterrupt,
        StopIteration,
        StopAsyncIteration,
        GeneratorExit,
        asyncio.CancelledError,
        BareRetry,
        FieldsError,
        caused,
        lazy,
        MuteFail,
        ClosedError,
        masked,
    ],
)
async def test_whatever_a_task_raises_its_job_has_an_end_and_the_executor_lives(
    client: AnyClient, database_url: str, raised: Callable[[], BaseException], *, in_thread: bool
) -> None:
    app, error = joex.App(), raised()

    async def task(ctx: joex.Context) -> None:
        ctx.log.error("its line", exc_info=error)
        raise error

    def task_in_thread(ctx: joex.Context) -> None:
        ctx.log.error("its line", exc_info=error)
        raise error

    app.task("task", retries=0)(task_in_thread if in_thread else task)

    @app.task("next")
    async def after(ctx: joex.Context) -> None:
        pass

    async with executor_inside(app, database_url, pool_size=1) as inside:
        first, second = await client.submit("task"), await client.submit("next")
        await inside.ended(second)
    assert (await client.get(first)).state == "failed"
    assert (await client.get(second)).state == "success"
    assert (await client.log(first))[0].message.startswith("its line\n")


async def test_sys_exit_in_a_task_does_not_end_the_executor(client: AnyClient, database_url: str) -> None:
    app = joex.App()

    @app.task("task", retries=0)
    async def task(ctx: joex.Context) -> None:
        sys.exit("good bye")

    job = await _run(client, database_url, app)
    assert (job.state, job.error) == ("failed", "SystemExit: good bye")


async def test_no_slot_is_lost_over_two_hundred_jobs_that_end_in_all_ways(client: AnyClient, database_url: str) -> None:
    app = joex.App()
    errors = {
        "raise": ValueError(),
        "fail": joex.Fail("no"),
        "retry": joex.Retry("again", after=0),
        "cancel": joex.Cancel("no"),
        "exit": SystemExit(),
    }
    ways = ("return", *errors, "object", "timeout", "thread", "unknown", "wrong")

    @app.task("task", retries=1, timeout=0.02)
    async def task(ctx: joex.Context, way: str) -> object:
        if way in errors:
            raise errors[way]
        if way == "timeout":
            await asyncio.Event().wait()
        return object() if way == "object" else way

    @app.task("thread", retries=1)
    def thread(ctx: joex.Context) -> None:
        if ctx.attempt == 1:
            raise ValueError

    async with executor_inside(app, database_url, pool_size=3, retry_delay=0.01) as inside:
        ids = await client.submit_many([_job_that_ends_by(ways[n % len(ways)]) for n in range(200)])
        jobs = [await _finished(client, job_id) for job_id in ids]
        await eventually(lambda: not inside.executor.running())
        free = asyncio.Barrier(4)
        await _fills_all_slots(client, app, inside, free)
    assert {job.state for job in jobs} == {"success", "failed", "cancelled"}
    assert not any(job.state == "success" for job in jobs if job.task == "unknown")


def _job_that_ends_by(way: str) -> dict[str, object]:
    if way in ("thread", "unknown"):
        return {"task": way, "retries": 1}
    return {"task": "task", "args": {} if way == "wrong" else {"way": way}, "group": way}


async def _is(client: AnyClient, job_id: UUID, state: str) -> bool:
    return bool((await client.get(job_id)).state == state)


async def _finished(client: AnyClient, job_id: UUID) -> Any:
    async def finished() -> Any:
        job = await client.get(job_id)
        return job if job.finished_at is not None else None

    return await eventually(finished)


async def _fills_all_slots(client: AnyClient, app: joex.App, inside: Inside, together: asyncio.Barrier) -> None:
    """Three jobs run at a time (the fourth at the barrier is the test): all slots of three are free."""

    @app.task("together")
    async def meet(ctx: joex.Context) -> None:
        await together.wait()

    ids = await client.submit_many([{"task": "together"}] * 3)
    await together.wait()
    for job_id in ids:
        await inside.ended(job_id)


async def _make_due(connection: asyncpg.Connection, job_id: UUID) -> object:
    """Make a job due that waits for its retry; returns the time."""
    # In one statement: the executor may take the job as soon as it is due.
    return await connection.fetchval(
        "UPDATE joex_private.job SET due_at = clock_timestamp() WHERE id = $1 AND due_at > now() RETURNING due_at",
        job_id,
    )

"""Log lines and progress of jobs, and their deletion."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

import joex
from joex.core.events import LogLinesDropped, RunStarted
from joex.errors import DatabaseUnavailable
from joex.runtime import finisher, job_log_writer
from joex.runtime.job_log_writer import JobLogWriter
from joex.store import runs
from joex.store.database import borrowed
from tests.support.apps import AnyClient
from tests.support.processes_inside import executor_inside
from tests.support.waiting import PATIENCE, eventually


@pytest.mark.parametrize("in_thread", [False, True], ids=["async", "thread"])
async def test_what_a_job_logs_is_in_its_log_in_order(client: AnyClient, database_url: str, *, in_thread: bool) -> None:
    app = joex.App()

    def write(ctx: joex.Context) -> None:
        ctx.log.debug("starts")
        for n in range(100):
            ctx.log.info("line %d", n)
        ctx.log.warning("100% sure")
        ctx.log.error("a NUL \0 and a surrogate \ud800 are no trouble")

    async def write_async(ctx: joex.Context) -> None:
        write(ctx)

    app.task("task")(write if in_thread else write_async)
    async with executor_inside(app, database_url) as inside:
        job_id = await client.submit("task")
        await inside.ended(job_id)
    lines = [(line.level, line.message, line.attempt) for line in await client.log(job_id)]
    assert lines[0] == ("debug", "starts", 1)
    assert lines[1:101] == [("info", f"line {n}", 1) for n in range(100)]
    assert lines[101] == ("warning", "100% sure", 1)
    assert lines[102][0] == "error"
    assert lines[102][1].startswith("a NUL ")
    assert lines[103:] == [("info", "succeeded", 1)]


@pytest.mark.parametrize("in_thread", [False, True], ids=["async", "thread"])
async def test_a_job_logs_an_exception_with_its_traceback_as_the_standard_library_does(
    client: AnyClient, database_url: str, *, in_thread: bool
) -> None:
    app = joex.App()

    def write(ctx: joex.Context) -> None:
        kept: Exception | None = None
        try:
            int("seven")
        except ValueError as error:
            ctx.log.exception("no %s", "number")
            kept = error
        assert kept is not None
        ctx.log.warning("later", exc_info=kept)
        ctx.log.info("so", exc_info=(type(kept), kept, kept.__traceback__))
        ctx.log.error("nothing is being handled", exc_info=True)  # noqa: LOG014 - as it is said
        ctx.log.debug("plain", exc_info=False)

    async def write_async(ctx: joex.Context) -> None:
        write(ctx)

    app.task("task")(write if in_thread else write_async)
    async with executor_inside(app, database_url) as inside:
        job_id = await client.submit("task")
        await inside.ended(job_id)
    lines = [(line.level, line.message) for line in await client.log(job_id)]
    for (level, text), begins in zip(
        lines, (("error", "no number"), ("warning", "later"), ("info", "so")), strict=False
    ):
        assert (level, text.splitlines()[:2]) == (begins[0], [begins[1], "Traceback (most recent call last):"])
        assert text.splitlines()[-1].startswith("ValueError: invalid literal")
    assert lines[3:5] == [("error", "nothing is being handled"), ("debug", "plain")]


async def test_progress_is_seen_while_the_job_runs_and_is_complete_in_the_end(
    client: AnyClient, database_url: str
) -> None:
    app = joex.App()
    go_on = asyncio.Event()

    @app.task("task")
    async def task(ctx: joex.Context) -> None:
        for percent in range(43):
            ctx.progress(percent, f"page {percent}")
        await go_on.wait()

    async with executor_inside(app, database_url) as inside:
        job_id = await client.submit("task")

        async def is_there() -> bool:
            job = await client.get(job_id)
            return (job.progress, job.progress_message) == (42, "page 42")

        await eventually(is_there)
        go_on.set()
        await inside.ended(job_id)
    assert (await client.get(job_id)).progress == 100


async def test_runs_end_while_another_one_reports_without_a_pause(
    client: AnyClient, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their ends wait for the reports up to now, and not for those that come meanwhile."""
    monkeypatch.setattr(finisher, "_NOTES_WITHIN", 10 * PATIENCE)
    app = joex.App()
    over = asyncio.Event()

    @app.task("busy")
    async def busy(ctx: joex.Context) -> None:
        while not over.is_set():
            ctx.progress(1)
            ctx.log.info("a line")
            await asyncio.sleep(0)

    @app.task("short")
    async def short(ctx: joex.Context) -> None:
        ctx.log.info("it ends")

    async with executor_inside(app, database_url) as inside:
        first = await client.submit("busy")
        await inside.log.wait_for(RunStarted)
        second = await client.submit("short")
        try:
            await inside.ended(second)
        finally:
            over.set()
        await inside.ended(first)


async def test_a_full_log_buffer_drops_and_counts_lines_and_never_makes_the_job_wait(
    client: AnyClient, database_url: str, connection: asyncpg.Connection
) -> None:
    """The executor can't write while the test has locked the table, and yet the job ends."""
    app = joex.App()
    written = threading.Event()

    @app.task("task")
    def task(ctx: joex.Context) -> None:
        for n in range(1000):
            ctx.log.info("line %d", n)
        written.set()

    async with executor_inside(app, database_url, log_buffer_size=50) as inside:
        async with connection.transaction():
            await connection.execute("LOCK TABLE joex_private.job_log IN SHARE MODE")
            job_id = await client.submit("task")
            await inside.ended(job_id)
            assert written.is_set()
        dropped = await inside.log.wait_for(LogLinesDropped)
    *lines, end = [line.message for line in await client.log(job_id)]
    assert end == "succeeded"
    assert dropped.reason == "the buffer was full"
    assert len(lines) + sum(event.lines for event in inside.log.of(LogLinesDropped)) == 1000
    assert lines[:50] == [f"line {n}" for n in range(50)]


async def test_a_run_that_floods_the_log_buffer_loses_its_own_lines_and_no_other_run_does(
    client: AnyClient, database_url: str
) -> None:
    app = joex.App()
    flooded, go_on = asyncio.Event(), asyncio.Event()

    @app.task("flood")
    async def flood(ctx: joex.Context) -> None:
        for n in range(1000):  # nothing is written between two lines
            ctx.log.info("line %d", n)
        flooded.set()
        await go_on.wait()

    @app.task("quiet")
    async def quiet(ctx: joex.Context) -> None:
        await flooded.wait()
        for n in range(20):
            ctx.log.info("line %d", n)
        go_on.set()

    async with executor_inside(app, database_url, log_buffer_size=50) as inside:
        started = [await client.submit(task) for task in ("quiet", "flood")]
        for job_id in started:
            await inside.ended(job_id)
        await inside.log.wait_for(LogLinesDropped)
    quiet_lines, flood_lines = [[line.message for line in await client.log(job_id)][:-1] for job_id in started]
    assert quiet_lines == [f"line {n}" for n in range(20)]
    assert flood_lines == [f"line {n}" for n in range(len(flood_lines))]
    assert len(flood_lines) + sum(event.lines for event in inside.log.of(LogLinesDropped)) == 1000


async def test_a_line_that_takes_long_to_write_is_in_the_log_once(
    client: AnyClient, database_url: str, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The finisher writes it, because the log writer has just written another one, and does not wait for it."""
    monkeypatch.setattr(job_log_writer, "_GATHER", PATIENCE)
    app, go_on = joex.App(), asyncio.Event()

    @app.task("task")
    async def task(ctx: joex.Context) -> None:
        ctx.log.info("first")
        await go_on.wait()
        ctx.log.info("second")

    async with executor_inside(app, database_url) as inside:
        job_id = await client.submit("task")
        await eventually(lambda: client.log(job_id))
        async with connection.transaction():
            await connection.execute("LOCK TABLE joex_private.job_log IN SHARE MODE")
            go_on.set()
            await inside.ended(job_id)
    assert [line.message for line in await client.log(job_id)] == ["first", "second", "succeeded"]


@pytest.mark.parametrize("size", [1, 300_000], ids=["small", "large"])
async def test_a_run_has_not_ended_before_its_lines_are_written_though_the_database_came_back_between_the_two(
    client: AnyClient, database_url: str, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """A client that has waited for a job sees its whole log."""
    asked, is_asking, flushed_within = 0, False, JobLogWriter.flushed_within

    async def noted(writer: JobLogWriter, seconds: float) -> bool:
        nonlocal asked, is_asking
        asked, is_asking = asked + 1, True
        try:
            return await flushed_within(writer, seconds)
        finally:
            is_asking = False

    @asynccontextmanager
    async def from_the_pool(pool: asyncpg.Pool) -> AsyncIterator[Any]:
        # The log has no connection before the finisher asks again; its ends could have had one.
        if asked < 2 or not is_asking:
            raise DatabaseUnavailable("the database is away")
        async with borrowed(pool) as connection:
            yield connection

    monkeypatch.setattr(JobLogWriter, "flushed_within", noted)
    monkeypatch.setattr(job_log_writer, "borrowed", from_the_pool)
    app = joex.App()

    @app.task("task")
    async def task(ctx: joex.Context) -> str:
        ctx.log.info("a line")
        return "x" * size

    async with executor_inside(app, database_url) as inside:
        job_id = await client.submit("task")
        await inside.ended(job_id)
        assert "a line" in [line.message for line in await client.log(job_id)]


async def test_a_job_is_not_slowed_down_by_progress_while_its_row_is_locked(
    client: AnyClient, database_url: str, connection: asyncpg.Connection
) -> None:
    app = joex.App()
    go_on, done = asyncio.Event(), asyncio.Event()

    @app.task("task")
    async def task(ctx: joex.Context) -> None:
        await go_on.wait()
        for n in range(100):
            ctx.progress(n)
            ctx.log.info("line %d", n)
            await asyncio.sleep(0)
        done.set()

    async with executor_inside(app, database_url) as inside:
        job_id = await client.submit("task")
        await inside.log.wait_for(RunStarted)
        async with connection.transaction():
            await connection.execute("SELECT FROM joex_private.job WHERE id = $1 FOR UPDATE", job_id)
            go_on.set()
            await done.wait()
        await inside.ended(job_id)
    assert len(await client.log(job_id)) == 101
    assert (await client.get(job_id)).state == "success"


async def test_the_start_and_the_progress_of_a_run_whose_row_is_locked_are_written_later(
    client: AnyClient, database_url: str, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run reports nothing else, and lasts: without a second try the job would never show as running."""
    app = joex.App()
    go_on, tried, one_at_a_time = asyncio.Event(), set[str](), asyncio.Lock()
    lock = connection.transaction()

    @app.task("task")
    async def task(ctx: joex.Context) -> None:
        ctx.progress(50)
        await go_on.wait()

    def spied(name: str) -> None:
        write = getattr(runs, name)

        async def locked_at_first(used: Any, *written: Any) -> Any:
            async with one_at_a_time:
                if not tried:
                    await lock.start()
                    await connection.execute("SELECT FROM joex_private.job FOR UPDATE")
                answer = await write(used, *written)
                tried.add(name)
                if len(tried) == 2 and connection.is_in_transaction():
                    await lock.rollback()
                return answer

        monkeypatch.setattr(runs, name, locked_at_first)

    spied("start_many")
    spied("note_many")
    async with executor_inside(app, database_url) as inside:
        job_id = await client.submit("task")

        async def is_written() -> bool:
            job = await client.get(job_id)
            return (job.state, job.progress) == ("running", 50)

        await eventually(is_written)
        go_on.set()
        await inside.ended(job_id)
    assert (await client.get(job_id)).attempt == 1


async def test_old_finished_jobs_are_deleted_by_an_executor_of_another_queue_though_its_slots_are_busy(
    client: AnyClient, database_url: str, connection: asyncpg.Connection
) -> None:
    """And whichever executor started last: its queue may have no executor now."""
    app = joex.App()
    go_on = asyncio.Event()

    @app.task("task", retries=0)
    async def task(ctx: joex.Context, *, fail: bool = False) -> None:
        ctx.log.info("a line")
        if fail:
            raise ValueError

    @app.task("hold")
    async def hold(ctx: joex.Context) -> None:
        await go_on.wait()

    names = ("old", "young", "old.failed", "oldest.failed")
    kept: dict[str, Any] = {"retention": "7d", "retention_failed": "30d"}
    async with executor_inside(app, database_url, queues=["other"], pool_size=1, **kept) as other:
        async with executor_inside(app, database_url, **kept) as last:
            ids = {name: await client.submit("task", {"fail": "failed" in name}) for name in names}
            for job_id in ids.values():
                await last.ended(job_id)
        for name, days in (("old", 8), ("young", 6), ("old.failed", 8), ("oldest.failed", 31)):
            await connection.execute(
                "UPDATE joex_private.job SET finished_at = finished_at - make_interval(days => $2) WHERE id = $1",
                ids[name],
                days,
            )
        held = await client.submit("hold", queue="other")
        await other.log.wait_for(RunStarted)

        await connection.execute(
            "UPDATE joex_private.periodic_task SET enabled = true, timer = '*:*:*' WHERE id = 'joex.retention'"
        )

        async def are_deleted() -> bool:
            kept = [name for name in names if await client.get(ids[name]) is not None]
            return kept == ["young", "old.failed"]

        await eventually(are_deleted)
        assert (
            await connection.fetchval("SELECT count(*) FROM joex_private.job") == 3
        )  # and no job was submitted for it
        go_on.set()
        await other.ended(held)
    assert await client.log(ids["old"]) == []
    assert len(await client.log(ids["young"])) == 2

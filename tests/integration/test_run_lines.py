"""The lines that the code of a run logs bear its job, task, group and attempt."""

import asyncio
import io
import json
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

import joex
from joex.config import Settings
from joex.core.events import RunEnded
from joex.core.job import State
from joex.observe.log_lines import bind_run, capture_logging, capture_structlog
from tests.support.processes_inside import executor_inside

log = logging.getLogger("shop")
structured = structlog.get_logger()


@pytest.fixture
def logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers = handlers
    root.setLevel(level)
    structlog.reset_defaults()


@pytest.fixture
def app() -> joex.App:
    app = joex.App()

    @app.task("in.loop", retries=1, retry_delay=0)
    async def in_loop(ctx: joex.Context) -> None:
        log.info("loop %d", ctx.attempt)
        await asyncio.gather(asyncio.to_thread(log.info, "helper %d", ctx.attempt), said_by_structlog(ctx))
        if ctx.attempt == 1:
            raise ValueError("no")

    @app.task("in.thread")
    def in_thread(ctx: joex.Context) -> None:
        log.info("thread %d", ctx.attempt, extra={"task": "of the user"})
        structured.info("structured %d" % ctx.attempt, more=7)  # noqa: UP031

    async def said_by_structlog(ctx: joex.Context) -> None:
        structured.info("structured %d" % ctx.attempt)  # noqa: UP031

    return app


def start_logging(log_format: str) -> io.StringIO:
    stream = io.StringIO()
    settings = Settings(log_format=log_format)
    capture_logging(settings, stream)
    capture_structlog(settings, stream)
    return stream


@pytest.mark.usefixtures("logging_as_before")
async def test_lines_of_async_code_and_of_threads_name_their_run(
    app: joex.App, client: joex.Client, database_url: str
) -> None:
    stream = start_logging("json")
    async with executor_inside(app, database_url, emits=[bind_run], pool_size=8) as inside:
        ids: dict[str, str] = {}
        for group in ("acme", "globex"):
            for task in ("in.loop", "in.thread"):
                ids[str(await client.submit(task, group=group))] = task
        await inside.log.wait_for(RunEnded, lambda event: event.verdict.state is State.SUCCESS, count=4)
        log.info("outside")
    lines: list[dict[str, Any]] = [json.loads(line) for line in stream.getvalue().splitlines()]
    said = [line for line in lines if line["event"].partition(" ")[0] in ("loop", "helper", "thread", "structured")]
    assert len(said) == 2 * (3 + 3 + 2)
    for line in said:
        assert ids[line["job"]] == line["task"]
        assert line["event"].endswith(f" {line['attempt']}")
        assert line["group"] in ("acme", "globex")
    assert {line["event"] for line in said if line["task"] == "in.thread"} == {"thread 1", "structured 1"}
    [outside] = [line for line in lines if line["event"] == "outside"]
    assert outside.keys() == {"event", "level", "timestamp", "logger"}


@pytest.mark.usefixtures("logging_as_before")
async def test_lines_for_people_name_their_run_too(app: joex.App, client: joex.Client, database_url: str) -> None:
    stream = start_logging("console")
    async with executor_inside(app, database_url, emits=[bind_run]) as inside:
        job_id = await client.submit("in.thread", group="acme")
        await inside.ended(job_id)
    for said in ("thread 1", "structured 1"):
        [line] = [line for line in stream.getvalue().splitlines() if said in line]
        assert f"job={job_id}" in line.replace("'", "")
        for field in ("task=in.thread", "group=acme", "attempt=1"):
            assert field in line.replace("'", ""), line


@pytest.mark.usefixtures("logging_as_before")
async def test_lines_of_a_cancel_handler_name_the_run(client: joex.Client, database_url: str) -> None:
    stream, begun = start_logging("json"), threading.Event()
    app = joex.App()

    @app.task("slow")
    async def slow(ctx: joex.Context) -> None:
        begun.set()
        await asyncio.Event().wait()

    @slow.on_cancel
    async def clean(ctx: joex.Context) -> None:
        log.info("cleaned")

    async with executor_inside(app, database_url, emits=[bind_run]) as inside:
        job_id = await client.submit("slow")
        await asyncio.to_thread(begun.wait)
        await client.cancel(job_id)
        await inside.ended(job_id)
    [line] = [json.loads(line) for line in stream.getvalue().splitlines() if "cleaned" in line]
    assert line["job"] == str(job_id)


@pytest.mark.usefixtures("logging_as_before")
async def test_records_bear_the_run_for_handlers_of_the_application(
    app: joex.App, client: joex.Client, database_url: str
) -> None:
    """Such as Sentry's, which reads a record after the other handlers. A field of the user's own stays."""
    start_logging("json")
    seen: list[logging.LogRecord] = []

    class Later(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(record)

    logging.getLogger().addHandler(Later())
    async with executor_inside(app, database_url, emits=[bind_run]) as inside:
        job_id = await client.submit("in.thread", group="acme")
        await inside.ended(job_id)
    [record] = [vars(record) for record in seen if record.name == "shop"]
    assert (record["job"], record["group"], record["attempt"]) == (str(job_id), "acme", 1)
    assert record["task"] == "of the user"


@pytest.mark.usefixtures("logging_as_before")
def test_an_app_that_has_configured_structlog_keeps_its_configuration() -> None:
    own = io.StringIO()
    structlog.configure(logger_factory=structlog.WriteLoggerFactory(own))
    stream = start_logging("json")
    structlog.get_logger().info("mine")
    assert "mine" in own.getvalue()
    assert stream.getvalue() == ""

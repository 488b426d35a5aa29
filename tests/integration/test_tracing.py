"""Traces: the spans of submissions, takes, runs and their ends, and the trace contexts that travel with jobs."""

import asyncio
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import joex
import joex.sync
from joex import tracing
from joex.client.keyed_jobs import KeyedJobs
from joex.config import Settings
from joex.core.events import RunEnded, WorkerConflict
from joex.core.job import State
from joex.http.api import create_api
from joex.observe.spans import Spans
from tests.integration.test_http import Executor, browse, page
from tests.support.cases import case
from tests.support.processes_inside import Inside, executor_inside
from tests.support.traced_process_tasks import SPANS, traced
from tests.support.traced_process_tasks import app as process_app

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
Finished = Callable[[str], list[ReadableSpan]]


@pytest.fixture
def finished(monkeypatch: pytest.MonkeyPatch) -> Iterator[Finished]:
    """Configure a provider of traces; gives the spans of a name that have ended."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    yield lambda name: [span for span in exporter.get_finished_spans() if span.name == name]
    provider.shutdown()


@pytest.fixture
def app() -> joex.App:
    app = joex.App()

    @app.task("mail.send")
    async def send(ctx: joex.Context) -> None:
        with trace.get_tracer("shop").start_as_current_span("smtp"):
            pass

    @app.task("file.read")
    def read(ctx: joex.Context) -> None:
        with trace.get_tracer("shop").start_as_current_span("disk"):
            pass

    @app.task("fail.once", retries=1, retry_delay=0)
    async def fail_once(ctx: joex.Context) -> None:
        if ctx.attempt == 1:
            raise LookupError("no such file")

    return app


async def carried(connection: asyncpg.Connection, job_id: object) -> str | None:
    """The trace context of a job."""
    found: str | None = await connection.fetchval("SELECT trace_context FROM joex.jobs WHERE id = $1", job_id)
    return found


def text_of(span: ReadableSpan) -> str:
    """The trace context of a span."""
    return f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-{span.context.trace_flags:02x}"


def linked(span: ReadableSpan) -> list[int]:
    return [link.context.span_id for link in span.links]


async def test_a_submission_has_a_span_below_the_current_one_and_the_job_carries_it(
    finished: Finished, client: joex.Client, connection: asyncpg.Connection
) -> None:
    with trace.get_tracer("shop").start_as_current_span("order") as order:
        job_id = await client.submit("mail.send", group="acme", queue="mails")
    [span] = finished("submit mail.send")
    assert await carried(connection, job_id) == text_of(span)
    assert span.parent is not None
    assert span.parent.span_id == order.get_span_context().span_id
    assert span.kind is SpanKind.PRODUCER
    assert dict(span.attributes or {}) == {
        "messaging.system": "joex",
        "messaging.operation.name": "submit",
        "messaging.operation.type": "send",
        "messaging.destination.name": "mails",
        "messaging.message.id": str(job_id),
        "joex.queue": "mails",
        "joex.task": "mail.send",
        "joex.group": "acme",
    }


async def test_many_submissions_have_one_span(
    finished: Finished, client: joex.Client, connection: asyncpg.Connection
) -> None:
    ids = await client.submit_many([{"task": "a"}, {"task": "b", "tracker": "t"}])
    await client.submit_many([{"task": "a", "queue": "x"}, {"task": "b"}])
    [span] = finished("submit default")
    assert [await carried(connection, each) for each in ids] == [text_of(span)] * 2
    assert (span.attributes or {})["messaging.batch.message_count"] == 2
    assert "messaging.destination.name" not in (finished("submit")[0].attributes or {}), "the queues differ"


async def test_each_kind_of_client_and_of_submission_carries_its_trace(
    finished: Finished, client: joex.Client, connection: asyncpg.Connection, database_url: str
) -> None:
    with joex.sync.Client(database_url) as other:
        ids: list[Any] = [await asyncio.to_thread(other.submit, "synchronous")]
    async with joex.Client(database_url, patience=5) as patient:
        ids += [await patient.submit("patient"), *await patient.submit_many([{"task": "patient", "queue": "patients"}])]
    ids += [await client.submit("tracked", tracker="t"), await client.keyed.add("keyed", 1)]
    async with connection.transaction():
        ids.append(await client.submit("transactional", connection=connection))
    names = ["synchronous", "patient", "patients", "tracked", "keyed", "transactional"]
    spans = [finished(f"submit {name}")[0] for name in names]
    assert [await carried(connection, each) for each in ids] == [text_of(span) for span in spans]


async def test_a_submission_that_fails_says_so(finished: Finished, client: joex.Client) -> None:
    with pytest.raises(joex.InvalidJob):
        await client.submit("mail.send", {"text": "\0"})
    [span] = finished("submit mail.send")
    assert span.status.status_code is StatusCode.ERROR
    assert (span.attributes or {})["error.type"] == "InvalidJob"


async def test_without_a_provider_jobs_carry_no_trace(client: joex.Client, connection: asyncpg.Connection) -> None:
    assert not tracing.is_on(), "this test process has the API of OpenTelemetry, and no provider"
    ids = [await client.submit("a"), *await client.submit_many([{"task": "a"}]), await client.keyed.add("t", 1)]
    assert [await carried(connection, each) for each in ids] == [None] * 3


@pytest.mark.postgres(16, 18)
async def test_sql_submits_with_a_trace_context(connection: asyncpg.Connection) -> None:
    one = await connection.fetchval("SELECT joex.submit('a', trace_context => $1)", PARENT)
    tracked = await connection.fetchval("SELECT joex.submit('a', tracker => 't', trace_context => $1)", PARENT)
    with_state = f"{PARENT} congo=t61rcWkgMzE,rojo=00f067aa0ba902b7"
    [many] = await connection.fetchval("SELECT ARRAY(SELECT joex.submit_many('{a}', trace_context => $1))", with_state)
    assert [await carried(connection, each) for each in (one, tracked, many)] == [PARENT, PARENT, with_state]


@pytest.mark.postgres(16, 18)
async def test_sql_refuses_what_is_no_trace_context(connection: asyncpg.Connection) -> None:
    said = "trace_context: expected a W3C traceparent"
    for wrong in ("", "x", PARENT[:-1], PARENT + " ", f"00-{'0' * 32}-00f067aa0ba902b7-01"):
        with case(wrong), pytest.raises(asyncpg.CheckViolationError, match=said):
            await connection.fetchval("SELECT joex.submit('a', trace_context => $1)", wrong)
    assert await connection.fetchval("SELECT count(*) FROM joex.jobs") == 0


async def test_the_job_of_a_periodic_task_begins_a_trace_of_its_own(
    finished: Finished, client: joex.Client, connection: asyncpg.Connection
) -> None:
    with trace.get_tracer("shop").start_as_current_span("deployment"):
        await client.periodic.put("nightly", "mail.send", "daily")
        job_id = (await client.periodic.run_now("nightly")).job
    assert await carried(connection, job_id) is None


def traced_executor(app: joex.App, url: str, **settings: Any) -> Any:
    return executor_inside(app, url, emits=[Spans("host")], **settings)


async def spans_of(inside: Inside, finished: Finished, name: str, job_id: object) -> ReadableSpan:
    """The span of this name, once the job has ended."""
    await inside.ended(job_id)
    [span] = finished(name)
    return span


@pytest.mark.parametrize(("task", "below"), [("mail.send", "smtp"), ("file.read", "disk")], ids=["async", "thread"])
async def test_a_run_is_in_the_trace_of_its_submission_and_the_spans_of_its_code_below_it(  # noqa: PLR0917 - fixtures
    task: str, below: str, finished: Finished, app: joex.App, client: joex.Client, database_url: str
) -> None:
    async with traced_executor(app, database_url) as inside:
        job_id = await client.submit(task, group="acme")
        run = await spans_of(inside, finished, f"run {task}", job_id)
    [submit], [finish], [own] = finished(f"submit {task}"), finished(f"finish {task}"), finished(below)
    assert {run.context.trace_id, finish.context.trace_id, own.context.trace_id} == {submit.context.trace_id}
    assert run.parent is not None
    assert own.parent is not None
    assert finish.parent is not None
    assert run.parent.span_id == submit.context.span_id
    assert linked(run) == [submit.context.span_id]
    assert own.parent.span_id == finish.parent.span_id == run.context.span_id
    assert (run.kind, finish.kind) == (SpanKind.CONSUMER, SpanKind.CLIENT)
    common = {
        "messaging.system": "joex",
        "messaging.destination.name": "default",
        "messaging.message.id": str(job_id),
        "messaging.client.id": "host",
        "joex.queue": "default",
        "joex.task": task,
        "joex.group": "acme",
        "joex.attempt": 1,
        "joex.state": "success",
    }
    process = {"messaging.operation.name": "run", "messaging.operation.type": "process"}
    settle = {"messaging.operation.name": "finish", "messaging.operation.type": "settle"}
    assert dict(run.attributes or {}) == common | process
    assert dict(finish.attributes or {}) == common | settle
    assert (run.start_time or 0) <= (own.start_time or 0) <= (own.end_time or 0) <= (finish.end_time or 0)
    assert run.end_time == finish.start_time


async def test_a_take_links_to_the_submissions_of_its_jobs(
    finished: Finished, app: joex.App, client: joex.Client, database_url: str
) -> None:
    ids = [await client.submit("mail.send"), await client.submit("file.read")]
    async with traced_executor(app, database_url) as inside:
        for each in ids:
            await inside.ended(each)
    [take] = finished("take default")
    submissions = [*finished("submit mail.send"), *finished("submit file.read")]
    assert sorted(linked(take)) == sorted(span.context.span_id for span in submissions)
    assert take.parent is None
    assert take.kind is SpanKind.CLIENT
    assert (take.attributes or {})["messaging.batch.message_count"] == 2


async def test_each_attempt_has_a_span_that_is_linked_with_the_submission(
    finished: Finished, app: joex.App, client: joex.Client, database_url: str
) -> None:
    async with traced_executor(app, database_url) as inside:
        job_id = await client.submit("fail.once")
        await inside.log.wait_for(RunEnded, lambda event: event.verdict.state is State.SUCCESS)
    [submit], [first, second] = finished("submit fail.once"), finished("run fail.once")
    assert [linked(span) for span in (first, second)] == [[submit.context.span_id]] * 2
    assert [(span.attributes or {})["joex.attempt"] for span in (first, second)] == [1, 2]
    assert [(span.attributes or {})["joex.state"] for span in (first, second)] == ["stuck", "success"]
    assert [(span.attributes or {})["messaging.message.id"] for span in (first, second)] == [str(job_id)] * 2
    assert first.status.status_code is StatusCode.ERROR
    assert first.status.description == "LookupError: no such file"
    assert (first.attributes or {})["error.type"] == "LookupError"
    [event] = first.events
    assert event.name == "exception"
    assert "fail_once" in str((event.attributes or {})["exception.stacktrace"])
    assert second.status.status_code is StatusCode.UNSET


async def test_a_run_of_a_job_that_carries_no_trace_begins_one(
    finished: Finished, app: joex.App, connection: asyncpg.Connection, database_url: str
) -> None:
    async with traced_executor(app, database_url) as inside:
        job_id = await connection.fetchval("SELECT joex.submit('mail.send')")
        run = await spans_of(inside, finished, "run mail.send", job_id)
    assert (run.parent, list(run.links)) == (None, [])


async def test_a_run_that_has_lost_its_job_ends_its_span(
    finished: Finished, client: joex.Client, connection: asyncpg.Connection, database_url: str
) -> None:
    app, begun, go = joex.App(), asyncio.Event(), asyncio.Event()

    @app.task("slow")
    async def slow(ctx: joex.Context) -> None:
        begun.set()
        await go.wait()

    async with traced_executor(app, database_url) as inside:
        await client.submit("slow")
        await begun.wait()
        await connection.execute("UPDATE joex_private.job SET lock_id = gen_random_uuid()")
        go.set()
        await inside.log.wait_for(WorkerConflict)
        [run] = finished("run slow")
        await connection.execute("DELETE FROM joex_private.job")
    assert run.status.description == "the run had lost its job"


@pytest.fixture
async def http(client: joex.Client) -> Any:
    async with browse(create_api(Settings(), client, Executor(), page)) as http:
        yield http


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/v1/jobs", {"task": "a"}),
        ("/api/v1/jobs/many", [{"task": "a"}]),
        ("/api/v1/keyed/add", {"type": "a", "id": 1}),
        ("/jobber/queue", {"type": "a"}),
    ],
)
async def test_http_carries_the_trace_of_the_request(
    path: str, body: Any, http: httpx.AsyncClient, connection: asyncpg.Connection
) -> None:
    headers = [("traceparent", PARENT), ("tracestate", "a=1"), ("tracestate", "b=2")]
    answer = await http.post(path, json=body, headers=headers)
    assert answer.status_code == 201, answer.text
    assert await connection.fetchval("SELECT trace_context FROM joex.jobs") == f"{PARENT} a=1,b=2"


async def test_http_ignores_an_invalid_trace(http: httpx.AsyncClient, connection: asyncpg.Connection) -> None:
    answer = await http.post("/api/v1/jobs", json={"task": "a"}, headers={"traceparent": "x" * 1000})
    assert answer.status_code == 201, answer.text
    assert await connection.fetchval("SELECT trace_context FROM joex.jobs") is None


async def test_a_submission_over_http_has_a_span_in_the_trace_of_the_request(
    finished: Finished, http: httpx.AsyncClient, client: joex.Client, connection: asyncpg.Connection
) -> None:
    """Below the span of the server, if that makes one, as newer releases of FastAPI do."""
    await http.post("/api/v1/jobs", json={"task": "a"}, headers={"traceparent": PARENT})
    [span] = finished("submit a")
    assert f"{span.context.trace_id:032x}" == PARENT[3:35]
    assert await connection.fetchval("SELECT trace_context FROM joex.jobs") == text_of(span)
    with tracing.receiving(PARENT):
        await client.submit("b")
    [span] = finished("submit b")
    assert span.parent is not None
    assert f"{span.parent.span_id:016x}" == PARENT[36:52]


async def test_workers_get_the_trace_of_the_submission(
    http: httpx.AsyncClient, connection: asyncpg.Connection, keyed: KeyedJobs
) -> None:
    for context in (PARENT, f"{PARENT} a=1", None):
        await connection.execute("SELECT joex.submit('a', queue => 'a', trace_context => $1)", context)
    taken = await keyed.accept("a")
    assert taken is not None
    assert taken.trace_context == PARENT
    first, second = [(await http.post("/api/v1/accept", json={"type": "a"})).json() for _ in range(2)]
    assert (first["traceparent"], first["tracestate"]) == (PARENT, "a=1")
    assert "traceparent" not in second


async def test_the_exception_of_a_run_goes_to_the_logger_of_runs(
    app: joex.App, client: joex.Client, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "joex.run"):
        async with executor_inside(app, database_url) as inside:
            await inside.ended(await client.submit("fail.once"))
    [record] = [record for record in caplog.records if record.name == "joex.run"]
    assert record.getMessage() == "task fail.once failed in attempt 1"
    assert record.exc_info is not None
    assert record.exc_info[0] is LookupError


async def test_the_spans_of_a_process_are_below_its_run_and_exported_when_it_ends(
    finished: Finished, client: joex.Client, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch processor exports from a thread, which is none that the run has left: the process is used again."""
    monkeypatch.setenv(SPANS, str(tmp_path / "spans"))
    server = [sys.executable, "-m", "joex.cli.process_server", "tests.support.traced_process_tasks:app"]
    async with traced_executor(process_app, database_url, process_server=server) as inside:
        ids = []
        for _ in range(2):
            ids.append(await client.submit("trace"))
            await inside.ended(ids[-1])
    first, second = [await traced.result(client, job_id) for job_id in ids]
    assert first == second
    said = (tmp_path / "spans").read_text().splitlines()
    assert sorted(said) == sorted(f"{run.context.trace_id} {run.context.span_id}" for run in finished("run trace"))


async def test_neither_a_broken_span_processor_nor_a_broken_handler_keeps_a_job_from_its_end(
    app: joex.App, client: joex.Client, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("broken")

    broken, handler, provider = SpanProcessor(), logging.Handler(), TracerProvider()
    monkeypatch.setattr(broken, "on_start", fail)
    monkeypatch.setattr(handler, "emit", fail)
    provider.add_span_processor(broken)
    job_id = await client.submit("fail.once")
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    logging.getLogger("joex.run").addHandler(handler)
    try:
        async with traced_executor(app, database_url) as inside:
            await inside.log.wait_for(RunEnded, lambda event: event.verdict.state is State.SUCCESS)
    finally:
        logging.getLogger("joex.run").removeHandler(handler)
        provider.shutdown()
    assert (await client.get(job_id)).attempt == 2  # type: ignore[union-attr]

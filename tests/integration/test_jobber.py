"""Jobber's interface, sentence by sentence, against a real database and real executors."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import httpx
import pytest

import joex
from joex import Client
from joex.config import Settings
from joex.http.api import create_api
from tests.support.asgi import transport
from tests.support.keyed import let_time_out
from tests.support.processes_inside import executor_inside
from tests.support.waiting import PATIENCE, eventually

ANYTHING = [[1, {"a": None}], "a text", 7, 1.5, True, None]
"""Payloads that are no objects."""


@pytest.fixture
async def http(client: Client) -> AsyncIterator[httpx.AsyncClient]:
    nothing: Any = None  # these calls need nothing of an executor
    api = create_api(Settings(), client, nothing, lambda: (b"", "text/plain"))
    async with httpx.AsyncClient(transport=transport(api), base_url="http://localhost") as http:
        yield http


async def queued(http: httpx.AsyncClient, job_type: str, payload: Any = None) -> UUID:
    """The id of a new job."""
    body = {"type": job_type, "payload": {} if payload is None else payload}
    answer = await http.post("/jobber/queue", json=body)
    assert answer.status_code == 201, answer.text
    return UUID(answer.json()["job-id"])


async def states(client: Client) -> list[str]:
    """The states of all jobs that there are."""
    async with client.acquire() as connection:
        return [row[0] for row in await connection.fetch("SELECT state::text FROM joex_private.job ORDER BY state")]


async def test_a_type_and_a_free_payload_give_the_id_of_a_job(http, client):
    payload = {"to": ["ann", "bob"], "size": 1.5, "nested": {"a": None}}
    answer = await http.post("/jobber/queue", json={"type": "mail", "payload": payload})
    assert answer.status_code == 201
    assert list(answer.json()) == ["job-id"]
    job = await client.get(UUID(answer.json()["job-id"]))
    assert (job.task, job.queue, job.args, job.state) == ("mail", "mail", payload, "waiting")


async def test_a_job_without_a_payload_has_no_arguments(http, client):
    answer = await http.post("/jobber/queue", json={"type": "mail"})
    assert answer.status_code == 201
    job = await client.get(UUID(answer.json()["job-id"]))
    assert (job.task, job.queue, job.args, job.state) == ("mail", "mail", {}, "waiting")


async def test_the_payload_is_the_tasks_arguments_or_where_it_is_no_object_its_argument_payload(http, database_url):
    app, given = joex.App(), []

    @app.task("mail")
    async def mail(ctx: joex.Context, to: str) -> None:
        given.append(to)

    @app.task("any")
    async def anything(ctx: joex.Context, payload: Any) -> None:
        given.append(payload)

    async with executor_inside(app, database_url, queues="mail,any", pool_size=1) as inside:
        await inside.ended(await queued(http, "mail", {"to": "ann"}))
        for payload in ANYTHING:
            answer = await http.post("/jobber/queue", json={"type": "any", "payload": payload})
            await inside.ended(UUID(answer.json()["job-id"]))
    assert given == ["ann", *ANYTHING]


async def test_each_type_has_a_queue_of_its_own_with_executors_of_its_own(http, client, database_url):
    ran: dict[str, list[str]] = {"mail": [], "resize": []}

    def app_of(name: str) -> joex.App:
        app = joex.App()

        async def run(ctx: joex.Context) -> None:
            ran[name].append(ctx.queue)

        for task in ran:
            app.task(task)(run)
        return app

    first = await queued(http, "resize")
    async with executor_inside(app_of("mail"), database_url, queues="mail") as mails:
        for _ in range(2):
            await mails.ended(await queued(http, "mail"))
        assert (await client.get(first)).state == "waiting", "no executor serves its type"
        async with executor_inside(app_of("resize"), database_url, queues="resize") as resizes:
            await resizes.ended(first)
    assert ran == {"mail": ["mail", "mail"], "resize": ["resize"]}


async def test_a_job_that_is_not_done_within_the_visibility_timeout_of_its_type_goes_to_another_worker(http, client):
    timeouts = {"resize": "50ms", "mail": "1h"}
    for job_type, timeout in timeouts.items():
        answer = await http.post("/api/v1/timeouts", json={"type": job_type, "visibility": timeout})
        assert answer.status_code == 200
        await queued(http, job_type)
    lost, kept = [await client.keyed.accept(job_type) for job_type in timeouts]
    again = await client.keyed.accept("resize", wait="30s")
    assert (again.id, again.attempt) == (lost.id, 2)
    assert await client.keyed.finish("resize", lost.id, {}, lost.lock_id) == "worker_conflict"
    assert await client.keyed.finish("resize", again.id, {}, again.lock_id) == "ok"
    assert await client.keyed.finish("mail", kept.id, {}, kept.lock_id) == "ok"


async def test_no_report_prolongs_the_visibility_timeout(http, client):
    await client.keyed.set_timeout("resize", visibility="1h")
    job = await queued(http, "resize")
    run = await client.keyed.accept("resize")

    async def overdue_at() -> Any:
        async with client.acquire() as connection:
            return await connection.fetchval("SELECT overdue_at FROM joex_private.job WHERE id = $1", job)

    before = await overdue_at()
    assert await client.keyed.update("resize", run.id, {}, run.lock_id, progress=50) == "ok"
    assert await overdue_at() == before


async def test_an_executors_run_that_takes_too_long_is_given_to_another_executor(
    http, client, connection, database_url
):
    """The timeout ends after the run is marked as running: a job that is put back before that has no attempt."""
    app, runs = joex.App(), []

    @app.task("resize")
    async def resize(ctx: joex.Context) -> None:
        runs.append((ctx.attempt, ctx.lock_id))
        if ctx.attempt == 1:
            await asyncio.Event().wait()

    await client.keyed.set_timeout("resize", visibility="1h")
    async with executor_inside(app, database_url, queues="resize"):
        job = await queued(http, "resize")
        await client.wait(job, states=["running"], timeout=PATIENCE)
        await let_time_out(connection, job)
        await client.wait(job, timeout=PATIENCE)
    assert [attempt for attempt, _ in runs] == [1, 2]
    assert len({lock_id for _, lock_id in runs}) == 2
    assert (await client.get(job)).state == "success"


async def test_the_recoverer_looks_at_everything_overdue_not_only_at_the_first(http, client, database_url):
    """Including types that it does not serve; here more jobs than it puts back at a time."""
    types = [f"type {nr}" for nr in range(6)]
    for job_type in types:
        await client.keyed.set_timeout(job_type, visibility="1ms")
        await client.submit_many([{"task": job_type, "queue": job_type}] * 100)
    async with client.acquire() as connection:
        for job_type in types:
            await connection.execute("SELECT joex_client.accept($1, 100)", job_type)
    assert await states(client) == ["running"] * 600

    async with executor_inside(joex.App(), database_url, queues="other"):
        await eventually(lambda: _all_wait(client), why="all jobs wait again")


async def _all_wait(client: Client) -> bool:
    return await states(client) == ["waiting"] * 600


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        ({"payload": {}}, "type: is required"),
        ({"type": " \t", "payload": {}}, "type: must not be blank"),
        ({"type": "", "payload": {}}, "type: must not be empty"),
        ({"type": "x" * 255, "payload": {}}, "type: at most 254 bytes; got 255"),
        ({"type": "a\0b", "payload": {}}, "type: must not contain a NUL character (PostgreSQL can't store it)"),
        ({"type": 7, "payload": {}}, "type: Input should be a valid string"),
        ({"type": None, "payload": {}}, "type: Input should be a valid string"),
        ({"type": "resize", "payload": {}, "priority": 1}, "priority: there is no such field"),
        ({}, "type: is required"),
        ([], "body: Input should be a valid dictionary or object to extract fields from"),
    ],
)
async def test_a_wrong_body_is_refused_says_what_is_wrong_and_stores_nothing(http, client, body, detail):
    answer = await http.post("/jobber/queue", json=body)
    assert (answer.status_code, answer.json()) == (400, {"detail": detail})
    assert await states(client) == []


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (b'{"type": "resize", "payload": {"a": 1}', "body: not JSON: "),
        (b"", "body: is required"),
        (b'{"type": "resize", "payload": {"a": "\\u0000"}}', "args: must not contain a NUL character"),
        (b'{"type": "resize", "payload": "\\ud800"}', "args: can't be stored as JSON: "),
    ],
)
async def test_a_body_that_is_no_json_or_can_not_be_stored_is_refused_and_stores_nothing(http, client, body, detail):
    answer = await http.post("/jobber/queue", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["detail"].startswith(detail)
    assert await states(client) == []


async def test_without_a_database_the_answer_is_503_and_nothing_is_half_stored(http, client, postgres):
    await queued(http, "resize")
    postgres.stop()
    answer = await http.post("/jobber/queue", json={"type": "resize", "payload": {}})
    assert answer.status_code == 503
    assert answer.json()["detail"].startswith("the database is not available: ")
    assert int(answer.headers["retry-after"]) > 0
    postgres.start()
    assert await states(client) == ["waiting"]
    await queued(http, "resize")
    assert await states(client) == ["waiting", "waiting"]


async def test_a_submission_during_which_the_database_crashes_is_not_half_stored(http, client, connection, postgres):
    await connection.execute("BEGIN")
    await connection.execute("LOCK TABLE joex_private.job IN SHARE MODE")
    submitting = asyncio.create_task(http.post("/jobber/queue", json={"type": "resize", "payload": {}}))
    waits = "SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND relation = 'joex_private.job'::regclass"
    await eventually(lambda: connection.fetchval(waits))
    postgres.stop("immediate")
    assert (await submitting).status_code == 503
    postgres.start()
    assert await states(client) == []

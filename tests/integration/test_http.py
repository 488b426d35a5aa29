"""The HTTP interface, against a real database and a fake executor."""

import asyncio
import base64
import json
import logging
import re
import signal
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote
from uuid import UUID, uuid4

import h11
import httpx
import pytest

from joex import Client, ConfigError
from joex.config import Settings
from joex.core.job import RunningJob
from joex.core.priority_turns import CountingScheme
from joex.http import bodies, listening, queues, route, server, slow_callers
from joex.http.api import LARGEST_BODY, create_api
from joex.http.caller import Needs
from joex.http.listening import listen
from joex.http.server import serve
from joex.http.tokens import Tokens
from joex.store import executors, pools, runs, tokens
from tests.support.asgi import transport
from tests.support.slow_reader import slowly_connected, unread_answers
from tests.support.waiting import PATIENCE, eventually

HERE = "http://127.0.0.1:7878"
JSON = {"Content-Type": "application/json"}
NOBODY = uuid4()
TOKEN = "0123456789abcdef"
A_POOL = {"home": "prod", "pool": "docs"}


@dataclass
class Executor:
    """A fake executor: it gives prepared answers, and records the calls."""

    app_id: str = "host"
    phase: str = "running"
    described: str = "running"
    ready: bool = True
    alive: bool = True
    runs: list[RunningJob] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def running(self) -> list[RunningJob]:
        return self.runs

    def drain(self) -> None:
        self.asked.append("drain")

    def wake(self) -> None:
        self.asked.append("wake")


def page() -> tuple[bytes, str]:
    """Numbers for Prometheus."""
    return b"joex_slots 2.0\n", "text/plain; version=0.0.4; charset=utf-8"


@pytest.fixture
def executor():
    return Executor()


def browse(api: Any, *, caller: str = "127.0.0.1", **options: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=transport(api, caller), **{"base_url": HERE, **options})


@pytest.fixture
async def http(client: Client, executor: Executor) -> AsyncIterator[httpx.AsyncClient]:
    async with browse(create_api(Settings(), client, executor, page)) as http:
        yield http


@pytest.fixture
async def nowhere() -> AsyncIterator[Client]:
    """A client without a database, for calls that need none or must handle its loss."""
    async with Client("postgresql://nobody@127.0.0.1:1/nothing") as client:
        yield client


@pytest.fixture
async def alone(nowhere: Client, executor: Executor) -> AsyncIterator[httpx.AsyncClient]:
    async with browse(create_api(Settings(), nowhere, executor, page)) as http:
        yield http


def cursor_of(part: str, *values: str) -> str:
    """A query with a cursor, from the JSON of its values."""
    return "cursor=" + base64.urlsafe_b64encode(f'["{part}", {", ".join(values)}]'.encode()).decode().rstrip("=")


async def take(client: Client, free: int = 100) -> list[Any]:
    """Take jobs of the queue default, as an executor does."""
    me = executors.NewExecutor(
        app_id="host", pod_uid=None, host="host", boot_id="", pid=1, process_start="", version="0", queues=["default"],
        tasks=[], pool_size=free, most_losses=5, http_address=None, lease=timedelta(minutes=5), locks=False,
    )  # fmt: skip
    async with client.acquire() as connection:
        registered = await executors.register(connection, me)
        assert registered.id is not None
        return await runs.take(connection, registered.id, ["default"], free, CountingScheme(4, 1))


async def end(client: Client, job: Any, state: str) -> None:
    """End a run, as an executor does."""
    async with client.acquire() as connection:
        ended = runs.EndedRun(job.id, job.lock_id, state, age=0.1, delay=60 if state == "stuck" else None)
        assert await runs.finish_many(connection, [ended]) == []


WAYS = ("low", "high", "low", "high")


async def order_of_submission(client: Client, job_ids: Sequence[UUID]) -> None:
    """Rewrite the order of submission of these jobs."""
    async with client.acquire() as connection:
        await connection.execute(
            """
            UPDATE joex_private.job j SET submitted_at = now() - make_interval(hours => 1, secs => -g.nr)
            FROM unnest($1::uuid[]) WITH ORDINALITY AS g(id, nr) WHERE j.id = g.id
            """,
            job_ids,
        )


# Submitting


async def test_a_job_is_submitted_with_all_its_fields(http, client):
    fields = {
        "task": "mail.send",
        "args": {"to": ["a@example.org", "b@example.org"], "size": 1.5},
        "group": "acme",
        "queue": "mails",
        "priority": "high",
        "subject": "a mail",
        "submitter": "shop",
        "tracker": "mail 1",
        "retries": 2,
    }
    answer = await http.post("/api/v1/jobs", json={**fields, "not_before": "2099-12-24T18:00:00Z"})
    assert answer.status_code == 201
    assert answer.json()["skipped"] is False
    job = await client.get(UUID(answer.json()["id"]))
    assert {name: getattr(job, name) for name in fields} == fields
    assert job.due_at == datetime(2099, 12, 24, 18, tzinfo=UTC)


async def test_a_job_needs_no_more_than_a_task(http, client):
    answer = await http.post("/api/v1/jobs", json={"task": "mail.send"})
    job = await client.get(UUID(answer.json()["id"]))
    assert (job.args, job.group, job.queue, job.priority, job.state) == ({}, "default", "default", "low", "waiting")


async def test_a_whole_number_may_be_written_with_a_point(http, client):
    answer = await http.post("/api/v1/jobs", content='{"task": "t", "retries": 2.0}', headers=JSON)
    assert (await client.get(UUID(answer.json()["id"]))).retries == 2
    answer = await http.post("/api/v1/jobs", content='{"task": "t", "retries": 2.5}', headers=JSON)
    assert (answer.status_code, answer.json()) == (400, {"detail": "retries: Input should be a valid integer"})


async def test_a_job_can_be_put_off_by_a_delay(http, client):
    answer = await http.post("/api/v1/jobs", json={"task": "mail.send", "not_before": "10m"})
    job = await client.get(UUID(answer.json()["id"]))
    assert timedelta(minutes=9) < job.due_at - job.submitted_at <= timedelta(minutes=10)


async def test_a_submission_with_the_tracker_of_an_unfinished_job_is_skipped(http):
    first = await http.post("/api/v1/jobs", json={"task": "mail.send", "tracker": "once"})
    second = await http.post("/api/v1/jobs", json={"task": "mail.send", "tracker": "once"})
    assert (first.status_code, second.status_code) == (201, 200)
    assert second.json() == {"id": None, "skipped": True}


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        ({}, "task: is required"),
        ({"task": ""}, "task: must not be empty"),
        ({"task": "a\0b"}, "task: must not contain a NUL character (PostgreSQL can't store it)"),
        ({"task": "é" * 128}, "task: at most 254 bytes; got 256"),
        ({"task": 1}, "task: Input should be a valid string"),
        ({"task": "t", "priority": "urgent"}, "priority: expected 'high' or 'low'; got 'urgent'"),
        ({"task": "t", "retries": -1}, "retries: Input should be greater than or equal to 0"),
        ({"task": "t", "retries": "5"}, "retries: Input should be a valid integer"),
        ({"task": "t", "priority": 1}, "priority: Input should be a valid string"),
        ({"task": "t", "args": [1]}, "args: Input should be a valid dictionary"),
        ({"task": "t", "grp": "acme"}, "grp: there is no such field"),
        ({"task": "t", "a\nb": 1}, "a b: there is no such field"),
        ({"task": "t", "a" * 100_000: 1}, f"{'a' * 100}...: there is no such field"),
        ([], "body: Input should be a valid dictionary or object to extract fields from"),
    ],
)
async def test_a_wrong_submission_is_refused_and_says_what_is_wrong(alone, body, detail):
    answer = await alone.post("/api/v1/jobs", json=body)
    assert (answer.status_code, answer.json()) == (400, {"detail": detail})


@pytest.mark.parametrize(("name", "shown"), [("z\nz", "z z"), ("z" * 10_000, f"{'z' * 100}...")])
async def test_an_unknown_parameter_is_refused_in_one_line_whatever_its_name_is(alone, name, shown):
    answer = await alone.get("/api/v1/stats", params={name: "1"})
    said = f"{shown}: there is no such parameter: this call has none"
    assert (answer.status_code, answer.json()) == (400, {"detail": said})


@pytest.mark.parametrize(
    "text", ["2026-12-24T18:00:00", "2026-12-24", "20261224", "9999-12-31T23:59:59-14:00", "soon", "", "4000d"]
)
async def test_what_is_neither_a_time_with_a_zone_nor_a_delay_is_refused(alone, text):
    answer = await alone.post("/api/v1/jobs", json={"task": "t", "not_before": text})
    assert (answer.status_code, answer.json()) == (
        400,
        {
            "detail": "not_before: expected a time with a zone ('2026-12-24T18:00:00Z') or a delay ('10m'); "
            f"got {text!r}"
        },
    )


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"",
        b"\xff",
        b"[" * 100_000,
        b'{"task": "\\ud800"}',
        b'{"\\ud800": 1, "task": "t"}',
        b'{"task": "t", "args": {"\\ud800": 1}}',
    ],
)
async def test_a_body_that_is_no_text_or_no_json_is_refused(http, body):
    answer = await http.post("/api/v1/jobs", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["detail"]


async def test_arguments_that_the_database_can_not_store_are_refused(http):
    answer = await http.post("/api/v1/jobs", json={"task": "t", "args": {"x": "\0"}})
    assert (answer.status_code, answer.json()["detail"][:40]) == (400, "args: must not contain a NUL character (")


async def test_a_job_that_can_not_be_read_hides_no_other_one(http, connection):
    await connection.execute("""SELECT joex.submit('bad', '{"x": 1e5000}'), joex.submit('good', '{"x": 1}')""")
    answer = await http.get("/api/v1/jobs")
    assert answer.status_code == 200
    bad, good = [job["args"] for job in answer.json()["jobs"]]
    assert (good, list(bad)) == ({"x": 1}, ["unreadable"])


async def test_many_jobs_are_submitted_at_once(http, client):
    body = [{"task": "one"}, {"task": "two", "tracker": "same"}, {"task": "three", "tracker": "same"}]
    answer = await http.post("/api/v1/jobs/many", json=body)
    assert answer.status_code == 201
    first, second, third = answer.json()["ids"]
    assert (await client.get(UUID(first))).task == "one"
    assert (await client.get(UUID(second))).task == "two"
    assert third is None


async def test_of_many_jobs_none_is_submitted_when_one_is_wrong(http):
    answer = await http.post("/api/v1/jobs/many", json=[{"task": "one"}, {"task": "two", "group": ""}])
    assert (answer.status_code, answer.json()) == (400, {"detail": "jobs[1].group: must not be empty"})
    answer = await http.post("/api/v1/jobs/many", json=[{"task": "one"}, {"group": "x", "args": []}])
    complaint = "jobs[1].task: is required; jobs[1].args: Input should be a valid dictionary"
    assert (answer.status_code, answer.json()) == (400, {"detail": complaint})
    assert (await http.get("/api/v1/jobs")).json()["jobs"] == []


async def test_no_jobs_at_all_are_submitted_too(http):
    answer = await http.post("/api/v1/jobs/many", json=[])
    assert (answer.status_code, answer.json()) == (201, {"ids": []})


# Reading


async def test_a_job_is_read_with_its_log(http, client):
    await client.submit("mail.send", {"n": 1})
    (job,) = await take(client)
    async with client.acquire() as connection:
        await runs.start_many(connection, [(job.id, job.lock_id, 0.0)])
        log = [runs.LogLine(job.id, job.lock_id, 1, 0.0, "info", text) for text in ("one", "two")]
        await runs.note_many(connection, log, [runs.Progress(job.id, job.lock_id, 50, "half")])
    answer = (await http.get(f"/api/v1/job/{job.id}")).json()
    assert answer["job"]["args"] == {"n": 1}
    assert (answer["job"]["progress"], answer["job"]["progress_message"]) == (50, "half")
    assert [(one["attempt"], one["outcome"], one["ended_at"]) for one in answer["attempts"]] == [(1, "running", None)]
    assert [line["message"] for line in answer["log"]] == ["one", "two"]
    rest = await http.get(f"/api/v1/job/{job.id}", params={"after": answer["log"][0]["seq"]})
    assert [line["message"] for line in rest.json()["log"]] == ["two"]


async def test_a_job_that_is_not_there_is_not_found(http):
    answer = await http.get(f"/api/v1/job/{NOBODY}")
    assert (answer.status_code, answer.json()) == (404, {"detail": f"there is no job {NOBODY}"})


async def test_it_is_told_why_a_job_is_not_running(http, client):
    job_id = await client.submit("t", queue="mail")
    said = "no executor serves the queue 'mail'"
    answer = (await http.get(f"/api/v1/job/{job_id}/why")).json()
    assert answer == [{"reason": "no_executor", "detail": {"queue": "mail", "draining": 0}, "message": said}]
    answer = await http.get(f"/api/v1/job/{NOBODY}/why")
    assert (answer.status_code, answer.json()) == (404, {"detail": f"there is no job {NOBODY}"})


async def test_what_is_no_job_id_is_refused(alone):
    answer = await alone.get("/api/v1/job/1")
    assert answer.status_code == 400
    assert answer.json()["detail"].startswith("job_id: Input should be a valid UUID")


async def test_jobs_are_listed_page_by_page_the_unfinished_first(http, client):
    ids = [await client.submit("t", {"n": n}) for n in range(7)]
    for job in await take(client, 3):
        await end(client, job, "success")
    listed: list[str] = []
    cursor: dict[str, Any] = {}
    for size in (3, 3, 1):
        answer = (await http.get("/api/v1/jobs", params={"limit": 3, **cursor})).json()
        assert len(answer["jobs"]) == size
        listed += [job["id"] for job in answer["jobs"]]
        cursor = {"cursor": answer["next"]}
    assert cursor == {"cursor": None}
    assert listed[:4] == [str(job_id) for job_id in ids[3:]]
    assert sorted(listed) == sorted(map(str, ids))


async def test_the_last_page_may_be_full(http, client):
    for _ in range(4):
        await client.submit("t")
    first = (await http.get("/api/v1/jobs", params={"limit": 2})).json()
    last = (await http.get("/api/v1/jobs", params={"limit": 2, "cursor": first["next"]})).json()
    assert len(last["jobs"]) == 2
    assert last["next"] is None


async def test_jobs_are_filtered(http, client):
    await client.submit("one", group="acme")
    await client.submit("two", group="other", queue="slow")
    cancelled = await client.submit("one", group="other")
    await client.cancel(cancelled)

    async def tasks(**wanted: Any) -> list[tuple[str, str]]:
        answer = await http.get("/api/v1/jobs", params=wanted)
        return [(job["task"], job["group"]) for job in answer.json()["jobs"]]

    assert await tasks(task="one") == [("one", "acme"), ("one", "other")]
    assert await tasks(group="other") == [("two", "other"), ("one", "other")]
    assert await tasks(queue="slow") == [("two", "other")]
    assert await tasks(state="cancelled") == [("one", "other")]
    assert await tasks(state=["waiting", "cancelled"], task="one") == [("one", "acme"), ("one", "other")]
    assert await tasks(state="running") == []


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("cursor=nonsense", "cursor"),
        ("cursor=u.99999999999999999999", "cursor"),
        (cursor_of("held", "Infinity"), "cursor"),
        (cursor_of("held", "1e400"), "cursor"),
        (cursor_of("held", "9223372036854775808"), "cursor"),
        (cursor_of("finished", '"9999-12-31T23:59:59-14:00"', "1"), "cursor"),
        (cursor_of("later", '"a\\u0000"', '"2026-01-01T00:00:00Z"', "1"), "cursor"),
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("state=done", "state[0]"),
        ("group=a%00b", "group"),
        ("queue=", "queue"),
    ],
)
async def test_a_wrong_parameter_is_refused_by_its_name(alone, query, field):
    answer = await alone.get(f"/api/v1/jobs?{query}")
    assert answer.status_code == 400
    assert answer.json()["detail"].startswith(f"{field}: ")


async def test_the_state_of_the_queue_has_three_parts(http, client):
    for _ in range(4):
        await client.submit("t")
    done, held = await take(client, 2)
    await end(client, done, "success")
    state = (await http.get("/api/v1/queue/state", params={"limit": 1})).json()
    assert [job["id"] for job in state["progress"]] == [str(held.id)]
    assert [job["id"] for job in state["completed"]] == [str(done.id)]
    assert [job["state"] for job in state["queued"]] == ["waiting"]
    assert state["progress"][0]["scheduled_at"] < state["completed"][0]["finished_at"] < state["now"]
    elsewhere = (await http.get("/api/v1/queue/state", params={"queue": "other"})).json()
    assert (elsewhere["progress"], elsewhere["queued"], elsewhere["completed"]) == ([], [], [])


async def test_the_state_of_the_queue_has_the_latest_lines_of_each_log(http, client):
    for _ in range(3):
        await client.submit("t")
    done, held, silent = await take(client, 3)
    texts = [f"line {nr}" for nr in range(60)]
    lines = [runs.LogLine(job.id, job.lock_id, 1, 0.0, "info", text) for text in texts for job in (done, held)]
    async with client.acquire() as connection:
        await runs.note_many(connection, lines[:-3], [])
    await end(client, done, "failed")
    state = (await http.get("/api/v1/queue/state")).json()
    found = {job["id"]: [line["message"] for line in job["log"]] for job in state["progress"] + state["completed"]}
    ends = "failed; no retry"
    assert found == {str(done.id): [*texts[10:59], ends], str(held.id): texts[8:58], str(silent.id): []}
    whole = (await http.get(f"/api/v1/job/{held.id}")).json()
    (shown,) = (job for job in state["progress"] if job["id"] == str(held.id))
    assert shown == {**whole["job"], "log": whole["log"][-50:]}


async def test_the_state_of_the_queue_has_no_more_of_logs_than_a_limit_in_bytes(http, client, monkeypatch):
    monkeypatch.setattr(queues, "MOST_BYTES", 250_000)
    for _ in range(3):
        await client.submit("t")
    jobs = await take(client, 3)
    line = "x" * 9_000_000  # of which the database keeps the first 100,000 characters
    async with client.acquire() as connection:
        for job in jobs:
            for _ in range(2):
                await runs.note_many(connection, [runs.LogLine(job.id, job.lock_id, 1, 0.0, "info", line)], [])
    answer = await http.get("/api/v1/queue/state")
    sizes = [len(line["message"]) for job in answer.json()["progress"] for line in job["log"]]
    assert len(sizes) == 2
    assert max(sizes) < 101_000
    assert len(answer.content) < 250_000


async def test_the_state_of_the_queue_has_the_first_started_the_first_submitted_and_the_latest_ended_first(
    http, client
):
    submitted = [await client.submit("t", group=group) for group in "zab"]
    first, second, third = await take(client, 3)
    async with client.acquire() as connection:
        await runs.start_many(connection, [(third.id, third.lock_id, 60.0), (second.id, second.lock_id, 30.0)])
    waiting = [
        await client.submit("t", group=group, priority=priority) for group, priority in zip("zabz", WAYS, strict=True)
    ]
    waiting.insert(2, await client.submit("t", group="a", not_before="1h"))
    await order_of_submission(client, waiting)
    state = (await http.get("/api/v1/queue/state")).json()
    assert {job["id"] for job in state["progress"]} == {str(job_id) for job_id in submitted}
    assert [job["id"] for job in state["progress"]] == [str(job.id) for job in (third, second, first)]
    assert [job["id"] for job in state["queued"]] == [str(job_id) for job_id in waiting]
    cut = (await http.get("/api/v1/queue/state", params={"limit": 2, "queue": "default"})).json()
    assert [job["id"] for job in cut["queued"]] == [str(job_id) for job_id in waiting[:2]]
    for job in (second, first, third):
        await end(client, job, "success")
    state = (await http.get("/api/v1/queue/state")).json()
    assert [job["id"] for job in state["completed"]] == [str(job.id) for job in (third, first, second)]


async def test_the_state_of_the_queue_is_of_one_group_where_that_is_asked_for(http, client):
    for group in ("a", "b", "a", "b", "a", "b"):
        await client.submit("t", group=group)
    done: dict[str, Any] = {}
    held: dict[str, list[str]] = {}
    for job in await take(client, 4):
        held.setdefault(job.group, []).append(str(job.id))
    for group in ("a", "b"):
        job_id = held[group].pop()
        async with client.acquire() as connection:
            lock_id = await connection.fetchval("SELECT lock_id FROM joex_private.job WHERE id = $1", UUID(job_id))
            ended = runs.EndedRun(UUID(job_id), lock_id, "success", age=0.1)
            assert await runs.finish_many(connection, [ended]) == []
        done[group] = [job_id]
    await client.submit("t", group="a", queue="other")
    for params, waiting in (({"group": "a"}, 2), ({"group": "a", "queue": "default"}, 1), ({"group": "b"}, 1)):
        group = params["group"]
        state = (await http.get("/api/v1/queue/state", params=params)).json()
        assert [job["id"] for job in state["progress"]] == held[group], params
        assert [job["id"] for job in state["completed"]] == done[group], params
        assert [job["group"] for job in state["queued"]] == [group] * waiting, params
    nobody = (await http.get("/api/v1/queue/state", params={"group": "c"})).json()
    assert (nobody["progress"], nobody["queued"], nobody["completed"]) == ([], [], [])


async def test_a_job_that_waits_again_is_shown_with_the_log_of_its_earlier_runs(http, client):
    job_id = await client.submit("t")
    (job,) = await take(client)
    async with client.acquire() as connection:
        await runs.note_many(connection, [runs.LogLine(job.id, job.lock_id, 1, 0.0, "info", "first try")], [])
    await end(client, job, "stuck")
    await client.submit("t")
    state = (await http.get("/api/v1/queue/state")).json()
    whole = (await http.get(f"/api/v1/job/{job_id}")).json()
    assert state["queued"][0] == {**whole["job"], "log": whole["log"]}
    assert [line["message"] for line in state["queued"][0]["log"]][:1] == ["first try"]
    assert state["queued"][1]["log"] == []


async def test_queues_are_counted(http, client):
    await client.submit("t", group="acme")
    await client.submit("t", group="other", not_before="1h")
    (queue,) = (await http.get("/api/v1/stats")).json()["queues"]
    assert (queue["queue"], queue["waiting"], queue["deferred"], queue["groups"]) == ("default", 1, 1, 2)
    shares = queue["shares"]
    assert (shares["active_groups"], shares["largest_share"], shares["groups_behind"]) == (1, None, 0)


async def test_executors_are_listed(http, client):
    await take(client)
    (listed,) = (await http.get("/api/v1/executors")).json()["executors"]
    assert (listed["app_id"], listed["queues"]) == ("host", ["default"])


async def test_pools_are_listed_with_their_last_step_and_each_with_its_steps(http, client):
    async with client.using() as connection:
        for target, namespace in ((2, "prod"), (3, "prod"), (4, "test")):
            step = pools.NewPoolStep(
                namespace, f"{namespace}.1", "docs", 0, target, 0, 0, "demand", "38 jobs", 2, None, 38, 0, None
            )
            await pools.note_step(connection, step)
    listed = (await http.get("/api/v1/pools")).json()["pools"]
    assert [(one["namespace"], one["home"], one["pool"], one["target"]) for one in listed] == [
        ("prod", "prod.1", "docs", 3), ("test", "test.1", "docs", 4),
    ]  # fmt: skip
    answer = (await http.get("/api/v1/pools/prod.1/docs/steps")).json()["steps"]
    assert [(one["nr"], one["target"], one["why"]) for one in answer] == [(2, 3, "38 jobs"), (1, 2, "38 jobs")]
    assert len((await http.get("/api/v1/pools/prod.1/docs/steps?limit=1")).json()["steps"]) == 1
    assert (await http.get("/api/v1/pools/prod.1/others/steps")).json() == {"steps": []}


async def test_each_reading_call_is_served_by_a_database_that_allows_no_writing(client, database_url, executor):
    job_id = await client.submit("t", not_before="1h")
    async with client.acquire() as connection:
        await connection.execute("UPDATE joex_private.job SET due_at = now() - interval '1 minute'")
    await client.periodic.put("nightly", "t", "Mon 03:00")
    glue = "&" if "?" in database_url else "?"
    async with (
        Client(f"{database_url}{glue}default_transaction_read_only=on") as reader,
        browse(create_api(Settings(), reader, executor, page)) as http,
    ):
        assert (await http.post("/api/v1/jobs", json={"task": "t"})).status_code == 503
        paths = (await http.get("/openapi.json")).json()["paths"]
        for path in (path for path, methods in paths.items() if "get" in methods):
            answer = await http.get(path.format(job_id=job_id, task_id="nightly", **A_POOL))
            assert answer.status_code == 200, (path, answer.text)


# Steering


async def test_a_waiting_job_is_cancelled_at_once(http, client):
    job_id = await client.submit("t")
    answer = await http.post(f"/api/v1/job/{job_id}/cancel")
    assert (answer.status_code, answer.json()) == (200, {"result": "cancelled"})
    again = await http.post(f"/api/v1/job/{job_id}/cancel")
    assert (again.status_code, again.json()) == (409, {"detail": "the job is finished already"})


async def test_a_job_that_is_held_is_asked_to_end(http, client):
    job_id = await client.submit("t")
    await take(client)
    answer = await http.post(f"/api/v1/job/{job_id}/cancel")
    assert (answer.status_code, answer.json()) == (202, {"result": "requested"})


async def test_the_priority_of_a_job_that_waits_is_changed(http, client):
    job_id = await client.submit("t")
    answer = await http.post(f"/api/v1/job/{job_id}/priority", json={"priority": "high"})
    assert answer.status_code == 200
    assert answer.json()["success"] is True
    assert (await client.get(job_id)).priority == "high"


async def test_priorities_may_be_written_in_whichever_case(http, client):
    submitted = [(await http.post("/api/v1/jobs", json={"task": "t", "priority": "High"})).json()["id"]]
    submitted += (await http.post("/api/v1/jobs/many", json=[{"task": "t", "priority": "HIGH"}])).json()["ids"]
    submitted.append(str(await client.submit("t")))
    answer = await http.post(f"/api/v1/job/{submitted[-1]}/priority", json={"priority": "hIgh"})
    assert (answer.status_code, answer.json()["message"]) == (200, "the priority is high")
    assert [(await client.get(UUID(job_id))).priority for job_id in submitted] == ["high"] * 3


async def test_the_arguments_of_a_job_that_waits_are_changed_and_of_one_that_is_held_stay(http, client):
    job_id = await client.submit("t", {"x": 1})
    answer = await http.post(f"/api/v1/job/{job_id}/args", json={"args": {"x": 2}})
    assert (answer.status_code, answer.json()["success"]) == (200, True)
    wrong = await http.post(f"/api/v1/job/{job_id}/args", content=b'{"args": {"x": NaN}}', headers=JSON)
    assert wrong.status_code == 400
    assert wrong.json()["detail"].startswith("args.x: can't be stored as JSON: ")
    await take(client)
    late = await http.post(f"/api/v1/job/{job_id}/args", json={"args": {"x": 3}})
    assert late.status_code == 409
    assert late.json() == {"detail": "the job is scheduled: only the arguments of a waiting job can change"}
    assert (await client.get(job_id)).args == {"x": 2}


async def test_a_job_is_removed_at_once_or_when_its_run_has_ended(http, client):
    waiting, held = await client.submit("t", group="a"), await client.submit("t", priority="high", group="b")
    jobs = {job.id: job for job in await take(client, 2)}
    await end(client, jobs[waiting], "failed")
    for job_id in (waiting, held):
        assert (await http.delete(f"/api/v1/job/{job_id}")).status_code == 200
    assert await client.get(waiting) is None
    assert (await client.get(held)).cancel_requested
    async with client.acquire() as connection:
        job = jobs[held]
        await runs.finish_many(connection, [runs.EndedRun(job.id, job.lock_id, "cancelled", age=0.1)])
    again = await http.delete(f"/api/v1/job/{held}")
    assert (again.status_code, again.json()) == (404, {"detail": f"there is no job {held}"})


async def test_the_priority_of_a_job_that_is_held_stays(http, client):
    job_id = await client.submit("t")
    await take(client)
    answer = await http.post(f"/api/v1/job/{job_id}/priority", json={"priority": "high"})
    assert answer.status_code == 409
    assert answer.json() == {"detail": "the job is scheduled: only the priority of a waiting job can change"}


async def test_a_failed_job_runs_again(http, client):
    job_id = await client.submit("t")
    (job,) = await take(client)
    await end(client, job, "failed")
    assert (await http.post(f"/api/v1/job/{job_id}/retry")).status_code == 200
    assert (await client.get(job_id)).state == "waiting"
    again = await http.post(f"/api/v1/job/{job_id}/retry")
    assert again.status_code == 409
    assert again.json() == {
        "detail": "the job is waiting: only a job that failed, was cancelled, is stuck or not due can be retried"
    }


@pytest.mark.parametrize(
    ("call", "body"), [("cancel", None), ("retry", None), ("priority", {"priority": "high"}), ("args", {"args": {}})]
)
async def test_a_job_that_is_not_there_can_not_be_steered(http, call, body):
    answer = await http.post(f"/api/v1/job/{NOBODY}/{call}", json=body)
    assert (answer.status_code, answer.json()) == (404, {"detail": f"there is no job {NOBODY}"})


async def test_settings_of_a_group_are_changed_one_by_one(http):
    async def set_group(**body: Any) -> dict[str, Any]:
        assert (await http.post("/api/v1/groups/acme", json=body)).status_code == 200
        (setting,) = (await http.get("/api/v1/groups")).json()["settings"]
        return {name: setting[name] for name in ("weight", "paused", "max_running")}

    assert await set_group(weight=3) == {"weight": 3, "paused": False, "max_running": None}
    assert await set_group(max_running=5) == {"weight": 3, "paused": False, "max_running": 5}
    assert await set_group(paused=True) == {"weight": 3, "paused": True, "max_running": 5}
    assert await set_group(max_running=None) == {"weight": 3, "paused": True, "max_running": None}


async def test_a_queue_is_paused_and_resumed(http, client):
    job_id = await client.submit("t", queue="mail/a")
    path = f"/api/v1/queues/{quote('mail/a', safe='')}"
    assert (await http.post(path, json={"paused": True})).json()["message"] == "the queue 'mail/a' is paused"
    [paused] = (await http.get("/api/v1/queues")).json()["paused"]
    assert paused["queue"] == "mail/a"
    why = (await http.get(f"/api/v1/job/{job_id}/why")).json()
    assert "queue_paused" in [one["reason"] for one in why]
    assert (await http.get("/api/v1/stats")).json()["queues"][0]["paused"]
    assert (await http.post(path, json={"paused": False})).status_code == 200
    assert (await http.get("/api/v1/queues")).json() == {"paused": []}
    assert (await http.post(path, json={})).status_code == 400


async def test_a_group_may_have_any_name(http, client):
    name = "\na/b é?\n"
    await client.submit("t", group=name)
    assert (await http.post(f"/api/v1/groups/{quote(name, safe='')}", json={"weight": 2})).status_code == 200
    (group,) = (await http.get("/api/v1/groups")).json()["groups"]
    assert (group["group"], group["weight"], group["waiting"]) == (name, 2, 1)


@pytest.mark.parametrize(
    ("group", "body", "field"),
    [
        ("acme", {"weight": 0}, "weight"),
        ("acme", {"weight": 101}, "weight"),
        ("acme", {"max_running": -1}, "max_running"),
        ("acme", {"queue": ""}, "queue"),
        ("acme", {"queue": "a\0b"}, "queue"),
        ("acme", {"size": 1}, "size"),
        ("a%00b", {}, "group"),
        ("", {}, "group"),
        ("%C3%A9" * 200, {}, "group"),
    ],
)
async def test_wrong_settings_of_a_group_are_refused(http, group, body, field):
    answer = await http.post(f"/api/v1/groups/{group}", json=body)
    assert answer.status_code == 400
    assert answer.json()["detail"].startswith(f"{field}: ")


# The executor itself


async def test_the_executor_says_who_it_is(alone):
    answer = (await alone.get("/api/info/version")).json()
    assert answer["app_id"] == "host"
    assert answer["version"]


async def test_what_the_executor_runs_is_listed(alone, executor):
    executor.runs = [RunningJob(NOBODY, "mail.send", "acme", "default", attempt=1, subject="a mail", seconds=0.5)]
    assert (await alone.get("/api/v1/running")).json() == {
        "running": [
            {
                "id": str(NOBODY),
                "task": "mail.send",
                "group": "acme",
                "queue": "default",
                "attempt": 1,
                "subject": "a mail",
                "seconds": 0.5,
            }
        ]
    }


async def test_the_executor_is_told_to_look_for_work_and_to_exit(alone, executor):
    assert (await alone.post("/api/v1/notify")).json()["success"] is True
    assert (await alone.post("/api/v1/shutdownAndExit")).json()["success"] is True
    assert executor.asked == ["wake", "drain"]


async def test_all_executors_of_a_queue_are_told_to_look_for_work(http, client, executor):
    await take(client)  # which registers an executor of the queue default
    for queue, count in (("default", 1), ("other", 0)):
        answer = await http.post("/api/v1/notify", params={"queue": queue})
        said = f"executors of the queue {queue!r} asked to look for work: {count}"
        assert (answer.status_code, answer.json()) == (200, {"success": True, "message": said})
    assert executor.asked == []
    assert (await http.post("/api/v1/notify", params={"queue": ""})).status_code == 400


async def test_the_probes_say_what_the_executor_says(alone, executor):
    assert (await alone.get("/healthz")).json() == {"ok": True, "phase": "running"}
    assert (await alone.get("/readyz")).status_code == 200
    executor.described, executor.ready = "draining", False
    answer = await alone.get("/readyz")
    assert (answer.status_code, answer.json()) == (503, {"ok": False, "phase": "draining"})
    assert (await alone.get("/healthz")).status_code == 200
    executor.alive = False
    assert (await alone.get("/healthz")).status_code == 503


async def test_numbers_are_served_for_prometheus(alone):
    answer = await alone.get("/metrics")
    assert answer.text == "joex_slots 2.0\n"
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"


async def test_a_rendering_of_the_numbers_serves_all_who_wait_for_it_and_none_that_come_later(nowhere, executor):
    """Strangers may ask for them hundreds of times at once, and each rendering holds the event loop."""
    renderings = 0

    def count() -> tuple[bytes, str]:
        nonlocal renderings
        renderings += 1
        return str(renderings).encode(), "text/plain"

    async with browse(create_api(Settings(), nowhere, executor, count)) as http:
        for nr in (1, 2):
            answers = await asyncio.gather(*(http.get("/metrics") for _ in range(100)))
            assert [answer.text for answer in answers] == [str(nr)] * 100


async def test_a_method_that_is_not_served_is_refused_with_those_that_are(alone):
    answer = await alone.put("/api/v1/jobs")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, POST")
    assert answer.json() == {"detail": "PUT is not served here: use GET, POST"}


async def test_to_find_the_methods_that_are_served_each_route_is_asked_once(alone, monkeypatch):
    """Six times each took the event loop several times as long as a path that is not served."""
    asked, matches = list[str](), route.Route.matches

    def note(self: route.Route, scope: Any) -> Any:
        asked.append(self.path)
        return matches(self, scope)

    monkeypatch.setattr(route.Route, "matches", note)
    assert (await alone.get("/api/v1/nothing")).status_code == 404
    by_router = len(asked)
    assert (await alone.delete("/api/v1/update")).status_code == 405
    assert 0 < len(asked) - by_router < 3 * by_router  # by the router, some of them twice, and once more


# Authentication


def secured(client: Client, executor: Executor) -> Any:
    return create_api(Settings(api_token=TOKEN), client, executor, page)


@pytest.mark.parametrize(
    "given", ["", "Bearer", "Bearer wrong", f"Bearer {TOKEN}2", f"Basic {TOKEN}", TOKEN, "Bearer é"]
)
async def test_with_a_token_a_call_must_bear_it(nowhere, executor, given):
    async with browse(secured(nowhere, executor)) as http:
        answer = await http.post("/api/v1/shutdownAndExit", headers={"Authorization": given.encode()})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert executor.asked == []


@pytest.mark.parametrize("scheme", ["Bearer", "bearer"])
async def test_with_the_token_a_call_is_served_from_anywhere(nowhere, executor, scheme):
    headers = {"Authorization": f"{scheme} {TOKEN}", "Host": "joex.example.org"}
    async with browse(secured(nowhere, executor), caller="10.1.2.3", headers=headers) as http:
        assert (await http.post("/api/v1/shutdownAndExit")).status_code == 200


async def test_with_a_token_reading_a_job_needs_it(client, executor):
    job_id = await client.submit("mail.send", {"to": "a secret"})
    paths = ("/api/v1/jobs", f"/api/v1/job/{job_id}", "/api/v1/queue/state")
    async with browse(secured(client, executor)) as http:
        for path in paths:
            refused = await http.get(path)
            assert (refused.status_code, "a secret" in refused.text) == (401, False)
            answer = await http.get(path, headers={"Authorization": f"Bearer {TOKEN}"})
            assert (answer.status_code, "a secret" in answer.text) == (200, True)


async def test_without_a_token_a_web_page_whose_name_points_here_reads_nothing(http, client):
    await client.submit("mail.send", {"to": "a secret"})
    answer = await http.get("/api/v1/jobs", headers={"Host": "rebound.example.org:7878"})
    assert answer.status_code == 403
    assert answer.json()["detail"].endswith("set JOEX_API_TOKEN, and send it as 'Authorization: Bearer ...'")


@pytest.mark.parametrize("token", ["", None])
async def test_without_a_token_a_call_is_served_on_loopback_only(nowhere, executor, token):
    api = create_api(Settings(api_token=token), nowhere, executor, page)
    for caller, status in (("10.1.2.3", 403), ("::ffff:10.1.2.3", 403), ("127.0.0.7", 200), ("::ffff:127.0.0.1", 200)):
        async with browse(api, caller=caller) as http:
            answer = await http.post("/api/v1/notify")
        assert answer.status_code == status
        assert status == 200 or "JOEX_API_TOKEN" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "localhost:7878"}, 200),
        ({"Host": "LOCALHOST"}, 200),
        ({"Host": "[::1]:7878"}, 200),
        ({"Host": "rebound.example.org:7878"}, 403),
        ({"Host": "[::1"}, 403),
        ({"Host": ""}, 403),
        ({"X-Forwarded-For": "10.1.2.3"}, 403),
        ({"Forwarded": "for=10.1.2.3"}, 403),
        ({"Origin": HERE}, 200),
        ({"Origin": "https://example.org"}, 403),
        ({"Origin": "http://127.0.0.1:8000"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://[::1"}, 403),
    ],
)
async def test_without_a_token_no_web_page_and_no_proxy_is_served(alone, executor, headers, status):
    answer = await alone.post("/api/v1/shutdownAndExit", headers=headers)
    assert answer.status_code == status
    assert executor.asked == (["drain"] if status == 200 else [])


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "", "nonsense"])
async def test_a_body_must_be_declared_as_json(alone, kind):
    answer = await alone.post("/api/v1/jobs", content=b'{"task": "t"}', headers={"Content-Type": kind})
    assert answer.status_code == 415
    assert "application/json" in answer.json()["detail"]


async def test_a_header_that_comes_twice_is_refused_where_another_reader_may_go_by_the_other_one(alone):
    """A proxy in front may have judged that one."""
    twice = [("Authorization", "Bearer a"), ("Authorization", "Bearer b")]
    answer = await alone.get("/api/v1/jobs", headers=twice)
    told = {"detail": "Authorization: is given more than once: give it once"}
    assert (answer.status_code, answer.json()) == (400, told)
    kinds = [("Content-Type", "application/json"), ("Content-Type", "text/plain")]
    assert (await alone.post("/api/v1/jobs", content=b'{"task": "t"}', headers=kinds)).status_code == 415


@pytest.mark.parametrize("coding", ["gzip", "identity, br"])
async def test_a_body_that_says_that_it_is_encoded_is_refused(alone, coding):
    headers = {"Content-Type": "application/json", "Content-Encoding": coding}
    answer = await alone.post("/api/v1/jobs", content=b'{"task": "t"}', headers=headers)
    told = {"detail": "the body must have no Content-Encoding: send it as it is"}
    assert (answer.status_code, answer.json()) == (415, told)


async def test_a_body_may_say_more_of_its_kind(http):
    headers = {"Content-Type": "application/json; charset=utf-8"}
    assert (await http.post("/api/v1/jobs", content=b'{"task": "t"}', headers=headers)).status_code == 201


@pytest.mark.parametrize("in_parts", [False, True], ids=["announced", "in parts"])
async def test_a_body_that_is_too_large_is_refused(alone, in_parts):
    body = json.dumps({"task": "t", "args": {"x": "y" * LARGEST_BODY}}).encode()

    async def parts() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 1_000_000):
            yield body[start : start + 1_000_000]

    headers = {"Content-Type": "application/json"}
    answer = await alone.post("/api/v1/jobs", content=parts() if in_parts else body, headers=headers)
    assert (answer.status_code, answer.json()) == (413, {"detail": "the body is larger than 10000000 bytes"})


# Trouble


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/api/v1/jobs", {"task": "t"}),
        ("POST", "/api/v1/jobs/many", [{"task": "t"}]),
        ("POST", "/jobber/queue", {"type": "t", "payload": {}}),
        ("GET", "/api/v1/jobs", None),
        ("GET", f"/api/v1/job/{NOBODY}", None),
        ("POST", f"/api/v1/job/{NOBODY}/cancel", None),
        ("GET", "/api/v1/stats", None),
    ],
)
async def test_an_unreachable_database_is_a_reason_to_try_again(alone, method, path, body):
    answer = await alone.request(method, path, json=body)
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) > 0
    assert "database" in answer.json()["detail"]


async def test_the_probes_do_not_need_the_database(alone):
    assert (await alone.get("/healthz")).status_code == 200
    assert (await alone.get("/metrics")).status_code == 200


async def test_a_database_without_the_schema_says_how_to_make_it(empty_database_url, executor):
    async with Client(empty_database_url) as client, browse(create_api(Settings(), client, executor, page)) as http:
        answer = await http.get("/api/v1/stats")
    assert answer.status_code == 503
    assert "joex migrate" in answer.json()["detail"]


async def test_an_error_of_ours_is_told_as_one(nowhere, executor):
    def broken() -> tuple[bytes, str]:
        raise ZeroDivisionError

    api = create_api(Settings(), nowhere, executor, broken)
    async with httpx.AsyncClient(transport=transport(api, raise_app_exceptions=False), base_url=HERE) as http:
        answer = await http.get("/metrics")
    assert (answer.status_code, list(answer.json())) == (500, ["detail"])


# The documentation


async def test_the_documentation_names_every_route_and_its_problems(alone):
    schema = (await alone.get("/openapi.json")).json()
    operations = {(method, path): one for path, methods in schema["paths"].items() for method, one in methods.items()}
    assert ("post", "/jobber/queue") in operations
    assert ("post", "/api/v1/groups/{group}") in operations
    for (method, _), operation in operations.items():
        statuses = set(operation["responses"])
        assert "422" not in statuses
        if method == "post":
            assert {"401", "403", "413", "415"} <= statuses
    assert set(operations["post", "/api/v1/job/{job_id}/cancel"]["responses"]) >= {
        "200",
        "202",
        "400",
        "404",
        "409",
        "503",
    }
    assert not [name for name in schema["components"]["schemas"] if "Validation" in name]


@pytest.mark.parametrize("path", ["/docs", "/redoc"])
async def test_there_is_no_page_that_loads_scripts_from_elsewhere(alone, path):
    assert (await alone.get(path)).status_code == 404


# The server


@asynccontextmanager
async def served(client: Client, executor: Executor) -> AsyncIterator[tuple[str, asyncio.Task[None]]]:
    with listen("127.0.0.1:0") as listener:
        address = "{}:{}".format(*listener.getsockname())
        serving = asyncio.create_task(serve(create_api(Settings(), client, executor, page), listener))
        try:
            yield address, serving
        finally:
            serving.cancel()
            await asyncio.wait([serving])


async def test_it_is_served_until_it_is_cancelled(client, executor):
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    async with served(client, executor) as (address, serving), httpx.AsyncClient(base_url=f"http://{address}") as http:
        answer = await http.post("/api/v1/jobs", json={"task": "t"})
        assert answer.status_code == 201
        assert answer.headers["date"]
        assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        with pytest.raises(httpx.ConnectError):
            await http.get("/healthz")


@pytest.mark.parametrize(
    "sent",
    [
        "",
        "GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: ",
        "POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{",
    ],
    ids=["nothing", "half a head", "half a body"],
)
async def test_a_caller_that_does_not_go_on_is_disconnected(nowhere, executor, monkeypatch, sent):
    monkeypatch.setattr(slow_callers, "HEAD_WITHIN", 0.2)
    monkeypatch.setattr(slow_callers, "BODY_WITHIN", 0.2)
    async with served(nowhere, executor) as (address, _), asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection(*address.split(":"))
        writer.write(sent.encode())
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()


async def test_a_call_that_takes_long_to_answer_is_not_disconnected(client, executor, monkeypatch):
    """The limits are for what the caller sends, in each request of its connection."""
    monkeypatch.setattr(slow_callers, "HEAD_WITHIN", 0.2)
    monkeypatch.setattr(slow_callers, "BODY_WITHIN", 0.2)
    async with served(client, executor) as (address, _), httpx.AsyncClient(base_url=f"http://{address}") as http:
        for _ in range(2):
            answer = await http.post("/api/v1/accept", json={"type": "nothing", "worker": "me", "wait": "1s"})
            assert answer.status_code < 500
            answer = await http.get("/healthz")
            assert answer.status_code == 200


def lost_connections(monkeypatch: pytest.MonkeyPatch) -> asyncio.Queue[Exception | None]:
    """Why connections end, as they do."""
    lost: asyncio.Queue[Exception | None] = asyncio.Queue()
    end = slow_callers.TimedProtocol.connection_lost

    def connection_lost(self: Any, error: Exception | None) -> None:
        end(self, error)
        lost.put_nowait(error)

    monkeypatch.setattr(slow_callers.TimedProtocol, "connection_lost", connection_lost)
    return lost


@pytest.mark.parametrize("reads", [False, True])
async def test_a_caller_that_does_not_read_its_answer_is_disconnected(nowhere, executor, monkeypatch, reads):
    monkeypatch.setattr(slow_callers, "READ_WITHIN", 0.2)
    lost = lost_connections(monkeypatch)
    async with served(nowhere, executor) as (address, _), asyncio.timeout(PATIENCE):
        reader, writer = await slowly_connected(address)
        writer.write(f"GET /openapi.json HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n".encode())
        if reads:
            body = (await reader.read(-1)).partition(b"\r\n\r\n")[2]
            assert json.loads(body)["openapi"]
        await lost.get()
        writer.close()


async def test_a_caller_that_takes_nothing_of_a_small_answer_is_disconnected_by_the_system(
    client, executor, monkeypatch
):
    """The answer has left Joex, and counts as read: the system keeps it."""
    monkeypatch.setattr(listening, "READ_WITHIN", 0.5)
    lost = lost_connections(monkeypatch)
    job = await client.submit("a", {"x": "y" * 10_000})
    async with served(client, executor) as (address, _), asyncio.timeout(PATIENCE):
        _, writer = await slowly_connected(address)
        writer.transport.pause_reading()  # type: ignore[attr-defined] # it is a ReadTransport too
        writer.write(f"GET /api/v1/job/{job} HTTP/1.1\r\nHost: {address}\r\n\r\n".encode())
        assert isinstance(await lost.get(), TimeoutError)
        writer.close()


async def test_a_caller_that_reads_a_large_answer_slowly_is_disconnected_only_when_it_stops(
    nowhere, executor, monkeypatch
):
    monkeypatch.setattr(slow_callers, "LEAST_READ", 10_000)
    answering = unread_answers(monkeypatch)
    async with served(nowhere, executor) as (address, _), asyncio.timeout(PATIENCE):
        reader, writer = await slowly_connected(address)
        writer.transport.pause_reading()  # type: ignore[attr-defined] # it is a ReadTransport too
        writer.write(f"GET /openapi.json HTTP/1.1\r\nHost: {address}\r\n\r\n".encode())
        await eventually(lambda: bool(answering))
        call = answering[-1]
        unread = call.transport.get_write_buffer_size()
        writer.transport.resume_reading()  # type: ignore[attr-defined] # likewise
        await reader.readexactly(20_000)
        await eventually(lambda: call.transport.get_write_buffer_size() <= unread - 10_000)
        call._judge_reader()
        assert not call.transport.is_closing()
        call._judge_reader()
        assert call.transport.is_closing()
        writer.close()


@pytest.mark.parametrize(("limit", "status"), [("MOST_OF_TENANT", 503), ("MOST_AT_WORK", 200), ("MOST_REQUESTS", 200)])
@pytest.mark.parametrize("reads", [True, False], ids=["reads", "hangs up"])
async def test_a_call_counts_for_its_token_until_its_answer_is_read_and_keeps_no_turn_and_no_place_of_others(  # noqa: PLR0917 - fixtures
    client, connection, executor, monkeypatch, limit, status, reads
):
    monkeypatch.setattr(route, limit, 1)
    unread = unread_answers(monkeypatch)
    path = f"/api/v1/job/{await client.submit('a', {'x': 'y' * 200_000}, group='acme')}"
    token = await tokens.create(connection, "acme's", ["view", "payloads"], groups=["acme"])
    headers = {"Authorization": f"Bearer {token}"}
    async with served(client, executor) as (address, _), asyncio.timeout(PATIENCE):
        reader, writer = await slowly_connected(address)
        writer.transport.pause_reading()  # type: ignore[attr-defined] # it is a ReadTransport too
        writer.write(
            f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n".encode()
        )
        await eventually(lambda: bool(unread), why="the answer waits for its caller")
        async with httpx.AsyncClient(base_url=f"http://{address}", headers=headers) as other:
            assert (await other.get(path)).status_code == status
            if reads:
                writer.transport.resume_reading()  # type: ignore[attr-defined] # likewise
                assert len(await reader.read(-1)) > 200_000
            else:
                writer.transport.abort()

            async def is_served() -> bool:
                return (await other.get(path)).status_code == 200

            await eventually(is_served, why="the other does not count any more")
        writer.close()


async def test_beyond_the_most_connections_the_one_that_is_idle_for_longest_ends(nowhere, executor, monkeypatch):
    monkeypatch.setattr(slow_callers, "MOST_CONNECTIONS", 3)
    async with served(nowhere, executor) as (address, _), asyncio.timeout(PATIENCE):
        calls = []
        for _ in range(3):
            calls.append(await asyncio.open_connection(*address.split(":")))
            assert b" 200 " in await probe(*calls[-1])
        assert b" 200 " in await probe(*calls[0])  # the second is idle for longest now
        calls.append(await asyncio.open_connection(*address.split(":")))
        assert await ended(calls[1][0])
        for nr in (0, 2, 3):
            assert b" 200 " in await probe(*calls[nr])
        for _, writer in calls:
            writer.close()


async def test_any_number_of_callers_that_send_half_a_head_keeps_no_probe_waiting(nowhere, executor, monkeypatch):
    """More connections would exhaust the file descriptors of the process, and then a kubelet's probe would fail."""
    monkeypatch.setattr(slow_callers, "MOST_CONNECTIONS", 10)
    monkeypatch.setattr(slow_callers, "HEAD_WITHIN", 3600.0)
    async with served(nowhere, executor) as (address, _):
        calls = []
        try:
            for _ in range(50):
                calls.append(await asyncio.open_connection(*address.split(":")))
                calls[-1][1].write(b"GET /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
            calls.append(await asyncio.open_connection(*address.split(":")))
            async with asyncio.timeout(PATIENCE):
                assert b" 200 " in await probe(*calls[-1])
                assert all([await ended(reader) for reader, _ in calls[:-10]])
            assert not [reader for reader, _ in calls[-10:] if reader.at_eof()]
        finally:
            for _, writer in calls:
                writer.close()


async def test_any_number_of_calls_that_wait_until_their_caller_is_known_keeps_no_probe_waiting(
    nowhere, executor, monkeypatch
):
    never, asked = asyncio.Event(), asyncio.Queue[None]()

    async def find(_: Tokens, __: str) -> None:
        asked.put_nowait(None)
        await never.wait()

    monkeypatch.setattr(Tokens, "find", find)
    monkeypatch.setattr(slow_callers, "MOST_CONNECTIONS", 3)
    async with served(nowhere, executor) as (address, _), asyncio.timeout(PATIENCE):
        calls = [await asyncio.open_connection(*address.split(":")) for _ in range(3)]
        assert b" 200 " in await probe(*calls[0])
        for nr in (1, 2, 0):
            calls[nr][1].write(b"GET /api/v1/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer any\r\n\r\n")
            await asked.get()
        probes = [await asyncio.open_connection(*address.split(":")) for _ in range(2)]
        for one in probes:
            assert b" 200 " in await probe(*one)
        assert all([await ended(calls[nr][0]) for nr in (1, 2)]), "those that have waited for longest"
        assert not calls[0][0].at_eof()
        for _, writer in (*calls, *probes):
            writer.close()


async def test_probes_are_served_beside_as_many_calls_as_can_be(client, executor, monkeypatch):
    monkeypatch.setattr(route, "MOST_REQUESTS", 2)
    monkeypatch.setattr(slow_callers, "MOST_CONNECTIONS", 3)
    wait = json.dumps({"type": "nothing", "wait": "60s"})
    head = "POST /api/v1/accept HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json"
    async with served(client, executor) as (address, _), asyncio.timeout(PATIENCE):
        workers = [await asyncio.open_connection(*address.split(":")) for _ in range(2)]
        for _, writer in workers:
            writer.write(f"{head}\r\nContent-Length: {len(wait)}\r\n\r\n{wait}".encode())
        async with httpx.AsyncClient(base_url=f"http://{address}") as http:

            async def is_full() -> bool:
                return (await http.get("/api/v1/running")).status_code == 503

            await eventually(is_full)
            answer = await http.get("/api/v1/running")
            assert answer.json()["detail"] == "2 calls are being served: try again"
            assert int(answer.headers["retry-after"]) > 0
        probes = [await asyncio.open_connection(*address.split(":")) for _ in range(3)]
        assert b" 200 " in await probe(*probes[-1])
        assert not [reader for reader, _ in workers if reader.at_eof()]
        for _, writer in (*workers, *probes):
            writer.close()


async def test_calls_whose_bodies_are_on_the_way_keep_no_place_from_others(client, executor, monkeypatch):
    monkeypatch.setattr(route, "MOST_REQUESTS", 1)
    monkeypatch.setattr(route, "MOST_COMING", 2)
    begun = asyncio.Event()
    judge = Needs.judge

    async def judge_and_tell(needs: Needs, request: Any) -> None:
        await judge(needs, request)
        begun.set()

    monkeypatch.setattr(Needs, "judge", judge_and_tell)
    async with served(client, executor) as (address, _), asyncio.timeout(PATIENCE):
        half = await asyncio.open_connection(*address.split(":"))
        head = "POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 13"
        half[1].write(f"{head}\r\n\r\n{{".encode())
        await begun.wait()
        async with httpx.AsyncClient(base_url=f"http://{address}") as http:
            assert (await http.post("/api/v1/jobs", json={"task": "t"})).status_code == 201
            monkeypatch.setattr(route, "MOST_COMING", 1)
            answer = await http.post("/api/v1/jobs", json={"task": "t"})
            detail = "1 bodies of your calls are on the way: try again"
            assert (answer.status_code, answer.json()["detail"]) == (503, detail)
            report = await http.post("/api/v1/update", json={})
            assert report.status_code == 400, "a report of a run is read"
        half[1].write(b'"task": "t"}')
        assert b" 201 " in await half[0].readline()
        half[1].close()


async def test_any_number_of_calls_whose_bodies_are_on_the_way_keeps_no_probe_waiting(client, executor, monkeypatch):
    """Each token may have a few dozen of them, but a few tokens together hold all connections that there are."""
    monkeypatch.setattr(slow_callers, "MOST_CONNECTIONS", 3)
    coming = asyncio.Queue[None]()
    body = bodies.JsonRequest.body

    async def body_and_tell(request: Any) -> bytes:
        coming.put_nowait(None)
        return await body(request)

    monkeypatch.setattr(bodies.JsonRequest, "body", body_and_tell)
    async with served(client, executor) as (address, _), asyncio.timeout(PATIENCE):
        head = "POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 13"
        calls = []
        for _ in range(3):
            calls.append(await asyncio.open_connection(*address.split(":")))
            calls[-1][1].write(f"{head}\r\n\r\n{{".encode())
            await coming.get()
        probes = [await asyncio.open_connection(*address.split(":")) for _ in range(2)]
        assert b" 200 " in await probe(*probes[-1])
        assert await ended(calls[0][0]), "the one that has begun first"
        assert not [reader for reader, _ in calls[1:] if reader.at_eof()]
        for _, writer in (*calls, *probes):
            writer.close()


async def test_a_call_whose_caller_hangs_up_in_its_body_is_no_error(client, executor, monkeypatch, caplog):
    judged = asyncio.Event()
    ended = asyncio.Event()
    body = bodies.JsonRequest.body

    async def body_and_tell(request: Any) -> bytes:
        judged.set()
        try:
            return await body(request)
        finally:
            ended.set()

    monkeypatch.setattr(bodies.JsonRequest, "body", body_and_tell)
    async with served(client, executor) as (address, _), asyncio.timeout(PATIENCE):
        _, writer = await asyncio.open_connection(*address.split(":"))
        head = "POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 13"
        writer.write(f"{head}\r\n\r\n{{".encode())
        await judged.wait()
        writer.close()
        await ended.wait()
        async with httpx.AsyncClient(base_url=f"http://{address}") as http:
            assert (await http.post("/api/v1/jobs", json={"task": "t"})).status_code == 201
    assert [one.getMessage() for one in caplog.records if one.levelname == "ERROR"] == []


async def test_while_many_wait_for_a_job_others_are_served(client, executor, monkeypatch):
    monkeypatch.setattr(route, "MOST_WAITING", 1)
    async with served(client, executor) as (address, _), asyncio.timeout(PATIENCE):  # noqa: SIM117 - needs the address
        async with httpx.AsyncClient(base_url=f"http://{address}") as http:
            wait = {"type": "nothing", "wait": "60s"}
            idle = asyncio.create_task(http.post("/api/v1/accept", json=wait, timeout=PATIENCE))
            await eventually(lambda: bool(client.connections.accept_waiters.waiting))
            answer = await http.post("/api/v1/accept", json=wait)
            assert (answer.status_code, answer.json()["detail"]) == (503, "1 calls wait for a job: try again")
            assert int(answer.headers["retry-after"]) > 0
            assert (await http.post("/api/v1/accept", json={"type": "nothing"})).status_code == 204
            idle.cancel()

            async def is_free() -> bool:
                return (await http.post("/api/v1/accept", json=wait | {"wait": 0.001})).status_code == 204

            await eventually(is_free)


async def test_requests_that_are_no_http_are_answered_and_not_logged(nowhere, executor, caplog):
    upgrade = "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, close\r\nUpgrade: websocket\r\n\r\n"
    async with served(nowhere, executor) as (address, _), asyncio.timeout(PATIENCE):
        for sent in ("nonsense\r\n\r\n", upgrade):
            reader, writer = await asyncio.open_connection(*address.split(":"))
            writer.write(sent.encode())
            assert b" 40" in await reader.readline()
            writer.close()
    assert [record.getMessage() for record in caplog.records if record.name.startswith("uvicorn")] == []


CHUNKED = (
    "POST /api/v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
)


@pytest.mark.parametrize("waits", [True, False], ids=["after the answer", "before the answer"])
async def test_a_body_that_is_no_http_is_not_logged(nowhere, executor, caplog, waits):
    async with served(nowhere, executor) as (address, _), asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection(*address.split(":"))
        writer.write(CHUNKED.encode())
        if waits:
            assert b" 403 " in await reader.readline()  # the host is no loopback name
        writer.write(b"zz\r\n")
        if not waits:
            assert b" 40" in await reader.readline()
        await reader.read()  # until the server has ended it
        writer.close()
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_a_bad_chunk_in_the_packet_of_the_head_is_answered_and_not_logged(nowhere, executor, caplog):
    async with served(nowhere, executor) as (address, _), asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection(*address.split(":"))
        writer.write(CHUNKED.encode() + b"zz\r\n")
        assert b" 400 " in await reader.readline()
        await reader.read()  # until the server has ended it
        writer.close()
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_a_body_with_two_lengths_is_refused_and_what_follows_is_no_request(client, executor):
    """A proxy that goes by the other length takes what follows for another caller's request, and has not checked it."""
    head = CHUNKED.replace("Host: x", "Host: localhost\r\nContent-Length: 4")
    async with served(client, executor) as (address, _), asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection(*address.split(":"))
        writer.write(f'{head}c\r\n{{"task":"t"}}\r\n0\r\n\r\nGET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n'.encode())
        assert re.findall(rb"HTTP/1.1 (\d+)", await reader.read()) == [b"400"]
        writer.close()


@pytest.mark.parametrize("many", [b"a:\r\n", b"a:\n", b"a: 1\r\n"])
async def test_a_request_of_many_headers_is_refused_before_they_are_read(nowhere, executor, monkeypatch, many):
    """They took thousands of times as long as the bytes that they are, before the token was known."""
    headers: list[int] = []

    def request(**given: Any) -> h11.Request:
        headers.append(len(given["headers"]))
        return h11.Request(**given)

    monkeypatch.setattr("h11._readers.Request", request)
    head = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
    async with served(nowhere, executor) as (address, _), asyncio.timeout(PATIENCE):
        for number, status in ((99, b"200"), (100, b"431"), (15_000, b"431")):
            reader, writer = await asyncio.open_connection(*address.split(":"))
            writer.write(head + many * number + b"\r\n" + head + b"Connection: close\r\n\r\n")
            answers = [status] if status == b"431" else [status, b"200"]
            assert re.findall(rb"HTTP/1.1 (\d+)", await reader.read()) == answers, number
            writer.close()
    assert max(headers) == 100


async def test_a_query_of_many_parameters_is_refused_before_it_is_read(nowhere, executor):
    """For 30,000 of them the event loop took 50 ms, also where the caller is not known."""
    async with served(nowhere, executor) as (address, _), httpx.AsyncClient(base_url=f"http://{address}") as http:
        for path in ("/healthz", "/api/v1/jobs", "/nothing"):
            assert "query parameters" not in (await http.get(f"{path}?{'a&' * 99}a")).text
            answer = await http.get(f"{path}?{'a&' * 100}a")
            assert (answer.status_code, answer.json()) == (400, {"detail": "at most 100 query parameters; got 101"})


def test_a_burst_of_callers_waits_until_it_is_accepted():
    """With TLS, too, where no server of asyncio makes the queue longer."""
    with listen("127.0.0.1:0") as listener, ExitStack() as callers:
        for _ in range(500):
            callers.enter_context(socket.create_connection(listener.getsockname(), timeout=PATIENCE))


async def test_a_caller_that_is_far_ahead_of_its_answer_gets_it_and_the_end(nowhere, executor, monkeypatch):
    complete = slow_callers.TimedProtocol.on_response_complete

    def complete_while_more_comes(self: Any) -> None:
        complete(self)
        writer.write(b"x")

    monkeypatch.setattr(slow_callers.TimedProtocol, "on_response_complete", complete_while_more_comes)
    async with served(nowhere, executor) as (address, _), asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection(*address.split(":"))
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" + b"x" * 2 * slow_callers.MOST_AHEAD)
        assert re.findall(rb"HTTP/1.1 (\d+)", await reader.read()) == [b"200"]
        writer.close()


async def test_a_body_of_many_headers_after_its_chunks_is_refused_before_they_are_read(nowhere, executor, monkeypatch):
    """64,000 of them held up the event loop for half a second, before the token was known."""
    read: list[int] = []

    def end(headers: Any = ()) -> h11.EndOfMessage:
        read.append(len(headers))
        return h11.EndOfMessage(headers=headers)

    monkeypatch.setattr("h11._readers.EndOfMessage", end)
    next_one = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    async with served(nowhere, executor) as (address, _), asyncio.timeout(PATIENCE):
        for number, answers in ((100, [b"403", b"200"]), (101, [b"400"]), (15_000, [b"400"])):
            reader, writer = await asyncio.open_connection(*address.split(":"))
            writer.write(CHUNKED.encode() + b"0\r\n" + b"a:\r\n" * number + b"\r\n" + next_one)
            assert re.findall(rb"HTTP/1.1 (\d+)", await reader.read()) == answers, number
            writer.close()
    assert max(read) == 100


@pytest.mark.parametrize("length", ["Content-Length: 2", "Transfer-Encoding: chunked"])
async def test_an_answer_before_the_body_has_come_says_that_it_is_the_last_one(nowhere, executor, length):
    """A proxy would send the call of another caller over the connection, and lose it."""
    async with served(nowhere, executor) as (address, _), asyncio.timeout(PATIENCE):
        for path, status in (("jobs", 415), ("nothing", 404), ("running", 405)):
            reader, writer = await asyncio.open_connection(*address.split(":"))
            kind = "text/plain" if status == 415 else "application/json"
            head = f"POST /api/v1/{path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n{length}\r\n\r\n"
            writer.write(head.encode())
            answer = (await reader.read()).partition(b"\r\n\r\n")[0].lower().split(b"\r\n")
            assert (int(answer[0].split()[1]), answer.count(b"connection: close")) == (status, 1)
            writer.close()


async def test_the_rest_of_a_refused_body_is_not_parsed(nowhere, executor, monkeypatch):
    """Each chunk of it would take time of the executor's loop."""
    parsed: list[int] = []
    receive = h11.Connection.receive_data

    def receive_data(self: Any, data: bytes) -> None:
        if self.our_role is h11.SERVER:
            parsed.append(len(data))
        receive(self, data)

    monkeypatch.setattr(h11.Connection, "receive_data", receive_data)
    async with served(nowhere, executor) as (address, _), asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection(*address.split(":"))
        writer.write(CHUNKED.encode())
        assert b" 403 " in await reader.readline()
        writer.write(b"1\r\nx\r\n" * 10_000)
        await reader.read()  # until the server has ended it
        assert parsed == [len(CHUNKED)]
        writer.close()


@pytest.mark.parametrize("goes_on", ["keep-alive", "close"])
async def test_a_caller_that_sends_a_large_refused_body_gets_the_answer(nowhere, executor, goes_on):
    head = f"POST /api/v1/jobs HTTP/1.1\r\nHost: x\r\nConnection: {goes_on}\r\nContent-Length: 12000000\r\n\r\n"
    async with served(nowhere, executor) as (address, _), asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection(*address.split(":"))
        writer.write(head.encode() + b"x" * 12_000_000)
        await writer.drain()
        assert b" 403 " in (await reader.read()).partition(b"\r\n")[0]
        writer.close()


async def test_a_body_of_many_tiny_chunks_or_of_long_extensions_is_refused(client, executor):
    body = json.dumps({"task": "t", "args": {"x": "y" * 5000}})
    head = CHUNKED.replace("Host: x", "Host: localhost").encode()
    async with served(client, executor) as (address, _), asyncio.timeout(PATIENCE):
        for size, extension, status in (
            (1, "", b" 400 "),
            (100, "", b" 201 "),
            (100, ";x=y", b" 201 "),
            (2000, f";{'x' * 10_000}", b" 400 "),
        ):
            parts = [body[i : i + size] for i in range(0, len(body), size)]
            sent = "".join(f"{len(part):x}{extension}\r\n{part}\r\n" for part in parts)
            reader, writer = await asyncio.open_connection(*address.split(":"))
            writer.write(head + sent.encode() + b"0\r\n\r\n")
            assert status in await reader.readline(), (size, extension)
            writer.close()


async def probe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """The status line of a probe on this connection."""
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    head = await reader.readuntil(b"\r\n\r\n")
    await reader.readexactly(int(re.findall(rb"content-length: (\d+)", head)[0]))
    return head.partition(b"\r\n")[0]


async def ended(reader: asyncio.StreamReader) -> bool:
    """Whether the server has ended this connection."""
    with suppress(ConnectionResetError):
        return await reader.read() == b""
    return True


async def test_a_server_that_stops_waits_for_no_body_that_does_not_end_and_logs_nothing(
    nowhere, executor, monkeypatch, caplog
):
    monkeypatch.setattr(server, "_GO_ON_WITHIN", 0)
    async with served(nowhere, executor) as (address, serving), asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection(*address.split(":"))
        head = "POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nExpect: 100-continue"
        writer.write(f"{head}\r\nContent-Length: 500000\r\n\r\n".encode())
        assert b" 100 " in await reader.readuntil(b"\r\n\r\n")
        serving.cancel()
        await asyncio.wait([serving])
        assert await ended(reader)
        writer.close()
    assert not caplog.text


async def test_a_body_that_is_too_large_is_refused_before_it_has_come(nowhere, executor):
    async with served(nowhere, executor) as (address, _):
        reader, writer = await asyncio.open_connection(*address.split(":"))
        head = f"POST /api/v1/jobs HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {LARGEST_BODY + 1}\r\n\r\n".encode())
        assert b" 413 " in await reader.readline()
        writer.close()


async def test_a_port_in_use_is_told_with_the_setting_and_the_mend(nowhere, executor):
    async with served(nowhere, executor) as (address, _):
        with pytest.raises(
            ConfigError, match=r"^JOEX_HTTP_ADDRESS: can't listen on .* listens there; set another port"
        ):
            listen(address)


@pytest.mark.parametrize("address", ["203.0.113.1:7878", "no such host:1", "nonsense", f"{'a' * 70}.example:80"])
def test_an_address_that_can_not_be_had_is_told_with_the_setting(address):
    with pytest.raises(ConfigError, match=r"^JOEX_HTTP_ADDRESS: "):
        listen(address)

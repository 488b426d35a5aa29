"""Workers and keyed jobs over HTTP, against a real database."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from joex import Client
from joex.cli import executor as executor_command
from joex.config import Settings
from joex.core import tuples
from joex.http import worker_models
from joex.http.api import create_api
from joex.http.listening import listen
from joex.http.server import serve
from joex.store import tokens, worker_runs
from tests.support.asgi import transport
from tests.support.cases import case
from tests.support.waiting import eventually

HERE = "http://127.0.0.1:7878"
NOBODY = str(uuid4())
RUN = {"job": NOBODY, "lock_id": NOBODY}
CALLS: dict[str, dict[str, Any]] = {
    "accept": {"type": "resize"},
    "update": RUN,
    "finish": RUN,
    "give-back": RUN,
    "timeouts": {"type": "resize", "activity": "30s"},
    "keyed/add": {"type": "resize", "id": 1},
    "keyed/remove": {"job": NOBODY},
    "keyed/cancel": {"job": NOBODY},
    "keyed/resubmit": {"job": NOBODY},
    "keyed/get": {"type": "resize", "id": 1},
    "keyed/list": {"type": "resize"},
    "keyed/count": {"type": "resize"},
    "keyed/active": {"type": "resize"},
}
"""All calls that need a body, each with a valid one."""


def api(client: Client, **settings: Any) -> Any:
    nothing: Any = None  # these calls need nothing of an executor
    return create_api(Settings(**settings), client, nothing, lambda: (b"", "text/plain"))


def browse(api: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=transport(api), base_url=HERE)


class Calls:
    """The calls of a program: a JSON body, and the answer."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http

    async def __call__(self, call: str, **body: Any) -> tuple[int, Any]:
        answer = await self.http.post(f"/api/v1/{call}", json=body)
        return answer.status_code, answer.json() if answer.content else None

    async def ok(self, call: str, **body: Any) -> Any:
        """The answer of a call that must be served."""
        status, answer = await self(call, **body)
        assert status in (200, 201), answer
        return answer

    async def accept(self, job_type: Any = "resize", **more: Any) -> Any:
        """Accept a job; there must be one."""
        return await self.ok("accept", type=job_type, **more)

    async def add(self, job_id: Any, job_type: Any = "resize", **more: Any) -> str:
        """The UUID of a new job."""
        answer: dict[str, str] = await self.ok("keyed/add", type=job_type, id=job_id, **more)
        return answer["job"]

    async def get(self, job: str) -> Any:
        return await self.ok("keyed/get", job=job)


def run_of(accepted: dict[str, Any]) -> dict[str, str]:
    """The ids of a run."""
    return {"job": accepted["job"], "lock_id": accepted["lock_id"]}


@pytest.fixture
async def call(client: Client) -> AsyncIterator[Calls]:
    async with browse(api(client, retries=1, retry_delay="1h")) as http:
        yield Calls(http)


@pytest.fixture
async def alone() -> AsyncIterator[Calls]:
    """Calls of a server that does not reach its database."""
    async with Client("postgresql://nobody@127.0.0.1:1/nothing") as nowhere, browse(api(nowhere)) as http:
        yield Calls(http)


# A worker


async def test_a_worker_accepts_a_job_reports_and_finishes_it(call, client):
    job = await call.add(7, opts={"data": {"width": 10}, "priority": 1, "trace": "x"})
    accepted = await call.accept(worker="ann")
    assert accepted == {
        "job": job,
        "lock_id": accepted["lock_id"],
        "attempt": 1,
        "type": "resize",
        "id": 7,
        "opts": {"data": {"width": 10}, "priority": 1, "trace": "x"},
    }
    report = {"opts": {"data": {"width": 10, "done": 5}}, "progress": 50, "message": "half", "log": ["one", "two"]}
    assert await call("update", **run_of(accepted), **report) == (200, {"answer": "ok", "resubmit": False})
    stored = await client.get(UUID(job))
    assert (stored.state, stored.app_id, stored.progress, stored.progress_message) == ("running", "ann", 50, "half")
    assert stored.args == {"width": 10, "done": 5}

    end = {"result": {"bytes": 99}, "message": "done", "log": ["three"]}
    assert await call("finish", **run_of(accepted), **end) == (200, {"answer": "ok"})
    stored = await client.get(UUID(job))
    assert (stored.state, stored.result, stored.message, stored.progress) == ("success", {"bytes": 99}, "done", 100)
    log = await client.log(UUID(job))
    assert [(line.attempt, line.level, line.message) for line in log] == [
        (1, "info", "one"),
        (1, "info", "two"),
        (1, "info", "three"),
        (1, "info", "succeeded: done"),
    ]


async def test_a_worker_gets_the_values_of_a_job_as_the_database_has_them(call, client):
    await call.add(7, opts={"data": {"x": 1}, "priority": 1, "resubmit": True, "b": [{}], "a": None})
    number = "1.00000000000000000001"  # which Python's float is not
    async with client.acquire() as connection:
        await connection.execute("UPDATE joex_private.job SET args = $1::text::jsonb", f'{{"x": {number}}}')
    answer = await call.http.post("/api/v1/accept", json={"type": "resize"})
    assert f'"data":{{"x": {number}}}' in answer.text
    opts = {"data": {"x": 1.0}, "priority": 1, "resubmit": True, "b": [{}], "a": None}
    assert (answer.json()["opts"], answer.headers["content-type"]) == (opts, "application/json")


@pytest.mark.parametrize("field", ["args", "opts"])
@pytest.mark.parametrize("odd", ["1e5000", "[" * 300 + "]" * 300], ids=["digits", "depth"])
async def test_values_that_no_worker_in_python_could_read_are_shown_as_such(call, client, field, odd):
    await call.add(7, opts={"data": {"y": 1}, "z": 2})
    async with client.acquire() as connection:
        change = f"UPDATE joex_private.job SET {field} = $1::text::jsonb"  # noqa: S608 - a constant
        await connection.execute(change, f'{{"x": {odd}}}')
    opts = (await call.accept())["opts"]
    shown, other = (opts["data"], {"z": 2}) if field == "args" else (opts, {"data": {"y": 1}})
    assert shown["unreadable"].endswith(": read it in SQL")
    assert "x" not in shown
    assert other.items() <= opts.items()


async def test_free_fields_that_sql_has_given_the_names_of_options_are_not_shown(call, client):
    job = await call.add(7, opts={"data": {"x": 1}})
    async with client.acquire() as connection:
        await connection.execute("""
            UPDATE joex_private.job SET opts = '{"data": 1, "priority": 2, "cancel": 3, "resubmit": 4, "free": 5}'
        """)
    opts = {"data": {"x": 1}, "free": 5}
    assert (await call.get(job))["opts"] == opts
    answer = await call.http.post("/api/v1/accept", json={"type": "resize"})
    fields = dict(json.loads(answer.text, object_pairs_hook=list))
    assert dict(fields["opts"]) == {"data": [("x", 1)], "free": 5}
    assert len(fields["opts"]) == len(opts), "each comes once"


async def test_a_run_may_be_named_by_type_and_id_as_well(call, client):
    job = await call.add(["eu", 7], job_type=["resize", 2])
    accepted = await call.accept(["resize", 2])
    name = {"type": ["resize", 2], "id": ["eu", 7], "lock_id": accepted["lock_id"]}
    assert await call.ok("update", **name, progress=10, log=["a line"]) == {"answer": "ok", "resubmit": False}
    assert await call.ok("finish", **name, opts={"data": {"n": 1}}) == {"answer": "ok"}
    stored = await client.get(UUID(job))
    assert (stored.state, stored.args) == ("success", {"n": 1})


async def test_where_there_is_nothing_to_do_the_answer_is_empty(call):
    answer = await call.http.post("/api/v1/accept", json={"type": "resize"})
    assert (answer.status_code, answer.content) == (204, b"")


async def test_what_a_shell_needs_comes_first(call):
    """A shell can then find them without a JSON parser: free texts, which could look like them, come later."""
    job = await call.add('"job":"', opts={"data": {"lock_id": "no"}, "job": "no"})
    answer = await call.http.post("/api/v1/accept", json={"type": "resize"})
    lock = answer.json()["lock_id"]
    assert answer.text.startswith(f'{{"job":"{job}","lock_id":"{lock}","attempt":1,')


async def test_a_worker_takes_submitted_jobs_of_any_queue(call, client):
    job = await client.submit("mail.send", {"to": "ann"}, queue="mails")
    accepted = await call.accept("mails")
    assert (accepted["type"], accepted["id"]) == ("mail.send", {"uuid": str(job)})
    assert accepted["opts"] == {"data": {"to": "ann"}}
    await call.ok("finish", type="mail.send", id=accepted["id"], lock_id=accepted["lock_id"])
    assert (await client.get(job)).state == "success"


async def test_nothing_above_the_limit_is_taken(call):
    for priority in (1, 2, 3):
        await call.add(priority, opts={"priority": priority})
    assert (await call.accept(max_priority=2))["id"] == 1
    assert (await call.accept(max_priority=2))["id"] == 2
    assert await call("accept", type="resize", max_priority=2) == (204, None)
    assert await call("accept", type="resize", max_priority=None) == (204, None), "null is the lowest of all"
    assert (await call.accept())["id"] == 3


async def test_a_job_that_is_given_back_waits_at_its_old_place_and_its_run_does_not_count(call):
    first, _ = await call.add(1), await call.add(2)
    accepted = await call.accept()
    assert await call.ok("give-back", **run_of(accepted)) == {"answer": "ok"}
    assert (await call.get(first))["attempt"] == 0
    again = await call.accept()
    assert (again["job"], again["attempt"]) == (first, 1)


async def test_a_run_that_fails_is_tried_again_as_the_executor_is_set(call, client):
    job = await call.add(1)
    await call.ok("finish", **run_of(await call.accept()), error="broken")
    stored = await client.get(UUID(job))
    assert (stored.state, stored.error) == ("stuck", "broken")
    assert stored.due_at - stored.scheduled_at > timedelta(minutes=59), "the delay is 1h"
    assert await client.retry(UUID(job))
    await call.ok("finish", **run_of(await call.accept()), error="broken")
    assert (await client.get(UUID(job))).state == "stuck", "retried by hand, all retries are new"
    async with client.acquire() as connection:
        await connection.execute("UPDATE joex_private.job SET due_at = NULL, lane = 0")
    await call.ok("finish", **run_of(await call.accept()), error="still broken")
    stored = await client.get(UUID(job))
    assert (stored.state, stored.error) == ("failed", "still broken")


async def test_a_run_that_fails_for_good_is_not_tried_again(call, client):
    job = await call.add(1)
    await call.ok("finish", **run_of(await call.accept()), error="no such file", retry=False)
    assert (await client.get(UUID(job))).state == "failed"


@pytest.mark.parametrize("what", ["update", "finish", "give-back", "keyed/resubmit"])
@pytest.mark.parametrize("name", ["another's job", "no job", "no id"])
async def test_a_run_that_has_lost_its_job_is_told_and_changes_nothing(call, client, what, name):
    job = await call.add(1)
    mine = run_of(await call.accept())
    await call.ok("give-back", **mine)
    others = await call.accept()
    names: dict[str, dict[str, Any]] = {
        "another's job": mine,
        "no job": RUN,
        "no id": {"type": "resize", "id": 2, "lock_id": mine["lock_id"]},
    }
    said: dict[str, Any] = (
        {} if what in ("give-back", "keyed/resubmit") else {"opts": {"data": {"mine": 1}}, "log": ["mine"]}
    )
    assert await call(what, **names[name], **said) == (
        409,
        {"answer": "worker_conflict", "detail": "the run has lost its job: stop, and leave the job alone"},
    )
    assert [line.message for line in await client.log(UUID(job))] == ["given back: this run does not count"]
    assert (await call.get(job))["opts"] == {"data": {}}
    assert await call.ok("finish", **run_of(others)) == {"answer": "ok"}


async def test_a_run_of_a_job_that_was_cancelled_is_told_to_stop(call, client):
    job = await call.add(1)
    run = run_of(await call.accept())
    await call.ok("keyed/cancel", job=job)
    told = (409, {"answer": "canceled", "detail": "the job was cancelled: stop"})
    assert await call("update", **run, opts={"data": {"n": 1}}, log=["a last word"]) == told
    assert (await call.get(job))["state"] == "running"
    assert await call("finish", **run, result=1, log=["stopped"]) == told
    stored = await client.get(UUID(job))
    assert (stored.state, stored.args, stored.result) == ("cancelled", {}, None)
    assert [line.message for line in await client.log(UUID(job))] == ["a last word", "stopped", "cancelled on request"]
    assert await call("finish", **run, result=1) == told, "said again"


@pytest.mark.parametrize(
    ("end", "state"),
    [({}, "success"), ({"error": "broken"}, "stuck"), ({"opts": {"resubmit": True}}, "waiting")],
)
async def test_the_end_of_a_run_may_be_said_again_where_the_answer_was_lost(call, client, end, state):
    job = await call.add(1)
    run = run_of(await call.accept())
    for _ in range(2):
        assert await call("finish", **run, **end, log=["done"]) == (200, {"answer": "ok"})
        stored = await client.get(UUID(job))
        assert (stored.state, stored.attempt) == (state, 1)
        assert [line.message for line in await client.log(UUID(job))][:-1] == ["done"], "and how the run has ended"
    for what in ("cancel", "resubmit"):
        await call.ok(f"keyed/{what}", job=job)
        assert await call("finish", **run, **end) == (200, {"answer": "ok"}), "whatever clients do with the job then"
    await call.accept()
    assert (await call("finish", **run, **end))[1]["answer"] == "worker_conflict"


@pytest.mark.parametrize("what", ["update", "finish"])
async def test_who_has_given_a_job_back_can_not_go_on_or_finish_it(call, client, what):
    job = await call.add(1)
    run = run_of(await call.accept())
    await call.ok("give-back", **run)
    assert (await call(what, **run, log=["mine"]))[1]["answer"] == "worker_conflict"
    assert [line.message for line in await client.log(UUID(job))] == ["given back: this run does not count"]


async def test_a_run_asks_for_another_round(call):
    job = await call.add(1)
    run = run_of(await call.accept())
    assert await call.ok("keyed/resubmit", **run) == {"answer": "ok"}
    assert (await call.get(job))["opts"]["resubmit"] is True
    assert await call.ok("update", **run) == {"answer": "ok", "resubmit": True}
    await call.ok("finish", **run)
    assert (await call.get(job))["state"] == "pending"
    assert (await call.accept())["attempt"] == 2


# Waiting


async def waits(client: Client) -> None:
    """Wait until a caller waits for a job."""
    async with client.acquire() as connection:
        await eventually(lambda: connection.fetchval("SELECT count(*) > 0 FROM joex_private.watch WHERE for_workers"))


async def test_a_call_that_waits_for_a_job_looks_once_before_it_waits(call, client, monkeypatch):
    waiting, looks, take = client.connections.accept_waiters.waiting, list[bool](), worker_runs.accept

    async def note(*given: Any) -> Any:
        looks.append(bool(waiting))
        return await take(*given)

    monkeypatch.setattr(worker_runs, "accept", note)
    accepting = asyncio.create_task(call.accept(wait="60s"))
    await eventually(lambda: True in looks, why="it looks again when it is in line")
    await call.add(1)
    assert (await accepting)["id"] == 1
    assert looks.count(False) == 1


async def test_a_worker_that_waits_gets_a_job_as_soon_as_there_is_one(call, client):
    accepting = asyncio.create_task(call.accept(wait="60s"))
    await waits(client)
    job = await call.add(1)
    assert (await asyncio.wait_for(accepting, 30))["job"] == job


async def test_a_worker_that_has_waited_long_enough_hears_that_there_is_nothing(call):
    assert await call("accept", type="resize", wait=0.05) == (204, None)
    assert await call("accept", type="resize", wait="50ms") == (204, None)


@asynccontextmanager
async def served(client: Client) -> AsyncIterator[tuple[str, int, asyncio.Task[None]]]:
    """A real server, because only that notices when a caller disconnects."""
    with listen("127.0.0.1:0") as listener:
        serving = asyncio.create_task(serve(api(client), listener))
        try:
            yield *listener.getsockname(), serving
        finally:
            serving.cancel()
            await asyncio.wait([serving])


@pytest.mark.parametrize(
    ("header", "further"),
    [("", ""), ("", "GET /healthz HTTP/1.1\r\n"), ("", "x" * 20_000), ("Connection: Upgrade\r\nUpgrade: h2c\r\n", "x")],
    ids=["nothing", "a part of its next request", "very much", "a byte of another protocol"],
)
async def test_a_worker_that_hangs_up_while_it_waits_takes_nothing(call, client, header, further, monkeypatch):
    """Nor one that has sent more meanwhile: the server does not stop reading, or it would not notice the end."""
    monkeypatch.setattr(worker_models, "LONGEST_WAIT", timedelta(hours=1))  # so that the wait does not end by itself
    body = json.dumps({"type": "resize", "wait": "1h"})
    async with served(client) as (host, port, _):
        with socket.create_connection((host, port)) as connection:
            connection.sendall(
                f"POST /api/v1/accept HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n{header}"
                f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
            )
            await waits(client)
            connection.sendall(further.encode())
        await eventually(lambda: not client.connections.accept_waiters.waiting, why="no caller waits any more")
        await call.add(1)
        assert (await call.accept())["attempt"] == 1


async def test_a_server_that_stops_keeps_no_worker_waiting(client):
    async with served(client) as (host, port, serving), httpx.AsyncClient(base_url=f"http://{host}:{port}") as http:
        body = {"type": "resize", "wait": "60s"}
        accepting = asyncio.create_task(http.post("/api/v1/accept", json=body, timeout=30))
        await waits(client)
        serving.cancel()
        assert (await accepting).status_code == 204


async def test_a_job_that_was_taken_for_a_worker_that_has_hung_up_is_given_back(call, client):
    ours = api(client)

    async def hangs_up(scope: Any, receive: Any, send: Any) -> None:
        is_read = False

        async def receive_no_more() -> Any:
            nonlocal is_read
            message = {"type": "http.disconnect"} if is_read else await receive()
            is_read = is_read or not message.get("more_body")
            return message

        await ours(scope, receive_no_more, send)

    await call.add(1)
    async with browse(hangs_up) as http:
        assert await Calls(http)("accept", type="resize") == (204, None)
    assert (await call.accept())["attempt"] == 1


async def test_a_job_of_a_worker_that_hangs_up_and_whose_token_is_revoked_meanwhile_is_given_back(
    client, connection, database_url, monkeypatch
):
    take, job_id = worker_runs.accept, await client.submit("resize", queue="resize")
    token = await tokens.create(connection, "worker", ["work"])

    async def take_it_and_lose_the_worker(*given: Any) -> Any:
        taken = await take(*given)
        await tokens.revoke(connection, "worker")
        worker.close()
        await eventually(lambda: any(one.cancelling() for one in asyncio.all_tasks()), why="the server notices")
        return taken

    monkeypatch.setattr("joex.http.tokens.KEPT_FOR", 0.0)  # each look-up asks the database
    monkeypatch.setattr(worker_runs, "accept", take_it_and_lose_the_worker)
    async with executor_command._client(Settings(), database_url) as sharing, served(sharing) as (host, port, _):
        with socket.create_connection((host, port)) as worker:
            worker.sendall(
                f"POST /api/v1/accept HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n"
                'Content-Type: application/json\r\nContent-Length: 17\r\n\r\n{"type":"resize"}'.encode()
            )

            async def is_given_back() -> bool:
                return worker.fileno() == -1 and (await client.get(job_id)).state == "waiting"

            await eventually(is_given_back)


# Timeouts


async def test_a_timeout_is_set_listed_and_taken_away(call):
    assert (await call.http.get("/api/v1/timeouts")).json() == {"timeouts": []}
    await call.ok("timeouts", type=["resize", 1], activity="30s")
    await call.ok("timeouts", type="mail.send", visibility=300)
    await call.ok("timeouts", type="mail.send", activity=None, visibility="5m")
    assert (await call.http.get("/api/v1/timeouts")).json() == {
        "timeouts": [
            {"type": ["resize", 1], "activity": 30, "visibility": None},
            {"type": "mail.send", "activity": None, "visibility": 300},
        ]
    }
    for job_type in (["resize", 1], "mail.send"):
        assert (await call.ok("timeouts", type=job_type))["message"] == "the type has no timeout"
    assert (await call.http.get("/api/v1/timeouts")).json() == {"timeouts": []}


async def test_a_worker_that_does_not_report_in_time_loses_its_job_to_another(call):
    await call.ok("timeouts", type="resize", activity="100ms")
    job = await call.add(1)
    lost = await call.accept()
    again = await call.accept(wait="30s")
    assert (again["job"], again["attempt"]) == (job, 2)
    for what in ("update", "finish"):
        assert (await call(what, **run_of(lost)))[1]["answer"] == "worker_conflict"


async def test_reports_keep_a_job_from_others(call, client):
    await call.ok("timeouts", type="resize", activity="1h")
    job = UUID(await call.add(1))
    run = run_of(await call.accept())

    async def overdue_at() -> Any:
        async with client.acquire() as connection:
            return await connection.fetchval("SELECT overdue_at FROM joex_private.job WHERE id = $1", job)

    before = await overdue_at()
    await call.ok("update", **run)
    assert await overdue_at() > before


# Jobs with ids of their callers' own

VALUES = [
    None,
    True,
    7,
    -(2**300),
    5.0,
    2.5,
    "a text",
    "#not a name",
    "a\0b é",
    {"bytes": "AAH/"},
    {"uuid": NOBODY},
    {"double": "fff0000000000000"},
    {"single": "3fc00000"},
    {"versionstamp": "000102030405060708090a0b"},
    [],
    ["eu", [1, None, {"bytes": ""}], 5.0],
]


async def test_types_ids_and_priorities_may_be_any_value_that_orders(call):
    for value in VALUES:
        with case(value):
            await is_kept(call, value)


async def is_kept(call: Any, value: Any) -> None:
    """Add a job with a value as its type, id and priority, and find it there."""

    def same(other: Any) -> bool:
        return json.dumps(other) == json.dumps(value)  # 5.0 is not 5 there

    job = await call.add(value, job_type=value, opts={"priority": value})
    found = await call.ok("keyed/get", type=value, id=value)
    assert found["job"] == job
    assert same(found["type"])
    assert same(found["id"])
    assert same(found["opts"]["priority"])
    accepted = await call.accept(value, max_priority=value)
    assert accepted["job"] == job
    assert same(accepted["id"])
    [active] = (await call.ok("keyed/active", type=value))["ids"]
    assert same(active)
    [listed] = (await call.ok("keyed/list", type=value))["jobs"]
    assert same(listed["id"])
    assert await call.ok("finish", type=value, id=value, lock_id=accepted["lock_id"]) == {"answer": "ok"}
    await call.ok("keyed/remove", type=value, id=value)
    assert (await call("keyed/get", job=job))[0] == 404


async def test_a_whole_number_and_a_float_are_two_ids(call):
    await call.add(5)
    await call.add(5.0)
    assert (await call.ok("keyed/count", type="resize"))["pending"] == 2


async def test_a_job_is_added_with_all_its_fields(call, client):
    opts = {"data": {"width": 10}, "priority": [1, "a"], "resubmit": True, "free": [1, None]}
    fields = {"group": "acme", "queue": "images", "subject": "a picture", "submitter": "shop"}
    job = await call.add(7, opts=opts, **fields)
    stored = await client.get(UUID(job))
    assert {name: getattr(stored, name) for name in fields} == fields
    assert await call.get(job) == {
        "job": job,
        "state": "pending",
        "attempt": 0,
        "type": "resize",
        "id": 7,
        "opts": opts,
    }


async def test_a_job_that_is_there_already_can_not_be_added(call):
    first = await call.add(7, opts={"data": {"n": 1}})
    assert await call("keyed/add", type="resize", id=7) == (
        409,
        {"detail": "id: the type 'resize' has a job 7 already"},
    )
    assert (await call.get(first))["opts"] == {"data": {"n": 1}}


async def test_a_job_that_is_added_as_cancelled_waits_until_it_is_resubmitted(call):
    job = await call.add(7, opts={"cancel": True})
    assert (await call.get(job))["opts"] == {"data": {}, "cancel": True}
    assert await call("accept", type="resize") == (204, None)
    assert await call.ok("keyed/resubmit", type="resize", id=7) == {"answer": "ok"}
    assert (await call.accept())["job"] == job


async def test_a_job_is_cancelled_resubmitted_and_removed(call):
    job = await call.add(7)
    for what, state in (("cancel", "finished"), ("resubmit", "pending")):
        assert await call.ok(f"keyed/{what}", job=job) == {"answer": "ok"}
        assert (await call.get(job))["state"] == state
    assert await call.ok("keyed/remove", job=job) == {"answer": "ok"}
    assert await call("keyed/get", job=job) == (404, {"answer": "not_found", "detail": "there is no such job"})


@pytest.mark.parametrize("what", ["get", "remove", "cancel", "resubmit"])
@pytest.mark.parametrize("name", [{"job": NOBODY}, {"type": "resize", "id": 8}], ids=["by UUID", "by id"])
async def test_a_job_that_is_not_there_is_not_found(call, what, name):
    await call.add(7)
    assert await call(f"keyed/{what}", **name) == (404, {"answer": "not_found", "detail": "there is no such job"})


async def test_jobs_are_listed_page_by_page_in_the_order_of_their_ids(call):
    for job_id in ("b", 3, None, [1]):
        await call.add(job_id)
    await call.add(1, job_type="another")
    first = await call.ok("keyed/list", type="resize", limit=2)
    assert ([job["id"] for job in first["jobs"]], first["more"]) == ([None, "b"], True)
    last = await call.ok("keyed/list", type="resize", limit=2, after="b")
    assert ([job["id"] for job in last["jobs"]], last["more"]) == ([[1], 3], False)
    after_null = await call.ok("keyed/list", type="resize", after=None)
    assert [job["id"] for job in after_null["jobs"]] == ["b", [1], 3]


async def test_jobs_are_listed_and_counted_by_their_state(call):
    for job_id in range(4):
        await call.add(job_id)
    await call.ok("finish", **run_of(await call.accept()))
    await call.accept()
    assert await call.ok("keyed/count", type="resize") == {"pending": 2, "running": 1, "finished": 1}
    await call.add(4, opts={"priority": 2})
    limited = [await call.ok("keyed/count", type="resize", max_priority=limit) for limit in (1, 2)]
    assert [counts["pending"] for counts in limited] == [2, 3]
    for state, ids in (("finished", [0]), ("running", [1]), ("pending", [2, 3, 4])):
        found = await call.ok("keyed/list", type="resize", state=state)
        assert [job["id"] for job in found["jobs"]] == ids
    assert await call.ok("keyed/active", type="resize") == {"ids": [1], "more": False}


async def running(call: Calls, *ids: Any, **opts: Any) -> None:
    """Add jobs, and accept them."""
    for job_id in ids:
        await call.add(job_id, opts=opts)
        await call.accept()


@pytest.mark.parametrize("path", ["keyed/list", "keyed/active"])
async def test_in_a_list_of_long_ids_the_event_loop_does_other_work_after_each_of_them(call, monkeypatch, path):
    await running(call, *([nr, *[0] * 900] for nr in range(5)))
    done, passes = 0, dict[str, list[int]]()

    async def other_work() -> None:
        nonlocal done
        while True:
            done += 1
            await asyncio.sleep(0)

    def noted(name: str, made: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def make(value: Any) -> Any:
            passes.setdefault(name, []).append(done)
            return made(value)

        return make

    for name in ("unpack", "to_json"):
        monkeypatch.setattr(tuples, name, noted(name, getattr(tuples, name)))
    other = asyncio.create_task(other_work())
    await call.ok(path, type="resize")
    other.cancel()
    assert len(set(passes["unpack"])) == len(passes["unpack"]) == 5
    assert set(passes["to_json"]) == set(passes["unpack"])


@pytest.mark.parametrize(("path", "name", "pages"), [("list", "jobs", [1, 1, 1]), ("active", "ids", [2, 1])])
async def test_a_page_of_long_ids_and_priorities_ends_at_a_limit_and_the_next_one_goes_on(
    call, monkeypatch, path, name, pages
):
    monkeypatch.setattr("joex.http.keyed_pages.MOST_PACKED", 1000)
    ids = [[nr, "x" * 450] for nr in range(3)]
    await running(call, *ids, priority="x" * 600)
    found: list[Any] = []
    sizes, more = [], True
    while more:
        page = await call.ok(f"keyed/{path}", type="resize", **({"after": found[-1]} if found else {}))
        found += [one["id"] if path == "list" else one for one in page[name]]
        more = page["more"]
        sizes.append(len(page[name]))
    assert (found, sizes) == (ids, pages)
    page = await call.ok(f"keyed/{path}", type="resize", limit=1)
    assert (len(page[name]), page["more"]) == (1, True)


# Authentication, and trouble


@pytest.mark.parametrize(
    ("what", "body", "detail"),
    [
        ("accept", {}, "type: is required"),
        ("accept", {"type": ""}, "type: must not be empty"),
        ("accept", {"type": {"x": 1}}, "type: an object here has one name of bytes, "),
        ("accept", {"type": "x" * 255}, "type: at most 254 bytes; got 255"),
        ("accept", {"type": "t", "max_priority": {"uuid": "x"}}, "max_priority: not a uuid: 'x'"),
        ("accept", {"type": "t", "max_priority": "x" * 1001}, "max_priority: at most 1000 bytes when packed"),
        ("accept", {"type": "t", "worker": ""}, "worker: must not be empty"),
        ("accept", {"type": "t", "wait": "61s"}, "wait: at most 60 seconds"),
        ("accept", {"type": "t", "wait": "soon"}, "wait: expected something like '30s'"),
        ("accept", {"type": "t", "wait": True}, "wait: expected a text such as '30s', or a number of seconds"),
        ("accept", {"typ": "t", "type": "t"}, "typ: there is no such field"),
        ("update", {"lock_id": NOBODY}, "body: name the job: by 'type' and 'id', or by 'job'"),
        ("update", {"type": "t", "lock_id": NOBODY}, "body: name the job: "),
        ("update", {**RUN, "type": "t"}, "body: name the job: "),
        ("update", {"job": NOBODY}, "lock_id: is required"),
        ("update", {**RUN, "lock_id": "x"}, "lock_id: Input should be a valid UUID"),
        ("update", {**RUN, "job": 7}, "job: "),
        ("update", {**RUN, "progress": 101}, "progress: Input should be less than or equal to 100"),
        ("update", {**RUN, "message": "a\0b"}, "message: must not contain a NUL character"),
        ("update", {**RUN, "log": "a line"}, "log: Input should be a valid list"),
        ("update", {**RUN, "log": ["a", 1]}, "log[1]: Input should be a valid string"),
        ("update", {**RUN, "log": ["x"] * 1001}, "log: List should have at most 1000 items"),
        ("update", {**RUN, "opts": []}, "opts: Input should be a valid dictionary"),
        ("update", {**RUN, "opts": {"data": 1}}, "opts.data: Input should be a valid dictionary"),
        ("update", {**RUN, "opts": {"priority": {}}}, "opts.priority: an object here has one name"),
        ("update", {**RUN, "opts": {"resubmit": 1}}, "opts.resubmit: Input should be a valid boolean"),
        ("finish", {**RUN, "error": 1}, "error: Input should be a valid string"),
        ("finish", {**RUN, "retry": "no"}, "retry: Input should be a valid boolean"),
        ("finish", {**RUN, "progress": 100}, "progress: there is no such field"),
        ("give-back", {**RUN, "opts": {}}, "opts: there is no such field"),
        ("timeouts", {"type": "t", "activity": 0}, "activity: at least 1 ms"),
        ("timeouts", {"type": "t", "visibility": "-1s"}, "visibility: expected something like"),
        ("timeouts", {"type": "t", "activity": 1, "visibility": 1}, "body: activity, visibility: a type has one"),
        ("keyed/add", {"type": "t"}, "id: is required"),
        ("keyed/add", {"type": "t", "id": [{"bytes": "?"}]}, "id: not a bytes: '?'"),
        ("keyed/add", {"type": "t", "id": "x" * 1001}, "id: at most 1000 bytes when packed"),
        ("keyed/add", {"type": "t", "id": 1, "group": ""}, "group: must not be empty"),
        ("keyed/add", {"type": "t", "id": 1, "queue": "é" * 128}, "queue: at most 254 bytes; got 256"),
        ("keyed/add", {"type": "t", "id": 1, "submitter": "x" * 255}, "submitter: at most 254 bytes; got 255"),
        ("keyed/add", {"type": "t", "id": 1, "opts": {"cancel": "yes"}}, "opts.cancel: Input should be a valid"),
        ("keyed/add", {"type": "t", "id": 1, "opts": {"data": {"x": "\0"}}}, "data: must not contain a NUL character"),
        ("keyed/add", {"type": "t", "id": 1, "opts": {"free": "\0"}}, "opts: must not contain a NUL character"),
        ("keyed/list", {"type": "t", "limit": 1001}, "limit: Input should be less than or equal to 1000"),
        ("keyed/list", {"type": "t", "state": "stuck"}, "state: Input should be 'pending', 'running' or 'finished'"),
        ("keyed/get", {"id": 1}, "body: name the job: "),
    ],
)
async def test_a_wrong_call_is_refused_and_says_which_field_is_wrong(alone, what, body, detail):
    status, answer = await alone(what, **body)
    assert status == 400, answer
    assert answer["detail"].startswith(detail)


@pytest.mark.parametrize("field", ["type", "id"])
async def test_arrays_in_too_many_arrays_are_refused(alone, field):
    status, answer = await alone("keyed/add", **{"type": "t", "id": 1, field: json.loads("[" * 600 + "]" * 600)})
    assert status == 400, answer
    assert answer["detail"].startswith(f"{field}: ")


async def test_a_run_can_not_cancel_its_own_job(call, client):
    job = await call.add(1)
    status, answer = await call("update", **run_of(await call.accept()), opts={"cancel": True}, log=["a line"])
    assert (status, answer["detail"]) == (400, "cancel: a run can't cancel its own job; finish it, or call cancel()")
    assert await client.log(UUID(job)) == [], "nothing was done"


@pytest.mark.parametrize("what", CALLS)
async def test_each_call_needs_the_token_where_one_is_set(what):
    async with (
        Client("postgresql://nobody@127.0.0.1:1/nothing") as nowhere,
        browse(api(nowhere, api_token="0123456789abcdef")) as http,
    ):
        assert (await http.post(f"/api/v1/{what}", json=CALLS[what])).status_code == 401
        with_token = {"Authorization": "Bearer 0123456789abcdef"}
        assert (await http.post(f"/api/v1/{what}", json=CALLS[what], headers=with_token)).status_code == 503


@pytest.mark.parametrize("what", [*CALLS, "accept and wait"])
async def test_an_unreachable_database_is_a_reason_to_try_again(alone, what):
    name, wait = ("accept", {"wait": "60s"}) if what == "accept and wait" else (what, {})
    answer = await alone.http.post(f"/api/v1/{name}", json=CALLS[name] | wait)
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) > 0
    assert (await alone.http.get("/api/v1/timeouts")).status_code == 503


async def test_the_calls_that_are_tested_here_are_all_there_are(alone):
    paths = (await alone.http.get("/openapi.json")).json()["paths"]
    tags = {"workers", "keyed jobs"}
    assert {f"/api/v1/{what}" for what in CALLS} == {
        path for path, methods in paths.items() if tags & set(methods.get("post", {}).get("tags", []))
    }

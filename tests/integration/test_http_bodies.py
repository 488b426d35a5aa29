"""Large request bodies: refused by their length, or parsed beside the event loop, a few of a caller at a time."""

import asyncio
import json
import threading
from datetime import timedelta
from typing import Any

import httpx
import pytest

from joex.client import submissions
from joex.config import Settings
from joex.core import job, json_values
from joex.http import bodies, models
from joex.http.api import create_api
from joex.store import json_text as json_texts
from tests.support.asgi import transport
from tests.support.waiting import PATIENCE, eventually

LIMIT = 1_000_000
JSON = {"Content-Type": "application/json"}
NO_JOB = "019f0000-0000-7000-8000-000000000000"


class Face:
    """A fake executor."""

    app_id, phase, described, ready, alive = "host", "running", "running", True, True

    def running(self):
        return []

    def drain(self):
        raise AssertionError

    def wake(self):
        raise AssertionError


@pytest.fixture
async def http(client):
    api = create_api(Settings(), client, Face(), lambda: (b"", "text/plain"))
    async with httpx.AsyncClient(transport=transport(api), base_url="http://127.0.0.1:7878", headers=JSON) as http:
        yield http


@pytest.fixture
def parsed(monkeypatch):
    """The lengths of the bodies that were parsed."""
    lengths, parse = [], bodies.parse

    def parse_and_note(body, **more):
        lengths.append(len(body))
        return parse(body, **more)

    monkeypatch.setattr(bodies, "parse", parse_and_note)
    return lengths


LARGE = "[" + "[]," * 3_000_000 + "0]"


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/api/v1/jobs", '{"task": "t", "args": {"x": %s}}'),
        ("POST", "/jobber/queue", '{"type": "t", "payload": %s}'),
        ("POST", "/api/v1/keyed/add", '{"type": "t", "id": 1, "opts": {"data": {"x": %s}}}'),
        ("POST", f"/api/v1/job/{NO_JOB}/args", '{"args": {"x": %s}}'),
        ("PUT", "/api/v1/periodic/x", '{"task": "t", "timer": "yearly", "args": {"x": %s}}'),
    ],
)
async def test_arguments_over_the_limit_are_refused_by_their_length(http, parsed, method, path, body):
    answer = await http.request(method, path, content=body % LARGE)
    assert answer.status_code == 400
    assert answer.json()["detail"].startswith("args: at most 1000000 bytes; got a body of 90")
    assert parsed == []


@pytest.mark.parametrize(
    ("path", "opening", "ending", "field"),
    [
        ("jobs", "{", "}", "body"),
        ("jobs/many", "[{", "}]", "jobs[0]"),
        ("update", f'{{"job": "{NO_JOB}", "lock_id": "{NO_JOB}", ', "}", "body"),
    ],
)
async def test_a_body_of_many_unknown_fields_makes_one_error(http, path, opening, ending, field):
    unknown = ", ".join(f'"{nr:0200}": 0' for nr in range(150))
    answer = await http.post(f"/api/v1/{path}", content=f"{opening}{unknown}{ending}")
    assert answer.status_code == 400
    number = 152 if path == "update" else 150
    assert answer.json()["detail"] == f"{field}: {number} fields, and there is no '{'0' * 100}...'"


UNREADABLE = (
    "body: can't be read: it is no text, is nested too deeply, or has a number that is not finite, "
    "or of more than 4300 digits"
)


@pytest.mark.parametrize(
    "args",
    [b'{"x": "\xff"}', b'{"x": 1' + b"0" * 5000 + b"}", b'{"a": ' * 9000 + b"1" + b"}" * 9000],
    ids=["no text", "digits", "depth"],
)
@pytest.mark.parametrize("pad", [0, bodies.LARGE, bodies._LARGEST_IN_C])
async def test_a_body_that_can_not_be_read_is_refused_with_the_reasons(http, args, pad):
    answer = await http.post("/api/v1/jobs", content=b" " * pad + b'{"task": "t", "args": %b}' % args)
    assert (answer.status_code, answer.json()["detail"]) == (400, UNREADABLE)


@pytest.mark.parametrize("path", ["jobs", "jobs/many"])
@pytest.mark.parametrize("pad", [0, bodies.LARGE, bodies._LARGEST_IN_C])
async def test_arguments_of_200_levels_are_taken_and_of_more_refused(http, path, pad):
    def body(levels):
        job = b'{"task": "t", "args": %b1%b}' % (b'{"a": ' * levels, b"}" * levels)
        return b" " * pad + (b"[%b]" % job if path == "jobs/many" else job)

    taken, refused = [await http.post(f"/api/v1/{path}", content=body(levels)) for levels in (200, 201)]
    assert (taken.status_code, refused.status_code) == (201, 400)
    assert "args: can't be stored as JSON: recursion limit exceeded" in refused.json()["detail"]


@pytest.mark.parametrize(
    "body", [b'{"task": "t", "group": "a", "group": "b"}', b'{"task": "t", "args": {"group": 1, "group": 1}}']
)
@pytest.mark.parametrize("path", ["jobs", "jobs/many"])
@pytest.mark.parametrize("pad", [0, bodies.LARGE, bodies._LARGEST_IN_C])
async def test_a_body_with_a_name_twice_in_an_object_is_refused(http, body, path, pad):
    """The last value would count, and a proxy in front may have judged the first one."""
    body = body.replace(b": ", b": " + b" " * pad, 1)
    answer = await http.post(f"/api/v1/{path}", content=b"[%b]" % body if path == "jobs/many" else body)
    told = {"detail": "group: is given more than once in one object: give it once"}
    assert (answer.status_code, answer.json()) == (400, told)


@pytest.mark.parametrize("number", ["NaN", "1e999", "-Infinity"])
@pytest.mark.parametrize("path", ["jobs", "jobs/many"])
async def test_a_large_body_with_a_number_that_is_not_finite_is_refused_when_it_is_read(
    http, monkeypatch, path, number
):
    """To find which of five million parts it was stopped the event loop for twelve seconds."""
    monkeypatch.setattr(json_texts, "find_fault", pytest.fail)
    job = f'{{"task": "t", "args": {{"x": [{"1.5," * bodies.LARGE}{number}]}}}}'
    answer = await http.post(f"/api/v1/{path}", content=f"[{job}]" if path == "jobs/many" else job)
    assert (answer.status_code, answer.json()["detail"]) == (400, UNREADABLE)


async def test_of_a_value_that_can_not_be_written_a_bounded_number_of_parts_is_looked_at(http, monkeypatch):
    looked_at, say_fault = 0, json_values._say_fault

    def note(*given: Any) -> Any:
        nonlocal looked_at
        looked_at += 1
        return say_fault(*given)

    monkeypatch.setattr(json_values, "_say_fault", note)
    answer = await http.post("/api/v1/jobs", content=f'{{"task": "t", "args": {{"x": [{"1," * 200_000}"\\ud800"]}}}}')
    assert answer.status_code == 400
    assert answer.json()["detail"].startswith("args: can't be stored as JSON: ")
    assert looked_at == 100_000


async def test_of_many_jobs_the_first_wrong_one_is_named_and_no_others_are_judged(http):
    answer = await http.post("/api/v1/jobs/many", json=[{"task": "t"}, {}, {"task": 1}])
    assert (answer.status_code, answer.json()["detail"]) == (400, "jobs[1].task: is required")


async def test_the_limit_is_that_of_the_database(http, parsed, connection):
    body = json.dumps({"task": "t", "args": {"x": "y" * 1_900_000}})
    assert (await http.post("/api/v1/jobs", content=body)).status_code == 400
    assert parsed == []
    await connection.execute("SELECT joex.set_largest('args', 2000000)")
    assert (await http.post("/api/v1/jobs", content=body)).status_code == 201


@pytest.mark.parametrize(
    "body",
    [
        json.dumps({"task": "t", "args": {"x": "\u4e2d\u6587" * 150_000}}),
        json.dumps({"task": "t", "args": {"x": ["y"] * 150_000}}, indent=10),
        json.dumps({"task": "t", "args": {"x": "/" * 900_000}}).replace("/", "\\/"),
        json.dumps({"task": "t", "args": {"x": "y" * 900_000}}).encode("utf-16"),
    ],
    ids=["escapes", "spaces", "slashes", "UTF-16"],
)
async def test_arguments_within_the_limit_are_accepted_however_long_they_are_written(http, body):
    assert len(body) > 1_500_000
    answer = await http.post("/api/v1/jobs", content=body)
    assert answer.status_code == 201, answer.text


async def test_while_a_large_body_is_parsed_other_calls_are_served(http, monkeypatch):
    done, parse = threading.Event(), bodies.parse
    monkeypatch.setattr(bodies, "parse", lambda body, **more: done.wait(PATIENCE) and parse(body, **more))
    jobs = json.dumps([{"task": "t", "args": {"x": "y" * 1000}}] * 200)
    call = asyncio.create_task(http.post("/api/v1/jobs/many", content=jobs))
    for _ in range(3):
        assert (await http.get("/healthz")).status_code == 200
    done.set()
    answer = await call
    assert len(answer.json()["ids"]) == 200


@pytest.fixture
def in_the_loop(monkeypatch):
    """The values whose texts were made in the event loop, or read there."""
    values: list[Any] = []

    def note(name: str) -> None:
        call = getattr(json_texts, name)

        def noted(value: Any, **more: Any) -> Any:
            if threading.current_thread() is threading.main_thread():
                values.append(value)
            return call(value, **more)

        monkeypatch.setattr(json_texts, name, noted)

    for name in ("to_json", "from_json"):
        note(name)
    return values


VALUE = {"x": [[], {"": [0.5, "\u4e2d\n", None]}] * 5000, "y": {"x": [True, -1]}}


@pytest.mark.parametrize(
    ("call", "fields"),
    [
        ("POST /api/v1/jobs", {"task": "t", "args": VALUE}),
        ("POST /jobber/queue", {"type": "t", "payload": VALUE}),
        ("POST /jobber/queue", {"type": "t", "payload": [VALUE]}),
        ("POST /api/v1/keyed/add", {"type": "t", "id": 1, "opts": {"data": VALUE, "free": VALUE, "priority": 1}}),
        ("POST /api/v1/job/{waiting}/args", {"args": VALUE}),
        ("PUT /api/v1/periodic/x", {"task": "t", "timer": "yearly", "args": VALUE}),
        ("POST /api/v1/update", {"opts": {"data": VALUE, "free": VALUE, "priority": 1}}),
        ("POST /api/v1/finish", {"opts": {"data": VALUE, "free": VALUE, "priority": 1}, "result": VALUE}),
        ("POST /api/v1/finish", {"result": [VALUE]}),
        ("POST /api/v1/finish", {"result": "y" * 100_000}),
    ],
)
async def test_large_values_of_jobs_become_texts_beside_the_event_loop_and_are_stored_as_they_are(
    http, connection, in_the_loop, call, fields
):
    method, path = call.split()
    waiting = (await http.post("/api/v1/jobs", json={"task": "t"})).json()["id"]
    await http.post("/api/v1/keyed/add", json={"type": "w", "id": 1})
    run = (await http.post("/api/v1/accept", json={"type": "w"})).json()
    if path in ("/api/v1/update", "/api/v1/finish"):
        fields = {"job": run["job"], "lock_id": run["lock_id"], **fields}
    del in_the_loop[:]
    answer = await http.request(method, path.format(waiting=waiting), json=fields)
    assert answer.is_success, answer.text
    assert in_the_loop == []
    [(found,)] = await connection.fetch("""
        SELECT jsonb_agg(v)::text FROM (
            SELECT args AS v FROM joex_private.job UNION ALL SELECT opts FROM joex_private.job
            UNION ALL SELECT result FROM joex_private.job UNION ALL SELECT args FROM joex_private.periodic_task
        ) AS t WHERE length(v::text) > 1000
    """)
    opts = fields.get("opts", {})
    given = [fields.get("args"), opts.get("data"), opts and {"free": opts["free"]}, fields.get("result")]
    if payload := fields.get("payload"):
        given.append(payload if payload is VALUE else {"payload": payload})
    assert json.loads(found) == [one for one in given if one]


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"result": [[[[]] * 9] * 9] * 6000}, "result: at most 1000000 bytes; got more: store it elsewhere"),
        ({"result": {"x": "y" * 1_200_000}}, "result: at most 1000000 bytes; got more: store it elsewhere"),
        ({"opts": {"data": {"x": "y" * 1_200_000}}}, "data: at most 1000000 bytes; got more: store it elsewhere"),
        ({"opts": {"x": "y" * 1_200_000}}, "opts: at most 1000000 bytes; got more: store it elsewhere"),
        ({"log": [[]] * 50_000}, "body: more than 10000 lists and objects where none are"),
        ({"result": ["\0", "y" * 100_000]}, "result: must not contain a NUL character"),
    ],
)
async def test_values_of_runs_that_can_not_be_stored_are_refused_before_their_texts_are_made(
    http, connection, in_the_loop, fields, told
):
    await connection.execute("SELECT joex.set_largest('result', 1000000)")
    answer = await http.post("/api/v1/finish", json={"job": NO_JOB, "lock_id": NO_JOB, **fields})
    assert answer.status_code == 400
    assert answer.json()["detail"].startswith(told)
    assert in_the_loop == []


async def test_a_run_may_report_more_log_lines_and_errors_than_arguments_may_have(http):
    long = {"log": ["y" * 90_000] * 20, "error": "y" * 1_500_000}
    answer = await http.post("/api/v1/finish", json={"job": NO_JOB, "lock_id": NO_JOB, **long})
    assert answer.status_code == 409


async def test_while_the_arguments_of_many_jobs_are_written_other_calls_are_served(http, client, monkeypatch):
    begun, done = threading.Event(), threading.Event()

    def json_text(*given: Any) -> str:
        begun.set()
        assert done.wait(PATIENCE)
        return json_texts.json_text(*given)

    monkeypatch.setattr(bodies, "json_text", json_text)
    args: list[dict[str, Any]] = [{"x": [[nr], {"\u4e2d": None}, "y" * 60_000]} for nr in range(3)]
    call = asyncio.create_task(http.post("/api/v1/jobs/many", json=[{"task": "t", "args": one} for one in [*args, {}]]))
    await eventually(begun.is_set)
    for _ in range(3):
        assert (await http.get("/healthz")).status_code == 200
    done.set()
    ids = (await call).json()["ids"]
    assert [(await client.get(one)).args for one in ids] == [*args, {}]


async def test_many_jobs_are_checked_beside_the_event_loop_and_each_of_their_texts_is_read_once(http, monkeypatch):
    """With 10,000 delays of 100 parts, one body held up the loop for two seconds, and a wrong last job stored none."""
    read: list[tuple[Any, bool]] = []

    def note(module: Any, name: str) -> None:
        check = getattr(module, name)

        def noted(*given: Any) -> Any:
            if not isinstance(given[0], timedelta):
                read.append((given[0], threading.current_thread() is threading.main_thread()))
            return check(*given)

        monkeypatch.setattr(module, name, noted)

    for module, name in (
        (models, "priority_of"), (models, "parse_duration"), (submissions, "parse_duration"), (job, "check_texts"),
    ):  # fmt: skip
        note(module, name)
    answer = await http.post("/api/v1/jobs/many", json=[{"task": "t", "not_before": "10m", "priority": "HIGH"}] * 2)
    assert answer.status_code == 201, answer.text
    assert not [given for given, is_in_the_loop in read if is_in_the_loop]
    names = {"task": "t", "group": "default", "queue": "default"}
    assert [given for given, _ in read if given in ("10m", "HIGH", names)] == ["HIGH"] * 2 + ["10m", names] * 2


async def test_of_too_many_jobs_no_more_than_a_call_may_have_are_checked(http, monkeypatch):
    checked: list[str] = []

    def note(text: str) -> Any:
        checked.append(text)
        return job.priority_of(text)

    monkeypatch.setattr(models, "priority_of", note)
    monkeypatch.setattr(bodies, "MOST_AT_ONCE", 3)
    answer = await http.post("/api/v1/jobs/many", json=[{"task": "t", "priority": "low"}] * 10)
    assert answer.status_code == 400
    assert checked == ["low"] * 3


async def test_of_many_jobs_one_over_the_limit_is_refused_before_the_next_is_looked_at(http, connection, monkeypatch):
    written: list[Any] = []

    def json_text(*given: Any) -> str:
        written.append(given)
        return json_texts.json_text(*given)

    monkeypatch.setattr(bodies, "json_text", json_text)
    many = [{"task": "t", "args": {"x": "y" * length}} for length in (1, 1_100_000, 1)]
    answer = await http.post("/api/v1/jobs/many", json=many)
    assert answer.status_code == 400
    assert answer.json()["detail"].startswith("jobs[1].args: at most 1000000 bytes; got a job of 11000")
    assert len(written) == 1
    await connection.execute("SELECT joex.set_largest('args', 2000000)")
    assert (await http.post("/api/v1/jobs/many", json=many)).status_code == 201


@pytest.mark.parametrize(
    "wrong",
    [
        "1", "[]", "[[]]", "{}", '{"task": []}', '{"task": "t", "args": []}', '{"task": "t", "args": [[1]]}',
        '{"task": "t", "args": null}', '{"task": "t", "args": {"x": "\\u0000"}}',
        '{"task": "t", "args": {"x": ["\\ud800"]}}',
        '{"task": "t", "tracker": [1]}', '{"task": "t", "retries": {}}', '{"task": "t", "priority": [[]]}',
        '{"task": "t", "not_before": {"x": 1}}', '{"task": "t", "unknown": [1]}',
    ],
)  # fmt: skip
async def test_a_wrong_job_of_many_is_refused_in_the_same_words_however_large_the_body_is(http, wrong):
    body = f'[{{"task": "t", "args": {{"x": 1}}}}, {wrong}]'
    small, large = [await http.post("/api/v1/jobs/many", content=pad + body) for pad in ("", " " * bodies.LARGE)]
    assert small.status_code == 400
    assert small.json()["detail"].startswith("jobs[1]")
    assert (large.status_code, large.json()) == (400, small.json())


async def test_a_caller_has_few_large_bodies_at_a_time(http, monkeypatch):
    monkeypatch.setattr(bodies, "MOST_LARGE", 2)
    ends, begun = threading.Event(), []

    def parse(body, **_):
        begun.append(body)
        ends.wait(PATIENCE)
        return [{"task": "t"}]

    monkeypatch.setattr(bodies, "parse", parse)
    calls = [asyncio.create_task(http.post("/api/v1/jobs/many", content="[" + " " * 200_000 + "]")) for _ in range(5)]

    async def two_begun():
        return len(begun) >= 2

    await eventually(two_begun)
    for _ in range(10):
        assert (await http.get("/api/v1/jobs")).status_code == 200  # small calls of the same caller go on
    assert len(begun) == 2
    ends.set()
    assert {answer.status_code for answer in await asyncio.gather(*calls)} == {201}
    assert len(begun) == 5


@pytest.fixture
async def large_one(http, monkeypatch):
    """A large submission on its way, which has the only turn of its caller, and its end."""
    monkeypatch.setattr(bodies, "MOST_LARGE", 1)
    begun, ends = asyncio.Event(), asyncio.Event()

    async def slow():
        begun.set()
        await ends.wait()
        yield b'{"task": "t"}' + b" " * 200_000

    call = asyncio.create_task(http.post("/api/v1/jobs", content=slow(), headers={"Content-Length": "200013"}))
    await asyncio.wait_for(begun.wait(), PATIENCE)
    yield call, ends
    ends.set()
    await asyncio.wait_for(call, PATIENCE)


async def in_chunks(*parts, taken=None):
    for part in parts:
        yield part
        if taken is not None:
            taken.append(len(part))


@pytest.mark.usefixtures("large_one")
async def test_a_small_body_without_a_length_waits_for_no_large_one(http):
    """The slow submissions of a tenant kept the reports of its workers, in chunks, until their leases had ended."""
    body = in_chunks(b'{"job": "%b", ' % NO_JOB.encode(), b'"lock_id": "%b", "progress": 5}' % NO_JOB.encode())
    answer = await asyncio.wait_for(http.post("/api/v1/update", content=body), PATIENCE)
    assert (answer.status_code, answer.json()["answer"]) == (409, "worker_conflict")


async def test_a_body_without_a_length_waits_for_its_turn_when_it_has_become_large(http, large_one):
    first, ends = large_one
    taken: list[int] = []
    parts = [b'{"task": "t"}', b" " * bodies.LARGE, b" " * 1000, b" " * 1000]
    call = asyncio.create_task(http.post("/api/v1/jobs", content=in_chunks(*parts, taken=taken)))
    await eventually(lambda: taken, why="its beginning is read")
    for _ in range(10):
        assert (await http.get("/api/v1/jobs")).status_code == 200
    assert taken == [13]  # the next one is here, and it waits
    ends.set()
    assert [(await asyncio.wait_for(one, PATIENCE)).status_code for one in (first, call)] == [201, 201]
    assert taken == [len(part) for part in parts]


@pytest.fixture
def in_c(monkeypatch):
    """The texts that Python's parser in C has got."""
    texts: list[str] = []

    class Decoder(json.JSONDecoder):
        def __init__(self, **given: Any) -> None:
            super().__init__(**given)
            self._scan: Any = self.scan_once  # type: ignore[has-type] # typeshed lacks it
            self.scan_once = self._note

        def _note(self, text: str, start: int) -> Any:
            texts.append(text[start:])
            return self._scan(text, start)

    monkeypatch.setattr(json, "JSONDecoder", Decoder)
    return texts


@pytest.mark.parametrize("body", [b"[[%b]]", b'[{"a": 1}, {"args": [%b]}]', b'{"a": [%b]}'])
def test_a_large_part_of_a_body_is_parsed_beside_the_event_loop(body, in_c, monkeypatch):
    large = body % b",".join([b"[]"] * 100)
    monkeypatch.setattr(bodies, "_LARGEST_IN_C", 50)
    monkeypatch.setattr(bodies, "_BEGINNINGS", (50,))
    assert bodies.parse(large) == json.loads(large)
    assert max(map(len, in_c), default=0) <= 50


def test_small_elements_of_a_large_body_are_parsed_without_a_copy_of_much_that_follows(in_c):
    assert bodies.parse(b"[" + b"{}," * 5000 + b"{}]") == [{}] * 5001
    assert max(map(len, in_c)) <= 200


@pytest.mark.parametrize("number", ["1" * 320 + "." + "5" * 2500 + "e-300", "1" * 5000 + ".5e-4900"])
def test_a_finite_number_of_many_digits_is_read_wherever_a_part_of_the_body_ends(number):
    body = f"[[{', '.join([number] * 30)}]]".encode()
    assert bodies.parse(body, finite=True) == json.loads(body)


async def test_a_large_body_that_waits_when_the_server_stops_is_to_be_sent_again(client, monkeypatch):
    monkeypatch.setattr(bodies, "MOST_LARGE", 1)
    ends, begun = threading.Event(), threading.Event()

    def parse(_, **more):
        begun.set()
        ends.wait(PATIENCE)
        return [{"task": "t"}]

    monkeypatch.setattr(bodies, "parse", parse)
    api = create_api(Settings(), client, Face(), lambda: (b"", "text/plain"))
    async with httpx.AsyncClient(transport=transport(api), base_url="http://127.0.0.1:7878", headers=JSON) as http:
        body = "[" + " " * 200_000 + "]"
        first, second = [asyncio.create_task(http.post("/api/v1/jobs/many", content=body)) for _ in range(2)]
        await eventually(begun.is_set)
        api.state.closing.set()
        answer = await asyncio.wait_for(second, PATIENCE)
        ends.set()
        assert (answer.status_code, answer.headers["retry-after"], (await first).status_code) == (503, "2", 201)


@pytest.mark.parametrize(
    "body",
    [
        b"", b" ", b"[", b"[]", b" [ ] ", b"[1, 2]", b"[1,]", b"[1 2]", b"[1] 2", b"[1}", b"[[1], {}]",
        b'[{"a": 1}, x]',
        b'{"a": [1]}', b"{} x", b"nul", b"\xff", b"[\xff]", b"[1e400, NaN]", '["\u00e9"]'.encode("utf-16"),
        b"\xef\xbb\xbf[]", b'[{"a": [1, "]"]}, [[], 2], "text", 123456789]', b'[{"a": [1, }]', b'[{"a": "b', b"[[1, 2",
    ],
)  # fmt: skip
@pytest.mark.parametrize("largest", [0, 4, 1_000_000])
def test_a_body_is_parsed_as_json_loads_does(body, largest, monkeypatch):
    monkeypatch.setattr(bodies, "_LARGEST_IN_C", largest)

    def outcome(parse):
        try:
            return repr(parse(body))
        except json.JSONDecodeError as error:
            return (error.msg, error.pos)
        except UnicodeDecodeError as error:
            return str(error)

    assert outcome(bodies.parse) == outcome(json.loads)

"""Submission, from Python and from SQL: valid jobs are stored as given, invalid ones are refused."""

import asyncio
import json
import re
from collections import UserDict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from math import inf, nan
from types import MappingProxyType
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest
from pydantic import BaseModel, Field, SecretBytes, SecretStr, field_serializer
from pydantic.dataclasses import dataclass as pydantic_dataclass

import joex
from joex import Client, InvalidJob, NewJob, Priority
from joex.errors import DatabaseUnavailable
from joex.store.errors import translate
from joex.store.listing import Filter, list_jobs
from tests.support.cases import case
from tests.support.proxy import At, Proxy
from tests.support.soak import SOAK
from tests.support.waiting import eventually

pytestmark = pytest.mark.postgres(16, 18)


@dataclass(frozen=True)
class Point:
    """A value with a field."""

    x: float


class Page(BaseModel):
    """A model with a field."""

    number: int


@pydantic_dataclass(slots=True)
class Slotted:
    """A value of pydantic's that has no `__dict__`."""

    x: float


class Login(BaseModel):
    """A value with a secret."""

    password: SecretStr = SecretStr("hunter2")


class WrittenLogin(Login):
    """A value that defines how its secret is serialized."""

    hidden: SecretStr = Field(SecretStr("swordfish"), exclude=True)

    @field_serializer("password")
    def _write(self, value: SecretStr) -> str:
        return value.get_secret_value()


class Speed(str, Enum):  # noqa: UP042 - what came before StrEnum, and shows otherwise
    """A priority, as programs older than `StrEnum` have it."""

    FAST = "high"


async def count(connection):
    return await connection.fetchval("SELECT count(*) FROM joex_private.job")


async def test_a_submission_is_stored_as_it_was_given(client):
    due = datetime(2100, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    job_id = await client.submit(
        "mail.send",
        {"to": ["ä@example.org"], "n": 1, "x": 1.5, "none": None, "deep": {"a": [True]}},
        group="ácme",
        queue="mail",
        priority="high",
        subject="a letter",
        submitter="web",
        not_before=due,
        tracker="letter-7",
        retries=0,
    )
    job = await client.get(job_id)
    assert (job.task, job.group, job.queue, job.priority) == ("mail.send", "ácme", "mail", "high")
    assert job.args == {"to": ["ä@example.org"], "n": 1, "x": 1.5, "none": None, "deep": {"a": [True]}}
    assert (job.subject, job.submitter, job.tracker, job.retries) == ("a letter", "web", "letter-7", 0)
    assert (job.state, job.due_at, job.attempt, job.failures) == ("waiting", due, 0, 0)


async def test_a_submission_needs_no_more_than_a_task(client):
    job = await client.get(await client.submit("a"))
    assert (job.group, job.queue, job.priority, job.args) == ("default", "default", "low", {})
    assert (job.subject, job.submitter, job.tracker, job.retries, job.due_at) == ("", "", None, None, None)


async def test_ids_are_ordered_by_time_and_jobs_by_submission(client, connection):
    ids = [await client.submit("a") for _ in range(5)]
    assert {job_id.version for job_id in ids} == {7}
    rows = await connection.fetch("SELECT id FROM joex_private.job ORDER BY seq")
    assert [row["id"] for row in rows] == ids
    now = datetime.now(UTC)
    assert all(abs(datetime.fromtimestamp((i.int >> 80) / 1000, UTC) - now) < timedelta(minutes=5) for i in ids)


async def test_a_job_is_there_if_and_only_if_the_callers_transaction_commits(client, connection):
    await connection.execute("CREATE TABLE orders (id integer)")
    for commits in (True, False):
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute("INSERT INTO orders VALUES (1)")
        job_id = await client.submit("a", connection=connection)
        assert await client.get(job_id) is None  # no other transaction sees it yet
        await (transaction.commit() if commits else transaction.rollback())
        assert (await client.get(job_id) is not None) == commits
    assert await connection.fetchval("SELECT count(*) FROM orders") == await count(connection) == 1


async def test_many_jobs_are_there_if_and_only_if_the_callers_transaction_commits(client, connection):
    transaction = connection.transaction()
    await transaction.start()
    assert len(await client.submit_many([NewJob("a")] * 3, connection=connection)) == 3
    await transaction.rollback()
    assert await count(connection) == 0


async def test_jobs_of_a_task_are_there_if_and_only_if_the_callers_transaction_commits(client, connection):
    task = joex.App().task("a")(lambda _ctx, x: x)
    for commits in (True, False):
        transaction = connection.transaction()
        await transaction.start()
        ids = [await task.options(connection=connection).submit(client, x=1)]
        ids += await client.submit_many([task.new_job(x=2)], connection=connection)
        assert [await client.get(one) for one in ids] == [None, None]
        await (transaction.commit() if commits else transaction.rollback())
        assert [await client.get(one) is not None for one in ids] == [commits] * 2


async def test_a_time_in_the_past_is_now(bench):
    job = await bench.job(await bench.submit(not_before=datetime(2000, 1, 1, tzinfo=UTC)))
    assert job.due_at is None
    assert [taken.id for taken in await bench.take(await bench.executor())] == [job.id]


async def test_a_job_is_not_taken_before_its_time_and_is_taken_then(bench):
    job_id = await bench.submit(not_before=datetime.now(UTC) + timedelta(hours=1))
    executor = await bench.executor()
    assert await bench.take(executor) == []
    await bench.connection.execute("UPDATE joex_private.job SET due_at = clock_timestamp()")
    assert [taken.id for taken in await bench.take(executor)] == [job_id]


async def test_a_time_in_the_past_is_now_for_many_jobs_too(client):
    [job_id] = await client.submit_many([NewJob("a", not_before=datetime(2000, 1, 1, tzinfo=UTC))])
    assert (await client.get(job_id)).due_at is None


@pytest.mark.parametrize("delay", ["10m", timedelta(minutes=10)], ids=repr)
async def test_a_delay_counts_from_now(client, delay):
    job = await client.get(await client.submit("a", not_before=delay))
    assert abs(job.due_at - job.submitted_at - timedelta(minutes=10)) < timedelta(minutes=5)


async def test_many_jobs_get_their_ids_in_the_order_given(client, connection):
    given = [NewJob("a", {"nr": nr}, group=f"g{nr % 7}", priority=Priority.HIGH) for nr in range(2500)]
    ids = await client.submit_many(given)
    rows = await connection.fetch(
        "SELECT id, args ->> 'nr' AS nr, grp, priority::text FROM joex_private.job ORDER BY seq"
    )
    assert [row["id"] for row in rows] == ids
    assert [int(row["nr"]) for row in rows] == list(range(2500))
    assert all(row["grp"] == f"g{int(row['nr']) % 7}" and row["priority"] == "high" for row in rows)


async def test_many_jobs_may_be_mappings_and_none_at_all(client):
    ids = await client.submit_many([{"task": "a", "group": "acme"}, {"task": "b", "not_before": "1h"}])
    assert (await client.get(ids[0])).group == "acme"
    assert (await client.get(ids[1])).due_at is not None
    assert await client.submit_many([]) == []


async def test_of_many_jobs_those_are_skipped_whose_tracker_has_an_unfinished_job(client):
    await client.submit("a", tracker="one")
    ids = await client.submit_many(
        [{"task": "a", "tracker": tracker} for tracker in ("zero", "one", "two", "two", None, None)]
    )
    assert [job_id is not None for job_id in ids] == [True, False, True, False, True, True]


async def test_of_many_jobs_one_that_is_wrong_keeps_all_from_being_stored(client, connection):
    good = [{"task": "a"} for _ in range(1500)]
    with pytest.raises(InvalidJob, match=r"^jobs\[1500\]\.task: must not be empty$"):
        await client.submit_many([*good, {"task": ""}])
    with pytest.raises(InvalidJob, match=r"^jobs\[1500\]\.args: must not contain a NUL"):
        await client.submit_many([*good, {"task": "a", "args": {"x": "\0"}}])
    assert await count(connection) == 0


async def test_a_tracker_is_free_again_when_its_job_is_finished(bench, client):
    executor = await bench.executor()
    for state in ("success", "failed", "cancelled"):
        first = await client.submit("a", tracker="one")
        assert await client.submit("a", tracker="one") is None
        job = await bench.take_one(executor)
        assert await client.submit("a", tracker="one") is None
        await bench.finish(job, state)
        assert await bench.state(first) == state


async def test_a_tracker_is_its_groups_alone(bench, client):
    first, second = [await client.submit("a", tracker="one", group=group) for group in ("acme", "globex")]
    assert None not in (first, second)
    assert await client.submit("a", tracker="one", group="acme") is None
    given = [{"task": "a", "tracker": "one", "group": group} for group in ("acme", "initech", "globex", "initech")]
    assert [job_id is None for job_id in await client.submit_many(given)] == [True, False, True, True]
    await client.cancel(first)
    assert await client.submit("a", tracker="one", group="globex") is None
    assert await client.submit("a", tracker="one", group="acme") is not None


async def test_of_many_simultaneous_submissions_with_one_tracker_exactly_one_is_stored(client, connection):
    for nr in range(5):
        ids = await asyncio.gather(*(client.submit("a", tracker=f"race-{nr}") for _ in range(20)))
        assert sum(job_id is not None for job_id in ids) == 1
    assert await count(connection) == 5


async def test_a_submission_waits_for_an_open_transaction_with_its_tracker_and_is_stored_if_that_fails(
    client, connection, another_connection, waiting_for_a_lock
):
    for commits in (True, False):
        transaction = connection.transaction()
        await transaction.start()
        await client.submit("a", tracker=f"t{commits}", connection=connection)
        second = client.submit("a", tracker=f"t{commits}")
        async with waiting_for_a_lock(await another_connection(), second) as task:
            assert not task.done()
            await (transaction.commit() if commits else transaction.rollback())
        assert (await task is None) == commits


async def test_batches_with_the_same_trackers_in_another_order_wait_for_each_other_without_a_deadlock(
    client, bench, another_connection, waiting_for_a_lock
):
    """And each stores its jobs in the order that it was given."""

    def batch(*trackers):
        return client.submit_many([{"task": "a", "tracker": tracker} for tracker in trackers])

    held, observer = bench.connection.transaction(), await another_connection()
    await held.start()
    await client.submit("a", tracker="held", connection=bench.connection)
    async with waiting_for_a_lock(observer, batch("x", "held", "y")) as first:
        second = asyncio.ensure_future(batch("y", "x"))

        async def second_waits_or_is_done():
            waits = "SELECT count(*) = 2 FROM pg_locks l JOIN pg_stat_activity a USING (pid) \
                     WHERE NOT l.granted AND a.datname = current_database()"
            return second.done() or await observer.fetchval(waits)

        await eventually(second_waits_or_is_done)
        await held.rollback()
    stored = await first + await second
    assert [job_id is not None for job_id in stored] == [False, True, False, True, True]
    y, x = [(await client.get(job_id)).seq for job_id in stored[3:]]
    assert y < x


BAD: dict[str, list[Any]] = {
    "task": ["", "x" * 255, "a\0b", "\ud800", 7, None],
    "group": ["", "x" * 10_000, "é" * 128, "a\0b", None],
    "queue": ["", "x" * 255, "a\0b", b"q"],
    "priority": ["urgent", "", None, 1],
    "subject": ["x" * 1001, "a\0b", None],
    "submitter": ["x" * 255, "a\0b"],
    "tracker": ["", "x" * 255, "a\0b", 5, "periodic nightly"],
    "retries": [-1, 1_000_001, "many", 1.5, True],
    "not_before": ["soon", datetime(2030, 1, 1), 5, timedelta(days=-1)],  # noqa: DTZ001 - that is one of the mistakes
    "args": [
        [],
        ["list"],
        "",
        0,
        False,
        "text",
        {"x": "\0"},
        {"x": {"\0": 1}},
        {"x": object()},
        {"x": "\ud800"},
        {"x": {1, object()}},
    ],
}


@pytest.mark.postgres(18)
async def test_a_wrong_submission_is_one_clear_error_that_names_the_field_and_nothing_is_stored(client, connection):
    for field, value in ((field, value) for field, values in BAD.items() for value in values):
        fields: dict[str, Any] = {"task": "a", field: value}
        with pytest.raises(InvalidJob) as caught:
            await client.submit_many([{"task": "a"}, fields])
        assert re.match(rf"jobs\[1\]\.{field}(\.\w+)*: ", str(caught.value)), value
        assert "\n" not in str(caught.value)
        with pytest.raises(InvalidJob) as alone:
            await client.submit(**fields)
        assert str(caught.value) == f"jobs[1].{alone.value}"
    assert await count(connection) == 0


async def test_what_is_no_submission_is_named_with_its_place_among_the_others(client, connection):
    wrong: list[tuple[Any, str]] = [
        ({"task": "a", "colour": "red"}, r"^jobs\[3\]\.colour: there is no such field; there are task, args, group, "),
        ({"args": {}}, r"^jobs\[3\]\.task: is required$"),
        ({"task": "a", 5: 6}, r"^jobs\[3\]: expected the names of fields; got 'task', 5$"),
        ("a", r"^jobs\[3\]: expected a NewJob, or a mapping of its fields; got str$"),
        (None, r"^jobs\[3\]: expected a NewJob, or a mapping of its fields; got NoneType$"),
    ]
    for one, complaint in wrong:
        with case(one), pytest.raises(InvalidJob, match=complaint):
            await client.submit_many([{"task": "a"}] * 3 + [one])
    assert await count(connection) == 0


WRONG_IN_SQL = {
    "task => ''": "task: 1 to 254 bytes",
    "task => 'a', args => '[1]'": "args: must be a JSON object",
    "task => 'a', not_before => '290000-01-01'": "not_before: at most the year 9998",
    # (A second later, or in a zone of the east, that is the year 10000, which most languages do not have.)
    "task => 'a', not_before => '9999-12-31 23:59:59.999999+00'": "not_before: at most the year 9998",
    "task => 'a', not_before => 'infinity'": "not_before: at most the year 9998",
    "task => 'a', grp => ''": "group: 1 to 254 bytes",
    "task => 'a', queue => repeat('x', 255)": "queue: 1 to 254 bytes",
    "task => 'a', subject => repeat('x', 1001)": "subject: at most 1000 bytes",
    "task => 'a', submitter => repeat('x', 255)": "submitter: at most 254 bytes",
    "task => 'a', tracker => ''": "tracker: 1 to 254 bytes",
    "task => 'a', retries => -1": "retries: 0 or more",
}


async def test_the_database_itself_refuses_what_is_wrong_and_says_what_is_expected_of_which_field(connection):
    for arguments, said in WRONG_IN_SQL.items():
        expected = re.escape(f'violates check constraint "{said}"')
        with pytest.raises(asyncpg.CheckViolationError, match=expected) as caught:
            await connection.execute(f"SELECT joex.submit({arguments})")
        assert str(translate(caught.value)) == said


async def test_the_database_refuses_a_time_that_would_break_each_list(client, connection):
    waiting, finished = [await client.submit("a", not_before="1h") for _ in range(2)]
    await client.cancel(finished)
    for job_id, column, time in (
        (waiting, "due_at", "infinity"),
        (waiting, "due_at", "290000-01-01"),
        (finished, "finished_at", "infinity"),
        (finished, "finished_at", "-infinity"),
        (finished, "finished_at", "290000-01-01"),
    ):
        update = f"UPDATE joex_private.job SET {column} = $2::text::timestamptz WHERE id = $1"  # noqa: S608 - a constant
        with case(column, time), pytest.raises(asyncpg.CheckViolationError):
            await connection.execute(update, job_id, time)


async def test_a_session_that_is_killed_in_the_middle_of_a_call_says_so_and_no_more(
    connection, database_url, another_connection
):
    other = await another_connection()
    async with Client(database_url) as client:
        await client.submit("a")
        [pid] = await connection.fetch("SELECT pid FROM pg_stat_activity WHERE application_name = 'joex client'")
        await connection.execute("BEGIN; LOCK TABLE joex_private.job")
        call = asyncio.create_task(client.submit("a"))
        waits = "SELECT EXISTS (SELECT FROM pg_locks WHERE pid = $1 AND NOT granted)"
        await eventually(lambda: other.fetchval(waits, pid["pid"]))
        await other.execute("SELECT pg_terminate_backend($1)", pid["pid"])
        with pytest.raises(DatabaseUnavailable) as caught:
            await call
        await connection.execute("ROLLBACK")
    assert "state" not in str(caught.value)


SECRET = "can't be stored as JSON: got a secret, of which only stars would be stored: give value.get_secret_value()"


def _nested(name: str, depth: int) -> dict[str, Any]:
    value: Any = {1}
    for _ in range(depth):
        value = {name: value}
    return value  # type: ignore[no-any-return]


CHANGED: dict[str, tuple[Any, str]] = {
    "a number as a name": ({1: 2}, "args: can't be stored as JSON: expected texts as names; got 1"),
    "a tuple as a name": ({"a": {(1, 2): 3}}, "args.a: can't be stored as JSON: expected texts as names; got (1, 2)"),
    "nan": ({"a": [1.5, nan]}, "args.a[1]: can't be stored as JSON: got nan, and numbers in JSON are finite"),
    "infinity": ({"a": -inf}, "args.a: can't be stored as JSON: got -inf, and numbers in JSON are finite"),
    "bytes": ({"a": b"x"}, "args.a: can't be stored as JSON: got bytes: write bytes as text, such as base64"),
    "a set": ({"a": [{"b": {1}}]}, "args.a[0].b: can't be stored as JSON: got set: give a list"),
    "a generator": ({"a": (nr for nr in range(3))}, "args.a: can't be stored as JSON: got generator"),
    "nan in a dataclass": ({"a": Point(nan)}, "args.a.x: can't be stored as JSON: got nan, "),
    "nan in a dataclass of pydantic": ({"a": Slotted(nan)}, "args.a.x: can't be stored as JSON: got nan, "),
    "a decimal that is no number": ({"a": Decimal("sNaN")}, "args.a: can't be stored as JSON: got sNaN, "),
    "a mapping": ({"a": MappingProxyType({"b": {1}})}, "args.a.b: can't be stored as JSON: got set: give a list"),
    "a secret": ({"a": SecretStr("x")}, f"args.a: {SECRET}"),
    "secret bytes": ({"a": [SecretBytes(b"x")]}, f"args.a[0]: {SECRET}"),
    "a secret in a model": ({"a": [{"b": Login()}]}, f"args.a[0].b.password: {SECRET}"),
    "a secret in a dataclass": ({"a": Point(SecretStr("x"))}, f"args.a.x: {SECRET}"),  # type: ignore[arg-type]
    "more digits than are read": (
        {"a": 10**4300},
        "args.a: can't be stored as JSON: got an integer of more than 4300 ",
    ),
    "more below zero": (
        {"a": [{"b": -(10**5000)}]},
        "args.a[0].b: can't be stored as JSON: got an integer of more than ",
    ),
    "a name with line ends": ({"a\nb": {1}}, r"args['a\nb']: can't be stored as JSON: got set: give a list"),
    "a long name": ({"a" * 100_000: {1}}, f"args['{'a' * 97}...]: can't be stored as JSON: got set: give a list"),
    "a long name that is no text": (
        {(" " * 200_000,): 1},
        "args: can't be stored as JSON: expected texts as names; got ('",
    ),
    "many long names": (_nested("b" * 90, 150), f"args.{'b' * 90}.bbb"),
}


@pytest.mark.postgres(18)
async def test_arguments_that_json_would_change_are_refused_by_their_path_and_nothing_is_stored(client, connection):
    for args, said in CHANGED.values():
        with pytest.raises(InvalidJob) as caught:
            await client.submit("a", args)
        assert str(caught.value).startswith(said)
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 500
        with pytest.raises(InvalidJob) as caught:
            await client.submit_many([{"task": "a"}, {"task": "a", "args": args}])
        assert str(caught.value).startswith(f"jobs[1].{said}")
        with pytest.raises(InvalidJob) as caught:
            await client.keyed.add("a", 1, {"data": args})
        assert str(caught.value).startswith(said.replace("args", "data", 1))
        with pytest.raises(InvalidJob) as caught:
            await client.periodic.put("a", "a", "daily", args=args)
        assert str(caught.value).startswith(said)
    assert await count(connection) == 0
    assert await client.periodic.get("a") is None


async def test_what_json_has_a_text_for_is_stored_as_that_and_read_by_the_annotations_of_a_task(client):
    @joex.App().task("a")
    async def task(
        ctx: joex.Context,
        *,
        at: datetime,
        long: timedelta,
        key: UUID,
        price: Decimal,
        pair: tuple[int, int],
        point: Point,
        page: Page,
    ) -> None: ...

    given: dict[str, Any] = {
        "at": datetime(2030, 1, 1, tzinfo=UTC),
        "long": timedelta(minutes=5),
        "key": UUID(int=7),
        "price": Decimal("1.10"),
        "pair": (1, 2),
        "point": Point(0.5),
        "page": Page(number=1),
    }
    stored = (await client.get(await task.submit(client, **given))).args
    assert stored == {
        "at": "2030-01-01T00:00:00Z",
        "long": "PT5M",
        "key": "00000000-0000-0000-0000-000000000007",
        "price": "1.10",
        "pair": [1, 2],
        "point": {"x": 0.5},
        "page": {"number": 1},
    }
    assert task.parse_arguments(stored) == given
    [job_id] = await client.submit_many([task.new_job(**given)])
    assert (await client.get(job_id)).args == stored


async def test_arguments_that_could_not_be_read_again_are_refused(client, connection):
    deep: list[Any] = []
    for _ in range(230):
        deep = [deep]
    with pytest.raises(InvalidJob, match=r"^args: can't be stored as JSON: "):
        await client.submit("a", {"deep": deep})
    assert await count(connection) == 0
    flat: dict[str, list[list[int]]] = {"flat": [[] for _ in range(500)]}
    assert (await client.get(await client.submit("a", flat))).args == flat


async def test_whole_numbers_come_back_as_they_were_as_long_as_they_may_be(client):
    args = {"a": 2**63 - 1, "b": -(2**63), "c": 2**63, "d": 10**4300 - 1, "e": [1 - 10**4300]}
    assert (await client.get(await client.submit("a", args))).args == args


async def test_a_decimal_is_a_text_however_large_it_is(client):
    args = {"a": Decimal("1E+400"), "b": Decimal("1E-400")}
    assert (await client.get(await client.submit("a", args))).args == {"a": "1E+400", "b": "1E-400"}


async def test_a_model_may_write_its_secret_itself(client):
    job = await client.get(await client.submit("a", {"login": WrittenLogin()}))
    assert job.args == {"login": {"password": "hunter2"}}


@pytest.mark.parametrize("args", [{}, {"a": 1}, {"a": MappingProxyType({"b": UserDict(c=[1])})}])
async def test_arguments_are_any_mapping(client, args):
    expected = {"a": {"b": {"c": [1]}}} if args.get("a") not in (None, 1) else args
    given: Mapping[str, Any] = MappingProxyType(args)
    ids = [
        await client.submit("a", given),
        *await client.submit_many([{"task": "a", "args": given}, NewJob("a", given)]),
        await client.submit("a", {"other": 1}),
    ]
    assert await client.set_args(ids[-1], given)
    assert [job.args for job in await client.wait_many(ids, states=["waiting"])] == [expected] * 4


UNREADABLE = {
    '{"x": 1e5000}': "number out of range at line 1 column 4308: read it in SQL",
    '{"x": %s.5}' % ("1" * 310): "a number is beyond the range of doubles: read it in SQL",
    '{"x": %s}' % ("[" * 300 + "]" * 300): "recursion limit exceeded at line 1 column 207: read it in SQL",
}


@pytest.mark.parametrize("args", UNREADABLE)
async def test_arguments_that_python_can_not_read_are_shown_as_such_and_hide_no_other_job(client, connection, args):
    instead = {"unreadable": UNREADABLE[args]}
    first = await client.submit("a", {"x": 1})
    job_id = await connection.fetchval("SELECT joex.submit('a', $1::text::jsonb)", args)
    await connection.execute("UPDATE joex_private.job SET result = args WHERE id = $1", job_id)
    page = await list_jobs(connection, Filter())
    assert [(job.id, job.args) for job in page.jobs] == [(first, {"x": 1}), (job_id, instead)]
    assert page.jobs[1].result == instead
    assert await client.get(job_id) == page.jobs[1]
    assert await client.wait(job_id, states=["waiting"]) == page.jobs[1]
    assert (await client.keyed.get_job("a", job_id)).data == instead
    await client.periodic.put("a", "a", "daily")
    await connection.execute("UPDATE joex_private.periodic_task SET args = $1::text::jsonb", args)
    assert (await client.periodic.get("a")).args == instead


@pytest.mark.parametrize("wrong", [5, None])
async def test_many_jobs_that_are_no_collection_are_refused(client, wrong):
    with pytest.raises(InvalidJob, match=f"^jobs: expected submissions, one after the other; got {wrong}$"):
        await client.submit_many(wrong)


async def test_the_timeout_of_a_client_is_a_duration(database_url):
    with pytest.raises(joex.ConfigError, match=r"^timeout: expected a duration such as '30s', or seconds; got \[\]$"):
        Client(database_url, timeout=[])  # type: ignore[arg-type]


async def test_a_priority_may_be_of_an_enum_of_texts(client):
    ids = [
        await client.submit("a", priority=Speed.FAST),
        *await client.submit_many([{"task": "a", "priority": Speed.FAST}, NewJob("a", priority=Speed.FAST)]),  # type: ignore[arg-type]
    ]
    assert [(await client.get(job_id)).priority for job_id in ids] == ["high"] * 3


async def test_a_backslash_and_a_u_are_not_taken_for_a_nul_character(client):
    args = {"path": "C:\\u0000", "more": "\\\\u0000", "quote": '"\\"'}
    assert (await client.get(await client.submit("a", args))).args == args


async def test_whatever_unicode_and_size_arguments_have_they_come_back_as_they_were(client):
    args = {"text": "\u2028 \U0001f600 \x01\x7f\n", "long": "x" * 300_000, "big": 10**30}
    assert (await client.get(await client.submit("a", args))).args == args


async def test_names_with_quotes_and_percent_signs_are_just_names(client):
    name = """'; DROP TABLE joex_private.job; -- "%s" $1 \\ {}"""
    job = await client.get(await client.submit(name, {name: name}, group=name, queue=name, tracker=name, subject=name))
    assert {job.task, job.group, job.queue, job.tracker, job.subject} == {name}


# The SQL interface, for any language and any trigger.


_TOO_LARGE = {"x": "y" * 9000}
_LARGE = {"x": "y" * 8100}


@pytest.mark.parametrize(
    "submit",
    [
        lambda client, args: client.submit("a", args),
        lambda client, args: client.submit("a", args, tracker="one"),
        lambda client, args: client.submit_many([{"task": "a"}, {"task": "a", "args": args}]),
        lambda client, args: client.keyed.add("a", 1, {"data": args}),
    ],
    ids=["one", "tracked", "many", "keyed"],
)
async def test_arguments_over_the_limit_are_refused_with_a_line_that_names_them_and_nothing_is_stored(
    client, connection, submit
):
    await submit(client, _TOO_LARGE)
    await connection.execute("DELETE FROM joex_private.job")
    await connection.execute("SELECT joex.set_largest('args', 8192)")
    with pytest.raises(
        InvalidJob, match=r"^args: at most 8192 bytes; got 90\d\d: store it elsewhere and pass a reference, or"
    ):
        await submit(client, _TOO_LARGE)
    assert await connection.fetchval("SELECT count(*) FROM joex_private.job") == 0
    await submit(client, _LARGE)


async def test_arguments_over_the_limit_are_refused_in_sql_too(connection):
    await connection.execute("SELECT joex.set_largest('args', 8192)")
    data = json.dumps(_TOO_LARGE)
    for statement in (
        "SELECT joex.submit('a', $1::text::jsonb)",
        "SELECT joex.submit_many(ARRAY['a', 'a'], ARRAY['{}', $1::text]::jsonb[])",
        "INSERT INTO joex_private.job (task, args, lane) VALUES ('a', $1::text::jsonb, 2)",
    ):
        with pytest.raises(asyncpg.PostgresError, match=r"^args: at most 8192 bytes; got 90") as refused:
            await connection.fetch(statement, data)
        assert refused.value.sqlstate == "JX003"
    job_id = await connection.fetchval("SELECT joex.submit('a')")
    with pytest.raises(asyncpg.PostgresError, match=r"^args: at most 8192 bytes; got 90"):
        await connection.fetch("SELECT joex.set_args($1, $2::text::jsonb)", job_id, data)


LARGE = (
    "SELECT joex.submit('a', args) FROM document",
    "SELECT joex.submit('a', args, tracker => 'one') FROM document",
    "SELECT joex.submit_many(ARRAY['a', 'a'], ARRAY['{}', args]) FROM document",
    "INSERT INTO joex_private.job (task, args, lane) SELECT 'a', args, 2 FROM document",
    "SELECT joex.set_args((SELECT id FROM joex_private.job), args) FROM document",
    "SELECT joex_client.add('keyed', 'two', args) FROM document",
    "SELECT joex_client.add('keyed', 'two', opts => args) FROM document",
    "SELECT joex.put_periodic_task('a', 't', 'daily', args => args) FROM document",
)
DIGITS = "('{\"x\": [' || repeat('1e131071,', $1) || '0]}')::jsonb"
TOO_LONG = r"at most 1000000 bytes; got \d+: store"


async def test_arguments_whose_text_is_over_the_limit_are_refused_though_they_are_stored_in_few_bytes(connection):
    """One such row would break each list of jobs."""
    await _each_call_refuses(connection, DIGITS, 200, LARGE, TOO_LONG)  # of 26 MB


@pytest.mark.postgres  # each call makes the server write a gigabyte: on one version
async def test_arguments_that_are_longer_than_a_text_can_be_are_refused_though_they_are_stored_in_few_bytes(connection):
    """All calls ask the function that refuses these; the calls above show that each asks it."""
    await _each_call_refuses(connection, DIGITS, 9000, LARGE if SOAK else LARGE[:1], TOO_LONG)


async def test_arguments_that_are_nested_so_deep_that_a_restore_might_not_read_them_are_refused(connection):
    """Functions can build what the server can not read from a text: no dump with such a job comes back."""
    nested = "('{\"x\": ' || repeat('[', $1) || 1 || repeat(']', $1) || '}')::jsonb"
    await connection.fetch(f"SELECT joex.submit('a', {nested})", 998)
    await connection.execute("DELETE FROM joex_private.job")
    await _each_call_refuses(connection, nested, 999, LARGE, "expected fewer than 1000 levels of arrays")


async def _each_call_refuses(connection, document, repeated, calls, told):
    await connection.execute("CREATE TABLE document (args jsonb)")
    await connection.execute(f"INSERT INTO document SELECT {document}", repeated)
    job_id = await connection.fetchval("SELECT joex.submit('a')")
    for call in calls:
        field = "opts" if "opts =>" in call else "args"
        with pytest.raises(asyncpg.PostgresError, match=f"^{field}: {told}") as refused:
            await connection.fetch(call)
        assert refused.value.sqlstate == "JX003"
    assert [job.id for job in (await list_jobs(connection, Filter(), None, 20)).jobs] == [job_id]


async def test_values_whose_text_has_very_many_digits_are_refused_though_it_is_within_the_limit(connection):
    """A take limits the bytes of the arguments as values: the text of such a job would be 10,000 times as long."""
    await connection.execute(
        "CREATE TABLE document AS SELECT ('{\"x\": [' || repeat('1e131071,', 7) || '0]}')::jsonb AS args"
    )
    for call in (
        "SELECT joex.submit('a', args) FROM document",
        "SELECT joex.submit_many(ARRAY['a', 'a'], ARRAY['{}', args]) FROM document",
        "INSERT INTO joex_private.job (task, args, lane) SELECT 'a', args, 2 FROM document",
    ):
        with pytest.raises(
            asyncpg.PostgresError, match=r"^args: has numbers with too many digits \(91\d+ bytes"
        ) as refused:
            await connection.fetch(call)
        assert refused.value.sqlstate == "JX003"
    floats = "SELECT joex.submit('a', jsonb_build_object('x', array_fill(1e308::float8, ARRAY[$1::integer])))"
    assert await connection.fetchval(floats, 3_000) is not None


async def test_among_many_the_smallest_value_whose_text_is_that_long_is_refused_too(connection):
    """The statements for many look at no value that can't be so: as a column has it, the smallest has 19 bytes."""
    await connection.execute("CREATE TABLE small AS SELECT '1e8001'::jsonb AS result, '{\"\": 1e8001}'::jsonb AS args")
    assert await connection.fetchval("SELECT pg_column_size(result) FROM small") == 19
    one = "ARRAY[gen_random_uuid()]"
    for call in (
        "joex.submit_many(ARRAY['a'], ARRAY[args])",
        f"joex_private.finish_many({one}, {one}, '{{success}}', ARRAY[result], '{{}}', '{{}}', '{{}}', '{{}}')",
    ):
        with pytest.raises(asyncpg.PostgresError, match="has numbers with too many digits"):
            await connection.fetch(f"SELECT {call} FROM small")  # noqa: S608 - constants


@pytest.mark.parametrize(
    ("result", "told"),
    [
        ("'[' || repeat('1e131071,', 200) || '0]'", r"at most 16000000 bytes; got 26"),
        ("repeat('[', 1000) || 1 || repeat(']', 1000)", "expected fewer than 1000 levels of arrays"),
    ],
    ids=["long", "deep"],
)
async def test_a_result_that_is_too_long_or_nested_too_deep_is_refused(keyed, client, connection, result, told):
    await keyed.add("a", 1)
    job = await keyed.accept("a")
    with pytest.raises(asyncpg.PostgresError, match=f"^result: {told}"):
        await connection.fetch(f"SELECT joex.finish($1, $2, result => ({result})::jsonb)", job.job, job.lock_id)
    assert (await client.get(job.job)).state == "running"


async def test_the_default_limit_of_arguments_is_one_million_bytes_and_of_results_sixteen(connection):
    assert await connection.fetchval("SELECT joex_private.largest('args')") == 1_000_000
    assert await connection.fetchval("SELECT joex_private.largest('result')") == 16_000_000
    await connection.execute("SELECT joex.set_largest('args', 8192), joex.set_largest('args', NULL)")
    with pytest.raises(asyncpg.PostgresError, match=r"^args: at most 1000000 bytes; got 10"):
        await connection.fetchval("SELECT joex.submit('a', jsonb_build_object('x', repeat('y', 1000000)))")


@pytest.mark.postgres  # the server needs seconds for such a value: on one version
async def test_the_largest_limit_is_what_the_server_can_read_whatever_it_holds(connection):
    most = 32_000_000
    await connection.execute("SELECT joex.set_largest('result', $1::integer)", most)
    with pytest.raises(asyncpg.InvalidParameterValueError, match="expected a limit of 8000 to 32000000 bytes"):
        await connection.execute("SELECT joex.set_largest('result', $1::integer)", most + 1)
    elements = "SELECT jsonb_array_length(('[' || repeat('1,', $1 / 2 - 1) || '1]')::jsonb)"
    assert await connection.fetchval(elements, most) == most // 2
    with pytest.raises(asyncpg.PostgresError, match="invalid memory alloc request size"):
        await connection.fetchval(elements, 34_000_000)


async def test_a_run_can_not_make_its_data_or_its_result_larger_than_they_may_be(keyed, client, connection):
    await connection.execute("SELECT joex.set_largest('args', 8192), joex.set_largest('result', 8193)")
    await keyed.add("a", 1)
    job = await keyed.accept("a")
    with pytest.raises(InvalidJob, match=r"^args: at most 8192 bytes; got 90"):
        await keyed.update("a", 1, {"data": _TOO_LARGE}, job.lock_id)
    with pytest.raises(InvalidJob, match=r"^result: at most 8193 bytes; got 90"):
        await keyed.finish("a", 1, {}, job.lock_id, result=_TOO_LARGE)
    assert (await client.get(job.job)).state == "running"


async def test_sql_submits_with_named_arguments_and_defaults(connection, client):
    job_id = await connection.fetchval(
        "SELECT joex.submit('mail.send', '{\"to\": 1}', grp => 'acme', priority => 'high')"
    )
    job = await client.get(job_id)
    assert (job.task, job.args, job.group, job.queue, job.priority) == (
        "mail.send",
        {"to": 1},
        "acme",
        "default",
        "high",
    )


async def test_a_trigger_submits_in_the_transaction_of_its_row(connection):
    await connection.execute("""
        CREATE TABLE documents (path text);
        CREATE FUNCTION ingest() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            PERFORM joex.submit('documents.ingest', jsonb_build_object('path', NEW.path)); RETURN NEW; END $$;
        CREATE TRIGGER ingest AFTER INSERT ON documents FOR EACH ROW EXECUTE FUNCTION ingest();
        INSERT INTO documents VALUES ('a'), ('b');
    """)
    rows = await connection.fetch("SELECT args ->> 'path' AS path FROM joex.jobs ORDER BY seq")
    assert [row["path"] for row in rows] == ["a", "b"]


async def test_sql_submits_many_with_defaults_for_what_is_missing(connection):
    rows = await connection.fetch(
        "SELECT * FROM joex.submit_many(ARRAY['a', 'b', 'c'], grps => ARRAY['x', NULL], priorities => ARRAY['high'])"
    )
    assert all(isinstance(row[0], UUID) for row in rows)
    stored = await connection.fetch("SELECT task, grp, priority::text FROM joex_private.job ORDER BY seq")
    assert [tuple(row) for row in stored] == [("a", "x", "high"), ("b", "default", "low"), ("c", "default", "low")]


BAD_IN_SQL = [
    "''",
    "NULL",
    "repeat('x', 255)",
    "'a', '[]'",
    "'a', '7'",
    "'a', 'not json'",
    "'a', NULL",
    "'a', grp => ''",
    "'a', grp => repeat('x', 10000)",
    "'a', queue => ''",
    "'a', priority => 'urgent'",
    "'a', tracker => ''",
    "'a', retries => -1",
    "'a', subject => repeat('x', 1001)",
]


async def test_sql_refuses_what_python_refuses_and_stores_nothing(connection):
    for arguments in BAD_IN_SQL:
        with pytest.raises((asyncpg.IntegrityConstraintViolationError, asyncpg.DataError)):
            await connection.fetchval(f"SELECT joex.submit({arguments})")
    assert await count(connection) == 0


async def test_sql_refuses_arrays_that_do_not_fit_together(connection):
    with pytest.raises(asyncpg.NotNullViolationError):
        await connection.fetch("SELECT joex.submit_many(ARRAY['a'], grps => ARRAY['x', 'y'])")
    assert await count(connection) == 0


async def test_a_codec_of_the_callers_connection_changes_nothing(connection, client):
    for name in ("json", "jsonb"):
        await connection.set_type_codec(name, schema="pg_catalog", encoder=json.dumps, decoder=json.loads)
    await connection.set_type_codec("uuid", schema="pg_catalog", encoder=str, decoder=UUID)
    job_id = await client.submit("a", {"x": "1"}, connection=connection)
    assert (await client.get(job_id, connection=connection)).args == {"x": "1"}


async def test_an_id_that_does_not_exist_is_no_job(client):
    assert await client.get(uuid4()) is None
    assert await client.log(uuid4()) == []


# Waking: NOTIFY only if an executor sleeps, and then always.


async def test_nobody_is_notified_while_nobody_sleeps(bench, heard):
    await bench.executor()
    await bench.submit()
    assert await heard() == []


async def test_a_submission_wakes_a_sleeper_of_its_queue_alone(bench, heard):
    sleeper = await bench.executor("sleeper")
    other = await bench.executor("other", queues=["other"])
    await bench.executor("awake")
    for executor in (sleeper, other):
        await bench.connection.execute("SELECT joex_private.fall_asleep($1)", executor)
    await bench.submit()
    assert await heard() == [{"queue": "default", "executors": [sleeper]}]


async def test_a_submission_that_its_tracker_skips_wakes_nobody(bench, heard, client):
    await bench.submit(tracker="one")
    for name in ("first", "second"):
        await bench.connection.execute("SELECT joex_private.fall_asleep($1)", await bench.executor(name))
    assert await client.submit("a", tracker="one") is None
    await bench.connection.execute("SELECT joex.submit('a', tracker => 'one')")
    assert await client.submit_many([{"task": "a", "tracker": "one"}] * 3) == [None] * 3
    assert await heard() == []
    made = await client.submit_many([{"task": "a", "tracker": tracker} for tracker in ("one", "two", "two")])
    assert [job_id is None for job_id in made] == [True, False, True]
    assert [len(message["executors"]) for message in await heard()] == [1]


async def test_a_job_that_is_not_due_wakes_too_because_a_sleeper_must_learn_when_it_is(bench, heard):
    sleeper = await bench.executor()
    await bench.connection.execute("SELECT joex_private.fall_asleep($1)", sleeper)
    await bench.submit(not_before=datetime(2100, 1, 1, tzinfo=UTC))
    assert await heard() == [{"queue": "default", "executors": [sleeper]}]


async def test_the_latest_to_fall_asleep_is_woken_and_no_more_than_there_are_jobs(bench, heard, client):
    sleepers = [await bench.executor(f"e{nr}") for nr in range(6)]
    for executor in sleepers:
        await bench.connection.execute("SELECT joex_private.fall_asleep($1)", executor)
    await bench.submit()
    await client.submit_many([NewJob("a")] * 2)
    await client.submit_many([NewJob("a")] * 100)
    assert [message["executors"] for message in await heard()] == [
        sleepers[:-2:-1],
        sleepers[:-3:-1],
        sleepers[:-5:-1],
    ]


async def test_a_submission_that_is_rolled_back_wakes_nobody(bench, heard):
    await bench.connection.execute("SELECT joex_private.fall_asleep($1)", await bench.executor())
    transaction = bench.connection.transaction()
    await transaction.start()
    await bench.submit()
    await transaction.rollback()
    assert await heard() == []


async def test_a_transaction_with_an_old_snapshot_notifies_in_any_case(bench, heard):
    async with bench.connection.transaction(isolation="repeatable_read"):
        await bench.submit()
    assert await heard() == [{"queue": "default", "executors": []}]


@pytest.mark.parametrize("is_asleep", [True, False], ids=["asleep", "awake"])
async def test_a_submission_reads_few_of_five_hundred_executors(bench, is_asleep):
    """It reads none that is awake, and as many sleeping ones as it may wake (heartbeats cause frequent analyzes)."""
    await bench.connection.execute("ALTER TABLE joex_private.executor SET (autovacuum_enabled = off)")
    await bench.connection.execute(
        """
        INSERT INTO joex_private.executor (id, app_id, host, pid, version, queues, tasks, pool_size, lease, locks)
        SELECT nr, 'e' || nr, 'host', nr, '1', '{default}', array_fill('a task of mine'::text, ARRAY[20]), 20, '10 s',
               true FROM generate_series(1, 500) nr
        """
    )
    if is_asleep:
        await bench.connection.execute("SELECT joex_private.fall_asleep(id) FROM joex_private.executor")
    await bench.connection.execute("ANALYZE joex_private.executor")
    read = """
        SELECT sum(pg_stat_get_xact_tuples_returned(r))::bigint FROM (
            SELECT r FROM unnest('{joex_private.executor, joex_private.sleeper}'::regclass[]) r
            UNION ALL SELECT indexrelid FROM pg_index
            WHERE indrelid = ANY ('{joex_private.executor, joex_private.sleeper}'::regclass[])) x
    """
    async with bench.connection.transaction():
        before = await bench.connection.fetchval(read)
        await bench.submit()
        assert await bench.connection.fetchval(read) - before <= (10 if is_asleep else 0)


async def test_what_was_submitted_is_not_taken_back_by_the_loss_of_its_connection(postgres, database_name, connection):
    """The connection is lost after the submission, when it returns to a pool that resets it."""
    async with Proxy(postgres.port) as proxy:
        url = postgres.tcp_url(database_name, port=proxy.port)
        async with asyncpg.create_pool(url, min_size=0) as pool, Client(pool) as client:
            trap = proxy.trap("pg_advisory_unlock_all", At.CUT)
            job_id = await client.submit("a")
            assert trap.sprung.is_set()
            assert await connection.fetchval("SELECT id FROM joex_private.job") == job_id
            assert await client.submit("a") is not None


async def test_what_was_done_on_a_lent_connection_is_not_taken_back_by_its_loss(postgres, database_name, connection):
    async with Proxy(postgres.port) as proxy, Client(postgres.tcp_url(database_name, port=proxy.port)) as client:
        trap = proxy.trap("pg_advisory_unlock_all", At.CUT)
        async with client.acquire() as lent:
            job_id = await client.submit("a", connection=lent)
        assert trap.sprung.is_set()
        assert await connection.fetchval("SELECT id FROM joex_private.job") == job_id
        assert await client.submit("a") is not None


async def test_what_is_set_on_a_lent_connection_is_not_seen_by_its_next_user(database_url):
    async with Client(database_url) as client:
        async with client.acquire() as lent:
            session = lent.get_server_pid()
            await lent.execute("SET application_name = 'mine'; SET statement_timeout = '1h'; LISTEN mine")
            await lent.execute("BEGIN")
        async with client.using() as used:
            assert used.get_server_pid() == session
            assert await used.fetchval("SHOW application_name") == "joex client"
            assert await used.fetchval("SHOW statement_timeout") == "0"
            assert await used.fetch("SELECT pg_listening_channels()") == []
            assert not used.is_in_transaction()


async def test_a_lent_connection_whose_reset_is_cancelled_is_ended(postgres, database_name, connection):
    async with Proxy(postgres.port) as proxy, Client(postgres.tcp_url(database_name, port=proxy.port)) as client:
        trap = proxy.trap("pg_advisory_unlock_all", At.FREEZE)

        async def borrow() -> int:
            async with client.acquire() as lent:
                return int(lent.get_server_pid())

        borrowing = asyncio.create_task(borrow())
        await trap.sprung.wait()
        borrowing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await borrowing
        assert await client.submit("a") == await connection.fetchval("SELECT id FROM joex_private.job")


async def test_a_submission_is_the_last_that_its_session_is_asked(database_url, connection):
    """A reset would be one more statement for each submission."""
    async with Client(database_url) as client:
        await client.submit("a")
        [asked] = await connection.fetch("""
            SELECT query FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'joex client'
        """)
        assert "joex.submit(" in asked["query"]


async def test_each_way_to_submit_makes_the_same_rows(client, connection):
    later = datetime(2100, 1, 1, tzinfo=UTC)
    given: list[dict[str, Any]] = [
        {"task": "a"},
        {"task": "b", "args": {"n": 1}, "group": "g", "queue": "q", "priority": "high", "retries": 0},
        {"task": "c", "subject": "s", "submitter": "me", "not_before": later, "priority": "low"},
        {"task": "d", "not_before": datetime(2000, 1, 1, tzinfo=UTC), "priority": "high"},
    ]
    ways = [
        [await client.submit(**fields) for fields in given],
        await client.submit_many(given),
        await client.submit_many([*given, {"task": "a", "tracker": "one"}]),  # that may skip some
    ]
    ways += [[(await client.submit_many([fields]))[0] for fields in given]]
    rows = """
        SELECT to_jsonb(j) - '{id, seq, submitted_at, runnable_since}'::text[] || jsonb_build_object(
            'runs at once', runnable_since = submitted_at, 'runs when due', runnable_since = due_at)
        FROM unnest($1::uuid[]) WITH ORDINALITY AS i(id, nr) JOIN joex_private.job j USING (id) ORDER BY nr
    """
    first, *others = [[row[0] for row in await connection.fetch(rows, ids[:4])] for ids in ways]
    assert len(first) == 4
    assert others == [first] * 3


async def test_a_row_that_is_made_by_hand_gets_its_place_on_the_ring_and_can_be_taken(bench):
    me = await bench.executor()
    await bench.connection.execute("INSERT INTO joex_private.job (task, grp, lane) VALUES ('a', 'by hand', 2)")
    place = await bench.connection.fetchval("SELECT ring FROM joex_private.job")
    assert place == await bench.connection.fetchval("SELECT joex_private.ring('by hand')")
    assert (await bench.take_one(me)).group == "by hand"

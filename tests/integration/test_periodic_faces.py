"""Periodic tasks, set with the client and over HTTP."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote
from uuid import UUID

import asyncpg
import httpx
import pytest

from joex import App, Client, InvalidJob, NotYours, Priority, check_timer
from joex.config import Settings
from joex.core.periodic import NewPeriodicTask
from joex.http.api import create_api
from joex.runtime.executor import Executor
from joex.store import periodic
from tests.support.asgi import transport
from tests.support.cases import case

MAINTENANCE = "joex.retention"  # each of the tests' databases has this row
OWNERS = {
    "app:shop": "change it in the code of the app",
    "kubernetes:prod": "change its PeriodicTask object",
    "joex": "it follows the settings of the executors",
    "billing": "change it there",
}
FRIDAY = datetime(2026, 11, 20, 12, tzinfo=UTC)


@pytest.fixture
async def http(client: Client) -> AsyncIterator[httpx.AsyncClient]:
    api = create_api(Settings(), client, Executor(App(), Settings(), ""), lambda: (b"", "text/plain"))
    async with httpx.AsyncClient(transport=transport(api), base_url="http://127.0.0.1:7878") as http:
        yield http


async def owned(connection: asyncpg.Connection, owner: str, task_id: str = "theirs") -> None:
    """A periodic task of another owner."""
    assert await periodic.put(connection, NewPeriodicTask(task_id, "t", "daily"), owner) == "set"


# With the client


async def test_a_periodic_task_is_set_and_read_with_all_its_fields(client):
    fields = {
        "zone": "Europe/Zurich",
        "args": {"deep": [1, {"a": None}]},
        "group": "acme",
        "queue": "reports",
        "priority": "high",
        "subject": "a report",
        "submitter": "ann",
        "enabled": False,
    }
    changed = await client.periodic.put("prod/nightly", "report", "Mon..Fri 03:00", starting_deadline="1h30m", **fields)
    assert changed is True
    task = await client.periodic.get("prod/nightly")
    assert {name: getattr(task, name) for name in fields} == fields
    assert (task.id, task.task, task.timer, task.owner) == ("prod/nightly", "report", "Mon..Fri 03:00", "user")
    assert task.starting_deadline == timedelta(minutes=90)
    assert await client.periodic.get("prod/weekly") is None


async def test_what_is_not_said_has_its_default_and_it_stays_enabled_or_disabled_as_it_is(client):
    assert await client.periodic.put("a", "t", "daily") is True
    assert await client.periodic.put("a", "t", "daily") is False
    task = await client.periodic.get("a")
    assert (task.zone, task.args, task.group, task.queue, task.priority) == ("UTC", {}, "default", "default", "low")
    assert (task.starting_deadline, task.enabled) == (None, True)
    await client.periodic.disable("a")
    assert await client.periodic.put("a", "t", "hourly") is True
    assert (await client.periodic.get("a")).enabled is False
    assert await client.periodic.put("a", "t", "hourly", enabled=True) is True
    assert (await client.periodic.get("a")).enabled is True


async def test_a_wrong_value_is_refused_by_its_name_and_nothing_is_stored(client):
    wrong: list[tuple[str, Any, str]] = [
        ("task_id", "", "id: must not be empty"),
        ("task_id", "ü" * 121, "id: at most 240 bytes; got 242"),
        ("task", "", "task: must not be empty"),
        ("timer", "Mon 25:00", "timer 'Mon 25:00': hour: expected 0 to 23; got '25'"),
        ("timer", " ", "timer: expected something like 'Mon..Fri 08:30' or '30 8 * * 1-5'; got ' '"),
        ("timer", 5, "timer: expected text; got int"),
        ("zone", "Europe/Bern", "time zone: expected a name like 'Europe/Zurich' or 'UTC'; got 'Europe/Bern'"),
        ("zone", None, "zone: expected text; got NoneType"),
        ("args", [1], "args: expected an object (names and values); got list"),
        ("args", {"a": "\0"}, "args: must not contain a NUL character"),
        ("group", "", "group: must not be empty"),
        ("queue", "", "queue: must not be empty"),
        ("priority", "mid", "priority: expected 'high' or 'low'; got 'mid'"),
        ("starting_deadline", "soon", "starting_deadline: expected something like '30s'"),
        ("starting_deadline", -1, "starting_deadline: expected 0 to 3650 days; got -1"),
    ]
    for field, value, message in wrong:
        with case(field, value):
            given = {"task_id": "a", "task": "t", "timer": "daily", field: value}
            with pytest.raises(InvalidJob) as refused:
                await client.periodic.put(**given)
            assert str(refused.value).startswith(message)
    assert [task.id for task in await client.periodic.list()] == [MAINTENANCE]


async def test_arguments_over_the_limit_are_refused_at_once_by_the_client_and_over_http(client, http, connection):
    await connection.execute("SELECT joex.set_largest('args', 8192)")
    args, message = {"x": "y" * 9000}, "args: at most 8192 bytes; got 90"
    with pytest.raises(InvalidJob) as refused:
        await client.periodic.put("a", "t", "daily", args=args)
    assert str(refused.value).startswith(message)
    answer = await http.put("/api/v1/periodic/a", json={"task": "t", "timer": "daily", "args": args})
    assert (answer.status_code, answer.json()["detail"][: len(message)]) == (400, message)
    assert await client.periodic.get("a") is None
    assert await client.periodic.put("a", "t", "daily", args={"x": "y" * 8000})


async def test_a_wrong_name_is_refused_wherever_it_is_said(client):
    tasks = client.periodic
    for call in (tasks.get, tasks.remove, tasks.enable, tasks.disable, tasks.run_now):
        with pytest.raises(InvalidJob, match="id: must not contain a NUL"):
            await call("a\0")
    with pytest.raises(InvalidJob, match="owner: must not be empty"):
        await tasks.list("")
    with pytest.raises(InvalidJob, match="after: expected the key of a periodic task"):
        await tasks.list(after="\0")


@pytest.mark.parametrize("owner", OWNERS)
async def test_what_others_own_is_seen_by_all_and_changed_by_force_only(client, connection, owner):
    tasks, message = client.periodic, f"periodic task 'theirs': it is owned by {owner}: "
    await owned(connection, owner)
    for call in (tasks.remove, tasks.enable, tasks.disable):
        with pytest.raises(NotYours) as refused:
            await call("theirs")
        assert str(refused.value) == message + OWNERS[owner]
    with pytest.raises(NotYours) as refused:
        await tasks.put("theirs", "mine", "hourly")
    assert str(refused.value) == f"{message}choose another id"
    task = await tasks.get("theirs")
    assert (task.owner, task.task, task.enabled) == (owner, "t", True)
    assert task in await tasks.list(owner)

    assert await tasks.disable("theirs", any_owner=True) is True
    assert (await tasks.get("theirs")).enabled is False
    assert await tasks.enable("theirs", any_owner=True) is True
    assert (await tasks.get("theirs")).enabled is True
    if owner == "joex":
        with pytest.raises(NotYours, match=f"^{message}only Joex removes it: disable it instead$"):
            await tasks.remove("theirs", any_owner=True)
    else:
        assert await tasks.remove("theirs", any_owner=True) is True
        assert await tasks.get("theirs") is None


@pytest.mark.parametrize(
    "call",
    [
        "joex.put_periodic_task('joex.retention', 'joex.retention', '*:*:*', args => '{\"keep\": 0}', owner => 'joex')",
        "joex.put_periodic_task('new', 't', 'daily', owner => 'joex')",
        "joex.remove_periodic_task('joex.retention', owner => 'joex')",
        "joex.enable_periodic_task('joex.retention', true, owner => 'joex')",
    ],
)
async def test_who_says_to_be_joex_is_refused(client, connection, call):
    before = await client.periodic.list()
    with pytest.raises(
        asyncpg.InvalidParameterValueError, match=r"^owner: joex stands for Joex itself, which alone sets"
    ):
        await connection.execute(f"SELECT {call}")
    assert await client.periodic.list() == before


async def test_no_client_takes_the_id_of_a_task_of_joexs_own_before_an_executor_has_set_it(client, connection):
    await connection.execute("DELETE FROM joex_private.periodic_task")
    with pytest.raises(NotYours, match=r"'joex.retention': it is owned by another owner"):
        await client.periodic.put(MAINTENANCE, "t", "daily")
    assert await client.periodic.list() == []


async def test_joexs_own_tasks_are_removed_by_no_force_but_enabled_and_disabled(http, client, connection):
    assert (
        await connection.fetchval("SELECT joex.remove_periodic_task($1, any_owner => true)", MAINTENANCE) == "not_yours"
    )
    where = f"/api/v1/periodic/{MAINTENANCE}"
    refused = await http.delete(where, params={"any_owner": True})
    said = f"periodic task {MAINTENANCE!r}: it is owned by joex: only Joex removes it: disable it instead"
    assert (refused.status_code, refused.json()) == (409, {"detail": said})
    for enabled in (True, False):
        answer = await http.patch(where, json={"enabled": enabled}, params={"any_owner": True})
        assert (answer.status_code, (await client.periodic.get(MAINTENANCE)).enabled) == (200, enabled)


@pytest.mark.parametrize("is_there", [True, False])
async def test_no_caller_sets_what_retention_deletes(http, client, connection, is_there):
    """With ages of 0, the next maintenance would delete each finished job of all tenants."""
    if not is_there:
        await connection.execute("DELETE FROM joex_private.periodic_task")
    before = await client.periodic.list()
    body = {"task": MAINTENANCE, "timer": "*:*:*", "args": {"keep": 0, "keep_failed": 0}}
    refused = await http.put(f"/api/v1/periodic/{MAINTENANCE}", json=body)
    assert (refused.status_code, refused.json()["detail"].partition(":")[0]) == (409, f"periodic task {MAINTENANCE!r}")
    put = "SELECT joex.put_periodic_task($1, $1, '*:*:*', args => '{\"keep\": 0}', owner => $2)"
    for owner in ("user", "app:shop"):
        assert await connection.fetchval(put, MAINTENANCE, owner) == "not_yours"
    assert await client.periodic.list() == before


async def test_one_that_is_not_there_can_not_be_changed(client):
    for call in (client.periodic.remove, client.periodic.enable, client.periodic.disable):
        assert await call("nothing") is False
        assert await call("nothing", any_owner=True) is False
    assert await client.periodic.run_now("nothing") == ("not_found", None)


async def test_its_job_is_made_now_whoever_owns_it_and_though_it_is_disabled(client, connection):
    fields: dict[str, Any] = {"args": {"a": 1}, "group": "acme", "queue": "q", "priority": Priority.HIGH}
    new = NewPeriodicTask("prod/nightly", "report", "daily", enabled=False, **fields)
    await periodic.put(connection, new, "kubernetes:prod")
    answer, job_id = await client.periodic.run_now("prod/nightly")
    job = await client.get(job_id)
    assert (answer, job.task, job.subject) == ("submitted", "report", "prod/nightly")
    assert {name: getattr(job, name) for name in fields} == fields
    assert await client.periodic.run_now("prod/nightly") == ("overlapping", None)
    await client.cancel(job_id)
    assert (await client.periodic.run_now("prod/nightly")).answer == "submitted"


async def test_they_are_listed_in_the_order_of_their_ids_page_by_page(client, connection):
    for task_id in ("c", "a", "b"):
        await client.periodic.put(task_id, "t", "daily")
    await owned(connection, "app:shop")
    assert [task.id for task in await client.periodic.list()] == ["a", "b", "c", MAINTENANCE, "theirs"]
    assert [task.id for task in await client.periodic.list("user")] == ["a", "b", "c"]
    assert [task.id for task in await client.periodic.list("user", most=2)] == ["a", "b"]
    assert [task.id for task in await client.periodic.list("user", after='["b", "default", "default"]', most=2)] == [
        "c"
    ]
    for wrong in ("b", "[]", '["b", "default"]', '["b", "default", 1]', "{}", r'["a\u0000", "b", "c"]'):
        with pytest.raises(InvalidJob, match=r"^after: expected the key of a periodic task; got "):
            await client.periodic.list(after=wrong)


async def test_pages_divide_periodic_tasks_of_one_id(client):
    places = [("x", "one"), ("x", "two"), ("y", "one")]
    for queue, group in reversed(places):
        await client.periodic.put("a", "t", "daily", queue=queue, group=group)
    found, after = [], None
    while page := await client.periodic.list("user", after=after, most=1):
        [one] = page
        found.append((one.queue, one.group))
        after = one.key
    assert found == places


async def test_an_id_that_occurs_twice_is_named_with_its_queue_and_group(client, connection):
    for queue, group in (("x", "one"), ("x", "two"), ("y", "one")):
        assert await client.periodic.put("a", "t", "daily", queue=queue, group=group) is True
        assert await client.periodic.put("a", "t", "daily", queue=queue, group=group) is False
    tasks = client.periodic
    said = 'id: several periodic tasks have the id "a": name the queue and the group too, '
    said += 'such as queue "x" and group "one"'
    for call in (tasks.get, tasks.remove, tasks.enable, tasks.disable, tasks.run_now):
        for some in ({}, {"queue": "x"}, {"group": "one"}):
            with pytest.raises(InvalidJob, match=f"^{said}$"):
                await call("a", **some)
    assert (await tasks.get("a", queue="y")).group == "one"
    assert await tasks.disable("a", queue="x", group="two")
    _, job_id = await tasks.run_now("a", queue="y", group="one")
    assert await tasks.remove("a", queue="x", group="one")
    assert await tasks.remove("a", queue="x", group="one") is False
    assert [(one.queue, one.enabled, one.last_job) for one in await tasks.list("user")] == [
        ("x", False, None),
        ("y", True, job_id),
    ]


async def test_it_is_there_if_and_only_if_the_callers_transaction_commits(client, connection):
    tasks = client.periodic
    transaction = connection.transaction()
    await transaction.start()
    await tasks.put("a", "t", "daily", connection=connection)
    _, job_id = await tasks.run_now("a", connection=connection)
    await tasks.disable("a", connection=connection)
    assert (await tasks.get("a", connection=connection)).enabled is False
    assert await tasks.get("a") is None
    await transaction.rollback()
    assert await tasks.get("a") is None
    assert await client.get(job_id) is None
    assert [task.id for task in await tasks.list("user", connection=connection)] == []


# What timers mean


def test_the_next_times_of_a_timer_are_in_its_zone():
    found = check_timer("Mon,Tue 08:00", "Europe/Zurich", after=FRIDAY)
    assert (found.normal, found.zone) == ("Mon,Tue *-*-* 08:00:00", "Europe/Zurich")
    assert [time.isoformat() for time in found.next] == [
        "2026-11-23T08:00:00+01:00", "2026-11-24T08:00:00+01:00", "2026-11-30T08:00:00+01:00",
        "2026-12-01T08:00:00+01:00", "2026-12-07T08:00:00+01:00",
    ]  # fmt: skip
    own = check_timer("daily Asia/Tokyo", "Europe/Zurich", after=FRIDAY, most=1)
    assert (own.zone, own.next[0].isoformat()) == ("Asia/Tokyo", "2026-11-21T00:00:00+09:00")


def test_a_timer_that_never_comes_again_has_no_next_times():
    assert check_timer("2026-01-01").next == []
    assert len(check_timer("2026-11-20..22", after=FRIDAY).next) == 2


def test_a_timer_without_a_moment_given_comes_after_now():
    before = datetime.now(UTC)
    [time] = check_timer("*:*:*", most=1).next
    assert before < time <= datetime.now(UTC) + timedelta(seconds=1)


@pytest.mark.parametrize(
    ("timer", "zone", "message"),
    [
        ("60 * * * *", "UTC", "timer '60 * * * *': minute: expected 0 to 59; got '60'"),
        ("daily", "Moon", "time zone: expected a name"),
        ("daily Moon", "UTC", "timer 'daily Moon': "),
    ],
)
def test_a_timer_that_can_not_be_read_is_refused(timer, zone, message):
    with pytest.raises(InvalidJob) as refused:
        check_timer(timer, zone)
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize("after", [FRIDAY.replace(tzinfo=None), "2026-11-20"])
def test_times_of_a_timer_after_a_time_without_a_zone_are_refused(after):
    with pytest.raises(InvalidJob, match=r"^after: expected a time with its time zone; got "):
        check_timer("daily", after=after)


# Over HTTP


@pytest.mark.parametrize(
    "path", ["prod/nightly", quote("prod/nightly", safe=""), "nightly", "%0Aa%0A", "a%20b/%3F", "x/enable"]
)
async def test_it_is_set_read_changed_and_removed_over_http_whatever_its_id(http, path):
    where = f"/api/v1/periodic/{path}"
    body = {
        "task": "report",
        "timer": "Mon..Fri 03:00",
        "zone": "Europe/Zurich",
        "args": {"a": [1]},
        "group": "acme",
        "queue": "reports",
        "priority": "high",
        "subject": "a report",
        "submitter": "ann",
        "starting_deadline": "1h30m",
        "enabled": True,
    }
    answer = await http.put(where, json=body)
    assert answer.status_code == 200
    read = (await http.get(where)).json()
    assert {name: read[name] for name in body} == body
    assert (read["owner"], quote(read["id"])) == ("user", path.replace("%2F", "/"))
    assert (await http.put(where, json=body)).json()["message"].endswith(" is as it was")

    assert (await http.patch(where, json={"enabled": False})).status_code == 200
    assert (await http.get(where)).json()["enabled"] is False
    assert (await http.patch(where, json={"enabled": True})).status_code == 200
    assert (await http.get(where)).json()["enabled"] is True
    assert (await http.delete(where)).status_code == 200
    for missing in (http.get(where), http.delete(where), http.patch(where, json={"enabled": True}), http.post(where)):
        answer = await missing
        assert answer.status_code == 404
        assert answer.json() == {"detail": f"there is no periodic task {read['id']!r}"}


async def test_its_job_is_made_now_over_http(http, client):
    await client.periodic.put("prod/nightly", "report", "daily")
    answer = await http.post("/api/v1/periodic/prod/nightly")
    assert answer.status_code == 201
    assert (await client.get(UUID(answer.json()["job"]))).task == "report"
    answer = await http.post("/api/v1/periodic/prod/nightly")
    assert (answer.status_code, answer.json()) == (
        409,
        {"detail": "the last job of periodic task 'prod/nightly' is not finished"},
    )


async def test_they_are_listed_over_http_page_by_page(http, client, connection):
    for task_id in ("c", "a", "b"):
        await client.periodic.put(task_id, "t", "daily")
    await owned(connection, "app:shop")
    ids, params = [], {"owner": "user", "limit": 2}
    while True:
        page = (await http.get("/api/v1/periodic", params=params)).json()
        ids.append([task["id"] for task in page["tasks"]])
        if page["next"] is None:
            break
        params["after"] = page["next"]
    assert ids == [["a", "b"], ["c"]]
    everything = (await http.get("/api/v1/periodic")).json()
    assert [task["id"] for task in everything["tasks"]] == ["a", "b", "c", MAINTENANCE, "theirs"]
    assert (await http.get("/api/v1/periodic", params={"owner": "a\0"})).status_code == 400


async def test_what_others_own_is_changed_over_http_by_force_only(http, client, connection):
    await owned(connection, "kubernetes:prod")
    where = "/api/v1/periodic/theirs"
    owner = "periodic task 'theirs': it is owned by kubernetes:prod: "
    refused = await http.put(where, json={"task": "t", "timer": "daily"})
    assert (refused.status_code, refused.json()) == (409, {"detail": f"{owner}choose another id"})
    for call in (http.patch(where, json={"enabled": False}), http.delete(where)):
        refused = await call
        assert refused.status_code == 409
        assert refused.json()["detail"] == f"{owner}change its PeriodicTask object; or add any_owner=true"
    assert (await client.periodic.get("theirs")).enabled is True

    answer = await http.patch(where, json={"enabled": False}, params={"any_owner": True})
    assert (answer.status_code, (await client.periodic.get("theirs")).enabled) == (200, False)
    assert (await http.delete(where, params={"any_owner": True})).status_code == 200
    assert await client.periodic.get("theirs") is None


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        ({"task": "t"}, "timer: is required"),
        ({"task": "t", "timer": "25:00"}, "timer '25:00': hour: expected 0 to 23; got '25'"),
        ({"task": "t", "timer": "daily", "zone": "Moon"}, "time zone: expected a name like"),
        ({"task": "t", "timer": "daily", "starting_deadline": "soon"}, "starting_deadline: expected"),
        ({"task": "t", "timer": "daily", "priority": "mid"}, "priority: expected 'high' or 'low'"),
        ({"task": "t", "timer": "daily", "tracker": "one"}, "tracker: there is no such field"),
    ],
)
async def test_a_wrong_body_is_refused_by_the_name_of_its_field(http, client, body, detail):
    answer = await http.put("/api/v1/periodic/a", json=body)
    assert answer.status_code == 400
    assert answer.json()["detail"].startswith(detail)
    assert await client.periodic.get("a") is None


async def test_a_calendar_event_is_checked_in_the_words_of_docspell(http):
    async def check(**body):
        answer = await http.post("/api/v1/calevent/check", json=body)
        assert answer.status_code == 200
        return answer.json()

    good = await check(event="Mon..Fri 8:00", zone="Europe/Zurich")
    assert (good["success"], good["message"], good["event"]) == (True, "valid", "Mon..Fri *-*-* 08:00:00")
    times = [datetime.fromisoformat(time) for time in good["next"]]
    assert [(time.hour, time.weekday() < 5) for time in times] == [(8, True)] * 5
    assert sorted(set(times)) == times
    assert (await check(event="2020-01-01"))["next"] == []
    assert await check(event="25:00") == {
        "success": False,
        "message": "timer '25:00': hour: expected 0 to 23; got '25'",
        "event": None,
        "next": [],
    }
    assert (await check(event="daily", zone="Moon"))["message"].startswith("time zone: expected a name like")

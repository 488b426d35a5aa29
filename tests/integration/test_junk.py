"""Any client may send any text on any channel of the database: Joex ignores all messages that are not its own."""

import asyncio
import json
from typing import Any

import pytest

import joex
from joex.core.events import Registered
from joex_operator.control.database import Database
from tests.support.processes_inside import executor_inside
from tests.support.waiting import eventually

JUNK = [
    "",
    "junk",
    "5",
    "null",
    "[]",
    "{}",
    "[" * 5000,
    '"queue"',
    '{"queue": "default"}',
    '{"queue": null, "executors": null}',
    '{"queue": ["default"], "executors": []}',
    '{"queue": "default", "executors": 5}',
    '{"executor": 1}',
    '{"jobs": 5}',
    '{"jobs": ["x", null]}',
    '{"event": []}',
    '{"event": "job-started"}',
    '{"event": "job-started", "id": 5, "task": 1, "queue": 2, "group": 3, "state": 4, "executor": 5}',
    '{"event": "executor-left"}',
]


@pytest.fixture
async def quiet(caplog):
    """Check that nothing is logged: an error in a callback is logged with a traceback."""
    yield
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


@pytest.fixture
async def send(connection):
    """Sends junk on a channel."""

    async def send_junk(channel, *more):
        for payload in [*JUNK, *more]:
            await connection.execute("SELECT pg_notify($1, $2)", channel, payload)

    return send_junk


@pytest.fixture
async def client(database_url):
    async with joex.Client(database_url) as client:
        yield client


@pytest.mark.usefixtures("quiet")
async def test_an_executor_passes_over_junk_on_its_channels_and_hears_what_comes_after(database_url, client, send):
    app, go_on = joex.App(), asyncio.Event()

    @app.task("hold")
    async def hold(ctx: joex.Context) -> None:
        await go_on.wait()

    async with executor_inside(app, database_url) as inside:
        me = (await inside.log.wait_for(Registered)).executor
        mine = [
            json.dumps({"executor": me, **more})
            for more in ({}, {"do": "x"}, {"do": "cancel"}, {"do": "cancel", "job": 1})
        ]
        for channel in ("joex_wake", "joex_control", "joex_periodic"):
            await send(channel, *mine)
        job_id = await client.submit("hold")
        await eventually(inside.executor.running)
        assert await client.cancel(job_id) == "requested"
        assert (await client.wait(job_id)).state == "cancelled"


async def test_a_notification_alone_cancels_no_run_and_drains_no_executor(database_url, client, connection):
    """Any role that can connect to the database can notify."""
    app, go_on = joex.App(), asyncio.Event()

    @app.task("hold")
    async def hold(ctx: joex.Context) -> None:
        await go_on.wait()

    @app.task("next")
    async def run_next(ctx: joex.Context) -> None: ...

    async with executor_inside(app, database_url) as inside:
        me = (await inside.log.wait_for(Registered)).executor
        held = await client.submit("hold")
        await eventually(inside.executor.running)
        for order in ({"do": "cancel", "job": str(held)}, {"do": "drain"}):
            await connection.execute("SELECT pg_notify('joex_control', $1)", json.dumps({"executor": me, **order}))
        assert (await client.wait(await client.submit("next"), timeout="1m")).state == "success"
        go_on.set()
        assert (await client.wait(held)).state == "success"


@pytest.mark.usefixtures("quiet")
async def test_those_who_wait_for_jobs_and_events_pass_over_junk(client, connection, send):
    job_id = await client.submit("a")
    waits = asyncio.create_task(client.wait(job_id))
    accepts = asyncio.create_task(client.keyed.accept("mail", wait="1m"))
    async with client.events() as events:
        asked = "SELECT EXISTS (SELECT FROM joex_private.subscription) AND EXISTS (SELECT FROM joex_private.watch)"
        await eventually(lambda: connection.fetchval(asked))
        for channel in ("joex_jobs", await connection.fetchval("SELECT joex.events_channel()"), "joex_wake"):
            await send(channel)
        await client.submit("a", queue="mail")
        await client.cancel(job_id)
        assert (await waits).state == "cancelled"
        assert (await accepts).type == "a"
        assert [(await anext(events)).kind for _ in range(2)] == ["job-submitted", "job-finished"]


@pytest.mark.usefixtures("quiet")
async def test_an_operator_passes_over_junk(database_url, connection, send):
    class Nothing:
        def wake(self):
            """Called for each message on the channel of periodic tasks."""

        def stop(self):
            """Stop nothing; returns a task that ends."""
            return asyncio.create_task(asyncio.sleep(0))

    heard: list[Any] = []
    nothing: Any = Nothing()
    database = Database(
        database_url, lambda *what: heard.append(what), migrate=False, start_scheduler=lambda _pool, _name: nothing
    )
    try:
        listening = """SELECT EXISTS (SELECT FROM pg_stat_activity
            WHERE datname = current_database() AND application_name = 'joex operator listen')"""
        await eventually(lambda: connection.fetchval(listening))
        await eventually(lambda: heard)
        await send("joex_operator")
        await connection.execute("SELECT pg_notify('joex_operator', '{\"queue\": \"the last\"}')")
        await eventually(lambda: ("queue", "the last") in heard)
    finally:
        await database.close()
    assert all(isinstance(name, str) for _, name in heard)

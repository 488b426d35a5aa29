"""An executor whose user may no longer log in, though its sessions from before are there."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

import joex
from joex.config import Settings
from joex.core.events import DatabaseTrouble, FellAsleep, Registered, RunStarted
from joex.errors import ConfigError
from joex.runtime import executor
from joex.store.database import create_pool
from tests.support.apps import AnyClient
from tests.support.processes_inside import LONG, executor_inside
from tests.support.waiting import EventLog, eventually

ROLE = "joex_test_refused"


@pytest.fixture
async def url(database_url: str, connection: asyncpg.Connection) -> AsyncIterator[str]:
    """The URL of a role of its own."""
    await connection.execute(f"""
        CREATE ROLE {ROLE} LOGIN;
        SELECT joex_private.set_scopes('{ROLE}', '{{executor}}')""")
    parts = urlsplit(database_url)
    yield parts._replace(netloc=f"{ROLE}@{parts.netloc.rpartition('@')[2]}").geturl()
    await connection.execute(f"DROP OWNED BY {ROLE}; DROP ROLE {ROLE}")


@pytest.fixture
def app() -> joex.App:
    app = joex.App()

    @app.task("task")
    async def task(ctx: joex.Context) -> None:
        pass

    return app


async def refuse(connection: asyncpg.Connection, app_id: str) -> None:
    """Refuse further logins, and end the idle sessions of the services, as their pool does by itself in time."""
    await connection.execute(f"ALTER ROLE {ROLE} NOLOGIN")
    ended = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = $1"
    await connection.fetchval(ended, f"joex {app_id}")


async def test_an_executor_whose_login_is_refused_is_not_ready_and_works_again_when_it_is_accepted(
    app: joex.App, client: AnyClient, connection: asyncpg.Connection, url: str
) -> None:
    async with executor_inside(app, url, lease=LONG) as inside:
        await inside.log.wait_for(FellAsleep)
        assert (inside.executor.ready, inside.executor.described) == (True, "running")
        await refuse(connection, inside.executor.app_id)
        job = await client.submit("task")
        await inside.log.wait_for(DatabaseTrouble, lambda event: "not permitted to log in" in event.error)
        await eventually(lambda: not inside.executor.ready)
        assert inside.executor.described == "running; the database refuses its login"
        await connection.execute(f"ALTER ROLE {ROLE} LOGIN")
        await inside.ended(job)
        assert (inside.executor.ready, inside.executor.described) == (True, "running")


async def test_an_executor_of_which_one_login_was_refused_is_ready_again_though_its_services_need_no_other(
    app: joex.App, connection: asyncpg.Connection, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A burst needs one more session: the others stay, and serve all that comes after it."""
    monkeypatch.setattr(executor, "_TRY_LOGIN_EVERY", 0.1)
    pools = []

    async def noted(*given: Any, **named: Any) -> Any:
        pools.append(await create_pool(*given, **{**named, "most": 10}))
        return pools[-1]

    async def burst() -> None:
        async with AsyncExitStack() as sessions:
            while True:
                await sessions.enter_async_context(pools[0].acquire())

    monkeypatch.setattr(executor, "create_pool", noted)
    async with executor_inside(app, url, lease=LONG) as inside:
        await inside.log.wait_for(FellAsleep)
        await connection.execute(f"ALTER ROLE {ROLE} NOLOGIN")
        with pytest.raises(asyncpg.InvalidAuthorizationSpecificationError):
            await burst()
        assert not inside.executor.ready
        await connection.execute(f"ALTER ROLE {ROLE} LOGIN")
        await eventually(lambda: inside.executor.ready)


async def test_log_lines_that_are_written_while_logins_are_refused_are_in_the_log_when_they_are_accepted(
    app: joex.App, client: AnyClient, connection: asyncpg.Connection, url: str
) -> None:
    goes_on = asyncio.Event()

    @app.task("chatty")
    async def chatty(ctx: joex.Context) -> None:
        await goes_on.wait()
        ctx.log.info("a line")

    async with executor_inside(app, url, lease=LONG) as inside:
        job = await client.submit("chatty")
        await inside.log.wait_for(RunStarted)
        await refuse(connection, inside.executor.app_id)
        goes_on.set()
        await inside.log.wait_for(DatabaseTrouble, lambda event: event.service == "finisher")
        await connection.execute(f"ALTER ROLE {ROLE} LOGIN")
        await inside.ended(job)
        assert "a line" in [line.message for line in await client.log(job)]


async def test_an_executor_whose_login_stays_refused_ends_so_that_its_next_start_may_find_another_password(
    app: joex.App, client: AnyClient, connection: asyncpg.Connection, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "_REFUSED_FOR", 0.2)
    monkeypatch.setattr(executor, "_TRY_LOGIN_EVERY", 0.1)
    log = EventLog()
    one = executor.Executor(app, Settings(app_id="me", http_address="", lease=LONG), url, emit=log)
    work = asyncio.create_task(one.run())
    await log.wait_for(FellAsleep)
    await refuse(connection, "me")
    job = await client.submit("task")
    with pytest.raises(ConfigError, match="not permitted to log in"):
        await work
    assert (await client.get(job)).state == "waiting"
    assert len(log.of(Registered)) == 1

"""Fair by occupancy: how executors share their slots between groups, while jobs end, and executors join and leave.

tests/property compares takes with their specification; these tests run processes, with their own connections, locks,
wake-ups and ends. Each test goes from one full state of the slots to the next, without a clock.
"""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from functools import partial
from uuid import UUID

import asyncpg
import pytest

import joex
from joex.core.events import RunStarted
from joex.runtime import runner
from joex.store import stats
from tests.support.apps import AnyClient, Effects
from tests.support.locks import HAS_SKIPPED_AN_END
from tests.support.occupancy import Held, Stage, by_group
from tests.support.processes import ExecutorProcesses
from tests.support.processes_inside import LONG, executor_inside
from tests.support.waiting import eventually

ONE_OR_MANY = pytest.mark.parametrize("slots", [(4,), (1, 1, 1, 1)], ids=["one", "four"])
"""Executors, with four slots together."""


@pytest.fixture
async def stage(
    pool: asyncpg.Pool, client: AnyClient, connection: asyncpg.Connection, database_url: str
) -> AsyncIterator[Stage]:
    """A stage for jobs and executors; the remaining executors are killed after the test."""
    effects = Effects(pool, database_url)
    await effects.prepare()
    with ExecutorProcesses(effects, database_url) as executors:
        yield Stage(client, connection, effects, executors)


@ONE_OR_MANY
async def test_a_group_gives_up_slots_to_another_as_its_jobs_end_and_keeps_its_share(
    stage: Stage, slots: tuple[int, ...]
) -> None:
    """Work-conserving: a single group has all slots. By occupancy: whichever jobs end, the shares stay."""
    await stage.submit(long=20)
    await stage.start(*slots)
    assert await stage.shares(4) == {"long": 4}
    await stage.submit(short=14)
    assert await stage.shares(4) == {"long": 4}  # no run is interrupted
    assert await stage.step("long", slots=4) == {"long": 3, "short": 1}
    assert await stage.step("long", slots=4) == {"long": 2, "short": 2}
    for _ in range(8):
        assert await stage.step("short", slots=4) == {"long": 2, "short": 2}
    for _ in range(2):
        assert await stage.step("long", slots=4) == {"long": 2, "short": 2}
    for _ in range(4):
        assert await stage.step("short", slots=4) == {"long": 2, "short": 2}
    # 14 have begun, and none waits: no slot stays free for later jobs.
    assert await stage.step("short", slots=4) == {"long": 3, "short": 1}
    assert await stage.step("short", slots=4) == {"long": 4}


_LONG, _SHORT, _TICKS = 10, 1, 25
"""Durations of jobs, and of a test, in ticks of the test's clock."""


@ONE_OR_MANY
async def test_short_jobs_keep_their_share_of_the_slot_time_beside_long_ones(
    stage: Stage, slots: tuple[int, ...]
) -> None:
    """While both groups have a backlog, each has two of the four slots.

    A tick ends all jobs that have lasted their time, and waits until all slots are full again. One executor takes when
    its last take has committed; several would not wait for each other, so that here jobs end one by one.
    """
    await stage.submit(long=20, short=100)
    for number, size in enumerate(slots):
        await stage.executors.start(str(number), pool_size=size)
        await stage.full(sum(slots[: number + 1]))
    held = await stage.full(4)
    began: dict[UUID, int] = {}
    ended: frozenset[UUID] = frozenset()
    for tick in range(_TICKS):
        assert by_group(held) == {"long": 2, "short": 2}
        began |= {job.id: tick for job in held if job.id not in began}
        over = [job for job in held if tick + 1 - began[job.id] >= {"long": _LONG, "short": _SHORT}[job.group]]
        for jobs in [over] if len(slots) == 1 else [[job] for job in over]:
            await stage.end(*jobs)
            ended |= {job.id for job in jobs}
            held = await stage.full(4, without=ended)


async def test_ends_of_jobs_level_out_what_takes_of_one_moment_have_made_uneven(stage: Stage) -> None:
    """Executors that take at the same moment may all serve one group: none counts what another has not committed."""
    await stage.submit(long=20, short=20)
    await stage.start(1, 1, 1, 1)
    await levels_out(stage)


async def test_slots_are_shared_by_weight_whichever_jobs_end_and_a_change_holds_at_once(
    stage: Stage, connection: asyncpg.Connection
) -> None:
    await stats.set_group(connection, "heavy", "default", weight=3)
    await stage.submit(heavy=20)
    await stage.start(2, 2)
    assert await stage.shares(4) == {"heavy": 4}
    await stage.submit(light=20)
    for group in ("heavy", "light", "heavy", "heavy", "light", "heavy"):
        assert await stage.step(group, slots=4) == {"heavy": 3, "light": 1}
    await stats.set_group(connection, "heavy", "default", weight=1)
    assert await stage.step("heavy", slots=4) == {"heavy": 2, "light": 2}
    await stats.set_group(connection, "light", "default", weight=3)
    assert await stage.step("light", slots=4) == {"heavy": 2, "light": 2}
    assert await stage.step("heavy", slots=4) == {"heavy": 1, "light": 3}
    for group in ("light", "heavy", "light"):
        assert await stage.step(group, slots=4) == {"heavy": 1, "light": 3}


async def test_a_group_at_its_limit_leaves_its_slots_to_others_and_takes_them_when_the_limit_goes(
    stage: Stage, connection: asyncpg.Connection
) -> None:
    await stats.set_group(connection, "limited", "default", max_running=1)
    await stage.submit(limited=12)
    await stage.start(2, 2)
    assert await stage.shares(1) == {"limited": 1}
    await stage.submit(free=6)
    assert await stage.shares(4) == {"limited": 1, "free": 3}
    for group in ("limited", "free", "limited", "free", "free"):
        assert await stage.step(group, slots=4) == {"limited": 1, "free": 3}
    await stage.end(*(job for job in await stage.full(4) if job.group == "free"))
    assert await stage.shares(1) == {"limited": 1}
    for _ in range(3):
        assert await stage.step("limited", slots=1) == {"limited": 1}
    assert await stage.most_at_a_time("limited") == 1
    await stats.set_group(connection, "limited", "default", max_running=-1)
    assert await stage.shares(4) == {"limited": 4}


async def test_shares_hold_while_executors_come_and_leave(stage: Stage) -> None:
    await two_with_two_each(stage)
    await stage.executors.start("newcomer", pool_size=2)
    assert await stage.shares(6) == {"long": 3, "short": 3}
    leaver = next(iter(stage.executors))
    leaver.terminate()
    await eventually(lambda: "SIGTERM" in leaver.log)
    for group in ("short", "long", "short"):  # its remaining runs count for their groups
        job = next(job for job in await stays(stage, 6, leaver.app_id) if job.group == group)
        assert await stage.step(job, slots=6) == {"long": 3, "short": 3}
    await stage.end(*(job for job in await stage.held() if job.executor == leaver.app_id))
    assert await leaver.exited() == 0
    await levels_out(stage)


async def test_shares_hold_when_an_executor_is_killed_and_another_one_comes(stage: Stage) -> None:
    await two_with_two_each(stage)
    victim = next(iter(stage.executors))
    await victim.kill()

    async def given_back() -> bool:
        return all(job.executor != victim.app_id for job in await stage.held())

    await eventually(given_back, why="the jobs of the dead move on")
    await stage.executors.start("newcomer", pool_size=2)
    assert await stage.shares(4) == {"long": 2, "short": 2}
    for group in ("short", "long", "short", "short"):
        assert await stage.step(group, slots=4) == {"long": 2, "short": 2}


async def two_with_two_each(stage: Stage) -> None:
    """Two executors with two slots each, and two groups that hold two each, and have a backlog."""
    await stage.submit(long=20)
    await stage.start(2, 2)
    await stage.full(4)
    await stage.submit(short=20)
    await stage.step("long", slots=4)
    assert await stage.step("long", slots=4) == {"long": 2, "short": 2}


async def stays(stage: Stage, slots: int, leaver: str) -> list[Held]:
    """The jobs that the remaining executors hold."""
    return [job for job in await stage.full(slots) if job.executor != leaver]


async def levels_out(stage: Stage) -> None:
    """Whatever the groups hold now: each end of a job brings the four slots nearer to equal shares."""
    shares = await stage.shares(4)
    while shares != {"long": 2, "short": 2}:
        more = max(shares, key=lambda group: shares[group])
        before, shares = shares, await stage.step(more, slots=4)
        assert shares[more] == before[more] - 1
    for group in ("short", "long", "long", "short"):
        assert await stage.step(group, slots=4) == {"long": 2, "short": 2}


@pytest.mark.parametrize("how", ["transaction", "driver", "handler"])
async def test_code_that_goes_on_after_the_end_of_its_job_keeps_a_slot_of_its_group(
    client: AnyClient, database_url: str, connection: asyncpg.Connection, how: str
) -> None:
    """Code after the task's own transaction, or after `joex.finish` over a driver of its own (which the executor hears
    of with a heartbeat), and a cancel handler that comes when the job has ended as cancelled.
    """
    app = joex.App()
    go_on, may_end = asyncio.Event(), asyncio.Event()

    @app.task("first")
    async def first(ctx: joex.Context) -> None:
        if how == "transaction":
            async with ctx.transaction():
                pass
            await may_end.wait()
        elif how == "driver":
            async with client.acquire() as own:
                await own.execute("SELECT joex.finish($1, $2)", ctx.job_id, ctx.lock_id)
            await may_end.wait()
        else:
            await go_on.wait()

    @first.on_cancel
    async def handle(ctx: joex.Context) -> None:
        await may_end.wait()

    @app.task("other")
    async def other(ctx: joex.Context) -> None:
        pass

    await stats.set_group(connection, "acme", "default", max_running=1)
    lease = timedelta(seconds=6) if how == "driver" else LONG
    async with executor_inside(app, database_url, pool_size=2, lease=lease) as inside:
        job_id = await client.submit("first", group="acme")
        await inside.log.wait_for(RunStarted)
        if how == "handler":
            await eventually(lambda: connection.fetchval("SELECT state = 'running' FROM joex_private.job"))
            async with connection.transaction():  # the executor hears of the request when its run has ended
                await connection.fetchval("SELECT joex.cancel($1)", job_id)
                go_on.set()
                async with client.acquire() as another:
                    tried = partial(another.fetchval, HAS_SKIPPED_AN_END)
                    await eventually(tried, why="the end of the run has been tried")
        await eventually(lambda: connection.fetchval("SELECT count(*) = 1 FROM joex_private.overrun"))
        second, zoo = await client.submit("other", group="acme"), await client.submit("other", group="zoo")
        await inside.ended(zoo)
        assert (await client.get(job_id)).state == ("cancelled" if how == "handler" else "success")
        assert (await client.get(second)).state == "waiting"
        may_end.set()
        await inside.ended(second)
        await eventually(lambda: connection.fetchval("SELECT count(*) = 0 FROM joex_private.overrun"))


async def test_a_run_whose_end_waits_for_a_locked_row_keeps_a_slot_of_its_group(
    client: AnyClient, database_url: str, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own transaction has ended the job, its code is over, and a tenant keeps the row locked."""
    app = joex.App()
    committed, may_end = asyncio.Event(), asyncio.Event()

    @app.task("task")
    async def task(ctx: joex.Context) -> None:
        async with ctx.transaction():
            pass
        committed.set()
        await may_end.wait()

    monkeypatch.setattr(runner, "_TAIL", 1.0)  # the code is over by then
    await stats.set_group(connection, "acme", "default", max_running=1)
    async with executor_inside(app, database_url, lease=LONG, pool_size=2) as inside:
        await client.submit("task", group="acme")
        await committed.wait()
        async with connection.transaction():
            await connection.execute("SELECT FROM joex_private.job FOR UPDATE")
            may_end.set()
            async with client.acquire() as another:
                counted = partial(another.fetchval, "SELECT count(*) = 1 FROM joex_private.overrun")
                await eventually(counted)
            second, zoo = await client.submit("task", group="acme"), await client.submit("task", group="zoo")
            await inside.ended(zoo)
            assert (await client.get(second)).state == "waiting"
        await inside.ended(second)

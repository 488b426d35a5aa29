"""Executors run keyed jobs, and put back overdue ones."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import asyncpg
import pytest

import joex
from joex.core import tuples
from joex.core.events import Overdue, RunEnded, RunStarted, WorkerConflict
from joex.core.job import State
from joex.store import worker_runs
from tests.support.apps import AnyClient
from tests.support.processes_inside import LONG, executor_inside
from tests.support.waiting import PATIENCE, EventLog, eventually

TYPE = ("replication", 1)
NAME = tuples.to_name("type", TYPE)
"""Of the task and the queue."""


@pytest.fixture
def keyed(client: AnyClient) -> joex.KeyedJobs:
    """The API."""
    keyed: joex.KeyedJobs = client.keyed
    return keyed


@pytest.fixture
async def time_out(connection: asyncpg.Connection) -> Callable[[UUID], Awaitable[None]]:
    """Let a run be overdue, as soon as the database knows that its code has started."""

    async def let_it(job: UUID) -> None:
        async def is_running() -> bool:
            found = await connection.fetchval(
                """
                UPDATE joex_private.job SET overdue_at = clock_timestamp()
                WHERE id = $1 AND state = 'running' AND overdue_at > clock_timestamp() RETURNING true
                """,
                job,
            )
            return bool(found)

        await eventually(is_running, why="the run is marked as running")

    return let_it


async def _state(keyed: joex.KeyedJobs, job_id: Any) -> str | None:
    job = await keyed.get_job(TYPE, job_id)
    return None if job is None else job.state


async def test_an_executor_runs_the_jobs_of_a_type_in_the_order_of_their_priorities(
    keyed: joex.KeyedJobs, client: AnyClient, database_url: str
) -> None:
    app, order = joex.App(), []

    @app.task(NAME)
    async def replicate(ctx: joex.Context, source: str, changes: int = 0) -> dict[str, Any]:
        order.append(source)
        return {"known": [ctx.task, ctx.queue, ctx.group, ctx.subject, ctx.attempt], "changes": changes}

    job = await keyed.add(TYPE, ("doc", 7), {"priority": 2, "data": {"source": "late", "changes": 5}})
    await keyed.add(TYPE, ("doc", 8), {"priority": 1, "data": {"source": "early"}})
    async with executor_inside(app, database_url, queues=[NAME], pool_size=1) as inside:
        await inside.log.wait_for(RunEnded, count=2)
    assert order == ["early", "late"]
    assert await keyed.count(TYPE) == {"pending": 0, "running": 0, "finished": 2}
    assert (await client.get(job)).result == {"known": [NAME, NAME, NAME, '["doc",7]', 1], "changes": 5}


async def test_a_job_that_an_executor_runs_is_resubmitted_once_more_while_it_runs(
    keyed: joex.KeyedJobs, database_url: str
) -> None:
    app, go_on = joex.App(), asyncio.Event()

    @app.task(NAME)
    async def replicate(ctx: joex.Context) -> None:
        await go_on.wait()

    async with executor_inside(app, database_url, queues=[NAME]) as inside:
        job = await keyed.add(TYPE, 1)
        await inside.log.wait_for(RunStarted)
        assert [await keyed.resubmit(TYPE, 1) for _ in range(2)] == ["ok", "ok"]
        go_on.set()
        await inside.log.wait_for(RunEnded, count=2)
    ends = [event.verdict.state for event in inside.log.of(RunEnded)]
    assert ends == [State.WAITING, State.SUCCESS]
    found = await keyed.get_job(TYPE, 1)
    assert found is not None
    assert (found.job, found.state, found.attempt) == (job, "finished", 2)


async def test_a_run_that_has_committed_its_end_has_lost_nothing_when_its_job_goes_round_again(
    keyed: joex.KeyedJobs, database_url: str
) -> None:
    app, go_on, again = joex.App(), asyncio.Event(), asyncio.Event()

    @app.task(NAME)
    async def replicate(ctx: joex.Context) -> None:
        if ctx.attempt == 2:
            again.set()
            return
        await go_on.wait()
        async with ctx.transaction():
            pass
        await again.wait()

    async with executor_inside(app, database_url, queues=[NAME]) as inside:
        await keyed.add(TYPE, 1)
        await inside.log.wait_for(RunStarted)
        await keyed.resubmit(TYPE, 1)
        go_on.set()
        await inside.log.wait_for(RunEnded, count=2)
    assert inside.log.of(WorkerConflict) == []
    assert [ended.verdict.state for ended in inside.log.of(RunEnded)] == ["success", "success"]


async def test_a_job_that_is_removed_while_an_executor_runs_it_is_stopped_and_then_gone(
    keyed: joex.KeyedJobs, client: AnyClient, database_url: str
) -> None:
    app, stopped = joex.App(), asyncio.Event()

    @app.task(NAME)
    async def replicate(ctx: joex.Context) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async with executor_inside(app, database_url, queues=[NAME], lease=LONG) as inside:
        job = await keyed.add(TYPE, 1)
        await inside.log.wait_for(RunStarted)
        assert await keyed.remove(TYPE, 1) == "ok"
        end = await inside.ended(job)
    assert stopped.is_set()
    assert end.verdict.state is State.CANCELLED
    assert await keyed.get_job(TYPE, 1) is None
    assert await client.get(job) is None


async def test_a_run_that_hangs_is_put_back_and_run_elsewhere_and_its_late_result_is_dropped(
    keyed: joex.KeyedJobs, client: AnyClient, database_url: str, time_out: Callable[[UUID], Awaitable[None]]
) -> None:
    app, wakes_up = joex.App(), threading.Event()

    @app.task(NAME)
    def replicate(ctx: joex.Context) -> str:
        if ctx.attempt == 1:
            wakes_up.wait(PATIENCE)
            return "late"
        return "in time"

    await keyed.set_timeout(TYPE, activity="1h")
    one, other = EventLog(), EventLog()
    async with executor_inside(app, database_url, queues=[NAME], pool_size=1, log=one) as hanging:
        job = await keyed.add(TYPE, 1)
        await one.wait_for(RunStarted)
        await time_out(job)
        async with executor_inside(app, database_url, queues=[NAME], log=other):
            await other.wait_for(RunEnded, lambda event: event.job.id == job)
            wakes_up.set()
            await one.wait_for(WorkerConflict, lambda event: event.job_id == job)
    stored = await client.get(job)
    assert (stored.state, stored.result, stored.attempt, stored.losses) == ("success", "in time", 2, 1)
    assert [(event.app_id, event.jobs) for event in one.of(Overdue) + other.of(Overdue)] == [
        (hanging.executor.app_id, 1)
    ]


async def test_a_run_that_reports_progress_is_left_alone_and_one_that_does_not_is_put_back(
    keyed: joex.KeyedJobs, client: AnyClient, database_url: str
) -> None:
    app, go_on = joex.App(), asyncio.Event()

    @app.task(NAME)
    async def replicate(ctx: joex.Context, *, reports: bool) -> None:
        while not go_on.is_set() and ctx.attempt == 1:
            if reports:
                ctx.progress(50)
            await asyncio.sleep(0.05)

    await keyed.set_timeout(TYPE, activity="5s")
    async with executor_inside(app, database_url, queues=[NAME]) as inside:
        silent = await keyed.add(TYPE, 1, {"data": {"reports": False}})
        reporting = await keyed.add(TYPE, 2, {"data": {"reports": True}})
        await inside.log.wait_for(Overdue)
        await inside.ended(silent)
        go_on.set()
        await inside.ended(reporting)
    stored = await client.get(silent)
    assert (stored.state, stored.attempt, stored.losses) == ("success", 2, 1)
    stored = await client.get(reporting)
    assert (stored.state, stored.attempt, stored.losses) == ("success", 1, 0)


async def test_a_visibility_timeout_puts_a_run_back_though_it_reports_progress(
    keyed: joex.KeyedJobs, client: AnyClient, database_url: str, time_out: Callable[[UUID], Awaitable[None]]
) -> None:
    """A report would renew an activity timeout for another hour."""
    app = joex.App()

    @app.task(NAME)
    async def replicate(ctx: joex.Context) -> None:
        while ctx.attempt == 1:
            ctx.progress(50)
            await asyncio.sleep(0.05)

    await keyed.set_timeout(TYPE, visibility="1h")
    async with executor_inside(app, database_url, queues=[NAME]) as inside:
        job = await keyed.add(TYPE, 1)
        await time_out(job)
        await inside.log.wait_for(Overdue)
        await inside.ended(job)
    stored = await client.get(job)
    assert (stored.state, stored.attempt, stored.losses) == ("success", 2, 1)


async def test_a_task_that_hangs_again_and_again_fails_in_the_end(
    keyed: joex.KeyedJobs, client: AnyClient, database_url: str, time_out: Callable[[UUID], Awaitable[None]]
) -> None:
    app = joex.App()

    @app.task(NAME)
    async def replicate(ctx: joex.Context) -> None:
        await asyncio.Event().wait()

    await keyed.set_timeout(TYPE, activity="1h")
    async with executor_inside(app, database_url, queues=[NAME], most_losses=1) as inside:
        job = await keyed.add(TYPE, 1)
        for count in (1, 2):
            await inside.log.wait_for(RunStarted, count=count)
            await time_out(job)
            await inside.log.wait_for(Overdue, count=count)
        await inside.log.wait_for(WorkerConflict, count=2)
    stored = await client.get(job)
    assert (stored.state, stored.error) == ("failed", "lost 2 times: its runs did not report in time")
    assert await _state(keyed, 1) == "finished"


@pytest.fixture
async def crowd(connection: asyncpg.Connection) -> int:
    """More than a thousand overdue runs of a worker that has died; returns how many."""
    number = 1201
    keys = "SELECT joex_client.add($1, '\\x17' || substr(int4send(65536 + nr), 2)) FROM generate_series(1, $2) nr"
    await connection.execute(keys, NAME, number)
    assert len(await worker_runs.accept(connection, NAME, number, "gone", None)) == number
    await connection.execute("UPDATE joex_private.job SET overdue_at = clock_timestamp()")
    return number


async def test_all_that_is_overdue_is_put_back_by_executors_that_do_not_serve_its_queue_though_a_row_is_locked(
    keyed: joex.KeyedJobs, database_url: str, connection: asyncpg.Connection, crowd: int
) -> None:
    log = EventLog()

    async def are_back(expected: int) -> bool:
        return (await keyed.count(TYPE))["pending"] == expected

    transaction = connection.transaction()
    await transaction.start()
    await connection.execute("SELECT FROM joex_private.job ORDER BY overdue_at LIMIT 1 FOR UPDATE")
    async with executor_inside(joex.App(), database_url, queues=["another"], log=log):
        await eventually(lambda: are_back(crowd - 1), why="all but one are back")
        await transaction.rollback()
        await eventually(lambda: are_back(crowd), why="all are back")
    events = [(event.app_id, event.jobs) for event in log.of(Overdue)]
    assert {app_id for app_id, _ in events} == {"gone"}
    assert sum(jobs for _, jobs in events) == crowd
    assert max(jobs for _, jobs in events) == 500


async def test_where_no_executor_lives_those_who_accept_put_back_what_is_overdue(
    keyed: joex.KeyedJobs, crowd: int
) -> None:
    accepted = []
    while (job := await keyed.accept(TYPE)) is not None:
        accepted.append(job.id)
    assert sorted(accepted) == list(range(65537, 65537 + crowd))


async def test_executors_and_workers_share_the_jobs_of_a_type_and_each_runs_once(
    keyed: joex.KeyedJobs, client: AnyClient, database_url: str
) -> None:
    app = joex.App()

    @app.task(NAME)
    async def replicate(ctx: joex.Context) -> None:
        async with ctx.transaction() as connection:
            await connection.execute("SELECT 1")

    jobs = [await keyed.add(TYPE, nr) for nr in range(200)]

    async def work() -> int:
        done = 0
        while (job := await keyed.accept(TYPE)) is not None:
            assert job.lock_id is not None
            assert await keyed.finish(TYPE, job.id, {}, job.lock_id) == "ok"
            done += 1
        return done

    async with executor_inside(app, database_url, queues=[NAME]) as inside:
        by_workers = sum(await asyncio.gather(work(), work()))
        await eventually(lambda: len(inside.log.of(RunEnded)) + by_workers == len(jobs), why="all have ended")
    stored = [await client.get(job) for job in jobs]
    assert {(job.state, job.attempt) for job in stored} == {("success", 1)}

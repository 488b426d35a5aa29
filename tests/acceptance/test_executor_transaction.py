"""A task's own writes and the end of its job commit together, or not at all."""

import asyncio
import threading
from uuid import UUID

import asyncpg
import pytest

import joex
from joex.core.events import RunEnded, WorkerConflict
from joex.core.job import State
from tests.support.apps import AnyClient
from tests.support.processes_inside import LONG, executor_inside
from tests.support.waiting import PATIENCE, eventually

_FIRST_HEARTBEAT = "SELECT pg_sequence_last_value('joex_private.overdue_searches') IS NOT NULL"  # its last chore


@pytest.fixture
async def effects(connection: asyncpg.Connection) -> asyncpg.Connection:
    await connection.execute("CREATE TABLE own (job_id uuid NOT NULL)")
    return connection


async def _writes(effects: asyncpg.Connection, job_id: UUID) -> int:
    return int(await effects.fetchval("SELECT count(*) FROM own WHERE job_id = $1", job_id))


async def test_the_commit_of_the_transaction_finishes_the_job_with_its_result(
    client: AnyClient, database_url: str, effects: asyncpg.Connection
) -> None:
    app = joex.App()
    committed, go_on = asyncio.Event(), asyncio.Event()

    @app.task("task")
    async def task(ctx: joex.Context) -> str:
        async with ctx.transaction(result={"pages": 3}, message="indexed") as connection:
            await connection.execute("INSERT INTO own VALUES ($1)", ctx.job_id)
        committed.set()
        await go_on.wait()
        return "ignored"

    async with executor_inside(app, database_url) as inside:
        job_id = await client.submit("task")
        await committed.wait()
        job = await client.get(job_id)  # while its code still runs
        go_on.set()
        end = await inside.ended(job_id)
    assert (job.state, job.result, job.message, job.attempt) == ("success", {"pages": 3}, "indexed", 1)
    assert end.verdict.state is State.SUCCESS
    assert await client.get(job_id) == job
    assert await _writes(effects, job_id) == 1


async def test_what_a_task_raises_inside_its_transaction_rolls_back_its_writes_and_the_job_is_tried_again(
    client: AnyClient, database_url: str, effects: asyncpg.Connection
) -> None:
    app = joex.App()

    @app.task("task")
    async def task(ctx: joex.Context) -> None:
        async with ctx.transaction() as connection:
            await connection.execute("INSERT INTO own VALUES ($1)", ctx.job_id)
            if ctx.attempt < 3:
                raise ValueError("half-way")

    async with executor_inside(app, database_url, retry_delay=0.01) as inside:
        job_id = await client.submit("task")
        await inside.log.wait_for(RunEnded, lambda event: event.verdict.state is State.SUCCESS)
    assert (await client.get(job_id)).attempt == 3
    assert await _writes(effects, job_id) == 1


async def test_what_a_task_raises_after_its_transaction_does_not_undo_it(
    client: AnyClient, database_url: str, effects: asyncpg.Connection
) -> None:
    app = joex.App()

    @app.task("task", retry_delay=0)
    async def task(ctx: joex.Context) -> None:
        async with ctx.transaction() as connection:
            await connection.execute("INSERT INTO own VALUES ($1)", ctx.job_id)
        raise ValueError("too late")

    async with executor_inside(app, database_url) as inside:
        job_id = await client.submit("task")
        end = await inside.ended(job_id)
    job = await client.get(job_id)
    assert (job.state, job.attempt, job.failures) == ("success", 1, 0)
    assert end.verdict.state is State.SUCCESS, "the event says what is written"
    assert await _writes(effects, job_id) == 1


async def test_a_transaction_of_a_run_that_has_lost_its_job_is_rolled_back(
    client: AnyClient, database_url: str, effects: asyncpg.Connection
) -> None:
    """Another executor has the job meanwhile, as after the end of a lease."""
    app = joex.App()
    inside_transaction, go_on = asyncio.Event(), asyncio.Event()
    raised: list[BaseException] = []

    @app.task("task")
    async def task(ctx: joex.Context) -> None:
        try:
            async with ctx.transaction() as connection:
                await connection.execute("INSERT INTO own VALUES ($1)", ctx.job_id)
                inside_transaction.set()
                await go_on.wait()
        except BaseException as error:
            raised.append(error)
            raise

    async with executor_inside(app, database_url, lease=LONG) as inside:
        # The next heartbeat, which would see this, comes much later.
        await eventually(lambda: effects.fetchval(_FIRST_HEARTBEAT), why="the first heartbeat is over")
        job_id = await client.submit("task")
        await inside_transaction.wait()
        await effects.execute("UPDATE joex_private.job SET lock_id = gen_random_uuid() WHERE id = $1", job_id)
        go_on.set()
        conflict = await inside.log.wait_for(WorkerConflict)
        await eventually(lambda: not inside.executor.running())
    assert conflict.job_id == job_id
    assert [type(error) for error in raised] == [joex.WorkerConflict]
    assert await _writes(effects, job_id) == 0
    assert not inside.log.of(RunEnded)


async def test_a_result_of_a_run_that_has_lost_its_job_is_dropped_and_its_slot_free_again(
    client: AnyClient, database_url: str, effects: asyncpg.Connection
) -> None:
    app = joex.App()
    started, go_on = asyncio.Event(), asyncio.Event()

    @app.task("task")
    async def task(ctx: joex.Context) -> str:
        started.set()
        await go_on.wait()
        return "late"

    async with executor_inside(app, database_url, lease=LONG, pool_size=1) as inside:
        job_id = await client.submit("task")
        await started.wait()
        # Another executor holds it now, which is none of this test.
        await effects.execute(
            "UPDATE joex_private.job SET lock_id = gen_random_uuid(), executor_id = 999 WHERE id = $1", job_id
        )
        go_on.set()
        await inside.log.wait_for(WorkerConflict)
        after = await client.submit("task")
        await inside.ended(after)
    job = await client.get(job_id)
    assert (job.result, job.finished_at) == (None, None)


async def test_a_run_that_has_lost_its_job_is_interrupted_at_the_next_heartbeat(
    client: AnyClient, database_url: str, effects: asyncpg.Connection
) -> None:
    app = joex.App()
    started, interrupted = asyncio.Event(), asyncio.Event()

    @app.task("task")
    async def task(ctx: joex.Context) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            interrupted.set()

    async with executor_inside(app, database_url) as inside:
        job_id = await client.submit("task")
        await started.wait()
        await effects.execute(
            "UPDATE joex_private.job SET lock_id = gen_random_uuid(), executor_id = 999 WHERE id = $1", job_id
        )
        await interrupted.wait()
        assert (await inside.log.wait_for(WorkerConflict)).job_id == job_id


async def test_a_transaction_of_a_job_that_was_cancelled_is_rolled_back(
    client: AnyClient, database_url: str, effects: asyncpg.Connection
) -> None:
    """The cancel request comes while the task blocks the loop."""
    app = joex.App()
    inside_transaction, go_on = threading.Event(), threading.Event()
    handled: list[UUID] = []

    @app.task("task")
    async def task(ctx: joex.Context) -> None:
        async with ctx.transaction() as connection:
            await connection.execute("INSERT INTO own VALUES ($1)", ctx.job_id)
            inside_transaction.set()
            go_on.wait(PATIENCE)

    @task.on_cancel
    async def handle(ctx: joex.Context) -> None:
        handled.append(ctx.job_id)

    def cancel(job_id: UUID) -> str:
        inside_transaction.wait(PATIENCE)
        try:
            return asyncio.run(_cancel(database_url, job_id))
        finally:
            go_on.set()

    async with executor_inside(app, database_url, lease=LONG) as inside:
        job_id = await client.submit("task")
        answer = await asyncio.to_thread(cancel, job_id)
        end = await inside.ended(job_id)
    assert answer == "requested"
    assert end.verdict.state is State.CANCELLED
    assert (await client.get(job_id)).state == "cancelled"
    assert handled == [job_id]
    assert await _writes(effects, job_id) == 0


async def _cancel(url: str, job_id: UUID) -> str:
    async with joex.Client(url) as client:
        return await client.cancel(job_id)


@pytest.mark.parametrize("rolls_back", [False, True], ids=["commit", "rollback"])
async def test_code_in_a_thread_finishes_its_job_in_sql_in_a_transaction_of_its_own_driver(
    client: AnyClient, database_url: str, effects: asyncpg.Connection, *, rolls_back: bool
) -> None:
    app = joex.App()

    async def work(ctx: joex.Context) -> str:
        connection = await asyncpg.connect(database_url)
        transaction = connection.transaction()
        try:
            await transaction.start()
            await connection.execute("INSERT INTO own VALUES ($1)", ctx.job_id)
            answer = await connection.fetchval("SELECT joex.finish($1, $2, '7')", ctx.job_id, ctx.lock_id)
            await (transaction.rollback() if rolls_back else transaction.commit())
            return str(answer)
        finally:
            await connection.close()

    @app.task("task", retries=0)
    def task(ctx: joex.Context) -> None:
        assert asyncio.run(work(ctx)) == "ok"
        if rolls_back:
            raise joex.Fail("rolled back")

    async with executor_inside(app, database_url) as inside:
        job_id = await client.submit("task")
        await inside.ended(job_id)
    job = await client.get(job_id)
    assert (job.state, job.result) == (("failed", None) if rolls_back else ("success", 7))
    assert await _writes(effects, job_id) == (0 if rolls_back else 1)


async def test_a_submission_in_a_tasks_transaction_is_there_if_and_only_if_it_commits(
    client: AnyClient, database_url: str, effects: asyncpg.Connection
) -> None:
    app = joex.App()

    @app.task("parent", retry_delay=0)
    async def parent(ctx: joex.Context) -> None:
        async with ctx.transaction() as connection:
            await client.submit("child", {"attempt": ctx.attempt}, connection=connection)
            if ctx.attempt == 1:
                raise ValueError

    @app.task("child")
    async def child(ctx: joex.Context, attempt: int) -> int:
        return attempt

    async with executor_inside(app, database_url) as inside:
        await client.submit("parent")
        await inside.log.wait_for(RunEnded, lambda event: event.job.task == "child")
    children = await effects.fetch("SELECT result::text FROM joex_private.job WHERE task = 'child'")
    assert [row[0] for row in children] == ["2"]


async def test_long_transactions_of_some_jobs_keep_no_other_job_from_running(
    client: AnyClient, database_url: str, effects: asyncpg.Connection
) -> None:
    """Ten slots, of which nine run endless transactions."""
    app = joex.App()
    go_on = asyncio.Event()
    inside_transaction = asyncio.Barrier(10)

    @app.task("long")
    async def long(ctx: joex.Context) -> None:
        async with ctx.transaction() as connection:
            await connection.execute("INSERT INTO own VALUES ($1)", ctx.job_id)
            await inside_transaction.wait()
            await go_on.wait()

    @app.task("short")
    async def short(ctx: joex.Context) -> None:
        pass

    async with executor_inside(app, database_url, pool_size=10, lease=LONG) as inside:
        long_ids = await client.submit_many([{"task": "long"}] * 9)
        await inside_transaction.wait()
        for _ in range(3):
            job_id = await client.submit("short")
            await inside.ended(job_id)
        go_on.set()
        for job_id in long_ids:
            await inside.ended(job_id)

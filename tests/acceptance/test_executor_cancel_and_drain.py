"""Cancelling jobs in each state, and draining executors."""

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import UUID

import asyncpg
import pytest

import joex
from joex.core.events import Draining, Event, FellAsleep, Left, Registered, RunEnded, RunStarted
from joex.core.job import State
from joex.runtime import registration
from tests.support.apps import AnyClient
from tests.support.locks import HAS_SKIPPED_AN_END
from tests.support.processes_inside import LONG, executor_inside
from tests.support.waiting import PATIENCE, EventLog, eventually


async def test_a_waiting_job_is_cancelled_at_once_and_never_runs(client: AnyClient, database_url: str) -> None:
    app = joex.App()
    ran: list[UUID] = []

    @app.task("task")
    async def task(ctx: joex.Context) -> None:
        ran.append(ctx.job_id)

    cancelled, kept = await client.submit("task"), await client.submit("task")
    assert await client.cancel(cancelled) == "cancelled"
    async with executor_inside(app, database_url) as inside:
        await inside.ended(kept)
    assert (await client.get(cancelled)).state == "cancelled"
    assert ran == [kept]
    assert await client.cancel(kept) == "finished"


async def test_a_stuck_job_is_cancelled_at_once(client: AnyClient, database_url: str) -> None:
    app = joex.App()

    @app.task("task", retry_delay="1h")
    async def task(ctx: joex.Context) -> None:
        raise ValueError

    async with executor_inside(app, database_url) as inside:
        job_id = await client.submit("task")
        await inside.ended(job_id)
    assert await client.cancel(job_id) == "cancelled"
    job = await client.get(job_id)
    assert (job.state, job.due_at) == ("cancelled", None)


async def test_a_job_that_is_taken_but_has_not_started_is_cancelled(
    client: AnyClient, database_url: str, connection: asyncpg.Connection
) -> None:
    """The executor's loop is blocked by a task, so that the next one can't start."""
    app = joex.App()
    go_on = threading.Event()

    @app.task("block")
    async def block(ctx: joex.Context) -> None:
        go_on.wait(PATIENCE)

    @app.task("task")
    async def task(ctx: joex.Context) -> None:
        await asyncio.Event().wait()

    def cancel_while_blocked(job_id: UUID) -> str:
        return asyncio.run(_cancel_when_scheduled(database_url, job_id, go_on))

    async with executor_inside(app, database_url, lease=LONG) as inside:
        await inside.log.wait_for(FellAsleep)
        async with connection.transaction():  # both are taken at once
            await client.submit("block", priority="high", connection=connection)
            job_id = await client.submit("task", connection=connection)
            # Begin before the take, which shares this loop with the executor: the loop is blocked from then on.
            answer = asyncio.get_running_loop().run_in_executor(None, cancel_while_blocked, job_id)
        await inside.ended(job_id)
    assert await answer == "requested"
    assert (await client.get(job_id)).state == "cancelled"


async def _cancel_when_scheduled(url: str, job_id: UUID, go_on: threading.Event) -> str:
    client: AnyClient
    async with joex.Client(url) as client:

        async def is_scheduled() -> bool:
            job = await client.get(job_id)  # None: its submission is not committed yet
            return job is not None and job.state == "scheduled"

        try:
            await eventually(is_scheduled)
            return str(await client.cancel(job_id))
        finally:
            go_on.set()


@pytest.mark.parametrize("in_thread", [False, True], ids=["async", "thread"])
async def test_a_running_job_is_interrupted_and_its_cancel_handler_called_with_its_arguments(
    client: AnyClient, database_url: str, *, in_thread: bool
) -> None:
    app = joex.App()
    seen: list[object] = []

    async def run(ctx: joex.Context, path: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            seen.append("cleaned up")

    def run_in_thread(ctx: joex.Context, path: str) -> None:
        ctx.wait_cancelled(PATIENCE)
        seen.append("cleaned up")
        ctx.check_cancelled()

    task = app.task("task")(run_in_thread if in_thread else run)

    def handle_in_thread(ctx: joex.Context, path: str) -> None:
        seen.append((ctx.job_id, path, threading.current_thread() is threading.main_thread()))

    async def handle(ctx: joex.Context, path: str) -> None:
        await asyncio.sleep(0)  # a cancellation that was still pending would come here
        seen.append((ctx.job_id, path, threading.current_thread() is threading.main_thread()))

    task.on_cancel(handle_in_thread if in_thread else handle)
    async with executor_inside(app, database_url, lease=LONG) as inside:
        job_id = await client.submit("task", {"path": "page.png"})
        await inside.log.wait_for(RunStarted)
        assert await client.cancel(job_id) == "requested"
        end = await inside.ended(job_id)
    assert end.verdict.state is State.CANCELLED
    job = await client.get(job_id)
    assert (job.state, job.attempt, job.failures) == ("cancelled", 1, 0)
    assert seen == ["cleaned up", (job_id, "page.png", not in_thread)]


_ANSWERS: list[BaseException | str] = ["done", ValueError("no"), joex.Fail("no"), joex.Retry("later"), SystemExit(1)]


@pytest.mark.parametrize(
    "answer", _ANSWERS, ids=lambda answer: str(answer) if isinstance(answer, str) else repr(answer)
)
@pytest.mark.parametrize("in_thread", [False, True], ids=["async", "thread"])
async def test_however_a_run_answers_its_interruption_its_cancel_handler_is_called_once_and_nothing_is_tried_again(
    client: AnyClient, database_url: str, answer: BaseException | str, *, in_thread: bool
) -> None:
    app = joex.App()
    calls: list[bool] = []

    def answered() -> str:
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def run(ctx: joex.Context) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return answered()
        return "never"

    def run_in_thread(ctx: joex.Context) -> str:
        while not ctx.cancelled:
            ctx.wait_cancelled(60)
        return answered()

    task = app.task("task")(run_in_thread if in_thread else run)

    @task.on_cancel
    async def handle(ctx: joex.Context) -> None:
        async with asyncio.timeout(60):  # which a cancellation that is left over would end
            await asyncio.sleep(0)
        calls.append(ctx.cancelled)

    async with executor_inside(app, database_url, lease=LONG) as inside:
        job_id = await client.submit("task")
        await inside.log.wait_for(RunStarted)
        await client.cancel(job_id)
        end = await inside.ended(job_id)
        await eventually(lambda: not inside.executor.running())
    assert end.verdict.state is State.CANCELLED
    job = await client.get(job_id)
    assert (job.state, job.attempt, job.failures, job.error) == ("cancelled", 1, 0, None)
    assert calls == [True]
    assert (await client.log(job_id))[-1].message == "cancelled on request"


@pytest.mark.parametrize("in_thread", [False, True], ids=["async", "thread"])
async def test_a_run_that_had_ended_before_the_request_reached_it_is_cleaned_up_once_for_its_job_is_cancelled(
    client: AnyClient, database_url: str, connection: asyncpg.Connection, *, in_thread: bool
) -> None:
    app = joex.App()
    calls: list[UUID] = []
    go_on = threading.Event()

    def run_in_thread(ctx: joex.Context) -> str:
        go_on.wait(60)
        return "done"

    async def run(ctx: joex.Context) -> str:
        await asyncio.to_thread(go_on.wait, 60)
        return "done"

    task = app.task("task")(run_in_thread if in_thread else run)

    @task.on_cancel
    async def handle(ctx: joex.Context) -> None:
        calls.append(ctx.job_id)

    async with executor_inside(app, database_url, lease=LONG, pool_size=1) as inside:
        job_id = await client.submit("task")
        await inside.log.wait_for(RunStarted)
        await _is(client, job_id, "running")
        async with connection.transaction():  # the request is seen when this has committed, and the row is locked
            await connection.fetchval("SELECT joex.cancel($1)", job_id)
            go_on.set()
            async with client.acquire() as another:
                tried = partial(another.fetchval, HAS_SKIPPED_AN_END)
                await eventually(tried, why="the end of the run has been tried")
        await inside.ended(job_id)
        await eventually(lambda: not inside.executor.running())
    assert (await client.get(job_id)).state == "cancelled"
    assert calls == [job_id]


async def test_a_cancel_handler_that_raises_anything_frees_its_slot(client: AnyClient, database_url: str) -> None:
    app = joex.App()

    @app.task("task")
    async def task(ctx: joex.Context) -> None:
        await asyncio.Event().wait()

    @task.on_cancel
    async def handle(ctx: joex.Context) -> None:
        raise asyncio.CancelledError

    async with executor_inside(app, database_url, lease=LONG) as inside:
        job_id = await client.submit("task")
        await inside.log.wait_for(RunStarted)
        await client.cancel(job_id)
        await inside.ended(job_id)
        await eventually(lambda: not inside.executor.running())
    assert (await client.get(job_id)).state == "cancelled"


async def test_a_cancel_handler_that_fails_leaves_the_job_cancelled_and_says_so_in_its_log(
    client: AnyClient, database_url: str
) -> None:
    app = joex.App()

    @app.task("task")
    async def task(ctx: joex.Context) -> None:
        await asyncio.Event().wait()

    @task.on_cancel
    async def handle(ctx: joex.Context) -> None:
        raise ValueError("can't clean up")

    async with executor_inside(app, database_url) as inside:
        job_id = await client.submit("task")
        await inside.log.wait_for(RunStarted)
        await client.cancel(job_id)
        await inside.ended(job_id)
    assert (await client.get(job_id)).state == "cancelled"
    assert [line.level for line in await client.log(job_id)] == ["error", "warning"]
    assert "on_cancel handler failed" in (await client.log(job_id))[0].message


async def test_a_cancelled_run_may_clean_up_undisturbed_however_long_it_takes(
    client: AnyClient, database_url: str, connection: asyncpg.Connection
) -> None:
    """The heartbeats of the executor see the cancel request repeatedly; the run is cancelled once."""
    app = joex.App()
    cleaning, may_end = asyncio.Event(), asyncio.Event()
    interruptions: list[str] = []

    @app.task("task")
    async def task(ctx: joex.Context) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            interruptions.append("in the task")
            cleaning.set()
            try:
                await may_end.wait()
            except asyncio.CancelledError:
                interruptions.append("while it cleans up")
            raise

    async with executor_inside(app, database_url) as inside:
        job_id = await client.submit("task")
        await inside.log.wait_for(RunStarted)
        await client.cancel(job_id)
        await cleaning.wait()
        await _heartbeats(connection, 3)
        may_end.set()
        await inside.ended(job_id)
    assert interruptions == ["in the task"]
    assert (await client.get(job_id)).state == "cancelled"


async def test_a_task_that_ignores_its_cancellation_ends_cancelled_all_the_same(
    client: AnyClient, database_url: str
) -> None:
    app = joex.App()

    @app.task("task")
    async def task(ctx: joex.Context) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "done anyway"
        return "never"

    async with executor_inside(app, database_url) as inside:
        job_id = await client.submit("task")
        await inside.log.wait_for(RunStarted)
        await client.cancel(job_id)
        await inside.ended(job_id)
        after = await client.submit("task")
        await inside.log.wait_for(RunStarted, count=2)  # the slot's next run is not disturbed
        await client.cancel(after)
        await inside.ended(after)
    assert (await client.get(job_id)).state == "cancelled"


async def test_a_job_that_is_cancelled_as_it_fails_is_not_tried_again(client: AnyClient, database_url: str) -> None:
    app = joex.App()
    runs: list[int] = []

    @app.task("task", retry_delay=0)
    async def task(ctx: joex.Context) -> None:
        runs.append(ctx.attempt)
        await client.cancel(ctx.job_id)
        raise ValueError

    async with executor_inside(app, database_url) as inside:
        job_id = await client.submit("task")
        await inside.log.wait_for(FellAsleep, after=inside.log.behind(await inside.ended(job_id)))
    assert (await client.get(job_id)).state == "cancelled"
    assert runs == [1]


async def test_a_drain_finishes_what_runs_takes_nothing_more_and_leaves(
    client: AnyClient, connection: asyncpg.Connection, database_url: str
) -> None:
    app = joex.App()
    may_end = [asyncio.Event(), asyncio.Event()]

    @app.task("task")
    async def task(ctx: joex.Context, nr: int) -> str:
        await may_end[nr].wait()
        return "done"

    # (All slots are in use when it is asked to drain: a take that is under way then may still find a job.)
    async with executor_inside(app, database_url, pool_size=2) as inside:
        running = [await client.submit("task", {"nr": nr}) for nr in (0, 1)]
        await inside.log.wait_for(RunStarted, count=2)
        inside.executor.drain()
        assert not inside.executor.ready
        waiting = await client.submit("task", {"nr": 1})
        may_end[0].set()
        await inside.ended(running[0])
        inside.executor.wake()
        for _ in range(300):  # meanwhile, an executor that still takes jobs would take it
            assert (await client.get(waiting)).state == "waiting"
        may_end[1].set()
        await inside.work
    for job_id in running:
        job = await client.get(job_id)
        assert (job.state, job.result, job.attempt) == ("success", "done", 1)
    job = await client.get(waiting)
    assert (job.state, job.attempt, job.losses) == ("waiting", 0, 0)
    assert inside.log.of(Draining)[0].runs == 2
    assert (
        await connection.fetchval("SELECT ending FROM joex_private.executor WHERE id = $1", inside.executor.id)
        == "left"
    )


async def test_a_stop_interrupts_what_runs_and_gives_it_back_and_this_run_does_not_count(
    client: AnyClient, database_url: str
) -> None:
    app = joex.App()
    interrupted: list[bool] = []

    @app.task("task")
    async def task(ctx: joex.Context) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            interrupted.append(ctx.cancelled)

    async with executor_inside(app, database_url) as inside:
        job_id = await client.submit("task")
        await _is(client, job_id, "running")
        inside.executor.stop()
        await inside.work
    job = await client.get(job_id)
    assert (job.state, job.attempt, job.failures, job.losses) == ("waiting", 0, 0, 0)
    assert interrupted == [True]
    assert inside.log.of(Left)


async def test_the_time_limit_of_a_drain_gives_back_what_still_runs(client: AnyClient, database_url: str) -> None:
    app = joex.App()

    @app.task("task")
    async def task(ctx: joex.Context) -> None:
        await asyncio.Event().wait()

    async with executor_inside(app, database_url, drain_timeout=0.1) as inside:
        job_id = await client.submit("task")
        await inside.log.wait_for(RunStarted)
        inside.executor.drain()
        await inside.work
    job = await client.get(job_id)
    assert (job.state, job.attempt, job.failures, job.losses) == ("waiting", 0, 0, 0)


async def test_the_time_limit_of_a_drain_also_holds_where_an_open_transaction_keeps_the_end_of_a_run(
    client: AnyClient, database_url: str, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "_GRACE", 0.1)
    app, go_on = joex.App(), asyncio.Event()

    @app.task("task")
    async def task(ctx: joex.Context) -> None:
        await go_on.wait()

    async with executor_inside(app, database_url, drain_timeout=0.1) as first:
        job_id = await client.submit("task")
        await first.log.wait_for(RunStarted)
        await _is(client, job_id, "running")
        holding = connection.transaction()
        await holding.start()
        await connection.fetchval("SELECT joex.cancel($1)", job_id)
        go_on.set()
        async with client.acquire() as another:
            tried = partial(another.fetchval, HAS_SKIPPED_AN_END)
            await eventually(tried, why="the end of the run has been tried")
        first.executor.drain()
        await first.work
    await holding.rollback()
    async with executor_inside(app, database_url) as second:
        await second.ended(job_id)
    job = await client.get(job_id)
    assert (job.state, job.failures, job.losses) == ("success", 0, 0)


async def test_what_was_given_back_runs_on_another_executor_without_waiting_for_a_heartbeat(
    client: AnyClient, database_url: str
) -> None:
    app = joex.App()
    runs: list[int] = []
    leave = asyncio.Event()

    @app.task("task")
    async def task(ctx: joex.Context) -> None:
        runs.append(1)
        if len(runs) == 1:
            leave.set()
            await asyncio.Event().wait()

    async with executor_inside(app, database_url, lease=LONG) as first:
        job_id = await client.submit("task")
        await leave.wait()
        async with executor_inside(app, database_url, lease=LONG) as second:
            await second.log.wait_for(FellAsleep)
            first.executor.stop()
            await first.work
            await second.ended(job_id)
    assert (await client.get(job_id)).state == "success"


async def test_an_executor_is_drained_through_the_database(
    client: AnyClient, database_url: str, connection: asyncpg.Connection
) -> None:
    app = joex.App()
    async with (
        executor_inside(app, database_url, app_id="one", lease=LONG) as one,
        executor_inside(app, database_url, app_id="other", lease=LONG) as other,
    ):
        await one.log.wait_for(FellAsleep)  # it listens by now, or will see it at its first heartbeat
        asked = await connection.fetch("SELECT joex_client.drain('one')")
        await one.work
        assert [row[0] for row in asked] == ["one"]
        assert other.executor.ready


async def test_a_drain_that_comes_with_the_registration_leaves_in_order(
    client: AnyClient, database_url: str, connection: asyncpg.Connection
) -> None:
    """The drain comes before the executor has started its parts."""
    app = joex.App()

    @app.task("task")
    async def task(ctx: joex.Context) -> None:
        pass

    ids = await client.submit_many([{"task": "task"}] * 5)
    for _ in range(5):
        log = _DrainAtOnce()
        async with executor_inside(app, database_url, log=log, registered=False) as inside:
            log.drain = inside.executor.drain
            await asyncio.wait_for(inside.work, PATIENCE)
    jobs = [await client.get(job_id) for job_id in ids]
    assert all((job.state, job.attempt, job.losses) in (("waiting", 0, 0), ("success", 1, 0)) for job in jobs)
    endings = await connection.fetch("SELECT ending, count(*) FROM joex_private.executor GROUP BY 1")
    assert [tuple(row) for row in endings] == [("left", 5)]


class _DrainAtOnce(EventLog):
    drain: Callable[[], None]

    def __call__(self, event: Event) -> None:
        super().__call__(event)
        if isinstance(event, Registered):
            self.drain()


async def test_the_last_log_lines_of_a_job_are_written_before_its_executor_leaves(
    client: AnyClient, database_url: str, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log writer is in the middle of a write when the drain comes, and this write fails."""
    monkeypatch.setattr(registration, "_FLUSH_FOR", 20 * registration._FLUSH_FOR)  # the machine may be busy
    app = joex.App()
    may_end = asyncio.Event()

    @app.task("task")
    async def task(ctx: joex.Context) -> None:
        ctx.log.info("the last line")
        await may_end.wait()

    async with executor_inside(app, database_url) as inside:
        async with connection.transaction():
            await connection.execute("LOCK TABLE joex_private.job_log IN SHARE MODE")
            job_id = await client.submit("task")
            first = await eventually(lambda: _writes_that_wait(client))
            inside.executor.drain()
            may_end.set()
            await _is(client, job_id, "success")

            async def has_failed() -> bool:
                return not set(first) & set(await _writes_that_wait(client))

            await eventually(has_failed, why="the server has ended the first write")
        await inside.work
    assert "the last line" in [line.message for line in await client.log(job_id)]


async def _writes_that_wait(client: AnyClient) -> list[Any]:
    """When the log writer began the writes that wait for a lock."""
    async with client.acquire() as connection:
        found = await connection.fetch(
            "SELECT query_start FROM pg_stat_activity WHERE datname = current_database() "
            "AND wait_event_type = 'Lock' AND query LIKE '%note_many%'"
        )
    return [row["query_start"] for row in found]


async def _is(client: AnyClient, job_id: UUID, state: str) -> None:
    async def in_state() -> bool:
        return bool((await client.get(job_id)).state == state)

    await eventually(in_state, why=f"job {job_id} is {state}")


async def _heartbeats(connection: asyncpg.Connection, count: int) -> None:
    """Wait for this many heartbeats of the one executor (its end counts for all): the clock of these tests."""
    seen: set[object] = set()

    async def enough() -> bool:
        seen.add(await connection.fetchval("SELECT max(heartbeat_at) FROM joex_private.lease"))
        return len(seen) > count or None in seen

    await eventually(enough, why=f"{count} heartbeats")


async def test_every_run_that_starts_ends(client: AnyClient, database_url: str) -> None:
    """Submissions, cancellations and a drain at the same time."""
    app = joex.App()

    @app.task("task")
    async def task(ctx: joex.Context) -> None:
        await asyncio.sleep(0)

    async with executor_inside(app, database_url, pool_size=10) as inside:
        ids = await client.submit_many([{"task": "task", "group": f"g{n % 7}"} for n in range(300)])
        await asyncio.gather(*(client.cancel(job_id) for job_id in ids[::3]))
        await inside.log.wait_for(RunEnded, count=50)
        inside.executor.drain()
        await inside.work
    jobs = [await client.get(job_id) for job_id in ids]
    assert {job.state for job in jobs} <= {"success", "cancelled", "waiting"}
    assert all(job.losses == 0 for job in jobs)
    assert len(inside.log.of(RunEnded)) >= len(inside.log.of(RunStarted))

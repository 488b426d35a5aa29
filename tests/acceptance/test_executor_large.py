"""Large arguments, results and log lines: they have limits, and do not delay anything else."""

import asyncio
import time
from collections.abc import Sequence
from copy import copy
from itertools import pairwise
from typing import Any
from uuid import UUID

import asyncpg
import pytest

import joex
from joex.core.events import DatabaseTrouble, LogLinesDropped, RunEnded, RunNotWritten, RunStarted
from joex.core.job import State, TakenJob
from joex.core.outcome import Verdict
from joex.runtime import bulk, finisher
from joex.store import runs
from joex.store.runs import EndedRun
from tests.support.apps import AnyClient
from tests.support.processes_inside import LONG, executor_inside
from tests.support.proxy import At, Proxy
from tests.support.waiting import PATIENCE, eventually

LARGE = 400_000
"""Bytes: too large to travel with others."""


def app_of_sizes() -> joex.App:
    app = joex.App()

    @app.task("give")
    async def give(ctx: joex.Context, size: int) -> str:
        return "x" * size

    @app.task("measure")
    async def measure(ctx: joex.Context, text: str) -> int:
        return len(text)

    return app


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large values time out at once, and are retried soon."""
    monkeypatch.setattr(bulk, "_BASE", 0.05)
    monkeypatch.setattr(bulk, "SLOWEST", 10**9)


class Spy:
    """Records the calls of `joex.store.runs.finish_many`, and passes them on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[list[EndedRun], float]] = []
        """What it was given, and when."""
        self._finish_many = runs.finish_many
        monkeypatch.setattr(runs, "finish_many", self)

    async def __call__(self, connection: Any, ends: Sequence[EndedRun], *, skip_locked: bool = False) -> Any:
        self.calls.append((list(ends), time.monotonic()))
        return await self._finish_many(connection, ends, skip_locked=skip_locked)

    def tries(self, job_id: UUID) -> list[float]:
        """When the executor has tried to write the end of the job's run."""
        return [at for ends, at in self.calls if job_id in {end.id for end in ends}]


async def refuse(connection: asyncpg.Connection, table: str, when: str, error: str = "internal_error") -> None:
    """Let the database refuse to store some rows."""
    await connection.execute(f"""
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
            'BEGIN RAISE {error} USING MESSAGE = ''no such row''; END';
        CREATE TRIGGER refuse BEFORE INSERT OR UPDATE ON {table} FOR EACH ROW WHEN ({when}) EXECUTE FUNCTION refuse();
    """)


# Limits.


async def test_a_result_over_the_limit_fails_its_job_at_once_with_a_line_that_names_it(
    client: AnyClient, database_url: str, connection: asyncpg.Connection
) -> None:
    await connection.execute("SELECT joex.set_largest('result', 8000)")
    async with executor_inside(app_of_sizes(), database_url, retries=5) as inside:
        large, small = [await client.submit("give", {"size": size}) for size in (8001, 7900)]
        for job_id in (large, small):
            await inside.ended(job_id)
    job = await client.get(large)
    assert (job.state, job.attempt, job.result) == ("failed", 1, None)
    assert job.error.startswith("result: at most 8000 bytes; got 8003: store it elsewhere and pass a reference, or")
    assert (await client.get(small)).state == "success"


async def test_a_result_that_is_over_the_limit_as_the_databases_text_alone_fails_its_job(
    client: AnyClient, database_url: str
) -> None:
    """Python writes 1e+308, PostgreSQL 309 digits."""
    app = joex.App()

    @app.task("task")
    async def task(ctx: joex.Context) -> list[float]:
        return [1e308] * 100_000

    async with executor_inside(app, database_url, retries=5) as inside:
        job_id = await client.submit("task")
        await inside.ended(job_id)
    job = await client.get(job_id)
    assert (job.state, job.attempt, job.result) == ("failed", 1, None)
    assert "result: at most 16000000 bytes; got 31" in job.error


@pytest.mark.parametrize("text", ["x" * 9000, [1] * 4000], ids=["as JSON text", "as jsonb alone"])
async def test_a_result_over_the_limit_in_a_transaction_rolls_it_back_and_fails_the_job_at_once(
    client: AnyClient, database_url: str, connection: asyncpg.Connection, text: object
) -> None:
    await connection.execute("SELECT joex.set_largest('result', 8192)")
    await connection.execute("CREATE TABLE effect (nr integer)")
    app = joex.App()

    @app.task("task")
    async def task(ctx: joex.Context) -> None:
        async with ctx.transaction(result=text) as used:
            await used.execute("INSERT INTO effect VALUES (1)")

    async with executor_inside(app, database_url) as inside:
        job_id = await client.submit("task")
        await inside.ended(job_id)
    job = await client.get(job_id)
    assert (job.state, job.attempt) == ("failed", 1)
    assert job.error.startswith("result: at most 8192 bytes; got ")
    assert await connection.fetchval("SELECT count(*) FROM effect") == 0


# Arguments.


async def test_a_task_is_given_its_arguments_however_large_they_are(
    client: AnyClient, database_url: str, connection: asyncpg.Connection
) -> None:
    await connection.execute("SELECT joex.set_largest('args', 6000000)")
    async with executor_inside(app_of_sizes(), database_url) as inside:
        ids = [await client.submit("measure", {"text": "x" * size}) for size in (1, LARGE, 5_000_000)]
        for job_id in ids:
            await inside.ended(job_id)
    assert [(await client.get(job_id)).result for job_id in ids] == [1, LARGE, 5_000_000]


@pytest.mark.parametrize("at", [At.CUT, At.CUT_ANSWER], ids=lambda at: at.name)
async def test_arguments_that_get_lost_on_their_way_are_fetched_again(client: AnyClient, proxy: Proxy, at: At) -> None:
    async with executor_inside(app_of_sizes(), proxy.url, lease=LONG) as inside:
        trap = proxy.trap("joex_client.arguments(", at)
        job_id = await client.submit("measure", {"text": "x" * LARGE})
        await inside.ended(job_id)
    assert trap.sprung.is_set()
    job = await client.get(job_id)
    assert (job.state, job.result, job.attempt) == ("success", LARGE, 1)


async def test_fat_arguments_of_one_tenant_hold_up_no_other_while_they_crawl(
    client: AnyClient, database_url: str, proxy: Proxy, connection: asyncpg.Connection
) -> None:
    proxy.large_answers.clear()
    await connection.execute("SELECT joex.set_largest('args', 6000000)")
    fat = [{"task": "measure", "args": {"text": "x" * 3_000_000}, "group": "fat"}] * 20
    async with executor_inside(app_of_sizes(), proxy.url, lease=LONG, pool_size=21) as inside:
        ids = await client.submit_many(fat)
        await eventually(
            lambda: connection.fetchval("SELECT count(*) = 20 FROM joex_private.job WHERE executor_id > 0")
        )
        for n in range(10):
            await inside.ended(await client.submit("measure", {"text": "x"}, group=f"small {n}"))
        assert inside.log.of(RunEnded, lambda event: event.job.group == "fat") == []
        proxy.large_answers.set()
        for job_id in ids:
            await inside.ended(job_id)
    assert {(job.state, job.attempt) for job in [await client.get(job_id) for job_id in ids]} == {("success", 1)}


async def test_a_job_whose_arguments_hang_on_a_link_keeps_no_other_waiting_and_is_cancelled_at_once(
    client: AnyClient, proxy: Proxy
) -> None:
    async with executor_inside(app_of_sizes(), proxy.url, lease=LONG, pool_size=2) as inside:
        trap = proxy.trap("joex_client.arguments(", At.FREEZE)
        large = await client.submit("measure", {"text": "x" * LARGE}, group="large")
        await trap.sprung.wait()
        for _ in range(5):
            await inside.ended(await client.submit("measure", {"text": "x"}, group="small"))
        assert inside.log.of(RunEnded, lambda event: event.job.id == large) == []
        assert await client.cancel(large) == "requested"
        end = await inside.ended(large)
    assert end.verdict.state is State.CANCELLED
    assert (await client.get(large)).state == "cancelled"


@pytest.mark.usefixtures("impatient")
async def test_a_job_whose_arguments_never_get_through_is_tried_again_later_and_then_fails(
    client: AnyClient, database_url: str, connection: asyncpg.Connection
) -> None:
    async with executor_inside(app_of_sizes(), database_url, lease=LONG, retries=1) as inside:
        await connection.execute("""
            CREATE OR REPLACE FUNCTION joex_client.arguments(id uuid, lock_id uuid) RETURNS jsonb LANGUAGE sql AS
                'SELECT NULL::jsonb FROM pg_sleep(600)'
        """)
        job_id = await client.submit("measure", {"text": "x" * LARGE})
        await inside.log.wait_for(RunEnded, lambda event: event.verdict.state is State.FAILED)
        assert await client.submit("measure", {"text": "x"}) is not None
    job = await client.get(job_id)
    assert (job.state, job.failures) == ("failed", 2)
    assert job.error == "args: TooSlow: did not get through within 0 s, 3 times"


# Results.


async def test_large_arguments_of_a_tenant_wait_for_no_large_result_of_another_and_its_large_results_for_one_at_most(
    client: AnyClient, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "_BASE", PATIENCE)
    moved, finish_many = bulk.Bulk.moved, runs.finish_many
    wanted: list[str] = []
    may_end = asyncio.Semaphore(0)

    async def seen(self: bulk.Bulk, job: TakenJob, *given: Any) -> Any:
        wanted.append(job.group)
        return await moved(self, job, *given)

    async def slow(used: Any, ends: Sequence[EndedRun], *, skip_locked: bool = False) -> Any:
        if LARGE <= len(ends[0].result or "") < 2 * LARGE:
            await may_end.acquire()
        return await finish_many(used, ends, skip_locked=skip_locked)

    monkeypatch.setattr(bulk.Bulk, "moved", seen)
    monkeypatch.setattr(runs, "finish_many", slow)
    queues = ["default", "another"]  # of which one has a group by the name of one in the other
    async with executor_inside(app_of_sizes(), database_url, lease=LONG, pool_size=9, queues=queues) as inside:
        fat = await client.submit_many(
            [{"task": "give", "args": {"size": LARGE}, "group": "small", "queue": "another"}] * 8
        )
        await eventually(lambda: wanted == ["small"] * 8)
        await inside.ended(await client.submit("measure", {"text": "x" * LARGE}, group="small"))
        small = await client.submit("give", {"size": 2 * LARGE}, group="small")
        await eventually(lambda: wanted[9:] == ["small"])
        may_end.release()
        await inside.ended(small)
        assert len(inside.log.of(RunEnded, lambda event: event.job.queue == "another")) == 1
        for job_id in fat:
            may_end.release()
            await inside.ended(job_id)


async def test_the_ends_of_many_runs_with_large_results_are_cut_into_batches_by_their_bytes(
    client: AnyClient, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spy, together = Spy(monkeypatch), asyncio.Barrier(16)
    app = joex.App()

    @app.task("task")
    async def task(ctx: joex.Context) -> str:
        await together.wait()
        return "x" * 200_000

    async with executor_inside(app, database_url, lease=LONG, pool_size=16) as inside:
        ids = await client.submit_many([{"task": "task"}] * 16)
        for job_id in ids:
            await inside.ended(job_id)
    sizes = [sum(len(end.result or "") for end in ends) for ends, _ in spy.calls]
    assert sum(sizes) >= 16 * 200_000
    assert max(sizes) <= 1_000_000


async def test_the_end_of_a_run_with_a_large_result_that_hangs_on_a_link_keeps_no_other_waiting(
    client: AnyClient, proxy: Proxy
) -> None:
    async with executor_inside(app_of_sizes(), proxy.url, lease=LONG, pool_size=2) as inside:
        trap = proxy.trap("joex_private.finish_many(", At.FREEZE)
        large = await client.submit("give", {"size": LARGE}, group="large")
        await trap.sprung.wait()
        small = [await client.submit("give", {"size": 1}, group="small") for _ in range(5)]
        for job_id in (*small, large):
            await inside.ended(job_id)
    assert inside.log.of(RunEnded)[-1].job.id == large
    job = await client.get(large)
    assert (job.state, len(job.result)) == ("success", LARGE)


async def test_a_result_that_does_not_get_through_fails_its_job_with_a_line_that_says_so_and_no_other(
    client: AnyClient, database_url: str, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "_BASE", 0.5)
    monkeypatch.setattr(bulk, "SLOWEST", 10**9)
    await connection.execute("""
        CREATE FUNCTION crawl() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(600); RETURN NEW; END';
        CREATE TRIGGER crawl BEFORE UPDATE ON joex_private.job FOR EACH ROW WHEN (pg_column_size(NEW.result) > 100000)
        EXECUTE FUNCTION crawl();
    """)
    async with executor_inside(app_of_sizes(), database_url, lease=LONG, pool_size=2) as inside:
        large = await client.submit("give", {"size": LARGE}, group="large")
        small = [await client.submit("give", {"size": 1}, group="small") for _ in range(5)]
        for job_id in (*small, large):
            await inside.ended(job_id)
    job = await client.get(large)
    assert (job.state, job.attempt, job.result) == ("failed", 1, None)
    assert job.error.startswith("result: did not get through within ")
    assert {(await client.get(job_id)).state for job_id in small} == {"success"}


# Log lines.


@pytest.mark.parametrize("error", ["check_violation", "internal_error"])
async def test_a_line_that_the_database_refuses_is_dropped_and_no_other(
    client: AnyClient, database_url: str, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    # (A write that timed out may have been executed, so its lines may come twice.)
    monkeypatch.setattr(finisher, "_NOTES_WITHIN", PATIENCE)
    await refuse(connection, "joex_private.job_log", "NEW.message LIKE '%bad%'", error)
    app = joex.App()

    @app.task("task")
    async def task(ctx: joex.Context) -> None:
        for nr in range(51):
            ctx.log.info("bad" if nr in (17, 40) else f"line {nr}")
        ctx.progress(50)

    async with executor_inside(app, database_url, lease=LONG) as inside:
        job_id = await client.submit("task")
        await inside.ended(job_id)
        await inside.log.wait_for(LogLinesDropped, count=2)
    assert [event.lines for event in inside.log.of(LogLinesDropped)] == [1, 1]
    lines = [line.message for line in await client.log(job_id)]
    assert lines[:-1] == [f"line {nr}" for nr in range(51) if nr not in (17, 40)]


async def test_long_lines_are_cut_into_batches_by_their_bytes(
    client: AnyClient, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    note_many = runs.note_many

    async def spied(connection: Any, lines: Any, progress: Any) -> runs.Noted:
        sizes.append(sum(len(line.message) for line in lines))
        return await note_many(connection, lines, progress)

    monkeypatch.setattr(runs, "note_many", spied)
    app = joex.App()

    @app.task("task")
    async def task(ctx: joex.Context) -> None:
        for nr in range(30):
            ctx.log.info("%d%s", nr, "x" * 90_000)

    async with executor_inside(app, database_url, lease=LONG) as inside:
        job_id = await client.submit("task")
        await inside.ended(job_id)
    await eventually(lambda: _has_lines(client, job_id, 31))
    assert sum(sizes) >= 30 * 90_000
    assert max(sizes) <= 500_000


# Values that the database refuses.


@pytest.mark.parametrize(("size", "error"), [(3, "check_violation"), (3, "internal_error"), (LARGE, "internal_error")])
async def test_an_end_that_the_database_refuses_fails_its_job_with_a_line_that_says_why_and_holds_up_no_other(
    client: AnyClient, database_url: str, connection: asyncpg.Connection, size: int, error: str
) -> None:
    await refuse(connection, "joex_private.job", f"pg_column_size(NEW.result) > {size} AND NEW.subject = 'bad'", error)
    async with executor_inside(app_of_sizes(), database_url, lease=LONG, retries=5) as inside:
        subjects = ["good", "bad", "good", "good"]
        ids = [await client.submit("give", {"size": size}, subject=subject) for subject in subjects]
        for job_id in ids:
            await inside.ended(job_id)
    jobs = [await client.get(job_id) for job_id in ids]
    assert [job.state for job in jobs] == ["success", "failed", "success", "success"]
    assert jobs[1].error.startswith("the end of the run could not be written: ")
    assert jobs[1].error.endswith("no such row")
    assert jobs[1].attempt == 1


async def test_an_end_that_can_not_be_written_at_all_is_given_up_and_told_and_its_job_waits_when_the_executor_has_left(
    client: AnyClient, database_url: str, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    await refuse(connection, "joex_private.job", "NEW.subject = 'bad' AND NEW.finished_at IS NOT NULL")
    async with executor_inside(app_of_sizes(), database_url, lease=LONG, pool_size=1) as inside:
        bad = await client.submit("give", {"size": 1}, subject="bad")
        told = await inside.log.wait_for(RunNotWritten)
        good = await client.submit("give", {"size": 1})
        await inside.ended(good)  # the slot is free again
    assert (told.job_id, told.what) == (bad, "end")
    assert "no such row" in told.error
    assert inside.log.of(RunEnded, lambda event: event.job.id == bad) == []
    assert (await client.get(good)).state == "success"
    assert (await client.get(bad)).state == "waiting"


async def test_a_start_that_the_database_refuses_is_given_up_and_told_and_holds_up_no_end(
    client: AnyClient, database_url: str, connection: asyncpg.Connection
) -> None:
    await refuse(connection, "joex_private.job", "NEW.subject = 'bad' AND NEW.state = 'running'")
    go_on = asyncio.Event()
    app = app_of_sizes()

    @app.task("wait")
    async def wait(ctx: joex.Context) -> None:
        await go_on.wait()

    async with executor_inside(app, database_url, lease=LONG) as inside:
        bad, good = [await client.submit("wait", subject=subject) for subject in ("bad", "good")]
        told = await inside.log.wait_for(RunNotWritten)
        await inside.ended(await client.submit("give", {"size": 1}))
        await eventually(lambda: _is(client, good, "running"))
        go_on.set()
        for job_id in (bad, good):
            await inside.ended(job_id)
    assert (told.job_id, told.what) == (bad, "start")
    assert [event.job_id for event in inside.log.of(RunNotWritten)] == [bad]
    assert [(await client.get(job_id)).state for job_id in (bad, good)] == ["success", "success"]


async def test_a_job_whose_arguments_the_database_refuses_to_give_is_tried_again_later_and_then_fails(
    client: AnyClient, database_url: str, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with executor_inside(app_of_sizes(), database_url, lease=LONG, retries=1) as inside:
        await connection.execute("""
            CREATE OR REPLACE FUNCTION joex_client.arguments(id uuid, lock_id uuid) RETURNS jsonb LANGUAGE plpgsql AS
                'BEGIN RAISE internal_error USING MESSAGE = ''no such row''; END'
        """)
        job_id = await client.submit("measure", {"text": "x" * LARGE})
        await inside.log.wait_for(RunEnded, lambda event: event.verdict.state is State.FAILED)
    job = await client.get(job_id)
    assert (job.state, job.failures) == ("failed", 2)
    assert job.error.startswith("args: ")
    assert job.error.endswith("no such row")


# Ends that were written though the answer was lost.


async def test_an_end_as_cancelled_whose_answer_got_lost_is_told_as_cancelled_and_cleaned_up(
    client: AnyClient, database_url: str, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, go_on, cleaned_up = joex.App(), asyncio.Event(), []
    finish_many, answers = runs.finish_many, []

    async def without_answer(used: Any, ends: Sequence[EndedRun], *, skip_locked: bool = False) -> Any:
        answers.append(await finish_many(used, ends, skip_locked=skip_locked))
        if len(answers) == 1:
            raise joex.DatabaseUnavailable("the connection to the database was lost")
        return answers[-1]

    monkeypatch.setattr(runs, "finish_many", without_answer)

    @app.task("task")
    async def task(ctx: joex.Context) -> None:
        await go_on.wait()

    @task.on_cancel
    async def clean_up(ctx: joex.Context) -> None:
        cleaned_up.append(ctx.job_id)

    async with executor_inside(app, database_url, lease=LONG) as inside:
        job_id = await client.submit("task")
        await inside.log.wait_for(RunStarted)
        # (A request that reaches the executor after its run has ended.)
        await connection.execute("UPDATE joex_private.job SET cancel_requested = true WHERE id = $1", job_id)
        go_on.set()
        end = await inside.ended(job_id)
        await eventually(lambda: cleaned_up == [job_id])
    assert [[answer for _, answer in some] for some in answers] == [["canceled"], ["already"]]
    assert end.verdict.state is State.CANCELLED
    assert (await client.get(job_id)).state == "cancelled"


@pytest.mark.usefixtures("impatient")
async def test_an_end_that_was_written_too_late_to_be_heard_of_is_told_as_the_database_has_it(
    client: AnyClient, database_url: str, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish_many = runs.finish_many
    first: list[asyncio.Future[Any]] = []

    async def slow(used: Any, ends: Sequence[EndedRun], *, skip_locked: bool = False) -> Any:
        """Execute the first statement, and lose its answer."""
        if ends[0].result is None:
            await first[0]
            return await finish_many(used, ends, skip_locked=skip_locked)
        if not first:
            first.append(asyncio.ensure_future(finish_many(connection, list(map(copy, ends)))))
        return await asyncio.Event().wait()

    monkeypatch.setattr(runs, "finish_many", slow)
    async with executor_inside(app_of_sizes(), database_url, lease=LONG) as inside:
        job_id = await client.submit("give", {"size": LARGE})
        end = await inside.ended(job_id)
    assert (await client.get(job_id)).state == "success"
    assert end.verdict == Verdict(State.SUCCESS)


# Locked rows.


async def test_rows_that_other_transactions_lock_one_after_the_other_delay_the_ends_of_no_other_runs(
    client: AnyClient, database_url: str, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each lock is a new one, so that what the executor has learned from the one before does not help it."""
    spy, go_on = Spy(monkeypatch), asyncio.Event()
    app = joex.App()

    @app.task("task")
    async def task(ctx: joex.Context) -> None:
        await go_on.wait()

    async def started(job_id: object) -> None:
        await inside.log.wait_for(RunStarted, lambda event: event.job.id == job_id)

    async def lock_one_of_two() -> None:
        go_on.clear()
        locked, free = [await client.submit("task") for _ in range(2)]
        await started(locked)
        await started(free)
        async with connection.transaction():
            await connection.execute("SELECT FROM joex_private.job WHERE id = $1 FOR UPDATE", locked)
            go_on.set()  # both runs end in one batch
            await inside.ended(free)
            await eventually(lambda: len(spy.tries(locked)) >= 4)
        await inside.ended(locked)
        assert (await client.get(locked)).state == "success"
        pauses = [after - before for before, after in pairwise(spy.tries(locked)[:4])]
        assert all(pause >= 0.01 * 2**nr for nr, pause in enumerate(pauses)), pauses

    async with executor_inside(app, database_url, lease=LONG, pool_size=2) as inside:
        for _ in range(3):
            await lock_one_of_two()
    assert {len(ends) for ends, _ in spy.calls} == {1, 2}
    assert [event for event in inside.log.events if isinstance(event, DatabaseTrouble)] == []


async def _has_lines(client: AnyClient, job_id: Any, number: int) -> bool:
    return len(await client.log(job_id)) == number


async def _is(client: AnyClient, job_id: Any, state: str) -> bool:
    return bool((await client.get(job_id)).state == state)

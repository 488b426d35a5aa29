"""The writes of an executor about its runs: only the run that has the job can write, and each end is written once."""

import asyncio
import gc
import json
import random
import weakref
from datetime import UTC, timedelta
from itertools import product
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from joex import DatabaseUnavailable
from joex.core.events import LogLinesDropped
from joex.core.job import State
from joex.core.outcome import Verdict
from joex.runtime import job_log_writer
from joex.runtime.bulk import Bulk
from joex.runtime.finisher import End, Finisher
from joex.runtime.job_log_writer import JobLogWriter
from joex.store import executors, job_logs, jobs, runs, worker_runs
from joex.store.database import create_pool
from joex.store.runs import EndedRun, LogLine, Progress
from tests.support.cases import case
from tests.support.waiting import PATIENCE, eventually

pytestmark = pytest.mark.postgres(16, 18)


@pytest.fixture
async def me(bench):
    """An executor."""
    return await bench.executor("me")


async def reclaim(bench, executor):
    """Declare an executor dead, so that its jobs wait again."""
    await bench.connection.execute("SELECT joex_private.end_executor($1, 'dead')", executor)


async def log_of(bench, job_id):
    return [(line.attempt, line.level, line.message) for line in await job_logs.job_log(bench.connection, job_id)]


# The usual course.


async def test_a_run_starts_and_ends_with_success_and_its_result_is_kept(bench, me):
    job_id = await bench.submit()
    taken = await bench.take_one(me)
    await bench.start(taken)
    running = await bench.job(job_id)
    assert (running.state, running.attempt, running.started_at is not None) == ("running", 1, True)
    assert await bench.finish(taken, "success", result='{"pages": 3}', message="done", age=1.0) == []
    done = await bench.job(job_id)
    assert (done.state, done.attempt, done.failures, done.progress) == ("success", 1, 0, 100)
    assert (done.result, done.message, done.error) == ({"pages": 3}, "done", None)
    assert done.finished_at is not None
    assert done.started_at == running.started_at


async def test_a_run_that_is_over_before_its_start_was_written_counts_as_one_attempt(bench, me):
    job_id = await bench.submit()
    await bench.finish(await bench.take_one(me), "success", age=2.0)
    job = await bench.job(job_id)
    assert (job.state, job.attempt) == ("success", 1)
    assert job.finished_at - job.started_at == timedelta(seconds=2)


async def test_a_failed_run_is_retried_after_its_delay_and_keeps_its_error_until_it_succeeds(bench, me):
    job_id = await bench.submit()
    taken = await bench.take_one(me)
    await bench.finish(taken, "stuck", error="boom", delay=60.0, age=0.0)
    stuck = await bench.job(job_id)
    assert (stuck.state, stuck.attempt, stuck.failures, stuck.error) == ("stuck", 1, 1, "boom")
    assert stuck.due_at > stuck.submitted_at + timedelta(seconds=59)
    await jobs.retry(bench.connection, job_id)
    again = await bench.take_one(me)
    assert (again.id, again.attempt) == (job_id, 1)
    assert again.lock_id != taken.lock_id
    await bench.finish(again, "failed", error="boom again", age=0.0)
    failed = await bench.job(job_id)
    assert (failed.state, failed.attempt, failed.error) == ("failed", 2, "boom again")


@pytest.mark.parametrize("started", [True, False])
async def test_a_job_that_is_given_back_waits_at_its_old_place_and_the_run_does_not_count(bench, me, started):
    first = await bench.submit()
    await bench.submit()
    taken = await bench.take_one(me)
    if started:
        await bench.start(taken)
    await bench.finish(taken, "waiting", age=1.0 if started else None)
    job = await bench.job(first)
    assert (job.state, job.attempt, job.failures, job.losses) == ("waiting", 0, 0, 0)
    assert (await bench.take_one(me)).id == first


@pytest.mark.parametrize("state", ["waiting", "stuck"])
async def test_a_job_that_is_given_back_or_is_to_be_retried_wakes_who_sleeps(bench, me, another_connection, state):
    """Sleeping executors may take it, or must learn when it is due."""
    await bench.submit()
    taken = await bench.take_one(me)
    sleeper = await bench.executor("sleeper")
    await executors.fall_asleep(bench.connection, sleeper)
    listener = await another_connection()
    heard = asyncio.get_running_loop().create_future()
    await listener.add_listener("joex_wake", lambda *arguments: heard.set_result(json.loads(arguments[-1])))
    await bench.finish(taken, state, delay=60.0)
    assert await asyncio.wait_for(heard, 30) == {"queue": "default", "executors": [sleeper]}


@pytest.mark.parametrize("reason", ["draining", "spare"])
async def test_a_group_at_its_limit_whose_job_ends_on_one_who_takes_no_more_wakes_who_sleeps(
    bench, me, another_connection, reason
):
    await bench.connection.execute("SELECT joex.set_group('default', max_running => 1)")
    for _ in range(2):
        await bench.submit()
    [taken] = await bench.take(me, 2)
    sleeper = await bench.executor("sleeper")
    await executors.fall_asleep(bench.connection, sleeper)
    assert await bench.take(sleeper) == []
    await bench.connection.execute(
        "UPDATE joex_private.executor SET draining = $2, spare = NOT $2 WHERE id = $1", me, reason == "draining"
    )
    listener = await another_connection()
    heard = asyncio.get_running_loop().create_future()
    await listener.add_listener("joex_wake", lambda *arguments: heard.set_result(json.loads(arguments[-1])))
    await bench.finish(taken)
    assert await bench.take(me) == []
    assert await asyncio.wait_for(heard, 10) == {"queue": "default", "executors": [sleeper]}


async def test_room_in_a_group_with_a_limit_wakes_the_successor_of_an_executor_that_drains(bench, another_connection):
    """The one that drains looks for no work when its run has ended, though another one takes jobs under its app-id."""
    await bench.connection.execute("SELECT joex.set_group('default', max_running => 1)")
    predecessor = await bench.executor("me")
    await bench.submit()
    run = await bench.take_one(predecessor)
    await bench.connection.execute("UPDATE joex_private.executor SET draining = true WHERE id = $1", predecessor)
    successor = await bench.executor("me", beside=[predecessor])
    await bench.submit()
    assert await bench.take(successor) == [], "the group is at its limit"
    await executors.fall_asleep(bench.connection, successor)
    listener = await another_connection()
    heard = asyncio.get_running_loop().create_future()
    await listener.add_listener("joex_wake", lambda *told: heard.set_result(json.loads(told[-1])["executors"]))
    assert await bench.finish(run) == []
    assert await asyncio.wait_for(heard, 10) == [successor]


async def test_room_in_a_group_with_a_limit_wakes_who_sleeps_when_a_worker_ends_that_calls_itself_by_an_executors_name(
    bench, me, another_connection
):
    await bench.connection.execute("SELECT joex.set_group('default', max_running => 1)")
    for _ in range(2):
        await bench.submit()
    [run] = await worker_runs.accept(bench.connection, "default", 1, "me", None)
    assert await bench.take(me) == [], "the group is at its limit"
    await executors.fall_asleep(bench.connection, me)
    listener = await another_connection()
    heard = asyncio.get_running_loop().create_future()
    await listener.add_listener("joex_wake", lambda *told: heard.set_result(json.loads(told[-1])["executors"]))
    assert await bench.finish(run) == []
    assert await asyncio.wait_for(heard, 10) == [me]


async def test_many_runs_end_together_each_in_its_own_way(bench, me):
    ids = [await bench.submit() for _ in range(5)]
    taken = await bench.take(me, 5)
    states = ["success", "failed", "cancelled", "stuck", "waiting"]
    ended = [EndedRun(job.id, job.lock_id, state, age=0.0) for job, state in zip(taken, states, strict=True)]
    assert await runs.finish_many(bench.connection, ended) == []
    assert [await bench.state(job_id) for job_id in ids] == states


async def test_a_state_that_no_run_can_end_in_is_refused(bench, me):
    await bench.submit()
    taken = await bench.take_one(me)
    for state in ("running", "scheduled", "nonsense"):
        with pytest.raises(Exception, match=r"state|nonsense|place"):
            await bench.finish(taken, state)
    assert await bench.state(taken.id) == "scheduled"


# Fencing: a run that has lost its job changes nothing.


async def test_the_late_end_of_a_run_that_was_reclaimed_is_dropped(bench, me):
    job_id = await bench.submit()
    late = await bench.take_one(me)
    await reclaim(bench, me)
    assert await bench.finish(late, "success", result="1") == ["worker_conflict"]
    job = await bench.job(job_id)
    assert (job.state, job.result) == ("waiting", None)


async def test_the_late_end_of_a_run_does_not_end_the_next_run_of_the_same_job(bench, me):
    job_id = await bench.submit()
    late = await bench.take_one(me)
    await reclaim(bench, me)
    current = await bench.take_one(await bench.executor("you"))
    assert current.id == job_id
    for state in ("success", "failed", "stuck", "cancelled", "waiting"):
        assert await bench.finish(late, state) == ["worker_conflict"]
    assert await bench.state(job_id) == "scheduled"
    assert await bench.finish(current) == []
    assert await bench.finish(late, "failed") == ["worker_conflict"]
    assert await bench.state(job_id) == "success"


async def test_a_wrong_lock_id_and_a_wrong_id_end_nothing(bench, me):
    await bench.submit()
    taken = await bench.take_one(me)
    wrong = [EndedRun(taken.id, uuid4(), "failed"), EndedRun(uuid4(), taken.lock_id, "failed")]
    assert [answer for _, answer in await runs.finish_many(bench.connection, wrong)] == ["worker_conflict"] * 2
    assert await bench.state(taken.id) == "scheduled"


async def test_a_run_that_lost_its_job_neither_starts_it_nor_writes_progress_and_its_lines_are_counted_as_dropped(
    bench, me
):
    job_id = await bench.submit()
    late = await bench.take_one(me)
    await reclaim(bench, me)
    current = await bench.take_one(await bench.executor("you"))
    await bench.start(late)
    line = LogLine(late.id, late.lock_id, 1, 0.0, "info", "late")
    mine = LogLine(current.id, current.lock_id, 1, 0.0, "info", "mine")
    lost_progress = Progress(late.id, late.lock_id, 90, "late")
    assert (await runs.note_many(bench.connection, [line, mine, line], [lost_progress])).dropped == 2
    job = await bench.job(job_id)
    assert (job.state, job.attempt, job.progress, job.progress_message) == ("scheduled", 0, 0, None)
    assert await log_of(bench, job_id) == [
        (1, "warning", "lost: its executor died each time it held this job"),
        (1, "info", "mine"),
    ]


async def test_a_run_that_ended_cannot_start_or_end_again(bench, me):
    job_id = await bench.submit()
    taken = await bench.take_one(me)
    await bench.finish(taken, "success", result="1", age=0.0)
    await bench.start(taken)
    assert await bench.finish(taken, "failed", error="no") == ["already"]
    job = await bench.job(job_id)
    assert (job.state, job.attempt, job.result, job.error) == ("success", 1, 1, None)


async def test_a_job_that_was_deleted_meanwhile_is_a_conflict(bench, me):
    await bench.submit()
    taken = await bench.take_one(me)
    await bench.connection.execute("DELETE FROM joex_private.job")
    assert await bench.finish(taken) == ["worker_conflict"]
    line = LogLine(taken.id, taken.lock_id, 1, 0.0, "info", "x")
    assert (await runs.note_many(bench.connection, [line], [])).dropped == 1


async def test_of_a_batch_only_those_runs_are_answered_that_did_not_end_as_said(bench, me):
    for _ in range(3):
        await bench.submit()
    one, two, three = await bench.take(me, 3)
    await bench.finish(two)
    await jobs.cancel(bench.connection, three.id)
    ended = [EndedRun(job.id, job.lock_id, "success") for job in (one, two, three)]
    strange = EndedRun(one.id, uuid4(), "success")
    answers = {id(run): answer for run, answer in await runs.finish_many(bench.connection, [*ended, strange])}
    assert answers == {id(ended[1]): "already", id(ended[2]): "canceled", id(strange): "worker_conflict"}


# In the caller's transaction.


@pytest.mark.parametrize("commits", [True, False])
async def test_a_tasks_own_writes_and_the_end_of_its_job_commit_together_or_not_at_all(bench, me, client, commits):
    job_id = await bench.submit()
    taken = await bench.take_one(me)
    await bench.connection.execute("CREATE TABLE invoices (id integer)")
    transaction = bench.connection.transaction()
    await transaction.start()
    await bench.connection.execute("INSERT INTO invoices VALUES (1)")
    assert await runs.finish(bench.connection, job_id, taken.lock_id, '{"x": 1}', "paid") == "ok"
    assert (await client.get(job_id)).state == "scheduled"
    await (transaction.commit() if commits else transaction.rollback())
    job = await bench.job(job_id)
    assert await bench.connection.fetchval("SELECT count(*) FROM invoices") == commits
    after = ("success", {"x": 1}, "paid") if commits else ("scheduled", None, None)
    assert (job.state, job.result, job.message) == after


async def test_a_job_that_was_finished_in_its_own_transaction_is_not_finished_again(bench, me):
    job_id = await bench.submit()
    taken = await bench.take_one(me)
    await bench.start(taken)
    await runs.finish(bench.connection, job_id, taken.lock_id, '"mine"', None)
    assert await bench.finish(taken, "success", result='"other"') == ["already"]
    job = await bench.job(job_id)
    assert (job.result, job.attempt) == ("mine", 1)


async def test_a_transaction_of_a_run_that_lost_its_job_is_told_to_roll_back(bench, me):
    job_id = await bench.submit()
    late = await bench.take_one(me)
    await reclaim(bench, me)
    assert await runs.finish(bench.connection, job_id, late.lock_id, None, None) == "worker_conflict"
    current = await bench.take_one(await bench.executor("you"))
    assert await runs.finish(bench.connection, job_id, late.lock_id, None, None) == "worker_conflict"
    assert await runs.finish(bench.connection, job_id, current.lock_id, None, None) == "ok"
    assert await runs.finish(bench.connection, job_id, current.lock_id, None, None) == "worker_conflict"


async def test_a_transaction_of_a_cancelled_run_is_told_to_roll_back_and_the_executor_ends_it(bench, me):
    job_id = await bench.submit()
    taken = await bench.take_one(me)
    await jobs.cancel(bench.connection, job_id)
    assert await runs.finish(bench.connection, job_id, taken.lock_id, None, None) == "canceled"
    assert await bench.state(job_id) == "scheduled"
    assert await bench.finish(taken, "cancelled") == ["canceled"]
    assert await bench.state(job_id) == "cancelled"


async def test_of_a_rescue_and_a_transaction_that_finishes_one_comes_first_and_the_other_sees_it(
    bench, me, another_connection
):
    """Effects happen once: an open transaction that has finished its job keeps other runs from it."""
    job_id = await bench.submit()
    taken = await bench.take_one(me)
    mine = await another_connection()
    transaction = mine.transaction()
    await transaction.start()
    assert await runs.finish(mine, job_id, taken.lock_id, None, None) == "ok"
    await reclaim(bench, me)
    assert await bench.take(await bench.executor("you")) == []
    await transaction.commit()
    assert await bench.state(job_id) == "success"
    assert await bench.take(await bench.executor("they")) == []


async def test_a_finishing_transaction_that_rolls_back_after_its_executor_died_leaves_the_job_to_others(
    bench, me, another_connection
):
    job_id = await bench.submit()
    taken = await bench.take_one(me)
    mine = await another_connection()
    transaction = mine.transaction()
    await transaction.start()
    await runs.finish(mine, job_id, taken.lock_id, None, None)
    await reclaim(bench, me)
    await transaction.rollback()
    assert await bench.state(job_id) == "scheduled"  # its row was locked when the executor ended
    await bench.rescue()
    assert (await bench.take_one(await bench.executor("you"))).id == job_id


async def test_sql_finishes_a_run_in_any_way(bench, me):
    ids = [await bench.submit() for _ in range(3)]
    taken = await bench.take(me, 3)
    for job, call in zip(
        taken,
        [
            "joex.finish($1, $2, '{\"x\": 1}', message => 'ok')",
            "joex.finish($1, $2, state => 'failed', error => 'boom')",
            "joex.finish($1, $2, state => 'stuck', error => 'later', delay => '1 hour')",
        ],
        strict=True,
    ):
        assert await bench.connection.fetchval(f"SELECT {call}", job.id, job.lock_id) == "ok"
    found = [await bench.job(job_id) for job_id in ids]
    assert [job.state for job in found] == ["success", "failed", "stuck"]
    assert found[2].due_at > found[2].submitted_at + timedelta(minutes=59)


# Cancel requests.


async def test_a_run_with_a_cancel_request_ends_cancelled_whatever_it_says(bench, me):
    for state in ("success", "failed", "stuck", "waiting", "cancelled"):
        with case(state):
            job_id = await bench.submit()
            taken = await bench.take_one(me)
            await jobs.cancel(bench.connection, job_id)
            assert await bench.finish(taken, state, delay=5.0, age=1.0) == ["canceled"]
            job = await bench.job(job_id)
            assert (job.state, job.due_at) == ("cancelled", None)
            assert await bench.take(me) == []


# Rows that other transactions have locked.


async def test_an_end_waits_only_a_moment_for_a_row_that_somebody_holds(bench, me, another_connection):
    job_id = await bench.submit()
    taken, other = await bench.take_one(me), await another_connection()
    async with other.transaction():
        await other.execute("SELECT FROM joex_private.job WHERE id = $1 FOR UPDATE", job_id)
        with pytest.raises(DatabaseUnavailable, match="another transaction holds"):
            await bench.finish(taken)
    assert await bench.finish(taken) == []


async def test_an_end_that_waits_for_the_tasks_own_transaction_finds_that_it_has_ended_its_job(
    bench, me, another_connection
):
    await bench.submit()
    taken, own = await bench.take_one(me), await another_connection()
    await own.execute("ALTER FUNCTION joex_private.finish_many SET lock_timeout = '10 s'")
    async with own.transaction():
        assert await runs.finish(own, taken.id, taken.lock_id, "1", None) == "ok"
        ending = asyncio.create_task(bench.finish(taken, "failed", error="no"))
        waits = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1 AND wait_event_type = 'Lock')"
        await eventually(lambda: own.fetchval(waits, bench.connection.get_server_pid()))
    assert await ending == ["already"]
    assert await bench.state(taken.id) == "success"


async def test_rows_that_somebody_holds_can_be_left_for_later_while_the_others_end(bench, me, another_connection):
    for _ in range(3):
        await bench.submit()
    taken, other = await bench.take(me, 3), await another_connection()
    ended = [EndedRun(job.id, job.lock_id, "success") for job in taken]
    async with other.transaction():
        await other.execute("SELECT FROM joex_private.job WHERE id = $1 FOR UPDATE", taken[1].id)
        answers = await runs.finish_many(bench.connection, ended, skip_locked=True)
        assert answers == [(ended[1], "locked")]
    assert [await bench.state(job.id) for job in taken] == ["success", "scheduled", "success"]
    assert await runs.finish_many(bench.connection, ended[1:2], skip_locked=True) == []


async def test_with_skipping_the_other_answers_are_the_same(bench, me, another_connection):
    for _ in range(3):
        await bench.submit()
    done, cancelled, held = await bench.take(me, 3)
    await bench.finish(done)
    await jobs.cancel(bench.connection, cancelled.id)
    ended = [EndedRun(job.id, job.lock_id, "success") for job in (done, cancelled, held)]
    ended += [EndedRun(uuid4(), uuid4(), "success"), EndedRun(held.id, uuid4(), "success")]
    answers = await runs.finish_many(bench.connection, ended, skip_locked=True)
    assert {id(run): answer for run, answer in answers} == {
        id(ended[0]): "already",
        id(ended[1]): "canceled",
        id(ended[3]): "worker_conflict",
        id(ended[4]): "worker_conflict",
    }


async def test_start_and_progress_do_not_wait_for_a_row_that_somebody_holds(bench, me, another_connection):
    for _ in range(2):
        await bench.submit()
    (taken, free), other = await bench.take(me, 2), await another_connection()
    starts = [(job.id, job.lock_id, 0.0) for job in (taken, free)]
    progress = [Progress(job.id, job.lock_id, 50, "half") for job in (taken, free)]
    async with other.transaction():
        await other.execute("SELECT FROM joex_private.job WHERE id = $1 FOR UPDATE", taken.id)
        started = await asyncio.wait_for(runs.start_many(bench.connection, starts), 30)
        noted = await asyncio.wait_for(runs.note_many(bench.connection, [], progress), 30)
    assert (started, noted) == ({taken.lock_id}, runs.Noted(0, frozenset({taken.lock_id})))
    assert [(job.state, job.progress) for job in [await bench.job(job.id) for job in (taken, free)]] == [
        ("scheduled", 0),
        ("running", 50),
    ]
    assert await bench.finish(taken, age=0.0) == []
    assert (await bench.job(taken.id)).attempt == 1


async def test_start_and_progress_of_a_run_that_lost_its_job_are_not_asked_for_again(bench, me):
    await bench.submit()
    taken = await bench.take_one(me)
    await bench.finish(taken)
    assert await runs.start_many(bench.connection, [(taken.id, taken.lock_id, 0.0)]) == set()
    noted = await runs.note_many(bench.connection, [], [Progress(taken.id, taken.lock_id, 50, None)])
    assert noted == runs.Noted(0, frozenset())


async def test_progress_that_met_a_locked_row_is_not_written_over_what_the_run_said_later(
    bench, me, database_url, another_connection, monkeypatch
):
    monkeypatch.setattr(job_log_writer, "_LOCKED_RETRY_IN", 0.2)
    note_many = runs.note_many

    async def slow(used, *given):
        noted = await note_many(used, *given)
        if not noted.locked:  # meanwhile the time of the second try comes
            await used.execute("SELECT pg_sleep(0.3)")
        return noted

    monkeypatch.setattr(runs, "note_many", slow)
    await bench.submit()
    taken, other = await bench.take_one(me), await another_connection()
    async with await create_pool(database_url, most=1) as pool:
        writer = JobLogWriter(pool, 10, lambda _event: None)
        writer.progress(taken, 10, None)
        async with other.transaction():
            await other.execute("SELECT FROM joex_private.job FOR UPDATE")
            await writer.flush()
        writer.progress(taken, 50, None)
        await writer.flush()
        assert (await bench.job(taken.id)).progress == 50
        assert writer.is_empty


async def test_lines_wait_while_no_connection_comes_in_time(bench, me, proxy, monkeypatch):
    """The database is away, and its host says nothing: the line itself is not too slow."""
    monkeypatch.setattr("joex.store.connector.CONNECT_WITHIN", 0.05)
    job_id = await bench.submit()
    taken = await bench.take_one(me)
    proxy.freeze()
    async with await create_pool(proxy.url, most=1, for_services=True) as pool:
        writer = JobLogWriter(pool, 10, lambda _event: None)
        writer.log(taken, "info", "a line")
        for _ in range(5):
            with pytest.raises(DatabaseUnavailable):
                await writer.flush()
        monkeypatch.setattr("joex.store.connector.CONNECT_WITHIN", 10.0)
        proxy.thaw()
        await writer.flush()
        assert [line[-1] for line in await log_of(bench, job_id)] == ["a line"]


async def test_a_line_whose_write_waits_for_a_lock_is_written_once_and_not_dropped(
    bench, me, database_url, another_connection, monkeypatch
):
    """The server ends the write, not the executor, which would not know whether it commits when the lock is free."""
    monkeypatch.setattr(job_log_writer, "_TRIES", 1)  # of a write that the executor ends
    job_id = await bench.submit()
    taken, other = await bench.take_one(me), await another_connection()
    async with await create_pool(database_url, most=1, within=PATIENCE) as pool:
        writer = JobLogWriter(pool, 10, lambda _event: None)
        writer.log(taken, "info", "a line")
        async with other.transaction():
            await other.execute("LOCK TABLE joex_private.job_log IN SHARE MODE")
            with pytest.raises(DatabaseUnavailable, match="another transaction holds"):
                await writer.flush()
        await writer.flush()
    assert [line[-1] for line in await log_of(bench, job_id)] == ["a line"]


@pytest.fixture
async def unanswered(bench, me, database_url, monkeypatch):
    """A writer whose line is sent to a server that does not answer; and its reports of dropped lines."""
    is_sent = asyncio.Event()
    events: list[LogLinesDropped] = []

    async def silent(*_):
        is_sent.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(runs, "note_many", silent)
    await bench.submit()
    async with await create_pool(database_url, most=1) as pool:
        writer = JobLogWriter(
            pool, 10, lambda event: events.append(event) if isinstance(event, LogLinesDropped) else None
        )
        writer.log(await bench.take_one(me), "info", "a line")
        writing = asyncio.create_task(writer.run())
        await is_sent.wait()
        yield writer, events
        await writer.close(0)
        writing.cancel()
        await asyncio.wait([writing])


async def test_however_often_the_finisher_asks_for_lines_that_are_on_their_way_nothing_piles_up(unanswered):
    writer, _ = unanswered
    tasks = len(asyncio.all_tasks())
    for _ in range(3):
        assert not await writer.flushed_within(0)
    assert len(asyncio.all_tasks()) == tasks


async def test_a_line_that_is_on_its_way_when_the_executor_leaves_counts_as_dropped(unanswered):
    writer, events = unanswered
    await writer.close(0)
    assert [event.lines for event in events] == [1]


async def test_an_executor_that_leaves_counts_the_lines_for_which_its_buffer_had_no_room(unanswered, me, bench):
    writer, events = unanswered
    await bench.submit()
    taken = await bench.take_one(me)
    for nr in range(12):
        writer.log(taken, "info", f"line {nr}")
    await writer.close(0)
    assert {event.reason: event.lines for event in events} == {job_log_writer._LEFT: 11, "the buffer was full": 2}


async def test_what_waits_for_a_write_that_an_executor_cancels_as_it_leaves_is_not_cancelled(unanswered):
    """And begins no other write of lines that count as dropped."""
    writer, events = unanswered
    waiting = asyncio.create_task(writer.flushed_within(60))
    await asyncio.sleep(0)  # (it waits)
    await writer.close(0)
    assert not await waiting
    assert writer.is_empty
    assert [event.lines for event in events] == [1]


async def test_an_executor_that_leaves_tries_to_write_its_lines_until_its_time_is_over(
    bench, me, database_url, monkeypatch
):
    """The write under way began earlier, so its time ends first; and a server that restarts refuses at once."""
    job_id, is_sent, ends, note_many = await bench.submit(), asyncio.Event(), asyncio.Event(), runs.note_many
    failures = iter(range(4))

    async def fail(*given):
        is_sent.set()
        await ends.wait()
        if next(failures, None) is None:
            return await note_many(*given)
        raise DatabaseUnavailable("not now")

    monkeypatch.setattr(runs, "note_many", fail)
    async with await create_pool(database_url, most=1) as pool:
        writer = JobLogWriter(pool, 10, lambda _event: None)
        writer.log(await bench.take_one(me), "info", "a line")
        earlier = asyncio.create_task(writer.flush())
        await is_sent.wait()
        closing = asyncio.create_task(writer.close(60))
        asyncio.get_running_loop().call_soon(ends.set)
        with pytest.raises(DatabaseUnavailable):
            await earlier
        await closing
    assert [line[-1] for line in await log_of(bench, job_id)] == ["a line"]


async def test_progress_that_met_a_locked_row_is_written_before_the_end_of_its_run(
    bench, me, database_url, another_connection
):
    await bench.submit()
    taken, other = await bench.take_one(me), await another_connection()
    written = asyncio.Event()
    async with await create_pool(database_url, most=2) as pool, asyncio.TaskGroup() as group:
        writer = JobLogWriter(pool, 10, lambda _event: None)
        finisher = Finisher(
            pool, writer, lambda _event: None, lambda _jobs: written.set(), bulk=Bulk(pool), canceled=lambda _job: None
        )
        writing = group.create_task(finisher.run())
        writer.progress(taken, 70, None)
        async with other.transaction():
            await other.execute("SELECT FROM joex_private.job FOR UPDATE")
            await writer.flush()
        finisher.ended(End(taken, Verdict(State.FAILED), None, None, 1.0, has_committed=False))
        await written.wait()
        writing.cancel()
    assert (await bench.job(taken.id)).progress == 70


async def test_a_finisher_that_ends_while_a_start_waits_for_a_locked_row_leaves_nothing_behind(
    bench, me, database_url, another_connection, monkeypatch
):
    """An executor that starts over has a new finisher: the old one must not run on in the same loop for ever."""
    await bench.submit()
    taken, other = await bench.take_one(me), await another_connection()
    tried, start_many = asyncio.Event(), runs.start_many

    async def spied(*given):
        locked = await start_many(*given)
        tried.set()
        return locked

    monkeypatch.setattr(runs, "start_many", spied)
    async with await create_pool(database_url, most=1) as pool, other.transaction():
        await other.execute("SELECT FROM joex_private.job FOR UPDATE")
        writer = JobLogWriter(pool, 10, lambda _event: None)
        finisher = Finisher(
            pool, writer, lambda _event: None, lambda _jobs: None, bulk=Bulk(pool), canceled=lambda _job: None
        )
        writing = asyncio.create_task(finisher.run())
        finisher.started(taken, 0.0)
        await tried.wait()
        writing.cancel()
        await asyncio.wait([writing])
    left = weakref.ref(finisher)
    del finisher, writing
    await eventually(lambda: gc.collect() is not None and left() is None)


async def test_two_that_write_progress_of_the_same_runs_in_different_orders_do_not_block_each_other(
    bench, me, another_connection
):
    ids = [await bench.submit() for _ in range(30)]
    taken = {job.id: job for job in await bench.take(me, 30)}
    one, two = await another_connection(), await another_connection()

    async def note(connection, order):
        for _ in range(10):
            progress = [Progress(taken[i].id, taken[i].lock_id, 5, None) for i in order]
            await runs.note_many(connection, [], progress)

    await asyncio.gather(note(one, ids), note(two, ids[::-1]))
    assert all(job.progress == 5 for job in [await bench.job(i) for i in ids[:3]])


# Logs and progress.


async def test_log_lines_keep_their_order_and_belong_to_their_attempt(bench, me):
    job_id = await bench.submit()
    taken = await bench.take_one(me)
    lines = [
        LogLine(job_id, taken.lock_id, 1, 3.0 - nr, level, f"line {nr}")
        for nr, level in enumerate(["debug", "info", "warning", "error"])
    ]
    assert (await runs.note_many(bench.connection, lines, [])).dropped == 0
    assert await log_of(bench, job_id) == [
        (1, "debug", "line 0"),
        (1, "info", "line 1"),
        (1, "warning", "line 2"),
        (1, "error", "line 3"),
    ]
    log = await job_logs.job_log(bench.connection, job_id)
    assert [line.at for line in log] == sorted(line.at for line in log)
    assert [line.message for line in await job_logs.job_log(bench.connection, job_id, after=log[1].seq, most=1)] == [
        "line 2"
    ]


async def test_lines_that_come_after_the_end_of_their_run_are_kept(bench, me):
    job_id = await bench.submit()
    taken = await bench.take_one(me)
    await bench.finish(taken)
    last_words = LogLine(job_id, taken.lock_id, 1, 0.0, "info", "last words")
    assert (await runs.note_many(bench.connection, [last_words], [])).dropped == 0
    assert await log_of(bench, job_id) == [(1, "info", "last words"), (1, "info", "succeeded")]


async def test_progress_is_shown_while_the_run_lasts_and_kept_until_the_next_one_reports_its_own(bench, me):
    job_id = await bench.submit()
    taken = await bench.take_one(me)
    await runs.note_many(bench.connection, [], [Progress(job_id, taken.lock_id, 40, "page 4 of 10")])
    job = await bench.job(job_id)
    assert (job.progress, job.progress_message) == (40, "page 4 of 10")
    await bench.finish(taken, "stuck", error="no luck", age=1.0, delay=0.0)
    taken = await bench.take_one(me)
    await bench.start(taken)
    job = await bench.job(job_id)
    assert (job.progress, job.progress_message) == (40, "page 4 of 10")
    await runs.note_many(bench.connection, [], [Progress(job_id, taken.lock_id, 10, None)])
    job = await bench.job(job_id)
    assert (job.progress, job.progress_message) == (10, None)


# How each run ended, in the log.


async def test_the_log_says_how_each_run_has_ended_after_what_it_said_itself(bench, me):
    job_id = await bench.submit()
    ends: tuple[tuple[str, dict[str, Any]], ...] = (
        ("stuck", {"error": "no luck", "delay": 0.0}),
        ("stuck", {"error": "no luck either", "delay": 0.0}),
        ("success", {"message": "7 pages"}),
    )
    again = ""
    for attempt, (state, more) in enumerate(ends, start=1):
        taken = await bench.take_one(me)
        await runs.note_many(bench.connection, [LogLine(job_id, taken.lock_id, attempt, 0.0, "debug", "begins")], [])
        await bench.finish(taken, state, age=1.0, **more)
        due_at = (await bench.job(job_id)).due_at
        if attempt == 1:
            again = f"; retry at {due_at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    log = await log_of(bench, job_id)
    assert [line[:2] for line in log] == [
        (1, "debug"),
        (1, "warning"),
        (2, "debug"),
        (2, "warning"),
        (3, "debug"),
        (3, "info"),
    ]
    assert log[1][2] == "failed: no luck" + again
    assert log[3][2].startswith("failed: no luck either; retry at ")
    assert log[5][2] == "succeeded: 7 pages"


async def test_a_run_that_has_said_nothing_has_a_line_of_its_end(bench, me):
    ends: list[tuple[str, dict[str, Any], Any]] = [
        ("success", {}, (1, "info", "succeeded")),
        ("failed", {"error": "boom"}, (1, "error", "failed: boom; no retry")),
        ("failed", {"error": "boom", "exhausted": True}, (1, "error", "failed: boom; no retries left")),
        ("cancelled", {"error": "Cancel: not needed"}, (1, "warning", "cancelled: Cancel: not needed")),
        ("waiting", {}, (1, "info", "given back: this run does not count")),
    ]
    for is_marked, (state, more, line) in product([False, True], ends):
        with case(state, more, is_marked):
            job_id = await bench.submit()
            taken = await bench.take_one(me)
            if is_marked:
                await bench.start(taken)
            await bench.finish(taken, state, age=1.0, **more)
            assert await log_of(bench, job_id) == [line]
            await jobs.cancel(bench.connection, job_id)  # one that was given back waits


async def test_whatever_a_run_says_the_log_tells_of_the_request_that_cancelled_its_job(bench, me):
    for state in ("success", "stuck", "cancelled", "waiting"):
        job_id = await bench.submit()
        taken = await bench.take_one(me)
        await jobs.cancel(bench.connection, job_id)
        assert await bench.finish(taken, state, age=1.0) == ["canceled"]
        assert await log_of(bench, job_id) == [(1, "warning", "cancelled on request")]


async def test_a_success_that_is_run_once_more_stays_in_the_log(bench, me):
    job_id = await bench.submit()
    for attempt in (1, 2, 3):
        taken = await bench.take_one(me)
        if attempt == 2:  # asked for while it runs
            await bench.connection.execute("SELECT joex_client.resubmit($1)", job_id)
        await bench.finish(taken, "success", age=1.0)
        if attempt == 1:
            await bench.connection.execute("SELECT joex_client.resubmit($1)", job_id)
    assert await log_of(bench, job_id) == [
        (1, "info", "succeeded"),
        (2, "warning", "succeeded; it was resubmitted, and runs once more"),
        (3, "info", "succeeded"),
    ]


async def test_what_is_given_back_before_it_has_started_leaves_no_line(bench, me):
    job_id = await bench.submit()
    await bench.finish(await bench.take_one(me), "waiting")
    await bench.take_one(me)
    await executors.leave(bench.connection, me)
    assert await log_of(bench, job_id) == []


async def test_runs_that_are_lost_or_left_behind_have_their_line(bench, me):
    job_id = await bench.submit()
    await bench.start(await bench.take_one(me))
    await executors.leave(bench.connection, me)
    for _ in range(6):
        you = await bench.executor("you")
        await bench.start(await bench.take_one(you))
        await reclaim(bench, you)
    lost = "lost: its executor died each time it held this job"
    assert await log_of(bench, job_id) == [
        (1, "info", "given back: this run does not count"),
        (2, "warning", lost),
        *((attempt, "warning", f"{lost}; it runs alone from now on") for attempt in range(3, 7)),
        (7, "error", "failed: lost 6 times: its executor died each time it held this job"),
    ]


async def test_a_log_that_can_not_be_written_keeps_no_job_from_its_end(bench, me, another_connection):
    job_id = await bench.submit()
    taken = await bench.take_one(me)
    other = await another_connection()
    async with other.transaction():
        await other.execute("LOCK TABLE joex_private.job_log IN SHARE MODE")
        assert await bench.finish(taken, "failed", error="boom", age=1.0) == []
    assert (await bench.job(job_id)).state == "failed"


async def test_a_page_of_the_log_that_is_full_leaves_its_end_to_the_next_one(bench, me):
    job_id = await bench.submit()
    taken = await bench.take_one(me)
    lines = [LogLine(job_id, taken.lock_id, 1, 0.0, "info", f"line {nr}") for nr in range(2)]
    await runs.note_many(bench.connection, lines, [])
    await bench.finish(taken, "success", age=1.0)
    pages, after = [], 0
    while page := await job_logs.job_log(bench.connection, job_id, after=after, most=2):
        pages.append([line.message for line in page])
        after = page[-1].seq
    assert pages == [["line 0", "line 1"], ["succeeded"]]
    assert [line.message for line in (await job_logs.latest_log(bench.connection, [job_id], 2))[job_id]] == [
        "line 1",
        "succeeded",
    ]


# Large values.


async def test_small_arguments_come_with_a_take_and_large_ones_are_fetched_by_their_run(bench, me):
    await bench.connection.execute("SELECT joex.set_largest('args', 6000000)")
    small, large, packed = {"x": "small"}, {"x": str(list(range(20_000)))}, {"x": "y" * 1_000_000}
    for args in (small, large, packed, small):
        await bench.submit(args=args)
    taken = await bench.take(me, 4)
    assert [job.args is None for job in taken] == [False, True, True, False]
    for job, args in zip(taken[1:3], (large, packed), strict=True):
        assert json.loads(await runs.arguments(bench.connection, job.id, job.lock_id) or "") == args


async def test_a_take_brings_no_more_than_its_budget_of_bytes_whatever_waits(bench, me):
    for nr in range(200):
        await bench.submit(args={"x": random.Random(nr).randbytes(6000 if nr % 2 else 60).hex()})
    taken = await bench.take(me, 200)
    assert [job.args is not None for job in taken] == [nr % 2 == 0 for nr in range(200)]
    await executors.leave(bench.connection, me)
    again = await bench.take(await bench.executor("you"), 20)
    assert all(job.args is not None for job in again)


@pytest.mark.parametrize("numbers", [[1e308] * 7300, [10**440] * 1000], ids=["2 MB each", "440 kB each"])
async def test_a_take_counts_the_texts_of_arguments_whose_stored_bytes_are_few(bench, me, numbers):
    await bench.connection.execute("SELECT joex.set_largest('args', 6000000)")
    for _ in range(4):
        await bench.submit(args={"x": numbers})
    assert sum(len(job.args or "") for job in await bench.take(me, 4)) <= 1_000_000


async def test_a_run_that_has_lost_its_job_is_not_given_its_arguments(bench, me):
    await bench.submit(args={"x": str(list(range(20_000)))})
    taken = await bench.take_one(me)
    await reclaim(bench, me)
    assert await runs.arguments(bench.connection, taken.id, taken.lock_id) is None


async def test_a_job_is_never_in_two_places_and_its_state_fits_its_place(bench):
    """The constraints of the table reject these writes."""
    job_id = await bench.submit()
    for wrong in (
        "due_at = now()",
        "lane = NULL",
        "finished_at = now()",
        "executor_id = 1",
        "state = 'stuck'",
        "state = 'success'",
        "lane = NULL, executor_id = 1, state = 'running'",
        "lane = NULL, finished_at = now()",
    ):
        with pytest.raises(asyncpg.CheckViolationError):
            await bench.connection.execute(f"UPDATE joex_private.job SET {wrong} WHERE id = $1", job_id)  # noqa: S608 - see above

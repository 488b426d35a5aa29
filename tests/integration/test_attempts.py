"""The attempts of a job: each run that has ended, when, where and how, and the latest one."""

from datetime import timedelta

import pytest

from joex.store import job_logs


@pytest.fixture
async def me(bench):
    """An executor."""
    return await bench.executor("me")


async def attempts(bench, job_id, **more):
    return await job_logs.attempts(bench.connection, job_id, **more)


async def again(bench, job_id):
    """Let the time of a job's retry come."""
    await bench.connection.execute("UPDATE joex_private.job SET due_at = clock_timestamp() WHERE id = $1", job_id)


async def test_each_attempt_has_its_executor_its_times_and_how_it_ended(bench, me):
    job_id = await bench.submit()
    assert await attempts(bench, job_id) == []
    taken = await bench.take_one(me)
    await bench.start(taken)
    started = (await bench.job(job_id)).started_at
    await bench.finish(taken, "stuck", error="ValueError: no page\nand more", delay=600.0)
    due = (await bench.job(job_id)).due_at
    await again(bench, job_id)

    other = await bench.executor("other")
    await bench.start(await bench.take_one(other))
    await bench.connection.execute("SELECT joex_private.end_executor($1, 'dead')", other)

    taken = await bench.take_one(me)
    await bench.start(taken)
    first, second, third = await attempts(bench, job_id)
    assert (first.attempt, first.outcome, first.app_id) == (1, "failed", "me")
    assert (first.error, first.started_at, first.retry_at) == ("ValueError: no page", started, due)
    assert first.ended_at is not None
    assert due - first.ended_at == pytest.approx(timedelta(seconds=600), abs=timedelta(seconds=10))
    assert (second.attempt, second.outcome, second.app_id, second.retry_at) == (2, "lost", "other", None)
    assert second.error == "its executor died each time it held this job"
    assert (third.attempt, third.outcome, third.app_id, third.ended_at) == (3, "running", "me", None)

    await bench.finish(taken, "success")
    *_, last = await attempts(bench, job_id)
    done = await bench.job(job_id)
    assert (last.outcome, last.started_at, last.ended_at) == ("success", done.started_at, done.finished_at)
    assert await attempts(bench, job_id, most=2) == [second, last]


@pytest.mark.parametrize(
    ("state", "outcome", "error"),
    [("failed", "failed", "no"), ("cancelled", "cancelled", None), ("waiting", "given_back", None)],
)
async def test_an_attempt_ends_as_its_run_does(bench, me, state, outcome, error):
    job_id = await bench.submit()
    taken = await bench.take_one(me)
    await bench.start(taken)
    await bench.finish(taken, state, error=error, age=1.0)
    [one] = await attempts(bench, job_id)
    assert (one.outcome, one.error, one.retry_at) == (outcome, error, None)


async def test_a_success_that_goes_round_once_more_stays_an_attempt(bench, me):
    job_id = await bench.submit()
    taken = await bench.take_one(me)
    await bench.start(taken)
    await bench.finish(taken)
    before = await attempts(bench, job_id)
    await bench.connection.execute("SELECT joex_client.resubmit($1)", job_id)
    assert await attempts(bench, job_id) == before
    assert [one.outcome for one in before] == ["success"]


async def test_a_run_that_succeeds_writes_no_record(bench, me):
    await bench.submit()
    await bench.finish(await bench.take_one(me))
    assert await bench.connection.fetchval("SELECT count(*) FROM joex_private.job_log") == 0

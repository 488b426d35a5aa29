"""Finished jobs are deleted with their logs, in batches, and nothing else is."""

from datetime import timedelta

import pytest

from joex.store import jobs, runs
from joex.store.runs import LogLine

WEEK = timedelta(days=7)
ALL = ["success", "failed", "cancelled"]


@pytest.fixture
async def me(bench):
    """An executor."""
    return await bench.executor("me")


async def age(bench, days=8):
    """Let all finished jobs have finished so many days ago."""
    await bench.connection.execute(
        "UPDATE joex.job SET finished_at = finished_at - make_interval(days => $1) WHERE finished_at IS NOT NULL", days
    )


async def test_old_finished_jobs_go_with_their_logs_and_young_ones_stay(bench, me):
    async def finished_with_a_line():
        job_id = await bench.submit()
        taken = await bench.take_one(me)
        await runs.note_many(bench.connection, [LogLine(job_id, taken.lock_id, 1, 0.0, "info", "x")], [])
        await bench.finish(taken)
        return job_id

    old = await finished_with_a_line()
    await age(bench)
    young = await finished_with_a_line()
    assert await jobs.delete_finished(bench.connection, ALL, WEEK, 100) == 1
    assert await jobs.get_job(bench.connection, old) is None
    assert await jobs.job_log(bench.connection, old) == []
    assert [line.message for line in await jobs.job_log(bench.connection, young)] == ["x", "succeeded"]


async def test_each_state_can_have_its_own_time(bench, me):
    ids = {state: await bench.job_in(state, me) for state in ALL}
    await age(bench)
    assert await jobs.delete_finished(bench.connection, ["success", "cancelled"], WEEK, 100) == 2
    assert await bench.state(ids["failed"]) == "failed"


async def test_a_batch_has_a_limit_and_takes_the_oldest_first(bench, me):
    ids = [await bench.job_in("success", me) for _ in range(5)]
    await age(bench)
    assert await jobs.delete_finished(bench.connection, ALL, WEEK, 3) == 3
    assert [await jobs.get_job(bench.connection, job_id) is None for job_id in ids] == [True, True, True, False, False]
    assert await jobs.delete_finished(bench.connection, ALL, WEEK, 3) == 2
    assert await jobs.delete_finished(bench.connection, ALL, WEEK, 3) == 0


@pytest.mark.parametrize("state", ["waiting", "stuck", "scheduled", "running"])
async def test_a_job_that_is_not_finished_is_never_deleted_however_old(bench, me, state):
    job_id = await bench.job_in(state, me)
    await bench.connection.execute("UPDATE joex.job SET submitted_at = '2000-01-01', started_at = '2000-01-01'")
    assert (
        await jobs.delete_finished(bench.connection, ["waiting", "stuck", "scheduled", "running", *ALL], WEEK, 9) == 0
    )
    assert await bench.state(job_id) == state


async def test_a_job_that_is_being_run_again_by_hand_is_passed_over(bench, me, another_connection):
    retried, other = await bench.job_in("failed", me), await another_connection()
    gone = await bench.job_in("failed", me)
    await age(bench)
    async with other.transaction():
        assert await jobs.retry(other, retried)
        assert await jobs.delete_finished(bench.connection, ALL, WEEK, 100) == 1
    assert await bench.state(retried) == "waiting"
    assert await jobs.get_job(bench.connection, gone) is None

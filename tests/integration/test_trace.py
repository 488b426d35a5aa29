"""The trace of finished jobs: its content, and reading a long one in parts."""

from datetime import UTC, datetime, timedelta

import pytest

from joex.store import stats, trace
from joex.store.trace import traced

pytestmark = pytest.mark.postgres(16, 18)

EVER = datetime(2000, 1, 1, tzinfo=UTC)


async def all_of(connection, since=EVER, queue=None):
    return [job async for batch in traced(connection, since, queue) for job in batch]


@pytest.fixture
async def me(bench):
    """An executor."""
    return await bench.executor("me")


async def row_of(bench, job_id):
    return await bench.connection.fetchrow("SELECT * FROM joex_private.job WHERE id = $1", job_id)


async def test_a_finished_job_is_told_with_its_times_and_the_settings_of_its_group(bench, me):
    await stats.set_group(bench.connection, "acme", "default", weight=3, max_running=7)
    job_id = await bench.job_in("success", me, group="acme", priority="high", retries=2)
    row = await row_of(bench, job_id)
    [job] = await all_of(bench.connection)
    assert (job.at, job.group, job.queue, job.task) == (row["runnable_since"], "acme", "default", row["task"])
    assert (job.priority, job.state, job.attempts, job.failures, job.retries) == ("high", "success", 1, 0, 2)
    assert (job.weight, job.max_running, job.seq) == (3, 7, row["seq"])
    assert job.seconds == pytest.approx((row["finished_at"] - row["scheduled_at"]).total_seconds(), abs=1e-5)
    assert job.waited == pytest.approx((row["scheduled_at"] - row["runnable_since"]).total_seconds(), abs=1e-5)
    assert job.waited > 0


async def test_a_job_that_was_not_to_run_before_a_time_came_at_that_time(bench, me):
    now = datetime.now(UTC)
    await bench.submit(not_before=now + timedelta(hours=1))
    await bench.connection.execute(
        "UPDATE joex_private.job SET due_at = due_at - interval '2 hours', "
        "runnable_since = runnable_since - interval '2 hours'"
    )
    await bench.finish(await bench.take_one(me))
    [job] = await all_of(bench.connection)
    assert job.at == now - timedelta(hours=1)
    assert job.waited == pytest.approx(3600, abs=60)


async def test_a_job_that_was_tried_again_came_when_it_was_submitted(bench, me):
    job_id = await bench.job_in("stuck", me)
    await bench.connection.execute("UPDATE joex_private.job SET due_at = clock_timestamp() WHERE id = $1", job_id)
    taken = await bench.take_one(me)
    await bench.finish(taken, "failed")
    [job] = await all_of(bench.connection)
    assert job.at == (await row_of(bench, job_id))["submitted_at"]
    assert (job.state, job.failures, job.attempts) == ("failed", 2, 2)


async def test_only_what_has_run_and_ended_since_then_in_the_queue_is_told(bench, me):
    first = await bench.job_in("cancelled", me)
    await bench.job_in("running", me)
    cancelled = await bench.submit()
    await bench.connection.execute("SELECT joex.cancel($1::uuid)", cancelled)
    ended = (await row_of(bench, first))["finished_at"]
    assert [job.state for job in await all_of(bench.connection)] == ["cancelled"]
    assert len(await all_of(bench.connection, since=ended)) == 1
    assert await all_of(bench.connection, since=ended + timedelta(microseconds=1)) == []
    assert len(await all_of(bench.connection, queue="default")) == 1
    assert await all_of(bench.connection, queue="other") == []


async def test_jobs_come_in_batches(bench, me, monkeypatch):
    monkeypatch.setattr(trace, "_BATCH", 2)
    for nr in range(5):
        await bench.job_in("success", me, group=f"group {nr}")
    batches = [batch async for batch in traced(bench.connection, EVER)]
    assert [len(batch) for batch in batches] == [2, 2, 1]
    assert {job.group for batch in batches for job in batch} == {f"group {nr}" for nr in range(5)}


async def test_what_has_ended_lately_is_read_along_the_indexes_of_finished_jobs(connection):
    await connection.execute(
        """
        INSERT INTO joex_private.job (task, state, scheduled_at, finished_at)
        SELECT 'a', 'success', now() - i * interval '1 min', now() - i * interval '1 min'
        FROM generate_series(1, 20000) i
        """
    )
    await connection.execute("ANALYZE joex_private.job")
    await connection.execute(f"PREPARE traced AS {trace._TRACE}")
    rows = await connection.fetch("EXPLAIN EXECUTE traced(now() - interval '1 hour', NULL)")
    plan = "\n".join(row[0] for row in rows)
    assert "job_finished" in plan
    assert "job_finished_with_key" in plan
    assert "Seq Scan" not in plan
    assert "Sort" not in plan

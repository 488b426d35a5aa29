"""The views for people and dashboards, and the numbers that the command line and metrics show."""

from datetime import UTC, datetime

import pytest

from joex.store import executors, stats

pytestmark = pytest.mark.postgres(16, 18)

LATER = datetime(2100, 1, 1, tzinfo=UTC)


@pytest.fixture
async def me(bench):
    """An executor."""
    return await bench.executor("me")


async def test_the_jobs_of_a_queue_are_counted_by_what_they_do(bench, me):
    await bench.job_in("running", me)
    await bench.job_in("scheduled", me)
    await bench.job_in("stuck", me)
    for state in ("success", "failed", "cancelled"):
        await bench.job_in(state, me)
    await bench.submit()
    await bench.submit("other")
    await bench.submit(not_before=LATER)
    [queue] = await stats.queue_stats(bench.connection)
    counts = (queue.waiting, queue.deferred, queue.scheduled, queue.running, queue.stuck)
    assert counts == (2, 1, 1, 1, 1)
    assert (queue.queue, queue.groups) == ("default", 2)
    assert queue.oldest_runnable_seconds is not None
    assert queue.oldest_runnable_seconds >= 0


async def test_a_queue_without_unfinished_jobs_has_no_row(bench, me):
    await bench.job_in("success", me)
    assert await stats.queue_stats(bench.connection) == []
    assert await stats.group_stats(bench.connection) == []


async def test_groups_are_shown_the_largest_first_with_their_settings(bench, me):
    await bench.job_in("running", me, group="small")
    for _ in range(3):
        await bench.submit("large")
    await bench.submit("elsewhere", queue="mail")
    await stats.set_group(bench.connection, "small", "default", weight=3, max_running=1)
    await stats.set_group(bench.connection, "elsewhere", "default", paused=True)  # a setting of another queue
    large, small, elsewhere = await stats.group_stats(bench.connection)
    assert (large.group, large.waiting, large.running, large.weight) == ("large", 3, 0, 1)
    assert (small.group, small.waiting, small.running, small.weight, small.max_running) == ("small", 0, 1, 3, 1)
    assert (elsewhere.group, elsewhere.queue, elsewhere.paused) == ("elsewhere", "mail", False)
    assert small.oldest_runnable_seconds is None
    assert [group.group for group in await stats.group_stats(bench.connection, "mail")] == ["elsewhere"]
    assert [group.group for group in await stats.group_stats(bench.connection, most=1)] == ["large"]


async def test_a_due_retry_counts_as_stuck_and_as_runnable(bench, me):
    await bench.job_in("stuck", me)
    [waits] = await stats.queue_stats(bench.connection)
    assert (waits.stuck, waits.oldest_runnable_seconds) == (1, None)
    await bench.connection.execute("UPDATE joex_private.job SET due_at = clock_timestamp()")
    await bench.connection.execute("SELECT joex_private.promote('default')")
    [due] = await stats.queue_stats(bench.connection)
    assert (due.stuck, due.waiting, due.oldest_runnable_seconds is not None) == (1, 0, True)


async def test_the_oldest_job_that_could_run_is_known_by_its_age(bench):
    await bench.submit()
    await bench.connection.execute("UPDATE joex_private.job SET runnable_since = clock_timestamp() - interval '1 hour'")
    await bench.submit()
    [queue] = await stats.queue_stats(bench.connection)
    assert queue.oldest_runnable_seconds is not None
    assert 3600 <= queue.oldest_runnable_seconds < 7200


async def test_what_waits_for_its_group_does_not_make_a_queue_old(bench):
    await bench.submit("paused")
    await bench.submit("limited")
    await bench.take(await bench.executor(), 1)
    await bench.connection.execute("UPDATE joex_private.job SET runnable_since = clock_timestamp() - interval '1 hour'")
    for group in ("paused", "limited"):
        await bench.connection.execute("SELECT joex.set_group($1, max_running => 1)", group)
    await bench.connection.execute(
        "SELECT joex.set_group(grp, paused => true) FROM joex_private.job WHERE lane IS NOT NULL"
    )
    [queue] = await stats.queue_stats(bench.connection)
    assert queue.oldest_runnable_seconds is None
    await bench.submit()
    [queue] = await stats.queue_stats(bench.connection)
    assert queue.oldest_runnable_seconds is not None
    assert queue.oldest_runnable_seconds < 1800


async def hold(bench, executor, **groups):
    """Let an executor hold this many jobs of each group; returns all its jobs. No job waits then."""
    for group, count in groups.items():
        for _ in range(count):
            await bench.submit(group)
    assert len(await bench.take(executor, sum(groups.values()))) == sum(groups.values())


async def wait(bench, group, seconds, **fields):
    """Submit a job that has waited for this long."""
    job_id = await bench.submit(group, **fields)
    await bench.connection.execute(
        "UPDATE joex_private.job SET runnable_since = clock_timestamp() - make_interval(secs => $2) WHERE id = $1",
        job_id,
        seconds,
    )


async def test_where_no_group_is_active_there_are_no_shares(bench, me):
    await bench.job_in("success", me)
    await bench.job_in("stuck", me)
    await bench.submit(not_before=LATER)
    await bench.submit("paused")
    await stats.set_group(bench.connection, "paused", "default", paused=True)
    await bench.submit("limited")
    await stats.set_group(bench.connection, "limited", "default", max_running=0)
    assert await stats.queue_shares(bench.connection) == []
    [queue] = await stats.shared_queue_stats(bench.connection)
    assert (queue.groups, queue.shares) == (3, None)


async def test_groups_are_active_that_hold_slots_or_could(bench, me):
    await hold(bench, me, holds=1, paused=1, limited=1)
    await stats.set_group(bench.connection, "paused", "default", paused=True)
    await stats.set_group(bench.connection, "limited", "default", max_running=1)
    for group in ("waits", "waits", "paused", "limited"):
        await bench.submit(group)
    await bench.submit("elsewhere", queue="mail")
    default, mail = await stats.queue_shares(bench.connection)
    assert (default.queue, default.active_groups) == ("default", 4)
    assert (mail.queue, mail.active_groups) == ("mail", 1)
    [queue, other] = await stats.shared_queue_stats(bench.connection)
    assert queue.shares is not None
    assert other.shares is not None
    assert (queue.shares.active_groups, other.shares.active_groups) == (4, 1)


async def test_the_largest_group_is_known_with_its_share_of_the_slots_in_use(bench, me):
    await bench.submit("waits")
    [nobody] = await stats.queue_shares(bench.connection)
    assert (nobody.largest_group, nobody.largest_share) == (None, None)
    await bench.take(me, 1)
    await hold(bench, me, large=6, small=1)
    for _ in range(20):
        await bench.submit("backlog")
    [queue] = await stats.queue_shares(bench.connection)
    assert (queue.largest_group, queue.largest_share) == ("large", 0.75)


async def test_waits_are_those_of_the_next_jobs_of_groups_each_group_counts_once(bench):
    for group, seconds in (("quick", 10), ("usual", 100), ("usual", 90), ("usual", 80), ("slow", 5000)):
        await wait(bench, group, seconds)
    await wait(bench, "paused", 90_000)
    await stats.set_group(bench.connection, "paused", "default", paused=True)
    [queue] = await stats.queue_shares(bench.connection)
    assert queue.median_wait_seconds is not None
    assert queue.longest_wait_seconds is not None
    assert 100 <= queue.median_wait_seconds < 1000
    assert 5000 <= queue.longest_wait_seconds < 10_000


async def test_the_next_job_of_a_group_is_the_one_that_is_taken_next(bench):
    for group in ("acme", "globex", "initech"):
        await wait(bench, group, 5000, priority="low")
        await wait(bench, group, 100, priority="high")
    [queue] = await stats.queue_shares(bench.connection)
    assert queue.longest_wait_seconds is not None
    assert 100 <= queue.longest_wait_seconds < 1000


async def test_a_group_is_behind_that_waits_two_levels_below_another(bench, me):
    await hold(bench, me, alone=2)
    await wait(bench, "late", 60)
    await wait(bench, "later", 30)
    await wait(bench, "alone", 500)
    [queue] = await stats.queue_shares(bench.connection)
    assert queue.groups_behind == 2
    assert queue.behind_seconds is not None
    assert 60 <= queue.behind_seconds < 500
    await stats.set_group(bench.connection, "later", "default", paused=True)
    [queue] = await stats.queue_shares(bench.connection)
    assert queue.groups_behind == 1


async def test_no_group_is_behind_where_levels_differ_by_less_than_two(bench, me):
    await hold(bench, me, first=1)
    await wait(bench, "second", 60)
    [queue] = await stats.queue_shares(bench.connection)
    assert (queue.groups_behind, queue.behind_seconds, queue.largest_share) == (0, None, 1.0)
    await bench.take(me, 1)
    await hold(bench, me, first=2)
    await wait(bench, "second", 60)
    [queue] = await stats.queue_shares(bench.connection)
    assert queue.groups_behind == 1
    await stats.set_group(bench.connection, "first", "default", weight=2)  # three of them are one level
    [queue] = await stats.queue_shares(bench.connection)
    assert queue.groups_behind == 0


async def test_an_executor_is_shown_with_what_it_does(bench, another_connection):
    ids = {name: await bench.executor(name) for name in ("awake", "asleep", "busy", "draining", "left", "dead")}
    await executors.fall_asleep(bench.connection, ids["asleep"])
    await bench.job_in("running", ids["busy"])
    await bench.job_in("scheduled", ids["busy"])
    await executors.drain(bench.connection, "draining")
    await executors.leave(bench.connection, ids["left"])
    await bench.connection.execute("SELECT joex_private.end_executor($1, 'dead')", ids["dead"])
    shown = await executors.list_executors(bench.connection, ended=True)
    assert {found.app_id: found.state for found in shown} == {name: name for name in ids}
    assert {found.app_id: found.held for found in shown if found.held} == {"busy": 2}
    living = await executors.list_executors(bench.connection)
    assert [found.app_id for found in living] == ["asleep", "awake", "busy", "draining"]
    assert all(found.silent_seconds >= 0 for found in living)


async def test_the_view_of_jobs_shows_each_job_with_what_was_submitted(bench):
    job_id = await bench.submit("acme", "high", args={"x": 1}, subject="s", submitter="web", tracker="t", retries=2)
    row = await bench.connection.fetchrow("SELECT *, priority::text AS p, state::text AS s FROM joex.jobs")
    assert (row["id"], row["queue"], row["grp"], row["task"]) == (job_id, "default", "acme", "a")
    assert (row["subject"], row["submitter"], row["tracker"], row["retries"]) == ("s", "web", "t", 2)
    assert (row["p"], row["s"], row["args"]) == ("high", "waiting", '{"x": 1}')


# A later version may add columns at the end of a view, but remove none, because dashboards use them.
COLUMNS = {
    "jobs": "id queue grp task args subject submitter tracker priority state due_at app_id attempt failures losses "
    "retries cancel_requested progress progress_message submitted_at scheduled_at started_at finished_at message "
    "result error seq",
    "group_stats": "queue grp waiting deferred scheduled running stuck oldest_runnable_seconds weight paused "
    "max_running",
    "queue_stats": "queue waiting deferred scheduled running stuck oldest_runnable_seconds groups paused",
    "executors": "id app_id state held pool_size queues host pid pod_uid http_address version tasks started_at "
    "heartbeat_at left_at silent_seconds",
    "pool_steps": "namespace home pool nr at before target ready draining mode why wanted capped_by runnable held "
    "next_due",
}


async def test_no_column_of_a_view_is_ever_taken_away(connection):
    for view, columns in COLUMNS.items():
        prepared = await connection.prepare(f"TABLE joex.{view}")
        names = [attribute.name for attribute in prepared.get_attributes()]
        assert names[: len(columns.split())] == columns.split()

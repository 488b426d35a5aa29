"""Finished jobs are deleted with their logs, in batches, and nothing else is."""

from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from joex.config import Settings
from joex.core.job import NewJob, Priority
from joex.core.periodic import SYSTEM_OWNER
from joex.errors import ConfigError
from joex.runtime import maintenance
from joex.runtime.maintenance import RETENTION, clean, system_periodic_tasks
from joex.store import executors, job_logs, jobs, periodic, runs, subscriptions
from joex.store.runs import LogLine

pytestmark = pytest.mark.postgres(16, 18)

WEEK = timedelta(days=7)
ALL = ["success", "failed", "cancelled"]


@pytest.fixture
async def me(bench):
    """An executor."""
    return await bench.executor("me")


async def age(bench, days=8):
    """Let all finished jobs have finished this many days ago."""
    await bench.connection.execute(
        "UPDATE joex_private.job SET finished_at = finished_at - make_interval(days => $1) "
        "WHERE finished_at IS NOT NULL",
        days,
    )


async def deleted(bench, states=ALL, most=100):
    """How many jobs a batch deletes that have ended a week ago."""
    return (await jobs.delete_finished(bench.connection, states, WEEK, most))[0]


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
    assert await deleted(bench) == 1
    assert await jobs.get_job(bench.connection, old) is None
    assert await job_logs.job_log(bench.connection, old) == []
    assert [line.message for line in await job_logs.job_log(bench.connection, young)] == ["x", "succeeded"]


async def test_each_state_can_have_its_own_time(bench, me):
    ids = {state: await bench.job_in(state, me) for state in ALL}
    await age(bench)
    assert await deleted(bench, ["success", "cancelled"]) == 2
    assert await bench.state(ids["failed"]) == "failed"


async def test_a_batch_has_a_limit_and_takes_the_oldest_first(bench, me):
    ids = [await bench.job_in("success", me) for _ in range(5)]
    await age(bench)
    assert await deleted(bench, most=3) == 3
    assert [await jobs.get_job(bench.connection, job_id) is None for job_id in ids] == [True, True, True, False, False]
    assert await deleted(bench, most=3) == 2
    assert await deleted(bench, most=3) == 0


async def test_a_batch_deletes_100_000_log_lines_at_most_and_a_job_when_its_log_is_gone(bench, me):
    """Otherwise a long log would make a long transaction."""
    ids = [await bench.job_in("cancelled", me) for _ in range(3)]
    await age(bench)
    ended = await bench.connection.fetch("SELECT finished_at FROM joex_private.job ORDER BY finished_at")
    for job_id, lines in zip(ids, (60_000, 110_000, 1), strict=True):
        await bench.connection.execute("DELETE FROM joex_private.job_log WHERE job_id = $1", job_id)
        await bench.connection.execute(
            "INSERT INTO joex_private.job_log (job_id, attempt, at, level, message) "
            "SELECT $1, 1, now(), 'info', 'x' FROM generate_series(1, $2)",
            job_id,
            lines,
        )
    batches, since = [], None
    for _ in range(3):
        gone, since = await jobs.delete_finished(bench.connection, ALL, WEEK, 100, since=since)
        batches.append((gone, since, await bench.connection.fetchval("SELECT count(*) FROM joex_private.job_log")))
    assert batches == [(1, ended[0][0], 70_001), (2, ended[2][0], 0), (0, None, 0)]


async def test_a_job_that_is_not_finished_is_never_deleted_however_old(bench, me):
    states = ("stuck", "scheduled", "running", "waiting")
    ids = [await bench.job_in(state, me) for state in states]
    await bench.connection.execute("UPDATE joex_private.job SET submitted_at = '2000-01-01', started_at = '2000-01-01'")
    assert await deleted(bench, [*states, *ALL]) == 0
    assert [await bench.state(job_id) for job_id in ids] == [*states]


async def test_a_job_that_is_being_run_again_by_hand_is_passed_over(bench, me, another_connection):
    retried, other = await bench.job_in("failed", me), await another_connection()
    gone = await bench.job_in("failed", me)
    await age(bench)
    async with other.transaction():
        assert await jobs.retry(other, retried)
        assert await deleted(bench) == 1
    assert await bench.state(retried) == "waiting"
    assert await jobs.get_job(bench.connection, gone) is None


async def test_the_batches_of_a_cleaning_go_on_after_the_jobs_that_are_kept_and_miss_none(bench, monkeypatch):
    monkeypatch.setattr(maintenance, "_BATCH", 2)
    await set_ages(bench)
    await bench.connection.execute("""
        INSERT INTO joex_private.job (task, state, finished_at)
        SELECT 'a', CASE WHEN nr % 3 = 0 THEN 'success' ELSE 'failed' END::joex_private.job_state,
               now() - make_interval(days => 8) - nr / 5 * interval '1 hour'    -- five at a time
        FROM generate_series(1, 100) nr
    """)
    await clean(bench.connection)
    left = await bench.connection.fetch("SELECT state::text, count(*) FROM joex_private.job GROUP BY 1")
    assert list(map(tuple, left)) == [("failed", 67)]


async def test_a_cleaning_keeps_what_the_settings_keep(bench, me):
    """Finished jobs for a week, failed ones for a month."""
    await set_ages(bench)
    ids: dict[tuple[str, int], UUID] = {}
    for days in (32, 8, 0):
        ids |= {(state, days): await bench.job_in(state, me) for state in ALL}
        for state in ALL:
            await bench.connection.execute(
                "UPDATE joex_private.job SET finished_at = finished_at - make_interval(days => $2) WHERE id = $1",
                ids[state, days],
                days,
            )
    await clean(bench.connection)
    kept = {name for name, job_id in ids.items() if await jobs.get_job(bench.connection, job_id)}
    assert kept == {("failed", 8), *((state, 0) for state in ALL)}


async def test_ages_that_are_none_are_named(bench):
    await set_ages(bench)
    await bench.connection.execute('UPDATE joex_private.periodic_task SET args = \'{"keep": "x"}\'')
    with pytest.raises(ConfigError, match=r"^the arguments of the periodic task joex.retention are no ages: "):
        await clean(bench.connection)


async def test_the_turns_of_groups_without_unfinished_jobs_are_forgotten_and_those_of_others_kept(bench):
    """Otherwise each group would leave a row for ever."""
    me = await bench.executor()
    fields = [(group, priority) for group in ("waits", "held", "done") for priority in Priority]
    await jobs.submit_many(
        bench.connection, [NewJob("a", group=group, priority=priority) for group, priority in fields * 2]
    )
    taken = await bench.take(me, 12)
    for job in taken[:-1] if taken[-1].group == "held" else taken:
        if job.group != "held":
            await bench.finish(job)
    await bench.submit("waits")
    assert await groups_counted(bench) == {"waits", "held", "done"}
    await runs.forget_turns(bench.connection)
    assert await groups_counted(bench) == {"waits", "held"}


async def test_a_cleaning_forgets_all_old_acts_in_batches(bench, monkeypatch):
    monkeypatch.setattr(maintenance, "_BATCH", 2)
    await set_ages(bench)
    await bench.connection.execute("""
        INSERT INTO joex_private.act (at, act, subject)
        SELECT now() - make_interval(days => 88 + nr), 'cancel', nr FROM generate_series(1, 7) nr
    """)
    await clean(bench.connection)
    kept = await bench.connection.fetch("SELECT subject FROM joex_private.act WHERE act = 'cancel'")
    assert [row["subject"] for row in kept] == ["1"]


async def test_lines_that_are_written_while_their_job_is_deleted_are_deleted_later(bench, me, another_connection):
    """Neither transaction waits for the other."""
    await set_ages(bench)
    job_id, other = await bench.submit(), await another_connection()
    taken = await bench.take_one(me)
    await bench.finish(taken)
    async with other.transaction():
        await runs.note_many(other, [LogLine(job_id, taken.lock_id, 1, 0.0, "info", "late")], [])
        await bench.connection.execute("SELECT joex.remove($1)", job_id)
    kept = await bench.job_in("success", me)
    await bench.connection.execute("INSERT INTO joex_private.job_log VALUES (DEFAULT, $1, 1, now(), 'info', 'x')", kept)
    assert [line.message for line in await job_logs.job_log(bench.connection, job_id)] == ["late"]
    await clean(bench.connection)
    assert await job_logs.job_log(bench.connection, job_id) == []
    assert [line.message for line in await job_logs.job_log(bench.connection, kept)] == ["x", "succeeded"]


async def test_the_maintenance_forgets_subscriptions_last(bench, monkeypatch):
    """Tenants can make so many that it doesn't get to anything behind them."""
    await set_ages(bench)
    line = "INSERT INTO joex_private.job_log VALUES (DEFAULT, gen_random_uuid(), 1, now(), 'info', 'x')"
    await bench.connection.execute(line)

    async def forget(connection):
        raise ConfigError("they are too many")

    monkeypatch.setattr(subscriptions, "forget", forget)
    with pytest.raises(ConfigError, match="too many"):
        await clean(bench.connection)
    assert await bench.connection.fetchval("SELECT count(*) FROM joex_private.job_log") == 0


@pytest.mark.parametrize("how", ["its runs end", "its executor leaves"])
async def test_the_end_of_a_removed_job_deletes_a_part_of_a_long_log_and_maintenance_the_rest(bench, me, how):
    """The ends of other tenants' jobs come with it; so do those that an executor had, which come back together."""
    ids = [await bench.submit(group=group) for group in ("a", "b", "a")]
    taken = [await bench.take_one(me) for _ in ids]
    for job_id, number in zip(ids, (10_003, 100, 10_003), strict=True):
        await bench.connection.execute(
            """INSERT INTO joex_private.job_log (job_id, attempt, at, level, message)
               SELECT $1, 1, now(), 'info', 'x' FROM generate_series(1, $2)""",
            job_id,
            number,
        )
        assert await bench.connection.fetchval("SELECT joex.remove($1)", job_id) == "ok"
    if how == "its runs end":
        await runs.finish_many(bench.connection, [runs.EndedRun(one.id, one.lock_id, "success") for one in taken])
    else:
        await executors.leave(bench.connection, me)
    assert await bench.connection.fetchval("SELECT count(*) FROM joex_private.job") == 0
    lines = "SELECT count(*) FROM joex_private.job_log"
    assert await bench.connection.fetchval(f"{lines} WHERE job_id = $1", ids[1]) == 0
    assert 10_000 < await bench.connection.fetchval(lines) < 20_000
    assert await job_logs.forget_lines(bench.connection, UUID(int=0)) is None
    assert await bench.connection.fetchval(lines) == 0


async def test_lines_are_looked_through_in_parts_until_all_were_seen(bench):
    there = sorted([uuid4() for _ in range(5)], key=lambda one: one.int)
    await bench.connection.executemany(
        "INSERT INTO joex_private.job_log (job_id, attempt, at, level, message) VALUES ($1, 1, now(), 'info', 'x')",
        [(one,) for one in there for _ in range(3)],
    )

    async def left():
        return await bench.connection.fetchval("SELECT count(*) FROM joex_private.job_log")

    assert await job_logs.forget_lines(bench.connection, UUID(int=0), 3) == there[2]
    assert await left() == 6
    forget = "SELECT joex_private.forget_lines($1, 3, 4)"
    assert await bench.connection.fetchval(forget, there[2]) == there[2], "it has deleted four lines: there may be more"
    assert await left() == 2
    assert await bench.connection.fetchval(forget, there[2]) is None
    assert await left() == 0
    assert await job_logs.forget_lines(bench.connection, UUID(int=0), 3) is None


async def set_ages(bench):
    """What an executor does at its start."""
    [task] = system_periodic_tasks(Settings())
    assert await periodic.put(bench.connection, task, SYSTEM_OWNER) == "set"
    assert (await periodic.list_tasks(bench.connection, [(RETENTION, None, None)]))[0].args


async def groups_counted(bench):
    """The groups whose turns are counted."""
    rows = await bench.connection.fetch("""
        SELECT g.name FROM unnest('{waits,held,done}'::text[]) g(name)
        WHERE EXISTS (SELECT FROM joex_private.priority_turns k WHERE k.ring = joex_private.ring(g.name))
    """)
    return {row["name"] for row in rows}

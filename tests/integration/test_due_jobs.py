"""Jobs that fall due: each takes its place in its group, however many others are due before it."""

import asyncio
from collections import Counter
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from joex.core.priority_turns import CountingScheme
from joex.runtime import taker
from joex.store import pools, runs, stats, worker_runs
from tests.integration.test_plans import assert_bounded, read_by
from tests.support.waiting import EventLog

pytestmark = pytest.mark.postgres(16, 18)

FOUR_ONE = CountingScheme(4, 1)
HERD = 5_000


async def deferred(bench, group: str, number: int = 1, *, due: timedelta, apart: timedelta = timedelta(0)) -> None:
    """Retries of a group: the time of the first, from now, and the interval between them."""
    await bench.connection.execute(
        """
        INSERT INTO joex_private.job (task, grp, state, due_at)
        SELECT 'a', $1, 'stuck', clock_timestamp() + $3::interval + $4::interval * (nr - 1)
        FROM generate_series(1, $2) nr
        """,
        group,
        number,
        due,
        apart,
    )


def ago(**fields: float) -> timedelta:
    return -timedelta(**fields)


async def one_by_one(bench, executor: int, most: int) -> list[str]:
    """The groups of jobs that are taken one by one, each when the one before has ended."""
    groups = []
    for _ in range(most):
        job = await bench.take_one(executor)
        groups.append(job.group)
        await bench.finish(job)
    return groups


async def accepted(bench, number: int = 1) -> list[str]:
    """The groups of the jobs that a worker accepts."""
    return [job.group for job in await worker_runs.accept(bench.connection, "default", number, "worker", None)]


async def test_a_groups_one_due_retry_is_served_within_a_round_of_anothers_thousands(bench):
    await deferred(bench, "herd", HERD, due=ago(hours=1))
    await deferred(bench, "one", due=ago(seconds=1))
    assert "one" in await one_by_one(bench, await bench.executor(), 2)


async def test_it_is_where_the_others_became_due_over_a_night(bench):
    await deferred(bench, "herd", HERD, due=ago(hours=8), apart=timedelta(seconds=5))
    await deferred(bench, "one", due=ago(seconds=1))
    assert "one" in await one_by_one(bench, await bench.executor(), 2)


async def test_it_is_where_ten_thousand_groups_have_jobs_that_are_not_due(bench):
    await bench.connection.execute("""
        INSERT INTO joex_private.job (task, grp, due_at)
        SELECT 'a', 'later ' || nr, now() + make_interval(hours => 1, secs => nr) FROM generate_series(1, 10000) nr""")
    await deferred(bench, "herd", HERD, due=ago(hours=1))
    await deferred(bench, "one", due=ago(seconds=1))
    assert "one" in await one_by_one(bench, await bench.executor(), 2)


async def test_a_worker_is_given_it_within_a_round_too(bench):
    await deferred(bench, "herd", HERD, due=ago(hours=1))
    await deferred(bench, "one", due=ago(seconds=1))
    assert Counter([group for _ in range(3) for group in await accepted(bench)])["one"] == 1


async def test_workers_are_given_due_jobs_of_the_group_that_runs_least(bench):
    await deferred(bench, "herd", HERD, due=ago(hours=1))
    assert await accepted(bench, 4) == ["herd"] * 4
    await deferred(bench, "other", 10, due=ago(seconds=1))
    assert [await accepted(bench) for _ in range(4)] == [["other"]] * 4


async def test_an_accept_moves_no_more_due_jobs_than_it_takes(bench, another_connection):
    """Until its transaction ends, no other transaction can take them."""
    for group in ("a", "b", "c"):
        await deferred(bench, group, 10, due=ago(seconds=1))
    other = await another_connection()
    async with bench.connection.transaction():
        mine = await accepted(bench, 4)
        assert len(mine) == 4
        theirs = await worker_runs.accept(other, "default", 100, "other", None)
        assert Counter([*mine, *(job.group for job in theirs)]) == {"a": 10, "b": 10, "c": 10}


async def test_all_slots_are_filled_where_a_group_has_fewer_due_jobs_than_its_share(bench):
    await deferred(bench, "herd", 100, due=ago(seconds=2))
    await deferred(bench, "one", due=ago(seconds=1))
    assert Counter(await accepted(bench, 10)) == {"herd": 9, "one": 1}


@pytest.mark.parametrize("setting", [{"paused": True}, {"max_running": 0}])
async def test_due_jobs_of_a_group_that_may_not_run_keep_no_worker_from_others(bench, setting: dict[str, Any]):
    await deferred(bench, "stopped", HERD, due=ago(hours=1))
    await deferred(bench, "one", due=ago(seconds=1))
    await stats.set_group(bench.connection, "stopped", "default", **setting)
    assert await accepted(bench) == ["one"]


async def test_of_many_groups_with_more_due_jobs_than_anyone_takes_none_is_starved(bench):
    """Many more groups than the steps of a call, in two minutes that are far apart.

    (A call begins at random: the chance that 400 calls miss one of them is 10 to the -8.)
    """
    groups = 400
    await bench.connection.execute(
        """
        INSERT INTO joex_private.job (task, grp, state, due_at)
        SELECT 'a', 'group ' || nr % $1, 'stuck', now() - make_interval(hours => 1 + 23 * (nr % 2))
        FROM generate_series(1, $1::integer * 40) nr
        """,
        groups,
    )
    in_line = 0
    for _ in range(400):
        await bench.connection.execute("SELECT joex_private.promote('default', 30)")
        in_line = await bench.connection.fetchval("SELECT count(DISTINCT grp) FROM joex_private.job WHERE lane = 0")
        if in_line == groups:
            break
    assert in_line == groups


async def test_due_jobs_whose_rows_others_hold_keep_none_of_the_rest_from_its_turn(bench, another_connection):
    await deferred(bench, "herd", 30, due=ago(hours=1))
    await deferred(bench, "one", due=ago(seconds=1))
    other = await another_connection()
    async with other.transaction():
        await other.execute("SELECT FROM joex_private.job WHERE grp = 'one' OR seq < 20 FOR UPDATE")
        assert await accepted(bench, 15) == ["herd"] * 11
    assert "one" in await accepted(bench, 2)


async def test_a_pool_at_zero_is_wanted_for_a_due_retry_behind_thousands_that_may_not_run(bench):
    await deferred(bench, "stopped", 20_000, due=ago(hours=1))
    await deferred(bench, "one", due=ago(seconds=1))
    await stats.set_group(bench.connection, "stopped", "default", paused=True)
    waiting, _ = await pools.demand_and_replicas(bench.connection, ["default"], 10, ["p/a-"])
    assert waiting.runnable == 1


async def test_a_job_with_a_time_of_its_own_goes_where_its_priority_is_when_it_is_due(bench):
    """In a batch for each group too; a retry goes before both."""
    await deferred(bench, "herd", 600, due=ago(hours=1))
    await bench.connection.execute("""
        INSERT INTO joex_private.job (task, grp, priority, state, due_at) VALUES
        ('a', 'x', 'low', 'waiting', now()), ('a', 'x', 'high', 'waiting', now()), ('a', 'x', 'low', 'stuck', now())""")
    await bench.connection.execute("SELECT joex_private.promote('default')")
    rows = await bench.connection.fetch("SELECT lane FROM joex_private.job WHERE grp = 'x' ORDER BY seq")
    assert [row["lane"] for row in rows] == [2, 1, 0]


@pytest.mark.parametrize("is_analyzed", [True, False], ids=["known", "unknown"])
@pytest.mark.parametrize("groups", [1, 5_000])
async def test_what_is_read_to_move_some_of_many_due_jobs_is_what_is_moved_and_some_steps(bench, groups, is_analyzed):
    """Whether one group has them or thousands; however many jobs are not due."""
    await bench.connection.execute(
        "ALTER TABLE joex_private.job SET (autovacuum_enabled = off)"
    )  # its reads would count too
    await bench.connection.execute(
        """
        INSERT INTO joex_private.job (grp, task, state, due_at)
        SELECT 'due ' || nr % $1::integer, 'a', 'stuck'::joex_private.job_state,
            now() - make_interval(secs => nr % 3600)
        FROM generate_series(1, 20000) nr
        UNION ALL
        SELECT 'later ' || nr, 'a', 'stuck', now() + make_interval(hours => 1, secs => nr)
        FROM generate_series(1, 10000) nr""",
        groups,
    )
    if is_analyzed:
        await bench.connection.execute("VACUUM ANALYZE joex_private.job")
    moved = "SELECT count(*) FROM joex_private.job WHERE lane = 0"
    for batch in (1, 20, 500):
        before = await bench.connection.fetchval(moved)
        async with bench.connection.transaction():
            call = bench.connection.execute("SELECT joex_private.promote('default', $1)", batch)
            _, reading = await read_by(bench, call)
        assert await bench.connection.fetchval(moved) == before + batch
        assert_bounded(reading, max(batch, 100))  # so many steps


@pytest.mark.parametrize("due", ["-infinity", "0001-01-01 00:00+00"])
async def test_whatever_the_time_of_a_due_job_it_is_taken(bench, due):
    await deferred(bench, "herd", 600, due=ago(hours=1))
    await bench.connection.execute(
        "INSERT INTO joex_private.job (task, grp, state, due_at) VALUES ('a', 'x', 'stuck', $1::text::timestamptz)", due
    )
    executor, groups = await bench.executor(), []
    while taken := await runs.take(bench.connection, executor, ["default"], 601, FOUR_ONE):
        groups += [job.group for job in taken]
    assert Counter(groups) == {"herd": 600, "x": 1}


async def test_an_executor_takes_ever_less_often_while_a_due_job_is_locked(
    bench, pool, another_connection, monkeypatch
):
    """Until it takes once a heartbeat, as it does anyway; and soon again when the next one is locked."""
    executor, other = await bench.executor(), await another_connection()
    started, asked, go = asyncio.Event(), asyncio.Queue[float](), asyncio.Semaphore(0)
    runner: Any = SimpleNamespace(free=1, runs={}, start=lambda _job: started.set())

    async def pause(_wakeup: asyncio.Event, seconds: float) -> None:
        await asked.put(seconds)
        await go.acquire()

    async def next_pause() -> float:
        go.release()
        return await asyncio.wait_for(asked.get(), 30)

    monkeypatch.setattr(taker, "wait_for", pause)
    taking = asyncio.ensure_future(
        taker.Taker(
            pool, runner, executor=executor, queues=["default"], scheme=FOUR_ONE, wakeup_period=3.0,
            poll_interval=None, is_trusted=lambda: True, emit=EventLog(),
        ).run()
    )  # fmt: skip
    seconds = await asked.get()
    while seconds < 3.0:  # it rechecks
        seconds = await next_pause()
    for _ in range(2):
        started.clear()
        await deferred(bench, "one", due=ago(seconds=1))
        async with other.transaction():
            await other.execute("SELECT FROM joex_private.job WHERE due_at IS NOT NULL FOR UPDATE")
            assert [await next_pause() for _ in range(5)] == [0.2, 0.4, 0.8, 1.6, 3.0]
        assert await next_pause() == 3.0
        assert started.is_set()
    taking.cancel()
    await asyncio.wait([taking])

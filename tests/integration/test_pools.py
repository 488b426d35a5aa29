"""The calls of an operator of pools: demand, replicas, retirement, pods that are gone, watches."""

import asyncio
import json
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from joex.store import executors, jobs, pools, stats, timeouts
from joex.store.horizon import horizon as take_horizon
from joex.store.horizon import oldest_transaction
from joex.store.pools import CHANNEL
from joex_operator.decide.run_times import RunTimes
from joex_operator.decide.scaling import Demand, Work, slots_for
from tests.support.waiting import eventually

pytestmark = pytest.mark.postgres(16, 18)

MOST = 100


async def replicas(bench, prefix: str) -> list[pools.Known]:
    [found] = await pools.replicas(bench.connection, [prefix])
    return found


async def demand(bench, *queues: str, most: int = MOST) -> int:
    waiting, _ = await pools.demand_and_replicas(bench.connection, queues or ("default",), most, ["p/a-"])
    return waiting.runnable


class TestDemand:
    async def test_it_counts_what_could_be_taken_in_all_queues(self, bench) -> None:
        for queue in ("default", "default", "mail", "other"):
            await bench.submit(queue=queue)
        assert await demand(bench, "default", "mail") == 3

    async def test_it_counts_no_further_than_it_is_asked_to(self, bench) -> None:
        for _ in range(5):
            await bench.submit()
        assert await demand(bench, most=3) == 3
        assert await demand(bench, "mail", "default", most=3) == 3

    async def test_due_jobs_that_another_transaction_has_locked_are_walked_over_once(
        self, bench, another_connection
    ) -> None:
        """A tenant may lock half a million: ten passes over them took too long for the operator."""
        await bench.connection.execute("SELECT joex.submit('a', not_before => now() + interval '1 hour')")
        await bench.connection.execute("UPDATE joex_private.job SET due_at = clock_timestamp() - interval '1 minute'")
        other = await another_connection()
        async with other.transaction(), bench.connection.transaction():
            await other.execute("SELECT FROM joex_private.job FOR UPDATE")
            await bench.connection.execute("SET LOCAL track_functions = 'pl'")
            await bench.connection.execute("SELECT joex_private.promote_due('{default}')")
            calls = "SELECT pg_stat_get_xact_function_calls('joex_private.promote'::regproc)"
            assert await bench.connection.fetchval(calls) == 1

    async def test_what_is_held_is_not_runnable(self, bench) -> None:
        await bench.submit()
        await bench.submit()
        await bench.take(await bench.executor())
        assert await demand(bench) == 1

    async def test_paused_groups_do_not_count(self, bench) -> None:
        await bench.submit("a")
        await bench.submit("b")
        await bench.connection.execute("SELECT joex.set_group('a', paused => true)")
        assert await demand(bench) == 1

    async def test_a_limited_group_counts_as_far_as_it_has_room(self, bench) -> None:
        for _ in range(5):
            await bench.submit("a")
        await bench.submit("b")
        await bench.connection.execute("SELECT joex.set_group('a', max_running => 2)")
        assert await demand(bench) == 3
        executor = await bench.executor()
        taken = await bench.take(executor, 3)
        assert sorted(job.group for job in taken) == ["a", "a", "b"]
        assert await demand(bench) == 0
        assert await demand(bench, most=1) == 0

    @pytest.mark.parametrize("seed", range(5))
    async def test_it_counts_between_the_paused_and_the_limited_groups_too(self, bench, seed: int) -> None:
        dice = random.Random(seed)
        expected = 0
        for nr in range(40):
            jobs, settings = (
                dice.randrange(4),
                dice.choice(["", "", "weight => 2", "paused => true", "max_running => 0", "max_running => 2"]),
            )
            for _ in range(jobs):
                await bench.submit(f"g{nr}")
            if settings:
                await bench.connection.execute(f"SELECT joex.set_group('g{nr}', {settings})")
            expected += 0 if "paused" in settings else min(jobs, int(settings[-1])) if "max" in settings else jobs
        assert await demand(bench) == expected
        assert await demand(bench, most=7) == min(expected, 7)

    async def test_one_limited_group_costs_no_step_for_each_other_group(self, bench) -> None:
        insert = (
            "INSERT INTO joex_private.job (queue, grp, task, lane) "
            "SELECT 'default', 'g' || n, 'a', 2 FROM generate_series(1, 500) n"
        )
        await bench.connection.execute(insert)
        await bench.connection.execute("SELECT joex.set_group('g7', max_running => 1)")
        scans = "SELECT pg_stat_get_xact_numscans('joex_private.job_runnable'::regclass)"
        async with bench.connection.transaction():
            before = await bench.connection.fetchval(scans)
            found = await bench.connection.fetchval("SELECT joex_private.demand_by_group('default', 1000)")
            assert (found, await bench.connection.fetchval(scans) - before < 20) == (500, True)

    async def test_a_group_that_may_run_nothing_costs_two_searches_of_an_index(self, bench) -> None:
        """A tenant can make very many: five searches and statements for each kept operators from sizing pools."""
        await bench.connection.execute("""
            INSERT INTO joex_private.job (queue, grp, task, lane)
            SELECT 'default', 'g' || n, 'a', 2 FROM generate_series(1, 500) n""")
        await bench.connection.execute("""
            INSERT INTO joex_private.group_setting (queue, grp, ring, paused, max_running)
            SELECT 'default', 'g' || n, joex_private.ring('g' || n), n % 2 = 0, CASE WHEN n % 2 = 1 THEN 0 END
            FROM generate_series(1, 500) n""")
        scans = """
            SELECT sum(pg_stat_get_xact_numscans(i.indexrelid))::integer FROM pg_index i
            WHERE i.indrelid IN ('joex_private.job'::regclass, 'joex_private.group_setting'::regclass)"""
        async with bench.connection.transaction():
            before = await bench.connection.fetchval(scans)
            found = await bench.connection.fetchval("SELECT joex_private.demand_by_group('default', 1000)")
            assert (found, await bench.connection.fetchval(scans) - before < 500 * 2.5) == (0, True)

    async def test_what_is_due_counts_though_nobody_takes(self, bench) -> None:
        for _ in range(1200):
            await bench.submit(not_before=datetime.now(UTC) + timedelta(hours=1))
        await bench.connection.execute("UPDATE joex_private.job SET due_at = clock_timestamp()")
        assert await demand(bench, most=2000) == 1200

    async def test_it_says_when_the_next_job_is_due(self, bench) -> None:
        assert await pools.demand_and_replicas(bench.connection, ["default"], MOST, ["p/a-"]) == (
            pools.Waiting(0, None),
            [[]],
        )
        await bench.submit(not_before=datetime.now(UTC) + timedelta(hours=1))
        waiting, _ = await pools.demand_and_replicas(bench.connection, ["default", "mail"], MOST, ["p/a-"])
        assert waiting.next_due == pytest.approx(3600, abs=60)

    async def test_a_job_that_is_taken_meanwhile_counts_once(
        self, bench, another_connection, waiting_for_a_lock
    ) -> None:
        executor = await bench.executor("p/a-0")
        await bench.submit()
        other, observer, asking = await another_connection(), await another_connection(), await another_connection()
        between = other.transaction()
        await between.start()
        await other.execute("LOCK TABLE joex_private.retired")  # between the count of jobs and the count of executors
        async with waiting_for_a_lock(
            observer, pools.demand_and_replicas(asking, ["default"], MOST, ["p/a-"])
        ) as looking:
            assert len(await bench.take(executor)) == 1
            await between.commit()
        waiting, [[known]] = looking.result()
        assert (waiting.runnable, known.held) in {(1, 0), (0, 1)}


async def ran(bench, task: str, seconds: float, *, group: str = "default", times: int = 10) -> None:
    """So many jobs of a task have ended, each of which held its slot for so long."""
    executor = await bench.executor(f"ran-{task}-{group}")
    for _ in range(times):
        await bench.submit(group, task=task)
    for job in await bench.take(executor, times):
        await bench.start(job)
        await bench.finish(job)
    held_for = "UPDATE joex_private.job SET scheduled_at = finished_at - make_interval(secs => $3) "
    await bench.connection.execute(held_for + "WHERE task = $1 AND grp = $2", task, group, seconds)


async def work(bench, *queues: str, wait: float = 30.0) -> tuple[float, float]:
    """As the operator measures it."""
    run_times = RunTimes()
    for one in await pools.latest_runs(bench.connection, None):
        run_times.add(one.task, one.group, one.runs, one.seconds)
    measured = await pools.demand(bench.connection, queues or ("default",), 100_000, run_times.shares(wait), wait=wait)
    assert measured.work is not None
    return measured.work


class TestWork:
    async def test_a_job_counts_with_the_seconds_that_runs_of_its_task_took(self, bench) -> None:
        await ran(bench, "short", 0.3)
        await ran(bench, "long", 15.0)
        for _ in range(100):
            await bench.submit(task="short")
        for _ in range(4):
            await bench.submit(task="long")
        assert (await work(bench))[0] == pytest.approx(100 * 0.01 + 4 * 0.5)
        assert (await work(bench, wait=3.0))[0] == pytest.approx(100 * 0.1 + 4), "no job fills more than a slot"

    async def test_a_job_of_a_task_that_is_hardly_known_counts_as_a_slot(self, bench) -> None:
        await ran(bench, "known", 3.0, times=10)
        await ran(bench, "new", 3.0, times=9)
        await bench.submit(task="known")
        await bench.submit(task="new")
        await bench.submit(task="never ran")
        assert (await work(bench))[0] == pytest.approx(2.1)

    async def test_a_group_whose_runs_are_known_counts_with_its_own(self, bench) -> None:
        await ran(bench, "export", 1.5, group="small", times=30)
        await ran(bench, "export", 15.0, group="large", times=10)
        for group in ("small", "large", "another"):
            await bench.submit(group, task="export")
        assert (await work(bench))[0] == pytest.approx(0.05 + 0.5 + (30 * 0.05 + 10 * 0.5) / 40)

    async def test_runs_of_keyed_jobs_count_too(self, bench) -> None:
        await ran(bench, "short", 3.0)
        await bench.connection.execute("UPDATE joex_private.job SET key = uuid_send(id)")
        await bench.submit(task="short")
        assert (await work(bench))[0] == pytest.approx(0.1)

    async def test_only_runs_that_have_ended_since_are_told_again(self, bench) -> None:
        await ran(bench, "short", 3.0)
        [told] = await pools.latest_runs(bench.connection, None)
        assert (told.task, told.group, told.runs, round(told.seconds)) == ("short", "default", 10, 30)
        assert await pools.latest_runs(bench.connection, told.last_at) == []

    async def test_the_hours_between_a_failed_run_and_a_cancellation_are_no_run_time(self, bench) -> None:
        await ran(bench, "short", 3.0)
        executor = await bench.executor()
        for _ in range(5):
            await bench.submit(task="short")
        for job in await bench.take(executor, 5):
            await bench.finish(await bench.start(job) or job, "stuck", delay=3600.0)
        stuck = "UPDATE joex_private.job SET scheduled_at = scheduled_at - interval '5 hours' WHERE state = 'stuck'"
        await bench.connection.execute(stuck)
        await bench.connection.execute("SELECT joex.cancel(id) FROM joex_private.job WHERE state = 'stuck'")
        [told] = await pools.latest_runs(bench.connection, None)
        assert (told.runs, round(told.seconds)) == (10, 30)

    async def test_paused_groups_do_not_count_and_limited_ones_fill_no_more_slots_than_they_may(self, bench) -> None:
        await ran(bench, "short", 3.0)
        for group in ("paused", "one", "three"):
            for _ in range(50):
                await bench.submit(group, task="short")
        await bench.connection.execute("SELECT joex.set_group('paused', paused => true)")
        await bench.connection.execute("SELECT joex.set_group('one', max_running => 1)")
        await bench.connection.execute("SELECT joex.set_group('three', max_running => 30)")
        assert (await work(bench))[0] == pytest.approx(1 + 5)

    async def test_jobs_beyond_those_that_are_read_count_like_them(self, bench) -> None:
        await ran(bench, "short", 3.0)
        await bench.connection.execute(
            "INSERT INTO joex_private.job (queue, grp, task, lane) SELECT 'default', 'g' || n % 400, 'short', 2 "
            "FROM generate_series(1, 4000) n"
        )
        assert (await work(bench))[0] == pytest.approx(400)

    async def test_what_runs_fills_its_slots_for_a_part_of_the_time(self, bench) -> None:
        await ran(bench, "short", 3.0)
        executor = await bench.executor()
        await bench.submit(task="short")
        await bench.submit(task="never ran")
        await bench.take(executor, 2)
        assert (await work(bench))[1] == pytest.approx(0.55)

    async def test_what_has_run_for_longer_than_the_target_holds_its_slots_whatever_its_task_took_before(
        self, bench
    ) -> None:
        """Two runs of a task that used to be quick hold all slots of a pool for hours, and so many jobs wait."""
        await ran(bench, "short", 0.003)
        executor = await bench.executor()
        for _ in range(1000):
            await bench.submit(task="short")
        await bench.take(executor, 2)
        assert slots_for(Demand(1000, work=Work(*await work(bench))), 2) == 2
        taken = "UPDATE joex_private.job SET scheduled_at = now() - interval '2 hours' WHERE executor_id IS NOT NULL"
        await bench.connection.execute(taken)
        assert slots_for(Demand(1000, work=Work(*await work(bench))), 2) == 3


class TestSpareExecutors:
    async def test_one_takes_nothing_while_another_has_a_free_slot(self, bench) -> None:
        one, another = await two_of_which_the_first_is_spare(bench)
        await executors.fall_asleep(bench.connection, another)
        await bench.submit()
        assert await bench.take(one) == []
        assert len(await bench.take(another)) == 1

    async def test_a_mark_passes_on_the_wake_up_that_came_before_it(self, bench, another_connection) -> None:
        one, another = await bench.executor("p/a-0"), await bench.executor("p/a-1")
        for executor in (another, one):
            await executors.fall_asleep(bench.connection, executor)
        heard: list[str] = []
        listener = await another_connection()
        await listener.add_listener("joex_wake", lambda *message: heard.append(message[-1]))
        await bench.submit()
        await pools.mark_spare(bench.connection, "p/a-0", spare=True)
        await eventually(lambda: len(heard) == 2, why="two notifications")
        named = [json.loads(message)["executors"] for message in heard]
        assert [ids[0] for ids in named] == [one, another]

    async def test_it_wakes_the_one_to_which_it_leaves_a_due_job(self, bench, another_connection) -> None:
        """A run of the spare one failed, and is due again: nobody else has a timer for it, and no submission comes."""
        one, another = await two_of_which_the_first_is_spare(bench)
        await bench.submit()
        run = await bench.take_one(one)
        await executors.fall_asleep(bench.connection, another)
        await bench.finish(run, "stuck", delay=0.0)
        heard: list[str] = []
        listener = await another_connection()
        await listener.add_listener("joex_wake", lambda *message: heard.append(message[-1]))
        assert await bench.take(one) == []
        await eventually(lambda: heard, why="a notification")
        assert [json.loads(message)["executors"] for message in heard] == [[another]]
        assert len(await bench.take(another)) == 1

    async def test_it_takes_what_the_others_have_no_slot_for(self, bench) -> None:
        one, another = await two_of_which_the_first_is_spare(bench)
        await executors.fall_asleep(bench.connection, another)
        for _ in range(3):
            await bench.submit()
        assert len(await bench.take(another, 2)) == 2  # all its slots
        assert len(await bench.take(one)) == 1

    @pytest.mark.parametrize(
        "why",
        [
            "UPDATE joex_private.executor SET draining = true",
            "UPDATE joex_private.executor SET spare = true",
            "UPDATE joex_private.sleeper SET queues = '{mail}'",
            "UPDATE joex_private.lease SET heartbeat_at = clock_timestamp() - interval '31 seconds'",
        ],
        ids=["drains", "is spare too", "serves other queues", "is silent"],
    )
    async def test_it_leaves_nothing_to_one_that(self, bench, why: str) -> None:
        one, another = await two_of_which_the_first_is_spare(bench)
        await executors.fall_asleep(bench.connection, another)
        column = "id" if "joex_private.executor " in why else "executor_id"
        await bench.connection.execute(f"{why} WHERE {column} = $1", another)
        await bench.submit()
        assert len(await bench.take(one)) == 1

    async def test_it_is_woken_last(self, bench, another_connection) -> None:
        one, another = await two_of_which_the_first_is_spare(bench)
        heard: list[str] = []
        listener = await another_connection()
        await listener.add_listener("joex_wake", lambda *message: heard.append(message[-1]))
        for executor in (another, one):  # the spare one is the last to fall asleep
            await executors.fall_asleep(bench.connection, executor)
        await bench.submit()
        await eventually(lambda: heard, why="a notification")
        assert [json.loads(message)["executors"] for message in heard] == [[another]]

    async def test_without_the_mark_it_is_told_of_what_waits(self, bench, another_connection) -> None:
        one, _ = await two_of_which_the_first_is_spare(bench)
        await executors.fall_asleep(bench.connection, one)
        await bench.submit()
        heard: list[str] = []
        listener = await another_connection()
        await listener.add_listener("joex_wake", lambda *message: heard.append(message[-1]))
        assert await pools.mark_spare(bench.connection, "p/a-0", spare=False)
        await eventually(lambda: heard, why="a notification")
        assert [json.loads(message)["executors"] for message in heard] == [[one]]
        assert not await pools.mark_spare(bench.connection, "p/a-0", spare=False), "it has no mark any more"
        assert len(await bench.take(one)) == 1

    async def test_the_mark_is_of_one_registration(self, bench) -> None:
        one, _ = await two_of_which_the_first_is_spare(bench)
        assert await spare_ones(bench) == {"p/a-0": True, "p/a-1": False}
        assert [found.state for found in await executors.list_executors(bench.connection)] == ["spare", "awake"]
        await bench.executor("p/a-0", gone=one)
        assert await spare_ones(bench) == {"p/a-0": False, "p/a-1": False}
        assert not await pools.mark_spare(bench.connection, "p/a-7", spare=True)


async def spare_ones(bench) -> dict[str, bool]:
    return {known.app_id: known.spare for known in await replicas(bench, "p/a-")}


async def two_of_which_the_first_is_spare(bench) -> tuple[int, int]:
    one = await bench.executor("p/a-0", lease=timedelta(minutes=1))
    another = await bench.executor("p/a-1", lease=timedelta(minutes=1))
    assert await pools.mark_spare(bench.connection, "p/a-0", spare=True)
    return one, another


class TestRetirement:
    async def test_nobody_registers_under_a_retired_app_id(self, bench) -> None:
        assert await pools.retire(bench.connection, "p/a-0", only_if_idle=True) == "retired"
        answer = await bench.register("p/a-0")
        assert answer.retired
        assert answer.id is None
        assert (await bench.register("p/a-1")).id is not None

    async def test_an_idle_executor_drains_and_takes_nothing_more(self, bench) -> None:
        executor = await bench.executor("p/a-0")
        assert await pools.retire(bench.connection, "p/a-0", only_if_idle=True) == "draining"
        await bench.submit()
        assert await bench.take(executor) == []

    async def test_a_busy_one_is_left_alone_where_only_idle_ones_are_wanted(self, bench) -> None:
        executor = await bench.executor("p/a-0")
        await bench.submit()
        await bench.submit()
        await bench.take(executor)
        assert await pools.retire(bench.connection, "p/a-0", only_if_idle=True) == "busy"
        assert len(await bench.take(executor)) == 1
        assert await replicas(bench, "p/a-") == [
            pools.Known("p/a-0", executor, None, 2, draining=False, spare=False, retired_at=None)
        ]

    async def test_one_is_busy_while_code_goes_on_whose_timeout_has_ended(self, bench) -> None:
        """It may be code in a thread: the pool counts its slot, and doesn't drain its executor as an idle one."""
        await bench.connection.execute("SELECT joex_client.set_timeout('a', '1h')")
        executor = await bench.executor("p/a-0")
        await bench.submit()
        job = await bench.take_one(executor)
        await bench.start(job)
        await bench.connection.execute("UPDATE joex_private.job SET overdue_at = now()")
        await timeouts.recover_overdue(bench.connection)
        assert await pools.retire(bench.connection, "p/a-0", only_if_idle=True) == "busy"
        (known,) = await replicas(bench, "p/a-")
        assert (known.held, known.draining) == (1, False)
        await bench.submit()
        await stats.set_group(bench.connection, "default", "default", max_running=2)
        assert (await demand(bench), await work(bench)) == (1, (1, 1))
        await executors.check_runs(bench.connection, executor, [])
        assert await pools.retire(bench.connection, "p/a-0", only_if_idle=True) == "draining"

    async def test_a_pool_reads_its_own_executors_only_among_those_of_many_pools(self, bench) -> None:
        await bench.connection.execute("""
            INSERT INTO joex_private.executor (id, app_id, host, pid, version, queues, tasks, pool_size, lease, locks)
            SELECT 1000 + n, format('p/%s-%s', chr(97 + n % 20), n / 20), 'h', 1, '1', '{default}', '{}', 1, '1 hour',
                   false
            FROM generate_series(0, 1999) n""")
        read = """
            SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_all_tables
            WHERE relid = 'joex_private.executor'::regclass"""
        async with bench.connection.transaction():
            before = await bench.connection.fetchval(read)
            assert len(await replicas(bench, "p/c-")) == 100
            assert await bench.connection.fetchval(read) - before == 100

    async def test_the_replicas_of_many_pools_are_read_by_one_statement(self, bench) -> None:
        """Each of hundreds of pools that share a queue reads those of all."""
        for name in ("p/a-0", "p/a-1", "p/a-b-0", "q/a-0"):
            await bench.executor(name)
        await pools.retire(bench.connection, "p/c-0", only_if_idle=True)
        async with bench.connection.transaction():
            await bench.connection.execute("SET LOCAL track_functions = 'all'")
            found = await pools.replicas(bench.connection, ["q/a-", "p/a-", "p/none-", "p/a-b-", "p/c-"])
            calls = "SELECT pg_stat_get_xact_function_calls('joex_private.replicas'::regproc)"
            assert await bench.connection.fetchval(calls) == 1
        assert [sorted(one.app_id for one in some) for some in found] == [
            ["q/a-0"],
            ["p/a-0", "p/a-1", "p/a-b-0"],
            [],
            ["p/a-b-0"],
            ["p/c-0"],
        ]

    async def test_one_with_a_busy_predecessor_is_left_alone_and_both_drain_where_that_is_wanted(self, bench) -> None:
        predecessor = await bench.executor("p/a-0")
        await bench.submit()
        await bench.take(predecessor)
        await executors.drain(bench.connection, "p/a-0")
        successor = (await bench.register("p/a-0", beside=[predecessor])).id
        assert await pools.retire(bench.connection, "p/a-0", only_if_idle=True) == "busy"
        found = {one.executor: (one.held, one.draining) for one in await replicas(bench, "p/a-")}
        assert found == {predecessor: (1, True), successor: (0, False)}
        assert await pools.retire(bench.connection, "p/a-0", only_if_idle=False) == "draining"
        assert [one.draining for one in await replicas(bench, "p/a-")] == [True, True]

    async def test_a_busy_one_drains_where_that_is_wanted(self, bench) -> None:
        executor = await bench.executor("p/a-0")
        await bench.submit()
        await bench.take(executor)
        assert await pools.retire(bench.connection, "p/a-0", only_if_idle=False) == "draining"
        (known,) = await replicas(bench, "p/a-")
        assert (known.held, known.draining) == (1, True)

    async def test_the_first_time_counts(self, bench) -> None:
        await pools.retire(bench.connection, "p/a-0", only_if_idle=True)
        (first,) = await replicas(bench, "p/a-")
        await pools.retire(bench.connection, "p/a-0", only_if_idle=False)
        assert await replicas(bench, "p/a-") == [first]

    async def test_what_was_retired_later_is_not_forgotten_by_a_late_word(self, bench) -> None:
        await pools.retire(bench.connection, "p/a-0", only_if_idle=True)
        (first,) = await replicas(bench, "p/a-")
        assert first.retired_at is not None
        assert await pools.forget_retired(bench.connection, "p/a-0", first.retired_at)
        assert not (await bench.register("p/a-0")).retired
        await pools.retire(bench.connection, "p/a-0", only_if_idle=True)
        assert not await pools.forget_retired(bench.connection, "p/a-0", first.retired_at)
        assert (await bench.register("p/a-0")).retired

    async def test_it_waits_for_a_take_that_is_under_way(self, bench, another_connection) -> None:
        executor = await bench.executor("p/a-0")
        await bench.submit()
        transaction = bench.connection.transaction()
        await transaction.start()
        assert len(await bench.take(executor)) == 1
        other = await another_connection()
        retiring = asyncio.create_task(pools.retire(other, "p/a-0", only_if_idle=True))
        watcher = await another_connection()
        await eventually(lambda: _waits(watcher, other), why="it waits for the take")
        await transaction.commit()
        assert await retiring == "busy"

    async def test_it_waits_for_a_registration_that_is_under_way(self, bench, another_connection) -> None:
        transaction = bench.connection.transaction()
        await transaction.start()
        await bench.executor("p/a-0")
        other = await another_connection()
        retiring = asyncio.create_task(pools.retire(other, "p/a-0", only_if_idle=True))
        watcher = await another_connection()
        await eventually(lambda: _waits(watcher, other), why="it waits for the registration")
        await transaction.commit()
        assert await retiring == "draining"

    async def test_a_name_with_the_same_beginning_is_another_pool_s(self, bench) -> None:
        await bench.executor("p/a-0")
        await bench.executor("q/a-0")
        await pools.retire(bench.connection, "p/b-7", only_if_idle=True)
        assert [known.app_id for known in await replicas(bench, "p/a-")] == ["p/a-0"]
        assert {known.app_id for known in await replicas(bench, "p/")} == {"p/a-0", "p/b-7"}


async def _waits(watcher: asyncpg.Connection, other: asyncpg.Connection) -> bool:
    query = "SELECT EXISTS (SELECT FROM pg_locks WHERE pid = $1 AND NOT granted)"
    return bool(await watcher.fetchval(query, other.get_server_pid()))


async def test_in_which_pods_an_executor_had_registered_whether_it_lives_or_not(bench) -> None:
    await bench.executor("p/a-0", pod_uid="pod-1")
    await bench.executor("p/a-1", pod_uid="pod-2")
    await pools.pod_gone(bench.connection, "pod-2")
    await bench.executor("p/a-2", pod_uid=None)
    assert await pools.registered_in(bench.connection, ["pod-1", "pod-2", "pod-3"]) == {"pod-1", "pod-2"}


async def test_an_executor_that_holds_a_suspect_is_full(bench) -> None:
    """It takes no other job in the suspect's first minute, so its free slots are no capacity."""
    executor = await bench.executor("p/a-0", pool_size=4)
    await bench.submit()
    await bench.take(executor)
    assert [known.held for known in await replicas(bench, "p/")] == [1]
    await bench.connection.execute("UPDATE joex_private.job SET suspect = true")
    assert [known.held for known in await replicas(bench, "p/")] == [4]
    await bench.connection.execute("UPDATE joex_private.job SET state = 'running', started_at = clock_timestamp()")
    assert [known.held for known in await replicas(bench, "p/")] == [4]
    await bench.connection.execute("UPDATE joex_private.job SET started_at = clock_timestamp() - interval '61 seconds'")
    assert [known.held for known in await replicas(bench, "p/")] == [1]


class TestGonePods:
    async def test_the_jobs_of_its_executor_move_on_at_once(self, bench) -> None:
        executor = await bench.executor("p/a-0", pod_uid="pod-1")
        job_id = await bench.submit()
        await bench.take(executor)
        assert await pools.pod_gone(bench.connection, "pod-1") == 1
        assert await pools.pod_gone(bench.connection, "pod-1") == 0
        job = await jobs.get_job(bench.connection, job_id)
        assert job is not None
        assert (job.state, job.losses) == ("waiting", 1)

    async def test_another_pod_under_the_same_app_id_is_not_meant(self, bench) -> None:
        await bench.executor("p/a-0", pod_uid="pod-2")
        assert await pools.pod_gone(bench.connection, "pod-1") == 0
        assert len(await executors.list_executors(bench.connection)) == 1


class TestWatch:
    @pytest.fixture
    async def heard(self, another_connection) -> list[dict[str, str]]:
        heard: list[dict[str, str]] = []
        connection = await another_connection()
        await connection.add_listener(CHANNEL, lambda *args: heard.append(json.loads(args[3])))
        return heard

    async def test_work_that_finds_nobody_asleep_is_told(self, bench, heard) -> None:
        await pools.watch(bench.connection, "p/a", ["default", "mail"], 60)
        await bench.submit(queue="mail")
        await eventually(lambda: heard == [{"queue": "mail"}])

    async def test_it_is_not_told_where_somebody_sleeps(self, bench, heard) -> None:
        executor = await bench.executor("x")
        await executors.fall_asleep(bench.connection, executor)
        await pools.watch(bench.connection, "p/a", ["default"], 60)
        await bench.submit()
        await bench.submit(queue="other")
        await bench.connection.execute("SELECT pg_notify($1, '{}')", CHANNEL)
        await eventually(lambda: heard != [])
        assert heard == [{}]

    async def test_work_left_over_by_an_executor_that_has_no_replica_free_is_told(self, bench, heard) -> None:
        executor = await bench.executor("x")
        await executors.fall_asleep(bench.connection, executor)
        await pools.watch(bench.connection, "p/a", ["default"], 60)
        for _ in range(3):
            await bench.submit()
        await bench.take(executor, 2)
        await eventually(lambda: heard == [{"queue": "default"}])

    @pytest.mark.parametrize("seconds", [0, -1])
    async def test_one_that_is_over_is_silent(self, bench, heard, seconds) -> None:
        await pools.watch(bench.connection, "p/a", ["default"], 60)
        await pools.watch(bench.connection, "p/a", ["default"], seconds)
        await bench.submit()
        await bench.connection.execute("SELECT pg_notify($1, '{}')", CHANNEL)
        await eventually(lambda: heard != [])
        assert heard == [{}]

    async def test_an_old_snapshot_can_not_know_and_so_tells(self, bench, heard, another_connection) -> None:
        async with bench.connection.transaction(isolation="repeatable_read"):
            await bench.connection.fetchval("SELECT 1")
            await pools.watch(await another_connection(), "p/a", ["default"], 60)
            await bench.submit()
        await eventually(lambda: heard == [{"queue": "default"}])

    async def test_executors_that_come_and_go_are_told(self, bench, heard) -> None:
        await pools.watch(bench.connection, "p/a", ["default"], 60)
        executor = await bench.executor("p/a-0")
        await pools.retire(bench.connection, "p/a-0", only_if_idle=True)
        await executors.leave(bench.connection, executor)
        await eventually(lambda: heard == [{"executor": "p/a-0"}] * 3)

    async def test_a_submission_under_way_is_older_than_the_horizon(self, bench, another_connection) -> None:
        open_transaction = await another_connection()
        transaction = open_transaction.transaction()
        await transaction.start()
        await open_transaction.execute("SELECT joex.submit('a')")
        await pools.watch(bench.connection, "p/a", ["default"], 60)
        horizon = await take_horizon(bench.connection)
        assert await oldest_transaction(bench.connection) < horizon
        await transaction.commit()
        assert await oldest_transaction(bench.connection) >= horizon

    async def test_a_transaction_that_has_locked_a_watch_that_is_over_stops_none(self, bench, another_connection):
        await pools.watch(bench.connection, "p/a", ["default"], 1)
        await bench.connection.execute("UPDATE joex_private.watch SET until = until - interval '2 hours'")
        other = await another_connection()
        async with other.transaction():
            await pools.watch(other, "p/a", ["default"], 1)
            await bench.connection.execute("SET lock_timeout = '1s'")
            await pools.watch(bench.connection, "p/b", ["default"], 60)
            await bench.connection.execute("SELECT joex_client.watch_for_workers('w', 'default', '1 minute')")
        await bench.connection.execute(
            "UPDATE joex_private.watch SET until = until - interval '2 hours' WHERE name <> 'p/b'"
        )
        await pools.watch(bench.connection, "p/b", ["default"], 60)
        names = await bench.connection.fetch("SELECT name FROM joex_private.watch ORDER BY name")
        assert [row["name"] for row in names] == ["p/b"]

    @pytest.mark.parametrize("call", ["submit('a')", "why(joex.submit('a'))"])
    async def test_a_submission_reads_no_watches_that_are_over_and_none_of_workers_for_operators(self, bench, call):
        """A role that may work in a queue can make any number."""
        await bench.connection.execute(MANY_WATCHES)
        async with bench.connection.transaction():
            before = await bench.connection.fetchval(READ_OF_WATCHES)
            await bench.connection.execute(f"SELECT joex.{call}")
            assert await bench.connection.fetchval(READ_OF_WATCHES) - before <= 10

    async def test_a_watch_reads_a_bounded_number_of_others(self, bench, another_connection):
        """Also while a transaction that has deleted those that are over stays open."""
        await bench.connection.execute(MANY_WATCHES)
        other = await another_connection()
        async with other.transaction(), bench.connection.transaction():
            await other.execute("DELETE FROM joex_private.watch WHERE until < now()")
            by_name = "SELECT pg_stat_get_xact_blocks_fetched('joex_private.watch_pkey'::regclass)"
            before, blocks = [await bench.connection.fetchval(sql) for sql in (READ_OF_WATCHES, by_name)]
            await pools.watch(bench.connection, "p/b", ["default"], 60)
            for duration in ("1 minute", "0"):
                await bench.connection.execute(f"SELECT joex_client.watch_for_workers('w', 'other', '{duration}')")
            assert await bench.connection.fetchval(READ_OF_WATCHES) - before <= 2000 + 20
            assert await bench.connection.fetchval(by_name) - blocks <= 20

    async def test_a_submission_planned_beside_few_watches_reads_few_of_many(self, bench, another_connection):
        """A worker may make them, for its queue, in a transaction that stays open: nothing tells the server then."""
        await bench.connection.execute("SELECT joex_client.watch_for_workers('w', 'other', '1 hour')")
        await bench.connection.execute("ANALYZE joex_private.watch")
        for _ in range(10):
            await bench.submit()
        other, made = (
            await another_connection(),
            "SELECT joex_client.watch_for_workers('w' || $1::int, 'other', '1 hour')",
        )
        async with other.transaction(), bench.connection.transaction():
            await other.executemany(made, [(nr,) for nr in range(2000)])
            before = await bench.connection.fetchval(FETCHED_OF_WATCHES)
            await bench.submit()
            assert await bench.connection.fetchval(FETCHED_OF_WATCHES) - before <= 10


MANY_WATCHES = """
    INSERT INTO joex_private.watch (queue, name, until, for_workers)
    SELECT 'default', 'w' || nr, clock_timestamp() + make_interval(hours => CASE WHEN nr > 5000 THEN 1 ELSE -2 END),
           nr % 2 = 0 OR nr > 5000
    FROM generate_series(1, 10000) nr;
    ANALYZE joex_private.watch
"""
READ_OF_WATCHES = """
    SELECT sum(pg_stat_get_xact_tuples_returned(r))::bigint FROM (
        SELECT indexrelid AS r FROM pg_index WHERE indrelid = 'joex_private.watch'::regclass
        UNION ALL SELECT 'joex_private.watch'::regclass) x
"""
FETCHED_OF_WATCHES = READ_OF_WATCHES.replace("tuples_returned", "blocks_fetched")  # those of others' transactions, too


def step(pool: str = "docs", *, namespace: str = "prod", home: str | None = None, **more: Any) -> pools.NewPoolStep:
    """A step of a pool."""
    fields: dict[str, Any] = {
        "before": 0, "target": 2, "ready": 0, "draining": 0, "mode": "demand", "why": "38 jobs", "wanted": 2,
        "capped_by": None, "runnable": 38, "held": 0, "next_due": None, **more,
    }  # fmt: skip
    return pools.NewPoolStep(namespace, home or namespace, pool, **fields)


async def steps(bench, pool: str = "docs", home: str = "prod") -> list[pools.PoolStep]:
    return await pools.list_steps(bench.connection, home, pool, most=10_000)


async def make_older(bench, age: str, pool: str = "docs") -> None:
    await bench.connection.execute(
        "UPDATE joex_private.pool_step SET at = at - $1::text::interval WHERE pool = $2", age, pool
    )


class TestSteps:
    async def test_a_step_is_kept_with_its_numbers_and_its_reason(self, bench) -> None:
        assert await pools.note_step(bench.connection, step(capped_by="scaleUp", next_due=60.0))
        [found] = await steps(bench)
        now = await bench.connection.fetchval("SELECT clock_timestamp()")
        assert timedelta(0) <= now - found.at < timedelta(minutes=5)
        assert found.next_due is not None
        assert timedelta(seconds=59) < found.next_due - found.at < timedelta(seconds=61)
        kept = pools.NewPoolStep(*(getattr(found, name) for name in pools.NewPoolStep.__slots__))
        assert kept == step(capped_by="scaleUp", next_due=found.next_due)

    async def test_a_step_that_changes_nothing_is_not_kept_though_the_work_changes(self, bench) -> None:
        other: dict[str, Any] = {"runnable": 40, "held": 3, "why": "43 jobs", "wanted": 3, "next_due": 5.0}
        for made in (step(), step(**other)):
            assert await pools.note_step(bench.connection, made)
        assert [found.runnable for found in await steps(bench)] == [38]

    @pytest.mark.parametrize("change", ["before", "target", "ready", "draining", "mode", "capped_by"])
    async def test_a_step_that_changes_a_size_or_the_kind_of_its_reason_is_kept(self, bench, change: str) -> None:
        other: Any = "fixed" if change in ("mode", "capped_by") else 7
        for made in (step(), step(**{change: other}), step()):
            assert await pools.note_step(bench.connection, made)
        assert [getattr(found, change) == other for found in await steps(bench)] == [False, True, False]
        assert [found.nr for found in await steps(bench)] == [3, 2, 1]

    async def test_a_step_that_lasts_is_noted_again_before_it_would_be_forgotten(self, bench) -> None:
        await pools.note_step(bench.connection, step())
        await make_older(bench, "13 hours")
        assert await pools.note_step(bench.connection, step(why="still"))
        assert [found.why for found in await steps(bench)] == ["still", "38 jobs"]

    async def test_pools_of_one_name_in_two_namespaces_have_their_own_steps(self, bench) -> None:
        for namespace in ("prod", "test"):
            await pools.note_step(bench.connection, step(namespace=namespace, why=namespace))
        await pools.note_step(bench.connection, step(target=3, why="more"))
        await pools.note_step(bench.connection, step("other"))
        found = await pools.list_pools(bench.connection)
        assert [(one.namespace, one.pool, one.why) for one in found] == [
            ("prod", "docs", "more"), ("prod", "other", "38 jobs"), ("test", "docs", "test"),
        ]  # fmt: skip
        assert [one.namespace for one in await pools.list_pools(bench.connection, "docs")] == ["prod", "test"]

    async def test_pools_of_two_clusters_with_namespaces_of_one_name_have_their_own_steps(self, bench) -> None:
        for home in ("prod.aaaaaaaa", "prod.bbbbbbbb"):
            await pools.note_step(bench.connection, step(home=home, why=home))
        assert [(one.namespace, one.home) for one in await pools.list_pools(bench.connection)] == [
            ("prod", "prod.aaaaaaaa"), ("prod", "prod.bbbbbbbb"),
        ]  # fmt: skip
        [found] = await steps(bench, home="prod.bbbbbbbb")
        assert (found.why, found.nr) == ("prod.bbbbbbbb", 1)

    async def test_of_two_operators_at_once_one_writes_and_the_other_learns_that_it_came_second(
        self, bench, another_connection, waiting_for_a_lock
    ) -> None:
        await pools.note_step(bench.connection, step())
        other, observer = await another_connection(), await another_connection()
        first = bench.connection.transaction()
        await first.start()
        assert await pools.note_step(bench.connection, step(target=3))
        async with waiting_for_a_lock(observer, pools.note_step(other, step(target=4))) as second:
            await first.commit()
        assert await second is False
        assert [found.target for found in await steps(bench)] == [3, 2]
        assert await pools.note_step(other, step(target=4))
        assert [found.target for found in await steps(bench)] == [4, 3, 2]

    async def test_a_step_is_forgotten_after_a_day_also_of_a_pool_that_is_gone(self, bench) -> None:
        await pools.note_step(bench.connection, step("gone"))
        await make_older(bench, "25 hours", "gone")
        assert await steps(bench, "gone") == []
        await pools.note_step(bench.connection, step())
        assert await bench.connection.fetchval("SELECT array_agg(pool) FROM joex_private.pool_step") == ["docs"]

    async def test_maintenance_forgets_steps_where_no_operator_writes_any_more(self, bench) -> None:
        await pools.note_step(bench.connection, step("gone"))
        await make_older(bench, "25 hours", "gone")
        await pools.note_step(bench.connection, step("late"))
        await pools.forget_steps(bench.connection)
        assert await bench.connection.fetchval("SELECT array_agg(pool) FROM joex_private.pool_step") == ["late"]

    async def test_at_most_five_thousand_steps_of_a_pool_are_kept_and_a_call_deletes_few(self, bench) -> None:
        await bench.connection.execute("""
            INSERT INTO joex_private.pool_step
                (namespace, home, pool, nr, before, target, ready, draining, mode, why, runnable, held)
            SELECT 'prod', 'prod', pool, nr, nr, 1, 0, 0, 'demand', '', 0, 0
            FROM generate_series(1, 5150) nr, unnest('{docs,other}'::text[]) pool""")
        for target, kept in ((2, 5051), (3, 5000), (4, 5000)):
            await pools.note_step(bench.connection, step(target=target))
            assert len(await steps(bench)) == kept
        assert [found.target for found in await steps(bench)][:4] == [4, 3, 2, 1]
        assert len(await steps(bench, "other")) == 5150

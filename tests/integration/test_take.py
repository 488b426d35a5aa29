"""Taking jobs: fair, jointly over all executors, and never stopped by a job that no executor can take.

tests/property/test_take_matches_specification.py compares the whole rule with its specification.
"""

import asyncio
from collections import Counter
from datetime import UTC, datetime
from itertools import pairwise, product
from typing import Any

import pytest

from joex import NewJob, Priority
from joex.core.fairness import Cursor, Group
from joex.core.fairness import take as specified
from joex.core.priority_turns import CountingScheme
from joex.errors import LeaseLost
from joex.store import jobs, runs, stats

pytestmark = pytest.mark.postgres(16, 18)


async def submit_each(bench, **counts):
    """Submit this many jobs of each group."""
    await jobs.submit_many(
        bench.connection, [NewJob("a", group=group) for group, count in counts.items() for _ in range(count)]
    )


def by_group(taken):
    return Counter(job.group for job in taken)


async def test_no_lock_id_of_a_take_can_be_told_from_another(bench):
    """They have no part in common, which the next take would share, nor one that counts."""
    await submit_each(bench, acme=100)
    locks = [job.lock_id.hex for job in await bench.take(await bench.executor(), 100)]
    assert len(locks) == 100
    for begin in range(0, 32, 8):
        assert len({lock[begin : begin + 8] for lock in locks}) == 100
    steps = [abs(int(one, 16) - int(other, 16)) for one, other in pairwise(locks)]
    assert min(steps) > 2**64


async def test_a_taken_job_carries_all_that_its_run_needs(bench):
    job_id = await bench.submit(
        "acme", "high", task="mail.send", args={"to": "x"}, subject="letter", submitter="web", retries=3
    )
    [job] = await bench.take(await bench.executor("me"))
    assert (job.id, job.task, job.args) == (job_id, "mail.send", '{"to": "x"}')
    assert (job.queue, job.group, job.priority) == ("default", "acme", "high")
    assert (job.subject, job.submitter) == ("letter", "web")
    assert (job.attempt, job.failures, job.retries) == (0, 0, 3)
    stored = await bench.job(job_id)
    assert (stored.state, stored.app_id) == ("scheduled", "me")
    assert stored.scheduled_at is not None


async def test_no_more_jobs_are_taken_than_there_are_free_slots_and_none_when_there_is_none(bench):
    await submit_each(bench, a=5)
    executor = await bench.executor()
    assert await bench.take(executor, 0) == []
    assert [len(await bench.take(executor, 3)) for _ in range(3)] == [3, 2, 0]


async def test_a_job_is_taken_by_one_executor_alone_however_many_try(bench, another_connection):
    await submit_each(bench, **{f"g{nr}": 10 for nr in range(6)})

    takers: list[Any] = [(await bench.executor(f"e{nr}"), await another_connection(), []) for nr in range(6)]

    async def work(executor, connection, mine):
        while taken := await runs.take(connection, executor, ["default"], 3, CountingScheme(4, 1)):
            mine += taken

    await asyncio.gather(*(work(*taker) for taker in takers))
    taken = [job.id for _, _, mine in takers for job in mine]
    assert len(taken) == len(set(taken)) == 60
    assert len({job.lock_id for _, _, mine in takers for job in mine}) == 60


async def test_a_new_groups_first_job_comes_within_one_round_of_a_long_backlog(bench):
    await submit_each(bench, a=50, b=50, c=50)
    executor = await bench.executor()
    for job in await bench.take(executor, 7):
        await bench.finish(job)
    await submit_each(bench, new=1)
    following = []
    for _ in range(4):
        job = await bench.take_one(executor)
        await bench.finish(job)
        following.append(job.group)
    assert "new" in following


async def test_the_round_is_one_for_all_executors_of_a_queue(bench):
    await submit_each(bench, a=10, b=10, c=10)
    one, two = await bench.executor("one"), await bench.executor("two")
    taken = [await bench.take_one(executor) for executor in [one, two] * 6]
    assert [len(set(part)) for part in zip(*[iter([job.group for job in taken])] * 3, strict=True)] == [3] * 4


async def test_a_group_with_long_jobs_keeps_no_more_than_its_share_of_the_slots(bench):
    await submit_each(bench, long=20, short=100)
    executors = [await bench.executor("one"), await bench.executor("two")]
    held: dict[int, list] = {executor: [] for executor in executors}
    for _ in range(8):
        for executor in executors:
            held[executor] += await bench.take(executor, 4 - len(held[executor]))
            assert len(held[executor]) == 4
            assert by_group(job for jobs in held.values() for job in jobs)["long"] <= 4
            for job in [job for job in held[executor] if job.group == "short"]:
                await bench.finish(job)
                held[executor].remove(job)


async def test_a_take_counts_what_has_committed_before_it_chooses_and_nothing_else(bench, another_connection):
    """Four takes of one slot, in all 24 orders of their commits: take n commits before take ``commits[n]`` chooses."""
    ids = [await bench.executor(f"e{number}") for number in range(4)]
    connections = [await another_connection() for _ in ids]
    places = dict(await bench.connection.fetch("SELECT g, joex_private.ring(g) FROM unnest('{a,b}'::text[]) g"))
    names = {place: name for name, place in places.items()}
    found = set()
    for commits in product(range(1, 5), range(2, 5), range(3, 5)):
        await bench.connection.execute("DELETE FROM joex_private.job")
        await submit_each(bench, a=4, b=4)
        last = await bench.connection.fetchval(
            "SELECT pg_sequence_last_value(cursor) FROM joex_private.queue WHERE name = 'default'"
        )
        cursor = Cursor(-(2**63) if last is None else last >> 8, 0 if last is None else last & 255)
        left = dict.fromkeys(places, 4)
        taken: list[str] = []
        open_takes: dict[int, Any] = {}
        for nr, (executor, connection) in enumerate(zip(ids, connections, strict=True)):
            for earlier in [one for one in open_takes if commits[one] == nr]:
                await open_takes.pop(earlier).commit()
            counted = Counter(taken[one] for one in range(nr) if one not in open_takes)
            groups = [Group(place, low=[place] * left[name], running=counted[name]) for name, place in places.items()]
            [chosen], cursor = specified(groups, cursor, 1, CountingScheme(4, 1))
            open_takes[nr] = connection.transaction()
            await open_takes[nr].start()
            [job] = await runs.take(connection, executor, ["default"], 1, CountingScheme(4, 1))
            assert job.group == names[chosen], (commits, nr)
            taken.append(job.group)
            left[job.group] -= 1
        for transaction in open_takes.values():
            await transaction.commit()
        shares = tuple(sorted(Counter(taken).values()))
        assert shares == (2, 2) or commits != (1, 2, 3)
        found.add(shares)
    assert found == {(2, 2), (1, 3)}  # it lags by the takes that commit meanwhile


async def test_a_take_that_has_waited_for_its_turn_counts_what_has_committed_meanwhile(
    bench, another_connection, waiting_for_a_lock
):
    one, two = await bench.executor("one"), await bench.executor("two")
    first, second, observer = await another_connection(), await another_connection(), await another_connection()
    await submit_each(bench, a=4, b=4)
    [served] = await bench.take(one)
    transaction = first.transaction()
    await transaction.start()
    [job] = await runs.take(first, one, ["default"], 1, CountingScheme(4, 1))
    assert job.group != served.group
    await bench.connection.execute("SELECT pg_advisory_lock(joex_private.ring_lock(), hashtext('default'))")
    waiting = runs.take(second, two, ["default"], 1, CountingScheme(4, 1))
    async with waiting_for_a_lock(observer, waiting) as task:
        await transaction.commit()
        await bench.connection.execute("SELECT pg_advisory_unlock(joex_private.ring_lock(), hashtext('default'))")
    [job] = await task
    # (Both groups hold one now. A take that did not count the other one would serve the same group.)
    assert job.group == served.group


async def test_a_lonely_group_has_all_slots(bench):
    await submit_each(bench, a=20)
    assert len(await bench.take(await bench.executor(), 16)) == 16


async def test_slots_are_shared_by_weight(bench):
    await submit_each(bench, a=20, b=20)
    await stats.set_group(bench.connection, "a", "default", weight=3)
    assert by_group(await bench.take(await bench.executor(), 8)) == {"a": 6, "b": 2}


async def test_a_change_of_weight_holds_from_the_next_take_on(bench):
    await submit_each(bench, a=40, b=40)
    executor = await bench.executor()
    assert by_group(await bench.take(executor, 8)) == {"a": 4, "b": 4}
    await stats.set_group(bench.connection, "b", "default", weight=3)
    assert by_group(await bench.take(executor, 8)) == {"b": 8}


async def test_nothing_of_a_paused_group_is_taken_until_it_goes_on(bench):
    await submit_each(bench, a=2, b=2)
    executor = await bench.executor()
    await stats.set_group(bench.connection, "a", "default", paused=True)
    assert by_group(await bench.take(executor, 10)) == {"b": 2}
    await stats.set_group(bench.connection, "a", "default", paused=False)
    assert by_group(await bench.take(executor, 10)) == {"a": 2}


async def test_a_group_runs_no_more_jobs_than_its_limit_over_all_executors(bench):
    await submit_each(bench, a=10, b=1)
    await stats.set_group(bench.connection, "a", "default", max_running=2)
    one, two = await bench.executor("one"), await bench.executor("two")
    taken = await bench.take(one, 4)
    assert by_group(taken) == {"a": 2, "b": 1}
    assert await bench.take(two, 4) == []
    await bench.finish(next(job for job in taken if job.group == "a"))
    assert by_group(await bench.take(two, 4)) == {"a": 1}
    await stats.set_group(bench.connection, "a", "default", max_running=-1)
    assert by_group(await bench.take(two, 4)) == {"a": 4}


async def test_a_group_in_which_retries_and_both_priorities_wait_keeps_to_its_limit_too(bench):
    executor = await bench.executor()
    stuck = await bench.job_in("stuck", executor, group="a")
    await jobs.retry(bench.connection, stuck)
    await bench.submit("a", "high")
    await bench.submit("a", "low")
    await stats.set_group(bench.connection, "a", "default", max_running=1)
    assert [job.id for job in await bench.take(executor, 3)] == [stuck]


async def test_the_limit_holds_while_another_executors_take_has_not_committed_yet(
    bench, another_connection, waiting_for_a_lock
):
    await submit_each(bench, a=5)
    await stats.set_group(bench.connection, "a", "default", max_running=1)
    one, two = await bench.executor("one"), await bench.executor("two")
    connection, observer = await another_connection(), await another_connection()
    transaction = bench.connection.transaction()
    await transaction.start()
    assert len(await bench.take(one, 4)) == 1
    second = runs.take(connection, two, ["default"], 4, CountingScheme(4, 1))
    async with waiting_for_a_lock(observer, second) as task:
        await transaction.commit()
    assert len(await task) == 0


async def test_a_limit_of_nothing_is_a_pause(bench):
    await submit_each(bench, a=1)
    await stats.set_group(bench.connection, "a", "default", max_running=0)
    assert await bench.take(await bench.executor(), 4) == []


async def test_settings_of_a_group_hold_in_their_queue_alone(bench):
    await bench.submit("a")
    await stats.set_group(bench.connection, "a", "other", paused=True)
    assert len(await bench.take(await bench.executor())) == 1


async def test_within_a_group_retries_come_first_then_priorities_by_turns_then_age(bench):
    executor = await bench.executor()
    stuck = await bench.job_in("stuck", executor)
    lows = [await bench.submit(priority="low") for _ in range(4)]
    highs = [await bench.submit(priority="high") for _ in range(4)]
    await bench.connection.execute("UPDATE joex_private.job SET due_at = clock_timestamp() WHERE due_at IS NOT NULL")
    taken = [job.id for job in await bench.take(executor, 20, CountingScheme(2, 1))]
    assert taken == [stuck, highs[0], highs[1], lows[0], highs[2], highs[3], lows[1], lows[2], lows[3]]


async def test_a_take_that_stays_open_keeps_nobody_from_a_group_in_which_both_priorities_wait(
    bench, another_connection
):
    for priority in ("high", "low") * 10:
        await bench.submit(priority=priority)
    executor, other = await bench.executor(), await another_connection()
    position = "SELECT position FROM joex_private.priority_turns ORDER BY at"
    await bench.take(executor, 1)
    async with other.transaction():
        assert len(await runs.take(other, executor, ["default"], 2, CountingScheme(4, 1))) == 2
        assert len(await bench.take(executor, 3)) == 3
    # The later one counts. The next maintenance removes the rows of the other.
    assert [row[0] for row in await bench.connection.fetch(position)] == [3, 4]
    await runs.forget_turns(bench.connection)
    assert [row[0] for row in await bench.connection.fetch(position)] == [4]


@pytest.mark.parametrize("batch", [1, 3, 20])
async def test_the_ratio_of_priorities_holds_in_each_group_of_many_however_much_is_taken_at_once(bench, batch):
    await jobs.submit_many(
        bench.connection,
        [NewJob("a", group=f"g{nr % 5}", priority=p) for p in (Priority.LOW, Priority.HIGH) for nr in range(50)],
    )
    executor = await bench.executor()
    taken: list[Any] = []
    while len(taken) < 40:
        batch_taken = await bench.take(executor, batch)
        taken += batch_taken
        for job in batch_taken:
            await bench.finish(job)
    for group in range(5):
        priorities = [job.priority for job in taken if job.group == f"g{group}"]
        assert priorities == (["high"] * 4 + ["low"]) * (len(priorities) // 5) + ["high"] * (len(priorities) % 5)


async def test_where_only_one_priority_waits_it_is_taken(bench):
    await bench.submit(priority="low")
    await bench.submit(priority="low")
    assert len(await bench.take(await bench.executor(), 5)) == 2


async def test_a_retry_that_is_not_due_is_left_and_one_that_is_due_is_taken_by_anybody(bench):
    one, two = await bench.executor("one"), await bench.executor("two")
    job_id = await bench.job_in("stuck", one)
    assert await bench.take(two) == []
    await bench.connection.execute("UPDATE joex_private.job SET due_at = clock_timestamp()")
    assert [job.id for job in await bench.take(two)] == [job_id]


async def test_more_due_retries_than_are_promoted_at_once_are_all_taken_in_the_end(bench):
    await jobs.submit_many(
        bench.connection, [NewJob("a", not_before=datetime(2100, 1, 1, tzinfo=UTC)) for _ in range(1200)]
    )
    await bench.connection.execute("UPDATE joex_private.job SET due_at = clock_timestamp()")
    executor, taken = await bench.executor(), []
    while batch := await bench.take(executor, 1000):
        taken += batch
    assert len(taken) == 1200


async def test_only_the_queues_that_an_executor_names_are_served_the_first_one_first(bench):
    for queue in ("a", "b", "c"):
        for _ in range(2):
            await bench.submit(queue=queue)
    executor = await bench.executor(queues=["a", "b"])
    taken = await runs.take(bench.connection, executor, ["b", "a"], 3, CountingScheme(4, 1))
    assert [job.queue for job in taken] == ["b", "b", "a"]
    taken = await runs.take(bench.connection, executor, ["b", "a", "nowhere"], 3, CountingScheme(4, 1))
    assert [job.queue for job in taken] == ["a"]


async def test_a_job_whose_row_somebody_holds_is_passed_over_and_nobody_waits(bench, another_connection):
    first, second = await bench.submit(), await bench.submit()
    executor, other = await bench.executor(), await another_connection()
    async with other.transaction():
        await other.execute("SELECT FROM joex_private.job WHERE id = $1 FOR UPDATE", first)
        assert [job.id for job in await bench.take(executor, 5)] == [second]
    assert [job.id for job in await bench.take(executor, 5)] == [first]


async def test_a_submitters_open_transaction_stops_nobody(bench, another_connection, client):
    other = await another_connection()
    async with other.transaction():
        await client.submit("a", group="slow", connection=other)
        visible = await bench.submit("quick")
        assert [job.id for job in await bench.take(await bench.executor(), 5)] == [visible]


@pytest.mark.parametrize("free", [1, 2, 4])
@pytest.mark.parametrize("locked", ["high", "low", "due"])
async def test_locked_jobs_whose_turn_it_is_leave_their_turns_to_the_others_of_the_group(
    bench, another_connection, locked, free
):
    """By the scheme 4,1 the next four turns are for high jobs; after four of them, the next one is for a low job."""
    executor, other = await bench.executor(), await another_connection()
    jobs = {
        "high": [await bench.submit(priority="high") for _ in range(3 if locked == "high" else 20)],
        "low": [await bench.submit(priority="low") for _ in range(1 if locked == "low" else 20)],
        "due": [],
    }
    if locked == "low":
        assert {job.priority for job in await bench.take(executor, 4)} == {"high"}
    if locked == "due":
        jobs["due"] = [jobs["low"].pop()]
        await bench.connection.execute(
            "UPDATE joex_private.job SET state = 'stuck', lane = 0 WHERE id = ANY ($1)", jobs["due"]
        )
    async with other.transaction():
        await other.execute("SELECT FROM joex_private.job WHERE id = ANY ($1) FOR UPDATE", jobs[locked])
        for _ in range(3):
            assert len(await bench.take(executor, free)) == free


async def test_a_take_beside_locked_jobs_locks_only_what_it_takes(bench, another_connection):
    executor, other, third = await bench.executor(), await another_connection(), await another_connection()
    due = [await bench.submit() for _ in range(3)]
    await bench.connection.execute("UPDATE joex_private.job SET state = 'stuck', lane = 0 WHERE id = ANY ($1)", due)
    for priority in ("high", "low"):
        for _ in range(5):
            await bench.submit(priority=priority)
    async with other.transaction(), bench.connection.transaction():
        await other.execute("SELECT FROM joex_private.job WHERE id = ANY ($1) FOR UPDATE", due)
        assert len(await bench.take(executor, 4)) == 4
        others = await third.fetch("SELECT FROM joex_private.job WHERE lane IS NOT NULL FOR UPDATE SKIP LOCKED")
        assert len(others) == 10 - 4


async def test_an_executor_that_was_declared_dead_takes_nothing_and_is_told_so(bench):
    await bench.submit()
    executor = await bench.executor()
    await bench.connection.execute("SELECT joex_private.end_executor($1, 'dead')", executor)
    for nobody in (executor, 4711):
        with pytest.raises(LeaseLost, match=f"the lease of executor {nobody} has ended"):
            await bench.take(nobody)


async def test_a_take_that_fails_leaves_neither_jobs_taken_nor_the_ring_locked(bench, another_connection):
    await submit_each(bench, a=3)
    executor = await bench.executor()
    await bench.connection.execute("""
        CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'disk full'; END $$;
        CREATE TRIGGER fail BEFORE UPDATE ON joex_private.job FOR EACH ROW EXECUTE FUNCTION fail()""")
    with pytest.raises(Exception, match="disk full"):
        await bench.take(executor)
    await bench.connection.execute("DROP TRIGGER fail ON joex_private.job")
    assert len(await runs.take(await another_connection(), executor, ["default"], 5, CountingScheme(4, 1))) == 3


async def test_a_take_that_is_cancelled_while_it_waits_leaves_the_ring_free(bench, another_connection):
    await submit_each(bench, a=1)
    executor, other = await bench.executor(), await another_connection()
    await other.execute("SELECT pg_advisory_lock(joex_private.ring_lock(), hashtext('default'))")
    await bench.connection.execute("SET statement_timeout = '50ms'")
    with pytest.raises(Exception, match="statement timeout"):
        await bench.take(executor)
    await bench.connection.execute("RESET statement_timeout")
    await other.execute("SELECT pg_advisory_unlock_all()")
    assert len(await bench.take(executor)) == 1
    third = await another_connection()
    assert await third.fetchval("SELECT pg_try_advisory_lock(joex_private.ring_lock(), hashtext('default'))")


async def test_an_executor_that_fills_its_slots_and_leaves_work_wakes_the_next(bench, another_connection):
    await submit_each(bench, a=3)
    full, asleep = await bench.executor("full"), await bench.executor("asleep")
    listener = await another_connection()
    heard = asyncio.get_running_loop().create_future()
    await listener.add_listener("joex_wake", lambda *arguments: heard.set_result(arguments[-1]))
    await bench.connection.execute("SELECT joex_private.fall_asleep($1)", asleep)
    await bench.take(full, 2)
    assert f'"executors" : [{asleep}]' in await asyncio.wait_for(heard, 30)


async def test_an_executor_that_fills_its_slots_from_one_queue_wakes_the_next_for_another(bench, another_connection):
    """The wake-up for both queues may have reached it alone."""
    await bench.submit()
    await bench.submit(queue="other")
    full, asleep = await bench.executor("full"), await bench.executor("asleep", queues=["other"])
    listener = await another_connection()
    heard = asyncio.get_running_loop().create_future()
    await listener.add_listener("joex_wake", lambda *arguments: heard.set_result(arguments[-1]))
    await bench.connection.execute("SELECT joex_private.fall_asleep($1)", asleep)
    [job] = await runs.take(bench.connection, full, ["default", "other"], 1, CountingScheme(4, 1))
    assert job.queue == "default"
    assert f'"queue" : "other", "executors" : [{asleep}]' in await asyncio.wait_for(heard, 30)


async def test_an_executor_that_fills_its_slots_is_asleep_no_more_and_one_with_a_free_slot_still_is(bench):
    executor = await bench.executor()
    asleep = "SELECT count(*) = 1 FROM joex_private.asleep"
    await bench.connection.execute("SELECT joex_private.fall_asleep($1)", executor)
    await submit_each(bench, a=3)
    await bench.take(executor, 2)
    assert not await bench.connection.fetchval(asleep)
    await bench.connection.execute("SELECT joex_private.fall_asleep($1)", executor)
    await bench.take(executor, 2)
    assert await bench.connection.fetchval(asleep)


async def test_a_thousand_groups_are_served_once_each_before_any_is_served_twice(bench):
    await submit_each(bench, **{f"g{nr}": 2 for nr in range(1000)})
    executor, groups = await bench.executor(), []
    for _ in range(10):
        taken = await bench.take(executor, 100)
        groups += [job.group for job in taken]
        for job in taken:
            await bench.finish(job)
    assert len(groups) == len(set(groups)) == 1000


async def test_paused_groups_by_the_thousand_stop_nobody(bench):
    await submit_each(bench, **{f"g{nr}": 1 for nr in range(1000)}, free=1)
    await bench.connection.execute("""
        INSERT INTO joex_private.group_setting (queue, grp, ring, paused)
        SELECT 'default', 'g' || nr, joex_private.ring('g' || nr), true
        FROM generate_series(0, 999) nr""")
    assert by_group(await bench.take(await bench.executor(), 4)) == {"free": 1}


async def test_groups_at_their_limit_by_the_thousand_stop_nobody(bench):
    """Their locks must not fill the server's lock table. To ask for the room of each took longer than all else."""
    executor = await bench.executor()
    await bench.connection.execute(
        """
        INSERT INTO joex_private.job (grp, task, state, lane, executor_id, lock_id)
        SELECT 'g' || nr, 'a', CASE WHEN is_held THEN 'running' ELSE 'waiting' END::joex_private.job_state,
               CASE WHEN NOT is_held THEN 2 END, CASE WHEN is_held THEN $1::integer END, gen_random_uuid()
        FROM generate_series(1, 5000) nr, unnest(ARRAY[true, false]) is_held
        """,
        executor,
    )
    await bench.connection.execute("""
        INSERT INTO joex_private.group_setting (queue, grp, ring, max_running)
        SELECT 'default', 'g' || nr, joex_private.ring('g' || nr), nr % 2
        FROM generate_series(1, 5000) nr""")
    await submit_each(bench, free=1)
    async with bench.connection.transaction():
        await bench.connection.execute("SET LOCAL track_functions = 'pl'")
        assert by_group(await bench.take(executor, 4)) == {"free": 1}
        asked = "SELECT pg_stat_get_xact_function_calls('joex_private.room'::regproc)"
        assert await bench.connection.fetchval(asked) is None


async def test_a_take_that_brings_groups_to_their_limits_goes_round_the_ring_once(bench):
    """Free slots that are left are no reason to pass over all groups at their limits once more."""
    executor = await bench.executor()
    for group in ("a", "b", "c"):
        await stats.set_group(bench.connection, group, "default", max_running=1)
    await submit_each(bench, a=3, b=3, c=3)
    first, second, _ = await bench.take(executor, 10)
    await bench.finish(first)
    await bench.finish(second)
    async with bench.connection.transaction():
        await bench.connection.execute("SET LOCAL track_functions = 'pl'")
        assert by_group(await bench.take(executor, 10)) == {first.group: 1, second.group: 1}
        passes = "SELECT pg_stat_get_xact_function_calls('joex_private.choose'::regproc)"
        assert await bench.connection.fetchval(passes) == 1


@pytest.mark.parametrize("priorities", [["low"], ["high", "low"]], ids=["one priority", "both priorities"])
async def test_groups_whose_jobs_are_locked_by_the_thousand_cost_a_few_passes_and_no_lock_but_of_what_is_taken(
    bench, another_connection, priorities
):
    """One pass for each ten groups, as there are ten free slots, would read more than 50,000 entries."""
    groups = [f"g{nr}" for nr in range(2000)]
    for priority in priorities:
        await jobs.submit_many(bench.connection, [NewJob("a", group=group, priority=priority) for group in groups])
    executor, other, third = await bench.executor(), await another_connection(), await another_connection()
    middle = await bench.connection.fetchval(
        "SELECT percentile_disc(0.5) WITHIN GROUP (ORDER BY ring) FROM joex_private.job"
    )
    async with other.transaction(), bench.connection.transaction():
        await other.execute("SELECT FROM joex_private.job WHERE ring <= $1 FOR UPDATE", middle)
        taken = await bench.take(executor, 10)
        assert await bench.connection.fetchval("SELECT joex_private.entries_walked()") < 20 * len(groups)
        free = await third.fetchval(
            "SELECT count(*) FROM (SELECT FROM joex_private.job WHERE lane IS NOT NULL FOR UPDATE SKIP LOCKED) j"
        )
    first = await bench.connection.fetch(
        "SELECT DISTINCT grp, ring FROM joex_private.job WHERE ring > $1 ORDER BY ring LIMIT 10", middle
    )
    assert [job.group for job in taken] == [row["grp"] for row in first]
    assert free == len(groups) / 2 * len(priorities) - len(taken)


async def test_a_task_that_no_executor_knows_stops_no_other_job(bench):
    """The store gives out every job; the executor reports the unknown task, and continues with the next job."""
    unknown = await bench.submit(task="unknown")
    known = await bench.submit(task="a")
    assert {job.id for job in await bench.take(await bench.executor(), 5)} == {unknown, known}

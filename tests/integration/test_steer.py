"""Steering a job from outside: cancel, priority, arguments, removal, retry; and settings of groups."""

import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from joex import InvalidJob
from joex.core.priority_turns import CountingScheme
from joex.store import jobs, runs, stats
from joex.store.errors import translate
from tests.support.cases import case
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.postgres(16, 18)

LATER = datetime(2100, 1, 1, tzinfo=UTC)
UNFINISHED = ["waiting", "scheduled", "running", "stuck"]
FINISHED = ["success", "failed", "cancelled"]


@pytest.fixture
async def me(bench):
    """An executor."""
    return await bench.executor("me")


# Cancel.


async def test_cancelling_answers_what_it_did(bench, me):
    answers = {"waiting": "cancelled", "stuck": "cancelled", "scheduled": "requested", "running": "requested"}
    for state in (*UNFINISHED, *FINISHED):
        with case(state):
            job_id = await bench.job_in(state, me)
            assert await jobs.cancel(bench.connection, job_id) == answers.get(state, "finished")
            job = await bench.job(job_id)
            if state in FINISHED:
                assert (job.state, job.cancel_requested) == (state, False)
            elif state in ("waiting", "stuck"):
                assert (job.state, job.finished_at is not None, job.due_at) == ("cancelled", True, None)
            else:
                assert (job.state, job.cancel_requested) == (state, True)
            assert await bench.take(me) == []


async def test_cancelling_a_job_that_is_not_due_yet_cancels_it(bench, me):
    job_id = await bench.submit(not_before=LATER)
    assert await jobs.cancel(bench.connection, job_id) == "cancelled"
    assert await bench.state(job_id) == "cancelled"


async def test_cancelling_a_job_that_does_not_exist_says_so(client):
    assert await client.cancel(uuid4()) == "not_found"


async def test_cancelling_twice_changes_nothing_more(bench, me):
    waiting = await bench.submit()
    assert [await jobs.cancel(bench.connection, waiting) for _ in range(2)] == ["cancelled", "finished"]
    running = await bench.job_in("running", me)
    assert [await jobs.cancel(bench.connection, running) for _ in range(2)] == ["requested", "requested"]


async def test_a_cancelled_jobs_tracker_is_free(bench, client):
    job_id = await bench.submit(tracker="one")
    await jobs.cancel(bench.connection, job_id)
    assert await client.submit("a", tracker="one") is not None


async def test_the_executor_that_holds_a_job_is_told_of_its_cancellation_when_that_commits(
    bench, me, another_connection
):
    job_id = await bench.job_in("running", me)
    listener = await another_connection()
    heard = asyncio.get_running_loop().create_future()
    await listener.add_listener("joex_control", lambda *arguments: heard.set_result(json.loads(arguments[-1])))
    async with bench.connection.transaction():
        await jobs.cancel(bench.connection, job_id)
        assert not heard.done()
    assert await asyncio.wait_for(heard, 30) == {"executor": me}


async def test_a_cancellation_that_is_rolled_back_never_was(bench, me):
    job_id = await bench.submit()
    transaction = bench.connection.transaction()
    await transaction.start()
    await jobs.cancel(bench.connection, job_id)
    await transaction.rollback()
    assert (await bench.take_one(me)).id == job_id


async def test_a_cancellation_that_meets_a_take_waits_for_it_and_becomes_a_request(
    bench, me, another_connection, waiting_for_a_lock
):
    job_id = await bench.submit()
    other, observer = await another_connection(), await another_connection()
    transaction = bench.connection.transaction()
    await transaction.start()
    taken = await bench.take_one(me)
    async with waiting_for_a_lock(observer, jobs.cancel(other, job_id)) as cancelling:
        assert not cancelling.done()
        await transaction.commit()
    assert await cancelling == "requested"
    assert await bench.finish(taken) == ["canceled"]
    assert await bench.state(job_id) == "cancelled"


async def test_a_cancellation_that_meets_an_end_waits_for_it_and_comes_too_late(
    bench, me, another_connection, waiting_for_a_lock
):
    job_id = await bench.submit()
    taken = await bench.take_one(me)
    other, observer = await another_connection(), await another_connection()
    transaction = bench.connection.transaction()
    await transaction.start()
    await bench.finish(taken)
    async with waiting_for_a_lock(observer, jobs.cancel(other, job_id)) as cancelling:
        await transaction.commit()
    assert await cancelling == "finished"
    assert await bench.state(job_id) == "success"


async def test_a_take_passes_over_a_job_that_is_being_cancelled(bench, me, another_connection):
    job_id = await bench.submit()
    other = await another_connection()
    async with other.transaction():
        assert await jobs.cancel(other, job_id) == "cancelled"
        assert await bench.take(me) == []
    assert await bench.take(me) == []


async def test_however_cancellations_and_takes_race_each_job_is_cancelled_or_held_with_a_request(
    bench, me, another_connection
):
    ids = [await bench.submit() for _ in range(60)]
    canceller, taker = await another_connection(), await another_connection()

    async def cancel_all():
        return {job_id: await jobs.cancel(canceller, job_id) for job_id in reversed(ids)}

    async def take_all():
        taken = []
        while batch := await runs.take(taker, me, ["default"], 3, CountingScheme(4, 1)):
            taken += batch
        return {job.id for job in taken}

    answers, taken = await asyncio.gather(cancel_all(), take_all())
    assert {job_id for job_id, answer in answers.items() if answer == "requested"} == taken
    assert set(answers.values()) <= {"requested", "cancelled"}


# Priority.


async def test_a_change_of_priority_moves_a_waiting_job_within_its_group(bench, me):
    first, second = await bench.submit(), await bench.submit()
    assert await jobs.set_priority(bench.connection, second, "high")
    assert (await bench.job(second)).priority == "high"
    assert [(await bench.take_one(me)).id for _ in range(2)] == [second, first]


async def test_a_job_that_is_not_due_has_its_new_priority_when_it_is(bench, me):
    low = await bench.submit()
    later = await bench.submit(not_before=LATER)
    assert await jobs.set_priority(bench.connection, later, "high")
    await bench.connection.execute("UPDATE joex_private.job SET due_at = clock_timestamp() WHERE id = $1", later)
    assert [job.id for job in await bench.take(me, 2)] == [later, low]


async def test_a_due_retry_keeps_its_place_before_all_others_whatever_its_priority(bench, me):
    stuck = await bench.job_in("stuck", me)
    await jobs.retry(bench.connection, stuck)
    await bench.submit(priority="high")
    assert not await jobs.set_priority(bench.connection, stuck, "high")
    assert (await bench.take_one(me)).id == stuck


NOT_WAITING = ["scheduled", "running", "stuck", *FINISHED]


async def test_the_priority_of_a_job_that_does_not_wait_stays(bench, me):
    for state in NOT_WAITING:
        with case(state):
            job_id = await bench.job_in(state, me)
            assert not await jobs.set_priority(bench.connection, job_id, "high")
            assert (await bench.job(job_id)).priority == "low"


@pytest.mark.parametrize("priority", ["High", "HIGH"])
async def test_a_priority_may_be_written_in_whichever_case(bench, client, priority):
    args = {"priority": priority}
    submitted = [await client.submit("a", **args), *await client.submit_many([{"task": "a", **args}])]
    submitted.append(await bench.connection.fetchval("SELECT joex.submit('a', priority => $1)", priority))
    submitted += [row[0] for row in await bench.connection.fetch(
        "SELECT joex.submit_many(ARRAY['a'], priorities => ARRAY[$1])", priority
    )]  # fmt: skip
    submitted.append(await bench.connection.fetchval("SELECT joex_client.add('a', '1', priority => $1)", priority))
    changed = [await bench.submit() for _ in range(2)]
    assert await client.set_priority(changed[0], priority)
    assert await bench.connection.fetchval("SELECT joex.set_priority($1, $2)", changed[1], priority)
    assert {(await bench.job(job_id)).priority for job_id in (*submitted, *changed)} == {"high"}
    await client.periodic.put("one", "a", "daily", **args)
    assert (await client.periodic.get("one")).priority == "high"
    await bench.connection.execute("SELECT joex.put_periodic_task('two', 'a', 'daily', priority => $1)", priority)
    assert (await client.periodic.get("two")).priority == "high"


async def test_the_priority_of_no_job_is_not_changed(client):
    assert not await client.set_priority(uuid4(), "high")


async def test_a_priority_that_does_not_exist_is_refused(bench, client):
    job_id = await bench.submit()
    with pytest.raises(InvalidJob, match=r"^priority: expected 'high' or 'low'; got 'urgent'$"):
        await client.set_priority(job_id, "urgent")


async def test_a_change_of_priority_that_meets_a_take_comes_too_late(bench, me, another_connection, waiting_for_a_lock):
    job_id = await bench.submit()
    other, observer = await another_connection(), await another_connection()
    transaction = bench.connection.transaction()
    await transaction.start()
    await bench.take_one(me)
    async with waiting_for_a_lock(observer, jobs.set_priority(other, job_id, "high")) as changing:
        await transaction.commit()
    assert not await changing
    assert await bench.state(job_id) == "scheduled"


# Arguments.


@pytest.mark.parametrize("fields", [{}, {"not_before": LATER}], ids=["runnable", "later"])
async def test_a_waiting_job_gets_other_arguments_and_runs_with_them(bench, client, me, fields):
    job_id = await bench.submit(args={"x": 1, "y": 2}, **fields)
    before = await bench.job(job_id)
    assert await client.set_args(job_id, {"x": 3})
    assert await bench.job(job_id) == replace(before, args={"x": 3})
    await bench.connection.execute("UPDATE joex_private.job SET due_at = clock_timestamp() WHERE due_at IS NOT NULL")
    assert (await bench.take_one(me)).args == '{"x": 3}'


async def test_the_arguments_of_a_job_that_does_not_wait_stay(bench, client, me):
    for state in NOT_WAITING:
        with case(state):
            job_id = await bench.job_in(state, me, args={"x": 1})
            assert not await client.set_args(job_id, {"x": 2})
            assert (await bench.job(job_id)).args == {"x": 1}
    assert not await client.set_args(uuid4(), {})


async def test_a_change_of_arguments_that_meets_a_take_comes_too_late(
    bench, me, another_connection, waiting_for_a_lock
):
    job_id = await bench.submit(args={"x": 1})
    other, observer = await another_connection(), await another_connection()
    transaction = bench.connection.transaction()
    await transaction.start()
    assert (await bench.take_one(me)).args == '{"x": 1}'
    async with waiting_for_a_lock(observer, jobs.set_args(other, job_id, {"x": 2})) as changing:
        await transaction.commit()
    assert not await changing
    assert (await bench.job(job_id)).args == {"x": 1}


async def test_a_take_passes_over_a_job_whose_arguments_are_being_changed(bench, me, another_connection):
    job_id, other = await bench.submit(args={"x": 1}), await another_connection()
    async with other.transaction():
        assert await jobs.set_args(other, job_id, {"x": 2})
        assert await bench.take(me) == []
    assert (await bench.take_one(me)).args == '{"x": 2}'


async def test_wrong_arguments_are_refused_and_the_job_keeps_its_own(bench, client):
    job_id = await bench.submit(args={"x": 1})
    wrong: tuple[Any, ...] = (["list"], "text", None, {1: 2}, {"x": float("nan")})
    for args in wrong:
        with case(args):
            with pytest.raises(InvalidJob, match=r"^args(\.x)?: "):
                await client.set_args(job_id, args)
            assert (await bench.job(job_id)).args == {"x": 1}


# Removal.


async def test_a_job_that_does_not_run_is_removed_from_python(bench, client, me):
    for state in ("waiting", "stuck", *FINISHED):
        with case(state):
            job_id = await bench.job_in(state, me)
            assert await client.remove(job_id) == "ok"
            assert await client.get(job_id) is None
            assert await client.remove(job_id) == "not_found"


async def test_a_job_that_runs_is_told_to_stop_and_is_gone_when_it_has(bench, client, me):
    job_id = await bench.submit()
    taken = await bench.take_one(me)
    assert await client.remove(job_id) == "ok"
    assert (await bench.job(job_id)).cancel_requested
    assert await bench.finish(taken, "cancelled") == ["canceled"]
    assert await client.get(job_id) is None


# Retry by hand.


@pytest.mark.parametrize("state", ["failed", "cancelled", "stuck"])
async def test_a_job_that_came_to_no_good_end_can_be_run_again_with_all_its_retries(bench, me, state):
    job_id = await bench.job_in(state, me)
    await bench.connection.execute("UPDATE joex_private.job SET losses = 3 WHERE id = $1", job_id)
    assert await jobs.retry(bench.connection, job_id)
    job = await bench.job(job_id)
    assert (job.failures, job.losses, job.cancel_requested, job.finished_at, job.due_at) == (0, 0, False, None, None)
    taken = await bench.take_one(me)
    assert (taken.id, taken.attempt, taken.failures) == (job_id, 1, 0)
    assert await bench.finish(taken) == []
    assert await bench.state(job_id) == "success"


async def test_a_cancelled_job_that_is_run_again_is_not_cancelled_again(bench, me):
    job_id = await bench.submit()
    await jobs.cancel(bench.connection, job_id)
    assert await jobs.retry(bench.connection, job_id)
    assert await bench.finish(await bench.take_one(me)) == []
    assert await bench.state(job_id) == "success"


async def test_a_job_that_is_not_due_can_be_run_now_in_its_place_and_wakes_who_sleeps(
    bench, me, client, another_connection
):
    later = await client.submit("a", not_before="1h")
    second, third = await client.submit("a"), await client.submit("a", not_before="1h")
    assert await bench.take_one(me) is not None
    await bench.connection.execute("SELECT joex_private.fall_asleep($1)", me)
    listener = await another_connection()
    heard = asyncio.get_running_loop().create_future()
    await listener.add_listener("joex_wake", lambda *arguments: heard.set_result(json.loads(arguments[-1])))
    fourth = await client.submit("a", not_before="1h")
    assert await client.retry(third)
    assert await asyncio.wait_for(heard, PATIENCE) == {"queue": "default", "executors": [me]}
    assert await client.retry(later)
    assert not await client.retry(later)
    assert [taken.id for taken in await bench.take(me, 5)] == [later, third]
    assert await bench.state(second) == "scheduled"
    assert (await bench.job(fourth)).due_at is not None


@pytest.mark.parametrize("state", ["waiting", "scheduled", "running", "success"])
async def test_a_job_that_runs_or_waits_or_succeeded_is_not_run_again(bench, me, state):
    job_id = await bench.job_in(state, me)
    assert not await jobs.retry(bench.connection, job_id)
    assert await bench.state(job_id) == state


async def test_no_job_is_not_run_again(client):
    assert not await client.retry(uuid4())


async def test_the_late_end_of_an_earlier_run_does_not_end_a_job_that_was_retried_by_hand(bench, me):
    job_id = await bench.submit()
    late = await bench.take_one(me)
    await bench.finish(late, "failed")
    await jobs.retry(bench.connection, job_id)
    assert await bench.finish(late, "success") == ["already"]
    assert await bench.state(job_id) == "waiting"
    await bench.take_one(me)
    assert await bench.finish(late, "success") == ["worker_conflict"]


async def test_a_job_whose_tracker_another_one_has_now_is_not_run_again_and_the_error_says_why(bench, me, client):
    job_id = await bench.job_in("failed", me, tracker="one")
    await client.submit("a", tracker="one")
    with pytest.raises(InvalidJob, match=r"^tracker: an unfinished job of the group has it already"):
        await client.retry(job_id)
    assert await bench.state(job_id) == "failed"


async def test_failed_jobs_are_run_again_by_queue_group_and_task(bench, me, client):
    for fields in ({"group": "x"}, {"group": "y"}, {"task": "b"}):
        await bench.job_in("failed", me, **fields)
    cancelled = await bench.job_in("cancelled", me)
    assert await client.retry_failed(queue="other") == 0
    assert await client.retry_failed(group="x") == 1
    assert await client.retry_failed(task="b") == 1
    assert await client.retry_failed() == 1
    assert await client.retry_failed() == 0
    assert await bench.state(cancelled) == "cancelled"


@pytest.mark.parametrize("is_retried", [True, False], ids=["its row", "its tracker"])
async def test_a_job_that_an_open_transaction_holds_keeps_no_other_from_its_retry(
    bench, me, another_connection, is_retried
):
    held, *others = [await bench.job_in("failed", me, tracker=tracker) for tracker in ("mine", None, "another")]
    other = await another_connection()
    async with other.transaction():
        if is_retried:
            await other.execute("SELECT joex.retry($1)", held)
        else:
            await other.execute("SELECT joex.submit('a', tracker => 'mine')")
        async with asyncio.timeout(PATIENCE):
            assert await bench.connection.fetchval("SELECT joex.retry_failed(most => 2)") == 2
    assert [await bench.state(one) for one in others] == ["waiting", "waiting"]


async def test_a_retry_that_has_waited_for_a_hundred_trackers_waits_for_no_more_of_their_group(
    bench, another_connection
):
    """A tenant may hold any number of trackers in an open transaction: what it has keeps no other group waiting."""
    await bench.connection.execute("""
        INSERT INTO joex_private.job (task, grp, tracker, state, finished_at)
        SELECT 'a', grp, tracker, 'failed', '2000-01-01'::timestamptz + make_interval(secs => nr) FROM (
            SELECT nr, 'mine', 'held ' || nr FROM generate_series(1, 99) nr
            UNION ALL
            VALUES (100, 'mine', 'one of mine, after 99'), (101, 'mine', 'held 100'),
                   (102, 'mine', 'one of mine, after 100'), (103, 'another', 'one of another'), (104, 'mine', NULL)
        ) f(nr, grp, tracker)
    """)
    other = await another_connection()
    async with other.transaction():
        await other.execute("""
            SELECT joex.submit('a', grp => 'mine', tracker => 'held ' || nr) FROM generate_series(1, 100) nr""")
        assert await bench.connection.fetchval("SELECT joex.retry_failed()") == 3
    retried = await bench.connection.fetch("""
        SELECT tracker FROM joex_private.job WHERE state = 'waiting' AND coalesce(tracker, '') NOT LIKE 'held%'
        ORDER BY seq""")
    assert [row["tracker"] for row in retried] == ["one of mine, after 99", "one of another", None]


async def test_failed_jobs_are_run_again_the_oldest_first_and_no_more_than_asked(bench, me, client):
    ids = [await bench.job_in("failed", me) for _ in range(3)]
    assert await client.retry_failed(most=2) == 2
    assert [await bench.state(job_id) for job_id in ids] == ["waiting", "waiting", "failed"]


async def test_one_failed_job_that_cannot_be_run_again_does_not_keep_the_others_from_it(bench, me, client):
    blocked = await bench.job_in("failed", me, tracker="one")
    twice = await bench.job_in("failed", me, tracker="one")
    free = await bench.job_in("failed", me)
    assert await client.retry_failed() == 2
    assert [await bench.state(job_id) for job_id in (blocked, twice, free)] == ["waiting", "failed", "waiting"]


@pytest.mark.parametrize("is_keyed", [False, True], ids=["jobs", "keyed jobs"])
async def test_failed_jobs_whose_trackers_others_have_keep_no_later_one_from_a_retry_of_few(
    bench, me, client, is_keyed
):
    blocked = [await bench.job_in("failed", me, tracker=tracker) for tracker in ("one", "two")]
    free = await bench.job_in("failed", me, tracker="three")
    for tracker in ("one", "two"):
        await client.submit("a", tracker=tracker, not_before=LATER)
    if is_keyed:
        await bench.connection.execute("UPDATE joex_private.job SET key = uuid_send(id) WHERE state = 'failed'")
    assert await client.retry_failed(most=2) == 1
    assert [await bench.state(job_id) for job_id in (*blocked, free)] == ["failed", "failed", "waiting"]


async def test_of_failed_jobs_with_one_tracker_the_oldest_is_retried_and_keeps_no_later_one_from_a_retry_of_few(
    bench, me, client
):
    ids = [await bench.job_in("failed", me, tracker=tracker) for tracker in ("one", "one", "one", "two")]
    assert await client.retry_failed(most=2) == 2
    assert [await bench.state(job_id) for job_id in ids] == ["waiting", "failed", "failed", "waiting"]


# Settings of groups.


async def test_settings_of_a_group_change_one_at_a_time_and_the_others_stay(bench):
    async def set_and_get(**settings):
        await stats.set_group(bench.connection, "a", "default", **settings)
        [setting] = await stats.group_settings(bench.connection, "default")
        return setting.weight, setting.paused, setting.max_running

    assert await set_and_get() == (1, False, None)
    assert await set_and_get(weight=3) == (3, False, None)
    assert await set_and_get(max_running=5) == (3, False, 5)
    assert await set_and_get(paused=True) == (3, True, 5)
    assert await set_and_get(max_running=-1) == (3, True, None)
    assert await set_and_get(paused=False, weight=100) == (100, False, None)


async def test_settings_may_be_made_before_the_group_has_any_job(bench):
    await stats.set_group(bench.connection, "future", "mail", paused=True, max_running=2)
    [setting] = await stats.group_settings(bench.connection)
    assert setting == stats.GroupSetting("mail", "future", 1, paused=True, max_running=2, max_waiting=None)
    assert await stats.group_settings(bench.connection, "default") == []


async def test_a_wrong_setting_is_refused_by_name(bench):
    for name, wrong in (("weight", 0), ("weight", 101), ("weight", -1), ("max_running", -2)):
        settings: dict[str, Any] = {name: wrong}
        with case(settings):
            with pytest.raises(InvalidJob, match=f"^{name[:6]}"):
                await stats.set_group(bench.connection, "a", "default", **settings)
            assert await stats.group_settings(bench.connection) == []


async def test_a_group_without_a_name_is_refused(bench):
    with pytest.raises(InvalidJob):
        await stats.set_group(bench.connection, "", "default", weight=2)


async def test_a_group_that_goes_on_wakes_who_sleeps(bench, me, another_connection):
    await bench.submit("a")
    await stats.set_group(bench.connection, "a", "default", paused=True)
    await bench.connection.execute("SELECT joex_private.fall_asleep($1)", me)
    listener = await another_connection()
    heard = asyncio.get_running_loop().create_future()
    await listener.add_listener("joex_wake", lambda *arguments: heard.set_result(json.loads(arguments[-1])))
    await stats.set_group(bench.connection, "a", "default", paused=False)
    assert await asyncio.wait_for(heard, 30) == {"queue": "default", "executors": [me]}


async def test_a_retry_by_hand_wakes_who_sleeps(bench, me, another_connection):
    job_id = await bench.job_in("failed", me)
    await bench.connection.execute("SELECT joex_private.fall_asleep($1)", me)
    listener = await another_connection()
    heard = asyncio.get_running_loop().create_future()
    await listener.add_listener("joex_wake", lambda *arguments: heard.set_result(json.loads(arguments[-1])))
    await jobs.retry(bench.connection, job_id)
    assert await asyncio.wait_for(heard, 30) == {"queue": "default", "executors": [me]}


WRONG_IN_SQL = {
    "joex.set_largest('foo', 10000)": "field: expected args or result; got 'foo'",
    "joex.set_largest(NULL, 10000)": "field: expected args or result; got NULL",
    **{
        f"joex.set_largest('args', {size})": "args: expected a limit of 8000 to 32000000 bytes, "
        f"or NULL for the default; got {size}"
        for size in (100, -1, 3000000000)
    },
    "joex.set_priority(joex.submit('a'), NULL)": "priority: expected 'high' or 'low'; got NULL",
    "joex.set_priority(joex.submit('a'), 'urgent')": "priority: expected 'high' or 'low'; got 'urgent'",
    "joex.set_args(joex.submit('a'), NULL)": "args: must be a JSON object; got NULL",
    "joex.set_queue('', true)": "queue: expected 1 to 254 bytes; got ''",
    "joex.set_queue(NULL, false)": "queue: expected 1 to 254 bytes; got NULL",
    "joex.set_queue(repeat('q', 255), false)": f"queue: expected 1 to 254 bytes; got '{'q' * 255}'",
    "joex.set_group('', weight => 2)": "group: expected 1 to 254 bytes; got ''",
    "joex.set_group('g', NULL)": "queue: expected 1 to 254 bytes; got NULL",
    "joex.subscribe('', '1 min')": "name: expected 1 to 254 bytes; got ''",
    "joex.subscribe('me', NULL)": "lasts: expected more than zero; got <NULL>: "
    "to end a subscription, call joex.unsubscribe",
    **{
        f"{call}, most => {most})": f"most: expected 0 or more; got {most}"
        for call in (
            "joex.attempts(joex.submit('a')",
            "joex.log(joex.submit('a')",
            "joex.retry_failed('default'",
            "joex.delete_finished('{failed}', now()",
        )
        for most in ("-1", "NULL")
    },
    **{
        f"joex_client.accept('q', {jobs})": f"jobs: expected 0 to 10000; got {jobs}"
        for jobs in ("-1", "10001", "2147483647", "NULL")
    },
}


async def test_a_wrong_call_in_sql_says_what_is_expected_of_which_field(connection):
    for call, said in WRONG_IN_SQL.items():
        with pytest.raises(asyncpg.DataError) as caught:
            await connection.execute(f"SELECT {call}")
        assert (call, str(caught.value), str(translate(caught.value))) == (call, said, said)


WRONG_IN_TABLES = {
    "joex.set_group('g', weight => 101)": "weight: 1 to 100",
    "joex.set_group('g', max_running => -2)": "max_running: 0 or more",
    "joex.put_periodic_task('', 'a', 'daily')": "id: 1 to 240 bytes",
    "joex.put_periodic_task('p', 'a', 'daily', queue => repeat('q', 255))": "queue: 1 to 254 bytes",
    "joex.put_periodic_task('p', 'a', 'daily', starting_deadline => '-1 day')": "starting_deadline: 0 to 1000 years",
}


async def test_a_setting_that_its_table_refuses_says_what_is_expected_of_which_field(connection):
    for call, said in WRONG_IN_TABLES.items():
        with pytest.raises(asyncpg.CheckViolationError) as caught:
            await connection.execute(f"SELECT {call}")
        assert f'violates check constraint "{said}"' in str(caught.value)
        assert str(translate(caught.value)) == said


WRONG_IN_PYTHON = {
    "queues.set('q', paused='yes')": "paused: expected True or False; got 'yes'",
    "queues.set('q', paused=None)": "paused: expected True or False; got None",
    "groups.set('g', paused=1)": "paused: expected True or False; got 1",
    "groups.set('g', weight=0)": "weight: expected a whole number, 1 to 100; got 0",
    "groups.set('g', max_running='2')": "max_running: expected a whole number, -1 to 2147483647; got '2'",
    "groups.set('g', max_waiting=True)": "max_waiting: expected a whole number, -1 to 100000; got True",
    "groups.list(5)": "queue: expected text; got int",
    "periodic.put('p', 'a', 'daily', enabled='no')": "enabled: expected True or False; got 'no'",
    "periodic.enable('p', any_owner=None)": "any_owner: expected True or False; got None",
    "periodic.remove('p', any_owner='yes')": "any_owner: expected True or False; got 'yes'",
    "periodic.list(after=1)": "after: expected the key of a periodic task; got 1",
    "get('7')": "job_id: expected a UUID; got '7'",
    "cancel(7)": "job_id: expected a UUID; got 7",
    "remove(None)": "job_id: expected a UUID; got None",
    "retry('\\ud800')": "job_id: expected a UUID; got '\\ud800'",
    "log(job_id, after=2**63)": "after: expected a whole number, 0 to 9223372036854775807; got 9223372036854775808",
    "retry_failed(group='\\0')": "group: must not contain a NUL character (PostgreSQL can't store it)",
    "notify('')": "queue: must not be empty",
    **{
        f"{call}most={most})": f"most: expected a whole number, 0 to 2147483647; got {most}"
        for call in ("attempts(job_id, ", "retry_failed(", "groups.list(", "groups.settings(", "periodic.list(")
        for most in ("-1", "None", "2147483648", "1.5")
    },
}


async def test_a_wrong_call_in_python_is_one_line_that_says_what_is_expected_of_which_field(client):
    job_id = await client.submit("a")
    for call, expected in WRONG_IN_PYTHON.items():
        with pytest.raises(InvalidJob) as caught:
            await eval(f"client.{call}", {"client": client, "job_id": job_id})  # noqa: S307 - the table above
        assert str(caught.value) == expected, call

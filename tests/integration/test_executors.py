"""Executors: which are alive, which may have an app-id, and what happens to the jobs of a dead one."""

import asyncio
import json
from collections import Counter
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import product
from uuid import uuid4

import pytest

from joex import ConfigError, DatabaseUnavailable, LeaseLost
from joex.app import App
from joex.config import Settings
from joex.core import events
from joex.core.lease import Lease, Mark, Observation
from joex.core.priority_turns import CountingScheme
from joex.runtime import chores
from joex.runtime.lease_callbacks import LeaseCallbacks, Notifier
from joex.runtime.newcomer import Newcomer
from joex.store import executors, job_logs, jobs, runs, stats, timeouts
from joex.store.errors import translated
from joex.store.horizon import horizon as take_horizon
from tests.support.waiting import EventLog, eventually

pytestmark = pytest.mark.postgres(16, 18)

HOUR = timedelta(hours=1)


async def rescue(bench):
    """Rescue; returns the ids of the executors that it declared dead."""
    return [executor for executor, _, _ in await bench.rescue()]


async def end(bench, executor, how="dead"):
    """End an executor."""
    return await bench.connection.fetchval("SELECT joex_private.end_executor($1, $2)", executor, how)


@pytest.fixture
async def holding(bench, another_connection):
    """An executor `app` that holds its session lock, a job that it runs and one that it has merely scheduled."""
    executor = await bench.executor("app", locks=True)
    session = await another_connection()
    assert await executors.hold_lock(session, executor)
    running = await bench.job_in("running", executor)
    scheduled = await bench.job_in("scheduled", executor)
    return executor, session, [running, scheduled]


# Registration.


async def test_an_executor_that_registers_is_shown_with_all_it_said_of_itself(bench):
    await bench.executor(
        "app", pod_uid="pod", host="h", pid=7, version="1.2", queues=["a", "b"], pool_size=9, http_address="1.2.3.4:5"
    )
    [found] = await executors.list_executors(bench.connection)
    assert (found.app_id, found.pod_uid, found.host, found.pid, found.version) == ("app", "pod", "h", 7, "1.2")
    assert (found.queues, found.pool_size, found.http_address) == (["a", "b"], 9, "1.2.3.4:5")
    assert (found.state, found.held, found.left_at) == ("awake", 0, None)


async def test_each_start_is_an_registration_of_its_own(bench):
    first = await bench.executor("app")
    second = await bench.executor("app", gone=first)
    assert first != second
    with pytest.raises(LeaseLost):
        await bench.take(first)
    [one, two] = await executors.list_executors(bench.connection, ended=True)
    assert [(one.id, one.state), (two.id, two.state)] == [(second, "awake"), (first, "replaced")]


async def test_a_predecessor_that_is_known_to_be_gone_is_replaced_at_once_though_its_session_is_still_there(
    bench, holding
):
    executor, _, held = holding
    registered = await bench.register("app", gone=executor)
    assert (registered.id is not None, registered.reclaimed, registered.other) == (True, 2, None)
    assert [await bench.state(job_id) for job_id in held] == ["waiting", "waiting"]
    assert {job.id for job in await bench.take(registered.id, 5)} == set(held)


async def test_a_registration_that_comes_late_ends_no_newer_one_of_the_same_pod(bench):
    """Its executor has given it up, and registered by another connection; or has ended, and has a successor."""
    restarted = await bench.executor("app", pod_uid="pod")
    living = await bench.executor("app", pod_uid="pod", gone=restarted)
    for late in (None, restarted):
        registered = await bench.register("app", pod_uid="pod", gone=late)
        assert registered.id is None
        assert (registered.other.id, registered.other.pod_uid) == (living, "pod")


async def test_a_predecessor_that_lives_is_never_robbed_and_the_newcomer_learns_who_is_in_the_way(bench, holding):
    executor, _, held = holding
    before = [await bench.job(job_id) for job_id in held]
    for newcomer in ({}, {"pod_uid": "other"}, {"gone": executor + 1000}):
        registered = await bench.register("app", **newcomer)
        assert (registered.id, registered.reclaimed) == (None, 0)
        other = registered.other
        assert other is not None
        assert (other.id, other.host, other.boot_id, other.pid, other.process_start) == (
            executor,
            "host",
            "boot",
            1,
            "1",
        )
        assert 0 <= other.silent < 3600
    assert [await bench.job(job_id) for job_id in held] == before


async def test_a_newcomer_takes_jobs_beside_one_that_drains_and_gets_none_of_its_jobs(bench, holding):
    executor, _, held = holding
    assert (await bench.register("app", beside=[executor])).id is None, "it does not drain yet"
    await executors.drain(bench.connection, "app")
    other = (await bench.register("app")).other
    assert other is not None
    assert (other.id, other.draining) == (executor, True)
    registered = await bench.register("app", beside=[executor])
    assert (registered.id is not None, registered.reclaimed, registered.other) == (True, 0, None)
    assert [await bench.state(job_id) for job_id in held] == ["running", "scheduled"]
    fresh = await bench.submit()
    assert [job.id for job in await bench.take(registered.id, 5)] == [fresh]
    assert (await bench.register("app", beside=[executor])).other.id == registered.id


async def test_of_several_that_drain_those_are_replaced_that_are_gone(bench):
    gone = await bench.executor("app")
    await executors.drain(bench.connection, "app")
    drains = (await bench.register("app", beside=[gone])).id
    await executors.drain(bench.connection, "app")
    assert (await bench.register("app", gone=gone, beside=[drains])).id is not None
    found = {one.id: one.state for one in await executors.list_executors(bench.connection, ended=True)}
    assert (found[gone], found[drains]) == ("replaced", "draining")


async def test_a_newcomer_counts_the_jobs_of_all_that_it_replaces(bench, pool):
    """It learns of one after the other."""
    beside: list[int] = []
    for jobs_held in (1, 2):
        beside.append(await bench.executor("app", pod_uid="pod", beside=beside))
        for _ in range(jobs_held):
            await bench.job_in("running", beside[-1])
        await executors.drain(bench.connection, "app")
    log = EventLog()
    newcomer = Newcomer(
        App(), Settings(app_id="app", pod_uid="pod"), pool, locks=False, asked_to_drain=asyncio.Event(), emit=log,
        on_wait=lambda: None,
    )  # fmt: skip
    registered = await newcomer.register()
    assert registered is not None
    assert log.of(events.Registered) == [events.Registered("app", registered[0], reclaimed=3)]


async def test_a_newcomer_that_ends_several_dead_ones_and_a_drain_of_them_do_not_deadlock(
    bench, another_connection, waiting_for_a_lock
):
    """Both lock these rows, in the order of their ids."""
    number, first, second = 0, 1, 0
    while first > second:
        number += 1
        first = await bench.executor(f"app{number}")
        await executors.drain(bench.connection, f"app{number}")
        second = await bench.executor(f"app{number}", beside=[first])
    for one in (first, second):
        await bench.silence(one, leases=5.1)
    drain = "UPDATE joex_private.executor SET draining = true WHERE id = $1"
    other, observer = await another_connection(), await another_connection()
    transaction = other.transaction()
    await transaction.start()
    await other.execute(drain, first)
    async with waiting_for_a_lock(observer, bench.register(f"app{number}")) as registered:
        await other.execute(drain, second)
        await transaction.commit()
    assert registered.result().id is not None
    found = {one.id: one.state for one in await executors.list_executors(bench.connection, ended=True)}
    assert (found[first], found[second]) == ("replaced", "replaced")


async def test_executors_without_a_pod_are_not_taken_for_restarts_in_the_same_pod(bench):
    await bench.executor("app", pod_uid=None)
    assert (await bench.register("app", pod_uid=None)).id is None


async def test_of_many_simultaneous_starts_with_one_app_id_exactly_one_gets_it(bench, another_connection):
    connections = [await another_connection() for _ in range(6)]
    call = (
        "SELECT id FROM joex_private.register('app', NULL, 'h', '', 1, '', '0', '{default,q}', '{}', 1, NULL, '1h', "
        "false, 5)"
    )
    ids = await asyncio.gather(*(connection.fetchval(call) for connection in connections))
    assert sum(found is not None for found in ids) == 1
    assert await bench.connection.fetchval("SELECT count(*) FROM joex_private.queue") == 2


async def test_a_start_that_meets_another_of_the_same_executor_waits_and_learns_that_it_was_slower(
    bench, another_connection, waiting_for_a_lock
):
    await bench.executor("first")  # makes the queue
    one, two = await another_connection(), await another_connection()
    call = """SELECT id, (other).id AS other
              FROM joex_private.register('app', NULL, 'h', '', 1, '', '0', '{default}', '{}', 1, NULL, '1h', false,
                  5)"""
    transaction = one.transaction()
    await transaction.start()
    faster = await one.fetchrow(call)
    async with waiting_for_a_lock(bench.connection, two.fetchrow(call)) as starting:
        await transaction.commit()
    slower = await starting
    assert (faster["id"] is not None, faster["other"]) == (True, None)
    assert (slower["id"], slower["other"]) == (None, faster["id"])


async def test_an_app_id_is_free_when_its_executor_has_left(bench):
    first = await bench.executor("app")
    await executors.leave(bench.connection, first)
    assert (await bench.register("app")).id is not None


async def test_two_executors_with_different_app_ids_live_side_by_side(bench):
    assert await bench.executor("one") != await bench.executor("two")


async def test_a_take_waits_for_a_transaction_that_has_locked_its_executor_and_leaves_it_in_peace(
    bench, another_connection, waiting_for_a_lock
):
    """As an operator does that finds it busy. The take may be the answer to a wake-up, which does not come again."""
    executor, job = await bench.executor(), await bench.submit()
    judge, watcher = await another_connection(), await another_connection()
    async with judge.transaction():
        await judge.execute("SELECT FROM joex_private.executor WHERE id = $1 FOR NO KEY UPDATE", executor)
        async with waiting_for_a_lock(watcher, bench.take(executor)) as taken:
            assert not taken.done()
            await judge.execute("COMMIT; BEGIN")
    assert [one.id for one in await taken] == [job]


async def test_a_restart_and_a_take_of_its_predecessor_do_not_deadlock(bench, another_connection, waiting_for_a_lock):
    """The take has locked the executor's row and then writes it (it is awake now); the restart needs it too."""
    old = await bench.executor("app")
    await bench.submit()
    await executors.fall_asleep(bench.connection, old)
    taker, starter = await another_connection(), await another_connection()
    transaction = taker.transaction()
    await transaction.start()
    await taker.execute("SELECT FROM joex_private.executor WHERE id = $1 FOR SHARE", old)  # as a take does
    start = starter.fetchval(
        "SELECT id FROM joex_private.register('app', NULL, 'h', '', 1, '', '0', '{default}', '{}', 1, NULL, '1h', "
        "false, 5, $1)",
        old,
    )
    async with waiting_for_a_lock(bench.connection, start) as starting:
        assert len(await runs.take(taker, old, ["default"], 1, CountingScheme(4, 1))) == 1
        await transaction.commit()
    assert await starting is not None
    assert await bench.held(old) == []


# Death.


async def test_a_living_executor_is_left_alone(bench, holding):
    executor, _, held = holding
    assert await rescue(bench) == []
    assert await bench.held(executor) == held


async def test_a_dead_executor_with_a_free_lock_loses_its_jobs_after_one_lease(bench, holding):
    executor, session, held = holding
    await bench.silence(executor, leases=1.1)
    assert await rescue(bench) == []  # its session is there
    await session.close()
    assert await bench.rescue() == [(executor, "app", 2)]
    for job_id in held:
        job = await bench.job(job_id)
        assert (job.state, job.losses, job.failures) == ("waiting", 1, 0)
    assert await rescue(bench) == []


async def test_a_free_lock_alone_is_not_death_while_the_lease_lasts(bench, holding):
    executor, session, held = holding
    await session.close()
    assert await rescue(bench) == []
    assert await bench.held(executor) == held


async def test_an_executor_that_hangs_loses_its_jobs_after_five_leases_though_its_session_is_there(bench, holding):
    executor, _, held = holding
    await bench.silence(executor, leases=5.1)
    assert await rescue(bench) == [executor]
    assert [await bench.state(job_id) for job_id in held] == ["waiting", "waiting"]


async def test_without_session_locks_only_time_judges(bench):
    executor = await bench.executor(locks=False)
    await bench.silence(executor, leases=1.1)
    assert await rescue(bench) == []
    await bench.silence(executor, leases=5.1)
    assert await rescue(bench) == [executor]


async def test_silence_that_the_judge_has_not_watched_does_not_count(bench, holding):
    """No executor could renew while the server was away; a clock that was set forward makes each heartbeat older."""
    executor, session, held = holding
    await session.close()
    await bench.silence(executor, leases=1000)
    assert await bench.rescue(watched=3599) == []
    assert await bench.held(executor) == held
    assert await bench.rescue(watched=3601) == [(executor, "app", 2)]


async def test_with_its_session_there_an_executor_is_dead_when_it_was_watched_for_five_leases(bench, holding):
    executor, _, _ = holding
    await bench.silence(executor, leases=1000)
    assert await bench.rescue(watched=5 * 3600 - 1) == []
    assert await bench.rescue(watched=5 * 3600 + 1) == [(executor, "app", 2)]


@pytest.mark.parametrize("step", ["31 s", "2 h", "1000 h", "-1 s", "-2 h", "-1000 h"])
async def test_a_living_executor_is_not_dead_because_the_databases_clock_was_set(bench, holding, step):
    """However old a heartbeat is by that clock, or how far in the future: judges ignore it."""
    executor, session, held = holding
    await session.close()  # (so that nothing else saves it)
    assert await executors.heartbeat(bench.connection, executor)
    await bench.connection.execute(
        "UPDATE joex_private.lease SET heartbeat_at = heartbeat_at - $1::text::interval", step
    )
    assert await bench.rescue() == []
    assert (await bench.register("app")).id is None
    assert await bench.held(executor) == held


@pytest.mark.parametrize("step", ["1000 h", "-1000 h"])
async def test_a_clock_that_was_set_back_keeps_no_dead_executor_alive(bench, holding, step):
    executor, session, _ = holding
    await session.close()
    await bench.silence(executor, leases=1.1)
    await bench.connection.execute(
        "UPDATE joex_private.lease SET heartbeat_at = heartbeat_at - $1::text::interval", step
    )
    assert await bench.rescue(watched=3599) == []
    assert (await bench.register("app", watched=3599)).id is None
    assert await bench.rescue(watched=3601) == [(executor, "app", 2)]


async def test_a_heartbeat_after_a_judges_mark_saves_an_executor_and_one_before_it_does_not(bench):
    """With real transaction ids."""
    before, after = await bench.executor("before", locks=True), await bench.executor("after", locks=True)
    mark = Mark(3601, await take_horizon(bench.connection))
    assert await executors.rescue(bench.connection, [mark._replace(age=3600)]) == []
    beat = await executors.heartbeat(bench.connection, after)
    assert beat is not None
    assert beat.mark > mark.id
    assert await executors.rescue(bench.connection, [mark]) == [(before, "before", 0)]
    beat = await executors.heartbeat(bench.connection, after)
    assert beat is not None
    later = Mark(3601, beat.mark)
    assert await executors.rescue(bench.connection, [later]) == []


async def test_beats_that_this_server_has_not_given_keep_no_dead_executor_alive(bench, holding):
    """The rows were restored, or replicated, from a server whose ids were higher."""
    executor, session, _ = holding
    await session.close()
    mark = Mark(3601, await take_horizon(bench.connection))
    await bench.connection.execute("UPDATE joex_private.lease SET beat = 1000000000000")
    assert await executors.rescue(bench.connection, []) == []
    assert await executors.rescue(bench.connection, [mark]) == [(executor, "app", 2)]


@pytest.fixture
async def without_lease(bench, holding):
    """As `holding`, without the session; the row of its lease is missing."""
    executor, session, held = holding
    await session.close()
    await bench.connection.execute("DELETE FROM joex_private.lease")
    return executor, held, [Mark(3601, await take_horizon(bench.connection))]


async def test_an_executor_whose_lease_is_missing_is_dead_when_a_judge_has_watched_for_its_lease(bench, without_lease):
    executor, _, marks = without_lease
    assert await executors.rescue(bench.connection, []) == []
    assert await executors.rescue(bench.connection, marks) == [(executor, "app", 2)]


@pytest.mark.parametrize("how", ["gone", "watched"])
async def test_an_app_id_whose_executor_has_no_lease_is_free_for_the_next_one(bench, without_lease, how):
    executor, held, marks = without_lease
    waiting = await bench.register("app", watched=0)
    assert (waiting.id, waiting.other.id, waiting.other.silent) == (None, executor, None)
    [listed] = await executors.list_executors(bench.connection)
    assert listed.heartbeat_at == listed.started_at
    if how == "watched":
        await executors.rescue(bench.connection, marks)
    more = {"gone": {"gone": executor}, "watched": {}}[how]
    assert (await bench.register("app", watched=0, **more)).id is not None
    assert [await bench.state(job_id) for job_id in held] == ["waiting", "waiting"]


async def test_a_newcomer_replaces_its_predecessor_for_silence_that_it_has_watched_itself(bench, holding):
    executor, session, _ = holding
    await session.close()
    await bench.silence(executor, leases=1000)
    assert (await bench.register("app", watched=3599)).id is None
    registered = await bench.register("app", watched=3601)
    assert (registered.id is not None, registered.reclaimed) == (True, 2)


async def test_a_newcomer_replaces_a_predecessor_that_is_dead_and_not_one_that_is_merely_late(bench, holding):
    executor, session, _ = holding
    await bench.silence(executor, leases=1.1)
    assert (await bench.register("app")).id is None
    await session.close()

    async def register():
        return (await bench.register("app")).id

    assert await register() is not None
    assert await bench.held(executor) == []


async def test_rescuers_that_meet_rescue_each_executor_once(bench, another_connection):
    for nr in range(5):
        executor = await bench.executor(f"e{nr}")
        await bench.job_in("running", executor)
        await bench.silence(executor, leases=5.1)
    connections = [await another_connection() for _ in range(4)]
    found = await asyncio.gather(*(bench.rescue(connection=connection) for connection in connections))
    assert sorted(app_id for rescued in found for _, app_id, _ in rescued) == [f"e{nr}" for nr in range(5)]
    assert await bench.connection.fetchval("SELECT array_agg(DISTINCT losses) FROM joex_private.job") == [1]


async def test_jobs_come_back_to_their_old_place_in_the_line(bench):
    executor = await bench.executor("old")
    first = await bench.job_in("running", executor)
    await bench.submit()
    await end(bench, executor)
    assert (await bench.take_one(await bench.executor("new"))).id == first


async def test_a_job_that_has_been_lost_too_often_fails_because_it_may_be_what_kills_executors(bench):
    job_id = await bench.submit()
    for nr in range(3):
        executor = await bench.executor(f"e{nr}", most_losses=2)
        await bench.start(await bench.take_one(executor))
        await end(bench, executor)
    job = await bench.job(job_id)
    assert (job.state, job.losses, job.failures) == ("failed", 3, 0)
    assert "lost 3 times" in (job.error or "")


@pytest.mark.parametrize("how", ["its executor died", "it was late"])
async def test_the_executor_that_has_lost_a_job_says_whether_it_fails_and_not_who_puts_it_back(bench, how):
    """Each pool has a setting of its own, and whichever executor or operator comes first looks after all of them."""
    await bench.connection.execute("SELECT joex_client.set_timeout('a', '1h')")
    lost = {}
    for most_losses in (0, 5):
        lost[most_losses] = await bench.submit()
        taker = await bench.executor(f"allows {most_losses}", most_losses=most_losses, locks=True)
        await bench.start(await bench.take_one(taker))
        await bench.silence(taker, leases=1.1)
    if how == "it was late":
        await bench.connection.execute("UPDATE joex_private.job SET overdue_at = now()")
        assert len(await timeouts.recover_overdue(bench.connection)) == 2
    else:
        assert len(await rescue(bench)) == 2
    assert [(await bench.job(job)).state for job in lost.values()] == ["failed", "waiting"]


async def test_an_executor_that_leaves_fails_no_job_that_others_have_lost_more_often_than_it_allows(bench):
    job_id = await bench.submit()
    taker = await bench.executor("lost it")
    await bench.start(await bench.take_one(taker))
    await end(bench, taker)
    taker = await bench.executor("allows none", most_losses=0)
    await bench.start(await bench.take_one(taker))
    await executors.leave(bench.connection, taker)
    assert (await bench.job(job_id)).state == "waiting"


async def lost(bench, nr, *, start=True):
    """An executor takes all waiting jobs, and dies; returns these jobs."""
    executor = await bench.executor(f"lost-{nr}")
    taken = await bench.take(executor, 10)
    if start:
        await bench.start(*taken)
    await end(bench, executor)
    return taken


async def test_a_job_that_executors_died_with_twice_is_a_suspect_whether_it_had_started_or_not(bench):
    job_id = await bench.submit()
    for nr in range(2):
        assert [job.suspect for job in await lost(bench, nr, start=nr == 0)] == [False]
    [taken] = await bench.take(await bench.executor())
    assert (taken.id, taken.suspect) == (job_id, True)
    lines = [line.message for line in await job_logs.job_log(bench.connection, job_id)]
    assert [line.endswith("; it runs alone from now on") for line in lines] == [False, True]


async def test_a_suspect_is_charged_with_the_death_of_an_executor_on_which_it_had_started_and_with_no_other(bench):
    job_id = await bench.submit()
    for nr, (start, losses) in enumerate([(True, 1), (True, 2), (False, 2), (False, 2), (True, 3), (False, 3)]):
        [job] = await lost(bench, nr, start=start)
        assert (job.id, (await bench.job(job_id)).losses) == (job_id, losses)
    assert "given back" not in str(await job_logs.job_log(bench.connection, job_id))


@pytest.mark.parametrize(
    ("how", "stays"),
    [
        ("failed", False),
        ("failed itself", False),
        ("given back", True),
        ("late", True),
        ("unstarted", True),
        ("worker", True),
        ("failed while its row was locked", False),
    ],
)
async def test_a_suspect_whose_run_has_come_to_its_end_runs_beside_others_again(bench, another_connection, how, stays):
    """Or each of its retries would keep an executor from the jobs of all others. A worker's process is no executor."""
    await bench.connection.execute("SELECT joex_client.set_timeout('a', '1h')")
    job_id = await bench.submit()
    for nr in range(2):
        await lost(bench, nr)
    if how == "worker":
        lock_id = await bench.connection.fetchval("SELECT lock_id FROM joex_client.accept('default')")
    else:
        taken = await bench.take_one(await bench.executor())
        lock_id = taken.lock_id
        assert taken.suspect
        if how == "failed while its row was locked":
            other = await another_connection()
            async with other.transaction():
                await other.execute("SELECT joex.set_priority($1, 'high')", job_id)
                assert await runs.mark_start(bench.connection, job_id, lock_id)
        elif how != "unstarted":
            assert await runs.mark_start(bench.connection, job_id, lock_id)
    ended = partial(runs.EndedRun, job_id, lock_id)
    if how in ("failed", "failed while its row was locked"):
        assert await runs.finish_many(bench.connection, [ended(state="stuck", delay=0.0, age=1.0)]) == []
    elif how in ("failed itself", "worker"):
        await bench.connection.execute("SELECT joex.finish($1, $2, state => 'stuck', delay => '0 s')", job_id, lock_id)
    elif how == "late":
        await bench.connection.execute("UPDATE joex_private.job SET overdue_at = now()")
        await timeouts.recover_overdue(bench.connection)
    else:
        age = 1.0 if how == "given back" else None
        assert await runs.finish_many(bench.connection, [ended(state="waiting", age=age)]) == []
    again = await bench.take_one(await bench.executor("another"))
    assert (again.id, again.suspect, again.losses) == (job_id, stays, 3 if how == "late" else 2)


async def test_a_suspect_that_has_run_alone_is_one_again_with_the_next_death_and_is_not_charged_with_it(bench):
    """It ran beside others, which may have killed the executor: deaths while it runs alone are charged to it again."""
    job_id = await bench.submit()
    for nr in range(2):
        await lost(bench, nr)
    taken = await bench.take_one(await bench.executor())
    assert await runs.mark_start(bench.connection, job_id, taken.lock_id)
    await bench.finish(taken, "stuck", delay=0.0, age=1.0)
    for nr, (start, suspect, losses) in enumerate([(False, False, 2), (True, False, 2), (True, True, 3)], start=2):
        [taken] = await lost(bench, nr, start=start)
        assert (taken.id, taken.suspect, (await bench.job(job_id)).losses) == (job_id, suspect, losses)
    lines = [line.message for line in await job_logs.job_log(bench.connection, job_id)]
    assert [line[:4] for line in lines] == ["lost", "lost", "fail", "lost", "lost"]


async def test_a_job_that_was_put_back_for_its_timeout_alone_is_no_suspect(bench):
    await bench.connection.execute("SELECT joex_client.set_timeout('a', '1h')")
    await bench.submit()
    executor = await bench.executor()
    for _ in range(3):
        taken = await bench.take_one(executor)
        assert not taken.suspect
        await bench.start(taken)
        await bench.connection.execute("UPDATE joex_private.job SET overdue_at = now()")
        await bench.connection.execute("SELECT joex_private.recover_overdue()")


async def test_a_job_that_was_put_back_for_its_timeout_twice_before_its_start_has_one_from_its_start_on_then(
    bench,
):
    """It may have waited for a process, or its code may block the loop: it is charged again once it has started."""
    await bench.connection.execute("SELECT joex_client.set_timeout('a', '1h')")
    job_id, executor = await bench.submit(), await bench.executor()
    for losses in (1, 2):
        assert (await bench.take_one(executor)).losses == losses - 1
        await bench.connection.execute("UPDATE joex_private.job SET overdue_at = now()")
        await bench.connection.execute("SELECT joex_private.recover_overdue()")
        assert (await bench.job(job_id)).losses == losses
    taken = await bench.take_one(executor)
    assert (taken.losses, taken.suspect) == (2, False)
    overdue_at = "SELECT overdue_at FROM joex_private.job"
    assert await bench.connection.fetchval(overdue_at) is None
    await executors.leave(bench.connection, executor)
    assert (await bench.job(job_id)).losses == 2
    taken = await bench.take_one(await bench.executor("another"))
    assert await runs.mark_start(bench.connection, job_id, taken.lock_id)
    assert await bench.connection.fetchval(overdue_at) is not None
    await bench.connection.execute("UPDATE joex_private.job SET overdue_at = now()")
    await bench.connection.execute("SELECT joex_private.recover_overdue()")
    assert (await bench.job(job_id)).losses == 3


@pytest.mark.parametrize("end", ["told", "left"])
async def test_a_run_whose_timeout_has_ended_counts_for_its_group_until_its_executor_has_said_that_it_is_over(
    bench, end
):
    """Code in a thread may go on for long. Else a group with short timeouts and long jobs would have all slots."""
    await bench.connection.execute("SELECT joex_client.set_timeout('a', '1h')")
    executor = await bench.executor()
    for _ in range(4):
        await bench.submit("acme")
    overrun = await bench.take(executor, 2)
    await bench.start(*overrun)
    await bench.connection.execute("UPDATE joex_private.job SET overdue_at = now() WHERE lane IS NULL")
    await bench.connection.execute("SELECT joex_private.recover_overdue()")
    others = [await bench.submit("zoo") for _ in range(2)]
    mine = await bench.take(executor, 2)
    assert {job.id for job in mine} == set(others)
    await stats.set_group(bench.connection, "acme", "default", max_running=2)
    held = [(job.id, job.lock_id) for job in (*overrun, *mine)]
    assert not (await executors.check_runs(bench.connection, executor, held)).draining
    assert await bench.take(executor, 4) == []
    if end == "told":
        await executors.check_runs(bench.connection, executor, held[1:])
        assert [job.group for job in await bench.take(executor, 4)] == ["acme"]
    else:
        await executors.leave(bench.connection, executor)
        taken = await bench.take(await bench.executor("another"), 4)
        assert sorted(job.group for job in taken) == ["acme", "acme", "zoo", "zoo"]


async def test_the_end_of_an_executor_wakes_another_for_a_group_whose_limit_its_overrun_used_up(
    bench, another_connection
):
    await bench.connection.execute("SELECT joex_client.set_timeout('a', '1h')")
    await stats.set_group(bench.connection, "acme", "default", max_running=1)
    executor, another = await bench.executor("one"), await bench.executor("another")
    await bench.submit("acme")
    run = await bench.take_one(executor)
    await bench.start(run)
    await bench.connection.execute("UPDATE joex_private.job SET overdue_at = now()")
    await timeouts.recover_overdue(bench.connection)
    # The executor has noted this already: it holds the job no more.
    await executors.note_overruns(bench.connection, executor, [run], [])
    assert await bench.take(another) == []
    for sleeper in (another, executor):
        await executors.fall_asleep(bench.connection, sleeper)
    listener, heard = await another_connection(), asyncio.Event()
    await listener.add_listener("joex_wake", lambda *given: heard.set() if str(another) in given[-1] else None)
    await end(bench, executor)
    async with asyncio.timeout(30):
        await heard.wait()
    assert [job.group for job in await bench.take(another)] == ["acme"]


async def test_a_worker_that_puts_back_the_overdue_run_of_an_executor_keeps_it_from_no_end(bench, another_connection):
    """The worker may leave its transaction open. What it has noted of the run goes with a later search."""
    await bench.connection.execute("SELECT joex_client.set_timeout('a', '1h')")
    await bench.submit()
    executor, other = await bench.executor(), await another_connection()
    await bench.take_one(executor)
    await bench.connection.execute("UPDATE joex_private.job SET overdue_at = now()")
    async with other.transaction(), asyncio.timeout(30):
        await other.execute("SELECT joex_client.accept('default')")
        await executors.leave(bench.connection, executor)
    overruns = "SELECT count(*) FROM joex_private.overrun"
    assert await bench.connection.fetchval(overruns) == 1
    await timeouts.recover_overdue(bench.connection)
    assert await bench.connection.fetchval(overruns) == 0


async def test_the_timeout_of_a_suspect_begins_when_it_starts_and_that_of_a_worker_when_it_accepts(bench):
    await bench.connection.execute("SELECT joex_client.set_timeout('a', '1h')")
    job_id = await bench.submit()
    await bench.connection.execute("UPDATE joex_private.job SET suspect = true, losses = 2")
    taken = await bench.take_one(await bench.executor())

    async def timeout():
        return await bench.connection.fetchval(
            "SELECT round(extract(epoch FROM overdue_at - clock_timestamp())) FROM joex_private.job"
        )

    assert await timeout() is None
    assert not await runs.mark_start(bench.connection, job_id, uuid4())
    assert await runs.mark_start(bench.connection, job_id, taken.lock_id)
    assert not await runs.mark_start(bench.connection, job_id, taken.lock_id)
    job = await bench.job(job_id)
    assert (job.state, job.attempt) == ("running", 1)
    assert 3500 < await timeout() <= 3600
    assert await bench.finish(taken, "waiting", age=1.0) == []
    assert (await bench.job(job_id)).attempt == 0
    await bench.connection.execute("SELECT joex_client.accept('default')")
    assert 3500 < await timeout() <= 3600


@pytest.mark.parametrize("activity", [True, False])
async def test_the_timeout_of_a_run_that_has_waited_in_its_slot_begins_when_it_starts(bench, activity):
    """As runs in processes may, where there are more slots than processes."""
    await bench.connection.execute("SELECT joex_client.set_timeout('a', '1h', $1)", activity)
    await bench.submit()
    taken = await bench.take_one(await bench.executor())
    await bench.connection.execute("""
        UPDATE joex_private.job
        SET scheduled_at = scheduled_at - interval '50 min', overdue_at = overdue_at - interval '50 min'""")
    await runs.start_many(bench.connection, [(taken.id, taken.lock_id, 600.0)])
    left = await bench.connection.fetchval(
        "SELECT extract(epoch FROM overdue_at - clock_timestamp()) FROM joex_private.job"
    )
    assert 2900 < left <= 3000


async def test_the_mark_of_a_run_that_has_not_waited_changes_no_time_of_it(bench):
    """To change it would write the job into each index of the table."""
    await bench.connection.execute("SELECT joex_client.set_timeout('a', '1h')")
    await bench.submit()
    taken = await bench.take_one(await bench.executor())
    read = "SELECT overdue_at FROM joex_private.job"
    before = await bench.connection.fetchval(read)
    await bench.connection.execute("UPDATE joex_private.job SET scheduled_at = 'tomorrow'")  # (no slow test waits)
    await bench.start(taken)
    assert await bench.connection.fetchval(read) == before


async def test_suspects_whose_rows_are_locked_start_and_are_charged_with_the_death_of_their_executor(
    bench, another_connection
):
    """Else a tenant could keep the rows of its suspects locked, and close executors for one after the other."""
    other = await another_connection()
    job_ids = [await bench.submit() for _ in range(3)]
    await bench.connection.execute("UPDATE joex_private.job SET suspect = true, losses = 2")
    executor = await bench.executor("me")
    taken = await bench.take(executor, 3)  # (each of them has run for a minute before the next one starts)
    await bench.connection.execute("SET lock_timeout = '1min'")
    locking = other.transaction()
    await locking.start()
    await other.execute("SELECT joex.cancel(id) FROM joex_private.job")
    async with asyncio.timeout(30):
        assert not await runs.mark_start(bench.connection, job_ids[0], uuid4())
        for job in taken[:2]:
            assert await runs.mark_start(bench.connection, job.id, job.lock_id)
    await locking.rollback()
    await end(bench, executor)
    jobs_now = [await bench.job(job_id) for job_id in job_ids]
    assert [(job.losses, job.attempt) for job in jobs_now] == [(3, 1), (3, 1), (2, 0)]
    started = "SELECT started_at IS NOT NULL FROM joex.attempts($1)"
    assert [await bench.connection.fetchval(started, job_id) for job_id in job_ids] == [True, True, None]


@pytest.mark.parametrize(("renewable", "left"), [(True, 3600), (False, 3000)])
async def test_a_suspect_whose_row_was_locked_at_its_start_is_marked_later_with_its_timeout(
    bench, another_connection, renewable, left
):
    """What it has reported meanwhile has renewed nothing."""
    await bench.connection.execute("SELECT joex_client.set_timeout('a', '1h', $1)", renewable)
    job_id, other = await bench.submit(), await another_connection()
    await bench.connection.execute("UPDATE joex_private.job SET suspect = true, losses = 2")
    taken = await bench.take_one(await bench.executor())
    start = [(job_id, taken.lock_id, 600.0)]
    async with other.transaction():
        await other.execute("SELECT joex.cancel($1)", job_id)
        assert await runs.mark_start(bench.connection, job_id, taken.lock_id)
        assert await runs.start_many(bench.connection, start) == {taken.lock_id}
    await runs.start_many(bench.connection, start)
    found = await bench.connection.fetchrow(
        "SELECT extract(epoch FROM overdue_at - clock_timestamp()) AS left, renew_by FROM joex_private.job"
    )
    assert left - 100 < found["left"] <= left
    assert (found["renew_by"] is not None) == renewable


async def test_the_start_of_another_job_that_was_lost_twice_waits_for_no_lock(bench, another_connection):
    job_id, other = await bench.submit(), await another_connection()
    await bench.connection.execute("UPDATE joex_private.job SET losses = 2")
    taken = await bench.take_one(await bench.executor())
    await bench.connection.execute("SET lock_timeout = '1min'")
    async with other.transaction(), asyncio.timeout(30):
        await other.execute("SELECT joex.cancel($1)", job_id)
        with pytest.raises(DatabaseUnavailable, match="another transaction holds"):
            await runs.mark_start(bench.connection, job_id, taken.lock_id)
    assert await bench.finish(taken, "waiting") == ["canceled"]


@pytest.mark.parametrize("statement", ["joex.retry($1)", "joex_client.resubmit($1)"])
async def test_a_job_that_is_run_anew_by_hand_is_no_suspect_any_more(bench, statement):
    job_id = await bench.job_in("failed", await bench.executor())
    await bench.connection.execute("UPDATE joex_private.job SET losses = 6, suspect = true")
    await bench.connection.execute(f"SELECT {statement}", job_id)
    assert not (await bench.take_one(await bench.executor("another"))).suspect


async def test_an_executor_that_stands_aside_is_not_woken_and_others_are_for_what_waits(bench, another_connection):
    me, other = await bench.executor("me"), await bench.executor("other")
    for executor in (other, me):
        await executors.fall_asleep(bench.connection, executor)
    listener = await another_connection()
    heard = []
    await listener.add_listener("joex_wake", lambda *arguments: heard.append(json.loads(arguments[-1])["executors"]))
    await bench.submit()
    await executors.stand_aside(bench.connection, me, ["default"])
    await bench.submit()
    await eventually(lambda: len(heard) == 3)
    assert heard == [[me], [other], [other]]


async def test_an_orderly_leave_is_no_loss(bench):
    executor = await bench.executor()
    job_id = await bench.job_in("running", executor)
    assert await executors.leave(bench.connection, executor) == 1
    job = await bench.job(job_id)
    assert (job.state, job.losses) == ("waiting", 0)


async def test_a_job_with_a_cancel_request_is_cancelled_when_its_executor_dies(bench):
    executor = await bench.executor()
    job_id = await bench.job_in("running", executor)
    await jobs.cancel(bench.connection, job_id)
    await end(bench, executor)
    assert await bench.state(job_id) == "cancelled"


async def test_ending_an_executor_twice_puts_its_jobs_back_once(bench):
    executor = await bench.executor()
    job_id = await bench.job_in("running", executor)
    assert await end(bench, executor) == 1
    assert await end(bench, executor) == 0
    assert (await bench.job(job_id)).losses == 1


async def test_jobs_that_come_back_wake_who_sleeps(bench, another_connection):
    dead, sleeper = await bench.executor("dead"), await bench.executor("sleeper")
    await bench.job_in("running", dead)
    await executors.fall_asleep(bench.connection, sleeper)
    listener = await another_connection()
    heard = asyncio.get_running_loop().create_future()
    await listener.add_listener("joex_wake", lambda *arguments: heard.set_result(json.loads(arguments[-1])))
    await end(bench, dead)
    assert await asyncio.wait_for(heard, 30) == {"queue": "default", "executors": [sleeper]}


@pytest.mark.parametrize(("how", "losses"), [("dead", 1), ("left", 0)])
async def test_a_job_whose_row_somebody_holds_when_its_executor_ends_follows_when_the_row_is_free(
    bench, another_connection, how, losses
):
    executor, other = await bench.executor(), await another_connection()
    locked, free = await bench.job_in("running", executor), await bench.job_in("running", executor)
    async with other.transaction():
        await other.execute("SELECT FROM joex_private.job WHERE id = $1 FOR UPDATE", locked)
        assert await end(bench, executor, how) == 1
        assert [await bench.state(job_id) for job_id in (locked, free)] == ["running", "waiting"]
        await rescue(bench)
        assert await bench.state(locked) == "running"
    assert await rescue(bench) == [executor]
    job = await bench.job(locked)
    assert (job.state, job.losses) == ("waiting", losses)
    assert await rescue(bench) == []


# Heartbeat.


async def test_a_heartbeat_renews_the_lease(bench):
    executor = await bench.executor()
    await bench.silence(executor, leases=5.1)
    assert await executors.heartbeat(bench.connection, executor)
    assert await rescue(bench) == []


async def test_an_executor_that_was_declared_dead_learns_it_with_its_next_heartbeat_and_is_not_revived(bench):
    executor = await bench.executor()
    await end(bench, executor)
    assert await executors.heartbeat(bench.connection, executor) is None
    [found] = await executors.list_executors(bench.connection, ended=True)
    assert found.state == "dead"


async def test_a_heartbeat_that_meets_a_rescue_waits_for_it_and_comes_too_late(
    bench, another_connection, waiting_for_a_lock
):
    executor = await bench.executor()
    await bench.silence(executor, leases=5.1)
    rescuer, heart = await another_connection(), await another_connection()
    transaction = rescuer.transaction()
    await transaction.start()
    assert len(await bench.rescue(connection=rescuer)) == 1
    async with waiting_for_a_lock(bench.connection, executors.heartbeat(heart, executor)) as beating:
        await transaction.commit()
    assert await beating is None


async def test_a_rescue_that_meets_a_heartbeat_leaves_the_executor_alone(bench, another_connection):
    executor = await bench.executor()
    await bench.silence(executor, leases=5.1)
    heart = await another_connection()
    async with heart.transaction():
        assert await executors.heartbeat(heart, executor)
        assert await rescue(bench) == []


async def test_a_heartbeat_waits_for_nobody_who_has_locked_its_executors_row(bench, another_connection):
    """A drain of all executors locks rows while it waits for the take of another executor."""
    executor, other = await bench.executor(), await another_connection()
    await bench.connection.execute("SET lock_timeout = '1ms'")
    async with other.transaction():
        await other.execute("UPDATE joex_private.executor SET draining = true")
        assert await executors.heartbeat(bench.connection, executor)


async def test_a_heartbeat_writes_nothing_that_submissions_read(bench):
    """Submissions search for sleeping executors.

    While vacuum is pinned they would read the dead entries of each heartbeat.
    """
    executor = await bench.executor()
    await executors.fall_asleep(bench.connection, executor)
    async with bench.connection.transaction():
        written = "SELECT pg_stat_get_xact_tuples_updated('joex_private.executor'::regclass)"
        before = await bench.connection.fetchval(written)
        assert await executors.heartbeat(bench.connection, executor)
        assert await bench.connection.fetchval(written) == before


async def test_an_executor_learns_which_of_its_runs_are_lost_and_which_are_to_be_cancelled(bench):
    executor = await bench.executor()
    for _ in range(4):
        await bench.submit()
    fine, cancelled, foreign, done = await bench.take(executor, 4)
    await jobs.cancel(bench.connection, cancelled.id)
    await bench.connection.execute("UPDATE joex_private.job SET lock_id = $2 WHERE id = $1", foreign.id, uuid4())
    await bench.finish(done)
    deleted, earlier = uuid4(), uuid4()
    found = await executors.check_runs(
        bench.connection,
        executor,
        [
            (fine.id, earlier),
            *((job.id, job.lock_id) for job in (fine, cancelled, foreign, done)),
            (uuid4(), deleted),
        ],
    )
    assert set(found.lost) == {foreign.lock_id, deleted, earlier}  # a job that it has just finished itself is not lost
    assert found.cancel == [cancelled.id]


async def test_a_look_finds_work_that_may_run_now(bench):
    executor = await bench.executor(queues=["default", "mail"])

    async def there_is_work():
        return await executors.has_work(bench.connection, ["default", "mail"])

    await bench.submit(queue="elsewhere")
    later = await bench.submit(not_before=datetime(2100, 1, 1, tzinfo=UTC))
    assert not await there_is_work()
    await bench.connection.execute("UPDATE joex_private.job SET due_at = clock_timestamp() WHERE id = $1", later)
    assert await there_is_work()
    await bench.take_one(executor)
    assert not await there_is_work()
    await bench.submit(queue="mail")
    assert await there_is_work()


# Sleep.


async def test_a_sleeper_learns_when_the_next_job_of_its_queues_is_due(bench):
    assert (await executors.sleep_state(bench.connection, 1, ["default"])).next_due is None
    for queue, hours in (("default", 2), ("default", 1), ("elsewhere", 0.5)):
        await bench.submit(queue=queue, not_before=datetime.now(UTC) + timedelta(hours=hours))
    due = (await executors.sleep_state(bench.connection, 1, ["default", "mail"])).next_due
    assert due is not None
    assert 1800 < due <= 3600
    await bench.connection.execute("UPDATE joex_private.job SET due_at = due_at - interval '3 hours'")
    overdue = (await executors.sleep_state(bench.connection, 1, ["default"])).next_due
    assert overdue is not None
    assert overdue < 0


async def test_a_sleeper_sees_that_a_transaction_that_was_open_when_it_fell_asleep_has_ended(
    bench, client, another_connection
):
    """It may have submitted a job without seeing the sleeper; when it has ended, one more take finds the job."""
    executor, submitter = await bench.executor(), await another_connection()
    transaction = submitter.transaction()
    await transaction.start()
    await client.submit("a", connection=submitter)
    await executors.fall_asleep(bench.connection, executor)
    horizon = await take_horizon(bench.connection)
    assert (await executors.sleep_state(bench.connection, executor, ["default"])).oldest_xid < horizon
    await transaction.commit()
    assert (await executors.sleep_state(bench.connection, executor, ["default"])).oldest_xid >= horizon
    assert len(await bench.take(executor)) == 1


async def test_an_executor_that_has_ended_does_not_fall_asleep(bench):
    executor = await bench.executor()
    await end(bench, executor)
    await executors.fall_asleep(bench.connection, executor)
    assert not await bench.connection.fetch("TABLE joex_private.sleeper")


# Drain.


async def test_a_draining_executor_takes_nothing_more_and_finishes_what_it_has(bench):
    executor = await bench.executor("app")
    await bench.submit()
    await bench.submit()
    held = await bench.take_one(executor)
    assert await executors.drain(bench.connection, "app") == ["app"]
    assert await bench.take(executor) == []
    assert (await executors.check_runs(bench.connection, executor, [])).draining
    assert await bench.finish(held) == []


async def test_an_executor_that_has_ended_does_not_hear_that_it_drains_for_it_starts_over(bench):
    executor = await bench.executor("app")
    await end(bench, executor)
    await executors.show_drain(bench.connection, executor)  # as an executor does that finds its registration ended
    assert not (await executors.check_runs(bench.connection, executor, [])).draining


async def test_draining_reaches_the_executor_named_or_all_that_live(bench):
    for name in ("one", "two", "gone"):
        await bench.executor(name)
    [gone] = [e.id for e in await executors.list_executors(bench.connection) if e.app_id == "gone"]
    await end(bench, gone)
    assert await executors.drain(bench.connection, "two") == ["two"]
    assert await executors.drain(bench.connection, "nobody") == []
    assert sorted(await executors.drain(bench.connection, None)) == ["one", "two"]


async def test_a_draining_executor_is_told(bench, another_connection):
    executor = await bench.executor("app")
    listener = await another_connection()
    heard = asyncio.get_running_loop().create_future()
    await listener.add_listener("joex_control", lambda *arguments: heard.set_result(json.loads(arguments[-1])))
    await executors.drain(bench.connection, "app")
    assert await asyncio.wait_for(heard, 30) == {"executor": executor}


async def test_a_draining_executor_is_not_woken(bench, another_connection):
    draining, asleep = await bench.executor("draining"), await bench.executor("asleep")
    for executor in (asleep, draining):
        await executors.fall_asleep(bench.connection, executor)
    await executors.drain(bench.connection, "draining")
    listener = await another_connection()
    heard = asyncio.get_running_loop().create_future()
    await listener.add_listener("joex_wake", lambda *arguments: heard.set_result(json.loads(arguments[-1])))
    await bench.submit()
    assert (await asyncio.wait_for(heard, 30))["executors"] == [asleep]


async def test_when_a_drain_has_returned_no_take_that_was_under_way_can_add_jobs(
    bench, another_connection, waiting_for_a_lock
):
    executor = await bench.executor("app")
    await bench.submit()
    taker, drainer = await another_connection(), await another_connection()
    transaction = taker.transaction()
    await transaction.start()
    assert len(await runs.take(taker, executor, ["default"], 1, CountingScheme(4, 1))) == 1
    draining = executors.drain(drainer, "app")
    async with waiting_for_a_lock(bench.connection, draining) as task:
        held_at_the_drains_end = await bench.held(executor) if task.done() else None
        await transaction.commit()
    if held_at_the_drains_end is not None:
        assert await bench.held(executor) == held_at_the_drains_end


async def test_a_rescue_that_meets_a_take_leaves_no_job_with_a_dead_executor(bench, another_connection):
    """A rescue skips an executor whose take is under way; after the commit of the take, a rescue finds all jobs."""
    executor, taker = await bench.executor(), await another_connection()
    job_id = await bench.submit()
    await bench.silence(executor, leases=5.1)
    async with taker.transaction():
        assert len(await runs.take(taker, executor, ["default"], 1, CountingScheme(4, 1))) == 1
        assert await rescue(bench) == []
    assert await rescue(bench) == [executor]
    assert await bench.state(job_id) == "waiting"


# Rows of executors long gone.


async def test_executors_that_ended_long_ago_are_forgotten_and_others_are_not(bench, another_connection):
    gone, orphaned, just, _ = [await bench.executor(name) for name in ("gone", "orphaned", "just", "alive")]
    held = await bench.job_in("running", orphaned)
    other = await another_connection()
    async with other.transaction():
        await other.execute("SELECT FROM joex_private.job WHERE id = $1 FOR UPDATE", held)
        for executor in (gone, orphaned, just):
            await end(bench, executor)
        await bench.connection.execute(
            "UPDATE joex_private.executor SET left_at = left_at - interval '2 hours' WHERE id <> $1 "
            "AND left_at IS NOT NULL",
            just,
        )
        await executors.forget_ended(bench.connection, HOUR)
        left = {found.app_id for found in await executors.list_executors(bench.connection, ended=True)}
    assert left == {"orphaned", "just", "alive"}


async def test_what_an_executor_holds_without_knowing_it_is_given_back_and_what_it_knows_stays(connection, bench):
    """The answer to a take was lost with its connection: the executor holds jobs that it does not know."""
    me = await bench.executor("me")
    ids = [await connection.fetchval("SELECT joex.submit('a')") for _ in range(3)]
    taken = await connection.fetch("SELECT id, lock_id FROM joex_private.take($1, '{default}', 3)", me)
    known = [row["lock_id"] for row in taken if row["id"] == ids[1]]
    assert await connection.fetchval("SELECT joex_private.give_back_unknown($1, 1, $2)", me, known) == 2
    states = await connection.fetch("SELECT id, state::text, attempt, losses FROM joex_private.job ORDER BY seq")
    assert [tuple(row) for row in states] == [
        (ids[0], "waiting", 0, 0),
        (ids[1], "scheduled", 0, 0),
        (ids[2], "waiting", 0, 0),
    ]


async def test_an_executor_gives_back_what_it_does_not_know_beside_a_transaction_that_stays_open_and_takes_jobs(
    bench, another_connection
):
    """One tenant has cancelled its job there: the executor passes over that job, and hears that one is left."""
    me, other = await bench.executor("me"), await another_connection()
    theirs, mine = await bench.submit("theirs"), await bench.submit("mine")
    await bench.take(me, 2)
    await bench.connection.execute("SET lock_timeout = '5s'")
    async with other.transaction():
        await other.execute("SELECT joex.cancel($1)", theirs)
        assert await executors.give_back_unknown(bench.connection, me, 1, []) == 2
        assert [job.id for job in await bench.take(me, give_back_nr=1)] == [mine]
        assert await executors.give_back_unknown(bench.connection, me, 2, []) == 2
    assert await executors.give_back_unknown(bench.connection, me, 3, []) == 1
    assert await executors.give_back_unknown(bench.connection, me, 4, []) == 0
    assert (await bench.state(theirs), await bench.state(mine)) == ("cancelled", "waiting")


async def test_a_give_back_that_comes_late_takes_no_job_from_its_executor(bench):
    """The executor has given it up, given back with another statement, and taken jobs since."""
    me = await bench.executor()
    await bench.submit()
    assert await executors.give_back_unknown(bench.connection, me, 2, []) == 0
    [job] = await bench.take(me, give_back_nr=2)
    for late in (1, 2):
        assert await executors.give_back_unknown(bench.connection, me, late, []) == 0
    assert await bench.state(job.id) == "scheduled"
    assert await executors.give_back_unknown(bench.connection, me, 3, []) == 1


async def test_a_take_that_comes_after_a_give_back_gets_nothing(bench, another_connection, waiting_for_a_lock):
    """The executor has given it up, so it would never know of the jobs; also where it has begun before."""
    me, other = await bench.executor(), await another_connection()
    job_id = await bench.submit()
    watcher = await another_connection()
    async with other.transaction():
        await executors.give_back_unknown(other, me, 1, [])
        async with waiting_for_a_lock(watcher, bench.take(me)) as late:
            await other.execute("COMMIT; BEGIN")
    assert await late == []
    assert await bench.take(me) == []
    assert [job.id for job in await bench.take(me, give_back_nr=1)] == [job_id]


async def test_an_executor_that_stood_aside_too_late_sleeps_on(bench):
    """It has given the statement up, and fallen asleep since."""
    me = await bench.executor()
    await executors.give_back_unknown(bench.connection, me, 1, [])
    await executors.fall_asleep(bench.connection, me, give_back_nr=1)
    for nr, sleepers in ((0, 1), (1, 0)):
        await executors.stand_aside(bench.connection, me, ["default"], give_back_nr=nr)
        assert await bench.connection.fetchval("SELECT count(*) FROM joex_private.asleep") == sleepers


async def test_an_announcement_to_sleep_that_comes_after_a_give_back_makes_no_sleeper(bench):
    """The executor has given it up, and may be at work: it would get the wake-ups of those that sleep."""
    me = await bench.executor()
    await executors.give_back_unknown(bench.connection, me, 1, [])
    for nr, sleepers in ((0, 0), (1, 1)):
        await executors.fall_asleep(bench.connection, me, give_back_nr=nr)
        assert await bench.connection.fetchval("SELECT count(*) FROM joex_private.asleep") == sleepers


async def test_a_give_back_of_an_executor_that_has_ended_leaves_its_jobs_to_those_who_count_losses(bench):
    me = await bench.executor()
    await bench.submit()
    await bench.take_one(me)
    await bench.connection.execute("SELECT joex_private.mark_ended($1, 'dead')", me)
    assert await executors.give_back_unknown(bench.connection, me, 1, []) == 0
    assert await bench.held(me) != []


# Snapshots: a decision after a wait for a lock is based on the rows after the wait.

MUST_SEE_THE_LATEST = {
    "take": "joex_private.take($1, '{default}', 4)",
    "fall_asleep": "joex_private.fall_asleep($1)",
    "end_executor": "joex_private.end_executor($1, 'left')",
    "give_back_unknown": "joex_private.give_back_unknown($1, 1, '{}')",
    "rescue": "joex_private.rescue('{}', '{}') WHERE $1 > 0",
    "retire": "joex_private.retire('me', true) WHERE $1 > 0",
    "drain": "joex_client.drain(NULL) WHERE $1 > 0",
    "pod_gone": "joex_private.pod_gone('pod') WHERE $1 > 0",
    "register": """joex_private.register('b', NULL, 'h', '', 1, '', '0', '{default}', '{}', 1, NULL, '1s', false, 5)
                   WHERE $1 > 0""",
}


async def test_what_must_see_the_latest_is_refused_where_it_would_judge_by_an_old_snapshot(bench):
    executor = await bench.executor(pod_uid="pod")
    await bench.submit()
    for call, isolation in product(MUST_SEE_THE_LATEST.values(), ("repeatable_read", "serializable")):
        with pytest.raises(ConfigError, match=r"READ COMMITTED.*default_transaction_isolation"), translated():
            async with bench.connection.transaction(isolation=isolation):
                await bench.connection.fetch(f"SELECT {call}", executor)
    assert (await bench.take_one(executor)).task == "a"


@pytest.mark.parametrize("isolation", ["repeatable_read", "serializable"])
async def test_jobs_are_submitted_run_and_steered_in_transactions_of_any_isolation(bench, client, isolation):
    executor = await bench.executor()

    async def within(call):
        async with bench.connection.transaction(isolation=isolation):
            return await call

    job_id = await within(client.submit("a", connection=bench.connection))
    job = await bench.take_one(executor)
    await within(bench.start(job))
    updated = "SELECT joex.update($1, $2, progress => 50)"
    assert await within(bench.connection.fetchval(updated, job.id, job.lock_id)) == "ok"
    finished = "SELECT joex.finish($1, $2)"
    assert await within(bench.connection.fetchval(finished, job.id, job.lock_id)) == "ok"
    assert await bench.state(job_id) == "success"
    other = await bench.submit()
    assert await within(jobs.cancel(bench.connection, other)) == "cancelled"
    assert await within(jobs.retry(bench.connection, other))


async def test_a_leave_under_an_isolation_that_sees_no_commit_it_waited_for_loses_no_job(
    bench, another_connection, waiting_for_a_lock
):
    """It meets its own take, which is just committing. Once, the jobs were lost for ever."""
    executor, taker, leaver = await bench.executor(), await another_connection(), await another_connection()
    job_id = await bench.submit()
    await leaver.execute("SET default_transaction_isolation = 'repeatable read'")
    transaction = taker.transaction()
    await transaction.start()
    assert len(await runs.take(taker, executor, ["default"], 1, CountingScheme(4, 1))) == 1

    async def leave():
        try:
            return await executors.leave(leaver, executor)
        except ConfigError:
            await leaver.execute("SET default_transaction_isolation = 'read committed'")
            return await executors.leave(leaver, executor)

    async with waiting_for_a_lock(bench.connection, leave()) as leaving:
        await transaction.commit()
    assert await leaving == 1
    assert await bench.state(job_id) == "waiting"


async def test_an_accept_under_an_old_snapshot_does_not_exceed_a_limit_of_which_it_can_not_know(
    bench, another_connection
):
    executor, worker = await bench.executor(), await another_connection()
    await bench.connection.execute("SELECT joex.set_group('limited', max_running => 1)")
    await bench.submit("limited")
    async with worker.transaction(isolation="repeatable_read"):
        await worker.execute("SELECT count(*) FROM joex_private.job")
        await bench.submit("limited", "high")
        assert len(await bench.take(executor, 4)) == 1
        with pytest.raises(ConfigError, match="group with a limit"), translated():
            async with worker.transaction():
                await worker.fetch("SELECT * FROM joex_client.accept('default')")
    assert len(await bench.held(executor)) == 1
    assert await worker.fetch("SELECT * FROM joex_client.accept('default')") == []


# Many that die at once.


async def dead_with_jobs(bench, executors_, jobs_each):
    """Executors in two queues that have been silent for long, and hold jobs."""
    await bench.connection.execute(
        """
        WITH dead AS (
            INSERT INTO joex_private.executor (id, app_id, host, pid, version, queues, tasks, pool_size, lease, locks)
            SELECT i, 'dead ' || i, 'h', i, '0', '{default}', '{}', $2, '6 s', true FROM generate_series(1, $1::int) i
            RETURNING id, app_id
        ), leases AS (
            INSERT INTO joex_private.lease SELECT id, now() - interval '1 minute', -60000 FROM dead
        ) INSERT INTO joex_private.job (queue, task, grp, ring, state, executor_id, app_id, lock_id, scheduled_at)
        SELECT 'q' || i % 2, 'a', 'g' || i % 7, joex_private.ring('g' || i % 7), 'running', d.id, d.app_id,
               gen_random_uuid(), now()
        FROM dead d, generate_series(1, $2) i
        """,
        executors_,
        jobs_each,
    )


async def rescue_all(bench, **more):
    """Rescue repeatedly, as executors do; returns the result of each call."""
    calls = []
    while found := await bench.rescue(**more):
        calls.append(found)
    return calls


async def test_many_that_are_dead_are_rescued_call_by_call_and_what_is_done_stays_done(bench):
    await dead_with_jobs(bench, 500, 10)
    first = await bench.rescue()
    assert 0 < len(first) < 500
    assert 0 < sum(found for _, _, found in first) < 5000
    left = await bench.connection.fetchval("SELECT count(*) FROM joex_private.job WHERE executor_id IS NOT NULL")
    assert left == 5000 - sum(found for _, _, found in first)
    calls = await rescue_all(bench)
    assert len({executor for call in [first, *calls] for executor, _, _ in call}) == 500
    assert sum(found for call in [first, *calls] for _, _, found in call) == 5000
    states = await bench.connection.fetch("SELECT state::text, losses, count(*) FROM joex_private.job GROUP BY 1, 2")
    assert [tuple(row) for row in states] == [("waiting", 1, 5000)]
    ended = "SELECT count(*) FROM joex_private.executor WHERE ending = 'dead' AND NOT orphans"
    assert await bench.connection.fetchval(ended) == 500
    assert await bench.connection.fetchval("SELECT count(*) FROM joex_private.lease") == 0


async def test_an_executor_with_very_many_jobs_is_put_back_in_parts(bench):
    await dead_with_jobs(bench, 1, 5000)
    calls = await rescue_all(bench)
    assert [app_id for call in calls for _, app_id, _ in call] == ["dead 1"] * len(calls)
    assert len(calls) > 1
    assert sum(call[0][2] for call in calls) == 5000
    assert await bench.connection.fetchval("SELECT array_agg(DISTINCT losses) FROM joex_private.job") == [1]


async def test_a_leave_with_very_many_jobs_leaves_the_rest_to_rescuers_as_no_loss(bench):
    await dead_with_jobs(bench, 1, 6000)
    executor = await bench.connection.fetchval("SELECT id FROM joex_private.executor")
    given_back = await executors.leave(bench.connection, executor)
    assert 0 < given_back < 6000
    await rescue_all(bench)
    states = await bench.connection.fetch("SELECT state::text, losses, count(*) FROM joex_private.job GROUP BY 1, 2")
    assert [tuple(row) for row in states] == [("waiting", 0, 6000)]


async def test_a_rescue_beside_another_that_is_under_way_waits_for_nothing_and_takes_its_share(
    bench, another_connection
):
    await dead_with_jobs(bench, 300, 10)
    other = await another_connection()
    await bench.connection.execute("SET lock_timeout = '1ms'")
    async with other.transaction():
        first = await bench.rescue(connection=other)
        second = await bench.rescue()
        assert second
        assert not {executor for executor, _, _ in first} & {executor for executor, _, _ in second}
    calls = [first, second, *await rescue_all(bench)]
    assert sum(found for call in calls for _, _, found in call) == 3000
    assert await bench.connection.fetchval("SELECT array_agg(DISTINCT losses) FROM joex_private.job") == [1]


async def test_jobs_whose_rows_are_locked_keep_no_other_from_being_rescued(bench, another_connection):
    await dead_with_jobs(bench, 3, 2500)
    other = await another_connection()
    async with other.transaction():
        await other.execute("SELECT FROM joex_private.job ORDER BY id LIMIT 4000 FOR UPDATE")
        await rescue_all(bench)
        assert await bench.connection.fetchval("SELECT count(*) FROM joex_private.job WHERE state = 'waiting'") == 3500
    await rescue_all(bench)
    assert await bench.connection.fetchval("SELECT count(*) FROM joex_private.job WHERE state = 'waiting'") == 7500
    assert await bench.connection.fetchval("SELECT count(*) FROM joex_private.executor WHERE orphans") == 0


# The chores of a fleet, and ids.


def chores_of(executor, database_url):
    """The chores of an executor that nobody hears."""
    lease = Lease(timedelta(hours=1))
    notifier = Notifier(LeaseCallbacks(**dict.fromkeys((one.name for one in fields(LeaseCallbacks)), lambda *_: None)))
    return chores.Chores(
        database_url, executor=executor, queues=["default"], lease=lease, pooled=False, held=list,
        observed=Observation(lease.heartbeat_every), notifier=notifier,
    )  # fmt: skip


async def test_workers_leave_overdue_runs_to_an_executor_each_of_whose_searches_finds_some(
    bench, database_url, monkeypatch
):
    async def find(_connection):
        await asyncio.sleep(0)
        return [("worker", 1)]

    monkeypatch.setattr(timeouts, "recover_overdue", find)
    begun = await bench.connection.fetchval("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
    doing = asyncio.create_task(chores_of(await bench.executor(), database_url).do())
    searched = "SELECT pg_sequence_last_value('joex_private.overdue_searches') >= $1"
    await eventually(lambda: bench.connection.fetchval(searched, begun))
    doing.cancel()
    await asyncio.wait([doing])


async def test_one_executor_of_a_fleet_rescues_and_puts_back_overdue_runs_and_another_one_when_its_claim_has_ended(
    bench, database_url, monkeypatch
):
    """However many executors there are, and however many dead rows each would read."""
    begun: Counter[str] = Counter()

    def counted(module, name, answer):
        async def count(_connection, executor=None, *_):
            begun[f"{name} {executor}" if name == "check_runs" else name] += 1
            return answer

        monkeypatch.setattr(module, name, count)

    counted(executors, "check_runs", executors.Checked(draining=False, lost=[], ended=[], cancel=[], crowded=False))
    counted(executors, "rescue", [])
    counted(timeouts, "recover_overdue", [])
    monkeypatch.setattr(chores, "_REST", 1e9)
    monkeypatch.setattr(chores, "_LONGEST_REST", 0.0)
    monkeypatch.setattr(chores, "_LONGEST_CLAIM", 30.0)
    ids = [await bench.executor(name) for name in "abc"]
    fleet = [chores_of(one, database_url) for one in ids]

    async def claim():
        await bench.connection.execute(
            # (Not a whole minute: one that began to ask a moment before would take this for no claim of its time.)
            "SELECT setval(claims, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + 50000000) "
            "FROM unnest(ARRAY['joex_private.rescue_claims', 'joex_private.overdue_claims']::regclass[]) AS claims"
        )

    async def beaten():
        """All have done what is due, at least three times from now on, while an executor has both claims."""
        before = begun.copy()

        async def have_checked():
            await claim()  # again and again: however long this takes, no claim ends meanwhile
            for one in fleet:
                one.has_beaten()
            return all(begun[f"check_runs {one}"] >= before[f"check_runs {one}"] + 3 for one in ids)

        await eventually(have_checked)

    async def have_claimed():
        for one in fleet:
            one.has_beaten()
        return begun["rescue"] and begun["recover_overdue"]

    await claim()
    tasks = [asyncio.create_task(one.do()) for one in fleet]
    await beaten()
    assert begun["rescue"] == begun["recover_overdue"] == 0
    ended = await bench.connection.fetchval("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
    await bench.connection.execute(
        "SELECT setval('joex_private.rescue_claims', 1), setval('joex_private.overdue_claims', 1)"
    )
    await eventually(have_claimed)
    latest = await bench.connection.fetchrow(
        "SELECT pg_sequence_last_value('joex_private.rescue_claims'), "
        "pg_sequence_last_value('joex_private.overdue_claims')"
    )
    assert min(latest) >= ended + 30_000_000
    searched = "SELECT pg_sequence_last_value('joex_private.overdue_searches') >= $1"
    await eventually(lambda: bench.connection.fetchval(searched, ended))
    await beaten()
    done = begun["rescue"], begun["recover_overdue"]
    await beaten()
    assert (begun["rescue"], begun["recover_overdue"]) == done
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def test_no_executor_gets_the_id_of_another_one(bench):
    """Not even when the same random numbers come again."""
    seed = "SELECT setseed(0.5)"
    await bench.connection.execute(seed)
    alive = await bench.executor("alive")
    held = await bench.job_in("running", alive)
    gone = await bench.executor("gone")
    orphan = await bench.job_in("running", gone)
    await bench.connection.execute("DELETE FROM joex_private.executor WHERE id = $1", gone)
    await bench.connection.execute(seed)
    new = await bench.executor("new")
    assert new > 0
    assert new not in (alive, gone)
    await executors.leave(bench.connection, new)
    assert [await bench.state(job_id) for job_id in (held, orphan)] == ["running", "running"]

"""Workers with their own loops: accept, update, finish, mutual exclusion, and runs that do not report in time."""

import asyncio
from contextlib import suppress
from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from joex import DatabaseUnavailable, InvalidJob, KeyedJobs
from joex.core import tuples
from joex.store import runs, stats, timeouts, worker_runs
from tests.integration.conftest import FOUR_ONE, MOST_LOSSES
from tests.support.keyed import T, canceled, in_work, let_time_out, lose, lose_once, make_due, run, state

pytestmark = pytest.mark.postgres(16, 18)

# accept


async def test_without_work_there_is_none_at_once(keyed):
    assert await keyed.accept("an unknown type") is None
    await keyed.add("another", 1)
    assert await keyed.accept(T) is None


async def test_an_accepted_job_runs_under_a_lock_of_its_own_that_nobody_else_is_told(keyed, client):
    job_id = await keyed.add(T, 1, {"data": {"a": 1}})
    job = await keyed.accept(T, worker="worker 7")
    assert (job.state, job.attempt, job.job, job.data) == ("running", 1, job_id, {"a": 1})
    assert isinstance(job.lock_id, UUID)
    assert (await keyed.get_job(T, 1)).lock_id is None
    stored = await client.get(job_id)
    assert (stored.state, stored.app_id, stored.started_at) == ("running", "worker 7", stored.scheduled_at)


async def test_many_who_accept_at_once_never_have_the_same_job_and_leave_none(keyed, pool):
    for nr in range(300):
        await keyed.add(T, nr, {"priority": nr % 3}, group=f"group {nr % 7}")
    done = []

    async def work():
        while (job := await keyed.accept(T)) is not None:
            async with pool.acquire() as connection, connection.transaction():
                assert await keyed.update(T, job.id, {"data": {"by": str(job.lock_id)}}, job.lock_id) == "ok"
                assert await keyed.finish(T, job.id, {}, job.lock_id, connection=connection) == "ok"
            done.append(job.id)

    await asyncio.gather(*(work() for _ in range(4)))
    assert sorted(done) == list(range(300))
    assert await keyed.count(T) == {"pending": 0, "running": 0, "finished": 300}
    assert {job.attempt for job in await keyed.list_jobs(T)} == {1}


async def test_the_first_accept_of_a_type_in_an_open_transaction_keeps_nobody_waiting(
    keyed, bench, connection, another_connection
):
    """It makes the queue, which no other transaction sees before the commit."""
    for job_type in (T, "another"):
        await keyed.add(job_type, 1)
        await keyed.add(job_type, 2)
    async with connection.transaction():
        assert (await keyed.accept(T, connection=connection)).id == 1
        assert (await asyncio.wait_for(keyed.accept(T), 30)).id == 2
        assert (await asyncio.wait_for(keyed.accept("another"), 30)).id == 1
        bench.connection = await another_connection()
        await asyncio.wait_for(bench.executor(queues=["default", T]), 30)
    assert await keyed.accept(T) is None


async def test_a_group_all_of_whose_jobs_others_hold_keeps_no_other_group_from_its_turn(keyed, connection):
    await connection.execute("SELECT joex_private.serve_queue($1)", T)
    groups = range(4)
    for group in groups:
        await keyed.add(T, (group, 1), group=f"group {group}")
    async with connection.transaction():
        held, _ = (await keyed.accept(T, connection=connection)).id
        others = [group for group in groups if group != held]
        for group in others:
            await keyed.add(T, (group, 2), group=f"group {group}")
        accepted = [(await keyed.accept(T)).id for _ in range(6)]
        assert sorted(accepted) == [(group, nr) for group in others for nr in (1, 2)]
        assert await keyed.accept(T) is None


async def test_an_accept_in_an_open_transaction_holds_no_job_but_its_own(keyed, connection):
    """Even if all groups are on the same level, and any of them could be next."""
    groups = range(4)
    for nr in (1, 2):
        for group in groups:
            await keyed.add(T, (group, nr), group=f"group {group}")
    for _ in groups:
        await keyed.accept(T)
    async with connection.transaction():
        assert (await keyed.accept(T, connection=connection)).id[1] == 2
        assert len({(await keyed.accept(T)).id for _ in range(3)}) == 3


@pytest.mark.parametrize("kind", ["overdue", "due"])
async def test_nor_does_it_hold_the_others_that_are_overdue_or_due(keyed, connection, kind):
    for nr in range(3):
        await keyed.add(T, nr)
    for _ in range(3):
        if kind == "overdue":
            await keyed.accept(T)
        else:
            await run(keyed, error="x")
    await let_time_out(connection)
    await make_due(connection)
    async with connection.transaction():
        held = await keyed.accept(T, connection=connection)
        others = [await keyed.accept(T) for _ in range(2)]
        assert {job.id for job in (held, *others)} == {0, 1, 2}
        assert await keyed.accept(T) is None


@pytest.mark.parametrize("lane", ["retry", "high", "low"])
async def test_where_others_hold_what_is_due_nothing_is_accepted_that_is_not(keyed, client, connection, lane):
    ids = [await keyed.add(T, priority, {"priority": priority}) for priority in (1, 2)]
    for _ in range(2 if lane == "retry" else 0):
        await run(keyed, error="x")
    for job_id in ids:
        assert await (client.retry(job_id) if lane == "retry" else client.set_priority(job_id, lane))
    assert await keyed.accept(T, 0) is None
    async with connection.transaction():
        assert (await keyed.accept(T, 1, connection=connection)).id == 1
        assert await keyed.accept(T, 1) is None
    assert (await keyed.accept(T, 2)).id == 2


async def test_groups_of_a_type_take_turns_and_their_settings_hold(keyed, connection):
    for group in ("a", "b", "c"):
        for nr in range(3):
            await keyed.add(T, (group, nr), {"priority": nr}, group=group)
    await stats.set_group(connection, "b", T, max_running=1)
    await stats.set_group(connection, "c", T, paused=True)
    accepted = [(await keyed.accept(T)).id for _ in range(4)]
    assert sorted(accepted[:2]) == [("a", 0), ("b", 0)]
    assert accepted[2:] == [("a", 1), ("a", 2)]
    assert await keyed.accept(T) is None


@pytest.mark.parametrize("task", ["mail.send", "#mail", "#1", '#"x"'])
async def test_jobs_that_were_submitted_are_accepted_by_the_name_of_their_queue(keyed, client, task):
    submitted = await client.submit(task, {"to": "ann"}, queue=task)
    job = await keyed.accept(tuples.from_name(task))
    assert (tuples.to_name("type", job.type), job.id, job.data, job.job) == (task, submitted, {"to": "ann"}, submitted)
    assert (await keyed.get_job(job.type, job.id)).state == "running"
    assert await keyed.update(job.type, job.id, {}, job.lock_id, progress=50) == "ok"
    assert await keyed.finish(job.type, job.id, {}, job.lock_id, result={"sent": 1}) == "ok"
    stored = await client.get(submitted)
    assert (stored.state, stored.result, stored.attempt) == ("success", {"sent": 1}, 1)
    assert await keyed.remove(job.type, job.id) == "ok"


# update and finish: their answers.


async def test_an_update_changes_what_it_says_and_leaves_the_rest(keyed, client):
    await keyed.add(T, 1, {"priority": 1, "data": {"a": 1}, "owner": "ann"})
    job = await keyed.accept(T)

    async def update(opts, **more):
        assert await keyed.update(T, 1, opts, job.lock_id, **more) == "ok"
        found = (await keyed.get_job(T, 1)).opts
        return found["priority"], found["data"], found.get("owner"), found.get("resubmit", False)

    assert await update({}) == (1, {"a": 1}, "ann", False)
    assert await update({"data": {"b": 2}}) == (1, {"b": 2}, "ann", False)
    assert await update({"owner": "bob"}) == (1, {"b": 2}, "bob", False)
    assert await update({"priority": None}, progress=33.3, message="a third") == (None, {"b": 2}, "bob", False)
    assert await update({"resubmit": True}) == (None, {"b": 2}, "bob", True)
    assert await update({"resubmit": False}) == (None, {"b": 2}, "bob", True)
    stored = await client.get(job.job)
    assert (stored.progress, stored.progress_message) == (33, "a third")


async def test_a_report_is_told_that_the_job_is_to_go_round_once_more(keyed):
    await keyed.add(T, 1)
    job = await keyed.accept(T)
    answer = await keyed.update(T, 1, {}, job.lock_id)
    assert (answer, answer.resubmit) == ("ok", False)
    await keyed.resubmit(T, 1)
    answer = await keyed.update(T, 1, {}, job.lock_id)
    assert (answer, answer.resubmit) == ("ok", True)
    await keyed.finish(T, 1, {}, job.lock_id)
    answer = await keyed.update(T, 1, {}, job.lock_id)
    assert (answer, answer.resubmit) == ("worker_conflict", False)
    again = await keyed.accept(T)
    assert not (await keyed.update(T, 1, {}, again.lock_id)).resubmit


async def test_a_report_that_waits_for_a_resubmit_is_told_of_it(
    keyed, connection, another_connection, waiting_for_a_lock
):
    await keyed.add(T, 1)
    job = await keyed.accept(T)
    transaction = connection.transaction()
    await transaction.start()
    await keyed.resubmit(T, 1, connection=connection)
    report = keyed.update(T, 1, {}, job.lock_id)
    async with waiting_for_a_lock(await another_connection(), report) as reporting:
        await transaction.commit()
    assert (await reporting).resubmit


async def test_a_types_own_states_are_kept_in_its_data(keyed):
    for nr, own in enumerate(["completed", "failed"]):
        await keyed.add(T, nr)
        await run(keyed, opts={"data": {"state": own}})
    assert [(job.state, job.data["state"]) for job in await keyed.list_jobs(T)] == [
        ("finished", "completed"),
        ("finished", "failed"),
    ]


async def lost(keyed, connection, job):
    await lose(connection)


async def lost_and_accepted_again(keyed, connection, job):
    await lose(connection)
    assert (await keyed.accept(T)).id == 1


async def finished(keyed, connection, job):
    await keyed.finish(T, 1, {}, job.lock_id)


async def resubmitted(keyed, connection, job):
    await keyed.finish(T, 1, {"resubmit": True}, job.lock_id)


async def given_back(keyed, connection, job):
    await keyed.give_back(T, 1, job.lock_id)


async def removed(keyed, connection, job):
    await keyed.finish(T, 1, {}, job.lock_id)
    await keyed.remove(T, 1)


async def another_job_with_its_id(keyed, connection, job):
    await removed(keyed, connection, job)
    await keyed.add(T, 1)
    assert (await keyed.accept(T)).id == 1


CONFLICTS = [lost, lost_and_accepted_again, finished, resubmitted, given_back, removed, another_job_with_its_id]


def reports(keyed, lock_id, **more):
    """All reports of a worker."""
    return {
        "update": lambda: keyed.update(T, 1, {"data": {"late": True}, "priority": 9}, lock_id, **more),
        "finish": lambda: keyed.finish(T, 1, {"data": {"late": True}}, lock_id, **more),
        "fail": lambda: keyed.finish(T, 1, {}, lock_id, error="late", **more),
        "resubmit": lambda: keyed.resubmit(T, 1, lock_id, **more),
        "give back": lambda: keyed.give_back(T, 1, lock_id, **more),
    }


@pytest.mark.parametrize("what", CONFLICTS, ids=lambda what: what.__name__)
async def test_a_run_that_has_lost_its_job_is_told_so_and_changes_nothing(keyed, connection, rows, what):
    job = await in_work(keyed)
    await what(keyed, connection, job)
    before = await rows()
    for report in reports(keyed, job.lock_id).values():
        assert await report() == "worker_conflict"
    assert await rows() == before


async def test_a_wrong_lock_id_or_no_such_job_is_a_conflict(keyed, rows):
    await in_work(keyed)
    before = await rows()
    for report in reports(keyed, uuid4()).values():
        assert await report() == "worker_conflict"
    assert await keyed.update(T, "no such id", {}, uuid4()) == "worker_conflict"
    assert await rows() == before


@pytest.mark.parametrize("say", ["cancel", "remove"])
async def test_a_run_whose_job_was_canceled_or_removed_is_told_and_ends_by_its_next_word(keyed, say):
    for ending in ("finish", "fail", "give back"):
        job = await in_work(keyed)
        assert await getattr(keyed, say)(T, 1) == "ok"
        calls = reports(keyed, job.lock_id)
        assert await calls["update"]() == "canceled"
        assert await calls["resubmit"]() == "canceled"
        now = await keyed.get_job(T, 1)
        assert (now.state, now.opts) == ("running", {"data": {}, "cancel": True})
        assert await calls[ending]() == "canceled"
        now = await keyed.get_job(T, 1)
        assert (None if now is None else (now.state, now.data)) == (("finished", {}) if say == "cancel" else None)
        assert await calls["update"]() == "worker_conflict"
        await keyed.remove(T, 1)


@pytest.mark.parametrize("ending", ["finish", "give back"])
async def test_in_the_callers_transaction_a_canceled_run_changes_nothing_until_it_says_so_without(
    keyed, connection, rows, ending
):
    job = await canceled(keyed)
    before = await rows()
    async with connection.transaction():
        assert await reports(keyed, job.lock_id, connection=connection)[ending]() == "canceled"
    assert await rows() == before
    assert await reports(keyed, job.lock_id)[ending]() == "canceled"
    assert await state(keyed, 1) == "finished"


async def test_a_connection_without_a_transaction_is_as_good_as_none(keyed, connection):
    job = await canceled(keyed)
    assert await keyed.finish(T, 1, {}, job.lock_id, connection=connection) == "canceled"
    assert await state(keyed, 1) == "finished"


async def test_what_the_database_refuses_at_a_finish_leaves_no_half_of_it(keyed, connection):
    job = await in_work(keyed)
    with pytest.raises(InvalidJob):
        await keyed.finish(T, 1, {"data": {"a": 1}}, job.lock_id, result=10**140_000, connection=connection)
    now = await keyed.get_job(T, 1)
    assert (now.state, now.data) == ("running", {})
    assert await keyed.finish(T, 1, {}, job.lock_id) == "ok"


async def test_a_canceled_job_that_is_resubmitted_before_its_run_has_stopped_runs_again(keyed):
    job = await canceled(keyed)
    await keyed.resubmit(T, 1)
    assert await keyed.finish(T, 1, {}, job.lock_id) == "canceled"
    assert (await keyed.get_job(T, 1)).opts == {"data": {}}
    assert await run(keyed) == 1
    assert await state(keyed, 1) == "finished"


async def test_a_cancellation_takes_back_an_earlier_wish_to_go_round_once_more(keyed):
    job = await in_work(keyed)
    await keyed.resubmit(T, 1)
    await keyed.cancel(T, 1)
    await keyed.finish(T, 1, {}, job.lock_id)
    assert await state(keyed, 1) == "finished"


# Mutual exclusion.


async def write_as(keyed, connection, job, said):
    """A worker's own write, and its update in the same transaction: rolled back unless the answer is ok."""
    with suppress(ZeroDivisionError):
        async with connection.transaction():
            await connection.execute("INSERT INTO own VALUES ($1, $2)", str(job.id), said)
            answer = await keyed.update(job.type, job.id, {"data": {"last": said}}, job.lock_id, connection=connection)
            if answer != "ok":
                raise ZeroDivisionError
    return answer


async def test_a_blocked_worker_that_comes_back_late_writes_nothing(keyed, connection):
    """The mutual exclusion of the document: the update in the transaction of its own writes finds out."""
    await connection.execute("CREATE TABLE own (job text, said text)")
    await keyed.add(T, 1)
    blocked = await keyed.accept(T, worker="blocked")
    assert await write_as(keyed, connection, blocked, "a, in time") == "ok"
    # It is blocked now, and the activity monitor gives its job to another worker.
    assert await lose(connection) == [("blocked", 1)]
    other = await keyed.accept(T, worker="other")
    assert await write_as(keyed, connection, other, "b") == "ok"
    assert await write_as(keyed, connection, blocked, "a, late") == "worker_conflict"
    assert await keyed.finish(T, 1, {"data": {"last": "a, late"}}, blocked.lock_id) == "worker_conflict"
    assert await keyed.finish(T, 1, {}, other.lock_id) == "ok"
    assert await write_as(keyed, connection, other, "b, late") == "worker_conflict"
    assert [row["said"] for row in await connection.fetch("SELECT said FROM own")] == ["a, in time", "b"]
    assert (await keyed.get_job(T, 1)).data == {"last": "b"}


async def test_a_worker_that_is_blocked_within_its_transaction_writes_nothing_either(
    keyed, connection, another_connection
):
    await connection.execute("CREATE TABLE own (job text, said text)")
    job = await in_work(keyed)
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute("INSERT INTO own VALUES ('1', 'late')")
    other = await another_connection()
    await lose(other)
    assert (await keyed.accept(T)).id == 1
    assert await keyed.update(T, 1, {}, job.lock_id, connection=connection) == "worker_conflict"
    await transaction.rollback()
    assert await connection.fetchval("SELECT count(*) FROM own") == 0


async def test_nor_under_a_snapshot_that_is_older_than_its_loss(keyed, connection):
    job = await in_work(keyed)
    transaction = connection.transaction(isolation="repeatable_read")
    await transaction.start()
    assert (await keyed.get_job(T, 1, connection=connection)).state == "running"
    async with keyed._connections.acquire() as other:
        await lose(other)
    with pytest.raises(DatabaseUnavailable, match="could not serialize access"):
        await keyed.update(T, 1, {}, job.lock_id, connection=connection)
    await transaction.rollback()
    assert await keyed.update(T, 1, {}, job.lock_id) == "worker_conflict"


async def test_a_report_in_an_open_transaction_is_neither_overtaken_nor_waited_for_by_the_monitor(
    keyed, connection, another_connection
):
    job, monitor = await in_work(keyed), await another_connection()
    await let_time_out(connection)
    transaction = connection.transaction()
    await transaction.start()
    assert await keyed.update(T, 1, {}, job.lock_id, connection=connection) == "ok"
    assert await timeouts.recover_overdue(monitor) == []
    assert await keyed.accept(T) is None
    await transaction.commit()
    assert await timeouts.recover_overdue(monitor) == []
    assert await keyed.update(T, 1, {}, job.lock_id) == "ok"


async def test_a_report_that_is_rolled_back_was_none(keyed, connection, another_connection):
    job, monitor = await in_work(keyed), await another_connection()
    await let_time_out(connection)
    transaction = connection.transaction()
    await transaction.start()
    assert await keyed.update(T, 1, {}, job.lock_id, connection=connection) == "ok"
    await transaction.rollback()
    assert await timeouts.recover_overdue(monitor) == [("worker", 1)]


async def test_a_report_that_meets_the_monitor_waits_for_it_and_comes_too_late(
    keyed, connection, another_connection, waiting_for_a_lock
):
    job = await in_work(keyed)
    other, observer = await another_connection(), await another_connection()
    transaction = connection.transaction()
    await transaction.start()
    await lose(connection)
    async with waiting_for_a_lock(observer, keyed.update(T, 1, {}, job.lock_id, connection=other)) as updating:
        assert not updating.done()
        await transaction.commit()
    assert await updating == "worker_conflict"


# Failures.


async def test_a_run_that_fails_is_tried_again_after_delays_that_double_until_it_has_failed(client, connection):
    keyed = KeyedJobs(client.connections, retries=2, retry_delay=timedelta(seconds=100), retry_jitter=0)
    job_id = await keyed.add(T, 1, {"data": {"kept": True}})
    for attempt, delay in enumerate((100, 200), start=1):
        before = await connection.fetchval("SELECT clock_timestamp()")
        await run(keyed, error=f"no luck {attempt}")
        after = await connection.fetchval("SELECT clock_timestamp()")
        job = await client.get(job_id)
        assert (job.state, job.attempt, job.failures, job.error) == ("stuck", attempt, attempt, f"no luck {attempt}")
        assert before + timedelta(seconds=delay) <= job.due_at <= after + timedelta(seconds=delay)
        assert await state(keyed, 1) == "pending"
        assert await keyed.accept(T) is None
        await make_due(connection)
    await run(keyed, error="no luck at all", message="so it is")
    job = await client.get(job_id)
    assert (job.state, job.failures, job.error, job.message) == ("failed", 3, "no luck at all", "so it is")
    assert [(one.state, one.data) for one in await keyed.list_jobs(T)] == [("finished", {"kept": True})]


async def test_a_run_that_says_that_no_try_can_help_fails_at_once(keyed, client):
    job_id = await keyed.add(T, 1)
    await run(keyed, error="never", retry=False)
    assert (await client.get(job_id)).state == "failed"


async def test_a_submitted_jobs_own_number_of_retries_counts(keyed, client):
    job_id = await client.submit("a", queue=T, retries=0)
    assert await run(keyed, error="never") == job_id
    assert (await client.get(job_id)).state == "failed"


async def test_a_failed_run_whose_job_is_to_go_round_once_more_does_so_at_once_and_with_all_its_retries(
    keyed, client, connection
):
    job_id = await keyed.add(T, 1)
    await run(keyed, error="first")
    await make_due(connection)
    await lose_once(keyed, connection)
    await run(keyed, opts={"resubmit": True}, error="second")
    job = await client.get(job_id)
    assert (job.state, job.failures, job.losses, job.error) == ("waiting", 0, 0, "second")
    queue = await connection.fetchval("SELECT oldest_runnable_seconds FROM joex.queue_stats")
    assert queue >= 0, "it has not been put off"


async def test_the_end_of_a_run_has_a_result_and_words(keyed, client):
    job_id = await keyed.add(T, 1)
    await run(keyed, result={"docs": 7}, message="all of them")
    job = await client.get(job_id)
    assert (job.state, job.result, job.message, job.progress) == ("success", {"docs": 7}, "all of them", 100)


async def test_a_run_that_is_given_back_does_not_count_and_keeps_its_place(keyed):
    await keyed.add(T, 1)
    await keyed.add(T, 2)
    job = await keyed.accept(T)
    assert await keyed.give_back(T, 1, job.lock_id) == "ok"
    job = await keyed.accept(T)
    assert (job.id, job.attempt) == (1, 1)


# Timeouts and the activity monitor.


async def seconds_left(connection, job):
    return await connection.fetchval(
        "SELECT extract(epoch FROM overdue_at - clock_timestamp())::float8 FROM joex_private.job WHERE id = $1", job.job
    )


async def test_a_run_without_a_timeout_of_its_type_has_sixty_seconds_between_reports(keyed, connection):
    job = await in_work(keyed)
    assert 50 < await seconds_left(connection, job) <= 60
    await connection.execute("UPDATE joex_private.job SET overdue_at = clock_timestamp() + interval '1 second'")
    await keyed.update(T, 1, {}, job.lock_id)
    assert 50 < await seconds_left(connection, job) <= 60


async def test_a_report_renews_the_activity_timeout_of_the_type(keyed, connection):
    await keyed.set_timeout(T, activity="1h")
    job = await in_work(keyed)
    assert 3500 < await seconds_left(connection, job) <= 3600
    await connection.execute("UPDATE joex_private.job SET overdue_at = clock_timestamp() + interval '1 second'")
    await keyed.update(T, 1, {}, job.lock_id)
    assert 3500 < await seconds_left(connection, job) <= 3600


async def test_no_report_renews_a_visibility_timeout(keyed, connection):
    await keyed.set_timeout(T, visibility=timedelta(hours=1))
    job = await in_work(keyed)
    await connection.execute("UPDATE joex_private.job SET overdue_at = clock_timestamp() + interval '100 seconds'")
    await keyed.update(T, 1, {}, job.lock_id, progress=50)
    await runs.note_many(connection, [], [runs.Progress(job.job, job.lock_id, 60, None)])
    assert 0 < await seconds_left(connection, job) <= 100


async def test_a_timeout_is_its_types_alone_and_holds_for_runs_that_begin_later(keyed, connection):
    job = await in_work(keyed)
    await keyed.set_timeout(T, activity=5)
    await keyed.set_timeout("another", activity="1d")
    assert await seconds_left(connection, job) > 5
    await keyed.give_back(T, 1, job.lock_id)
    assert await seconds_left(connection, await keyed.accept(T)) <= 5
    await keyed.set_timeout(T)
    await keyed.add(T, 2)
    assert await seconds_left(connection, await keyed.accept(T)) > 5


async def test_a_run_that_does_not_report_in_time_goes_back_to_pending_with_its_progress_kept(
    keyed, connection, client
):
    await keyed.add(T, 1, {"priority": 5})
    await keyed.add(T, 2, {"priority": 5})
    job = await keyed.accept(T, worker="ann")
    await keyed.update(T, 1, {"data": {"seq": 7}, "owner": "x"}, job.lock_id, progress=40, message="seq 7")
    assert await timeouts.recover_overdue(connection) == [], "it is in time"
    assert await lose(connection) == [("ann", 1)]
    now = await keyed.get_job(T, 1)
    assert (now.state, now.data, now.opts["owner"]) == ("pending", {"seq": 7}, "x")
    stored = await client.get(job.job)
    assert (stored.state, stored.losses, stored.progress, stored.progress_message) == ("waiting", 1, 40, "seq 7")
    again = await keyed.accept(T)
    assert (again.id, again.attempt, again.data) == (1, 2, {"seq": 7}), "at its old place in the line"
    assert again.lock_id != job.lock_id
    assert (await client.get(job.job)).progress == 40


async def test_more_than_a_batch_is_put_back_and_a_locked_one_is_in_nobodys_way(keyed, connection, another_connection):
    await connection.execute("SELECT joex_private.serve_queue($1)", T)
    await connection.execute("SELECT joex_client.add($1, int4send(nr)) FROM generate_series(1, 1201) nr", T)
    await connection.execute("SELECT count(*) FROM joex_client.accept($1, 1201)", T)
    await let_time_out(connection)
    locked = await connection.fetchval("SELECT id FROM joex_private.job ORDER BY overdue_at, seq LIMIT 1")
    other = await another_connection()
    async with other.transaction():
        await other.execute("SELECT FROM joex_private.job WHERE id = $1 FOR UPDATE", locked)
        batches = [await timeouts.recover_overdue(connection) for _ in range(4)]
    assert batches == [[("worker", 500)], [("worker", 500)], [("worker", 200)], []]
    assert await timeouts.recover_overdue(connection) == [("worker", 1)]
    assert await keyed.count(T) == {"pending": 1201, "running": 0, "finished": 0}


async def test_the_monitor_looks_at_all_types_and_an_accept_at_its_own(keyed, connection):
    types = ["a", "b", ("c", 1)]
    for job_type in types:
        await keyed.add(job_type, 1)
        await keyed.accept(job_type, worker=f"of {job_type}")
    await let_time_out(connection)
    assert (await keyed.accept("a")).id == 1
    assert [await state(keyed, 1, job_type) for job_type in types] == ["running"] * 3
    assert sorted(await lose(connection)) == [("of ('c', 1)", 1), ("of b", 1), ("worker", 1)]
    assert [await state(keyed, 1, job_type) for job_type in types] == ["pending"] * 3


async def test_monitors_that_look_at_the_same_time_put_a_run_back_once(keyed, client, connection, another_connection):
    for nr in range(50):
        await keyed.add(T, nr)
        await keyed.accept(T)
    await let_time_out(connection)
    monitors = [await another_connection() for _ in range(4)]
    found = await asyncio.gather(*(timeouts.recover_overdue(monitor) for monitor in monitors))
    assert sum(number for batch in found for _, number in batch) == 50
    assert {row["losses"] for row in await connection.fetch("SELECT losses FROM joex_private.job")} == {1}


async def test_a_submitted_job_whose_workers_are_lost_twenty_times_fails_with_a_line_that_says_so(
    keyed, client, connection
):
    """Whether a monitor puts it back or the next accept."""
    job_id = await client.submit("a", queue=T)
    keyed_id = await keyed.add(T, 1)
    for nr in range(1, 21):
        assert {(await keyed.accept(T)).job for _ in range(2)} == {job_id, keyed_id}
        if nr % 2:
            await lose(connection)
        else:
            await let_time_out(connection)
            await connection.execute("SELECT joex_private.recover_overdue(ARRAY[$1], 10)", T)
        job = await client.get(job_id)
        assert (job.losses, job.state) == (nr, "waiting" if nr < 20 else "failed")
    assert (await client.get(job_id)).error == "its workers were lost 20 times"
    lines = await connection.fetch("SELECT message FROM joex.log($1)", job_id)
    assert lines[-1]["message"] == "failed: its workers were lost 20 times"
    assert ((await client.get(keyed_id)).losses, await state(keyed, 1)) == (20, "pending")
    await client.retry(job_id)
    assert ((await client.get(job_id)).state, (await client.get(job_id)).losses) == ("waiting", 0)


async def test_a_keyed_job_is_never_lost_too_often_by_workers_but_by_executors(keyed, bench, client):
    me = await bench.executor(queues=[T])
    job_id = await keyed.add(T, 1)
    for _ in range(30):
        await lose_once(keyed, bench.connection)
    assert (await client.get(job_id)).losses == 30
    await keyed.remove(T, 1)
    await keyed.set_timeout(T, activity="1h")
    job_id = await keyed.add(T, 1)
    for nr in range(MOST_LOSSES + 1):
        [taken] = await runs.take(bench.connection, me, [T], 1, FOUR_ONE)
        assert (taken.id, (await client.get(job_id)).losses) == (job_id, nr)
        assert await runs.mark_start(bench.connection, taken.id, taken.lock_id)
        assert await lose(bench.connection) == [("me", 1)]
    job = await client.get(job_id)
    assert (job.state, job.error) == ("failed", "lost 6 times: its runs did not report in time")


async def test_a_run_of_an_executor_has_no_timeout_unless_its_task_has_one(keyed, bench, client):
    me = await bench.executor()
    await bench.submit()
    job = await bench.take_one(me)
    assert await lose(bench.connection) == []
    await bench.finish(job)
    await keyed.set_timeout("a", activity="1h")
    await bench.submit()
    job = await bench.take_one(me)
    await bench.start(job)
    await let_time_out(bench.connection)
    await runs.note_many(bench.connection, [], [runs.Progress(job.id, job.lock_id, 10, None)])
    assert await timeouts.recover_overdue(bench.connection) == [], "progress is a report"
    assert await lose(bench.connection) == [("me", 1)]
    assert await bench.finish(job) == ["worker_conflict"]


async def test_who_waits_learns_when_a_run_of_its_own_queue_is_overdue(keyed, connection):
    for job_type in (T, "another"):
        await keyed.add(job_type, 1)
        await keyed.accept(job_type)
    await connection.execute("UPDATE joex_private.job SET overdue_at = clock_timestamp() WHERE task = 'another'")
    due = [(await worker_runs.accept_state(connection, queue))[0] for queue in (T, "another", "a third")]
    assert [None if seconds is None else seconds > 0 for seconds in due] == [True, False, None]

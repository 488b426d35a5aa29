"""Keyed jobs: the calls of their creators, and the views that show them.

"Pending", "running" and "finished" are the words of the RFC whose API this is.
"""

import asyncio
import math
import random
from datetime import UTC, datetime, timedelta
from uuid import UUID

import asyncpg
import pytest
from fdb.tuple import SingleFloat

from joex import ConfigError, InvalidJob, JobExists, KeyedJobs, TypeTimeout
from joex.core import tuples
from joex.core.tuples import Versionstamp
from joex.store import jobs, runs, stats
from joex.store.errors import translate, translated
from joex.store.listing import Filter, list_jobs
from joex.store.runs import LogLine
from tests.integration.conftest import FOUR_ONE
from tests.support.keyed import T, in_work, let_time_out, lose, make_due, run, same, state

pytestmark = pytest.mark.postgres(16, 18)

LATER = datetime(2100, 1, 1, tzinfo=UTC)
# In the order of FoundationDB's tuple layer: each is less than the next.
VALUES = [
    None,
    b"",
    b"\x00\xff",
    "",
    "#",
    "#1",
    "a\0b",
    "é",
    (),
    (None, 1),
    (1,),
    (1, "a", (b"x", ())),
    -(2**300),
    -1,
    0,
    7,
    2**300,
    SingleFloat(1.5),
    -math.inf,
    -0.5,
    0.0,
    2.0,
    math.inf,
    False,
    True,
    UUID(int=1),
    UUID(int=2**127),
    Versionstamp(b"0123456789", 3),
]


# Types, ids, priorities.


async def test_types_ids_and_priorities_are_any_values_of_the_tuple_layer(keyed):
    for value in VALUES:
        job_type = (value, "of any type")
        await keyed.add(job_type, value, {"priority": value})
        job = await keyed.get_job(job_type, value)
        assert same((job.type, job.id, job.opts["priority"]), (job_type, value, value))
        taken = await keyed.accept(job_type, value)
        assert same((taken.type, taken.id), (job_type, value))
        [active] = await keyed.active(job_type)
        assert same(active, value)
        assert await keyed.update(job_type, value, {"priority": value}, taken.lock_id) == "ok"
        assert await keyed.finish(job_type, value, {}, taken.lock_id) == "ok"
        assert await keyed.resubmit(job_type, value) == "ok"
        [listed] = await keyed.list_jobs(job_type)
        assert same(listed.id, value)
        assert await keyed.remove(job_type, value) == "ok"


async def test_a_type_need_not_be_a_tuple(keyed):
    for value in (value for value in VALUES if value != ""):
        await keyed.add(value, 1)
        [listed] = await keyed.list_jobs(value)
        assert same(listed.type, value)
        assert await run(keyed, value) == 1


async def test_values_that_only_look_the_same_are_different_ids_and_types(keyed):
    for value in (1, 1.0, True, "1", b"1", (1,), SingleFloat(1.0)):
        await keyed.add(value, 1)
        await keyed.add(T, value)
    assert (await keyed.count(T))["pending"] == 7
    assert await keyed.count(1.0) == {"pending": 1, "running": 0, "finished": 0}


async def test_a_job_whose_id_and_priority_are_no_packed_values_is_shown_alone_and_ended_like_any_other(
    keyed, connection
):
    add = "SELECT joex_client.add($1, $2, rank => $3)"
    for key, rank in ((b"\xff", b""), (b"\x02acme/\xff\x00", b"\xfe"), (b"\x05" * 1000, b"\x15")):
        assert await connection.fetchval(add, T, key, rank)
    await keyed.add(T, "readable")
    listed = {one.id for one in await keyed.list_jobs(T)}
    assert listed == {
        tuples.Packed(b"\xff"),
        tuples.Packed(b"\x02acme/\xff\x00"),
        tuples.Packed(b"\x05" * 1000),
        "readable",
    }
    ended = set()
    while (job := await keyed.accept(T)) is not None:
        assert await keyed.active(T) == [job.id]
        assert await keyed.update(T, job.id, {"priority": job.opts.get("priority", 1)}, job.lock_id) == "ok"
        assert await keyed.finish(T, job.id, {}, job.lock_id) == "ok"
        ended.add(job.id)
    assert ended == listed


async def test_the_database_refuses_a_rank_that_no_take_reaches_and_says_why(connection):
    """Such jobs made each take look at their groups again and again, and counted as runnable for ever."""
    said = "rank: must not begin with the byte ff"
    with pytest.raises(asyncpg.CheckViolationError, match=f'violates check constraint "{said}"') as caught:
        await connection.execute("SELECT joex_client.add($1, $2, rank => $3)", T, b"\x01", b"\xff")
    assert str(translate(caught.value)) == said


async def test_an_id_is_unique_within_its_type_alone(keyed):
    await keyed.add("a", 1, {"data": {"of": "a"}})
    await keyed.add("b", 1, {"data": {"of": "b"}})
    assert (await keyed.get_job("b", 1)).data == {"of": "b"}


# add


async def test_what_was_added_is_what_is_there(keyed):
    opts = {"priority": (5, "x"), "data": {"source": "a", "changes": [1, None]}, "owner": "ann", "tags": {"a": 1}}
    job_id = await keyed.add(T, "doc", opts)
    job = await keyed.get_job(T, "doc")
    assert (job.opts, job.data, job.state) == (opts, opts["data"], "pending")
    assert (job.job, job.attempt, job.lock_id) == (job_id, 0, None)


async def test_a_job_needs_no_options(keyed):
    await keyed.add(T, "doc")
    assert (await keyed.get_job(T, "doc")).opts == {"data": {}}


async def test_adding_a_job_that_is_there_is_an_error_and_changes_nothing(keyed, rows):
    await keyed.add(T, "doc")
    before = await rows()
    with pytest.raises(JobExists, match=r"^id: the type 'replication' has a job 'doc' already$"):
        await keyed.add(T, "doc", {"data": {"other": True}})
    assert await rows() == before
    await run(keyed)
    with pytest.raises(JobExists):
        await keyed.add(T, "doc")
    await keyed.remove(T, "doc")
    await keyed.add(T, "doc")


async def test_the_callers_transaction_goes_on_after_that_error(keyed, connection):
    await keyed.add(T, 1)
    async with connection.transaction():
        with pytest.raises(JobExists):
            await keyed.add(T, 1, connection=connection)
        await keyed.add(T, 2, connection=connection)
    assert await state(keyed, 2) == "pending"


@pytest.mark.parametrize("ending", ["commit", "rollback"])
async def test_a_job_that_another_transaction_is_just_adding_is_waited_for(
    keyed, connection, another_connection, waiting_for_a_lock, ending
):
    other, observer = await another_connection(), await another_connection()
    transaction = connection.transaction()
    await transaction.start()
    await keyed.add(T, 1, connection=connection)

    async def add():
        try:
            return await keyed.add(T, 1, connection=other)
        except JobExists:
            return None

    async with waiting_for_a_lock(observer, add()) as adding:
        assert not adding.done()
        await getattr(transaction, ending)()
    assert (await adding is None) is (ending == "commit")
    assert (await keyed.count(T))["pending"] == 1


async def test_of_many_who_add_the_same_job_at_once_one_does(keyed):
    answers = await asyncio.gather(*(keyed.add(T, 1) for _ in range(10)), return_exceptions=True)
    assert [type(answer) for answer in answers].count(JobExists) == 9


async def test_a_job_added_as_canceled_runs_when_it_is_resubmitted_and_not_before(keyed):
    await keyed.add(T, 1, {"cancel": True})
    job = await keyed.get_job(T, 1)
    assert (job.state, job.opts["cancel"]) == ("finished", True)
    assert await keyed.accept(T) is None
    await keyed.resubmit(T, 1)
    assert "cancel" not in (await keyed.get_job(T, 1)).opts
    assert await run(keyed) == 1


async def test_a_job_added_with_resubmit_goes_round_twice(keyed):
    await keyed.add(T, 1, {"resubmit": True})
    assert (await keyed.get_job(T, 1)).opts["resubmit"] is True
    assert [await run(keyed), await run(keyed)] == [1, 1]
    assert await state(keyed, 1) == "finished"


async def test_jobs_of_a_type_are_one_group_in_a_queue_of_their_own_unless_said_otherwise(keyed, client):
    plain = await client.get(await keyed.add((T, 1), ("doc", 7)))
    name = '#["replication",1]'
    assert (plain.task, plain.queue, plain.group, plain.subject, plain.submitter) == (name, name, name, '["doc",7]', "")
    own = await client.get(await keyed.add(T, 2, group="acme", queue="q", subject="about", submitter="ann"))
    assert (own.task, own.queue, own.group, own.subject, own.submitter) == (T, "q", "acme", "about", "ann")


async def test_however_long_an_id_may_be_its_subject_fits(keyed):
    await keyed.add(T, "\N{SNOWMAN}" * 332)
    with pytest.raises(InvalidJob, match=r"^id: at most 1000 bytes when packed; got 1001$"):
        await keyed.add(T, "x" * 999)


# Each call in the caller's transaction.


OURS = object()
"""A placeholder for the lock id of the run."""
DATA = {"data": {"a": 1}}
# The state before, and the call.
CALLS = {
    "add": (None, "add", (2, DATA), {}),
    "accept": ("pending", "accept", (), {}),
    "accept what is overdue": ("overdue", "accept", (), {}),
    "remove": ("pending", "remove", (1,), {}),
    "remove what runs": ("running", "remove", (1,), {}),
    "cancel": ("pending", "cancel", (1,), {}),
    "resubmit": ("finished", "resubmit", (1,), {}),
    "resubmit what runs": ("running", "resubmit", (1,), {}),
    "resubmit by the worker": ("running", "resubmit", (1, OURS), {}),
    "update": ("running", "update", (1, DATA, OURS), {}),
    "finish": ("running", "finish", (1, DATA, OURS), {}),
    "finish with an error": ("running", "finish", (1, {}, OURS), {"error": "x"}),
    "give back": ("running", "give_back", (1, OURS), {}),
    "set a timeout": (None, "set_timeout", (), {"activity": "5m"}),
}


async def prepare(keyed, connection, kind):
    """A job in a state."""
    if kind in ("running", "overdue"):
        job = await in_work(keyed)
        if kind == "overdue":
            await let_time_out(connection)
        return job
    if kind is not None:
        await keyed.add(T, 1)
    if kind == "finished":
        await run(keyed)
    return None


@pytest.mark.parametrize("name", CALLS)
async def test_each_call_takes_place_if_and_only_if_the_callers_transaction_commits(
    keyed, connection, another_connection, rows, name
):
    kind, method, arguments, named = CALLS[name]
    job = await prepare(keyed, connection, kind)
    given = [job.lock_id if argument is OURS else argument for argument in arguments]
    if kind is None:
        await keyed.accept(T)  # the queue is served from now on
    other = await another_connection()
    before = await rows()
    for ending in ("rollback", "commit"):
        transaction = other.transaction()
        await transaction.start()
        answer = await getattr(keyed, method)(T, *given, **named, connection=other)
        assert answer not in ("not_found", "worker_conflict", "canceled")
        assert await rows() == before
        await getattr(transaction, ending)()
        assert (await rows() == before) is (ending == "rollback")


async def test_the_reading_calls_see_what_the_callers_transaction_has_done(keyed, connection):
    async with connection.transaction():
        await keyed.add(T, 1, connection=connection)
        job = await keyed.accept(T, connection=connection)
        assert (await keyed.get_job(T, 1, connection=connection)).state == "running"
        assert await keyed.active(T, connection=connection) == [1]
        assert [one.id for one in await keyed.list_jobs(T, connection=connection)] == [1]
        assert (await keyed.count(T, connection=connection))["running"] == 1
        assert await keyed.get_job(T, 1) is None
        assert await keyed.finish(T, 1, {}, job.lock_id, connection=connection) == "ok"


async def test_an_accept_that_is_rolled_back_leaves_the_job_at_its_place(keyed, connection):
    assert await keyed.accept(T) is None  # the queue is served from now on
    for nr in range(3):
        await keyed.add(T, nr)
    transaction = connection.transaction()
    await transaction.start()
    assert [(await keyed.accept(T, connection=connection)).id for _ in range(2)] == [0, 1]
    assert (await keyed.accept(T)).id == 2
    await transaction.rollback()
    assert [await run(keyed), await run(keyed)] == [0, 1]


# Pending order.


async def test_priorities_order_as_the_tuple_layer_orders_them_whatever_their_types(keyed):
    order = list(range(len(VALUES)))
    random.Random(7).shuffle(order)
    for nr in order:
        await keyed.add(T, nr, {"priority": VALUES[nr]})
    await keyed.add(T, "without")
    assert [await run(keyed) for _ in range(len(VALUES) + 1)] == ["without", *range(len(VALUES))]


async def test_executors_take_them_in_this_order_too(keyed, bench):
    me = await bench.executor(queues=[T])
    ids = {await keyed.add(T, nr, {"priority": nr}): nr for nr in (5, 1, 4, 2, 3)}
    taken = await runs.take(bench.connection, me, [T], 10, FOUR_ONE)
    assert [ids[job.id] for job in taken] == [1, 2, 3, 4, 5]


async def test_of_equal_priorities_the_first_added_is_the_first_accepted(keyed):
    for nr in range(5):
        await keyed.add(T, nr, {"priority": "the same"})
    assert [await run(keyed) for _ in range(5)] == list(range(5))


async def test_nothing_above_the_highest_priority_asked_for_is_accepted(keyed):
    for nr in (1, 2, 3):
        await keyed.add(T, nr, {"priority": nr})
    assert await keyed.accept(T, 0) is None
    assert (await keyed.accept(T, 2)).id == 1
    assert (await keyed.accept(T, 2)).id == 2
    assert await keyed.accept(T, 2) is None
    assert await keyed.accept(T, 2.9e9) is not None, "every float is above every integer"


async def test_a_job_without_a_priority_is_below_every_limit(keyed):
    await keyed.add(T, 1)
    assert (await keyed.accept(T, None)).id == 1


@pytest.mark.parametrize(
    "as_priority",
    [lambda time: int(time.timestamp() * 1000), lambda time: (time.year, time.month, time.day, time.hour, "any")],
    ids=["milliseconds", "tuples"],
)
async def test_a_priority_can_be_a_time_before_which_the_job_is_not_accepted(keyed, as_priority):
    now = datetime(2030, 6, 30, 23, tzinfo=UTC)
    for hours in (-3, 2, -1, 1):
        await keyed.add(T, hours, {"priority": as_priority(now + timedelta(hours=hours))})
    assert [(await keyed.accept(T, as_priority(now))).id for _ in range(2)] == [-3, -1]
    assert await keyed.accept(T, as_priority(now)) is None
    assert (await keyed.accept(T, as_priority(now + timedelta(hours=1)))).id == 1


async def test_a_run_puts_its_job_off_with_a_new_priority(keyed):
    await keyed.add(T, "failing", {"priority": 100})
    await keyed.add(T, "other", {"priority": 150})
    assert await run(keyed, opts={"priority": 200, "resubmit": True}) == "failing"
    assert await run(keyed) == "other"
    assert await keyed.accept(T, 199) is None
    assert (await keyed.accept(T, 200)).opts["priority"] == 200


async def test_a_retry_that_is_due_is_not_accepted_before_its_priority_either(keyed, connection):
    await keyed.add(T, 1, {"priority": 100})
    await run(keyed, error="no luck")
    await make_due(connection)
    assert await keyed.accept(T, 99) is None
    assert (await keyed.accept(T, 100)).id == 1


async def test_a_job_that_is_resubmitted_for_ever_lets_others_of_its_priority_have_their_turn(keyed):
    for nr in range(3):
        await keyed.add(T, nr, {"priority": 5})
    order = [await run(keyed, opts={"resubmit": True}) for _ in range(7)]
    assert order == [0, 1, 2, 0, 1, 2, 0]


# resubmit


async def test_a_finished_job_waits_again_at_the_end_of_its_priority(keyed):
    for nr in (1, 2):
        await keyed.add(T, nr, {"priority": 5})
    await keyed.add(T, 3, {"priority": 6})
    assert await run(keyed) == 1
    assert await keyed.resubmit(T, 1) == "ok"
    assert [await run(keyed) for _ in range(3)] == [2, 1, 3]


async def test_a_pending_job_stays_where_it_is(keyed, rows):
    await keyed.add(T, 1)
    await keyed.add(T, 2)
    before = await rows()
    assert await keyed.resubmit(T, 1) == "ok"
    assert await rows() == before


async def test_a_job_that_is_resubmitted_while_it_runs_goes_round_once_more_however_often_that_is_said(keyed):
    job = await in_work(keyed)
    for _ in range(3):
        assert await keyed.resubmit(T, 1) == "ok"
        assert await keyed.resubmit(T, 1, job.lock_id) == "ok"
    assert (await keyed.get_job(T, 1)).opts["resubmit"] is True
    assert await keyed.accept(T) is None, "it still runs"
    assert await keyed.finish(T, 1, {"resubmit": True}, job.lock_id) == "ok"
    assert (await keyed.get_job(T, 1)).opts == {"data": {}}
    assert await run(keyed) == 1
    assert await state(keyed, 1) == "finished"


async def test_a_job_that_waits_for_a_retry_may_run_now(keyed):
    await keyed.add(T, 1)
    await run(keyed, error="no luck")
    assert await keyed.accept(T) is None
    assert await keyed.resubmit(T, 1) == "ok"
    assert (await keyed.accept(T)).id == 1


@pytest.mark.parametrize("ending", ["success", "failed", "cancelled"])
async def test_however_a_job_has_finished_it_can_be_resubmitted_with_all_its_retries(keyed, client, ending):
    job_id = await keyed.add(T, 1)
    if ending == "cancelled":
        await keyed.cancel(T, 1)
    else:
        await run(keyed, error="x" if ending == "failed" else None, retry=False)
    assert (await client.get(job_id)).state == ending
    assert await keyed.resubmit(T, 1) == "ok"
    job = await client.get(job_id)
    assert (job.state, job.failures, job.losses, job.progress, job.cancel_requested) == ("waiting", 0, 0, 0, False)
    assert await run(keyed) == 1


async def test_a_run_that_is_lost_after_a_resubmission_is_followed_by_one_more_and_no_second_one(keyed, connection):
    await in_work(keyed)
    await keyed.resubmit(T, 1)
    await lose(connection)
    assert await run(keyed) == 1
    assert await state(keyed, 1) == "finished"


async def test_what_is_not_there_is_not_found(keyed):
    for call in (keyed.remove, keyed.resubmit, keyed.cancel):
        assert await call(T, "no such id") == "not_found"
    assert await keyed.get_job(T, "no such id") is None


async def test_a_resubmission_that_meets_a_finish_waits_for_it_and_the_job_waits_again(
    keyed, connection, another_connection, waiting_for_a_lock
):
    job = await in_work(keyed)
    other, observer = await another_connection(), await another_connection()
    transaction = connection.transaction()
    await transaction.start()
    await keyed.finish(T, 1, {}, job.lock_id, connection=connection)
    async with waiting_for_a_lock(observer, keyed.resubmit(T, 1, connection=other)) as resubmitting:
        assert not resubmitting.done()
        await transaction.commit()
    assert await resubmitting == "ok"
    assert await state(keyed, 1) == "pending"


async def test_a_finish_that_meets_a_resubmission_waits_for_it_and_the_job_waits_again(
    keyed, connection, another_connection, waiting_for_a_lock
):
    job = await in_work(keyed)
    other, observer = await another_connection(), await another_connection()
    transaction = connection.transaction()
    await transaction.start()
    await keyed.resubmit(T, 1, connection=connection)
    async with waiting_for_a_lock(observer, keyed.finish(T, 1, {}, job.lock_id, connection=other)) as finishing:
        assert not finishing.done()
        await transaction.commit()
    assert await finishing == "ok"
    assert await state(keyed, 1) == "pending"


# remove


@pytest.mark.parametrize("kind", ["pending", "stuck", "finished"])
async def test_a_job_that_does_not_run_is_removed_at_once_with_its_log(keyed, connection, kind):
    job = await in_work(keyed)
    await runs.note_many(connection, [LogLine(job.job, job.lock_id, 1, 0.0, "info", "x")], [])
    opts, more = {"resubmit": kind == "pending"}, {"error": "x"} if kind == "stuck" else {}
    await keyed.finish(T, 1, opts, job.lock_id, **more)
    assert await keyed.remove(T, 1) == "ok"
    assert await keyed.get_job(T, 1) is None
    assert await connection.fetchval("SELECT count(*) FROM joex_private.job_log") == 0
    assert await keyed.remove(T, 1) == "not_found"


async def test_a_job_that_runs_is_removed_when_its_run_has_ended(keyed, connection):
    job = await in_work(keyed)
    await runs.note_many(connection, [LogLine(job.job, job.lock_id, 1, 0.0, "info", "x")], [])
    assert [await keyed.remove(T, 1) for _ in range(2)] == ["ok", "ok"]
    assert await state(keyed, 1) == "running"
    with pytest.raises(JobExists):
        await keyed.add(T, 1)
    assert await keyed.resubmit(T, 1) == "not_found"
    assert await keyed.finish(T, 1, {"resubmit": True}, job.lock_id) == "canceled"
    assert await keyed.get_job(T, 1) is None
    assert await connection.fetchval("SELECT count(*) FROM joex_private.job_log") == 0
    await keyed.add(T, 1)


async def test_a_job_whose_worker_never_comes_back_is_removed_when_its_time_is_over(keyed, connection):
    await in_work(keyed)
    await keyed.remove(T, 1)
    await lose(connection)
    assert await keyed.get_job(T, 1) is None


async def test_a_job_whose_executor_dies_is_removed_when_that_is_known(keyed, bench):
    me = await bench.executor(queues=[T])
    await keyed.add(T, 1)
    [_] = await runs.take(bench.connection, me, [T], 1, FOUR_ONE)
    assert await keyed.remove(T, 1) == "ok"
    assert await state(keyed, 1) == "pending", "its code has not started"
    await bench.connection.execute("SELECT joex_private.end_executor($1, 'dead')", me)
    assert await keyed.get_job(T, 1) is None


async def test_a_removal_that_meets_an_accept_waits_for_it_and_stops_the_run(
    keyed, connection, another_connection, waiting_for_a_lock
):
    await keyed.add(T, 1)
    other, observer = await another_connection(), await another_connection()
    transaction = connection.transaction()
    await transaction.start()
    job = await keyed.accept(T, connection=connection)
    async with waiting_for_a_lock(observer, keyed.remove(T, 1, connection=other)) as removing:
        assert not removing.done()
        await transaction.commit()
    assert await removing == "ok"
    assert await keyed.update(T, 1, {}, job.lock_id) == "canceled"


async def test_an_accept_passes_over_a_job_that_is_being_removed(keyed, connection):
    await keyed.add(T, 1)
    await keyed.add(T, 2)
    async with connection.transaction():
        await keyed.remove(T, 1, connection=connection)
        assert (await keyed.accept(T)).id == 2
        assert await keyed.accept(T) is None
    assert await keyed.get_job(T, 1) is None


async def test_however_removals_and_accepts_race_each_job_is_gone_or_its_run_is_told(keyed):
    ids = list(range(40))
    for nr in ids:
        await keyed.add(T, nr)
    accepted = {}

    async def accept_all():
        while (job := await keyed.accept(T)) is not None:
            accepted[job.id] = job.lock_id

    await asyncio.gather(accept_all(), *(keyed.remove(T, nr) for nr in reversed(ids)))
    assert {job.id for job in await keyed.list_jobs(T)} == set(accepted)
    for nr, lock_id in accepted.items():
        assert await keyed.finish(T, nr, {}, lock_id) == "canceled"
    assert await keyed.list_jobs(T) == []


# Lists and counts.


async def test_the_jobs_of_a_type_are_listed_by_their_ids_page_by_page(keyed, client):
    order = list(range(len(VALUES)))
    random.Random(8).shuffle(order)
    for nr in order:
        await keyed.add(T, VALUES[nr])
    await keyed.add("another", 1)
    await client.submit(T, queue=T)
    page, seen = await keyed.list_jobs(T, most=5), []
    while page:
        seen += page
        page = await keyed.list_jobs(T, after=page[-1].id, most=5)
    assert same(tuple(job.id for job in seen), tuple(VALUES))


async def test_jobs_are_listed_and_counted_by_state(keyed):
    for nr in range(6):
        await keyed.add(T, nr)
    await run(keyed)
    await run(keyed, error="x")  # it waits for a retry
    await run(keyed, error="x", retry=False)
    await keyed.accept(T)
    await keyed.cancel(T, 5)
    await keyed.add("another", 1)
    ids = {
        state: [job.id for job in await keyed.list_jobs(T, state=state)] for state in ("pending", "running", "finished")
    }
    assert ids == {"pending": [1, 4], "running": [3], "finished": [0, 2, 5]}
    assert await keyed.count(T) == {"pending": 2, "running": 1, "finished": 3}
    assert await keyed.active(T) == [3]


async def test_jobs_up_to_a_priority_are_counted(keyed):
    for nr, opts in enumerate([{}, {"priority": 1}, {"priority": 2}, {"priority": 2}, {"priority": 3}]):
        await keyed.add(T, nr, opts)
    assert await run(keyed) == 0
    assert (await keyed.accept(T)).id == 1
    assert await keyed.count(T, max_priority=2) == {"pending": 2, "running": 1, "finished": 1}
    assert await keyed.count(T, 0) == {"pending": 0, "running": 0, "finished": 1}
    assert await keyed.count(T, None) == {"pending": 0, "running": 0, "finished": 1}
    assert await keyed.count(T) == {"pending": 3, "running": 1, "finished": 1}


async def test_the_types_that_have_a_timeout_are_listed(keyed):
    assert await keyed.timeouts() == []
    await keyed.set_timeout((1, "eu"), activity="30s")
    await keyed.set_timeout("mail", visibility="5m")
    assert sorted(await keyed.timeouts(), key=str) == [
        TypeTimeout("mail", None, timedelta(minutes=5)),
        TypeTimeout((1, "eu"), timedelta(seconds=30), None),
    ]
    await keyed.set_timeout("mail")
    assert [one.type for one in await keyed.timeouts()] == [(1, "eu")]


async def test_a_timeout_beyond_the_calendar_is_refused_and_stops_no_take(keyed, connection):
    await keyed.add(T, 1)
    refused = pytest.raises(InvalidJob, match=r"^timeout: more than zero, at most 100 years$")
    with refused, translated():
        await connection.execute("SELECT joex_client.set_timeout($1, '170000000 years')", T)
    assert (await keyed.accept(T)).id == 1


async def test_the_active_ones_are_in_the_order_of_their_ids(keyed):
    for value in reversed(VALUES):
        await keyed.add(T, value)
        await keyed.accept(T)
    assert same(tuple(await keyed.active(T)), tuple(VALUES))


# These jobs are jobs like all others.


async def test_the_views_and_lists_show_them(keyed, client, connection, bench):
    job_id = await keyed.add(T, ("doc", 1), {"priority": 3, "data": {"a": 1}, "owner": "ann"}, group="acme")
    submitted = await client.submit("a", queue=T, group="acme")
    [row] = await connection.fetch("SELECT * FROM joex.jobs WHERE id = $1", job_id)
    assert (row["task"], tuples.unpack(row["key"]), tuples.unpack(row["rank"])) == (T, ("doc", 1), 3)
    assert (row["args"], row["opts"]) == ('{"a": 1}', '{"owner": "ann"}')
    listed = await list_jobs(connection, Filter(queue=T, group="acme"))
    assert [job.id for job in listed.jobs] == [submitted, job_id], "as they stand in line"
    await keyed.accept(T)
    job = await keyed.accept(T)
    [queue] = await stats.queue_stats(connection)
    assert (queue.queue, queue.waiting, queue.running) == (T, 0, 2)
    [group] = await stats.group_stats(connection)
    assert (group.group, group.running) == ("acme", 2)
    await keyed.finish(T, job.id, {}, job.lock_id)
    assert [one.id for one in (await list_jobs(connection, Filter(states=["success"]))).jobs] == [job_id]


async def test_the_list_of_finished_jobs_has_both_kinds_by_the_time_of_their_end(keyed, client, connection):
    expected = []
    for nr in range(6):
        if nr % 2:
            expected.append(await keyed.add(T, nr))
        else:
            expected.append(await client.submit("a", queue=T))
        await run(keyed)
    found, cursor = [], None
    while True:
        page = await list_jobs(connection, Filter(states=["success"]), cursor, 2)
        found += [job.id for job in page.jobs]
        if (cursor := page.next) is None:
            break
    assert found == expected[::-1]


async def test_retention_leaves_them_alone(keyed, client, connection, bench):
    await keyed.add(T, 1)
    await client.submit("a", queue=T)
    await run(keyed)
    await run(keyed)
    await connection.execute("UPDATE joex_private.job SET finished_at = '2000-01-01'")
    assert (await jobs.delete_finished(connection, ["success"], timedelta(days=1), 100))[0] == 1
    assert [job.id for job in await keyed.list_jobs(T)] == [1]


async def test_why_counts_those_that_come_before_by_priority(keyed, client, bench):
    await bench.executor(queues=[T], tasks=[T])
    ids = {priority: await keyed.add(T, priority, {"priority": priority}) for priority in (30, 10, 20)}
    assert [(reason.reason, reason.detail) for reason in await client.why(ids[30])] == [
        ("behind", {"retries": 0, "same": 2, "other": 0})
    ]
    assert [reason.reason for reason in await client.why(ids[10])] == ["next"]
    job = await keyed.accept(T)
    assert job.id == 10
    assert [(reason.reason, reason.detail["app_id"]) for reason in await client.why(ids[10])] == [("running", "worker")]
    await keyed.finish(T, 10, {}, job.lock_id)
    assert [reason.reason for reason in await client.why(ids[10])] == ["finished"]


async def test_they_are_cancelled_retried_and_raised_by_hand_like_all_others(keyed, client):
    first, second = await keyed.add(T, 1), await keyed.add(T, 2)
    assert await client.set_priority(second, "high")
    assert (await keyed.accept(T)).id == 2
    assert await client.cancel(first) == "cancelled"
    assert await state(keyed, 1) == "finished"
    assert await client.retry(first)
    assert await client.cancel(second) == "requested"
    assert await run(keyed, error="x", retry=False) == 1
    assert await client.retry_failed(task=T) == 1
    assert await run(keyed, error="x") == 1
    assert await client.retry(first)
    assert await run(keyed) == 1


async def test_failed_jobs_of_both_kinds_are_run_again_the_oldest_first(keyed, client):
    ids = []
    for nr in range(4):
        ids.append(await keyed.add(T, nr) if nr % 2 else await client.submit("a", queue=T))
        await run(keyed, error="x", retry=False)
    assert await client.retry_failed(queue=T, most=3) == 3
    assert [(await client.get(job_id)).state for job_id in ids] == ["waiting"] * 3 + ["failed"]


# Wrong values.

LOCK = UUID(int=7)
WRONG = {
    "type: must not be empty": lambda t: t.add("", 1),
    "type: not a value that FoundationDB's tuple layer orders": lambda t: t.add({"a": 1}, 1),
    "type: at most 254 bytes": lambda t: t.accept("x" * 255),
    "id: not a value that FoundationDB's tuple layer orders": lambda t: t.add(T, {"a": 1}),
    "id: not a value": lambda t: t.get_job(T, object()),
    "id: at most 1000 bytes": lambda t: t.remove(T, b"x" * 1000),
    "priority: not a value that FoundationDB's tuple layer orders": lambda t: t.add(T, 1, {"priority": LATER}),
    "priority: not a value": lambda t: t.update(T, 1, {"priority": {}}, LOCK),
    "priority: packed, it must not begin with the byte ff; got ffff": lambda t: t.update(
        T, 1, {"priority": tuples.Packed(b"\xff\xff")}, LOCK
    ),
    "max_priority: not a value": lambda t: t.accept(T, {}),
    "after: not a value": lambda t: t.list_jobs(T, after={}),
    "opts: expected an object (names and values); got list": lambda t: t.add(T, 1, []),
    "opts: expected an object (names and values); got NoneType": lambda t: t.update(T, 1, None, LOCK),
    "opts.free: can't be stored as JSON": lambda t: t.add(T, 1, {"free": object()}),
    "opts: must not contain a NUL character": lambda t: t.finish(T, 1, {"free": "\0"}, LOCK),
    "data: expected an object (names and values); got list": lambda t: t.add(T, 1, {"data": []}),
    "data.a: can't be stored as JSON": lambda t: t.update(T, 1, {"data": {"a": object()}}, LOCK),
    "data: must not contain a NUL character": lambda t: t.add(T, 1, {"data": {"a": "\0"}}),
    "cancel: expected true or false; got list": lambda t: t.add(T, 1, {"cancel": [1e15]}),
    "cancel: expected true or false; got 'yes'": lambda t: t.add(T, 1, {"cancel": "yes"}),
    "cancel: a run can't cancel its own job": lambda t: t.update(T, 1, {"cancel": True}, LOCK),
    "resubmit: expected true or false; got 1": lambda t: t.finish(T, 1, {"resubmit": 1}, LOCK),
    "group: must not be empty": lambda t: t.add(T, 1, group=""),
    "group: expected text; got int": lambda t: t.add(T, 1, group=7),
    "queue: at most 254 bytes": lambda t: t.add(T, 1, queue="x" * 255),
    "subject: at most 1000 bytes": lambda t: t.add(T, 1, subject="x" * 1001),
    "subject: must not contain a NUL character": lambda t: t.add(T, 1, subject="\0"),
    "submitter: expected text; got int": lambda t: t.add(T, 1, submitter=7),
    "submitter: must not contain a NUL character": lambda t: t.add(T, 1, submitter="\0"),
    "worker: must not be empty": lambda t: t.accept(T, worker=""),
    "lock_id: expected the UUID that accept gave; got 'x'": lambda t: t.update(T, 1, {}, "x"),
    "lock_id: expected the UUID": lambda t: t.finish(T, 1, {}, None),
    "lock_id: expected": lambda t: t.give_back(T, 1, 7),
    "progress: expected 0 to 100; got 101": lambda t: t.update(T, 1, {}, LOCK, progress=101),
    "progress: expected 0 to 100; got nan": lambda t: t.update(T, 1, {}, LOCK, progress=math.nan),
    "progress: expected 0 to 100; got 'half'": lambda t: t.update(T, 1, {}, LOCK, progress="half"),
    "message: expected text; got int": lambda t: t.update(T, 1, {}, LOCK, message=7),
    "message: must not contain a NUL character": lambda t: t.finish(T, 1, {}, LOCK, message="\0"),
    "error: expected text; got ValueError": lambda t: t.finish(T, 1, {}, LOCK, error=ValueError()),
    "error: must not contain a NUL character": lambda t: t.finish(T, 1, {}, LOCK, error="\0"),
    "result: can't be stored as JSON": lambda t: t.finish(T, 1, {}, LOCK, result=object()),
    "state: expected pending, running or finished; got 'waiting'": lambda t: t.list_jobs(T, state="waiting"),
    "until: expected pending, running, finished, or a function of a job; got 'done'": lambda t: t.wait(T, 1, "done"),
    "until: expected pending, running, finished, or a function of a job; got []": lambda t: t.wait_many(T, [1], []),
    "most: expected 1 to 1000000; got -1": lambda t: t.list_jobs(T, most=-1),
    "most: expected 1 to 1000000; got None": lambda t: t.list_jobs(T, most=None),
    "activity: expected": lambda t: t.set_timeout(T, activity="soon"),
    "activity: expected more than 0; got 0": lambda t: t.set_timeout(T, activity=0),
    "visibility: expected 0 to 3650 days": lambda t: t.set_timeout(T, visibility=-1),
    "visibility: expected a duration such as '30s'; got []": lambda t: t.set_timeout(T, visibility=[]),
    "activity, visibility: a type has one timeout; got both": lambda t: t.set_timeout(T, activity=1, visibility=1),
}  # fmt: skip


async def test_a_wrong_value_is_refused_by_name_and_the_callers_transaction_goes_on(keyed, connection):
    async with connection.transaction():
        for message, call in WRONG.items():
            with pytest.raises(InvalidJob) as caught:
                await call(keyed)
            assert str(caught.value).startswith(message)
            assert "\n" not in str(caught.value)
        await keyed.add(T, "fine", connection=connection)
    assert [job.id for job in await keyed.list_jobs(T)] == ["fine"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"retry_jitter": -5}, "retry_jitter: expected 0 to 1; got -5"),
        ({"retry_jitter": float("nan")}, "retry_jitter: expected 0 to 1; got nan"),
        ({"retry_jitter": "x"}, "retry_jitter: expected 0 to 1; got 'x'"),
        ({"retries": -1}, "retries: expected 0 to 1000000; got -1"),
        ({"retries": "x"}, "retries: expected 0 to 1000000; got 'x'"),
        ({"retry_delay": "x"}, "retry_delay: expected something like '30s', '1m', '1h30m' or '7d'; got 'x'"),
        ({"retry_delay": -1}, "retry_delay: expected 0 to 3650 days; got -1"),
    ],
)
async def test_the_settings_of_retries_are_checked_when_they_are_given(client, wrong, said):
    with pytest.raises(ConfigError) as caught:
        KeyedJobs(client.connections, **wrong)
    assert str(caught.value) == said

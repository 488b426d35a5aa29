"""Periodic tasks: one of many schedulers decides each time once, and no task delays the others."""

import asyncio
from collections import Counter
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from random import Random
from zoneinfo import ZoneInfo

import asyncpg
import pytest

from joex import App, periodic_scheduler
from joex.config import Settings
from joex.core.events import DatabaseTrouble, PeriodicNotRegistered, Registered, Repeated, TroubleOver
from joex.core.periodic import SYSTEM_OWNER, USER, NewPeriodicTask, decide
from joex.core.timers import Timer
from joex.errors import InvalidJob, NotYours
from joex.periodic_scheduler import PeriodicScheduler
from joex.runtime.maintenance import RETENTION, register_periodic_tasks
from joex.store import audit, periodic, periodic_due
from joex.store.periodic import TaskKey
from tests.support.processes_inside import LONG, executor_inside
from tests.support.waiting import EventLog, eventually

pytestmark = pytest.mark.postgres(16, 18)

YEARLY, MONTHLY, EVERY_SECOND = "yearly", "monthly", "*:*:*"
LONG_AGO = "2020-01-01"  # a timer without a future
RAISE = """
    CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE 'not this one' USING ERRCODE = '{}'; END $$;
    CREATE TRIGGER refuse BEFORE INSERT ON joex_private.job FOR EACH ROW WHEN (NEW.task = 'bad')
        EXECUTE FUNCTION refuse();
"""
READS = """
    SELECT pg_stat_get_xact_numscans('joex_private.periodic_task'::regclass) AS scans,
           (SELECT sum(pg_stat_get_xact_tuples_returned(indexrelid)) FROM pg_index
            WHERE indrelid = 'joex_private.periodic_task'::regclass)::bigint AS entries
"""  # of all periodic tasks, and of entries of indexes, in this transaction


A = TaskKey("a", "default", "default")


def named(task_id):
    """The name of the task with this id in whichever queue and group."""
    return task_id, None, None


class Tasks:
    """Periodic tasks, driven by hand through a connection."""

    def __init__(self, connection):
        self.connection = connection

    async def put(self, *ids, timer=YEARLY, task="a", owner=USER, **more):
        """Set tasks; the last answer."""
        new = [NewPeriodicTask(task_id, task, timer, **more) for task_id in ids]
        return [await periodic.put(self.connection, one, owner) for one in new][-1]

    async def due(self, *ids, ago=timedelta(milliseconds=1)):
        """Let tasks have become due this long ago; returns the time."""
        return await self.connection.fetchval(
            "UPDATE joex_private.periodic_task SET nextrun = clock_timestamp() - $2::interval "
            "WHERE id = ANY ($1) RETURNING nextrun",
            ids,
            ago,
        )

    async def put_due(self, *ids, **more):
        """Set tasks that are due."""
        await self.put(*ids, **more)
        return await self.due(*ids)

    async def change(self, task_id, what):
        """Change a row in raw SQL."""
        await self.connection.execute(f"UPDATE joex_private.periodic_task SET {what} WHERE id = $1", task_id)  # noqa: S608

    async def read(self, **which):
        """The due tasks, with the decisions about them."""
        found, _ = await periodic_due.due(self.connection, 200, **which)
        return [(one, decide(one.schedule, one.now)) for one in found]

    async def fire(self, decided, worker="me"):
        """Fire decisions; returns the outcomes, by id."""
        return {one.key.id: one.outcome for one in await periodic_due.fire(self.connection, worker, decided)}

    async def decide(self, worker="me"):
        """Decide about all due tasks; returns the outcomes, by id."""
        return await self.fire(await self.read(), worker)

    async def get(self, task_id="a"):
        """A task as it is stored."""
        [one] = await periodic.list_tasks(self.connection, [named(task_id)])
        return one

    async def jobs(self, task_id=None):
        """How many jobs a task, or all of them, have submitted."""
        return await self.connection.fetchval(
            "SELECT count(*) FROM joex_private.job WHERE $1::text IS NULL OR tracker LIKE 'periodic % ' || $1", task_id
        )

    async def now(self):
        return await self.connection.fetchval("SELECT clock_timestamp()")


@pytest.fixture
def tasks(connection):
    return Tasks(connection)


@pytest.fixture
def scheduler(pool, monkeypatch):
    """A block with a running scheduler whose longest sleep does not end in a test; gives its events."""
    monkeypatch.setattr(periodic_scheduler, "_LONGEST_SLEEP", 3600.0)

    @asynccontextmanager
    async def at_work(**more):
        log = EventLog()
        work = asyncio.create_task(PeriodicScheduler(pool, "scheduler", log, **more).run())
        try:
            yield log
            assert not work.done()
        finally:
            work.cancel()
            with suppress(asyncio.CancelledError):
                await work

    return at_work


# A time is decided once.


async def test_a_task_gets_its_next_time_and_makes_its_job_when_that_has_come(tasks, bench):
    wanted = {"args": {"x": 1}, "group": "acme", "queue": "mail", "subject": "the report", "submitter": "ann"}
    assert await tasks.put("a", **wanted) == "set"
    assert await tasks.decide() == {"a": "set"}
    new = await tasks.get()
    assert (new.nextrun, new.last_run, new.last_job) == (
        Timer.parse(YEARLY).next(await tasks.now(), ZoneInfo("UTC")),
        None,
        None,
    )
    assert await tasks.decide() == {}
    time = await tasks.due("a")
    assert await tasks.decide("ann's laptop") == {"a": "submitted"}
    task = await tasks.get()
    assert (task.last_run, task.last_outcome, task.last_job_state) == (time, "submitted", "waiting")
    assert task.nextrun == new.nextrun
    assert task.worker == "ann's laptop"
    assert time < task.marked <= await tasks.now()
    job = await bench.job(task.last_job)
    assert {name: getattr(job, name) for name in wanted} == wanted
    assert (job.task, job.priority) == ("a", "low")


async def test_a_job_without_a_subject_has_the_id_of_its_task(tasks, bench):
    await tasks.put_due("nightly", priority="high")
    await tasks.decide()
    job = await bench.job((await tasks.get("nightly")).last_job)
    assert (job.subject, job.priority) == ("nightly", "high")


async def test_of_many_who_have_read_that_it_is_due_one_makes_the_job(tasks, another_connection):
    others = [Tasks(await another_connection()) for _ in range(8)]
    await tasks.put_due("a", "b")
    read = [await one.read() for one in others]
    assert [len(decided) for decided in read] == [2] * 8
    answers = await asyncio.gather(*(one.fire(decided) for one, decided in zip(others, read, strict=True)))
    # Some calls meet another call that is under way, and return nothing.
    outcomes = [outcome for answer in answers for outcome in answer.values()]
    assert outcomes.count("submitted") == 2
    assert set(outcomes) <= {"submitted", "stale"}
    assert await tasks.jobs() == 2


async def test_who_has_read_it_before_another_one_decided_comes_too_late(tasks):
    await tasks.put_due("a")
    before = await tasks.read()
    assert await tasks.decide() == {"a": "submitted"}
    task = await tasks.get()
    assert await tasks.fire(before, "late") == {"a": "stale"}
    assert await tasks.get() == task


async def test_the_earliest_comes_first(tasks):
    for number, task_id in enumerate("cab"):
        await tasks.put(task_id)
        await tasks.due(task_id, ago=timedelta(hours=3 - number))
    await tasks.put("new")
    assert [one.key.id for one, _ in await tasks.read()] == ["new", "c", "a", "b"]


async def test_however_many_tasks_have_been_changed_those_that_are_due_are_among_the_next(tasks):
    await tasks.put_due("a", "b")
    await tasks.put("c", "d", "e")
    for most in (1, 2):
        found = [one.key.id for one in (await periodic_due.due(tasks.connection, most))[0]]
        assert len(found) == 2 * most
        assert len({"a", "b"} & set(found)) == most


@pytest.mark.parametrize("hog", ["hog", "acme"])
@pytest.mark.parametrize("state", ["due", "changed"])
async def test_however_many_tasks_of_a_group_come_first_each_other_group_has_its_turn(tasks, state, hog):
    """And each group of this name in another queue: it may belong to another tenant."""
    add = """
        INSERT INTO joex_private.periodic_task (id, queue, grp, task, timer) SELECT 'a ' || nr, $3, $1, 'a', 'yearly'
        FROM generate_series(1, $2::integer) nr
    """
    await tasks.connection.execute(add, hog, 2000, "another")
    await tasks.due(*(f"a {nr}" for nr in range(1, 2001)), ago=timedelta(hours=1))
    for group in ("acme", "zoo"):
        await tasks.connection.execute(add, group, 50, "default")
    if state == "due":
        await tasks.connection.execute(
            "UPDATE joex_private.periodic_task SET nextrun = clock_timestamp() WHERE queue = 'default'"
        )
    else:
        await tasks.connection.execute(
            "UPDATE joex_private.periodic_task SET nextrun = '-infinity' WHERE queue <> 'default'"
        )
    found = Counter((task.key.queue, task.key.group) for task, _ in await tasks.read())
    assert (found["default", "acme"], found["default", "zoo"]) == (50, 50)
    assert found["another", hog] <= 200


async def test_a_group_whose_jobs_take_long_to_submit_has_one_of_them_for_each_task_of_another(tasks):
    """A megabyte of arguments takes thirty milliseconds, and a tenant may have hundreds of such tasks each second."""
    await tasks.connection.execute("""
        CREATE FUNCTION take_long() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN PERFORM pg_sleep(0.25); RETURN NEW; END $$;
        CREATE TRIGGER take_long BEFORE INSERT ON joex_private.job FOR EACH ROW WHEN (NEW.queue = 'hog')
            EXECUTE FUNCTION take_long();
    """)
    await tasks.put_due(*(f"a {number}" for number in range(40)), group="acme", queue="hog")
    await tasks.put_due("z 1", "z 2", group="acme")
    await tasks.connection.execute("SELECT setseed(0.5)")  # each pass begins with one of the two groups, by chance
    passes: list[dict[str, str]] = []
    while not {"z 1", "z 2"} <= {task for one in passes for task in one}:
        passes.append(await tasks.decide())
    assert max(sum(task.startswith("a") for task in one) for one in passes) == 1
    assert len(passes) <= 8


async def test_where_more_groups_are_due_than_a_pass_holds_the_next_passes_go_on_with_the_others(tasks):
    await tasks.put_due(*(f"hog {nr}" for nr in range(9)), group="hog")
    groups = {f"group {nr}" for nr in range(7)}
    for group in groups:
        await tasks.put(group, group=group)
        await tasks.due(group, ago=timedelta(0))
    passes, after = [], periodic_due.FIRST_TURN
    for _ in range(4):
        found, after = await periodic_due.due(tasks.connection, 2, after=after)
        passes.append({one.key.group for one in found} - {"hog"})
    assert [len(one) for one in passes] == [2, 2, 2, 1]
    assert set().union(*passes) == groups
    found, after = await periodic_due.due(tasks.connection, 2, after=after)
    assert {one.key.group for one in found} - {"hog"} == passes[0]  # the next round


async def test_a_pass_reads_a_bounded_number_of_groups_and_the_next_one_goes_on_there(tasks):
    await tasks.put_due("hog 1", "hog 2", group="hog")
    await tasks.connection.execute("""
        INSERT INTO joex_private.periodic_task (id, grp, task, timer)
        SELECT 'a ' || nr, 'group ' || lpad(nr::text, 3, '0'), 'a', 'yearly' FROM generate_series(1, 100) nr
    """)
    await tasks.connection.execute("UPDATE joex_private.periodic_task SET nextrun = 'infinity' WHERE grp <> 'hog'")
    await tasks.due("a 100")
    await tasks.due("hog 1", "hog 2", ago=timedelta(hours=1))
    passes, after = [], periodic_due.FIRST_TURN
    for _ in range(5):
        found, after = await periodic_due.due(tasks.connection, 1, after=after)
        passes.append("group 100" in {one.key.group for one in found})
    assert passes == [False, False, False, False, True]
    assert after == ("default", "group 100")


@pytest.mark.parametrize("are_analyzed", ["none", "others"])
async def test_turns_cost_what_the_pass_holds_whatever_the_statistics_say(tasks, are_analyzed):
    await tasks.connection.execute("""
        ALTER TABLE joex_private.periodic_task SET (autovacuum_enabled = off);
        INSERT INTO joex_private.periodic_task (id, grp, task, timer, nextrun)
        SELECT 'never ' || nr, 'never', 'a', 'yearly', 'infinity' FROM generate_series(1, 1000) nr;
    """)
    if are_analyzed == "others":  # so they say that no task is due
        await tasks.connection.execute("VACUUM ANALYZE joex_private.periodic_task")
    await tasks.connection.execute("""
        INSERT INTO joex_private.periodic_task (id, grp, task, timer, nextrun)
        SELECT 'a ' || nr, CASE WHEN nr > 1000 THEN 'hog' ELSE 'group ' || nr END, 'a', 'yearly', clock_timestamp()
        FROM generate_series(1, 20000) nr;
    """)
    async with tasks.connection.transaction():
        before = await tasks.connection.fetchrow(READS)
        found, _ = await periodic_due.due(tasks.connection, 20)
        after = await tasks.connection.fetchrow(READS)
    assert len({task.key.group for task in found}) >= 20
    assert after["scans"] == before["scans"]
    assert after["entries"] - before["entries"] <= 100


async def test_it_is_told_how_long_it_is_until_the_next(tasks):
    assert await periodic_due.next_in(tasks.connection) is None
    await tasks.put("a", "b")
    await tasks.due("a", ago=timedelta(hours=-1))
    await tasks.due("b", ago=timedelta(hours=-2))
    assert 3000 < (await periodic_due.next_in(tasks.connection) or 0) <= 3600
    assert 6000 < (await periodic_due.next_in(tasks.connection, aside=[A]) or 0) <= 7200
    await tasks.due("b")
    assert await periodic_due.next_in(tasks.connection) == 0


async def test_an_operator_leaves_the_tasks_of_joex_itself_alone(tasks):
    await tasks.put_due("a")
    await tasks.put_due("b", owner=SYSTEM_OWNER)
    assert [one.key.id for one, _ in await tasks.read(system=False)] == ["a"]
    await periodic.remove(tasks.connection, named("a"), USER)
    assert await periodic_due.next_in(tasks.connection, system=False) is None
    assert await periodic_due.next_in(tasks.connection) == 0


# Not while the job before is unfinished.


async def test_while_the_job_before_is_unfinished_times_are_left_out(tasks, bench):
    executor = await bench.executor()

    async def is_left_out():
        time = await tasks.due("a")
        assert await tasks.decide() == {"a": "overlapping"}
        task = await tasks.get()
        assert (task.last_run, task.last_outcome, task.last_job) == (time, "overlapping", job_id)
        assert task.nextrun > time

    await tasks.put_due("a")
    await tasks.decide()
    job_id = (await tasks.get()).last_job
    await is_left_out()  # it is waiting
    taken = await bench.take_one(executor)
    await is_left_out()  # scheduled
    await bench.start(taken)
    await is_left_out()  # running
    await bench.finish(taken, "stuck", delay=3600.0, age=1.0)
    assert await bench.state(job_id) == "stuck"
    await is_left_out()
    assert await tasks.jobs() == 1
    await bench.connection.execute("SELECT joex.cancel($1)", job_id)
    await tasks.due("a")
    assert await tasks.decide() == {"a": "submitted"}
    assert (await tasks.get()).last_job != job_id


async def test_a_job_that_somebody_finishes_in_an_open_transaction_keeps_nobody_waiting(
    tasks, bench, another_connection
):
    await tasks.put_due("a", "b")
    assert await tasks.decide() == {"a": "submitted", "b": "submitted"}
    await bench.connection.execute("SELECT joex.cancel($1)", (await tasks.get("b")).last_job)
    job_id = (await tasks.get("a")).last_job
    other = await another_connection()
    async with other.transaction():
        await other.execute("SELECT joex.cancel($1)", job_id)
        await tasks.due("a", "b")
        assert await asyncio.wait_for(tasks.decide(), 30) == {"a": "overlapping", "b": "submitted"}


async def test_a_submission_that_has_to_wait_for_somebody_is_tried_again_and_the_others_go_on(
    tasks, another_connection
):
    await tasks.put_due("a", "b")
    other = await another_connection()
    async with other.transaction():
        await other.execute("SELECT joex_private.submit_periodic(t) FROM joex_private.periodic_task t WHERE id = 'a'")
        assert await asyncio.wait_for(tasks.decide(), 30) == {"a": "trouble", "b": "submitted"}
        assert await tasks.decide() == {"a": "trouble"}
    assert await tasks.decide() == {"a": "overlapping"}


async def test_a_task_that_is_removed_and_put_again_does_not_get_the_next_time_of_the_first_one(tasks):
    await tasks.put("a", timer=YEARLY)
    decided = await tasks.read()
    await tasks.connection.execute("SELECT joex.remove_periodic_task('a')")
    await tasks.put("a", timer="*:*:*")
    assert await tasks.fire(decided) == {"a": "stale"}
    assert await tasks.decide() == {"a": "set"}


async def test_waits_for_the_jobs_of_one_group_make_those_of_another_wait_no_shorter(tasks, another_connection):
    await tasks.connection.execute("""
        CREATE FUNCTION show() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN NEW.submitter := current_setting('lock_timeout'); RETURN NEW; END $$;
        CREATE TRIGGER show BEFORE INSERT ON joex_private.job FOR EACH ROW EXECUTE FUNCTION show();
    """)
    await tasks.put_due("a", "b", group="hog")
    await tasks.put_due("x", "y", "z")
    other = await another_connection()
    async with other.transaction():
        await other.execute(
            "SELECT joex_private.submit_periodic(t) FROM joex_private.periodic_task t WHERE id IN ('a', 'b')"
        )
        submitted = dict.fromkeys("xyz", "submitted")
        assert await tasks.decide() == {"a": "trouble", "b": "trouble", **submitted}
    assert await tasks.connection.fetch("SELECT submitter FROM joex.jobs WHERE grp = 'default'") == [("20ms",)] * 3


async def test_a_group_whose_jobs_have_to_wait_twice_has_its_other_tasks_in_the_next_pass(tasks, another_connection):
    for number, task_id in enumerate("abcd"):
        await tasks.put(task_id)
        await tasks.due(task_id, ago=timedelta(hours=4 - number))
    other = await another_connection()
    async with other.transaction():
        await other.execute(
            "SELECT joex_private.submit_periodic(t) FROM joex_private.periodic_task t WHERE id IN ('a', 'b', 'd')"
        )
        assert await tasks.decide() == {"a": "trouble", "b": "trouble"}
        aside = [TaskKey(task_id, "default", "default") for task_id in "ab"]
        assert await tasks.fire(await tasks.read(aside=aside)) == {"c": "submitted", "d": "trouble"}


async def test_of_very_many_submissions_that_have_to_wait_a_few_wait_longer_than_a_millisecond(tasks):
    """A role may use hundreds of groups, and other tenants' tasks come between."""
    await tasks.connection.execute("""
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            RAISE NOTICE '%', current_setting('lock_timeout');
            RAISE 'it would have to wait' USING ERRCODE = '55P03';
        END $$;
        CREATE TRIGGER refuse BEFORE INSERT ON joex_private.job FOR EACH ROW EXECUTE FUNCTION refuse();
    """)
    waits: list[str] = []
    tasks.connection.add_log_listener(lambda _, notice: waits.append(notice.message))
    for group in range(10):
        await tasks.put_due("a", group=f"group {group}")
    await tasks.decide()
    assert waits == ["20ms"] * 6 + ["1ms"] * 4


async def test_a_client_that_adds_many_periodic_tasks_undoes_no_pass(tasks):
    """The tables grow by a page at a time, for which all who write rows wait in line."""
    await tasks.connection.execute("""
        CREATE FUNCTION show() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN RAISE NOTICE '%', current_setting('lock_timeout'); RETURN NEW; END $$;
        CREATE TRIGGER show BEFORE UPDATE OF marked ON joex_private.periodic_task FOR EACH ROW EXECUTE FUNCTION show();
    """)
    waits: list[str] = []
    tasks.connection.add_log_listener(lambda _, notice: waits.append(notice.message))
    await tasks.put_due("a")
    await tasks.decide()
    assert waits == ["1s"]


def test_a_task_that_is_often_in_trouble_is_tried_ever_later():
    aside = periodic_scheduler.Aside()
    waits: list[float] = []
    now = 1000.0
    for _ in range(12):
        aside.put(A, now)
        [until] = aside.until(now).values()
        waits, now = [*waits, until - now], until
        assert not aside.until(now)  # it is tried
    assert waits == [0.5, 1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]
    aside.forget(A)
    aside.put(A, now)
    assert aside.until(now) == {A: now + 0.5}
    assert not aside.until(now + 400)
    aside.put(A, now + 400)  # an old trouble no longer counts
    assert aside.until(now + 400) == {A: now + 400.5}


def test_of_very_many_tasks_in_trouble_the_latest_are_aside(monkeypatch):
    """Whoever owns a database may name any number to the operator."""
    monkeypatch.setattr(periodic_scheduler, "_MOST_ASIDE", 2)
    aside = periodic_scheduler.Aside()
    tasks = [TaskKey(name, "default", "one") for name in ("a", "b", "c")]
    for task in (tasks[0], tasks[1], tasks[0], tasks[2]):
        aside.put(task, 1000.0)
    assert list(aside.until(1000.0)) == [tasks[0], tasks[2]]


async def test_tasks_of_one_id_in_several_queues_and_groups_are_decided_each_for_itself(tasks):
    places = [("x", "one"), ("x", "two"), ("y", "one")]
    for queue, group in places:
        await tasks.put_due("a", queue=queue, group=group)
    fired = await periodic_due.fire(tasks.connection, "me", await tasks.read())
    assert sorted((one.key, one.outcome) for one in fired) == [(("a", *place), "submitted") for place in places]
    jobs = await tasks.connection.fetch("SELECT queue, grp, id FROM joex.jobs ORDER BY queue, grp")
    assert [
        (one.queue, one.group, one.last_job) for one in await periodic.list_tasks(tasks.connection, owners=[USER])
    ] == [tuple(job) for job in jobs]
    await tasks.connection.execute("SELECT joex.cancel(id) FROM joex.jobs WHERE (queue, grp) = ('y', 'one')")
    await tasks.due("a")
    fired = await periodic_due.fire(tasks.connection, "me", await tasks.read())
    assert sorted((*one.key[1:], one.outcome) for one in fired) == [
        ("x", "one", "overlapping"), ("x", "two", "overlapping"), ("y", "one", "submitted"),
    ]  # fmt: skip


async def test_trouble_with_a_task_sets_aside_no_other_of_its_id(tasks):
    for group in ("one", "two"):
        await tasks.put_due("a", group=group)
    key = TaskKey("a", "default", "one")
    assert [task.key.group for task, _ in await tasks.read(aside=[key])] == ["two"]
    assert (
        await periodic_due.next_in(tasks.connection, system=False, aside=[key, TaskKey("a", "default", "two")]) is None
    )


async def test_queues_and_ids_that_read_alike_have_trackers_of_their_own(tasks):
    for queue, task_id in (("a", "b c"), ("a b", "c"), ("a' 'b", "c"), ("\\" * 254, "x" * 240)):
        await tasks.put_due(task_id, queue=queue)
    fired = await periodic_due.fire(tasks.connection, "me", await tasks.read())
    assert [one.outcome for one in fired] == ["submitted"] * 4


async def test_no_client_keeps_a_periodic_task_from_running(tasks, client):
    await tasks.put_due("a")
    with pytest.raises(InvalidJob, match=r'^tracker: must not begin with "periodic "'):
        await client.submit("a", tracker="periodic a")
    said = r'^tracker: must not begin with "periodic ": only jobs of periodic tasks have such trackers$'
    for call in ("submit('a', tracker => $1)", "submit_many(ARRAY['a', 'b'], trackers => ARRAY[NULL, $1])"):
        with pytest.raises(asyncpg.InvalidParameterValueError, match=said):
            await tasks.connection.execute(f"SELECT joex.{call}", "periodic a")
    assert await tasks.decide() == {"a": "submitted"}
    assert await tasks.jobs() == 1


# What was missed.


@pytest.mark.parametrize("deadline", [None, timedelta(days=3650)])
async def test_of_all_times_that_were_missed_one_is_caught_up(tasks, deadline):
    await tasks.put("a", timer=MONTHLY, starting_deadline=deadline)
    time = await tasks.due("a", ago=timedelta(days=365))
    assert await tasks.decide() == {"a": "submitted"}
    task = await tasks.get()
    assert task.last_run == time
    assert task.nextrun > await tasks.now()
    assert await tasks.decide() == {}
    assert await tasks.jobs() == 1


async def test_times_missed_by_more_than_the_deadline_are_left_out_and_the_first_other_is_caught_up(tasks):
    deadline = timedelta(days=70)
    await tasks.put("a", timer=MONTHLY, starting_deadline=deadline)
    await tasks.due("a", ago=timedelta(days=365))
    first = Timer.parse(MONTHLY).next(await tasks.now() - deadline, ZoneInfo("UTC"))
    assert await tasks.decide() == {"a": "submitted"}
    task = await tasks.get()
    assert task.last_run == first
    assert task.nextrun > await tasks.now()
    assert await tasks.decide() == {}


async def test_where_all_were_missed_by_more_than_the_deadline_none_is_caught_up(tasks):
    await tasks.put("a", starting_deadline=timedelta(seconds=30))
    time = await tasks.due("a", ago=timedelta(minutes=1))
    assert await tasks.decide() == {"a": "late"}
    task = await tasks.get()
    assert (task.last_run, task.last_outcome, task.last_job) == (time, "late", None)
    assert task.nextrun > await tasks.now()
    await tasks.put("b", starting_deadline=timedelta(minutes=1))
    await tasks.due("b")
    assert await tasks.decide() == {"b": "submitted"}


async def test_an_expression_without_a_future_never_fires(tasks):
    await tasks.put("a", timer=LONG_AGO)
    assert await tasks.decide() == {"a": "set"}
    assert await tasks.decide() == {}
    assert await periodic_due.next_in(tasks.connection) is None
    task = await tasks.get()
    assert (task.nextrun, task.error, task.enabled) == (None, None, True)
    await tasks.put("a", timer=YEARLY)
    assert await tasks.decide() == {"a": "set"}
    assert (await tasks.get()).nextrun is not None


async def test_the_last_time_of_an_expression_fires(tasks):
    await tasks.put("a", timer=LONG_AGO)
    await tasks.decide()
    time = datetime(2020, 1, 1, tzinfo=UTC)
    await tasks.connection.execute("UPDATE joex_private.periodic_task SET nextrun = $1 WHERE id = 'a'", time)
    assert await tasks.decide() == {"a": "submitted"}
    task = await tasks.get()
    assert (task.last_run, task.nextrun) == (time, None)
    assert await tasks.decide() == {}


# No scheduler or task blocks the others.


async def test_a_row_that_is_changed_in_an_open_transaction_does_not_stop_the_others(tasks, another_connection):
    await tasks.put_due("a", "b")
    read = await tasks.read()
    other = await another_connection()
    async with other.transaction():
        await other.execute("UPDATE joex_private.periodic_task SET args = '{\"x\": 1}' WHERE id = 'a'")
        assert await asyncio.wait_for(tasks.fire(read), 30) == {"a": "stale", "b": "submitted"}
        assert await tasks.decide() == {}
    assert await tasks.decide() == {"a": "submitted"}


async def test_hundreds_of_locked_rows_do_not_starve_the_next_one(tasks, another_connection, scheduler):
    locked = [f"a {number}" for number in range(500)]
    await tasks.put_due(*locked)
    await tasks.put("z")
    await tasks.due("z", ago=timedelta(0))
    other = await another_connection()
    async with other.transaction():
        await other.execute("SELECT FROM joex_private.periodic_task WHERE id = ANY ($1) FOR UPDATE", locked)
        async with scheduler() as log:
            assert (await log.wait_for(Repeated)).id == "z"
    async with scheduler() as log:
        await log.wait_for(Repeated, count=500)
    assert await tasks.jobs() == 501


async def test_a_pass_gives_all_else_in_the_process_its_turns(tasks, scheduler, monkeypatch):
    await tasks.put_due("a", "b", "c")
    turns, seen = 0, []

    async def take_turns():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    def noted(schedule, now):
        seen.append(turns)
        return decide(schedule, now)

    monkeypatch.setattr(periodic_scheduler, "_SLICE", 0.0)  # each decision takes that long
    monkeypatch.setattr(periodic_scheduler, "decide", noted)
    beside = asyncio.create_task(take_turns())
    async with scheduler() as log:
        await log.wait_for(Repeated, count=3)
    beside.cancel()
    assert len(seen) == len(set(seen)) == 3


async def test_a_pass_decides_for_a_while_about_one_task_of_a_group_for_each_of_another(tasks, scheduler, monkeypatch):
    """A timer may take milliseconds to compute, and a tenant may change thousands of its tasks in a second."""
    await tasks.put_due(*(f"a {number}" for number in range(20)), group="acme", queue="hog")
    await tasks.put_due("z 1", "z 2", group="acme")
    monkeypatch.setattr(periodic_scheduler, "_DECIDE_FOR", 0.0)  # each decision takes that long
    monkeypatch.setattr(periodic_scheduler, "random", Random(1))  # of the two groups one begins, by chance
    async with scheduler() as log:
        fired = await log.wait_for(Repeated, lambda event: event.id == "z 2")
        before = log.of(Repeated)
        assert before.index(fired) < 12
        await log.wait_for(Repeated, count=22)


async def test_a_stop_ends_a_pass_between_two_decisions_and_leaves_all_to_other_schedulers(tasks, pool, monkeypatch):
    await tasks.put_due("a", "b", "c")
    decided = []

    def stopped(schedule, now):
        decided.append(schedule)
        work.cancel()
        return decide(schedule, now)

    monkeypatch.setattr(periodic_scheduler, "_SLICE", 0.0)
    monkeypatch.setattr(periodic_scheduler, "decide", stopped)
    work = asyncio.create_task(PeriodicScheduler(pool, "scheduler", EventLog()).run())
    with suppress(asyncio.CancelledError):
        await work
    assert len(decided) == 1
    assert await tasks.decide() == {"a": "submitted", "b": "submitted", "c": "submitted"}


async def test_the_marks_of_a_session_that_dies_are_gone_with_it(tasks, another_connection):
    """It has decided, and not committed: no other session decides meanwhile, or waits for it."""
    await tasks.put_due("a", "b")
    other = Tasks(await another_connection())
    pid = await other.connection.fetchval("SELECT pg_backend_pid()")
    await other.connection.execute("BEGIN")
    read = await tasks.read()
    assert await other.fire(read) == {"a": "submitted", "b": "submitted"}
    assert await asyncio.wait_for(tasks.fire(read), 30) == {}
    await tasks.connection.execute("SELECT pg_terminate_backend($1)", pid)

    async def is_fired():
        return await tasks.fire(read)

    assert await eventually(is_fired) == {"a": "submitted", "b": "submitted"}
    assert (await tasks.get()).worker == "me"
    assert await tasks.jobs() == 2


# Broken rows.


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("timer", "every day", "every day"),
        ("zone", "Europe/Atlantis", "Europe/Atlantis"),
        ("zone", "../etc", "time zone"),
    ],
)
async def test_a_row_that_can_not_be_read_is_told_and_stops_no_other(tasks, column, value, said):
    await tasks.put_due("a", "b")
    await tasks.change("a", f"{column} = '{value}'")
    assert await tasks.decide() == {"a": "refused", "b": "submitted"}
    broken = await tasks.get()
    assert said in broken.error
    assert (broken.nextrun, broken.enabled) == (None, True)
    assert await tasks.decide() == {}
    await tasks.put("a")
    assert (await tasks.get()).error is None
    assert await tasks.decide() == {"a": "set"}


async def test_a_row_with_which_the_database_refuses_a_job_is_told_and_stops_no_other(tasks):
    await tasks.connection.execute(RAISE.format("23514"))
    await tasks.put_due("a", task="bad")
    await tasks.put_due("b")
    assert await tasks.decide() == {"a": "refused", "b": "submitted"}
    assert (await tasks.get()).error == "not this one"
    assert await tasks.decide() == {}


@pytest.mark.parametrize("code", ["JX003", "54000"])
async def test_a_row_that_holds_more_than_the_database_takes_is_told_and_stops_no_other(tasks, code):
    await tasks.connection.execute(RAISE.format(code))
    await tasks.put_due("a", task="bad")
    await tasks.put_due("b")
    assert await tasks.decide() == {"a": "refused", "b": "submitted"}
    assert (await tasks.get()).error == "not this one"


async def test_a_row_with_arguments_over_a_limit_that_came_later_says_so(tasks):
    await tasks.put_due("a", args={"x": Random(1).randbytes(9000).hex()})  # (incompressible)
    await tasks.connection.execute("SELECT joex.set_largest('args', 8192)")
    assert await tasks.decide() == {"a": "refused"}
    assert (await tasks.get()).error.startswith("args: at most 8192 bytes; got ")


async def test_a_job_that_can_not_be_made_now_is_made_later_and_stops_no_other(tasks):
    await tasks.connection.execute(RAISE.format("53000"))
    time = await tasks.put_due("a", task="bad")
    await tasks.put_due("b")
    assert await tasks.decide() == {"a": "trouble", "b": "submitted"}
    assert (await tasks.get()).error is None
    assert await tasks.decide() == {"a": "trouble"}
    await tasks.connection.execute("DROP TRIGGER refuse ON joex_private.job")
    assert await tasks.decide() == {"a": "submitted"}
    assert (await tasks.get()).last_run == time


async def test_hundreds_of_rows_in_trouble_do_not_starve_the_next_one(tasks, scheduler, monkeypatch):
    await tasks.connection.execute(RAISE.format("53000"))
    await tasks.put_due(*(f"a {number}" for number in range(300)), task="bad")
    await tasks.put("z")
    await tasks.due("z", ago=timedelta(0))
    async with scheduler() as log:
        await log.wait_for(Repeated, lambda event: event.outcome == "submitted")
    monkeypatch.setattr(periodic_scheduler, "_ASIDE_FOR", 0.2)
    async with scheduler() as log:
        await log.wait_for(Repeated, lambda event: event.outcome == "trouble", count=600)  # a scheduler retries them
        await tasks.connection.execute("DROP TRIGGER refuse ON joex_private.job")
        await log.wait_for(Repeated, lambda event: event.outcome == "submitted", count=300)


async def test_what_joex_could_not_read_is_not_let_into_a_row(tasks):
    await tasks.put("a")
    for column, value in [
        ("starting_deadline", "178000000 years"),
        ("starting_deadline", "-1 second"),
        ("nextrun", "4000-01-01 BC"),
        ("last_run", "infinity"),
        ("args", "[]"),
    ]:
        with pytest.raises(asyncpg.CheckViolationError):
            await tasks.change("a", f"{column} = '{value}'")
    with pytest.raises(ValueError, match="starting_deadline: expected 0 to 1,000 years"):
        NewPeriodicTask("a", "a", YEARLY, starting_deadline=timedelta(days=400_000))


# Changes by the owner, while the task is due and while it is not.


async def test_what_is_changed_while_it_is_due_is_decided_as_it_is_now(tasks, bench):
    time = await tasks.put_due("a")
    read = await tasks.read()
    await tasks.put("a", args={"x": 1})
    assert await tasks.fire(read) == {"a": "stale"}
    assert await tasks.decide() == {"a": "submitted"}  # other arguments do not move its time
    task = await tasks.get()
    assert (task.last_run, (await bench.job(task.last_job)).args) == (time, {"x": 1})


@pytest.mark.parametrize("change", ["timer = 'monthly'", "zone = 'Europe/Zurich'", "enabled = false"])
async def test_a_time_that_is_due_goes_with_the_timer_that_it_was_of(tasks, change):
    await tasks.put_due("a")
    read = await tasks.read()
    await tasks.change("a", change)
    assert await tasks.fire(read) == {"a": "stale"}
    assert await tasks.decide() in ({"a": "set"}, {})
    assert await tasks.jobs() == 0


async def test_what_is_deleted_while_it_is_due_is_gone(tasks):
    await tasks.put_due("a", "b")
    read = await tasks.read()
    assert await periodic.remove(tasks.connection, named("a"), USER) == "removed"
    assert await tasks.fire(read) == {"a": "stale", "b": "submitted"}
    assert await tasks.jobs() == 1


async def test_a_task_that_is_made_anew_does_not_overlap_with_the_job_of_its_predecessor(tasks):
    await tasks.put_due("a")
    await tasks.decide()
    await periodic.remove(tasks.connection, named("a"), USER)
    await tasks.put_due("a")
    assert await tasks.decide() == {"a": "overlapping"}


async def test_a_change_waits_for_a_decision_that_is_under_way_and_comes_after_it(
    tasks, another_connection, waiting_for_a_lock
):
    await tasks.put_due("a")
    other = Tasks(await another_connection())
    observer = await another_connection()
    read = await tasks.read()
    await other.connection.execute("BEGIN")
    assert await other.fire(read) == {"a": "submitted"}
    async with waiting_for_a_lock(observer, tasks.put("a", timer=MONTHLY)) as change:
        await other.connection.execute("COMMIT")
    assert change.result() == "set"
    assert (await tasks.get()).last_outcome == "submitted"
    assert await tasks.decide() == {"a": "set"}


async def test_putting_the_same_again_changes_nothing(tasks):
    wanted = {"args": {"x": [1, {"y": None}]}, "starting_deadline": timedelta(hours=1), "subject": "s"}
    await tasks.put("a", **wanted)
    await tasks.decide()
    before = await tasks.connection.fetchrow("SELECT * FROM joex_private.periodic_task WHERE id = 'a'")
    assert await tasks.put("a", **wanted) == "same"
    assert await tasks.put("a", **wanted, enabled=True) == "same"
    assert await tasks.connection.fetchrow("SELECT * FROM joex_private.periodic_task WHERE id = 'a'") == before


async def test_a_task_stays_disabled_until_it_is_enabled(tasks):
    await tasks.put("a", enabled=False)
    assert await tasks.decide() == {}
    assert await tasks.put("a", timer=MONTHLY) == "set"  # enabled is not set
    assert not (await tasks.get()).enabled
    assert await tasks.put("a", timer=MONTHLY, enabled=True) == "set"
    assert await tasks.decide() == {"a": "set"}
    assert await periodic.enable(tasks.connection, named("a"), USER, enabled=False) == "set"
    assert await periodic.enable(tasks.connection, named("a"), USER, enabled=False) == "same"
    assert (await tasks.get()).nextrun is None
    assert await tasks.decide() == {}


async def test_nobody_changes_what_another_one_owns(tasks):
    await tasks.put("a", owner="app:shop")
    before = await tasks.get()
    assert await tasks.put("a", timer=MONTHLY) == "not_yours"
    assert await periodic.remove(tasks.connection, named("a"), USER) == "not_yours"
    assert await periodic.enable(tasks.connection, named("a"), USER, enabled=False) == "not_yours"
    assert await periodic.keep(tasks.connection, USER, []) == []
    assert await tasks.get() == before
    assert await periodic.enable(tasks.connection, named("a"), USER, enabled=False, any_owner=True) == "set"
    assert await periodic.remove(tasks.connection, named("a"), USER, any_owner=True) == "removed"
    assert await periodic.remove(tasks.connection, named("a"), USER) == "not_found"
    assert await periodic.enable(tasks.connection, named("a"), USER, enabled=True) == "not_found"


async def test_an_owner_keeps_some_of_its_tasks(tasks):
    await tasks.put("a", "b", "c", owner="app:shop")
    await tasks.put("d")
    assert sorted(
        await periodic.keep(
            tasks.connection, "app:shop", [TaskKey(one, "default", "default") for one in ("b", "unknown")]
        )
    ) == ["a", "c"]
    assert [one.id for one in await periodic.list_tasks(tasks.connection)] == ["b", "d", RETENTION]


async def test_many_put_one_task_at_once(tasks, another_connection):
    others = [Tasks(await another_connection()) for _ in range(6)]
    answers = await asyncio.gather(*(one.put("a", owner=f"app:{number % 2}") for number, one in enumerate(others)))
    owner = int((await tasks.get()).owner.removeprefix("app:"))
    assert [answers[number] for number in range(6) if number % 2 != owner] == ["not_yours"] * 3
    assert sorted(answers[number] for number in range(6) if number % 2 == owner) == ["same", "same", "set"]


# Now.


async def test_run_now_makes_a_job_and_moves_no_time(tasks, bench):
    await tasks.put("a", enabled=False)
    answer, job_id = await periodic.run_now(tasks.connection, named("a"))
    assert (answer, (await bench.job(job_id)).task) == ("submitted", "a")
    assert await periodic.run_now(tasks.connection, named("a")) == ("overlapping", None)
    task = await tasks.get()
    assert (task.last_job, task.last_run, task.last_outcome, task.nextrun) == (job_id, None, None, None)
    assert await periodic.run_now(tasks.connection, named("b")) == ("not_found", None)
    await bench.connection.execute("SELECT joex.cancel($1)", job_id)
    assert (await periodic.run_now(tasks.connection, named("a")))[0] == "submitted"


async def test_a_job_that_was_made_by_hand_does_not_overlap_with_the_next(tasks):
    await tasks.put_due("a")
    await periodic.run_now(tasks.connection, named("a"))
    assert await tasks.decide() == {"a": "overlapping"}
    assert await tasks.jobs() == 1


async def test_of_many_who_want_it_now_one_makes_the_job(tasks, another_connection):
    others = [await another_connection() for _ in range(6)]
    await tasks.put_due("a")
    read = await tasks.read()
    *answers, _ = await asyncio.gather(*(periodic.run_now(one, named("a")) for one in others), tasks.fire(read))
    assert [answer for answer, _ in answers].count("submitted") <= 1
    assert await tasks.jobs() == 1


async def test_a_run_now_that_has_not_committed_stops_no_other_task(tasks, another_connection):
    await tasks.put_due("a", "b")
    other = await another_connection()
    async with other.transaction():
        await periodic.run_now(other, named("a"))
        assert await asyncio.wait_for(tasks.decide(), 30) == {"b": "submitted"}
    assert await tasks.decide() == {"a": "overlapping"}


# The clock.


async def test_a_task_that_is_enabled_again_does_not_fire_a_time_again(tasks):
    """A fast clock decided about that time."""
    await tasks.put("a", timer=MONTHLY)
    last = await tasks.connection.fetchval(
        "UPDATE joex_private.periodic_task SET last_run = date_trunc('month', now() + interval '100 days') "
        "WHERE id = 'a' "
        "RETURNING last_run"
    )
    for enabled in (False, True):
        await periodic.enable(tasks.connection, named("a"), USER, enabled=enabled)
    assert await tasks.decide() == {"a": "set"}
    assert (await tasks.get()).nextrun == Timer.parse(MONTHLY).next(last, ZoneInfo("UTC")) > last


async def test_a_time_that_was_decided_is_not_decided_again_whatever_is_in_the_row(tasks):
    time = await tasks.put_due("a")
    await tasks.decide()
    await tasks.connection.execute("UPDATE joex_private.periodic_task SET nextrun = $1 WHERE id = 'a'", time)
    assert await tasks.decide() == {"a": "late"}
    await tasks.due("a", ago=timedelta(hours=1))
    assert await tasks.decide() == {"a": "late"}
    assert (await tasks.get()).last_run == time
    assert await tasks.jobs() == 1


async def test_when_a_clock_that_was_fast_is_set_right_the_next_times_are_worked_out_anew(tasks, scheduler):
    """A clock that was ten years fast had computed next times ten years away."""
    await tasks.put("a", "b", timer=MONTHLY)
    await tasks.decide()
    right = await tasks.get()
    await tasks.connection.execute(
        "UPDATE joex_private.periodic_task SET nextrun = nextrun + interval '10 years', "
        "marked = marked + interval '10 years' "
        "WHERE id = 'a'"
    )

    async def is_mended():
        task = await tasks.get()
        return task if task.nextrun is not None and task.marked < await tasks.now() else None

    async with scheduler():
        task = await eventually(is_mended)
    assert task.nextrun == right.nextrun
    assert await tasks.jobs() == 0


async def test_next_times_are_worked_out_anew_when_a_scheduler_sees_that_the_clock_was_set_back(
    tasks, another_connection, scheduler, monkeypatch
):
    """All of them, also one that somebody has locked meanwhile."""
    monkeypatch.setattr(periodic_scheduler, "_LONGEST_SLEEP", 0.01)
    clock, behind, looks = periodic_due.clock, 0.0, 0

    async def clock_that_is_set_back(connection):
        nonlocal looks
        looks += 1
        return await clock(connection) - behind

    async def after_looks(count):
        until = looks + count
        await eventually(lambda: looks >= until)

    monkeypatch.setattr(periodic_due, "clock", clock_that_is_set_back)
    await tasks.put("a", "b", timer=MONTHLY)
    await tasks.decide()
    right = (await tasks.get()).nextrun
    other = await another_connection()

    async def is_right(task_id):
        return (await tasks.get(task_id)).nextrun == right

    async with scheduler():
        await after_looks(2)  # (the second one ends the first, which reads all tasks at the start)
        await tasks.connection.execute(
            "UPDATE joex_private.periodic_task SET nextrun = nextrun + interval '10 years', "
            "marked = marked + interval '10 years'"
        )
        await after_looks(3)
        assert (await tasks.get()).nextrun > right
        async with other.transaction():
            await other.execute("SELECT FROM joex_private.periodic_task WHERE id = 'a' FOR UPDATE")
            behind = 3600.0
            await eventually(lambda: is_right("b"))
            await after_looks(3)
            assert not await is_right("a")
        await eventually(lambda: is_right("a"))


# Sleeping and waking.


@pytest.mark.parametrize(
    ("statement", "heard"),
    [
        ("INSERT INTO joex_private.periodic_task (id, task, timer) VALUES ('b', 'a', 'daily')", 1),
        ("UPDATE joex_private.periodic_task SET timer = 'daily' WHERE id = 'a'", 1),
        ("UPDATE joex_private.periodic_task SET enabled = false WHERE id = 'a'", 1),
        ("DELETE FROM joex_private.periodic_task WHERE id = 'a'", 1),
        ("SELECT joex.put_periodic_task('a', 'a', 'monthly')", 1),
        ("SELECT joex.put_periodic_task('a', 'a', 'yearly')", 0),
        ("SELECT joex.put_periodic_task('a', 'a', 'monthly', owner => 'another')", 0),
        ("UPDATE joex_private.periodic_task SET nextrun = now(), worker = 'me', last_job = NULL WHERE id = 'a'", 0),
    ],
)
async def test_changes_of_owners_are_told_also_in_raw_sql_and_what_changes_nothing_is_not(
    tasks, another_connection, statement, heard
):
    """The notification names no task: every role that can connect may listen."""
    await tasks.put("a")
    told = []
    listener = await another_connection()
    await listener.add_listener(periodic.CHANNEL, lambda *heard: told.append(heard[3]))
    await tasks.connection.execute(statement)
    await tasks.connection.execute("SELECT pg_notify($1, 'the end')", periodic.CHANNEL)
    await eventually(lambda: "the end" in told)
    assert told == [*[""] * heard, "the end"]


async def test_a_scheduler_sleeps_until_the_next_time(tasks, scheduler):
    await tasks.put("a")
    await tasks.decide()
    await tasks.connection.execute(
        "UPDATE joex_private.periodic_task SET nextrun = clock_timestamp() + interval '0.3 seconds' WHERE id = 'a'"
    )
    async with scheduler() as log:
        fired = await log.wait_for(Repeated)
    assert (fired.id, fired.outcome, fired.job) == ("a", "submitted", (await tasks.get()).last_job)
    assert (await tasks.get()).worker == "scheduler"


@pytest.mark.parametrize("change", ["insert", "update", "enable"])
async def test_a_change_in_raw_sql_wakes_an_executor(tasks, database_url, monkeypatch, change):
    monkeypatch.setattr(periodic_scheduler, "_LONGEST_SLEEP", 3600.0)
    if change != "insert":
        await tasks.put("a", timer=YEARLY if change == "update" else EVERY_SECOND, enabled=change == "update")
    async with executor_inside(App(), database_url, lease=LONG) as inside:
        await eventually(lambda: _hears(tasks.connection))
        if change == "insert":
            await tasks.connection.execute(
                "INSERT INTO joex_private.periodic_task (id, task, timer) VALUES ('a', 'a', $1)", EVERY_SECOND
            )
        else:
            await tasks.change("a", "enabled = true" if change == "enable" else f"timer = '{EVERY_SECOND}'")
        assert (await inside.log.wait_for(Repeated)).id == "a"


async def test_what_has_changed_while_nobody_could_hear_it_is_found_when_somebody_listens_again(
    tasks, database_url, monkeypatch
):
    monkeypatch.setattr(periodic_scheduler, "_LONGEST_SLEEP", 3600.0)
    async with executor_inside(App(), database_url, lease=LONG) as inside:
        pid = await eventually(lambda: _hears(tasks.connection))
        await tasks.connection.execute(
            "SELECT pg_terminate_backend($1, 10000); "
            "INSERT INTO joex_private.periodic_task (id, task, timer) VALUES ('a', 'a', '*:*:*')".replace(
                "$1", str(pid)
            )
        )
        assert (await inside.log.wait_for(Repeated)).id == "a"


async def test_an_executor_that_polls_makes_the_jobs_of_what_has_changed(tasks, database_url, monkeypatch):
    monkeypatch.setattr(periodic_scheduler, "_LONGEST_SLEEP", 3600.0)
    async with executor_inside(App(), database_url, poll_interval=timedelta(milliseconds=50)) as inside:
        await eventually(lambda: _is_registered(tasks.connection))
        await tasks.put("a", timer=EVERY_SECOND)
        assert (await inside.log.wait_for(Repeated)).id == "a"


async def test_schedulers_of_whatever_number_make_each_job_once(tasks, scheduler):
    await tasks.put_due(*(f"a {number}" for number in range(700)))
    async with scheduler() as one, scheduler() as two, scheduler() as three:

        def submitted():
            return [event.id for log in (one, two, three) for event in log.of(Repeated)]

        await eventually(lambda: len(submitted()) >= 700)
    assert len(set(submitted())) == len(submitted()) == 700
    assert await tasks.jobs() == 700


# The tasks of an app, and Joex's own.


async def test_the_periodic_tasks_of_an_app_run_in_its_executor(tasks, database_url):
    app, ran = App("shop"), asyncio.Event()

    @app.periodic(EVERY_SECOND, args={"x": 1})
    @app.task("tidy")
    async def tidy(ctx, x: int):
        ran.set()

    async with executor_inside(app, database_url):
        await asyncio.wait_for(ran.wait(), 30)
    task = await tasks.get("shop/tidy")
    assert (task.owner, task.args, task.last_outcome) == ("app:shop", {"x": 1}, "submitted")


async def test_an_app_that_has_fewer_tasks_than_before_removes_the_others_and_those_of_no_other_app(tasks):
    before, other = App("shop"), App("bank")
    for app in (before, other):
        for name in ("a", "b"):
            app.periodic(YEARLY)(app.task(name)(_nothing))
    after = App("shop")
    after.periodic(MONTHLY)(after.task("b")(_nothing))
    for app in (before, other, after):
        assert await register_periodic_tasks(tasks.connection, app, Settings()) == []
    assert [(one.id, one.timer) for one in await periodic.list_tasks(tasks.connection) if one.id != RETENTION] == [
        ("bank/a", YEARLY), ("bank/b", YEARLY), ("shop/b", MONTHLY),
    ]  # fmt: skip
    acts = await audit.list_acts(tasks.connection, None, 10)
    assert [act.subject for act in acts if act.act == "remove_periodic_task"] == ["shop/a"]


async def test_executors_that_start_at_the_same_time_do_not_stand_in_each_others_way(tasks, another_connection):
    """They run two versions of an app, which have different tasks, and the same ones in another order."""
    apps = App("shop"), App("shop")
    for app, names in zip(apps, ("abcd", "edcb"), strict=True):
        for name in names:
            app.periodic(YEARLY)(app.task(name)(_nothing))
    connections = [await another_connection() for _ in range(6)]
    for _ in range(5):
        await asyncio.gather(
            *(register_periodic_tasks(one, apps[number % 2], Settings()) for number, one in enumerate(connections))
        )
        left = {
            one.id.removeprefix("shop/") for one in await periodic.list_tasks(tasks.connection, owners=["app:shop"])
        }
        assert left in (set("abcd"), set("bcde"))


async def test_a_start_that_changes_no_periodic_task_waits_for_no_transaction(tasks, database_url, another_connection):
    """Hundreds of executors start together, and a transaction somewhere is open on a row that all of them have."""
    app = App("shop")
    app.periodic(YEARLY, args={"long": 1, "b": [True, 1.5], "a": None})(app.task("a")(_anything))
    assert await register_periodic_tasks(tasks.connection, app, Settings()) == []
    other = await another_connection()
    async with other.transaction():
        await other.execute("SELECT FROM joex_private.periodic_task FOR UPDATE")
        async with executor_inside(app, database_url):
            pass


async def test_a_start_waits_for_no_tenant_that_holds_a_row_of_its_app(tasks, database_url, another_connection):
    """A role that may operate in its group can change it, and leave its transaction open."""
    app = App("shop")
    for name in ("held", "free"):
        app.periodic(MONTHLY, group="acme")(app.task(name)(_nothing))
    tenant = await another_connection()
    put = "SELECT joex.put_periodic_task($1, 'a', $2, grp => 'acme', owner => 'app:shop')"
    await tenant.execute(put, "shop/held", YEARLY)
    await tenant.execute(put, "more", YEARLY)
    async with tenant.transaction():
        await tenant.execute(
            "SELECT joex.remove_periodic_task(id, 'app:shop') FROM joex.periodic_tasks WHERE grp = 'acme'"
        )
        await tenant.execute(put, "shop/held", YEARLY)
        async with executor_inside(app, database_url) as inside:
            assert inside.log.of(PeriodicNotRegistered) == [PeriodicNotRegistered("shop/held")]
        assert (await tasks.get("shop/free")).timer == MONTHLY
    assert await register_periodic_tasks(tasks.connection, app, Settings()) == []
    left = await periodic.list_tasks(tasks.connection, owners=["app:shop"])
    assert [(one.id, one.timer) for one in left] == [("shop/free", MONTHLY), ("shop/held", MONTHLY)]


@pytest.mark.parametrize("names", ["a", "ab", ""], ids=["that changes nothing", "with a new task", "without a task"])
async def test_a_start_reads_no_tasks_of_other_owners(tasks, names):
    """A tenant makes thousands, half of them with the id of the app's task."""
    apps = App("shop"), App("shop")
    for app, declared in zip(apps, ("a", names), strict=True):
        for name in declared:
            app.periodic(YEARLY)(app.task(name)(_nothing))
    assert await register_periodic_tasks(tasks.connection, apps[0], Settings()) == []
    await tasks.connection.execute("""
        INSERT INTO joex_private.periodic_task (id, queue, task, timer)
        SELECT CASE nr % 2 WHEN 0 THEN 'shop/a' ELSE 'b' || nr END, 'queue ' || nr, 'a', 'yearly'
        FROM generate_series(1, 4000) nr;
        ANALYZE joex_private.periodic_task
    """)
    async with tasks.connection.transaction():
        before = await tasks.connection.fetchrow(READS)
        assert await register_periodic_tasks(tasks.connection, apps[1], Settings()) == []
        after = await tasks.connection.fetchrow(READS)
    assert [one.id for one in await periodic.list_tasks(tasks.connection, owners=["app:shop"])] == [
        f"shop/{name}" for name in names
    ]
    assert after["scans"] == before["scans"]
    assert after["entries"] - before["entries"] <= 40


async def test_all_that_a_start_does_waits_for_startup_wait(tasks, database_url, another_connection, monkeypatch):
    monkeypatch.setattr("joex.store.database.SERVICE_WITHIN", 1.0)
    other = await another_connection()
    lock = other.transaction()
    await lock.start()
    await other.execute("LOCK TABLE joex_private.periodic_task")
    waits = timedelta(hours=1)
    async with executor_inside(App("shop"), database_url, registered=False, startup_wait=waits) as inside:
        await inside.log.wait_for(DatabaseTrouble, lambda event: event.service == "start", count=2)
        await lock.rollback()
        await inside.log.wait_for(Registered)
        assert [event.service for event in inside.log.of(TroubleOver)][:1] == ["start"]


@pytest.mark.parametrize("changed", [{"args": {"x": True}}, {"zone": "Europe/Berlin"}, {"priority": "high"}])
async def test_a_start_that_changes_a_periodic_task_changes_it(tasks, changed):
    def app(**options):
        made = App("shop")
        made.periodic(YEARLY, **options)(made.task("a")(_anything))
        return made

    await register_periodic_tasks(tasks.connection, app(args={"x": 1}), Settings())
    await register_periodic_tasks(tasks.connection, app(**{"args": {"x": 1}, **changed}), Settings())
    task = await tasks.get("shop/a")
    assert {name: getattr(task, name) for name in changed} == changed
    assert task.args["x"] is changed.get("args", {"x": 1})["x"]


async def test_a_task_whose_id_somebody_else_has_is_told(tasks, database_url):
    await tasks.put("shop/a")
    somebodys = "UPDATE joex_private.periodic_task SET owner = 'user', task = 'a' WHERE id = $1"
    await tasks.connection.execute(somebodys, RETENTION)
    app = App("shop")
    app.periodic(YEARLY)(app.task("a")(_nothing))
    async with executor_inside(app, database_url) as inside:
        told = inside.log.of(PeriodicNotRegistered)
    assert told == [PeriodicNotRegistered(RETENTION), PeriodicNotRegistered("shop/a")]


async def test_maintenance_is_a_periodic_task_and_follows_the_settings(tasks):
    await tasks.connection.execute("DELETE FROM joex_private.periodic_task")
    settings = Settings(retention=timedelta(hours=1), retention_failed=timedelta(hours=2), queues=["docs", "mail"])
    await register_periodic_tasks(tasks.connection, App(), settings)
    task = await tasks.get(RETENTION)
    assert (task.owner, task.enabled) == (SYSTEM_OWNER, True)
    assert task.args == {"keep": 3600, "keep_failed": 7200}
    await register_periodic_tasks(tasks.connection, App(), Settings(retention=timedelta(hours=5)))
    assert (await tasks.get(RETENTION)).args["keep"] == 5 * 3600


async def test_the_executor_that_decides_that_maintenance_is_due_does_it_and_no_job_is_made(tasks):
    await register_periodic_tasks(tasks.connection, App(), Settings())
    await periodic.enable(tasks.connection, named(RETENTION), USER, enabled=True, any_owner=True)
    time = await tasks.due(RETENTION)
    read = await tasks.read()
    assert await tasks.fire(read, "the first") == {RETENTION: "started"}
    assert await tasks.fire(read, "the second") == {RETENTION: "stale"}
    task = await tasks.get(RETENTION)
    assert (task.last_run, task.last_outcome, task.last_job, task.worker) == (time, "started", None, "the first")
    assert task.nextrun > time
    assert await tasks.jobs() == 0


async def test_maintenance_is_not_made_a_job_by_hand_either(tasks, client):
    with pytest.raises(NotYours, match=r"'joex.retention': it is owned by joex: executors do this themselves"):
        await client.periodic.run_now(RETENTION)
    assert await tasks.jobs() == 0


async def test_maintenance_that_was_disabled_stays_disabled(tasks):
    await periodic.enable(tasks.connection, named(RETENTION), USER, enabled=False, any_owner=True)
    await register_periodic_tasks(tasks.connection, App(), Settings(retention=timedelta(hours=5)))
    task = await tasks.get(RETENTION)
    assert (task.enabled, task.args["keep"]) == (False, 5 * 3600)


async def _anything(_ctx, /, **_args):
    pass


async def _nothing(ctx):
    pass


async def _hears(connection):
    """The session on which the executor listens."""
    return await connection.fetchval(
        "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'joex listener%' "
        "AND datname = current_database() AND query LIKE 'LISTEN%periodic%'"
    )


async def _is_registered(connection):
    return await connection.fetchval("SELECT count(*) > 0 FROM joex_private.executor")

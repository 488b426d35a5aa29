"""The events on their channel, for a program in any language, and through the client."""

import asyncio
import json

import asyncpg
import pytest

import joex
from joex.core.priority_turns import CountingScheme
from joex.store import jobs, runs, subscriptions
from joex.store.subscriptions import ExecutorEvent, JobEvent
from tests.support.processes_inside import LONG, executor_inside
from tests.support.waiting import PATIENCE, eventually


class Program:
    """A program that listens on both channels."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self.connection = connection
        self._heard: asyncio.Queue[dict] = asyncio.Queue()

    async def listen(self) -> None:
        self.events = await self.connection.fetchval("SELECT joex.events_channel()")
        for channel in (self.events, "joex_jobs"):
            await self.connection.add_listener(channel, lambda *given: self._heard.put_nowait(json.loads(given[-1])))

    async def subscribe(self, duration: str = "1 minute") -> bool:
        return bool(await self.connection.fetchval("SELECT joex.subscribe('a program', $1::text::interval)", duration))

    async def next(self) -> dict:
        """The next event."""
        return await asyncio.wait_for(self._heard.get(), PATIENCE)

    async def all(self) -> list[dict]:
        """All events of the transactions that have ended by now."""
        await self.connection.execute('SELECT pg_notify($1, \'{"event": "fence"}\')', self.events)
        found = []
        while (event := await self.next()) != {"event": "fence"}:
            found.append(event)
        return found

    async def kinds(self) -> list[str]:
        return [event["event"] for event in await self.all()]


@pytest.fixture
async def program(another_connection) -> Program:
    """A program that listens, and has not subscribed."""
    program = Program(await another_connection())
    await program.listen()
    return program


@pytest.fixture
async def subscribed(program: Program) -> Program:
    assert not await program.subscribe()
    return program


@pytest.fixture
async def me(bench):
    """An executor that joined before the first subscription."""
    return await bench.executor("me")


def about(job_id, kind, state, executor=None, **more):
    fields = {"id": str(job_id), "task": "a", "queue": "default", "group": "default", **more}
    return {"event": kind, **fields, "state": state, "executor": executor}


# Each event.


async def test_a_submission_is_told(bench, subscribed):
    job_id = await bench.submit("acme", queue="mail", task="mail.send")
    assert await subscribed.all() == [
        about(job_id, "job-submitted", "waiting", task="mail.send", queue="mail", group="acme")
    ]


async def test_each_job_of_many_is_told_in_order_and_none_that_was_skipped(client, subscribed):
    given = [{"task": "a", "tracker": tracker} for tracker in ("one", "two", "one", None)]
    ids = await client.submit_many(given)
    assert ids[2] is None
    told = [event["id"] for event in await subscribed.all()]
    assert told == [str(job_id) for job_id in ids if job_id]


async def test_a_job_with_an_id_of_its_own_is_told_when_it_is_added(bench, subscribed):
    add = r"SELECT joex_client.add('a', '\x0161')"
    job_id = await bench.connection.fetchval(add)
    assert await bench.connection.fetchval(add) is None
    assert await subscribed.all() == [about(job_id, "job-submitted", "waiting", queue="a", group="a")]


async def test_a_start_is_told(bench, me, subscribed):
    job_id = await bench.submit()
    await bench.start(await bench.take_one(me))
    assert (await subscribed.all())[1:] == [about(job_id, "job-started", "running", "me")]


async def test_the_start_of_a_worker_that_is_no_executor_is_told(bench, subscribed):
    job_id = await bench.submit()
    await bench.connection.execute("SELECT joex_client.accept('default', 1, 'my worker')")
    assert (await subscribed.all())[1:] == [about(job_id, "job-started", "running", "my worker")]


@pytest.mark.parametrize("state", ["success", "failed", "cancelled"])
async def test_an_end_is_told(bench, me, subscribed, state):
    job_id = await bench.submit()
    taken = await bench.take_one(me)
    await bench.start(taken)
    await bench.finish(taken, state)
    assert (await subscribed.all())[2:] == [about(job_id, "job-finished", state, "me")]


async def test_a_short_run_is_told_to_have_started_before_it_is_told_to_have_ended(bench, me, subscribed):
    job_id = await bench.submit()
    await bench.finish(await bench.take_one(me), age=0.001)
    assert (await subscribed.all())[1:] == [
        about(job_id, "job-started", "running", "me"),
        about(job_id, "job-finished", "success", "me"),
    ]


async def test_a_job_whose_code_never_started_is_told_to_have_ended_alone(bench, me, subscribed):
    await bench.submit()
    await bench.finish(await bench.take_one(me), "failed")
    assert await subscribed.kinds() == ["job-submitted", "job-finished"]


async def test_a_run_that_is_to_be_tried_again_has_not_finished_its_job(bench, me, subscribed):
    await bench.submit()
    await bench.finish(await bench.take_one(me), "stuck", delay=0.0, age=0.001)
    await bench.finish(await bench.take_one(me), "success", age=0.001)
    assert await subscribed.kinds() == ["job-submitted", "job-started", "job-started", "job-finished"]


async def test_a_cancellation_is_told_when_the_job_has_ended(bench, me, subscribed):
    waiting, running = await bench.submit(), await bench.submit("other")
    await jobs.cancel(bench.connection, waiting)
    taken = await bench.take_one(me)
    await jobs.cancel(bench.connection, running)
    assert (await subscribed.all())[2:] == [about(waiting, "job-finished", "cancelled")]
    await bench.finish(taken)
    assert await subscribed.all() == [about(running, "job-finished", "cancelled", "me", group="other")]


async def test_the_end_of_a_job_that_is_removed_with_its_run_is_told(bench, me, subscribed):
    job_id = await bench.submit()
    taken = await bench.take_one(me)
    await bench.connection.execute("SELECT joex.remove($1)", job_id)
    await bench.finish(taken)
    assert (await subscribed.all())[1:] == [about(job_id, "job-finished", "cancelled", "me")]


async def test_an_end_in_the_tasks_own_transaction_is_told_once(bench, me, subscribed):
    """Its executor reports the end afterwards, and gets the answer that the run has ended already."""
    await bench.submit()
    taken = await bench.take_one(me)
    await bench.start(taken)
    await bench.connection.execute("SELECT joex.finish($1, $2)", taken.id, taken.lock_id)
    assert await bench.finish(taken) == ["already"]
    assert await subscribed.kinds() == ["job-submitted", "job-started", "job-finished"]


async def test_a_run_that_has_lost_its_job_tells_nothing(bench, me, subscribed):
    await bench.submit()
    lost = await bench.take_one(me)
    await bench.connection.execute("SELECT joex_private.give_back_unknown($1, 1, '{}')", me)
    assert await bench.finish(lost, age=0.001) == ["worker_conflict"]
    assert await subscribed.kinds() == ["job-submitted"]


async def test_a_short_run_whose_row_somebody_holds_is_told_once(bench, me, subscribed, another_connection):
    job_id = await bench.submit()
    taken = await bench.take_one(me)
    ended = [runs.EndedRun(taken.id, taken.lock_id, "success", age=0.001)]
    holder = await another_connection()
    async with holder.transaction():
        await holder.execute("SELECT FROM joex_private.job WHERE id = $1 FOR UPDATE", job_id)
        [(_, answer)] = await runs.finish_many(bench.connection, ended, skip_locked=True)
    assert answer == "locked"
    assert await runs.finish_many(bench.connection, ended, skip_locked=True) == []
    assert await subscribed.kinds() == ["job-submitted", "job-started", "job-finished"]


async def test_an_executor_that_joins_runs_a_job_and_leaves_is_told(database_url, client, subscribed):
    app = joex.App()

    @app.task("a")
    async def task(ctx: joex.Context) -> None:
        pass

    async with executor_inside(app, database_url, lease=LONG, app_id="documents", queues=["default", "mail"]) as inside:
        job_id = await client.submit("a")
        await inside.ended(job_id)
    joined, submitted, started, finished, left = await subscribed.all()
    registration = joined.pop("registration")
    assert left.pop("registration") == registration
    whose = {"executor": "documents", "queues": ["default", "mail"]}
    assert joined == {"event": "executor-joined", **whose, "ending": None}
    assert submitted == about(job_id, "job-submitted", "waiting")
    assert started == about(job_id, "job-started", "running", "documents")
    assert finished == about(job_id, "job-finished", "success", "documents")
    assert left == {"event": "executor-left", **whose, "ending": "left"}


async def test_an_executor_that_is_dead_is_told_once_and_its_jobs_that_fail_for_it(bench, me, subscribed, program):
    """Another transaction has locked the row of one job, which follows later."""
    poison, held = await bench.submit(), await bench.submit()
    await bench.start(*await bench.take(me, 2))
    await bench.connection.execute("UPDATE joex_private.job SET losses = 100, suspect = true WHERE id = $1", poison)
    await bench.silence(me, 6)
    await subscribed.all()
    async with program.connection.transaction():
        await program.connection.execute("SELECT FROM joex_private.job WHERE id = $1 FOR UPDATE", held)
        await bench.rescue()
    assert await bench.rescue() == [(me, "me", 1)]
    left, failed = await subscribed.all()
    assert failed == about(poison, "job-finished", "failed", "me")
    assert (left["event"], left["registration"], left["ending"]) == ("executor-left", me, "dead")


async def test_an_executor_that_is_replaced_is_told(bench, me, subscribed):
    successor = await bench.executor("me", gone=me)
    left, joined = await subscribed.all()
    assert (left["event"], left["registration"], left["ending"]) == ("executor-left", me, "replaced")
    assert (joined["event"], joined["registration"], joined["ending"]) == ("executor-joined", successor, None)


async def test_the_longest_names_fit(bench, subscribed):
    longest = "\x01" * 254
    me = await bench.executor(longest, queues=[longest, *(f"{n:0254}" for n in range(100))])
    job_id = await bench.submit(longest, task=longest, queue=longest)
    [taken] = await runs.take(bench.connection, me, [longest], 1, CountingScheme(4, 1))
    await bench.start(taken)
    joined, _, started = await subscribed.all()
    assert (joined["executor"], joined["queues"]) == (longest, None)
    assert started == about(job_id, "job-started", "running", longest, task=longest, queue=longest, group=longest)


# When there are notifications, and for which subscribers.


async def test_an_event_is_told_when_its_transaction_commits_and_never_if_it_does_not(
    bench, subscribed, another_connection
):
    submitting = await another_connection()
    transaction = submitting.transaction()
    await transaction.start()
    first = await submitting.fetchval("SELECT joex.submit('a')")
    assert await subscribed.all() == []
    await transaction.commit()
    assert await subscribed.all() == [about(first, "job-submitted", "waiting")]
    transaction = submitting.transaction()
    await transaction.start()
    await submitting.fetchval("SELECT joex.submit('a')")
    await transaction.rollback()
    assert await subscribed.all() == []


@pytest.mark.parametrize("subscribed_for", [None, "1 microsecond"], ids=["no subscriber", "an expired subscription"])
async def test_where_nobody_is_subscribed_no_notification_is_sent(bench, me, client, program, subscribed_for):
    if subscribed_for is not None:
        await program.subscribe(subscribed_for)
    await bench.submit()
    taken = await bench.take_one(me)
    await bench.start(taken)
    await bench.connection.execute("SELECT joex.update($1, $2, progress => 50)", taken.id, taken.lock_id)
    await bench.finish(taken)
    await client.cancel(await bench.submit())
    await bench.connection.execute("SELECT joex_private.end_executor($1, 'left')", me)
    await bench.executor("another")
    assert await program.all() == []


async def test_who_unsubscribes_hears_no_more(bench, subscribed):
    await bench.submit()
    await subscribed.connection.execute("SELECT joex.unsubscribe('a program')")
    await bench.submit()
    assert await subscribed.kinds() == ["job-submitted"]


async def test_who_waits_for_jobs_alone_hears_of_these_and_of_no_event(bench, program):
    mine, _ = await bench.submit(), await bench.submit()
    await program.connection.execute("SELECT joex.subscribe('a program', '1 minute', false)")
    await program.connection.execute("SELECT joex.wait_for('a program', $1)", [mine])
    for job_id in (mine, _):
        await jobs.cancel(bench.connection, job_id)
    assert await program.all() == [{"event": "job-changed", "jobs": [str(mine)]}]
    assert await bench.connection.fetchval("SELECT joex.retry($1)", mine)
    await program.connection.execute("SELECT joex.wait_no_more('a program', $1)", [mine])
    await jobs.cancel(bench.connection, mine)
    assert await program.all() == [{"event": "job-changed", "jobs": [str(mine)]}]


async def test_the_changes_of_very_many_jobs_fit(bench, program):
    ids = [job_id for job_id in await jobs.submit_many(bench.connection, [joex.NewJob("a")] * 1000) if job_id]
    await program.connection.execute("SELECT joex.subscribe('a program', '1 minute', false)")
    await program.connection.execute("SELECT joex.wait_for('a program', $1)", ids)
    await bench.connection.execute("SELECT joex_private.announce('job-changed', $1)", ids)
    told = [job_id for event in await program.all() for job_id in event["jobs"]]
    assert sorted(told) == sorted(map(str, ids))


async def test_a_transaction_whose_snapshot_is_older_than_the_subscription_tells(bench, program, another_connection):
    """It can't see whether there is a subscriber."""
    submitting = await another_connection()
    async with submitting.transaction(isolation="repeatable_read"):
        await submitting.fetchval("SELECT count(*) FROM joex_private.subscriber")  # takes the snapshot
        await program.subscribe()
        job_id = await submitting.fetchval("SELECT joex.submit('a')")
    assert about(job_id, "job-submitted", "waiting") in await program.all()


async def test_a_subscription_says_whether_it_went_on_without_a_gap(program):
    assert not await program.subscribe("1 minute")  # it begins
    assert await program.subscribe("1 microsecond")  # it lasts until here
    assert not await program.subscribe("1 minute")  # too late


async def test_those_who_have_not_renewed_for_an_hour_are_forgotten_with_what_they_waited_for(bench, program):
    job_id = await bench.submit()
    await program.connection.execute("SELECT joex.subscribe('dead', '1 second')")
    await program.connection.execute("SELECT joex.wait_for('dead', $1)", [job_id])
    await bench.connection.execute(_EXPIRE)
    await program.subscribe()
    await subscriptions.forget(bench.connection)
    names = await program.connection.fetch("SELECT name FROM joex_private.subscriber")
    assert [row["name"] for row in names] == ["a program"]
    assert await program.connection.fetchval("SELECT count(*) FROM joex_private.subscription") == 0


async def test_the_maintenance_walks_over_no_entries_of_those_that_it_has_forgotten_before(program):
    """An old snapshot keeps them, as does the transaction here. A tenant makes millions an hour."""
    await program.connection.execute("""
        INSERT INTO joex_private.subscriber (name, events, until)
        SELECT 'dead ' || i, false, now() - i * interval '1 second' - interval '1 hour' FROM generate_series(1, 10000) i
    """)
    async with program.connection.transaction():
        await subscriptions.forget(program.connection)
        assert await program.connection.fetchval("SELECT count(*) FROM joex_private.subscriber") == 0
        walked = "SELECT pg_stat_get_xact_tuples_returned('joex_private.subscriber_until'::regclass)"
        assert await program.connection.fetchval(walked) <= 11_000


_EXPIRED_WITH_WAITS = """
    INSERT INTO joex_private.subscriber (name, events, until) VALUES ('dead', false, now() - interval '2 hours');
    INSERT INTO joex_private.subscription (job_id, subscriber)
    SELECT gen_random_uuid(), 'dead' FROM generate_series(1, 20000)
"""


async def test_the_maintenance_walks_over_no_entries_of_the_waits_that_it_has_forgotten_before(program):
    await program.connection.execute(_EXPIRED_WITH_WAITS)
    async with program.connection.transaction():
        await subscriptions.forget(program.connection)
        assert await program.connection.fetchval("SELECT count(*) FROM joex_private.subscriber") == 0
        walked = "SELECT sum(pg_stat_get_xact_tuples_returned(indexrelid)) FROM pg_index WHERE indrelid = $1::regclass"
        assert await program.connection.fetchval(walked, "joex_private.subscription") <= 4 * 20_000


async def test_the_maintenance_leaves_what_is_too_much_for_one_time_to_the_next(program):
    await program.connection.execute(_EXPIRED_WITH_WAITS)
    left = "SELECT count(*) FROM joex_private.subscription"
    await subscriptions.forget(program.connection, 5)
    assert await program.connection.fetchval(left) == 15_000
    await subscriptions.forget(program.connection)
    assert await program.connection.fetchval(left) == 0


async def test_a_subscription_that_the_maintenance_forgets_gets_no_more_waits(bench, program):
    """Else it would not come to an end."""
    job_id = await bench.submit()
    await program.subscribe()
    await bench.connection.execute(_EXPIRE)
    for left in (0, 1):
        await program.connection.execute("SELECT joex.wait_for('a program', $1)", [job_id])
        assert await bench.connection.fetchval("SELECT count(*) FROM joex_private.subscription") == left
        await program.subscribe()


_EXPIRE = "UPDATE joex_private.subscriber SET until = until - interval '2 hours'"


async def test_a_transaction_that_has_locked_an_expired_subscription_stops_no_maintenance(
    program, bench, another_connection
):
    await program.connection.execute("SELECT joex.subscribe('dead', '1 second')")
    await bench.connection.execute(_EXPIRE)
    other = await another_connection()
    async with other.transaction():
        await other.execute("SELECT joex.subscribe('dead', '1 second')")
        await bench.connection.execute("SET lock_timeout = '1s'")
        await subscriptions.forget(bench.connection)
    assert await program.connection.fetchval("SELECT count(*) FROM joex_private.subscriber") == 1


_MANY_EXPIRED = """
    INSERT INTO joex_private.subscriber (name, events, until)
    SELECT 'dead ' || i, false, now() - i * interval '1 second' - interval '2 hours' FROM generate_series(0, 2000) i;
    INSERT INTO joex_private.subscription (job_id, subscriber)
    SELECT gen_random_uuid(), name FROM joex_private.subscriber;
    INSERT INTO joex_private.watch (queue, name, until) SELECT 'a', name, until FROM joex_private.subscriber
"""


@pytest.mark.parametrize(
    ("locked", "left"),
    [("subscriber", [2000, 2000, 0]), ("subscription", [2000, 2000, 0]), ("watch", [0, 0, 2000])],
)
async def test_what_a_transaction_keeps_locked_does_not_keep_the_maintenance_from_what_is_behind_it(
    bench, another_connection, locked, left
):
    """A tenant can do so with thousands. The one that another transaction has not locked ended last."""
    await bench.connection.execute(_MANY_EXPIRED)
    other, its_own = await another_connection(), "subscriber" if locked == "subscription" else "name"
    async with other.transaction(), bench.connection.transaction():
        await other.execute(f"SELECT FROM joex_private.{locked} WHERE {its_own} <> 'dead 0' FOR UPDATE")
        await subscriptions.forget(bench.connection)
        counts = await bench.connection.fetchrow("""
            SELECT (SELECT count(*) FROM joex_private.subscriber), (SELECT count(*) FROM joex_private.subscription),
                   (SELECT count(*) FROM joex_private.watch)
        """)
        assert list(counts) == left
        looks = "SELECT pg_stat_get_xact_numscans('joex_private.subscription_pkey'::regclass)"
        assert await bench.connection.fetchval(looks) <= 3 * 2001, "it looks at each a few times"


async def test_a_change_of_a_job_reads_one_of_its_many_subscriptions(bench, program):
    """A tenant can make very many for one job, whose start and end executors write together with those of others."""
    jobs = [await bench.submit() for _ in range(2)]
    await bench.connection.execute(
        "SELECT joex.subscribe(i::text, '1 hour'), joex.wait_for(i::text, ARRAY[$1::uuid]) "
        "FROM generate_series(1, 2000) i",
        jobs[0],
    )
    async with bench.connection.transaction():
        read = "SELECT pg_stat_get_xact_tuples_returned('joex_private.subscription_of_job'::regclass)"
        before = await bench.connection.fetchval(read)
        await bench.connection.execute("SELECT joex_private.announce('job-changed', $1)", [*jobs, jobs[0]])
        assert await bench.connection.fetchval(read) - before <= 3
    assert await program.all() == [{"event": "job-changed", "jobs": [str(jobs[0])]}]


async def test_a_subscription_that_would_not_last_is_refused(program):
    for duration in ("0", "-2 hours"):
        with pytest.raises(asyncpg.InvalidParameterValueError, match="lasts: expected more than zero"):
            await program.subscribe(duration)


@pytest.mark.parametrize("events", [True, False])
async def test_who_looks_for_a_subscriber_reads_no_expired_subscriptions(bench, program, events):
    await program.connection.execute(
        "SELECT joex.subscribe(i::text, '1 second', $1) FROM generate_series(1, 2000) i", events
    )
    await bench.connection.execute("UPDATE joex_private.subscriber SET until = until - interval '1 minute'")
    for call in ("is_awaited('default')", "is_heard(true)", "is_heard(false)"):
        async with bench.connection.transaction():  # so that the counters below are its own
            read = """SELECT pg_stat_get_xact_tuples_returned('joex_private.subscriber'::regclass)
                      + pg_stat_get_xact_tuples_fetched('joex_private.subscriber'::regclass)"""
            before = await bench.connection.fetchval(read)
            assert not await bench.connection.fetchval(f"SELECT joex_private.{call}")
            assert await bench.connection.fetchval(read) - before < 100


# Through the client.


async def test_a_client_hears_events_as_data(bench, me, client):
    async with client.events() as events:
        job_id = await bench.submit("acme")
        await bench.finish(await bench.take_one(me), "failed", age=0.001)
        await bench.connection.execute("SELECT joex_private.end_executor($1, 'left')", me)
        heard = [await asyncio.wait_for(anext(events), PATIENCE) for _ in range(4)]
    assert heard == [
        JobEvent("job-submitted", job_id, "a", "default", "acme", "waiting", None),
        JobEvent("job-started", job_id, "a", "default", "acme", "running", "me"),
        JobEvent("job-finished", job_id, "a", "default", "acme", "failed", "me"),
        ExecutorEvent("executor-left", "me", me, ["default"], "left"),
    ]


async def test_a_client_passes_over_events_that_only_later_versions_know(bench, client, caplog):
    async with client.events() as events:
        await bench.connection.execute('SELECT pg_notify(joex.events_channel(), \'{"event": "job-praised"}\')')
        job_id = await bench.submit()
        assert (await asyncio.wait_for(anext(events), PATIENCE)).id == job_id
    assert not caplog.records


async def test_a_client_hears_events_again_after_its_connection_was_killed(bench, client):
    async with client.events() as events:
        await bench.connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
            "AND application_name = 'joex test pool'"
        )
        heard = asyncio.ensure_future(anext(events))

        async def is_heard():
            await bench.submit()
            return heard.done()

        await eventually(is_heard)
        assert heard.result().kind == "job-submitted"


async def test_events_and_waits_share_one_connection_and_one_subscription(bench, client, pool):
    job_id = await bench.submit()
    async with client.subscribe(job_id) as changes:
        await asyncio.wait_for(anext(changes), PATIENCE)
        for _ in range(2):
            async with client.events() as events:
                assert await bench.connection.fetch("SELECT events FROM joex_private.subscriber") == [(True,)]
                assert pool.get_size() - pool.get_idle_size() == 1
                another = await bench.submit()
                assert (await asyncio.wait_for(anext(events), PATIENCE)).id == another
            await eventually(lambda: bench.connection.fetchval("SELECT NOT events FROM joex_private.subscriber"))
        await client.cancel(job_id)
        assert (await asyncio.wait_for(anext(changes), PATIENCE))[1].state == "cancelled"

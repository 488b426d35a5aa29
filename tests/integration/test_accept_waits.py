"""An accept that waits: one job wakes one worker, none is missed, and none is taken for a worker that is gone."""

import asyncio
import contextlib

import asyncpg
import pytest

import joex
from joex.errors import JoexError
from joex.notifications import accept_waiters, listener
from joex.notifications.accept_waiters import _RENEW_EVERY
from joex.store import worker_runs
from tests.support.waiting import PATIENCE, eventually


@pytest.fixture
async def client(database_url):
    async with joex.Client(database_url) as client:
        yield client


@pytest.fixture
async def watched(connection):
    """Wait until the database has this many waiting workers."""

    async def is_watched(queues: int = 1) -> None:
        async def found() -> bool:
            return bool(
                await connection.fetchval("SELECT count(*) FROM joex_private.watch WHERE until > now()") == queues
            )

        await eventually(found)

    return is_watched


def waiting(client, queue="mail", *limit, wait="1m"):
    return asyncio.create_task(client.keyed.accept(queue, *limit, wait=wait))


async def test_a_submission_wakes_who_waits(client, watched):
    worker = waiting(client)
    await watched()
    job_id = await client.submit("mail.send", {"to": "a"}, queue="mail")
    job = await worker
    assert (job.type, job.id, job.data) == ("mail.send", job_id, {"to": "a"})


async def test_an_added_job_wakes_who_waits(client, watched):
    worker = waiting(client, ("a", 1))
    await watched()
    await client.keyed.add(("a", 1), "x")
    assert (await worker).id == "x"


async def test_a_worker_that_is_refused_when_it_is_woken_leaves_the_job_to_the_next_one(database_url, monkeypatch):
    """The token of the first one was revoked while it waited."""
    accept, looked = worker_runs.accept, list[str]()

    async def judge(connection, queue, most, worker, limit):
        if worker in looked and worker == "revoked":
            raise PermissionError
        found = await accept(connection, queue, most, worker, limit)
        looked.append(worker)
        return found

    async def serve(*given):
        await asyncio.Event().wait()

    monkeypatch.setattr(worker_runs, "accept", judge)
    monkeypatch.setattr(accept_waiters.AcceptWaiters, "_serve", serve)  # nothing else wakes them
    async with joex.Client(database_url) as client:
        revoked = asyncio.create_task(client.keyed._accept_later("mail", "revoked", None, _deadline()))
        await eventually(lambda: looked == ["revoked"])
        second = asyncio.create_task(client.keyed._accept_later("mail", "second", None, _deadline()))
        await eventually(lambda: looked == ["revoked", "second"])
        job_id = await client.submit("mail.send", queue="mail")
        client.connections.accept_waiters.wake("mail")
        with pytest.raises(PermissionError):
            await revoked
        job = await second
    assert job is not None
    assert job.id == job_id


def _deadline():
    return asyncio.get_running_loop().time() + PATIENCE


def waiting_in_turn(client, turn):
    waits = client.keyed._accept_in_turn("mail", worker="w", turn=turn, deadline=_deadline(), waits=True)
    return asyncio.create_task(waits)


def waiters(client):
    # (Those that look again leave the line one after the other, and for a moment there may be none.)
    return sum(map(len, client.connections.accept_waiters.waiting.get("mail", {}).values()))


async def test_a_worker_holds_its_turn_while_it_looks_for_a_job_but_not_while_it_waits_for_one(client, asleep):
    turn = asyncio.Semaphore(1)
    worker = waiting_in_turn(client, turn)
    await asleep()
    await turn.acquire()
    job_id = await client.submit("mail.send", queue="mail")
    await eventually(lambda: turn._waiters, why="it waits for its turn")
    assert (await client.get(job_id)).state == "waiting"
    turn.release()
    assert (await worker).id == job_id


async def test_workers_that_wait_for_their_turn_keep_no_job_from_another_that_has_none_to_wait_for(client, asleep):
    turn = asyncio.Semaphore(1)
    workers = [waiting_in_turn(client, turn) for _ in range(5)]
    await asleep()
    other = waiting(client)
    await eventually(lambda: waiters(client) == 6, why="all wait")
    await turn.acquire()
    job_id = await client.submit("mail.send", queue="mail")
    assert (await asyncio.wait_for(other, _RENEW_EVERY / 2)).id == job_id
    turn.release()
    others = [(await client.submit("mail.send", queue="mail")) for _ in workers]
    assert {(await worker).id for worker in workers} == set(others)


@pytest.mark.parametrize("waits", [False, True])
async def test_a_worker_waits_for_its_turn_no_longer_than_until_its_deadline(client, waits):
    now = asyncio.get_running_loop().time()
    accepting = client.keyed._accept_in_turn("mail", worker="w", turn=asyncio.Semaphore(0), deadline=now, waits=waits)
    assert await asyncio.wait_for(accepting, PATIENCE) is None


async def test_without_a_wait_there_is_nothing_at_once(client):
    assert await client.keyed.accept("mail") is None


async def test_a_wait_ends_with_nothing(client):
    assert await client.keyed.accept("mail", wait="50ms") is None


async def test_a_submission_whose_transaction_was_open_before_anybody_waited_is_not_missed(
    client, connection, watched, database_url
):
    transaction = connection.transaction()
    await transaction.start()
    await client.submit("mail.send", queue="mail", connection=connection)
    worker = waiting(client)
    async with joex.Client(database_url) as other, other.acquire() as another:

        async def is_watched() -> bool:
            return bool(await another.fetchval("SELECT count(*) FROM joex_private.watch") == 1)

        await eventually(is_watched)
    await transaction.commit()
    assert (await worker).type == "mail.send"


async def test_each_of_many_jobs_wakes_one_of_many_workers(client, watched):
    workers = [waiting(client) for _ in range(20)]
    await watched()
    await client.submit_many([{"task": "mail.send", "queue": "mail", "group": str(nr % 3)} for nr in range(20)])
    jobs = await asyncio.gather(*workers)
    assert len({job.id for job in jobs}) == 20


async def test_who_takes_nothing_above_a_limit_does_not_keep_others_from_a_job(client, watched):
    low, high = waiting(client, "mail", 1), waiting(client, "mail", 9)
    await watched()
    await client.keyed.add("mail", "a", {"priority": 5})
    assert (await high).id == "a"
    assert not low.done()
    await client.keyed.add("mail", "b", {"priority": 1})
    assert (await low).id == "b"


async def test_a_job_that_becomes_due_wakes_who_waits(client, watched):
    await client.submit("mail.send", queue="mail", not_before="200ms")
    assert (await waiting(client)).type == "mail.send"


@pytest.fixture
async def asleep(connection):
    """Wait until the connection of waiting workers has found nothing to do."""
    polled = """SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND state = 'idle' AND query LIKE '%accept_state%'"""

    async def is_asleep() -> None:
        async def found() -> bool:
            return bool(await connection.fetchval(polled))

        await eventually(found)

    return is_asleep


@pytest.mark.parametrize("delay", ["0s", "500ms"])
async def test_a_queue_that_is_resumed_wakes_who_waits_when_its_jobs_are_due(client, asleep, delay):
    await client.queues.set("mail", paused=True)
    job_id = await client.submit("mail.send", queue="mail", not_before=delay)
    worker = waiting(client)
    await asleep()
    await client.queues.set("mail", paused=False)
    async with asyncio.timeout(_RENEW_EVERY / 2):
        assert (await worker).id == job_id


async def test_a_job_that_is_submitted_for_a_later_time_wakes_who_waits_when_it_is_due(client, asleep):
    worker = waiting(client)
    await asleep()
    job_id = await client.submit("mail.send", queue="mail", not_before="500ms")
    async with asyncio.timeout(_RENEW_EVERY / 2):
        assert (await worker).id == job_id


async def test_a_job_that_is_submitted_between_two_waits_wakes_the_second_one_when_it_is_due(client, asleep):
    elsewhere = waiting(client, "other")  # keeps the connection of the waits
    worker = waiting(client)
    await asleep()
    await client.submit("mail.send", queue="mail")
    await worker
    job_id = await client.submit("mail.send", queue="mail", not_before="500ms")
    async with asyncio.timeout(_RENEW_EVERY / 2):
        assert (await waiting(client)).id == job_id
    elsewhere.cancel()


async def test_a_run_that_becomes_overdue_wakes_who_waits(client):
    await client.keyed.set_timeout("mail.send", activity="200ms")
    await client.submit("mail.send", queue="mail")
    first = await client.keyed.accept("mail")
    second = await waiting(client)
    assert second.id == first.id
    assert await client.keyed.finish(first.type, first.id, {}, first.lock_id) == "worker_conflict"


async def test_who_is_cancelled_while_it_waits_takes_nothing(client, connection, watched):
    worker, other = waiting(client), waiting(client)
    await watched()
    worker.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await worker
    await client.submit("mail.send", queue="mail")
    assert (await other).type == "mail.send"
    assert await connection.fetchval("SELECT count(*) FROM joex_private.job WHERE executor_id IS NOT NULL") == 1


async def test_who_is_cancelled_in_the_middle_of_taking_gives_back(client, connection):
    await client.submit("mail.send", queue="mail")
    async with connection.transaction():
        await connection.execute(
            "LOCK TABLE joex_private.task_timeout IN ACCESS EXCLUSIVE MODE"
        )  # the take waits for it
        worker = asyncio.create_task(client.keyed.accept("mail"))

        async def is_blocked() -> bool:
            return bool(await connection.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted") == 1)

        await eventually(is_blocked)
        worker.cancel()
    with pytest.raises(asyncio.CancelledError):
        await worker
    assert await connection.fetchval("SELECT state::text FROM joex.jobs") == "waiting"


async def test_a_wait_survives_the_end_of_all_connections(client, connection, watched):
    worker = waiting(client)
    await watched()
    await connection.execute("""
        SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE application_name = 'joex client' AND datname = current_database()
    """)
    await client.submit("mail.send", queue="mail", connection=connection)
    assert (await worker).type == "mail.send"


async def test_a_wait_goes_on_during_a_flood_of_notifications(client, connection, watched, monkeypatch, caplog):
    monkeypatch.setattr(listener, "_HEARD_AT_ONCE", 0)
    worker = waiting(client)
    await watched()
    await connection.execute("NOTIFY joex_wake, 'x'")
    await eventually(lambda: "a flood of notifications on the channel joex_wake" in caplog.text)
    await client.submit("mail.send", queue="mail")
    assert (await worker).type == "mail.send"
    assert len(caplog.records) == 1


async def test_who_waits_sleeps_between_the_looks_when_those_at_another_queue_have_gone(
    database_url, connection, watched
):
    rounds, looks = [], []

    class Ring(asyncio.Event):
        def clear(self):
            rounds.append(self)
            super().clear()

    async def count(made):
        made.add_query_logger(lambda asked: looks.append(asked) if "accept_state" in asked.query else None)

    async with asyncpg.create_pool(database_url, min_size=0, max_size=3, init=count) as pool:
        client = joex.Client(pool)
        client.connections.accept_waiters.changed = Ring()
        async with connection.transaction():
            await connection.fetchval("SELECT pg_current_xact_id()")  # while this is open, the waiting accept polls
            gone, stays = waiting(client, "another"), waiting(client)
            await watched(2)
            gone.cancel()
            before = len(looks)
            await eventually(lambda: len(looks) > before + 10)
            assert len(rounds) < len(looks) + 20
        await client.close()
        with pytest.raises(JoexError, match="closed"):
            await stays


async def test_queues_in_which_no_worker_waits_any_more_are_forgotten_while_others_wait(client, watched, monkeypatch):
    watches = []

    class Watch(accept_waiters._QueueWatch):
        def __init__(self, *given):
            super().__init__(*given)
            watches.append(self)

    monkeypatch.setattr(accept_waiters, "_QueueWatch", Watch)
    monkeypatch.setattr(accept_waiters, "_RENEW_EVERY", 0.2)
    stays, *gone = (waiting(client, queue) for queue in ("mail", "one", "two"))
    await watched(3)
    for one in gone:
        one.cancel()
    await eventually(lambda: set(watches[0]._queues) == {"mail"})
    assert len(watches) == 1
    stays.cancel()


async def test_nothing_is_left_behind(database_url, connection, watched):
    async with joex.Client(database_url) as client:
        another = waiting(client, "another")
        await watched(1)
        another.cancel()
        worker = waiting(client)
        await watched(2)
    with pytest.raises(JoexError, match="closed"):
        await worker
    assert await connection.fetchval("SELECT count(*) FROM joex_private.watch") == 0
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_nobody_is_notified_of_work_while_nobody_waits(client, connection, watched):
    heard = []
    await connection.add_listener("joex_wake", lambda *told: heard.append(told[-1]))
    await client.submit("mail.send", queue="mail")
    await connection.execute("SELECT 1")
    assert heard == []


async def test_a_wait_within_a_transaction_is_refused(client, connection):
    with pytest.raises(joex.InvalidJob, match=r"^wait: expected none with a connection"):
        await client.keyed.accept("mail", wait=1, connection=connection)

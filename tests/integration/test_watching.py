"""Waiting for jobs: no change is missed, and many waits cost no more than one."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from uuid import uuid4

import asyncpg
import pytest

from joex import Client, ConfigError, JoexError, SchemaError
from joex.notifications import job_watch, listener
from joex.store import jobs, subscriptions
from joex.store.database import create_pool
from joex.store.subscriptions import read_jobs
from tests.support.proxy import Proxy
from tests.support.waiting import PATIENCE, eventually

POOL = "joex test pool"


@pytest.fixture(autouse=True)
def nothing_but_what_a_test_is_about_wakes_who_waits(monkeypatch):
    """Without a notification the client rechecks jobs only when it renews the subscription: here, never."""
    monkeypatch.setattr(job_watch, "_RENEW_EVERY", 3600.0)
    monkeypatch.setattr(job_watch, "_LEASE", timedelta(hours=1))


@pytest.fixture
async def me(bench):
    """An executor."""
    return await bench.executor("me")


@pytest.fixture
async def counting(database_url) -> AsyncIterator[tuple[Client, list[str]]]:
    """A client, and all its statements."""
    asked: list[str] = []

    async def count(connection):
        connection.add_query_logger(lambda question: asked.append(question.query))

    pool = await asyncpg.create_pool(database_url, min_size=0, max_size=2, init=count)
    client = Client(pool)
    yield client, asked
    await client.close()
    await pool.close()


@pytest.fixture
def waiting(connection):
    """A block that begins when a caller waits for these jobs: ``async with waiting(client.wait(a), a) as task``."""

    @asynccontextmanager
    async def begun(waits, *job_ids):
        task = asyncio.ensure_future(waits)
        try:
            await eventually(lambda: _are_waited_for(connection, job_ids))
            yield task
            await asyncio.wait({task}, timeout=PATIENCE)
            assert task.done()
        finally:
            task.cancel()

    return begun


async def _are_waited_for(connection, job_ids) -> bool:
    found = await connection.fetchval(
        "SELECT count(DISTINCT job_id) FROM joex_private.subscription WHERE job_id = ANY ($1)", list(job_ids)
    )
    return bool(found == len(job_ids))


async def _subscribers(connection) -> int:
    return int(await connection.fetchval("SELECT count(*) FROM joex_private.subscriber"))


def _tasks() -> set[str]:
    return {task.get_name() for task in asyncio.all_tasks()} & {"joex watcher"}


# Waiting.


@pytest.mark.parametrize("state", ["success", "failed", "cancelled"])
async def test_a_wait_ends_when_the_job_is_finished(bench, me, client, waiting, state):
    job_id = await bench.submit()
    taken = await bench.take_one(me)
    async with waiting(client.wait(job_id), job_id) as wait:
        await bench.start(taken)
        assert not wait.done()
        await bench.finish(taken, state, result='{"a": 1}', message="done")
    job = await wait
    assert (job.id, job.state, job.result, job.message) == (job_id, state, {"a": 1}, "done")


async def test_a_wait_for_a_job_that_is_finished_ends_at_once(bench, me, client):
    job_id = await bench.job_in("success", me)
    assert (await asyncio.wait_for(client.wait(job_id), PATIENCE)).state == "success"


async def test_a_wait_for_a_job_that_is_cancelled_by_hand_ends(bench, client, waiting):
    job_id = await bench.submit()
    async with waiting(client.wait(job_id), job_id) as wait:
        assert await client.cancel(job_id) == "cancelled"
    assert (await wait).state == "cancelled"


async def test_a_job_that_is_to_be_tried_again_is_not_finished_and_one_that_is_stuck_can_be_waited_for(
    bench, me, client, waiting
):
    job_id = await bench.submit()
    taken = await bench.take_one(me)
    async with waiting(client.wait(job_id), job_id) as wait:
        async with waiting(client.wait(job_id, states=["stuck"]), job_id) as wait_for_stuck:
            await bench.finish(taken, "stuck", delay=3600.0, age=1.0)
        assert (await wait_for_stuck).state == "stuck"
        assert not wait.done()
        await client.cancel(job_id)
    assert (await wait).state == "cancelled"


async def test_a_wait_for_running_ends_when_the_run_is_marked_so(bench, me, client, waiting):
    job_id = await bench.submit()
    async with waiting(client.wait(job_id, states={"running"}), job_id) as wait:
        taken = await bench.take_one(me)
        await bench.start(taken)
    assert (await wait).state == "running"


async def test_who_comes_later_sees_the_job_as_it_is(bench, me, client, waiting):
    job_id = await bench.submit()
    async with waiting(client.wait(job_id), job_id) as wait:
        async with client.subscribe(job_id) as changes:
            assert await asyncio.wait_for(anext(changes), PATIENCE) == (job_id, await bench.job(job_id))
        await client.cancel(job_id)
    assert (await wait).state == "cancelled"


async def test_a_job_that_does_not_exist_is_none_at_once(client):
    assert await asyncio.wait_for(client.wait(uuid4()), PATIENCE) is None


async def test_a_wait_ends_with_none_when_the_job_is_removed(bench, client, waiting):
    job_id = await bench.submit()
    async with waiting(client.wait(job_id), job_id) as wait:
        await bench.connection.execute("SELECT joex.remove($1)", job_id)
    assert await wait is None


async def test_a_wait_ends_with_none_when_a_running_job_that_was_to_be_removed_has_ended(bench, me, client, waiting):
    job_id = await bench.submit()
    taken = await bench.take_one(me)
    async with waiting(client.wait(job_id, states=["failed"]), job_id) as wait:
        await bench.connection.execute("SELECT joex.remove($1)", job_id)
        assert not wait.done()
        await bench.finish(taken)
    assert await wait is None


async def test_a_wait_ends_with_none_when_retention_deletes_the_job(bench, me, client, waiting):
    job_id = await bench.job_in("success", me)
    async with waiting(client.wait(job_id, states=["waiting"]), job_id) as wait:
        assert (await jobs.delete_finished(bench.connection, ["success"], timedelta(0), 10))[0] == 1
    assert await wait is None


async def test_a_wait_gives_up_after_its_timeout(bench, client):
    first, second = await bench.submit(), await bench.submit()
    await client.cancel(first)
    with pytest.raises(TimeoutError, match=r"^1 of 2 jobs are not cancelled or failed or success after 2s$"):
        await client.wait_many([first, second], timeout="2s")


async def test_many_jobs_come_in_the_order_in_which_they_were_named(bench, me, client):
    ids = [await bench.job_in("success", me) for _ in range(3)]
    found = await client.wait_many([ids[2], uuid4(), ids[0], ids[2]])
    assert [job and job.id for job in found] == [ids[2], None, ids[0], ids[2]]
    assert await client.wait_many([]) == []


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"states": ["done"]}, r"^states: expected some of waiting, scheduled, .*; got \['done'\]$"),
        ({"states": []}, r"^states: expected some of waiting, .*; got \[\]$"),
        ({"states": 5}, r"^states: expected some of waiting, .*; got 5$"),
        ({"states": [["success"]]}, r"^states: expected some of waiting, .*; got \[\['success'\]\]$"),
        ({"timeout": []}, r"^timeout: expected a duration such as '30s', or seconds; got \[\]$"),
        ({"timeout": "soon"}, r"^timeout: expected something like '30s'.*; got 'soon'$"),
    ],
)
async def test_a_wait_for_something_that_can_not_be_is_refused(bench, client, wrong, complaint):
    job_id = await bench.submit()
    with pytest.raises(ConfigError, match=complaint):
        await client.wait(job_id, **wrong)


async def test_a_text_is_no_job(bench, client):
    job_id = await bench.submit()
    with pytest.raises(ConfigError, match=r"^job id: expected a UUID; got '[0-9a-f-]+'$"):
        await client.wait(str(job_id))


# Nothing is missed.


@pytest.mark.parametrize("others", [0, 5])
async def test_a_change_by_a_transaction_that_was_open_when_the_wait_began_is_not_missed(
    bench, client, waiting, another_connection, others
):
    """It saw no subscriber, so it sent no notification. Only a recheck can find its change."""
    job_id, *more = [await bench.submit() for _ in range(1 + others)]
    changing = await another_connection()
    transaction = changing.transaction()
    await transaction.start()
    await jobs.cancel(changing, job_id)
    async with client.subscribe(job_id) as changes:
        assert await _next_state(changes) == "waiting"
        for other in more:  # each has a horizon of its own
            async with waiting(client.wait(other), other):
                await client.cancel(other)
        await transaction.commit()
        assert await _next_state(changes) == "cancelled"


async def test_a_change_by_a_transaction_that_was_open_when_an_earlier_wait_for_the_job_gave_up_is_not_missed(
    bench, client, another_connection
):
    """The client has subscribed to the job since the first wait, but the transaction can't see that."""
    job_id, other = await bench.submit(), await bench.submit()
    changing = await another_connection()
    transaction = changing.transaction()
    await transaction.start()
    await jobs.cancel(changing, job_id)
    async with client.subscribe(job_id) as changes:
        assert await _next_state(changes) == "waiting"
    async with client.subscribe(other) as others:  # (the client has rechecked its waits meanwhile)
        assert await _next_state(others) == "waiting"
    async with client.subscribe(job_id) as changes:
        assert await _next_state(changes) == "waiting"
        await transaction.commit()
        assert await asyncio.wait_for(_next_state(changes), PATIENCE) == "cancelled"


async def test_a_change_under_a_snapshot_older_than_the_subscription_is_not_missed(bench, client, another_connection):
    """No subscriber waits for a repeatable-read transaction without an id, and that can't see the subscription."""
    job_id = await bench.submit()
    changing = await another_connection()
    transaction = changing.transaction(isolation="repeatable_read")
    await transaction.start()
    await changing.fetchval("SELECT count(*) FROM joex_private.subscriber")  # takes the snapshot
    async with client.subscribe(job_id) as changes:
        assert await _next_state(changes) == "waiting"
        await jobs.cancel(changing, job_id)
        await transaction.commit()
        assert await _next_state(changes) == "cancelled"


async def test_a_job_that_a_repeatable_read_transaction_submits_can_be_waited_for(
    bench, me, client, waiting, another_connection
):
    submitting = await another_connection()
    async with submitting.transaction(isolation="repeatable_read"):
        job_id = await client.submit("a", connection=submitting)
    async with waiting(client.wait(job_id), job_id) as wait:
        await bench.finish(await bench.take_one(me))
    assert (await wait).state == "success"


async def _fail_without_notification(bench, job_id):
    await bench.connection.execute(
        "UPDATE joex_private.job SET state = 'failed', lane = NULL, finished_at = now() WHERE id = $1", job_id
    )


async def test_a_notification_that_was_lost_is_made_up_for_when_the_subscription_is_renewed(bench, client, monkeypatch):
    monkeypatch.setattr(job_watch, "_RENEW_EVERY", 0.1)
    job_id = await bench.submit()
    async with client.subscribe(job_id) as changes:
        assert await _next_state(changes) == "waiting"
        await _fail_without_notification(bench, job_id)
        assert await _next_state(changes) == "failed"


async def test_a_subscription_is_renewed_in_time_however_many_waits_begin_meanwhile(bench, client, monkeypatch):
    """The renewal rechecks all jobs, and ends the subscription to jobs without waits."""
    monkeypatch.setattr(job_watch, "_RENEW_EVERY", 0.5)
    job_id = await bench.submit()
    async with client.subscribe(job_id) as changes:
        assert await _next_state(changes) == "waiting"
        await _fail_without_notification(bench, job_id)
        changed = asyncio.ensure_future(_next_state(changes))

        async def is_told() -> bool:
            async with client.subscribe(await bench.submit()) as other:
                await anext(other)
            return changed.done()

        await eventually(is_told)
        assert await changed == "failed"


async def test_a_subscription_that_others_took_for_dead_begins_again(bench, client, waiting, monkeypatch):
    monkeypatch.setattr(job_watch, "_RENEW_EVERY", 0.1)
    job_id = await bench.submit()
    async with waiting(client.wait(job_id), job_id):
        await bench.connection.execute("DELETE FROM joex_private.subscriber")
        await eventually(lambda: _are_waited_for(bench.connection, [job_id]))
        await client.cancel(job_id)


async def test_a_subscription_is_renewed_before_it_ends(bench, client, waiting, monkeypatch):
    monkeypatch.setattr(job_watch, "_RENEW_EVERY", 0.1)
    job_id = await bench.submit()
    async with waiting(client.wait(job_id), job_id):
        before = await bench.connection.fetchval("SELECT until FROM joex_private.subscriber")
        await eventually(lambda: bench.connection.fetchval("SELECT until > $1 FROM joex_private.subscriber", before))
        assert await _subscribers(bench.connection) == 1
        await client.cancel(job_id)


# The connection.


async def test_a_wait_goes_on_when_its_connection_is_killed(bench, client, waiting):
    job_id, another = await bench.submit(), await bench.submit()
    async with waiting(client.wait_many([job_id, another]), job_id, another) as wait:
        await jobs.cancel(bench.connection, another)
        await _kill_the_watcher(bench.connection)
        await jobs.cancel(bench.connection, job_id)
    assert [job.state for job in await wait] == ["cancelled"] * 2


async def test_a_wait_goes_on_over_a_restart_of_the_server(postgres, database_url, me, waiting):
    async with Client(database_url) as client:
        job_id = await client.submit("a")
        assert job_id is not None
        async with waiting(client.wait(job_id), job_id) as wait:
            postgres.restart("immediate")
            async with Client(database_url) as another:
                await another.cancel(job_id)
        assert (await wait).state == "cancelled"


async def test_a_wait_notices_that_its_link_has_gone_silent(bench, postgres, database_name, waiting, monkeypatch):
    monkeypatch.setattr(job_watch, "_RENEW_EVERY", 0.1)
    monkeypatch.setattr(listener, "_ANSWER_WITHIN", 0.5)
    async with Proxy(postgres.port) as proxy, Client(postgres.tcp_url(database_name, port=proxy.port)) as client:
        job_id = await bench.submit()
        async with waiting(client.wait(job_id), job_id) as wait:
            proxy.freeze_links()
            await jobs.cancel(bench.connection, job_id)
        assert (await wait).state == "cancelled"


async def test_who_waits_learns_of_a_wrong_url_and_of_a_missing_schema(postgres, empty_database_url):
    async with Client(postgres.url("nowhere")) as client:
        with pytest.raises(ConfigError, match=r'^database URL: database "nowhere" does not exist'):
            await asyncio.wait_for(client.wait(uuid4()), PATIENCE)
    async with Client(empty_database_url) as client:
        for _ in range(2):
            with pytest.raises(SchemaError, match="run 'joex migrate'"):
                await asyncio.wait_for(client.wait(uuid4()), PATIENCE)
        with pytest.raises(SchemaError):
            async with client.events():
                pass


async def test_one_connection_is_enough_for_all_who_wait(bench, database_url, waiting):
    pool = await create_pool(database_url, most=1)
    client = Client(pool)
    ids = [await bench.submit() for _ in range(3)]
    async with waiting(asyncio.gather(*map(client.wait, ids)), *ids) as wait:
        for job_id in ids:
            await jobs.cancel(bench.connection, job_id)
    assert [job.state for job in await wait] == ["cancelled"] * 3
    await client.close()
    await pool.close()


async def test_when_nobody_waits_any_more_there_is_no_subscription_no_connection_and_no_task(
    bench, pool, client, waiting
):
    job_id = await bench.submit()
    async with waiting(client.wait(job_id), job_id):
        await client.cancel(job_id)
    await eventually(lambda: not _tasks())
    assert await _subscribers(bench.connection) == 0
    assert pool.get_idle_size() == pool.get_size()


async def test_who_waits_in_turn_for_one_job_after_the_other_does_so_on_one_connection(bench, counting, waiting):
    client, asked = counting
    for _ in range(3):
        job_id = await bench.submit()
        async with waiting(client.wait(job_id), job_id):
            await jobs.cancel(bench.connection, job_id)
    assert [question for question in asked if question.startswith("LISTEN")] == ['LISTEN "joex_jobs"']


async def test_closing_the_client_leaves_nothing_behind_and_tells_who_waits(bench, database_url, waiting):
    client = Client(database_url)
    job_id = await bench.submit()
    async with waiting(client.wait(job_id), job_id) as wait:
        await client.close()
    with pytest.raises(JoexError, match=r"^the client was closed$"):
        await wait
    assert not _tasks()
    assert await _subscribers(bench.connection) == 0


async def test_a_wait_that_is_cancelled_waits_no_more(bench, client, waiting):
    job_id = await bench.submit()
    async with waiting(client.wait(job_id), job_id) as wait:
        wait.cancel()
    await eventually(lambda: not _tasks())
    assert await _subscribers(bench.connection) == 0


# Many.


async def test_a_thousand_who_wait_ask_no_more_than_a_few(bench, me, counting, waiting):
    client, asked = counting
    ids = [job_id for job_id in await client.submit_many([{"task": "a"}] * 1000) if job_id]
    asked.clear()
    each = [client.wait(job_id) for job_id in ids]
    async with waiting(asyncio.gather(client.wait_many(ids), *each), *ids) as wait:
        taken = await bench.take(me, 1000)
        async with bench.connection.transaction():
            for job in taken:
                await bench.finish(job)
    together, *single = await wait
    assert [job.state for job in single] == ["success"] * 1000
    assert together == single
    assert len(asked) < 50, asked


async def test_those_who_wait_for_a_job_read_it_together(bench, me, client, waiting):
    job_id = await bench.submit()
    read = []

    async def reading(connection, ids):
        read.append(list(ids))
        return await read_jobs(connection, ids)

    async def wait():
        return await client.connections.watcher.wait(
            [job_id], reading, lambda job: job.cancel_requested, states=["cancelled"]
        )

    async with (
        client.subscribe(job_id) as changes,
        waiting(asyncio.gather(*(wait() for _ in range(100))), job_id) as waits,
    ):
        await asyncio.wait_for(anext(changes), PATIENCE)
        await client.cancel(job_id)
    assert await waits == [{job_id: await bench.job(job_id)}] * 100
    assert read == [[job_id]]  # and not while it was in another state


async def test_who_waits_sleeps_between_the_looks_while_an_old_transaction_is_open_and_others_have_gone(
    bench, counting, waiting, another_connection
):
    client, asked = counting
    rings = []

    class Ring(asyncio.Event):
        def clear(self):
            rings.append(self)
            super().clear()

    client.connections.watcher._streams.wakeup = Ring()
    job_id, another = await bench.submit(), await bench.submit()
    old = await another_connection()
    async with old.transaction():
        await old.fetchval("SELECT pg_current_xact_id()")
        async with waiting(client.wait(job_id), job_id) as wait:
            async with waiting(client.wait(another), another) as gone:
                gone.cancel()
            await eventually(lambda: sum("joex_client.versions" in question for question in asked) > 10)
            assert len(rings) < 50
            await jobs.cancel(bench.connection, job_id)
        assert (await wait).state == "cancelled"


async def test_jobs_that_have_not_changed_are_looked_at_and_not_read_again(bench, counting, monkeypatch):
    monkeypatch.setattr(job_watch, "_RENEW_EVERY", 0.05)
    client, asked = counting
    ids = [await bench.submit() for _ in range(3)]
    async with client.subscribe(*ids) as changes:
        for _ in ids:
            await asyncio.wait_for(anext(changes), PATIENCE)
        await eventually(lambda: sum("joex.subscribe" in question for question in asked) > 5)
    assert sum("args::text" in question for question in asked) == 1


async def test_what_nobody_waits_for_any_more_is_forgotten_while_others_wait(bench, client, waiting, monkeypatch):
    monkeypatch.setattr(job_watch, "_RENEW_EVERY", 0.05)
    job_id, another = await bench.submit(), await bench.submit()
    async with waiting(client.wait(job_id), job_id):
        async with waiting(client.wait(another), another) as gone:
            gone.cancel()
        await eventually(
            lambda: bench.connection.fetchval(
                "SELECT array_agg(job_id) = ARRAY[$1::uuid] FROM joex_private.subscription", job_id
            )
        )
        await client.cancel(job_id)


# Subscribing.


async def test_a_subscriber_sees_a_job_as_it_is_and_then_each_change_until_it_is_gone(bench, me, client):
    job_id = await bench.submit()
    seen = []
    async with client.subscribe(job_id) as changes:
        seen.append(await asyncio.wait_for(anext(changes), PATIENCE))
        taken = await bench.take_one(me)
        await bench.start(taken)
        seen.append(await asyncio.wait_for(anext(changes), PATIENCE))
        await bench.connection.execute(
            "SELECT joex.update($1, $2, progress => 40, message => 'nearly half')", job_id, taken.lock_id
        )
        seen.append(await asyncio.wait_for(anext(changes), PATIENCE))
        await bench.connection.execute("SELECT joex.set_priority($1, 'high')", job_id)  # it runs: nothing changes
        await bench.finish(taken)
        seen.append(await asyncio.wait_for(anext(changes), PATIENCE))
        await bench.connection.execute("SELECT joex.remove($1)", job_id)
        async for change in changes:
            seen.append(change)  # noqa: PERF401 - a comprehension would not show that it ends
    assert [job_id for job_id, _ in seen] == [job_id] * 5
    assert [job and (job.state, job.progress, job.progress_message) for _, job in seen] == [
        ("waiting", 0, None),
        ("running", 0, None),
        ("running", 40, "nearly half"),
        ("success", 100, "nearly half"),
        None,
    ]


async def _all_is_looked_at(client, job_id):
    """Wait until the watcher has read all changes. (The first answer may be that of a read that was under way.)"""
    for _ in range(2):
        async with client.subscribe(job_id) as ready:
            await asyncio.wait_for(anext(ready), PATIENCE)


async def test_a_subscriber_that_is_slow_gets_the_latest_alone(bench, client):
    job_id, last = await bench.submit(), await bench.submit()
    async with client.subscribe(job_id, last) as changes:
        assert {(await asyncio.wait_for(anext(changes), PATIENCE))[0] for _ in range(2)} == {job_id, last}
        for state in ("high", "low", "high"):
            await client.set_priority(job_id, state)
        await client.cancel(job_id)
        await _all_is_looked_at(client, last)
        await client.cancel(last)
        seen = [await asyncio.wait_for(anext(changes), PATIENCE) for _ in range(2)]
    assert [(job_id, job.state, job.priority) for job_id, job in seen] == [
        (job_id, "cancelled", "high"),
        (last, "cancelled", "low"),
    ]


async def test_a_report_that_changes_nothing_is_no_change(bench, me, client):
    job_id, other = await bench.submit(), await bench.submit()
    taken = await bench.take_one(me)
    await bench.start(taken)
    async with client.subscribe(job_id) as changes:
        assert await _next_state(changes) == "running"
        following = asyncio.ensure_future(_next_state(changes))
        await bench.connection.execute("SELECT joex.update($1, $2)", job_id, taken.lock_id)
        await _all_is_looked_at(client, other)
        assert not following.done()
        await bench.finish(taken)
        assert await following == "success"


async def test_a_subscriber_hears_of_its_own_jobs_alone(bench, client):
    mine, other = await bench.submit(), await bench.submit()
    async with client.subscribe(mine) as changes, client.subscribe(other) as others:
        assert [await _next_state(stream) for stream in (changes, others)] == ["waiting"] * 2
        await client.cancel(other)
        assert await _next_state(others) == "cancelled"
        await client.cancel(mine)
        assert (await asyncio.wait_for(anext(changes), PATIENCE))[0] == mine


async def _next_state(changes) -> str | None:
    _, job = await asyncio.wait_for(anext(changes), PATIENCE)
    return None if job is None else str(job.state)


async def _kill_the_watcher(connection) -> None:
    killed = await connection.fetchval(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database() "
        "AND application_name = $1",
        POOL,
    )
    assert killed


# Floods of notifications.


async def test_the_system_keeps_little_for_a_listener_to_read_in_one_turn_of_the_event_loop(database_url):
    connection = await asyncpg.connect(database_url)
    link = connection._transport.get_extra_info("socket")  # type: ignore[attr-defined] # it has one
    before = link.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
    await listener.Listener(connection, asyncio.Event(), listener.Floods()).start()
    assert link.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) <= min(before, 2 * listener._UNREAD)
    await connection.close()


@pytest.fixture
def flood(connection, monkeypatch, caplog):
    """Send more notifications on a channel than a program listens to."""
    monkeypatch.setattr(listener, "_HEARD_PER_SECOND", 1e-3)
    monkeypatch.setattr(listener, "_HEARD_AT_ONCE", 500)

    async def send(channel):
        await connection.execute("SELECT pg_notify($1, n::text) FROM generate_series(1, 100) n", channel)
        await eventually(lambda: f"a flood of notifications on the channel {channel}" in caplog.text)

    return send


@pytest.fixture
def heard(monkeypatch):
    """What a client has heard about the jobs that it waits for: it is told of none."""
    heard: list[str] = []

    def hear(payload):
        heard.append(payload)
        return []

    monkeypatch.setattr(subscriptions, "heard_jobs", hear)
    return heard


async def test_during_a_flood_of_notifications_waits_go_on_and_events_are_heard(bench, client, waiting, flood, heard):
    job_id = await bench.submit()
    async with waiting(client.wait(job_id), job_id) as wait:
        await flood(subscriptions.JOBS)
        async with client.events() as events:
            await flood(subscriptions.JOBS)
            another = await bench.submit()
            assert (await asyncio.wait_for(anext(events), PATIENCE)).id == another
        await client.cancel(job_id)
    assert (await wait).state == "cancelled"
    assert heard == ["1", "2", "3", "4"]


async def test_after_a_flood_notifications_are_heard_again(  # noqa: PLR0917 - fixtures
    bench, client, waiting, flood, heard, monkeypatch
):
    monkeypatch.setattr(listener, "_DEAF_FOR", 0.5)
    job_id = await bench.submit()
    async with waiting(client.wait(job_id), job_id) as wait:
        await flood(subscriptions.JOBS)

        async def are_heard():
            await bench.connection.execute(f"NOTIFY {subscriptions.JOBS}, 'again'")
            return "again" in heard

        await eventually(are_heard)
        wait.cancel()

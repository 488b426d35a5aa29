"""An idle executor sleeps, and wakes for work.

The lease and the wake-up period are an hour in these tests, so that only the event of the test wakes it.
"""

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import asyncpg
import pytest

import joex
from joex.core.events import FellAsleep, RunEnded, RunStarted, Taken, Woken
from tests.support.apps import AnyClient
from tests.support.postgres import TestServer
from tests.support.processes_inside import LONG, executor_inside
from tests.support.proxy import Proxy
from tests.support.waiting import eventually


@pytest.fixture
def app() -> joex.App:
    app = joex.App()

    @app.task("task")
    async def task(ctx: joex.Context) -> None:
        pass

    @app.task("fail.once", retries=1, retry_delay="200ms")
    async def fail_once(ctx: joex.Context) -> None:
        if ctx.attempt == 1:
            raise ValueError

    return app


async def test_a_submission_wakes_a_sleeping_executor(app: joex.App, client: AnyClient, database_url: str) -> None:
    async with executor_inside(app, database_url, lease=LONG) as inside:
        await inside.log.wait_for(FellAsleep)
        seen = len(inside.log.events)
        job_id = await client.submit("task")
        woken = await inside.log.wait_for(Woken, after=seen)
        await inside.ended(job_id)
    assert woken.queue == "default"


async def test_a_submission_in_plain_sql_wakes_a_sleeping_executor(
    app: joex.App, connection: asyncpg.Connection, database_url: str
) -> None:
    async with executor_inside(app, database_url, lease=LONG) as inside:
        await inside.log.wait_for(FellAsleep)
        job_id = await connection.fetchval("SELECT joex.submit('task', grp => 'acme')")
        await inside.ended(job_id)


async def test_a_transaction_that_submitted_before_the_executor_slept_and_commits_afterwards_is_not_missed(
    app: joex.App, client: AnyClient, connection: asyncpg.Connection, database_url: str
) -> None:
    """It saw no executor asleep, so it sent no notification. Only a recheck of the executor can find the job."""
    transaction = connection.transaction()
    await transaction.start()
    job_id = await client.submit("task", connection=connection)
    async with executor_inside(app, database_url, lease=LONG) as inside:
        await eventually(lambda: _someone_sleeps(client))
        # It has rechecked after it fell asleep, and could not see the job.
        await inside.log.wait_for(Taken, count=len(inside.log.of(Taken)) + 1)
        await transaction.commit()
        await inside.ended(job_id)
        assert not inside.log.of(Woken)


async def test_an_executor_sleeps_for_good_once_all_older_transactions_have_ended(
    app: joex.App, client: AnyClient, connection: asyncpg.Connection, database_url: str
) -> None:
    """It rechecks ever less often while one is open, and not at all afterwards."""
    transaction = connection.transaction()
    await transaction.start()
    await client.submit("task", connection=connection)
    async with executor_inside(app, database_url, lease=LONG) as inside:
        await inside.log.wait_for(Taken, count=5)
        assert not inside.log.of(FellAsleep)
        await transaction.rollback()
        await inside.log.wait_for(FellAsleep)
        assert not inside.log.of(RunStarted)


async def test_a_submission_under_an_old_snapshot_wakes_a_sleeping_executor(
    app: joex.App, client: AnyClient, connection: asyncpg.Connection, database_url: str
) -> None:
    """A repeatable-read transaction that began before the executor fell asleep can't see that it sleeps."""
    transaction = connection.transaction(isolation="repeatable_read")
    await transaction.start()
    await connection.fetchval("SELECT count(*) FROM joex_private.executor")  # takes the snapshot, but no transaction id
    async with executor_inside(app, database_url, lease=LONG) as inside:
        await inside.log.wait_for(FellAsleep)
        job_id = await client.submit("task", connection=connection)
        await transaction.commit()
        await inside.ended(job_id)


async def test_an_executor_that_the_mark_of_sleepers_leaves_behind_falls_asleep_anew(
    app: joex.App, client: AnyClient, connection: asyncpg.Connection, database_url: str
) -> None:
    """Another one has slept so often under an old snapshot that submissions read on behind these sleeps."""
    place = (
        "SELECT a.nr FROM joex_private.asleep a JOIN joex_private.executor e ON e.id = a.executor_id WHERE e.id = $1"
    )
    sleep_often = """
        DO $$ BEGIN
            FOR nr IN 1..200 LOOP
                PERFORM joex_private.fall_asleep(id), joex_private.get_up(id) FROM joex_private.executor
                WHERE app_id = 'another';
                COMMIT;
            END LOOP;
        END $$
    """
    async with executor_inside(app, database_url, lease=LONG) as inside, client.acquire() as old:
        await inside.log.wait_for(FellAsleep)
        async with old.transaction(isolation="repeatable_read"):
            await old.fetchval("SELECT count(*) FROM joex_private.executor")
            await connection.execute("""
                INSERT INTO joex_private.executor (id, app_id, host, pid, version, queues, tasks, pool_size, lease,
                                                   locks)
                SELECT id + 1, 'another', host, pid, version, queues, tasks, pool_size, lease, locks
                FROM joex_private.executor
            """)
            before = await connection.fetchval(place, inside.executor.id)
            await connection.execute(sleep_often)
            assert await connection.fetchval("SELECT joex_private.sleepers_from()") > before
            await eventually(lambda: connection.fetchval(place, inside.executor.id), why="it is on the list again")
            seen = len(inside.log.events)
            job_id = await client.submit("task")
            await inside.log.wait_for(Woken, after=seen)
            await inside.ended(job_id)


async def test_an_executor_that_falls_asleep_while_the_mark_of_sleepers_moves_falls_asleep_anew(
    client: AnyClient, connection: asyncpg.Connection, database_url: str
) -> None:
    """Its place is below the mark, and who moves the mark can't see it yet."""
    app, go = joex.App(), asyncio.Event()

    @app.task("hold")
    async def hold(ctx: joex.Context) -> None:
        await go.wait()

    waits = "SELECT count(*) > 0 FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE NOT l.granted \
             AND a.query LIKE '%fall_asleep%' AND a.datname = current_database()"
    async with executor_inside(app, database_url, lease=LONG, pool_size=1) as inside:
        held = await client.submit("hold")
        await inside.log.wait_for(RunStarted)
        async with connection.transaction():
            await connection.execute("SELECT FROM joex_private.executor FOR NO KEY UPDATE")
            go.set()
            await inside.ended(held)
            await eventually(lambda: connection.fetchval(waits), why="it is about to fall asleep")
            move = "SELECT setval('joex_private.sleepers_from', nextval('joex_private.sleeper_nr'))"
            await connection.execute(move)
        await eventually(lambda: _someone_sleeps(client))
        job_id = await client.submit("hold")
        await inside.ended(job_id)


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
async def test_a_transaction_that_submits_can_be_prepared_where_it_notifies_nobody(
    end: str, app: joex.App, client: AnyClient, connection: asyncpg.Connection, database_url: str
) -> None:
    """A transaction that has notified can't be prepared.

    The executor finds the job when it polls, at most a heartbeat later.
    """
    name = f"joex {uuid4()}"
    async with executor_inside(app, database_url, lease="1.5s") as inside:
        await inside.log.wait_for(FellAsleep)
        await connection.execute("BEGIN")
        await connection.execute("SET LOCAL joex.notify = 'off'")
        job_id = await client.submit("task", connection=connection)
        await connection.execute(f"PREPARE TRANSACTION '{name}'")
        await connection.execute(f"{end} PREPARED '{name}'")
        after = await client.submit("task", connection=connection)  # notifies again
        await inside.ended(after)
        if end == "COMMIT":
            await inside.ended(job_id)
        else:
            assert await client.get(job_id) is None


async def test_a_retry_that_falls_due_wakes_its_executor(app: joex.App, client: AnyClient, database_url: str) -> None:
    async with executor_inside(app, database_url, lease=LONG) as inside:
        job_id = await client.submit("fail.once")
        await inside.log.wait_for(RunEnded, count=2)
    job = await client.get(job_id)
    assert (job.state, job.attempt) == ("success", 2)


async def test_a_job_with_a_not_before_time_runs_then_and_not_sooner(
    app: joex.App, client: AnyClient, database_url: str
) -> None:
    async with executor_inside(app, database_url, lease=LONG) as inside:
        await inside.log.wait_for(FellAsleep)
        later = await client.submit("task", not_before=datetime.now(UTC) + timedelta(hours=1))
        for _ in range(2):
            due = datetime.now(UTC) + timedelta(seconds=0.2)
            soon = await client.submit("task", not_before=due)
            await inside.ended(soon)
            assert (await client.get(soon)).scheduled_at >= due
    assert (await client.get(later)).state == "waiting"


async def test_a_job_that_is_retried_by_hand_wakes_a_sleeping_executor(
    app: joex.App, client: AnyClient, database_url: str
) -> None:
    @app.task("fail", retries=0)
    async def fail(ctx: joex.Context) -> None:
        raise ValueError

    async with executor_inside(app, database_url, lease=LONG) as inside:
        job_id = await client.submit("fail")
        seen = inside.log.behind(await inside.ended(job_id))
        await inside.log.wait_for(FellAsleep, after=seen)
        assert await client.retry(job_id)
        await inside.ended(job_id, after=seen)


async def test_a_group_that_is_resumed_wakes_a_sleeping_executor(
    app: joex.App, client: AnyClient, connection: asyncpg.Connection, database_url: str
) -> None:
    await connection.execute("SELECT joex.set_group('acme', paused => true)")
    async with executor_inside(app, database_url, lease=LONG) as inside:
        paused = await client.submit("task", group="acme")
        other = await client.submit("task", group="other")
        await inside.log.wait_for(FellAsleep, after=inside.log.behind(await inside.ended(other)))
        assert (await client.get(paused)).state == "waiting"
        await connection.execute("SELECT joex.set_group('acme', paused => false)")
        await inside.ended(paused)


async def test_one_submission_with_many_jobs_wakes_as_many_executors_as_it_needs(
    app: joex.App, client: AnyClient, database_url: str
) -> None:
    together = asyncio.Barrier(3)

    @app.task("together")
    async def meet(ctx: joex.Context) -> None:
        await together.wait()

    async with (
        executor_inside(app, database_url, lease=LONG, pool_size=1) as one,
        executor_inside(app, database_url, lease=LONG, pool_size=1) as two,
        executor_inside(app, database_url, lease=LONG, pool_size=1) as three,
    ):
        for inside in (one, two, three):
            await inside.log.wait_for(FellAsleep)
        await client.submit_many([{"task": "together"}] * 3)
        for inside in (one, two, three):
            await inside.log.wait_for(RunEnded)


async def test_a_notification_wakes_all_sleeping_executors_of_its_queue_and_no_others(
    app: joex.App, client: AnyClient, database_url: str
) -> None:
    async with (
        executor_inside(app, database_url, lease=LONG) as one,
        executor_inside(app, database_url, lease=LONG, queues=["more", "default"]) as two,
        executor_inside(app, database_url, lease=LONG, queues=["other"]) as other,
    ):
        for inside in (one, two, other):
            await inside.log.wait_for(FellAsleep)
        seen = len(one.log.events), len(two.log.events)
        assert await client.notify() == 2
        for inside, before in zip((one, two), seen, strict=True):
            await inside.log.wait_for(Woken, after=before)
            await inside.log.wait_for(Taken, after=before)
        assert await client.notify("other") == 1
        assert (await other.log.wait_for(Woken)).queue == "other"  # notifications come in order: there was none before


async def test_an_executor_that_polls_finds_work_without_notifications(
    app: joex.App, client: AnyClient, connection: asyncpg.Connection, database_url: str
) -> None:
    async with executor_inside(app, database_url, lease=LONG, poll_interval="50ms") as inside:
        await inside.log.wait_for(FellAsleep)
        job_id = await client.submit("task")
        await inside.ended(job_id)
        failing = await client.submit("fail.once")
        await inside.log.wait_for(RunEnded, lambda event: event.job.id == failing, count=2)
        held = await connection.fetchval(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = 1785685001"
        )
        listening = await connection.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'"
        )
        assert not inside.log.of(Woken)
    assert (held, listening) == (0, 0)


async def test_an_executor_that_polls_lives_on_connections_that_change_under_it(
    app: joex.App, client: AnyClient, postgres: TestServer, database_name: str
) -> None:
    """As behind a pooler in transaction mode: the state of a session may be lost at any time."""
    async with Proxy(postgres.port) as proxy:
        url = postgres.tcp_url(database_name, port=proxy.port)
        async with executor_inside(app, url, poll_interval="50ms") as inside:
            for _ in range(10):
                job_id = await client.submit("task")
                await inside.ended(job_id)
                assert (await client.get(job_id)).state == "success"
                await proxy.cut()


async def test_none_of_several_queues_starves_the_others(app: joex.App, client: AnyClient, database_url: str) -> None:
    """The executor serves the queue of one job although the queue before it always has work."""
    await client.submit_many([{"task": "task", "queue": "busy"} for _ in range(300)])
    ids = await client.submit_many([{"task": "task", "queue": queue} for queue in ("second", "third")])
    async with executor_inside(app, database_url, pool_size=1, queues=["busy", "second", "third"]) as inside:
        for job_id in ids:
            await inside.ended(job_id)
    first = [ended.job.queue for ended in inside.log.of(RunEnded)][:3]
    assert sorted(first) == ["busy", "second", "third"]


async def test_an_executor_does_not_touch_the_queues_that_it_does_not_serve(
    app: joex.App, client: AnyClient, database_url: str
) -> None:
    other = await client.submit("task", queue="other")
    async with executor_inside(app, database_url, lease=LONG) as inside:
        mine = await client.submit("task")
        await inside.ended(mine)
        await inside.log.wait_for(FellAsleep)
    assert (await client.get(other)).state == "waiting"


async def test_no_more_jobs_run_at_a_time_than_there_are_slots(client: AnyClient, database_url: str) -> None:
    app = joex.App()
    running, most = 0, 0

    @app.task("task")
    async def task(ctx: joex.Context) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.002)
        running -= 1

    ids = await client.submit_many([{"task": "task", "group": f"g{n % 5}"} for n in range(200)])
    async with executor_inside(app, database_url, pool_size=7) as inside:
        for job_id in ids:
            await inside.ended(job_id)
            assert len(inside.executor.running()) <= 7
    assert most == 7


async def _someone_sleeps(client: AnyClient) -> bool:
    async with client.acquire() as connection:
        return bool(await connection.fetchval("SELECT EXISTS (TABLE joex_private.asleep)"))

"""The lock of a queue's ring: no session keeps it, however its take ends; one that does stops no other take."""

import asyncio
import contextlib
import os
import random
import signal
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from joex import App, Client, Context, NewJob
from joex.core.events import FellAsleep
from joex.core.priority_turns import CountingScheme
from joex.errors import DatabaseUnavailable
from joex.store import jobs, runs, worker_runs
from tests.support.processes_inside import LONG, executor_inside
from tests.support.waiting import eventually

pytestmark = pytest.mark.postgres(16, 18)

FOUR_ONE = CountingScheme(4, 1)
RING = "joex_private.ring_lock(), hashtext('default')"
HELD = """
    SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid::bigint = joex_private.ring_lock()
        AND granted
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
WAITS = """
    SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


async def met(holder: asyncpg.Connection, observer: asyncpg.Connection, signal_number: int, interrupt: Any) -> None:
    """A waiting take gets the lock and an interrupt at the same time, because its process is stopped meanwhile."""
    pid = await eventually(lambda: observer.fetchval(WAITS), why="the take waits for the ring")
    os.kill(pid, signal.SIGSTOP)
    try:
        # (A process that has not been scheduled since would handle the interrupt first.)
        await eventually(lambda: status_of(pid)["State"].startswith("T"), why="the process has stopped")
        await holder.execute(f"SELECT pg_advisory_unlock({RING})")
        await interrupt(pid)
        await eventually(lambda: is_pending(pid, signal_number), why="the interrupt has come")
    finally:
        os.kill(pid, signal.SIGCONT)


def is_pending(pid: int, signal_number: int) -> bool:
    """Whether a signal waits for a stopped process."""
    status = status_of(pid)
    return any(int(status[key], 16) >> signal_number - 1 & 1 for key in ("SigPnd", "ShdPnd"))


def status_of(pid: int) -> dict[str, str]:
    """What the kernel says of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


async def nothing(_: object) -> None:
    """Do nothing: the interrupt comes by itself."""


@pytest.mark.parametrize("within", ["0", "500ms"], ids=["cancelled", "timeout"])
async def test_a_take_that_is_interrupted_just_when_the_ring_is_granted_does_not_keep_it(
    bench, another_connection, within
):
    """Between the lock and the next instruction the code can't record it."""
    await bench.submit()
    executor, holder, taker = await bench.executor(), await another_connection(), await another_connection()
    await holder.execute(f"SELECT pg_advisory_lock({RING})")
    await bench.connection.execute(NO_LIMIT)
    await taker.execute(ONE_ALARM)
    await taker.execute(f"SET statement_timeout = '{within}'")

    async def cancel(pid: int) -> None:
        await bench.connection.execute("SELECT pg_cancel_backend($1)", pid)

    task = asyncio.ensure_future(runs.take(taker, executor, ["default"], 1, FOUR_ONE))
    if within == "0":
        await met(holder, bench.connection, signal.SIGINT, cancel)
    else:
        await met(holder, bench.connection, signal.SIGALRM, nothing)
    with pytest.raises(DatabaseUnavailable, match="canceling statement"):
        await task
    assert await bench.connection.fetchval(HELD) == 0
    assert len(await bench.take(executor)) == 1


NO_LIMIT = """
    ALTER FUNCTION joex_private.wait_for_ring SET lock_timeout = 0;
    CREATE TABLE other_than_new ();  -- this database serves no other test
"""
ONE_ALARM = "SET deadlock_timeout = '10min'"  # the signal must not be that of the deadlock check


async def test_an_accept_that_its_caller_cancels_just_then_does_not_leave_it_with_a_connection_of_the_pool(
    database_url, bench, another_connection
):
    # A caller's own pool, because a cancelled statement ends a connection of Joex's own.
    pool = await asyncpg.create_pool(database_url, min_size=1, max_size=1, reset=nothing)
    await bench.submit()
    holder = await another_connection()
    await holder.execute(f"SELECT pg_advisory_lock({RING})")
    await bench.connection.execute(NO_LIMIT)
    pids = []

    async def accept() -> None:
        async with pool.acquire() as connection:
            await worker_runs.accept(connection, "default", 1, "worker", None)

    async def cancel(pid: int) -> None:
        pids.append(pid)
        task.cancel()

    async def is_idle() -> bool:
        state = "SELECT state FROM pg_stat_activity WHERE pid = $1"
        return bool(await bench.connection.fetchval(state, pids[0]) == "idle")

    task = asyncio.ensure_future(accept())
    await met(holder, bench.connection, signal.SIGINT, cancel)
    with pytest.raises(asyncio.CancelledError):
        await task
    await eventually(is_idle, why="the connection has come back to the pool")
    assert await bench.connection.fetchval(HELD) == 0
    client = Client(pool)
    assert await client.keyed.accept("default") is not None
    await client.close()
    await pool.close()


async def test_a_take_whose_wait_ends_just_when_the_ring_is_granted_does_not_keep_it(bench, another_connection):
    await bench.submit()
    executor, holder, taker = await bench.executor(), await another_connection(), await another_connection()
    await holder.execute(f"SELECT pg_advisory_lock({RING})")
    await taker.execute(ONE_ALARM)
    task = asyncio.ensure_future(runs.take(taker, executor, ["default"], 1, FOUR_ONE))
    await met(holder, bench.connection, signal.SIGALRM, nothing)
    assert len(await task) == 1
    assert await bench.connection.fetchval(HELD) == 0


async def test_no_take_that_runs_into_a_timeout_keeps_the_ring_and_all_others_go_on(bench, another_connection):
    """Timeouts hit at any moment: while the take waits, chooses, writes, and frees the ring."""
    executor = await bench.executor()
    await jobs.submit_many(bench.connection, [NewJob("a", group=f"g{nr % 200}") for nr in range(2000)])
    takers = [await another_connection() for _ in range(4)]
    ended = {"done": 0, "cancelled": 0}

    async def work(taker: asyncpg.Connection) -> None:
        while sum(ended.values()) < 1000 or ended["cancelled"] < 100:  # the machine decides how often a timeout hits
            try:
                await taker.execute(f"BEGIN; SET LOCAL statement_timeout = {random.randint(1, 25)}")
                await runs.take(taker, executor, ["default"], 50, FOUR_ONE)
                ended["done"] += 1
            except DatabaseUnavailable:
                ended["cancelled"] += 1
            except asyncpg.QueryCanceledError:  # the timeout of the transaction before, as that ended
                pass
            while taker.is_in_transaction():
                with contextlib.suppress(asyncpg.QueryCanceledError):  # it meets the end of the transaction too
                    await taker.execute("ROLLBACK")

    await asyncio.gather(*map(work, takers))
    assert await bench.connection.fetchval(HELD) == 0
    assert len(await bench.take(executor, 5)) == 5


@pytest.mark.parametrize(
    ("name", "returned", "cancellations"),
    [("free_ring", "void", 1), ("ring_holder", "SETOF integer", 3)],
    ids=["at the beginning", "at work"],
)
async def test_further_cancellations_that_meet_the_handlers_of_the_first_leave_no_lock_either(  # noqa: PLR0917 - fixtures
    bench, another_connection, database_url, name, returned, cancellations
):
    """The test makes a handler wait at its beginning, or at its work, where the other cancellations meet it."""
    await bench.submit()
    executor, gate = await bench.executor(), await another_connection()
    taker = await asyncpg.connect(
        database_url
    )  # not one of Joex's own connections, which end when a statement is cancelled
    pid = taker.get_server_pid()
    await bench.connection.execute(f"""
        ALTER FUNCTION joex_private.{name} RENAME TO really_{name};
        CREATE FUNCTION joex_private.{name}(p_queue text) RETURNS {returned} LANGUAGE sql VOLATILE AS $$
            SELECT pg_advisory_lock(1), pg_advisory_unlock(1);
            SELECT joex_private.really_{name}(p_queue);
        $$""")
    await gate.execute("SELECT pg_advisory_lock(1)")
    await gate.execute(
        "BEGIN; LOCK TABLE joex_private.task_timeout IN ACCESS EXCLUSIVE MODE"
    )  # the take waits there, with the ring

    waits: set[Any] = set()

    async def waits_for(kind: str) -> bool:
        """Since another moment than in the wait before."""
        query = "SELECT waitstart FROM pg_locks WHERE pid = $1 AND locktype = $2 AND NOT granted"
        since = await bench.connection.fetchval(query, pid, kind)
        is_new = since is not None and since not in waits
        waits.add(since)
        return is_new

    async def cancel_when_it_waits_for(kind: str) -> None:
        await eventually(lambda: waits_for(kind), why=f"the take waits for the {kind}")
        await bench.connection.execute("SELECT pg_cancel_backend($1)", pid)

    async with taker.transaction(isolation="read_committed"):
        try:
            async with taker.transaction():  # a savepoint
                task = asyncio.ensure_future(runs.take(taker, executor, ["default"], 2, FOUR_ONE))
                await cancel_when_it_waits_for("relation")
                for _ in range(cancellations):
                    await cancel_when_it_waits_for("advisory")
                await eventually(lambda: waits_for("advisory"), why="it, or the outer handler, waits again")
                await gate.execute("SELECT pg_advisory_unlock(1)")
                await task
        except DatabaseUnavailable:
            pass
        # The transaction goes on, and so do others.
        assert await bench.connection.fetchval(HELD) == 0
        await gate.execute("COMMIT")
        assert len(await runs.take(taker, executor, ["default"], 1, FOUR_ONE)) == 1
    await taker.close()


async def test_a_session_that_keeps_the_ring_for_ever_stops_no_take_and_no_accept(bench, another_connection, postgres):
    """For example a hung backend leaves the lock with an idle session: the server's log names it."""
    for group in ("a", "b", "c", "d"):
        await bench.submit(group)
    executor, hung = await bench.executor(), await another_connection()
    await hung.execute(f"SELECT pg_advisory_lock({RING})")
    assert len(await bench.take(executor, 2)) == 2
    assert len(await worker_runs.accept(bench.connection, "default", 2, "worker", None)) == 2
    told = f'a take from queue "default" goes on without its ring, which session {hung.get_server_pid()} has held'
    assert postgres.log.count(told) == 2
    await hung.execute(f"SELECT pg_advisory_unlock({RING})")


async def test_an_executor_says_which_session_holds_up_its_takes_until_that_is_over(
    client, database_url, another_connection
):
    app = App()

    @app.task("a")
    async def task(ctx: Context) -> None: ...

    hung = await another_connection()
    async with executor_inside(app, database_url, lease=LONG) as inside:
        await inside.log.wait_for(FellAsleep)
        await hung.execute(f"SELECT pg_advisory_lock({RING})")
        await client.submit("a")
        said = f"session {hung.get_server_pid()} holds the lock of a queue, each take from which is a second late"
        await eventually(lambda: inside.executor.described == f"running; {said}")
        assert inside.executor.ready
        await hung.execute(f"SELECT pg_advisory_unlock({RING})")
        await client.submit("a")
        await eventually(lambda: inside.executor.described == "running")


async def test_an_executor_says_that_a_prepared_transaction_holds_up_its_takes(
    client, database_url, another_connection
):
    app = App()

    @app.task("a")
    async def task(ctx: Context) -> None: ...

    hung = await another_connection()
    async with executor_inside(app, database_url, lease=LONG) as inside:
        await inside.log.wait_for(FellAsleep)
        await hung.execute(f"BEGIN; SELECT pg_advisory_xact_lock({RING}); PREPARE TRANSACTION 'hung'")
        try:
            await client.submit("a")
            said = "a prepared transaction holds the lock of a queue, each take from which is a second late"
            await eventually(lambda: inside.executor.described == f"running; {said}")
        finally:
            await hung.execute("ROLLBACK PREPARED 'hung'")


async def test_a_failing_take_frees_a_ring_that_its_session_has_kept_from_before(bench):
    await bench.submit()
    executor = await bench.executor()
    for _ in range(2):
        await bench.connection.execute(f"SELECT pg_advisory_lock({RING})")
    await bench.connection.execute("SELECT joex_private.end_executor($1, 'left')", executor)
    with pytest.raises(Exception, match="has ended"):
        await bench.take(executor)
    assert await bench.connection.fetchval(HELD) == 0


async def test_a_failing_take_leaves_the_rings_of_other_queues_and_sessions_alone(bench, another_connection):
    other = await another_connection()
    await bench.connection.execute("SELECT pg_advisory_lock(joex_private.ring_lock(), hashtext('mine'))")
    await other.execute(f"SELECT pg_advisory_lock({RING})")
    with pytest.raises(Exception, match="has ended"):
        await bench.take(4711)
    assert await bench.connection.fetchval(HELD) == 2
    await bench.connection.execute("SELECT pg_advisory_unlock_all()")
    await other.execute("SELECT pg_advisory_unlock_all()")


async def test_a_session_that_holds_the_ring_shared_as_well_frees_it(bench):
    await bench.connection.execute(f"SELECT pg_advisory_lock_shared({RING}), pg_advisory_lock({RING})")
    await bench.connection.execute("SELECT joex_private.free_ring('default')")
    assert await bench.connection.fetchval(f"{HELD} AND mode = 'ExclusiveLock'") == 0

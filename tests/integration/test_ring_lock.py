"""The lock of a queue's ring: whatever ends a take, no session keeps it, and one that does stops no other take."""

import asyncio
import random
from typing import Any

import asyncpg
import pytest

from joex import Client, NewJob
from joex.core.counting import CountingScheme
from joex.errors import DatabaseUnavailable
from joex.store import jobs, keyed, runs
from tests.support.waiting import eventually

FOUR_ONE = CountingScheme(4, 1)
RING = "joex.lock_class(3), hashtext('default')"
HELD = """
    SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid::bigint = joex.lock_class(3) AND granted
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
WAITS = "SELECT count(*) FROM pg_locks WHERE pid = $1 AND locktype = 'advisory' AND NOT granted"
RACES = 1000


class Races:
    """A session that holds the ring, and lets it go at about the time at which the take that waits is cancelled."""

    def __init__(self, holder: asyncpg.Connection, observer: asyncpg.Connection) -> None:
        self.holder = holder
        self.observer = observer
        self.ended = {"done": 0, "cancelled": 0}

    async def run(self, taking: Any, cancel: Any, pid: int | None = None) -> None:
        """One race; ``taking`` starts a take, ``cancel`` cancels that task."""
        await self.holder.execute(f"SELECT pg_advisory_lock({RING})")
        task = asyncio.ensure_future(taking())
        waiting = WAITS if pid else WAITS.replace("pid = $1 AND", "")
        await eventually(lambda: self._waits(waiting, pid), why="the take waits for the ring")
        # The two meet, or one comes a little sooner: a client's cancellation takes a connection of its own.
        spin = random.randrange(3000)
        free = asyncio.ensure_future(
            self.holder.execute(f"SELECT count(*) FROM generate_series(1, {spin}); SELECT pg_advisory_unlock({RING})")  # noqa: S608 - a number
        )
        await cancel(task)
        try:
            await task
            self.ended["done"] += 1
        except (DatabaseUnavailable, asyncio.CancelledError):
            self.ended["cancelled"] += 1
        await free

    async def _waits(self, waiting: str, pid: int | None) -> bool:
        return bool(await self.observer.fetchval(waiting, *([pid] if pid else [])))


async def test_no_take_that_is_cancelled_while_it_comes_by_the_ring_keeps_it(bench, another_connection):
    executor, holder, observer = await bench.executor(), await another_connection(), await another_connection()
    taker = await another_connection()
    pid = taker.get_server_pid()
    await jobs.submit_many(bench.connection, [NewJob("a", group=f"g{nr % 50}") for nr in range(500)])
    races = Races(holder, observer)

    async def take() -> None:
        transaction = taker.transaction()
        await transaction.start()
        try:
            await runs.take(taker, executor, ["default"], 5, FOUR_ONE)
        finally:
            await transaction.rollback()

    async def cancel(_: Any) -> None:
        await bench.connection.execute("SELECT pg_cancel_backend($1)", pid)

    for _ in range(RACES):
        await races.run(take, cancel, pid)
        assert await bench.connection.fetchval(HELD) == 0
    assert races.ended["cancelled"] > 0, races.ended
    assert len(await bench.take(executor, 5)) == 5


async def test_no_take_that_runs_into_a_timeout_keeps_the_ring_and_all_others_go_on(bench, another_connection):
    """Timeouts that hit anywhere: while it waits, chooses, writes, and frees the ring."""
    executor = await bench.executor()
    await jobs.submit_many(bench.connection, [NewJob("a", group=f"g{nr % 200}") for nr in range(2000)])
    takers = [await another_connection() for _ in range(4)]
    ended = {"done": 0, "cancelled": 0}

    async def work(taker: asyncpg.Connection) -> None:
        for _ in range(RACES // 4):
            await taker.execute(f"SET statement_timeout = {random.randint(1, 25)}")
            transaction = taker.transaction()
            await transaction.start()
            try:
                await runs.take(taker, executor, ["default"], 50, FOUR_ONE)
                ended["done"] += 1
            except DatabaseUnavailable:
                ended["cancelled"] += 1
            finally:
                await transaction.rollback()

    await asyncio.gather(*map(work, takers))
    assert ended["cancelled"] > 100, ended
    assert await bench.connection.fetchval(HELD) == 0
    assert len(await bench.take(executor, 5)) == 5


async def test_no_accept_that_its_caller_cancels_leaves_the_ring_with_a_connection_of_the_pool(
    client: Client, bench, another_connection
):
    await jobs.submit_many(bench.connection, [NewJob("a") for _ in range(RACES)])
    assert await client.typed.accept("default") is not None
    races = Races(await another_connection(), await another_connection())

    async def cancel(task: Any) -> None:
        task.cancel()

    async def nobody_holds_it() -> bool:
        return await bench.connection.fetchval(HELD) == 0

    for _ in range(RACES // 4):
        await races.run(lambda: client.typed.accept("default"), cancel)
        await eventually(nobody_holds_it, why="the cancelled accept has freed the ring")
    assert races.ended["cancelled"] > 0, races.ended
    assert await client.typed.accept("default") is not None


async def test_a_second_cancellation_that_meets_the_handler_of_the_first_leaves_no_lock_either(
    bench, another_connection
):
    """The handler is made to wait at its beginning, where the second cancellation meets it."""
    await bench.submit()
    executor, taker, gate = await bench.executor(), await another_connection(), await another_connection()
    pid = taker.get_server_pid()
    await bench.connection.execute("""
        ALTER FUNCTION joex.free_ring RENAME TO really_free_ring;
        CREATE FUNCTION joex.free_ring(p_queue text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
            PERFORM pg_advisory_lock(1), pg_advisory_unlock(1);
            PERFORM joex.really_free_ring(p_queue);
        END $$""")
    await gate.execute("SELECT pg_advisory_lock(1)")
    await gate.execute(
        "BEGIN; LOCK TABLE joex.task_timeout IN ACCESS EXCLUSIVE MODE"
    )  # the take waits there, with the ring

    async def waits_for(kind: str) -> bool:
        query = "SELECT count(*) FROM pg_locks WHERE pid = $1 AND locktype = $2 AND NOT granted"
        return bool(await bench.connection.fetchval(query, pid, kind))

    async def cancel_when_it_waits_for(kind: str) -> None:
        await eventually(lambda: waits_for(kind), why=f"the take waits for the {kind}")
        await bench.connection.execute("SELECT pg_cancel_backend($1)", pid)

    async with taker.transaction():
        try:
            async with taker.transaction():  # a savepoint
                task = asyncio.ensure_future(runs.take(taker, executor, ["default"], 2, FOUR_ONE))
                await cancel_when_it_waits_for("relation")
                await cancel_when_it_waits_for("advisory")
                await eventually(lambda: waits_for("advisory"), why="the outer handler waits")
                await gate.execute("SELECT pg_advisory_unlock(1)")
                await task
        except DatabaseUnavailable:
            pass
        # The transaction goes on, and so do others.
        assert await bench.connection.fetchval(HELD) == 0
        await gate.execute("COMMIT")
        assert len(await runs.take(taker, executor, ["default"], 1, FOUR_ONE)) == 1


async def test_a_session_that_keeps_the_ring_for_ever_stops_no_take_and_no_accept(bench, another_connection):
    """A backend that hangs, or whatever else leaves the lock with a session that is idle."""
    for group in ("a", "b", "c", "d"):
        await bench.submit(group)
    executor, hung = await bench.executor(), await another_connection()
    await hung.execute(f"SELECT pg_advisory_lock({RING})")
    assert len(await bench.take(executor, 2)) == 2
    assert len(await keyed.accept(bench.connection, "default", 2, "worker", None)) == 2
    await hung.execute(f"SELECT pg_advisory_unlock({RING})")


async def test_a_failing_take_frees_a_ring_that_its_session_has_kept_from_before(bench):
    await bench.submit()
    executor = await bench.executor()
    for _ in range(2):
        await bench.connection.execute(f"SELECT pg_advisory_lock({RING})")
    await bench.connection.execute("SELECT joex.end_executor($1, 'left', 5)", executor)
    with pytest.raises(Exception, match="has ended"):
        await bench.take(executor)
    assert await bench.connection.fetchval(HELD) == 0


async def test_a_failing_take_leaves_the_rings_of_other_queues_and_sessions_alone(bench, another_connection):
    other = await another_connection()
    await bench.connection.execute("SELECT pg_advisory_lock(joex.lock_class(3), hashtext('mine'))")
    await other.execute(f"SELECT pg_advisory_lock({RING})")
    with pytest.raises(Exception, match="has ended"):
        await bench.take(4711)
    assert await bench.connection.fetchval(HELD) == 2
    await bench.connection.execute("SELECT pg_advisory_unlock_all()")
    await other.execute("SELECT pg_advisory_unlock_all()")

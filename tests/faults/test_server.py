"""PostgreSQL restarts, crashes, ends sessions, refuses statements.

Jobs continue or are given back; none is lost, none runs twice at a time.
"""

import asyncio
import os
import signal
from contextlib import suppress

import asyncpg
import pytest

from joex.core.lease import Beat
from joex.store import executors as store
from tests.support.apps import TROUBLE, AnyClient, Effects
from tests.support.postgres import TestServer
from tests.support.processes import ExecutorProcesses
from tests.support.waiting import PATIENCE, eventually


@pytest.mark.parametrize("mode", ["fast", "immediate"])
async def test_jobs_survive_a_restart_of_the_server(
    mode: str, postgres: TestServer, client: AnyClient, effects: Effects, executors: ExecutorProcesses
) -> None:
    both = await executors.start_all("first", "second", pool_size=3)
    running = [await client.submit(task, {"flag": "go"}) for task in ("hold", "hold.thread", "transaction")]
    for job_id in running:
        await effects.begun(job_id)
    waiting = await client.submit_many([{"task": "transaction", "group": f"g{n % 3}"} for n in range(20)])
    await asyncio.to_thread(postgres.restart, mode)
    await effects.flag("go")
    more = await client.submit_many([{"task": "effect"}] * 20)
    ids = [*running, *waiting, *more]
    assert await effects.all_finished(ids) == {"success": len(ids)}
    assert await effects.overlapping() == []
    committed = await effects.committed()
    assert committed == dict.fromkeys([running[2], *waiting], 1)
    # A restart this short ends no lease: each job that needed no connection has run once.
    assert [len(await effects.of(job_id)) for job_id in running[:2]] == [1, 1]
    assert all(executor.is_alive for executor in both)


@pytest.mark.parametrize("how", ["fast", "immediate", "crash"])
async def test_a_judge_can_tell_each_start_and_crash_of_the_server(
    how: str, postgres: TestServer, database_url: str
) -> None:
    """Behind a pooler its session does not end. (A crash of one session does not change when the server started.)"""
    connection = await asyncpg.connect(database_url)
    before, again = await store.observe(connection), await store.observe(connection)
    assert (before.server, before.mark < again.mark) == (again.server, True)
    if how == "crash":
        os.kill(connection.get_server_pid(), signal.SIGKILL)
        await eventually(connection.is_closed)
    else:
        await connection.close()
        await asyncio.to_thread(postgres.restart, how)

    async def observed() -> Beat | None:
        with suppress(*TROUBLE):
            connection = await asyncpg.connect(database_url)
            try:
                return await store.observe(connection)
            finally:
                await connection.close()
        return None

    after = await eventually(observed, why="the server answers again")
    assert after.server != before.server


async def test_an_executor_that_drains_ends_when_its_database_stays_away_for_longer_than_its_patience(
    postgres: TestServer, client: AnyClient, effects: Effects, executors: ExecutorProcesses
) -> None:
    """It has interrupted its runs, and others may run their jobs when the server is back."""
    executor = await executors.start("one", outage_patience=1)
    held = await client.submit("hold", {"flag": "go"})
    await effects.begun(held)
    await asyncio.to_thread(postgres.stop, "immediate")
    executor.terminate()
    await eventually(lambda: not executor.is_alive, 2 * PATIENCE, why="it ends without its server")
    await asyncio.to_thread(postgres.start)
    assert await executor.exited() == 0
    await effects.flag("go")
    await executors.start("two")
    assert await effects.all_finished([held]) == {"success": 1}
    assert await effects.overlapping() == []


async def test_an_executor_that_starts_without_a_server_says_so_in_one_line_and_exits(
    postgres: TestServer, client: AnyClient, effects: Effects, executors: ExecutorProcesses
) -> None:
    """It has taken no job yet, and its user sees the error. An orchestrator starts it again."""
    await asyncio.to_thread(postgres.stop)
    executor = executors.launch("one")
    await eventually(lambda: not executor.is_alive)
    assert executor.exit_code == 1
    assert executor.log.count("\n") == 1
    assert "the database is not available" in executor.log
    await asyncio.to_thread(postgres.start)
    await executors.start("one")
    assert await effects.all_finished([await client.submit("effect")]) == {"success": 1}


async def test_each_of_an_executors_connections_can_be_ended_at_any_time(
    client: AnyClient, effects: Effects, executors: ExecutorProcesses, connection: asyncpg.Connection
) -> None:
    """Repeatedly, in turn, while it has work."""
    executor = await executors.start("one", pool_size=5)
    held = await client.submit("hold", {"flag": "go"})
    await effects.begun(held)
    ids = []
    for n in range(15):
        ids += await client.submit_many([{"task": "transaction", "group": f"g{n}"}] * 10)
        for name in ("joex one", "joex tasks one", "joex lease %", "joex listener %", "joex %"):
            await connection.execute(
                """
                SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                WHERE application_name LIKE $1 AND application_name NOT LIKE 'joex test%'
                """,
                name,
            )
        assert executor.is_alive
    await effects.flag("go")
    assert await effects.all_finished([held, *ids]) == {"success": len(ids) + 1}
    assert await effects.committed() == dict.fromkeys(ids, 1)
    assert await effects.overlapping() == []
    assert [run["attempt"] for run in await effects.of(held)] == [1]
    assert executor.is_alive


async def test_the_end_of_the_lease_session_alone_costs_no_job(
    client: AnyClient, effects: Effects, executors: ExecutorProcesses, connection: asyncpg.Connection
) -> None:
    """The lock is free for a moment, but the lease has not ended."""
    executor, _ = await executors.start_all("one", "other")
    ids = await client.submit_many([{"task": "hold", "args": {"flag": "go"}}] * 4)
    for job_id in ids:
        await effects.begun(job_id)
    lives = await connection.fetchval("SELECT id FROM joex_private.executor WHERE pid = $1", executor.pid)
    for _ in range(5):
        sessions = await eventually(lambda: _lease_sessions(connection, lives))
        await connection.fetch("SELECT pg_terminate_backend(pid) FROM unnest($1::int[]) pid", sessions)
    await eventually(lambda: _lease_sessions(connection, lives), why="it holds its lock again")
    await effects.flag("go")
    assert await effects.all_finished(ids) == {"success": 4}
    assert await connection.fetchval("SELECT count(*) FROM effects") == 4
    assert await connection.fetchval("SELECT count(*) FROM joex_private.executor") == 2


async def _lease_sessions(connection: asyncpg.Connection, executor: int) -> list[int]:
    rows = await connection.fetch(
        "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND classid = 1785685001 AND objid = $1 AND granted",
        executor,
    )
    return [row[0] for row in rows]


@pytest.mark.parametrize(
    "function",
    ["heartbeat", "check_runs", "has_work", "rescue", "take", "sleep_state", "start_many", "finish_many", "note_many"],
)
async def test_a_statement_that_the_server_refuses_for_a_while_is_tried_again(
    function: str, client: AnyClient, effects: Effects, executors: ExecutorProcesses, connection: asyncpg.Connection
) -> None:
    """With an unexpected error, as from a damaged page, which is no reason to give up running jobs."""
    executor = await executors.start("one", pool_size=4)
    held = [await client.submit(task, {"flag": "go"}) for task in ("hold", "hold.thread")]
    for job_id in held:
        await effects.begun(job_id)
    working = await _break(connection, function)
    ids = await client.submit_many([{"task": task} for task in ("quick", "effect", "log")])
    ids.append(await client.submit("hold", {"flag": "go"}))
    if function == "start_many":  # the starts of short runs are not written
        await eventually(lambda: connection.fetchval("SELECT is_called FROM met"), why=f"{function} was called")
    await effects.flag("go")
    await eventually(lambda: connection.fetchval("SELECT is_called FROM met"), why=f"{function} was called")
    await connection.execute(working)
    assert await effects.all_finished([*held, *ids]) == {"success": 6}
    assert executor.is_alive
    assert [len(await effects.of(job_id)) for job_id in held] == [1, 1]
    if function != "note_many":  # its lines are dropped, and counted
        await eventually(lambda: client.log(ids[2]), why="the job's line is in its log")


async def test_chores_that_take_for_ever_make_no_heartbeat_late_and_keep_no_other_chore_waiting(
    client: AnyClient, effects: Effects, executors: ExecutorProcesses, connection: asyncpg.Connection
) -> None:
    """As with millions of entries that vacuum can't remove, or thousands of dead executors."""
    await executors.start("one")
    job_id = await client.submit("hold", {"flag": "go"})
    await effects.begun(job_id)
    chores = ("check_runs", "has_work", "rescue", "recover_overdue")
    for chore in chores:
        await _replace(connection, chore, "BEGIN PERFORM pg_sleep(600); END")

    async def under_way() -> list[str]:
        rows = await connection.fetch("SELECT query FROM pg_stat_activity WHERE wait_event = 'PgSleep'")
        return [chore for chore in chores if any(f"joex_private.{chore}(" in row["query"] for row in rows)]

    seen = set[str]()

    async def each_had_its_time() -> bool:
        seen.update(await under_way())
        return seen == set(chores)

    await eventually(each_had_its_time, 120, why="each chore was begun, for the one before was given up")
    assert await connection.fetchval("SELECT count(*) FROM joex_private.executor") == 1
    await effects.flag("go")
    assert await effects.all_finished([job_id]) == {"success": 1}
    assert len(await effects.of(job_id)) == 1


async def _break(connection: asyncpg.Connection, function: str) -> str:
    """Make a function of Joex's raise an error; returns the statement that mends it."""
    await connection.execute("CREATE SEQUENCE met")
    error = "BEGIN PERFORM nextval('public.met'); RAISE 'broken' USING ERRCODE = 'XX001'; END"
    return await _replace(connection, function, error)


async def _replace(connection: asyncpg.Connection, function: str, by: str) -> str:
    """Replace the body of a function of Joex's; returns the statement that brings it back."""
    function_of_joex = await connection.fetchrow(
        """
        SELECT pg_get_functiondef(p.oid), l.lanname, p.prosrc FROM pg_proc p JOIN pg_language l ON l.oid = prolang
        WHERE proname = $1 AND pronamespace::regnamespace::text IN ('joex', 'joex_client', 'joex_private')
        """,
        function,
    )
    assert function_of_joex is not None
    working, language, body = map(str, function_of_joex)
    assert language == "plpgsql"
    await connection.execute(working.replace(body, by))
    return working

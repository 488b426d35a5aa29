"""The database is away for a while, for all executors: they go on with their runs.

A witness takes part: an executor with a queue of its own, whose lease is twice that of the others. Its run is exclusive
and does not stop, so it exits when its lease is over. This shows that the leases of the others are over too.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from joex.runtime.lease import EXIT_CODE
from tests.support.apps import TROUBLE, AnyClient, Effects
from tests.support.pgbouncer import PgBouncer
from tests.support.postgres import TestServer
from tests.support.processes import SHORT, ExecutorProcess, ExecutorProcesses
from tests.support.proxy import Proxy
from tests.support.waiting import eventually

_INTERRUPTS = "interrupting all runs"


class Outage:
    """An outage that lasts for longer than the leases of the executors."""

    def __init__(self, server: TestServer, witness: ExecutorProcess) -> None:
        self._server = server
        self._witness = witness

    async def begin(self, how: str = "immediate") -> None:
        """Stop the server in this mode, or kill it."""
        await asyncio.to_thread(self._server.kill if how == "kill" else lambda: self._server.stop(how))

    async def end(self) -> None:
        """Wait until leases are over, and start the server."""
        await eventually(lambda: not self._witness.is_alive, why="the lease of the witness is over")
        assert self._witness.exit_code == EXIT_CODE
        await asyncio.to_thread(self._server.start)


@pytest.fixture
async def outage(postgres: TestServer, client: AnyClient, effects: Effects, executors: ExecutorProcesses) -> Outage:
    """An outage, which has not begun."""
    witness = await executors.start("witness", queues="witness", lease=2 * SHORT)
    job_id = await client.submit("hold.thread.exclusive", {"flag": "never"}, queue="witness")
    await effects.begun(job_id, pid=witness.pid)
    return Outage(postgres, witness)


@pytest.fixture
async def pgbouncer(postgres: TestServer, database_name: str) -> AsyncIterator[str]:
    """The URL of the test's database through PgBouncer, in transaction mode."""
    async with PgBouncer(postgres, sessions=5) as pgbouncer:
        yield pgbouncer.url(database_name)


async def _warnings(client: AnyClient, job_id: UUID) -> list[str]:
    return [line.message for line in await client.log(job_id) if line.level == "warning"]


async def _undisturbed(client: AnyClient, effects: Effects, job_ids: list[Any]) -> None:
    """These jobs have run once, and Joex has counted once."""
    assert await effects.all_finished(job_ids) == {"success": len(job_ids)}
    jobs = [await client.get(job_id) for job_id in job_ids]
    assert [(job.attempt, job.losses, job.failures) for job in jobs] == [(1, 0, 0)] * len(jobs)
    assert [len(await effects.of(job_id)) for job_id in job_ids] == [1] * len(jobs)


@pytest.mark.parametrize("how", ["fast", "immediate", "kill"])
async def test_an_outage_shorter_than_the_patience_interrupts_no_run(
    how: str, client: AnyClient, effects: Effects, executors: ExecutorProcesses, outage: Outage
) -> None:
    both = await executors.start_all("first", "second", pool_size=5, lease=SHORT)
    tasks = ("until.away", "hold", "hold.thread", "hold.thread.polite")
    held = [await client.submit(task, {"flag": "go"}) for task in tasks]
    ending = [await client.submit("until.away") for _ in range(3)]
    for job_id in held + ending:
        await effects.begun(job_id)
    await outage.begin(how)
    await outage.end()
    # What ended during the outage is written though other runs go on.
    await _undisturbed(client, effects, ending)
    for job_id in ending:
        assert (await client.get(job_id)).result == "over"
        # (A server that is just back may take long to write a line: then it comes after the end.)
        assert await eventually(lambda: _warnings(client, job_id), why="its line is written") == ["it is away"]  # noqa: B023 - called at once
    await eventually(lambda: _has_progress(client, held[0], 50, "half"))
    await effects.flag("go")
    await _undisturbed(client, effects, held)
    await effects.all_finished([await client.submit("effect") for _ in range(4)])
    assert await effects.overlapping() == []
    for executor in both:
        assert executor.is_alive
        assert "taking no jobs" in executor.log
        assert _INTERRUPTS not in executor.log
        assert "had lost its job" not in executor.log
    assert await _registrations(client, "first", "second") == 2


async def test_nor_does_it_behind_a_pooler(
    client: AnyClient,
    effects: Effects,
    executors: ExecutorProcesses,
    outage: Outage,
    pgbouncer: str,
) -> None:
    """It answers instead of the server, and after the outage it waits before it connects again."""
    both = await executors.start_all("first", "second", url=pgbouncer, pool_size=2, lease=SHORT)
    held, ending = await client.submit("hold", {"flag": "go"}), await client.submit("until.away")
    for job_id in (held, ending):
        await effects.begun(job_id)
    await outage.begin()
    await outage.end()
    await _undisturbed(client, effects, [ending])
    await effects.flag("go")
    await _undisturbed(client, effects, [held])
    for executor in both:
        assert "taking no jobs" in executor.log
        assert _INTERRUPTS not in executor.log


async def test_an_outage_interrupts_exclusive_runs_alone(
    postgres: TestServer, client: AnyClient, effects: Effects, executors: ExecutorProcesses
) -> None:
    executor = await executors.start("one", lease=SHORT)
    exclusive = await client.submit("hold.exclusive", {"flag": "go"})
    other = await client.submit("hold", {"flag": "go"})
    for job_id in (exclusive, other):
        await effects.begun(job_id)
    await asyncio.to_thread(postgres.stop, "immediate")
    await eventually(lambda: "taking no jobs" in executor.log)
    await asyncio.to_thread(postgres.start)
    await effects.begun(exclusive, runs=2)
    await effects.flag("go")
    assert await effects.all_finished([exclusive]) == {"success": 1}
    await _undisturbed(client, effects, [other])
    assert await effects.overlapping() == []


async def test_an_outage_interrupts_the_cancel_handler_of_an_exclusive_run(
    postgres: TestServer, client: AnyClient, effects: Effects, executors: ExecutorProcesses
) -> None:
    """It waits, maybe for the database: its executor would have to exit."""
    executor = await executors.start("one", lease=SHORT)
    job_id = await client.submit("hold.clean.exclusive", {"flag": "interrupted"})
    await effects.begun(job_id)
    assert await client.cancel(job_id) == "requested"
    await eventually(lambda: effects.of(job_id, "cancelled"), why="the handler has begun")
    await asyncio.to_thread(postgres.stop, "immediate")
    assert effects.ends is not None
    interrupted = effects.ends / "interrupted"
    await eventually(lambda: interrupted.exists() or not executor.is_alive, why="the lease is over")
    await asyncio.to_thread(postgres.start)
    assert await effects.all_finished([job_id]) == {"cancelled": 1}
    assert executor.is_alive


@pytest.mark.parametrize("patience", [0, 1])
async def test_an_outage_longer_than_the_patience_interrupts_all_runs(
    patience: int, postgres: TestServer, client: AnyClient, effects: Effects, executors: ExecutorProcesses
) -> None:
    """They give back the jobs that they can interrupt, and recover without help."""
    both = await executors.start_all("first", "second", pool_size=3, lease=SHORT, outage_patience=patience)
    running = [await client.submit(task, {"flag": "go"}) for task in ("hold", "hold.thread.polite", "transaction")]
    for job_id in running:
        await effects.begun(job_id)
    waiting = await client.submit_many([{"task": "effect"}] * 10)
    await asyncio.to_thread(postgres.stop, "immediate")
    await eventually(lambda: all(_INTERRUPTS in executor.log for executor in both))
    await asyncio.to_thread(postgres.start)
    await effects.flag("go")
    ids = [*running, *waiting]
    assert await effects.all_finished(ids) == {"success": len(ids)}
    assert [len(await effects.of(job_id)) for job_id in running[:2]] == [2, 2]
    assert await effects.overlapping() == []
    assert await effects.committed() == {running[2]: 1}
    assert all(executor.is_alive for executor in both)


async def test_an_executor_exits_where_a_task_can_not_be_interrupted_when_its_patience_is_over(
    postgres: TestServer, client: AnyClient, effects: Effects, executors: ExecutorProcesses
) -> None:
    executor = await executors.start("one", lease=SHORT, outage_patience=1)
    job_id = await client.submit("hold.thread", {"flag": "go"})
    await effects.begun(job_id)
    await asyncio.to_thread(postgres.stop, "immediate")
    await eventually(lambda: not executor.is_alive)
    await asyncio.to_thread(postgres.start)
    assert await executor.exited() == EXIT_CODE
    assert _INTERRUPTS in executor.log
    await effects.flag("go")
    await executors.start("another")
    assert await effects.all_finished([job_id]) == {"success": 1}
    assert await effects.overlapping() == []


async def test_an_executor_that_is_killed_during_an_outage_is_noticed_after_it_and_no_other_is(
    client: AnyClient, effects: Effects, executors: ExecutorProcesses, outage: Outage
) -> None:
    all_three = await executors.start_all("first", "second", "third", pool_size=1, lease=SHORT)
    ids = await client.submit_many([{"task": "hold", "args": {"flag": "go"}}] * 3)
    runs = {(await effects.begun(job_id))["pid"]: job_id for job_id in ids}
    victim = all_three[0]
    others = [job_id for pid, job_id in runs.items() if pid != victim.pid]
    await outage.begin()
    os.kill(victim.pid, signal.SIGKILL)
    await eventually(lambda: not victim.is_alive)
    await outage.end()
    await victim.exited()
    free = await executors.start("free", pool_size=1)
    await effects.begun(runs[victim.pid], pid=free.pid)
    await effects.flag("go")
    assert await effects.all_finished([runs[victim.pid]]) == {"success": 1}
    await _undisturbed(client, effects, others)
    assert await effects.overlapping() == []


async def test_a_crash_of_a_single_session_which_ends_all_others_interrupts_no_run(
    connection: asyncpg.Connection, client: AnyClient, effects: Effects, executors: ExecutorProcesses
) -> None:
    """The server begins anew, and pg_postmaster_start_time does not show it."""
    both = await executors.start_all("first", "second", lease=SHORT)
    ids = [await client.submit(task, {"flag": "go"}) for task in ("hold", "hold.thread")]
    for job_id in ids:
        await effects.begun(job_id)
    other = await asyncpg.connect(effects.url)
    os.kill(connection.get_server_pid(), signal.SIGKILL)
    await eventually(other.is_closed)  # until then the server may take new sessions, because it knows of no crash
    await eventually(lambda: _answers(effects.url), why="the server answers again")
    await _renew(effects, both)
    await effects.flag("go")
    await _undisturbed(client, effects, ids)
    assert await _registrations(client, "first", "second") == 2


async def test_an_executor_that_drains_during_an_outage_writes_the_ends_after_it(
    client: AnyClient, effects: Effects, executors: ExecutorProcesses, outage: Outage
) -> None:
    executor = await executors.start("one", lease=SHORT)
    ids = [await client.submit("until.away"), await client.submit("hold", {"flag": "go"})]
    for job_id in ids:
        await effects.begun(job_id)
    await outage.begin()
    executor.terminate()
    await outage.end()
    await effects.flag("go")
    await _undisturbed(client, effects, ids)
    assert await executor.exited() == 0


async def _has_progress(client: AnyClient, job_id: UUID, percent: int, message: str) -> bool:
    job = await client.get(job_id)
    return bool((job.progress, job.progress_message) == (percent, message))


async def _answers(url: str) -> bool:
    try:
        connection = await asyncpg.connect(url)
    except TROUBLE:
        return False
    await connection.close()
    return True


async def _registrations(client: AnyClient, *app_ids: str) -> int:
    async with client.acquire() as connection:
        found: int = await connection.fetchval(
            "SELECT count(*) FROM joex_private.executor WHERE app_id = ANY ($1)", app_ids
        )
        return found


async def _renew(effects: Effects, processes: list[ExecutorProcess]) -> None:
    """Wait until these have renewed their leases by five beats: each has observed the other for longer than a lease."""
    connection = await asyncpg.connect(effects.url)
    seen: dict[int, set[int]] = {process.pid: set() for process in processes}

    async def enough() -> bool:
        rows = await connection.fetch(
            "SELECT e.pid, l.beat FROM joex_private.lease l JOIN joex_private.executor e ON e.id = l.executor_id"
        )
        for row in rows:
            seen[row["pid"]].add(row["beat"])
        return all(len(beats) > 5 for beats in seen.values())

    try:
        await eventually(enough, why="the executors renew their leases")
    finally:
        await connection.close()


async def test_an_executor_that_drains_while_the_database_is_away_says_so_when_it_is_back(
    client: AnyClient, effects: Effects, executors: ExecutorProcesses, proxy: Proxy, connection: asyncpg.Connection
) -> None:
    """Until then spare executors leave jobs to it, because it has a free slot."""
    executor = await executors.start("one", url=proxy.url)
    job_id = await client.submit("hold", {"flag": "go"})
    await effects.begun(job_id)
    await proxy.refuse()
    await proxy.cut()
    executor.terminate()
    await eventually(lambda: "draining" in executor.log)
    await proxy.accept()
    await eventually(lambda: connection.fetchval("SELECT draining FROM joex_private.executor WHERE app_id = 'one'"))
    await effects.flag("go")
    assert await effects.all_finished([job_id]) == {"success": 1}

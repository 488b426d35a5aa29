"""What keeps and what ends the lease of an executor; and after its end the executor runs no job."""

import os
import signal
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from joex.runtime.lease import EXIT_CODE
from joex.store import pools, stats
from tests.support.apps import AnyClient, Effects
from tests.support.clock import make_settable, step
from tests.support.processes import SHORT, ExecutorProcess, ExecutorProcesses
from tests.support.waiting import eventually


async def test_a_job_that_takes_longer_than_several_leases_stays_with_its_executor(
    client: AnyClient, effects: Effects, executors: ExecutorProcesses
) -> None:
    await executors.start_all("first", "second", lease=SHORT)
    ids = [await client.submit(task, {"flag": "go"}) for task in ("hold", "hold.thread")]
    for job_id in ids:
        await effects.begun(job_id)
        await _runs_for(client, job_id, leases=3)
    await effects.flag("go")
    assert await effects.all_finished(ids) == {"success": 2}
    for job_id in ids:
        assert len(await effects.of(job_id)) == 1
        assert (await client.get(job_id)).losses == 0


async def test_a_task_that_blocks_the_loop_for_longer_than_the_lease_does_not_end_it(
    client: AnyClient, effects: Effects, executors: ExecutorProcesses, connection: asyncpg.Connection
) -> None:
    """Two such executors: each would take the other's job if it declared it dead."""
    first, second = await executors.start_all("first", "second", pool_size=1, lease=SHORT)
    ids = await client.submit_many([{"task": "hold.loop", "args": {"flag": "go"}}] * 2)
    for job_id in ids:
        await effects.begun(job_id)
        await _runs_for(client, job_id, leases=3)
    await effects.flag("go")
    assert await effects.all_finished(ids) == {"success": 2}
    assert [len(await effects.of(job_id)) for job_id in ids] == [1, 1]
    assert await connection.fetchval("SELECT count(*) FROM joex_private.executor") == 2
    assert first.is_alive
    assert second.is_alive


async def test_no_job_is_left_to_an_executor_whose_loop_is_blocked(
    client: AnyClient, effects: Effects, executors: ExecutorProcesses, connection: asyncpg.Connection
) -> None:
    """Its heartbeats go on, and it has a free slot; the other one is spare."""
    asleep = "SELECT count(*) = 2 FROM joex_private.asleep"
    await executors.start_all("blocked", "spare")
    await eventually(lambda: connection.fetchval(asleep))
    assert await pools.mark_spare(connection, "spare", spare=True)
    blocking = await client.submit("hold.loop", {"flag": "go"})
    await effects.begun(blocking)
    waiting = await client.submit("effect")
    assert await effects.all_finished([waiting]) == {"success": 1}
    assert [(await client.get(job_id)).app_id for job_id in (blocking, waiting)] == ["blocked", "spare"]
    await effects.flag("go")
    await eventually(lambda: connection.fetchval(asleep), why="submissions wake it again")


async def test_a_paused_executor_loses_its_jobs_and_does_not_finish_them_when_it_goes_on(
    client: AnyClient, effects: Effects, executors: ExecutorProcesses
) -> None:
    """Its session still exists, so other executors wait for several leases before they take its jobs."""
    victim = await executors.start("victim", lease=SHORT)
    job_id = await client.submit("transaction", {"flag": "go"})
    await effects.begun(job_id, pid=victim.pid)
    victim.pause()
    other = await executors.start("other")
    await effects.begun(job_id, pid=other.pid)
    victim.resume()
    # It finds that it was declared dead, rolls back, and starts over.
    await eventually(lambda: _is_another(effects, victim))
    await effects.flag("go")
    assert await effects.all_finished([job_id]) == {"success": 1}
    assert await effects.committed() == {job_id: 1}
    assert (await client.get(job_id)).app_id == "other"
    assert victim.is_alive
    after = await client.submit("hold", {"flag": "after"})
    await effects.begun(after)


async def test_an_executor_that_was_paused_before_its_commit_can_not_commit_when_it_goes_on(
    client: AnyClient, effects: Effects, executors: ExecutorProcesses, connection: asyncpg.Connection
) -> None:
    """It is paused just before the end in its transaction; meanwhile another executor runs the whole job."""
    victim = await executors.start("victim", lease=SHORT)
    job_id = await client.submit("transaction.thread", {"flag": "go"})
    await effects.begun(job_id, pid=victim.pid)
    victim.pause()
    await _ends_its_lease(connection, victim)
    other = await executors.start("other")
    await effects.begun(job_id, pid=other.pid)
    await effects.flag("go")
    assert await effects.all_finished([job_id]) == {"success": 1}
    victim.resume()
    # Its code runs in a thread, and continues until joex.finish answers worker_conflict, or the process ends.
    await eventually(lambda: _is_over(effects, job_id, victim))
    assert await effects.committed() == {job_id: 1}
    job = await client.get(job_id)
    assert (job.state, job.app_id) == ("success", "other")


@pytest.mark.parametrize("task", ["hold.thread", "hold.stubborn", "hold.loop"])
async def test_an_executor_that_was_declared_dead_exits_where_a_task_can_not_be_interrupted(
    task: str, client: AnyClient, effects: Effects, executors: ExecutorProcesses, connection: asyncpg.Connection
) -> None:
    """The answer to its next heartbeat says so. The same task may block its loop."""
    victim = await executors.start("victim", pool_size=1)
    job_id = await client.submit(task, {"flag": "go"})
    await effects.begun(job_id, pid=victim.pid)
    await connection.execute(
        "SELECT joex_private.end_executor(id, 'dead') FROM joex_private.executor WHERE pid = $1", victim.pid
    )
    assert await victim.exited() == EXIT_CODE
    assert "does not react" in victim.log or "did not react" in victim.log
    await effects.flag("go")
    await executors.start("other")
    assert await effects.all_finished([job_id]) == {"success": 1}
    assert (await client.get(job_id)).app_id == "other"


async def test_a_paused_executor_exits_as_it_goes_on_where_a_task_can_not_be_interrupted(
    client: AnyClient, effects: Effects, executors: ExecutorProcesses, connection: asyncpg.Connection
) -> None:
    victim = await executors.start("victim", lease=SHORT)
    job_id = await client.submit("hold.thread", {"flag": "go"})
    await effects.begun(job_id, pid=victim.pid)
    victim.pause()
    await _ends_its_lease(connection, victim)
    other = await executors.start("other")
    await effects.begun(job_id, pid=other.pid)
    victim.resume()
    assert await victim.exited() == EXIT_CODE
    await effects.flag("go")
    assert await effects.all_finished([job_id]) == {"success": 1}
    assert (await client.get(job_id)).app_id == "other"


async def test_code_in_a_thread_that_looks_whether_it_should_end_saves_its_executor(
    client: AnyClient, effects: Effects, executors: ExecutorProcesses, connection: asyncpg.Connection
) -> None:
    victim = await executors.start("victim", lease=SHORT)
    job_id = await client.submit("hold.thread.polite", {"flag": "go"})
    await effects.begun(job_id, pid=victim.pid)
    victim.pause()
    await _ends_its_lease(connection, victim)
    other = await executors.start("other")
    await effects.begun(job_id, pid=other.pid)
    victim.resume()
    await eventually(lambda: _is_another(effects, victim))
    await effects.flag("go")
    assert await effects.all_finished([job_id]) == {"success": 1}
    assert victim.is_alive
    assert (await client.get(job_id)).app_id == "other"


async def test_an_executor_whose_code_holds_pythons_lock_is_ended_before_another_one_runs_its_job(
    client: AnyClient, effects: Effects, executors: ExecutorProcesses
) -> None:
    """Its own threads are blocked, so a separate process ends it, and logs which code held the lock."""
    victim = await executors.start("victim", pool_size=1, lease=2)
    job_id = await client.submit("hold.lock")
    await effects.begun(job_id, pid=victim.pid)
    other = await executors.start("other")
    await effects.begun(job_id, pid=other.pid)
    assert not victim.is_alive
    assert await victim.exited() == signal.SIGUSR2
    assert "has held Python's lock" in victim.log
    assert "in hold_lock" in victim.log


async def test_the_watchdog_of_an_executor_is_replaced_when_it_dies_and_goes_when_the_executor_does(
    executors: ExecutorProcesses,
) -> None:
    executor = await executors.start("one")
    [first] = await eventually(lambda: _children(executor.pid))
    os.kill(first, signal.SIGKILL)
    [second] = await eventually(lambda: [pid for pid in _children(executor.pid) if pid != first])
    await executor.kill()
    await eventually(lambda: not Path(f"/proc/{second}").exists())


async def test_an_executor_that_leaves_in_order_leaves_no_watchdog_behind(executors: ExecutorProcesses) -> None:
    """Not even a zombie: in a container there may be no process that reaps it."""
    executor = await executors.start("one")
    [watchdog] = await eventually(lambda: _children(executor.pid))
    executor.terminate()
    assert await executor.exited() == 0
    assert not _is_there(watchdog)


async def test_a_pause_shorter_than_the_lease_costs_nothing(
    client: AnyClient, effects: Effects, executors: ExecutorProcesses, connection: asyncpg.Connection
) -> None:
    executor = await executors.start("one", lease="30s")
    await executors.start("other", lease="30s")
    ids = await client.submit_many([{"task": "hold", "args": {"flag": "go"}}] * 4)
    for job_id in ids:
        await effects.begun(job_id)
    for _ in range(20):
        executor.pause()
        await connection.execute("SELECT 1")
        executor.resume()
    await effects.flag("go")
    assert await effects.all_finished(ids) == {"success": 4}
    assert await connection.fetchval("SELECT count(*) FROM effects") == 4
    assert await connection.fetchval("SELECT count(*) FROM joex_private.executor") == 2


async def test_an_executor_with_a_lost_and_a_new_run_of_a_job_ends_the_lost_one_alone(
    client: AnyClient, effects: Effects, executors: ExecutorProcesses, connection: asyncpg.Connection
) -> None:
    """Its first run did not report in time, and its code does not stop. The new run may be in the same executor."""
    executor = await executors.start("one", lease=SHORT)
    job_id = await client.submit("hold.thread", {"flag": "go"})
    await effects.begun(job_id)
    await connection.execute(
        "UPDATE joex_private.job SET overdue_at = clock_timestamp() WHERE id = $1 AND executor_id IS NOT NULL", job_id
    )
    await effects.begun(job_id, runs=2, pid=executor.pid)
    await _renews(connection, executor, 3)  # it asks the database about its runs with each heartbeat
    await effects.flag("go")
    assert await effects.all_finished([job_id]) == {"success": 1}
    await eventually(lambda: "had lost its job" in executor.log, why="the end of the first run is refused")
    assert [(await client.get(job_id)).losses, len(await effects.of(job_id))] == [1, 2]


async def test_a_run_whose_timeout_has_ended_keeps_a_slot_of_its_group_until_its_thread_is_over(
    client: AnyClient, effects: Effects, executors: ExecutorProcesses, connection: asyncpg.Connection
) -> None:
    executor = await executors.start("one", lease=SHORT)
    await stats.set_group(connection, "acme", "default", max_running=1)
    job_id = await client.submit("hold.thread", {"flag": "go"}, group="acme")
    await effects.begun(job_id)
    await connection.execute("UPDATE joex_private.job SET overdue_at = clock_timestamp() WHERE id = $1", job_id)

    async def put_back() -> bool:
        return bool((await client.get(job_id)).losses)

    await eventually(put_back)
    await _renews(connection, executor, 3)  # it says with each heartbeat which runs it has
    assert await effects.all_finished([await client.submit("effect", group="zoo")]) == {"success": 1}
    assert ((await client.get(job_id)).state, len(await effects.of(job_id))) == ("waiting", 1)
    await effects.flag("go")
    assert await effects.all_finished([job_id]) == {"success": 1}
    assert len(await effects.of(job_id)) == 2


async def test_a_database_clock_that_is_set_forward_or_back_ends_no_living_executor(
    client: AnyClient, effects: Effects, executors: ExecutorProcesses, connection: asyncpg.Connection
) -> None:
    """Each has observed the others for five leases, and could end them although their sessions exist."""
    await make_settable(connection)
    all_three = await executors.start_all("first", "second", "third", pool_size=1, lease=SHORT)
    ids = await client.submit_many([{"task": "hold", "args": {"flag": "go"}}] * 3)
    for job_id in ids:
        await effects.begun(job_id)
        await _runs_for(client, job_id, leases=6)
    for seconds in (-1, -3, 31, -40, 3600):
        await step(connection, seconds)
        for process in all_three:
            await _renews(connection, process, times=4)
    await effects.flag("go")
    assert await effects.all_finished(ids) == {"success": 3}
    assert [len(await effects.of(job_id)) for job_id in ids] == [1] * 3
    assert await connection.fetchval("SELECT count(*) FROM joex_private.executor") == 3


async def test_a_session_that_notifications_have_jammed_ends_no_lease(
    client: AnyClient, effects: Effects, executors: ExecutorProcesses, connection: asyncpg.Connection
) -> None:
    """Any role that can connect can flood the sessions that listen. Here they stand still; jobs are taken and end."""
    started = await executors.start_all("first", "second", lease=SHORT)
    held = await client.submit("hold", {"flag": "go"})
    await effects.begun(held)
    jammed = await connection.fetch(
        "SELECT pid FROM pg_stat_activity WHERE application_name ~ '^joex listener' AND datname = current_database()"
    )
    assert len(jammed) == 2
    try:
        for (pid,) in jammed:
            os.kill(pid, signal.SIGSTOP)
        await _runs_for(client, held, leases=3)
        assert await effects.all_finished([await client.submit("effect") for _ in range(20)]) == {"success": 20}
    finally:
        for (pid,) in jammed:
            os.kill(pid, signal.SIGCONT)
    await effects.flag("go")
    assert await effects.all_finished([held]) == {"success": 1}
    assert (await client.get(held)).losses == 0
    assert len(await effects.of(held)) == 1
    assert await connection.fetchval("SELECT count(*) FROM joex_private.executor") == 2
    assert not [executor.log for executor in started if "the lease could not be renewed in time" in executor.log]


async def test_an_executor_whose_lease_is_missing_starts_over_and_runs_its_jobs_again(
    client: AnyClient, effects: Effects, executors: ExecutorProcesses, connection: asyncpg.Connection
) -> None:
    """For example, an administrator deleted the row. The executor is its own successor; there is no other."""
    executor = await executors.start("one", lease=SHORT)
    job_id = await client.submit("hold", {"flag": "go"})
    await effects.begun(job_id)
    await connection.execute("DELETE FROM joex_private.lease")
    await eventually(
        lambda: connection.fetchval("SELECT count(*) = 2 FROM joex_private.executor"), why="it has started over"
    )
    await effects.flag("go")
    assert await effects.all_finished([job_id]) == {"success": 1}
    assert len(await effects.of(job_id)) == 2
    assert executor.is_alive


async def test_a_database_clock_that_is_set_back_keeps_no_dead_executor_alive(
    client: AnyClient, effects: Effects, executors: ExecutorProcesses, connection: asyncpg.Connection
) -> None:
    await make_settable(connection)
    victim = await executors.start("victim")
    job_id = await client.submit("hold", {"flag": "go"})
    await effects.begun(job_id, pid=victim.pid)
    other = await executors.start("other")
    await _renews(connection, other, times=4)
    await victim.kill()
    await step(connection, -3600)
    await effects.begun(job_id, pid=other.pid)
    await effects.flag("go")
    assert await effects.all_finished([job_id]) == {"success": 1}


async def _renews(connection: asyncpg.Connection, process: ExecutorProcess, times: int) -> None:
    """Wait until a process has renewed its lease this many times."""
    seen = set()

    async def enough() -> bool:
        seen.add(
            await connection.fetchval(
                "SELECT heartbeat_at FROM joex_private.lease JOIN joex_private.executor e ON e.id = executor_id "
                "WHERE e.pid = $1",
                process.pid,
            )
        )
        return len(seen) > times

    await eventually(enough, why=f"{process.app_id} renews its lease {times} times")


async def _runs_for(client: AnyClient, job_id: UUID, leases: int) -> None:
    """Wait until a job has been running for this many leases of its executor."""

    async def long_enough() -> Any:
        async with client.acquire() as connection:
            return await connection.fetchval(
                """
                SELECT clock_timestamp() - j.scheduled_at > e.lease * $2
                FROM joex_private.job j JOIN joex_private.executor e ON e.id = j.executor_id WHERE j.id = $1
                """,
                job_id,
                leases,
            )

    await eventually(long_enough, why=f"job {job_id} runs for {leases} leases")


async def _ends_its_lease(connection: asyncpg.Connection, victim: ExecutorProcess) -> None:
    """The session of a paused executor ends, as if its host were lost: others need not wait for several leases."""
    await connection.fetch(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'joex lease ' || $1",
        str(await connection.fetchval("SELECT id FROM joex_private.executor WHERE pid = $1", victim.pid)),
    )


def _is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def _children(pid: int) -> list[int]:
    return [
        int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]


async def _is_another(effects: Effects, process: ExecutorProcess) -> bool:
    """Whether a process has registered again."""
    return bool(await effects.executor_of(process.pid))


async def _is_over(effects: Effects, job_id: UUID, process: ExecutorProcess) -> bool:
    if not process.is_alive:
        await effects.end_of(process.pid)
    return all(run["ended"] for run in await effects.of(job_id) if run["pid"] == process.pid)

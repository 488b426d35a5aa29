"""Two executors are started with one app-id: never do both take jobs."""

import asyncio
from typing import Any

import asyncpg

from tests.support.apps import AnyClient, Effects
from tests.support.processes import SHORT, ExecutorProcess, ExecutorProcesses
from tests.support.waiting import eventually


async def test_the_second_of_two_waits_takes_nothing_and_takes_over_when_the_first_drains(
    client: AnyClient, effects: Effects, executors: ExecutorProcesses, connection: asyncpg.Connection
) -> None:
    first = await executors.start("one", pool_size=1, lease=SHORT)
    running = await client.submit("hold", {"flag": "go"})
    await effects.begun(running, pid=first.pid)
    second = executors.launch("one", pool_size=1)
    await eventually(lambda: "this app-id is alive" in second.log, why="it says what it waits for")
    waiting = await client.submit("effect")
    await _leases_pass(connection, 2)
    assert await effects.of(waiting) == []
    assert await connection.fetchval("SELECT count(*) FROM joex_private.executor") == 1
    first.terminate()
    await executors.registered(second)
    await effects.begun(waiting, pid=second.pid)
    assert len(await effects.of(running)) == 1, "the first one goes on with its job"
    await effects.flag("go")
    assert await first.exited() == 0
    assert await effects.all_finished([running, waiting]) == {"success": 2}
    assert [(run["pid"], run["attempt"]) for run in await effects.of(running)] == [(first.pid, 1)]


async def test_the_second_of_two_takes_over_when_the_first_is_killed(
    client: AnyClient, effects: Effects, executors: ExecutorProcesses
) -> None:
    first = await executors.start("one")
    job_id = await client.submit("hold", {"flag": "go"})
    await effects.begun(job_id)
    second = executors.launch("one")
    await first.kill()
    await effects.begun(job_id, pid=second.pid)
    await effects.flag("go")
    assert await effects.all_finished([job_id]) == {"success": 1}
    assert await effects.overlapping() == []


async def test_of_two_that_start_at_the_same_moment_one_runs(
    client: AnyClient, effects: Effects, executors: ExecutorProcesses, connection: asyncpg.Connection
) -> None:
    both = [executors.launch("one") for _ in range(2)]
    ids = await client.submit_many([{"task": "effect", "group": f"g{n % 3}"} for n in range(50)])
    assert await effects.all_finished(ids) == {"success": 50}
    assert await connection.fetchval("SELECT count(*) FROM joex_private.executor") == 1
    pids = {run["pid"] for job_id in ids for run in await effects.of(job_id)}
    assert len(pids) == 1
    one = next(process for process in both if process.pid in pids)
    other = next(process for process in both if process.pid not in pids)
    one.terminate()
    assert await one.exited() == 0
    assert await executors.registered(other)


async def test_one_that_waits_for_its_app_id_leaves_when_it_is_asked_to(
    effects: Effects, executors: ExecutorProcesses
) -> None:
    await executors.start("one")
    second = executors.launch("one")
    await eventually(lambda: "this app-id is alive" in second.log)
    second.terminate()
    assert await second.exited() == 0


async def test_ever_new_executors_of_one_app_id_never_take_jobs_at_the_same_time(
    client: AnyClient, effects: Effects, executors: ExecutorProcesses, connection: asyncpg.Connection
) -> None:
    """The test starts four, and kills or drains the one at work, as in a botched rollout (one that drains goes on)."""
    waiting = [executors.launch("one", pool_size=2) for _ in range(4)]
    ids = await client.submit_many([{"task": "effect", "group": f"g{n % 3}"} for n in range(300)])
    for do in ("kill", "terminate", "kill"):
        at_work: ExecutorProcess = await eventually(lambda: _registered(effects, waiting))
        waiting.remove(at_work)
        if do == "kill":
            await at_work.kill()
        else:
            at_work.terminate()
    assert await effects.all_finished(ids) == {"success": 300}
    assert await effects.overlapping() == []
    overlapping_lives = await connection.fetchval("""
        SELECT count(*) FROM joex_private.executor a JOIN joex_private.executor b ON a.started_at < b.started_at
        WHERE b.started_at < coalesce(a.left_at, 'infinity') AND a.ending IS DISTINCT FROM 'left'
    """)
    assert overlapping_lives == 0


async def _registered(effects: Effects, processes: list[ExecutorProcess]) -> ExecutorProcess | None:
    ids = await asyncio.gather(*(effects.executor_of(process.pid) for process in processes))
    return next((process for process, found in zip(processes, ids, strict=True) if found), None)


async def _leases_pass(connection: asyncpg.Connection, leases: int) -> None:
    """Wait until the one executor has renewed its lease for this many leases."""
    since = await connection.fetchval("SELECT heartbeat_at FROM joex.executors")

    async def passed() -> Any:
        return await connection.fetchval(
            """
            SELECT heartbeat_at > $1::timestamptz + e.lease * $2::int
            FROM joex_private.lease JOIN joex_private.executor e ON e.id = executor_id
            """,
            since,
            leases,
        )

    await eventually(passed, why=f"{leases} leases pass")

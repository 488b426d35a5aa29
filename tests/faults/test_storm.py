"""All at once: work, kills, restarts."""

import asyncio

import asyncpg
import pytest

from tests.support.apps import AnyClient, Effects
from tests.support.postgres import TestServer
from tests.support.processes import ExecutorProcess, ExecutorProcesses
from tests.support.waiting import eventually

pytestmark = [pytest.mark.heavy, pytest.mark.soak]

_JOBS = 2000


async def test_each_of_two_thousand_jobs_succeeds_once_while_executors_are_killed_and_restarted(
    client: AnyClient, effects: Effects, executors: ExecutorProcesses, connection: asyncpg.Connection
) -> None:
    alive = {name: executors.launch(name, pool_size=5, most_losses=1000) for name in ("one", "two", "three")}
    ids = await client.submit_many([{"task": "transaction", "group": f"g{n % 10}"} for n in range(_JOBS)])
    for step in range(1, 11):
        # Each kill at another tenth of the work, and in the middle of a transaction.
        await _finished(connection, _JOBS * step // 11)
        ids.append(await client.submit("transaction", {"flag": f"step {step}"}, group="held"))
        run = await effects.begun(ids[-1])
        name = next(name for name, executor in alive.items() if executor.pid == run["pid"])
        await alive[name].kill()
        alive[name] = executors.launch(name, pool_size=5, most_losses=1000)
        await effects.flag(f"step {step}")
    assert await effects.all_finished(ids) == {"success": len(ids)}
    assert await effects.committed() == dict.fromkeys(ids, 1)
    assert await effects.overlapping() == []
    assert await connection.fetchval("SELECT sum(failures) FROM joex_private.job") == 0


async def test_each_job_succeeds_once_while_the_server_crashes_and_executors_are_killed(
    client: AnyClient, effects: Effects, executors: ExecutorProcesses, postgres: TestServer
) -> None:
    alive = {name: executors.launch(name, pool_size=5, most_losses=1000) for name in ("one", "two", "three")}
    ids = await client.submit_many([{"task": "transaction", "group": f"g{n % 10}"} for n in range(_JOBS // 4)])
    for step, name in enumerate(alive, start=1):
        await _committed(effects, len(ids) * step // 5)
        await asyncio.gather(asyncio.to_thread(postgres.restart, "immediate"), alive[name].kill())
        alive[name] = executors.launch(name, pool_size=5, most_losses=1000)
        await _start_again(executors, alive, name)
    assert await effects.all_finished(ids) == {"success": len(ids)}
    assert await effects.committed() == dict.fromkeys(ids, 1)
    assert await effects.overlapping() == []


async def _finished(connection: asyncpg.Connection, enough: int) -> None:
    query = "SELECT count(*) >= $1 FROM joex_private.job WHERE finished_at IS NOT NULL"
    await eventually(lambda: connection.fetchval(query, enough), why=f"{enough} jobs are finished")


async def _committed(effects: Effects, enough: int) -> None:
    async def committed() -> bool:
        return len(await effects.committed()) >= enough

    await eventually(committed, why=f"{enough} transactions are committed")


async def _start_again(executors: ExecutorProcesses, alive: dict[str, ExecutorProcess], name: str) -> None:
    """Restart executors as an orchestrator does: an executor that meets a server that is still starting exits."""

    async def is_registered() -> bool:
        if not alive[name].is_alive:
            alive[name] = executors.launch(name, pool_size=5, most_losses=1000)
        return await executors.is_registered(alive[name])

    await eventually(is_registered, why=f"{name} is registered")

"""An executor is killed (kill -9) in each phase of a job: nothing is lost, nothing is committed twice."""

import itertools
from functools import partial
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from tests.support.apps import AnyClient, Effects
from tests.support.locks import HAS_SKIPPED_AN_END
from tests.support.processes import SHORT, ExecutorProcess, ExecutorProcesses
from tests.support.waiting import eventually


async def _state(client: AnyClient, job_id: UUID, state: str) -> Any:
    async def found() -> Any:
        job = await client.get(job_id)
        return job if job.state == state else None

    return await eventually(found, why=f"job {job_id} is {state}")


@pytest.mark.parametrize("task", ["hold", "hold.thread"])
async def test_a_job_that_ran_in_a_killed_executor_runs_again_in_another_one(
    task: str, client: AnyClient, effects: Effects, executors: ExecutorProcesses
) -> None:
    first, second = await executors.start_all("first", "second", pool_size=1, lease=SHORT)
    job_id = await client.submit(task, {"flag": "go"})
    run = await effects.begun(job_id)
    victim, other = (first, second) if run["pid"] == first.pid else (second, first)
    await victim.kill()
    await effects.begun(job_id, pid=other.pid)
    await effects.flag("go")
    assert await effects.all_finished([job_id]) == {"success": 1}
    job = await client.get(job_id)
    # The killed run was marked as running, so it counts as an attempt, but not as a failure.
    assert (job.losses, job.failures, job.app_id) == (1, 0, other.app_id)
    assert job.attempt in (1, 2)
    assert await effects.overlapping() == []


async def test_a_job_that_was_taken_but_had_not_started_is_not_lost(
    client: AnyClient, effects: Effects, executors: ExecutorProcesses, connection: asyncpg.Connection
) -> None:
    """The executor's loop is blocked by another job, so that the job can't start."""
    executor = await executors.start("one", pool_size=2, lease=SHORT)
    async with connection.transaction():  # both are taken at once
        blocking = await client.submit("hold.loop", {"flag": "go"}, priority="high", connection=connection)
        job_id = await client.submit("effect", connection=connection)
    await effects.begun(blocking)
    job = await _state(client, job_id, "scheduled")
    assert (job.app_id, job.attempt) == ("one", 0)
    await executor.kill()
    await effects.flag("go")
    await executors.start("another", pool_size=2)
    assert await effects.all_finished([blocking, job_id]) == {"success": 2}
    assert len(await effects.of(job_id)) == 1
    assert await effects.overlapping() == []


async def test_a_job_whose_end_could_not_be_written_before_the_kill_runs_again(
    client: AnyClient, effects: Effects, executors: ExecutorProcesses, connection: asyncpg.Connection
) -> None:
    """Its code has ended; a lock on the row blocks the write of the end, and also meets the rescue."""
    executor = await executors.start("one")
    job_id = await client.submit("hold", {"flag": "go"})
    await effects.begun(job_id)
    await _state(client, job_id, "running")
    async with connection.transaction():
        await connection.execute("SELECT FROM joex_private.job WHERE id = $1 FOR UPDATE", job_id)
        await effects.flag("go")
        await eventually(lambda: _ended(effects, job_id))
        await eventually(lambda: _has_tried_to_write(client), why="the row is locked for the finish")
        await executor.kill()
        # (A session that could still write the end when the lock goes would end the job.)
        await eventually(lambda: _no_session_of(client, "joex one"))
        await executors.start("one")
        # The dead executor is replaced although the row of its job is locked.
        assert (await client.get(job_id)).state == "running"
    assert await effects.all_finished([job_id]) == {"success": 1}
    assert (await client.get(job_id)).losses == 1
    assert len(await effects.of(job_id)) == 2
    assert await effects.overlapping() == []


@pytest.mark.parametrize("task", ["transaction", "transaction.thread"])
async def test_a_kill_before_the_commit_undoes_the_jobs_own_writes_and_they_are_made_once(
    task: str, client: AnyClient, effects: Effects, executors: ExecutorProcesses
) -> None:
    executor = await executors.start("one")
    job_id = await client.submit(task, {"flag": "go"})
    await effects.begun(job_id)
    await executor.kill()
    assert await effects.committed() == {}
    await effects.flag("go")
    await executors.start("one")
    assert await effects.all_finished([job_id]) == {"success": 1}
    assert await effects.committed() == {job_id: 1}


async def test_a_restart_in_place_reclaims_at_once(
    client: AnyClient, effects: Effects, executors: ExecutorProcesses
) -> None:
    """The lease is an hour, so the successor knows of the death only because the process is gone."""
    executor = await executors.start("one", lease="1h")
    job_id = await client.submit("hold", {"flag": "go"})
    await effects.begun(job_id)
    await executor.kill()
    again = await executors.start("one", lease="1h")
    await effects.begun(job_id, pid=again.pid)
    await effects.flag("go")
    assert await effects.all_finished([job_id]) == {"success": 1}
    assert await effects.overlapping() == []


async def test_a_restart_in_the_same_pod_reclaims_at_once(
    client: AnyClient, effects: Effects, executors: ExecutorProcesses, connection: asyncpg.Connection
) -> None:
    """A container can't see the processes of another one, but the uid of the pod is the same."""
    executor = await executors.start("one", lease="1h", pod_uid="4711")
    job_id = await client.submit("hold", {"flag": "go"})
    await effects.begun(job_id)
    await executor.kill()
    await connection.execute("UPDATE joex_private.executor SET boot_id = 'another host'")
    again = await executors.start("one", lease="1h", pod_uid="4711")
    await effects.begun(job_id, pid=again.pid)
    await effects.flag("go")
    assert await effects.all_finished([job_id]) == {"success": 1}


async def test_a_successor_on_another_host_waits_for_the_end_of_the_lease(
    client: AnyClient, effects: Effects, executors: ExecutorProcesses, connection: asyncpg.Connection
) -> None:
    executor = await executors.start("one", lease=SHORT)
    job_id = await client.submit("hold", {"flag": "go"})
    await effects.begun(job_id)
    await executor.kill()
    await connection.execute("UPDATE joex_private.executor SET boot_id = 'another host'")
    killed_at = await connection.fetchval("SELECT max(heartbeat_at) FROM joex_private.lease")
    again = await executors.start("one", lease=SHORT)
    assert await connection.fetchval(
        "SELECT started_at - $1 >= lease FROM joex_private.executor WHERE left_at IS NULL", killed_at
    )
    await effects.begun(job_id, pid=again.pid)
    await effects.flag("go")
    assert await effects.all_finished([job_id]) == {"success": 1}
    assert await effects.overlapping() == []


async def test_a_poison_job_that_kills_its_executors_fails_with_a_line_that_says_so(
    client: AnyClient, effects: Effects, executors: ExecutorProcesses
) -> None:
    poison = await client.submit("kill")
    for losses in (1, 2, 3):
        executor = executors.launch("one", most_losses=2)
        assert await executor.exited() == -9
        assert len(await effects.of(poison)) == losses
    last = await executors.start("one", most_losses=2)
    after = await client.submit("quick")
    assert await effects.all_finished([poison, after]) == {"failed": 1, "success": 1}
    job = await client.get(poison)
    assert job.losses == 3
    assert job.error == "lost 3 times: its executor died each time it held this job"
    assert last.is_alive


async def test_a_job_that_is_lost_beside_the_one_that_kills_its_executors_runs_alone_and_succeeds(
    client: AnyClient, effects: Effects, executors: ExecutorProcesses, connection: asyncpg.Connection
) -> None:
    """Both are lost twice together. From then on each runs alone, and only the job that kills has more losses."""
    async with connection.transaction():  # both are taken at once, the innocent one first
        innocent = await client.submit("hold", {"flag": "go"}, connection=connection)
        poison = await client.submit("kill", connection=connection)
    for losses in (1, 2):
        assert await executors.launch("one", pool_size=4).exited() == -9
        both = [await client.get(job_id) for job_id in (innocent, poison)]
        assert [job.losses for job in both] == [losses - 1] * 2  # its successor finds the lost jobs
    third = executors.launch("one", pool_size=4)
    await effects.begun(innocent, pid=third.pid)
    other = await client.submit("quick", group="another tenant")
    await effects.flag("go")
    assert await effects.all_finished([innocent, other]) == {"success": 2}
    assert await third.exited() == -9
    last = third
    while (await client.get(poison)).state != "failed":
        last = executors.launch("one", pool_size=4)
        await eventually(partial(_has_ended, client, poison, last), why="the poison job fails, or its executor dies")
    job = await client.get(poison)
    assert (job.losses, job.error) == (6, "lost 6 times: its executor died each time it held this job")
    assert [(await client.get(job_id)).losses for job_id in (innocent, other)] == [2, 0]
    assert len(await effects.of(poison)) == 6
    assert last.is_alive


async def test_a_suspect_waits_until_all_else_has_ended_and_nothing_is_taken_beside_it(
    client: AnyClient, effects: Effects, executors: ExecutorProcesses, connection: asyncpg.Connection
) -> None:
    executor = await executors.start("one", pool_size=4)
    beside = await client.submit("hold", {"flag": "first"})
    await effects.begun(beside)
    async with connection.transaction():
        suspect = await client.submit("hold", {"flag": "second"}, connection=connection)
        await connection.execute("UPDATE joex_private.job SET losses = 2, suspect = true WHERE id = $1", suspect)
    await _state(client, suspect, "scheduled")
    later = await client.submit("effect", group="another tenant")
    why = {reason.reason: reason.message for reason in await client.why(suspect)}
    assert "as soon as nothing else runs there" in why["scheduled"]
    assert "slots_busy" in {reason.reason for reason in await client.why(later)}
    await effects.flag("first")
    run = await effects.begun(suspect)
    before = await _ended_run(effects, beside)
    assert before["ended"] <= run["started"]
    # The executor marks it before its code starts.
    assert (await client.get(suspect)).state == "running"
    assert (await client.get(later)).state == "waiting"
    await effects.flag("second")
    assert await effects.all_finished([beside, suspect, later]) == {"success": 3}
    assert (await _ended_run(effects, suspect))["ended"] <= (await effects.begun(later))["started"]
    assert executor.is_alive


async def test_what_comes_while_an_executor_runs_a_suspect_is_run_by_another_one(
    client: AnyClient, effects: Effects, executors: ExecutorProcesses, connection: asyncpg.Connection
) -> None:
    """The executor of the suspect has free slots, and was the last to fall asleep: a submission would wake it first."""
    await executors.start_all("one", "another", pool_size=4)
    async with connection.transaction():
        suspect = await client.submit("hold", {"flag": "go"}, connection=connection)
        await connection.execute("UPDATE joex_private.job SET losses = 2, suspect = true WHERE id = $1", suspect)
    run = await effects.begun(suspect)
    # Otherwise the others would find them only at a heartbeat.
    asleep = """
        SELECT count(*) > 0 FROM joex_private.asleep a JOIN joex_private.executor e ON e.id = a.executor_id
        WHERE e.pid = $1
    """
    assert not await connection.fetchval(asleep, run["pid"])
    others = [await client.submit("effect") for _ in range(8)]
    assert await effects.all_finished(others) == {"success": 8}
    assert run["pid"] not in [(await effects.of(job_id))[0]["pid"] for job_id in others]
    await effects.flag("go")
    assert await effects.all_finished([suspect]) == {"success": 1}


async def test_a_suspect_that_has_not_started_is_not_charged_with_the_death_of_its_executor(
    client: AnyClient, effects: Effects, executors: ExecutorProcesses, connection: asyncpg.Connection
) -> None:
    executor = await executors.start("one", pool_size=4)
    beside = await client.submit("hold", {"flag": "go"})
    await effects.begun(beside)
    async with connection.transaction():
        suspect = await client.submit("effect", connection=connection)
        await connection.execute("UPDATE joex_private.job SET losses = 5, suspect = true WHERE id = $1", suspect)
    await _state(client, suspect, "scheduled")
    await executor.kill()
    await effects.flag("go")
    await executors.start("one", pool_size=4)
    assert await effects.all_finished([beside, suspect]) == {"success": 2}
    assert [(await client.get(job_id)).losses for job_id in (beside, suspect)] == [1, 5]


async def test_a_suspect_that_waits_to_run_alone_can_be_cancelled_and_a_drain_gives_it_back(
    client: AnyClient, effects: Effects, executors: ExecutorProcesses, connection: asyncpg.Connection
) -> None:
    executor = await executors.start("one", pool_size=4)
    beside = await client.submit("hold", {"flag": "go"})
    await effects.begun(beside)
    for how in ("cancelled", "waiting"):
        async with connection.transaction():
            suspect = await client.submit("effect", connection=connection)
            await connection.execute("UPDATE joex_private.job SET losses = 2, suspect = true WHERE id = $1", suspect)
        await _state(client, suspect, "scheduled")
        if how == "cancelled":
            await client.cancel(suspect)
        else:
            executor.terminate()
        job = await _state(client, suspect, how)
        assert (job.losses, await effects.of(suspect)) == (2, [])
    await effects.flag("go")
    assert await executor.exited() == 0
    assert await effects.all_finished([beside]) == {"success": 1}


async def test_of_suspects_that_were_taken_at_once_each_runs_alone(
    client: AnyClient, effects: Effects, executors: ExecutorProcesses, connection: asyncpg.Connection
) -> None:
    async with connection.transaction():
        suspects = [await client.submit("sleep", {"milliseconds": 50}, connection=connection) for _ in range(4)]
        await connection.execute("UPDATE joex_private.job SET losses = 2, suspect = true")
        others = [await client.submit("effect", group="another tenant", connection=connection) for _ in range(4)]
    await executors.start("one", pool_size=4)
    assert await effects.all_finished(suspects + others) == {"success": 8}
    runs = [await _ended_run(effects, job_id) for job_id in suspects + others]
    runs.sort(key=lambda run: run["started"])
    for run, following in itertools.pairwise(runs):
        if run["job_id"] in suspects or following["job_id"] in suspects:
            assert run["ended"] <= following["started"]


async def test_a_job_that_calls_sys_exit_or_is_interrupted_ends_only_itself(
    client: AnyClient, effects: Effects, executors: ExecutorProcesses
) -> None:
    executor = await executors.start("one", retries=0)
    ids = [await client.submit(task) for task in ("exit", "exit.thread", "exit.child", "interrupt.child", "quick")]
    assert await effects.all_finished(ids) == {"failed": 4, "success": 1}
    assert executor.is_alive


async def _has_ended(client: AnyClient, job_id: UUID, executor: ExecutorProcess) -> bool:
    return executor.exit_code is not None or (await client.get(job_id)).state == "failed"


async def _ended(effects: Effects, job_id: UUID) -> bool:
    return all(run["ended"] for run in await effects.of(job_id))


async def _ended_run(effects: Effects, job_id: UUID) -> asyncpg.Record:
    """The run of a job that has run once. (Its end is written by a thread, maybe after that of its job.)"""
    await eventually(partial(_ended, effects, job_id), why=f"the end of the run of {job_id} is written")
    [run] = await effects.of(job_id)
    return run


async def _has_tried_to_write(client: AnyClient) -> Any:
    async with client.acquire() as connection:
        return await connection.fetchval(HAS_SKIPPED_AN_END)


async def _no_session_of(client: AnyClient, name: str) -> Any:
    async with client.acquire() as connection:
        return await connection.fetchval(
            "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = $1)", name
        )

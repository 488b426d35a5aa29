"""Signals to an executor and other commands, and an output that ends."""

import os
import signal
from contextlib import suppress
from pathlib import Path

import asyncpg
import pytest

from joex.runtime.lease import EXIT_CODE
from tests.support.apps import AnyClient, Effects
from tests.support.commands import started
from tests.support.pipes import full_pipe
from tests.support.processes import ExecutorProcesses
from tests.support.waiting import eventually


async def test_sigterm_finishes_what_runs_and_leaves_the_rest(
    client: AnyClient, effects: Effects, executors: ExecutorProcesses
) -> None:
    executor = await executors.start("one", pool_size=2)
    running = [await client.submit(task, {"flag": "go"}) for task in ("hold", "hold.thread")]
    for job_id in running:
        await effects.begun(job_id)
    executor.terminate()
    waiting = await client.submit("effect")
    await eventually(lambda: "SIGTERM" in executor.log)
    await effects.flag("go")
    assert await executor.exited() == 0
    assert [(await client.get(job_id)).state for job_id in running] == ["success", "success"]
    assert (await client.get(waiting)).state == "waiting"
    assert await effects.of(waiting) == []


async def test_a_second_sigterm_gives_back_at_once_and_the_run_does_not_count(
    client: AnyClient, effects: Effects, executors: ExecutorProcesses
) -> None:
    executor = await executors.start("one", pool_size=2)
    running = [await client.submit(task, {"flag": "go"}) for task in ("hold", "hold.thread.polite")]
    for job_id in running:
        await effects.begun(job_id)
    executor.terminate()
    await eventually(lambda: "SIGTERM" in executor.log)
    executor.terminate()
    assert await executor.exited() == 0
    for job_id in running:
        job = await client.get(job_id)
        assert (job.state, job.attempt, job.failures, job.losses) == ("waiting", 0, 0, 0)
    await effects.flag("go")
    await executors.start("one")
    assert await effects.all_finished(running) == {"success": 2}


async def test_a_second_sigterm_ends_an_executor_whose_task_does_not_react_and_its_job_moves_on(
    client: AnyClient, effects: Effects, executors: ExecutorProcesses
) -> None:
    executor = await executors.start("one", pool_size=2)
    ids = [await client.submit(task, {"flag": "go"}) for task in ("hold.thread", "hold")]
    for job_id in ids:
        await effects.begun(job_id)
    executor.terminate()
    await eventually(lambda: "SIGTERM" in executor.log)
    executor.terminate()
    assert await executor.exited() == EXIT_CODE
    assert (await client.get(ids[1])).state == "waiting"
    await effects.flag("go")
    await executors.start("one")
    assert await effects.all_finished(ids) == {"success": 2}
    assert await effects.overlapping() == []


@pytest.mark.parametrize("task", ["threads.left", "tasks.left"])
async def test_what_a_task_has_left_keeps_its_executor_neither_from_its_end_nor_from_a_new_registration(
    client: AnyClient, effects: Effects, executors: ExecutorProcesses, connection: asyncpg.Connection, task: str
) -> None:
    """The code in ``asyncio.to_thread`` goes on when its task is over, and nothing can end it."""
    executor = await executors.start("one", processes=True)
    assert await effects.all_finished([await client.submit(task)]) == {"success": 1}
    await connection.execute("SELECT joex_private.end_executor(id, 'dead') FROM joex_private.executor")
    await executors.registered(executor)
    executor.terminate()
    assert await executor.exited() == 0
    assert "that tasks have left still run" in executor.log
    assert await connection.fetchval("SELECT count(*) FROM joex_private.executor WHERE left_at IS NULL") == 0


async def test_an_executor_whose_output_nobody_reads_any_more_goes_on(
    client: AnyClient, effects: Effects, executors: ExecutorProcesses
) -> None:
    """The collector of its log lines has died. Each failing run writes a line."""
    reader, writer = os.pipe()
    executor = executors.launch("one", output=writer, retries=0)
    os.close(writer)
    await executors.registered(executor)
    held = await client.submit("hold.thread", {"flag": "go"})
    await effects.begun(held)
    os.close(reader)
    failing = await client.submit_many([{"task": "exit"}] * 5)
    assert await effects.all_finished(failing) == {"failed": 5}
    await effects.flag("go")
    assert await effects.all_finished([held]) == {"success": 1}
    assert executor.is_alive
    assert len(await effects.of(held)) == 1


async def test_an_executor_whose_output_is_not_read_finishes_its_runs_and_ends(
    client: AnyClient, effects: Effects, executors: ExecutorProcesses
) -> None:
    """Each failing run writes a line."""
    with full_pipe() as (_, writer):
        executor = executors.launch("one", output=writer, retries=0)
        await executors.registered(executor)
        failing = await client.submit_many([{"task": "exit"}] * 5)
        assert await effects.all_finished(failing) == {"failed": 5}
        assert await effects.all_finished([await client.submit("effect")]) == {"success": 1}
        executor.terminate()
        assert await executor.exited() == 0


async def test_an_executor_goes_on_though_a_task_closes_standard_error(
    client: AnyClient, effects: Effects, executors: ExecutorProcesses
) -> None:
    executor = await executors.start("one", retries=0)
    assert await effects.all_finished([await client.submit("close.stderr")]) == {"success": 1}
    failing = await client.submit_many([{"task": "exit"}] * 5)
    assert await effects.all_finished(failing) == {"failed": 5}
    executor.terminate()
    assert await executor.exited() == 0
    assert "SIGTERM" in executor.log


async def test_signals_that_come_until_the_very_end_change_nothing(executors: ExecutorProcesses) -> None:
    executor = await executors.start("one")

    def is_over() -> bool:
        for _ in range(1000):
            executor.terminate()
        return not executor.is_alive

    await eventually(is_over)
    assert await executor.exited() == 0, executor.log


@pytest.mark.parametrize(
    ("command", "ready"),
    [
        ("joex console --http-address 127.0.0.1:0", "the console is on"),
        ("joex dev --app joex.examples.documents:app", "runs up to"),
        (f"joex up -f {Path(__file__).parents[2]}/examples/joexpool.yaml", "Loaded"),
    ],
    ids=["console", "dev", "up"],
)
async def test_signals_that_come_until_the_very_end_of_another_command_change_nothing(
    client: AnyClient, database_url: str, tmp_path: Path, command: str, ready: str
) -> None:
    """Its embedded server, if it has one, is closed then."""
    async with started(command, tmp_path, database_url) as (process, log):
        await eventually(lambda: ready in log(), why="it handles signals")

        def is_over() -> bool:
            with suppress(ProcessLookupError):
                for _ in range(1000):  # (process.terminate could reap it, and asyncio would not learn its exit code)
                    os.kill(process.pid, signal.SIGTERM)
            return process.returncode is not None

        await eventually(is_over)
        assert process.returncode == 0, log()[:5000]

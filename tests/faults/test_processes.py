"""Executors whose tasks run in processes: killed, stopped, cut off, drained."""

from pathlib import Path
from uuid import UUID

import psutil
import pytest

from tests.support.apps import AnyClient
from tests.support.processes import SHORT, ExecutorProcess, ExecutorProcesses
from tests.support.proxy import Proxy
from tests.support.waiting import eventually

APP = "tests.support.process_tasks:app"


async def _said(folder: Path, name: str) -> str:
    await eventually((folder / name).exists, why=f"{name} is there")
    return (folder / name).read_text()


async def _begun(folder: Path, name: str, *, after: psutil.Process | None = None) -> psutil.Process:
    """The process in which a run has begun, another one than that of the last run."""
    previous = None if after is None else str(after.pid)
    pid = await eventually(
        lambda: (folder / name).exists() and (said := (folder / name).read_text()) != previous and said,
        why=f"a run has made {name}",
    )
    return psutil.Process(int(pid))


async def _succeeds(client: AnyClient, job_id: UUID) -> None:
    job = await client.wait(job_id, timeout="90s")
    assert job.state == "success", job.error


def _is_gone(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize("how", ["hang", "stop keeper"])
async def test_the_processes_of_a_killed_executor_end_with_all_that_they_have_started(
    client: AnyClient, executors: ExecutorProcesses, tmp_path: Path, how: str
) -> None:
    victim = await executors.start("one", app=APP, lease=SHORT)
    held = await client.submit("hold", {"folder": str(tmp_path), "name": "held"})
    process = await _begun(tmp_path, "held.begun")
    job = await client.wait(await client.submit("fork.in.thread"), timeout="90s")
    fork = psutil.Process(job.result)  # it holds all sockets of the executor open
    try:
        forks = await client.submit("fork", {"folder": str(tmp_path), "how": how})
        children = [psutil.Process(int(pid)) for pid in (await _said(tmp_path, "children")).split()]
        everything = {*children, *psutil.Process(victim.pid).children(recursive=True)} - {fork}
        assert process in everything
        await client.cancel(forks)
        await victim.kill()
        await eventually(lambda: all(map(_is_gone, everything)), why=f"all of {everything} are gone")
    finally:
        fork.kill()
    await executors.start("two", app=APP, lease=SHORT)
    await _begun(tmp_path, "held.begun", after=process)
    (tmp_path / "held.go").touch()
    await _succeeds(client, held)


async def test_an_exclusive_run_in_a_process_is_stopped_while_its_executor_is(
    client: AnyClient, executors: ExecutorProcesses, tmp_path: Path
) -> None:
    """Another executor may start its job meanwhile."""
    one = await executors.start("one", app=APP)
    job_id = await client.submit("count", {"folder": str(tmp_path), "name": "it"})
    process = await _begun(tmp_path, "it.begun")
    one.pause()
    await eventually(lambda: process.status() == psutil.STATUS_STOPPED, why="it is stopped")
    one.resume()
    await eventually(lambda: _is_gone(process) or process.status() != psutil.STATUS_STOPPED, why="it goes on")
    (tmp_path / "it.go").touch()
    await _succeeds(client, job_id)


@pytest.mark.parametrize(("task", "patience"), [("deaf", 60), ("deaf.shared", 0)])
async def test_an_executor_without_a_link_ends_its_exclusive_processes_before_another_one_begins_their_jobs(
    client: AnyClient, executors: ExecutorProcesses, proxy: Proxy, tmp_path: Path, *, task: str, patience: int
) -> None:
    """Without patience, each run is an exclusive one."""
    cut_off = await executors.start("cut off", app=APP, url=proxy.url, lease=SHORT, outage_patience=patience)
    job_id = await client.submit(task, {"folder": str(tmp_path), "name": "it"})
    process = await _begun(tmp_path, "it.begun")
    await executors.start("other", app=APP, lease=SHORT)
    await proxy.refuse()
    await _begun(tmp_path, "it.begun", after=process)
    assert _is_gone(process)
    (tmp_path / "it.go").touch()
    await _succeeds(client, job_id)
    assert (await client.get(job_id)).app_id == "other"
    await proxy.accept()
    assert cut_off.is_alive  # code in a thread would have ended it


async def test_an_executor_that_drains_finishes_its_runs_in_processes_and_a_second_signal_ends_them(
    client: AnyClient, executors: ExecutorProcesses, tmp_path: Path
) -> None:
    first = await executors.start("first", app=APP)
    finished = await client.submit("hold", {"folder": str(tmp_path), "name": "one"})
    await _begun(tmp_path, "one.begun")
    first.terminate()
    await eventually(lambda: "waiting for the runs" in first.log)
    (tmp_path / "one.go").touch()
    assert await first.exited() == 0
    await _succeeds(client, finished)

    second = await executors.start("second", app=APP)
    ended = await client.submit("deaf", {"folder": str(tmp_path), "name": "two"})
    process = await _begun(tmp_path, "two.begun")
    await _ends_at_two_signals(second)
    assert _is_gone(process)
    job = await client.get(ended)
    assert (job.state, job.failures, job.losses) == ("waiting", 0, 0)


async def _ends_at_two_signals(executor: ExecutorProcess) -> None:
    executor.terminate()
    await eventually(lambda: "waiting for the runs" in executor.log)
    executor.terminate()
    assert await executor.exited() == 0

"""Tasks in processes: what a run has there, and that a hostile one harms no other.

Most tests share one executor, because each of its starts loads the app anew. A run that is held all the time must not
notice the hostile one beside it.
"""

import asyncio
import json
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import psutil
import pytest
import pytest_asyncio

import joex
from joex.core.events import RunStarted
from joex.core.job import State
from joex.core.outcome import Interruption
from joex.errors import ConfigError
from joex.runtime import process_handle
from joex.runtime.job_log_writer import JobLogWriter
from joex.runtime.process_channel import KILL
from joex.runtime.process_handle import Process
from tests.support.apps import AnyClient
from tests.support.postgres import VERSIONS, TestServers
from tests.support.process_tasks import app
from tests.support.processes_inside import LONG, Inside, executor_inside
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

# (What the tasks print goes nowhere: the tests would keep it.)
_SERVER = ["sh", "-c", 'exec "$@" > /dev/null', "sh", sys.executable, "-m", "joex.cli.process_server"]
SERVER = [*_SERVER, "tests.support.process_tasks:app"]
OWN_SCORE = int(Path("/proc/self/oom_score_adj").read_text())


class House:
    """An executor that all tests share, and a client."""

    def __init__(self, inside: Inside, client: AnyClient, url: str) -> None:
        self.inside = inside
        self.client = client
        self.url = url

    async def run(self, task: str, args: dict[str, Any] | None = None, **options: Any) -> Any:
        """The job, after one run."""
        job_id = await self.client.submit(task, args or {}, **options)
        await self.inside.ended(job_id)
        return await self.client.get(job_id)

    async def begin(self, folder: Path, name: str, task: str = "hold", **options: Any) -> tuple[UUID, psutil.Process]:
        """A job that is held, and the process that runs it."""
        job_id = await self.client.submit(task, {"folder": str(folder), "name": name}, **options)
        return job_id, psutil.Process(int(await said(folder, f"{name}.begun")))


async def said(folder: Path, name: str) -> str:
    """What a task has written into this file."""
    await eventually((folder / name).exists, why=f"{name} is there")
    return (folder / name).read_text()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(postgres_servers: TestServers) -> AsyncIterator[House]:
    """One executor for the module; its task holds it, because a task group ends in the task in which it began."""
    server = postgres_servers[VERSIONS[-1]]
    name = await server.create_database()
    url = server.url(name)
    opened, over = asyncio.get_running_loop().create_future(), asyncio.Event()

    async def hold() -> None:
        async with joex.Client(url) as client, executor_inside(app, url, lease=LONG, process_server=SERVER) as inside:
            opened.set_result(House(inside, client, url))
            await over.wait()

    holding = asyncio.create_task(hold())
    await asyncio.wait({opened, holding}, return_when=asyncio.FIRST_COMPLETED)
    if not opened.done():
        await holding  # raises what went wrong
    yield opened.result()
    over.set()
    await holding
    await server.drop_database(name)


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def free_slots(house: House) -> AsyncIterator[None]:
    """What a test that fails leaves running takes no slot from the next one."""
    yield
    for run in house.inside.executor.running():
        await house.client.cancel(run.id)


async def test_a_task_runs_in_a_process_which_the_next_run_uses_again(house: House) -> None:
    first, second = (await house.run("where")).result, (await house.run("where.async")).result
    assert first["pid"] not in (os.getpid(), first["keeper"])
    assert first["thread"] == first["pid"]  # the main thread
    assert second == first["pid"]


async def test_the_kernel_takes_a_process_before_its_executor_when_memory_runs_out(house: House) -> None:
    found = (await house.run("where")).result["oom_score_adj"]
    assert found == min(OWN_SCORE + 200, 1000)


async def test_a_run_in_a_process_has_its_context(house: House) -> None:
    options = {"group": "acme", "priority": "high", "subject": "s", "submitter": "me", "retries": 0}
    job = await house.run("context", {"size": 200_000}, **options)
    assert job.state == "success", job.error
    assert job.result == ["context", "default", "acme", "high", "s", "me", 1, True, str(job.id), False, "ü" * 200_000]
    assert (job.message, job.progress) == ("done so", 100)
    lines = [(line.level, line.message) async for line in _lines(house, job.id)]
    assert ("info", "line of acme") in lines


async def _lines(house: House, job_id: UUID) -> AsyncIterator[Any]:
    for line in await house.client.log(job_id):
        yield line


@pytest.mark.parametrize(
    ("how", "state", "error"),
    [
        ("error", "stuck", "ValueError: of its own"),
        ("fail", "failed", "for good"),
        ("cancel", "cancelled", "Cancel: no more"),
        ("retry", "stuck", "Retry: later"),
        ("exit", "stuck", "SystemExit: 3"),
        ("known error", "stuck", "ValueError: of its own"),
        ("known fail", "failed", "Fail: for good"),
    ],
)
async def test_a_run_in_a_process_ends_by_what_it_raises(house: House, how: str, state: str, error: str) -> None:
    job_id = await house.client.submit("raises", {"how": how})
    end = await house.inside.ended(job_id)
    assert (end.verdict.state, end.verdict.error) == (state, error)
    if how.endswith("error"):  # (before it is raised it has no traceback)
        trace = "".join(line.message for line in await house.client.log(job_id))
        assert (", in raises\n" in trace) == (how == "error")
    await house.client.cancel(job_id)


async def test_arguments_that_do_not_fit_fail_the_job_at_once(house: House) -> None:
    job = await house.run("context", {"sice": 3})
    assert job.state == "failed"
    assert "sice" in job.error


async def test_a_process_is_replaced_after_the_runs_of_its_task(house: House) -> None:
    pids = [(await house.run("where.limited")).result for _ in range(5)]
    # (The first process may have run others before.)
    assert pids[-1] == pids[-2] or pids[-2] == pids[-3]
    assert len(set(pids)) >= 3


async def test_what_a_run_has_left_in_its_process_ends_with_it(house: House) -> None:
    assert (await house.run("thread")).result != (await house.run("where")).result["pid"]


async def test_a_run_finds_its_process_as_the_run_before_it_did(house: House) -> None:
    """The folder, the umask, the environment, handlers of signals, timers, the timeout of sockets."""
    first, second = [(await house.run("surroundings", {"change": change})).result for change in (True, False)]
    assert first == second


async def test_what_a_run_forks_ends_where_its_code_ends_or_when_its_parent_says_so(house: House) -> None:
    job = await house.run("family")
    assert (job.state, job.result) == ("success", [0, 3, 1, -signal.SIGTERM]), job.error


async def test_a_message_that_is_no_text_fails_the_run_with_a_line(house: House) -> None:
    job = await house.run("number")
    assert job.state == "failed"
    assert job.error.startswith("TypeError: ")


# Hostile runs.

_HOSTILE = [
    ("hang", "busy", "timed out after 0.3 s"),
    ("hang", "deaf", "timed out after 0.3 s"),
    ("hang", "stubborn", "timed out after 0.3 s"),
    ("hang", "in C", "timed out after 0.3 s"),
    ("hang", "stopped", "timed out after 0.3 s"),
    ("hang", "stop keeper", "timed out after 0.3 s"),
    ("die", "segfault", "its process was killed by SIGSEGV"),
    ("die", "abort", "its process was killed by SIGABRT"),
    ("die", "kill", "its process was killed by SIGKILL: by hand, or by the kernel because memory ran out"),
    ("die", "exit", "its process exited with code 3 before the task had ended"),
    ("die", "exit cleanly", "its process exited with code 0 before the task had ended"),
    ("die", "kill keeper", "its process is gone, together with the keeper of that process"),
    ("leak", "", "MemoryError"),
    ("fork", "kill keeper", "its process is gone, together with the keeper of that process"),
    ("fork", "die", "its process was killed by SIGKILL: by hand, or by the kernel because memory ran out"),
    ("spoil", "junk", "its process has spoiled its connection to the executor, and was ended"),
    ("spoil", "size", "its process has spoiled its connection to the executor, and was ended"),
    ("spoil", "close", "its process exited with code 0 before the task had ended"),
    ("spoil", "end", None),
    ("fork", "", None),
    ("print", "print", None),
    ("print", "log", None),
]


@pytest.mark.parametrize(("task", "how", "error"), _HOSTILE, ids=[f"{task} {how}".strip() for task, how, _ in _HOSTILE])
async def test_a_hostile_run_harms_no_other(
    house: House, tmp_path: Path, task: str, how: str, error: str | None
) -> None:
    innocent, process = await house.begin(tmp_path, "innocent")
    job = await house.run(task, {"folder": str(tmp_path), "how": how})
    if error is None:
        assert job.state == "success", job.error
    else:
        assert job.state == "failed"
        assert job.error.removeprefix("_TimedOut: ") == error
    for child in (await said(tmp_path, "children")).split() if task in ("fork", "hang") else []:
        assert not psutil.pid_exists(int(child))
    if task == "fork":
        assert [line async for line in _lines(house, job.id) if "child" in line.message] == []
    assert "pid" in (await house.run("where")).result
    assert process.is_running()
    (tmp_path / "innocent.go").touch()
    await house.inside.ended(innocent)
    job = await house.client.get(innocent)
    assert (job.state, job.result) == ("success", 1)


@pytest.mark.parametrize(
    ("what", "by", "most"), [("log", "_REPORTS", 100), ("progress", "_REPORTS", 100), ("log", "_BYTES", 2500)]
)
async def test_a_run_in_a_process_that_reports_much_is_slowed_down(
    house: House, monkeypatch: pytest.MonkeyPatch, what: str, by: str, most: int
) -> None:
    """What it reports costs the executor time, which the other runs need."""
    monkeypatch.setattr(process_handle, by, most)
    monkeypatch.setattr(process_handle, "_PER", 0.5)
    keep, kept_at = getattr(JobLogWriter, what), list[float]()

    def timed(*report: object) -> None:
        kept_at.append(time.monotonic())
        keep(*report)

    monkeypatch.setattr(JobLogWriter, what, timed)
    assert (await house.run("report", {"what": what, "times": 250})).state == "success"
    assert len(kept_at) == 250
    assert kept_at[-1] - kept_at[0] >= 2 * 0.45


# The ends that come from outside.


@pytest.mark.parametrize("task", ["hold", "hold.async"])
async def test_a_run_in_a_process_is_ended_when_its_job_is_cancelled_and_cleans_up(
    house: House, tmp_path: Path, task: str
) -> None:
    job_id, process = await house.begin(tmp_path, "one", task)
    assert await house.client.cancel(job_id) == "requested"
    end = await house.inside.ended(job_id)
    assert end.verdict.state is State.CANCELLED
    assert await said(tmp_path, "one.left") == "True"
    assert not process.is_running()
    if task == "hold":
        assert int(await said(tmp_path, "one.cancelled")) not in (os.getpid(), process.pid)


async def test_a_run_is_over_only_when_its_process_is_gone_even_if_its_job_is_cancelled_while_it_ends(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another executor may start its job then. (The keeper hears the order to kill late.)"""
    monkeypatch.setattr(process_handle, "LAST_BYTES_WITHIN", 0.01)
    order, is_asked, loop = Process._order, asyncio.Event(), asyncio.get_running_loop()

    def late_order(process: Process, what: bytes) -> None:
        if what == KILL:
            loop.call_later(0.5, order, process, what)
        else:
            order(process, what)
            is_asked.set()

    monkeypatch.setattr(Process, "_order", late_order)
    job_id = await house.client.submit("hang", {"folder": str(tmp_path), "how": "deaf"})
    await is_asked.wait()
    process = psutil.Process(int(await said(tmp_path, "children")))
    process.parents()[0].suspend()
    await house.client.cancel(job_id)
    await house.inside.ended(job_id)
    assert not process.is_running()


async def test_a_process_that_dies_between_two_runs_is_replaced(house: House) -> None:
    process = psutil.Process((await house.run("where")).result["pid"])
    keeper = process.parents()[0]
    process.kill()
    await eventually(lambda: not keeper.is_running(), why="its keeper has reported its end")
    job = await house.run("where", retries=0)
    assert job.state == "success", job.error


async def test_a_run_whose_keeper_the_run_before_it_has_stopped_is_ended_as_any_other(
    house: House, tmp_path: Path
) -> None:
    stopper = await house.run("stop.keeper")
    job_id, process = await house.begin(tmp_path, "one")
    assert process.pid == stopper.result
    assert await house.client.cancel(job_id) == "requested"
    await house.inside.ended(job_id)
    assert await said(tmp_path, "one.left") == "True"


async def test_sigterm_that_the_executor_has_not_sent_ends_no_run(house: House, tmp_path: Path) -> None:
    """systemd sends it to all processes of a service that is to drain."""
    job_id, process = await house.begin(tmp_path, "one")
    for member in (process, *process.parents()[:2]):  # its keeper, the server
        member.send_signal(signal.SIGTERM)
    other, _ = await house.begin(tmp_path, "two")  # the server forks
    for name in ("one", "two"):
        (tmp_path / f"{name}.go").touch()
    for one in (job_id, other):
        assert (await house.inside.ended(one)).verdict.state is State.SUCCESS


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
async def test_a_server_that_is_stopped_goes_on_and_one_that_is_killed_is_replaced_without_harm_to_a_run(
    house: House, tmp_path: Path, number: signal.Signals
) -> None:
    job_id, process = await house.begin(tmp_path, "one")
    server = process.parents()[1]
    server.send_signal(number)
    others = [await house.begin(tmp_path, f"other {nr}") for nr in range(3)]
    assert any(other.parents()[1] != server for _, other in others) == (number == signal.SIGKILL)
    for name in ("one", "other 0", "other 1", "other 2"):
        (tmp_path / f"{name}.go").touch()
    for one in (job_id, *(other for other, _ in others)):
        assert (await house.inside.ended(one)).verdict.state is State.SUCCESS


async def test_what_a_task_in_a_thread_changes_in_its_executor_reaches_no_process(
    house: House, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The default timeout of sockets; the folder and the environment, where the server of processes is replaced."""
    settings: dict[str, Any] = {"queues": ["own"], "lease": LONG}
    async with executor_inside(app, house.url, process_server=SERVER, **settings) as inside:

        async def where() -> dict[str, int]:
            job_id = await house.client.submit("where", queue="own", retries=0)
            await inside.ended(job_id)
            job = await house.client.get(job_id)
            assert job.state == "success", job.error
            found: dict[str, int] = job.result
            return found

        first = psutil.Process((await where())["pid"])
        request.addfinalizer(partial(socket.setdefaulttimeout, socket.getdefaulttimeout()))
        socket.setdefaulttimeout(60)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("PATH", "/nowhere")
        first.parents()[1].kill()
        first.kill()
        await eventually(lambda: not first.is_running())
        second = await where()
        assert second["pid"] != first.pid
        assert await where() == second


# Transactions.


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def booking(house: House) -> AsyncIterator[asyncpg.Connection]:
    """The table of the tasks that book."""
    connection = await asyncpg.connect(house.url)
    await connection.execute('CREATE TABLE booking ("order" integer)')
    yield connection
    await connection.close()


@pytest.mark.parametrize("task", ["book", "book.async"])
async def test_the_writes_of_a_process_and_the_end_of_its_job_commit_together(
    house: House, booking: asyncpg.Connection, task: str
) -> None:
    job = await house.run(task, {"order": 1})
    assert (job.state, job.result) == ("success", {"order": 1}), job.error
    assert await _booked(booking) == [1]


async def _booked(booking: asyncpg.Connection) -> list[int]:
    """What is booked, which is then removed."""
    return [row[0] for row in await booking.fetch('DELETE FROM booking RETURNING 1 * "order"')]


async def test_a_process_that_dies_after_its_commit_has_ended_its_job(
    house: House, booking: asyncpg.Connection
) -> None:
    job = await house.run("book.and.die", {"order": 2})
    assert (job.state, job.result) == ("success", {"order": 2})
    assert await _booked(booking) == [2]


async def test_a_process_whose_run_has_lost_its_job_writes_nothing(
    house: House, booking: asyncpg.Connection, tmp_path: Path
) -> None:
    job_id = await house.client.submit("book", {"order": 3, "folder": str(tmp_path)}, retries=0)
    await said(tmp_path, "in.transaction")
    # As another executor takes it that has found this one dead.
    await booking.execute("UPDATE joex_private.job SET lock_id = gen_random_uuid() WHERE id = $1", job_id)
    (tmp_path / "go").touch()
    await eventually(lambda: not any(run.id == job_id for run in house.inside.executor.running()))
    assert await _booked(booking) == []
    assert (await house.client.get(job_id)).state == "running"
    await booking.execute("DELETE FROM joex_private.job WHERE id = $1", job_id)


async def test_a_plain_function_in_a_thread_is_told_how_it_gets_a_connection(house: House) -> None:
    job_id = await house.client.submit("book.in.thread", retries=0)
    end = await house.inside.ended(job_id)
    assert "process=True" in str(end.verdict.error)


# Executors of their own.


async def test_the_groups_share_processes_fairly(house: House, tmp_path: Path) -> None:
    """Whatever a group has in the line, each other one has its turn."""
    settings: dict[str, Any] = {"pool_size": 1, "queues": ["own"], "lease": LONG}
    async with executor_inside(app, house.url, process_server=SERVER, **settings) as inside:
        held, _ = await house.begin(tmp_path, "held", queue="own", group="many")
        many = [await house.client.submit("where", queue="own", group="many") for _ in range(6)]
        few = [await house.client.submit("where", queue="own", group="few") for _ in range(2)]
        (tmp_path / "held.go").touch()
        for one in [held, *many, *few]:
            assert (await inside.ended(one)).verdict.state is State.SUCCESS
        order = [event.job.group for event in inside.log.of(RunStarted)]
    assert order == ["many", "few", "many", "few", *["many"] * 5]


async def test_the_next_process_is_for_the_group_that_has_fewest_of_them(house: House, tmp_path: Path) -> None:
    """Though the runs of another one, which has its share of the slots, have waited for longer."""
    settings: dict[str, Any] = {"pool_size": 4, "process_slots": 2, "queues": ["own"], "lease": LONG}
    async with executor_inside(app, house.url, process_server=SERVER, **settings) as inside:
        held = [(await house.begin(tmp_path, name, queue="own", group="many"))[0] for name in ("one", "two")]
        many = await house.client.submit("where", queue="own", group="many")
        await eventually(lambda: len(inside.executor.running()) == 3, why="a run waits for a process")
        few = await house.client.submit("where", queue="own", group="few")
        await eventually(lambda: len(inside.executor.running()) == 4, why="so does one of another group")
        (tmp_path / "one.go").touch()
        for one in (held[0], few, many):
            assert (await inside.ended(one)).verdict.state is State.SUCCESS
        (tmp_path / "two.go").touch()
        await inside.ended(held[1])
        started = [event.job.id for event in inside.log.of(RunStarted)]
    assert started == [*held, few, many]


async def test_processes_are_started_for_the_groups_in_turns(house: House) -> None:
    """Runs that die need one each, and a group may have hundreds of them in its slots."""
    settings: dict[str, Any] = {"pool_size": 6, "queues": ["own"], "lease": LONG}
    async with executor_inside(app, house.url, process_server=SERVER, **settings) as inside:
        registration: Any = inside.executor._registration
        starting = registration.runner._caller._processes._starting
        async with starting.one_of(("own", "other")):
            ids = [await house.client.submit("where", queue="own", group="many") for _ in range(4)]
            await eventually(lambda: len(starting._waiting.get(("own", "many"), ())) == 4, why="they wait")
            ids.append(await house.client.submit("where", queue="own", group="few"))
            await eventually(lambda: ("own", "few") in starting._waiting, why="so does this one")
        assert list(starting._waiting) == [("own", "few"), ("own", "many")]
        for one in ids:
            assert (await inside.ended(one)).verdict.state is State.SUCCESS


@pytest.mark.parametrize("ends", ["a process is free", "the lease is over", "the drain is over"])
async def test_a_cancel_handler_that_begins_after_the_end_of_its_job_waits_for_a_process(
    house: House, tmp_path: Path, ends: str
) -> None:
    settings: dict[str, Any] = {"pool_size": 2, "process_slots": 1, "queues": ["own"], "lease": LONG}
    async with executor_inside(app, house.url, process_server=SERVER, **settings) as inside:
        first, _ = await house.begin(tmp_path, "one", queue="own")
        connection = await asyncpg.connect(house.url)
        async with connection.transaction():  # the executor hears of the request when its run has ended
            await connection.fetchval("SELECT joex.cancel($1)", first)
            (tmp_path / "one.go").touch()
            _, process = await house.begin(tmp_path, "two", queue="own")
        await connection.close()
        registration: Any = inside.executor._registration
        await eventually(lambda: bool(registration.runner._in_processes._waiting), why="the handler waits")
        assert not (tmp_path / "one.cancelled").exists()
        assert process.is_running()
        if ends == "a process is free":
            (tmp_path / "two.go").touch()
            assert await said(tmp_path, "one.cancelled")
            return
        if ends == "the lease is over":
            registration.runner.kill()
        else:
            registration.runner.interrupt_all(Interruption.GIVE_BACK)

        async def is_in_its_log() -> bool:
            lines = [line.message for line in await house.client.log(first)]
            return "its on_cancel handler was not called: no process was free" in lines

        await eventually(is_in_its_log)
        assert not (tmp_path / "one.cancelled").exists()
        (tmp_path / "two.go").touch()


async def test_plain_functions_run_in_processes_by_default_if_the_executor_says_so(house: House) -> None:
    settings: dict[str, Any] = {"processes": True, "queues": ["own"], "lease": LONG}
    async with executor_inside(app, house.url, process_server=SERVER, **settings) as inside:
        ids = [
            await house.client.submit(task, queue="own")
            for task in ("where.by.default", "where.in.thread", "where.async")
        ]
        for job_id in ids:
            await inside.ended(job_id)
    by_default, in_thread, in_async = [(await house.client.get(job_id)).result for job_id in ids]
    assert by_default != os.getpid()
    assert in_thread == os.getpid()
    assert in_async != os.getpid()


async def test_runs_beyond_the_slots_of_processes_wait_and_a_drain_gives_them_back_at_once_and_ends_the_others(
    house: House, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"process_slots": 1, "queues": ["own"], "lease": LONG}
    async with executor_inside(app, house.url, process_server=SERVER, **settings) as inside:
        first, process = await house.begin(tmp_path, "one", queue="own")
        second = await house.client.submit("hold", {"folder": str(tmp_path), "name": "two"}, queue="own")
        await eventually(lambda: len(inside.executor.running()) == 2, why="the second one is taken")
        quick = await house.client.submit("where.in.thread", queue="own")
        assert (await inside.ended(quick)).verdict.state is State.SUCCESS
        assert not inside.log.of(RunStarted, lambda event: event.job.id == second)
        inside.executor.drain()
        await house.client.wait(second, states=["waiting"])
        assert process.is_running()
        inside.executor.stop()
        await inside.work
    assert not process.is_running()
    assert await said(tmp_path, "one.left") == "True"
    assert not (tmp_path / "two.begun").exists()
    for job_id in (first, second):
        job = await house.client.get(job_id)
        assert (job.state, job.failures) == ("waiting", 0)
        await house.client.cancel(job_id)


async def test_a_server_that_can_not_load_the_app_fails_the_run_with_a_line(
    house: House, capfd: pytest.CaptureFixture[str]
) -> None:
    server = [sys.executable, "-m", "joex.cli.process_server", "tests.support.process_tasks:none"]
    async with executor_inside(app, house.url, process_server=server, queues=["own"], lease=LONG) as inside:
        job_id = await house.client.submit("where", queue="own", retries=0)
        end = await inside.ended(job_id)
    assert str(end.verdict.error).startswith("no process could be started for it, the server of processes has ended")
    assert "--app: module tests.support.process_tasks has no 'none'" in capfd.readouterr().err


async def test_lines_of_a_tasks_loggers_in_a_process_name_its_run(
    house: House, capfd: pytest.CaptureFixture[str]
) -> None:
    settings: dict[str, Any] = {"queues": ["own"], "log_format": "json", "lease": LONG}
    async with executor_inside(app, house.url, process_server=SERVER, **settings) as inside:
        job_id = await house.client.submit("context", {"size": 1}, queue="own", group="acme")
        await inside.ended(job_id)
    [line] = [json.loads(line) for line in capfd.readouterr().err.splitlines() if "said by a logger" in line]
    assert (line["job"], line["task"], line["group"], line["attempt"]) == (str(job_id), "context", "acme", 1)


async def test_an_executor_without_a_server_of_processes_refuses_tasks_that_need_one(house: House) -> None:
    with pytest.raises(ConfigError, match="task 'where': runs in a process: start the executor by `joex executor"):
        async with executor_inside(app, house.url):
            pass

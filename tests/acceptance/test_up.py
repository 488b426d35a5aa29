"""`joex up`, as its user runs it: real processes on a real PostgreSQL, and no cluster.

The test of the example starts it. Elsewhere it is forked with Joex loaded (tests/support/loaded), and starts executors.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Self
from uuid import UUID

import asyncpg
import psutil
import pytest
import yaml

from joex import Client
from tests.support import loaded
from tests.support.apps import EFFECTS_URL, Effects
from tests.support.loaded import Fork
from tests.support.postgres import TestServer
from tests.support.processes import SHORT
from tests.support.waiting import PATIENCE, eventually

ROOT = Path(__file__).parents[2]
APP = "tests.support.apps:app"
SHRINK_AT_ONCE = {"scaleDown": {"stabilizationWindowSeconds": 0}}


def pool(name: str = "docs", *, scaling: Mapping[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    """A pool in the form of a file. An executor runs one job at a time."""
    given = {
        "app": APP,
        "database": {"secretName": "db"},
        "poolSize": 1,
        "retryDelay": "100ms",
        "scaling": {"maxReplicas": 3, "behavior": SHRINK_AT_ONCE, **(scaling or {})},
        **spec,
    }
    return {"apiVersion": "joex.dev/v1alpha1", "kind": "JoexPool", "metadata": {"name": name}, "spec": given}


def periodic(name: str, of_pool: str, **spec: Any) -> dict[str, Any]:
    given = {"pool": of_pool, "task": "quick", "timer": "*-*-* 03:00", **spec}
    return {"apiVersion": "joex.dev/v1alpha1", "kind": "PeriodicTask", "metadata": {"name": name}, "spec": given}


class Up:
    """`joex up` on one file, in a folder of the test."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.file = folder / "pool.yaml"
        self.environment = dict(environment)
        self.events: list[dict[str, Any]] = []
        self.process: Fork
        self._reading: list[asyncio.Task[Any]] = []
        self.log: list[str] = []
        self._children: set[psutil.Process] = set()

    def write(self, *documents: Mapping[str, Any]) -> Self:
        """Write the file."""
        self.file.write_text(yaml.safe_dump_all(documents))
        return self

    async def start(self, *arguments: str) -> Self:
        """Start it, and wait until the file is read."""
        # (Blocking, for some milliseconds; with the first use in a session, until Joex is loaded.)
        (events, output), (log, errors) = os.pipe(), os.pipe()
        try:
            self.process = Fork(
                "joex", ["up", "-f", str(self.file), "--name", "here", "--json", *arguments],
                environment=self.environment, folder=ROOT, output=output, errors=errors,
            )  # fmt: skip
        finally:
            os.close(output)
            os.close(errors)
        self._reading = [asyncio.create_task(self._read_events(events)), asyncio.create_task(self._read_log(log))]
        await self.told("Loaded")
        return self

    async def told(self, reason: str, part: str = "", *, after: int = 0) -> dict[str, Any]:
        """Wait for an event."""

        def found() -> dict[str, Any] | None:
            some = (e for e in self.events[after:] if e["reason"] == reason and part in f"{e['name']} {e['message']}")
            return next(some, None)

        event: dict[str, Any] = await eventually(found, why=f"{reason} {part} has come; so far: {self}")
        return event

    async def ended(self) -> int:
        """Wait until it has exited; returns its exit code."""
        await asyncio.wait_for(asyncio.gather(*self._reading), PATIENCE)
        return await asyncio.to_thread(self.process.wait, PATIENCE)

    def executors(self) -> list[psutil.Process]:
        """The running processes of its executors. After its exit this still knows the processes that it has seen."""
        if self.process.poll() is None:
            self._children.update(psutil.Process(self.process.pid).children())
        return [child for child in self._children if is_running(child)]

    async def close(self) -> None:
        """Kill the remaining processes."""
        executors = self.executors()
        self.process.send_signal(signal.SIGKILL)
        for executor in executors:
            executor.kill()
        await self.ended()
        print(self)  # pytest shows it

    def __str__(self) -> str:
        return "\n".join([*map(str, self.events), *self.log])

    async def _read_events(self, end: int) -> None:
        async for line in _lines(end):
            self.events.append(json.loads(line))

    async def _read_log(self, end: int) -> None:
        async for line in _lines(end):
            self.log.append(line.decode().rstrip())


async def _lines(end: int) -> AsyncIterator[bytes]:
    """The lines that come out of a pipe, until all have closed its other end."""
    stream = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(end, "rb")
    )
    try:
        while line := await stream.readline():
            yield line
    finally:
        transport.close()


def is_running(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
async def effects(pool: asyncpg.Pool, database_url: str) -> Effects:
    """What the tasks of `tests.support.apps` do in the test's database."""
    effects = Effects(pool, database_url)
    await effects.prepare()
    return effects


@pytest.fixture
def environment(tmp_path: Path, effects: Effects, database_url: str) -> dict[str, str]:
    """Locks are in the test's folder, so that the name of the pool is free."""
    others = {name: value for name, value in os.environ.items() if not name.startswith(("JOEX_", "PG"))}
    mine = {"JOEX_DATABASE_URL": database_url, EFFECTS_URL: effects.url, "TMPDIR": str(tmp_path)}
    return {**others, **mine}


@pytest.fixture
async def up(tmp_path: Path, environment: dict[str, str]) -> AsyncIterator[Up]:
    """`joex up`, not started yet."""
    up = Up(tmp_path, environment)
    yield up
    await up.close()


@pytest.fixture
def database(pool: asyncpg.Pool) -> asyncpg.Pool:
    """The test's database; the name `pool` is that of a pool of executors here."""
    return pool


async def hold(client: Client, *flags: str, **options: Any) -> list[UUID | None]:
    """Submit jobs, each of which runs until its flag is set."""
    return await client.submit_many([{"task": "hold", "args": {"flag": flag}, **options} for flag in flags])


async def living(database: asyncpg.Pool) -> dict[str, int]:
    """The living executors: app-id and process id."""
    rows = await database.fetch("SELECT app_id, pid FROM joex_private.executor WHERE left_at IS NULL")
    return {row["app_id"]: row["pid"] for row in rows}


@asynccontextmanager
async def outage(postgres: TestServer, how: str) -> AsyncIterator[None]:
    """The server is away for the time of a block."""
    if how == "pause":
        await asyncio.to_thread(postgres.pause)
        try:
            yield
        finally:
            await asyncio.to_thread(postgres.resume)
    else:
        await asyncio.to_thread(postgres.kill if how == "kill" else postgres.stop)
        yield
        await asyncio.to_thread(postgres.start)


@pytest.mark.parametrize("by", ["setting", "secret"])
async def test_a_url_comes_from_a_file_and_no_process_has_it_as_an_argument(up, client, effects, tmp_path, by):
    (tmp_path / "url").write_text(f"{up.environment.pop('JOEX_DATABASE_URL')}\n")
    given = []
    if by == "setting":
        up.environment["JOEX_DATABASE_URL_FILE"] = str(tmp_path / "url")
    else:
        given = ["--database-file", f"db={tmp_path / 'url'}"]
    await up.write(pool()).start(*given)
    [job] = await hold(client, "go")
    assert (await effects.begun(job))["pid"] in {executor.pid for executor in up.executors()}
    processes = psutil.Process(up.process.pid).children(recursive=True)
    assert len(processes) >= 2, "the executor and its watchdog"
    assert not any("postgresql:" in " ".join(process.cmdline()) for process in processes)
    await effects.flag("go")
    assert await effects.all_finished([job]) == {"success": 1}


async def test_a_pool_grows_from_zero_to_its_most_and_back_and_a_busy_executor_leaves_last(
    up, client, effects, database
):
    await up.write(pool()).start()
    assert up.executors() == []

    flags = [str(number) for number in range(5)]
    jobs = await hold(client, *flags)
    for_three = [(await effects.begun(job))["pid"] for job in jobs[:3]]
    of = await living(database)
    assert set(of) == {"here/docs-0", "here/docs-1", "here/docs-2"}
    assert set(for_three) == set(of.values()) == {executor.pid for executor in up.executors()}

    # Neither the first nor the last executor is the busy one: it leaves last because of its job.
    long = for_three.index(of["here/docs-1"])
    await effects.flag(*flags[:long], *flags[long + 1 :])
    assert await effects.all_finished([*jobs[:long], *jobs[long + 1 :]]) == {"success": 4}
    busy = [of["here/docs-1"]]
    await eventually(lambda: [e.pid for e in up.executors()] == busy, why=f"the idle ones leave: {up}")
    await effects.flag(flags[long])
    assert await effects.all_finished([jobs[long]]) == {"success": 1}
    await eventually(lambda: not up.executors(), why=f"the pool is at zero again: {up}")
    assert await living(database) == {}
    assert await database.fetchval("SELECT max(attempt) FROM joex_private.job") == 1
    assert await database.fetchval("SELECT count(*) FROM joex_private.executor") == 3
    await eventually(
        lambda: database.fetchval("SELECT count(*) = 0 FROM joex_private.retired"), why="the names are free again"
    )

    def steps() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(joex(up.environment, "pools", "--steps", "here/docs", "--json").stdout)
        return found[::-1]

    ends = (0, 0, 0)
    sizes = ("before", "target", "draining")
    await eventually(lambda: tuple(steps()[-1][name] for name in sizes) == ends, why="the last step is at zero")
    largest = next(step for step in steps() if step["target"] == 3)
    assert (largest["before"], largest["wanted"], largest["capped_by"]) == (0, 5, "maxReplicas")
    assert largest["why"] == "5 jobs wait or run, 1 slot each: 5 executors; the maximum is 3"


async def test_sigterm_lets_all_executors_finish_what_they_run(up, client, effects):
    await up.write(pool()).start()
    jobs = await hold(client, "go", "go")
    for job in jobs:
        await effects.begun(job)
    executors = up.executors()

    up.process.send_signal(signal.SIGTERM)
    await up.told("Stopping", "docs-0, docs-1")
    await effects.flag("go")
    assert await effects.all_finished(jobs) == {"success": 2}
    assert await up.ended() == 0
    assert not any(map(is_running, executors))


async def test_a_second_signal_makes_the_executors_give_their_jobs_back(up, client, effects, database):
    await up.write(pool()).start()
    (job,) = await hold(client, "never")
    await effects.begun(job)
    executors = up.executors()

    up.process.send_signal(signal.SIGINT)
    await up.told("Stopping")
    await eventually(lambda: database.fetchval("SELECT bool_and(draining) FROM joex_private.executor"), why="it drains")
    up.process.send_signal(signal.SIGINT)
    assert await up.ended() == 0
    assert not any(map(is_running, executors))
    row = await client.get(job)
    assert (row.state, row.losses) == ("waiting", 0)


async def test_a_killed_executor_is_started_again_in_place_and_has_its_jobs_back_at_once(up, client, effects, database):
    # Not the end of the lease gives the job back, and no other executor gets it.
    await up.write(pool(lease="1h", scaling={"minReplicas": 1, "maxReplicas": 1})).start()
    (job,) = await hold(client, "go")
    first = await effects.begun(job)

    os.kill(first["pid"], signal.SIGKILL)
    await up.told("ExecutorEnded", "docs-0: killed by SIGKILL")
    second = await effects.begun(job, runs=2)
    assert second["pid"] != first["pid"]
    assert set(await living(database)) == {"here/docs-0"}
    lives = await database.fetch("SELECT pod_uid FROM joex_private.executor")
    assert len(lives) == 2
    assert len({life["pod_uid"] for life in lives} - {None}) == 1, "one replica, one uid"
    await effects.flag("go")
    assert await effects.all_finished([job]) == {"success": 1}


async def test_an_executor_that_crashes_again_and_again_has_another_one_beside_it(up, client, effects):
    await up.write(pool(poolSize=4, mostLosses=1000, scaling={"maxReplicas": 2, "behavior": {}})).start()
    await client.submit("kill")
    await up.told("Added", "docs-0")
    # One job needs one executor: the second one runs the jobs that the first can't run while it waits.
    await up.told("Added", "docs-1")
    other = await client.submit("effect", group="another tenant")
    assert await effects.all_finished([other]) == {"success": 1}


@pytest.mark.long
async def test_an_outage_of_the_database_changes_no_pool(up, client, effects, database, postgres):
    """Each lasts for longer than the leases. Two of three executors are idle, and stay because of the window alone."""
    behavior = {"scaleDown": {"stabilizationWindowSeconds": 3600}}
    await up.write(pool(lease=f"{SHORT}s", scaling={"maxReplicas": 4, "behavior": behavior})).start()
    jobs = await hold(client, "go", "go", "go")
    runs = [await effects.begun(job) for job in jobs]
    before, processes = await living(database), {executor.pid for executor in up.executors()}
    assert set(before.values()) == processes == {run["pid"] for run in runs}
    await effects.flag("go")
    assert await effects.all_finished(jobs) == {"success": 3}

    def leases_are_over(since: int) -> bool:
        return "\n".join(up.log[since:]).count("taking no jobs") >= 3

    for how in ("stop", "kill", "pause"):
        [running] = await hold(client, how)
        await effects.begun(running)
        seen, logged = len(up.events), len(up.log)
        async with outage(postgres, how):
            await up.told("Unreachable", after=seen)
            await eventually(partial(leases_are_over, logged), why=f"leases are over: {up}")
        await up.told("Connected", after=seen)
        more = await hold(client, how, how)
        assert {(await effects.begun(job))["pid"] for job in [running, *more]} == processes, "each is at work again"
        await effects.flag(how)
        assert await effects.all_finished([running, *more]) == {"success": 3}
        assert await living(database) == before
        assert {executor.pid for executor in up.executors()} == processes
        assert await database.fetchval("SELECT count(*) FROM joex_private.executor") == 3
        said = {event["reason"] for event in up.events[seen:]}
        unknown, known = {"DatabaseUnreachable", "DemandUnknown", "Unreachable"}, {"Ready", "ByDemand", "Connected"}
        assert said == unknown | known


async def test_kill_9_of_joex_up_leaves_no_process_and_loses_nothing(up, client, effects, tmp_path, environment):
    await up.write(pool(scaling={"maxReplicas": 2})).start()
    jobs = await hold(client, *["go"] * 4)
    for job in jobs[:2]:
        await effects.begun(job)
    executors = up.executors()

    up.process.send_signal(signal.SIGKILL)
    assert await up.ended() == -signal.SIGKILL
    assert all(map(is_running, executors)), "they drain"
    await effects.flag("go")
    assert await effects.all_finished(jobs[:2]) == {"success": 2}
    await eventually(lambda: not any(map(is_running, executors)), why="they leave when they have drained")

    again = await Up(tmp_path, environment).start()
    try:
        assert await effects.all_finished(jobs) == {"success": 4}
        assert await effects.overlapping() == []
    finally:
        await again.close()


async def test_sighup_reads_the_file_again(up, client, effects, database):
    await up.write(pool("one", queues=["a"]), pool("two", queues=["b"]), periodic("nightly", "one")).start()
    (busy,) = await hold(client, "go", queue="b")
    run = await effects.begun(busy)
    await eventually(lambda: database.fetchval("SELECT id FROM joex_private.periodic_task WHERE id = 'here/nightly'"))

    up.write(pool("one", queues=["a", "c"], scaling={"minReplicas": 1}), pool("three", queues=["d"]))
    up.process.send_signal(signal.SIGHUP)
    await up.told("Reloaded")
    await up.told("Changed", "one 1 to 3 executors")
    await up.told("Loaded", "three")
    await up.told("Removed", "two")
    gone = "SELECT NOT EXISTS (SELECT FROM joex_private.periodic_task WHERE id = 'here/nightly')"
    await eventually(lambda: database.fetchval(gone), why="it is removed")
    new = await hold(client, "go", queue="c")
    await effects.begun(new[0])

    assert run["pid"] in {executor.pid for executor in up.executors()}, "what was removed finishes what it runs"
    await effects.flag("go")
    await up.told("Gone", "two")
    assert await effects.all_finished([busy, *new]) == {"success": 2}
    assert len(await effects.of(busy)) == 1
    await eventually(lambda: [e.pid for e in up.executors()].count(run["pid"]) == 0, why="it has left")
    assert "here/one-0" in await living(database)


async def test_an_invalid_new_file_changes_nothing(up, client, effects, database):
    await up.write(pool(scaling={"minReplicas": 1})).start()
    await eventually(lambda: living(database), why=f"one is there: {up}")
    before = await living(database)

    for change, said in (
        ({"poolSize": "two"}, "pool.yaml, document 1: spec.poolSize: "),
        ({"database": {"secretName": "other"}}, "pool.yaml, document 1: spec.database: can't be changed"),
    ):
        up.write(pool(**change))
        up.process.send_signal(signal.SIGHUP)
        assert (await up.told("NotReloaded", said))["type"] == "Warning"

    (job,) = await hold(client, "go")
    assert (await effects.begun(job))["pid"] in before.values()
    await effects.flag("go")
    assert await effects.all_finished([job]) == {"success": 1}
    assert await living(database) == before


async def test_a_due_periodic_task_starts_the_first_executor(up, effects, database):
    ticks = periodic("ticks", "docs", task="effect", timer="*:*:*")
    await up.write(pool(), ticks).start()
    last_job = "SELECT last_job FROM joex_private.periodic_task WHERE id = 'here/ticks'"
    first = await eventually(lambda: database.fetchval(last_job), why=f"it is due: {up}")
    assert await effects.all_finished([first]) == {"success": 1}
    await up.told("Added", "docs docs-0: demand")

    async def another() -> UUID | None:
        job = await database.fetchval(last_job)
        return job if job != first else None

    assert await effects.all_finished([await eventually(another, why="it is due again")]) == {"success": 1}
    assert await effects.overlapping() == []

    ticks["spec"]["suspend"] = True
    up.write(pool(), ticks)
    up.process.send_signal(signal.SIGHUP)
    assert (await up.told("Suspended", "ticks"))["type"] == "Normal"
    assert not await database.fetchval("SELECT enabled FROM joex_private.periodic_task WHERE id = 'here/ticks'")


async def test_a_changed_pool_replaces_its_executors(up, client, effects, database):
    await up.write(pool(scaling={"minReplicas": 1})).start()
    await eventually(lambda: living(database), why=f"one is there: {up}")
    (job,) = await hold(client, "go")
    run = await effects.begun(job)

    env = [{"name": "JOEX_LOG_LEVEL", "value": "debug"}]
    template = {"spec": {"containers": [{"name": "executor", "env": env}]}}
    up.write(pool(scaling={"minReplicas": 1}, template=template))
    up.process.send_signal(signal.SIGHUP)
    await up.told("Draining", "docs-0: template")
    assert run["pid"] in {executor.pid for executor in up.executors()}, "it finishes what it runs"
    await effects.flag("go")
    assert await effects.all_finished([job]) == {"success": 1}

    async def replaced() -> list[psutil.Process] | None:
        now, found = await living(database), up.executors()
        # (One that has left the database is a process for a moment longer; a fork looks like its parent for a moment.)
        is_settled = sorted(one.pid for one in found) == sorted(now.values())
        return found if is_settled and run["pid"] not in now.values() else None

    (new,) = await eventually(replaced, why=f"another has taken its place: {up}")
    assert new.environ()["JOEX_LOG_LEVEL"] == "debug"


async def test_two_pools_have_their_own_queues_and_databases(up, client, effects, database_url, database):
    del up.environment["JOEX_DATABASE_URL"]
    up.write(
        pool("one", queues=["a"], database={"secretName": "first"}, image="of-a-cluster:1"),
        pool("two", queues=["b"], database={"secretName": "second"}),
    )
    await up.start("--database", f"first={database_url}", "--database", f"second={database_url}")
    (job,) = await hold(client, "go", queue="b")
    await effects.begun(job)
    assert set(await living(database)) == {"here/two-0"}
    assert (await up.told("NotUsed", "one spec.image"))["type"] == "Warning"
    await effects.flag("go")
    assert await effects.all_finished([job]) == {"success": 1}


async def test_an_app_that_does_not_start_is_told_with_its_last_words(up):
    await up.write(pool(app="nowhere.tasks:app", scaling={"minReplicas": 1})).start()
    said = "docs-0: exit code 2: --app: there is no module 'nowhere'"
    assert (await up.told("ExecutorEnded", said))["type"] == "Warning"
    assert (await up.told("ExecutorFailing", said))["type"] == "Warning"


async def test_there_is_one_of_a_name(up, client, tmp_path, environment):
    await up.write(pool()).start()
    second = joex(environment, "up", "-f", str(up.file), "--name", "here")
    assert second.returncode == 1
    assert second.stderr.startswith("joex: joex up already runs under the name 'here': ")
    assert f"process {up.process.pid}, with {up.file}" in second.stderr
    assert second.stdout == ""

    up.process.send_signal(signal.SIGTERM)
    assert await up.ended() == 0
    again = await Up(tmp_path, environment).start()  # the name is free again
    await again.close()


async def test_the_example_runs_and_people_can_read_what_it_says(environment, client, tmp_path):
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "joex", "up", "-f", "examples/joexpool.yaml", "--name", "here"),
        cwd=ROOT,
        env=environment,
        stdout=PIPE,
        stderr=PIPE,
    )
    file = tmp_path / "file.py"
    file.write_text("import os\n")
    job_id = await client.submit("documents.count", {"path": str(file)})

    async def is_done() -> bool:
        job = await client.get(job_id)
        return job is not None and job.state == "success"

    try:
        await eventually(is_done, why="the job runs")
        process.send_signal(signal.SIGTERM)
    finally:
        out, err = (text.decode() for text in await asyncio.wait_for(process.communicate(), PATIENCE))
    lines = [line.split(maxsplit=2) for line in out.splitlines()]
    assert process.returncode == 0, err
    assert lines[0][1:] == [
        "documents",
        "Loaded          0 to 4 executors with 2 slots each, for default (examples/joexpool.yaml, document 1)",
    ]
    assert ["documents", "Added           documents-0: demand"] in [line[1:] for line in lines]
    assert lines[-1][1] == "here"
    assert all(line.startswith("documents-0 | ") for line in err.splitlines()), err
    assert "registered" in err


def test_a_wrong_file_is_one_line_and_nothing_is_started(tmp_path):
    file = tmp_path / "pool.yaml"
    file.write_text(yaml.safe_dump_all([pool("right"), pool("wrong", poolSize=0)]))
    done = joex({"TMPDIR": str(tmp_path)}, "up", "-f", str(file))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"joex: {file}, document 2: spec.poolSize: "), done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-f", "missing.yaml"], "missing.yaml: No such file or directory"),
        (["-f", "examples/joexpool.yaml", "--name", "a/b"], "--name: expected letters, digits"),
        (["-f", "examples/joexpool.yaml", "--database", "joex-db"], "--database: expected SECRET=URL"),
        (
            ["-f", "examples/joexpool.yaml", "--database", "joex-db=mysql://x"],
            "--database joex-db: expected postgresql://",
        ),
        (
            ["-f", "examples/joexpool.yaml", "--database", "joexdb=postgresql://h/d"],
            "--database joexdb: no pool has this secretName; the files have: joex-db",
        ),
        (["-f", "examples/joexpool.yaml", "--database-url", "nonsense"], "--database-url: expected postgresql://"),
        (
            ["-f", "examples/joexpool.yaml", "--database", "postgresql://u:secret=x@h/d"],
            "--database: expected SECRET=URL",
        ),
        (
            ["-f", "examples/joexpool.yaml", "--database-file", "joex-db=secret"],
            "--database-file joex-db: can't read this file: No such file or directory",
        ),
        (
            ["-f", "examples/joexpool.yaml", "--database", "a=postgresql://h", "--database-file", "a=b"],
            "--database-file a: this database is given twice",
        ),
    ],
)
def test_a_wrong_argument_is_one_line(tmp_path, arguments, said):
    done = joex({"TMPDIR": str(tmp_path)}, "up", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"joex: {said}")
    assert done.stderr.count("\n") == 1
    assert "secret" not in done.stderr.replace("secretName", "")


def test_the_help_shows_the_commands_that_are_brought_and_loads_nothing_heavy_for_it():
    code = "import sys; from joex.cli.app import app; app(['--help'], standalone_mode=False); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *shown, loaded = done.stdout.splitlines()
    for name in ("up", "operator"):
        assert any(line.startswith(f"│ {name} ") for line in shown), shown
    assert not {"yaml", "kopf", "kubernetes", "fastapi"} & set(loaded.split())


def test_a_command_whose_libraries_are_missing_says_what_to_install():
    code = "import sys; sys.modules['yaml'] = None; from joex.cli import main; sys.argv[1:] = ['up', '-f', 'x']; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "joex: the command \"up\" needs the extra: pip install 'joex[executor]'\n"


def joex(environment: Mapping[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [*loaded.command("joex"), *arguments],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )

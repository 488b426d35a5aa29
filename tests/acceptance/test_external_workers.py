"""The workers of examples/workers beside executors, as real processes on a real server, and under load."""

import asyncio
import os
import re
import signal
import sys
from asyncio.subprocess import Process
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from tests.support.apps import AnyClient
from tests.support.commands import running
from tests.support.deliveries import COMMAND, EXECUTOR, OVERLAPPING, TABLE
from tests.support.postgres import TestServer
from tests.support.waiting import PATIENCE, eventually

WORKERS = Path(__file__).parents[2] / "examples" / "workers"
ROOT = Path(__file__).parents[2]
JOBS, GROUPS, AT_ONCE = 300, 5, 30
WAY, FAR = 0.1, 3600.0
"""Seconds that a delivery takes."""
TIMEOUT = "2s"
TOKEN = "0123456789abcdef"
"""Between two reports."""
_ENDED = re.compile(r"^(\w+) ([0-9a-f-]{36})", re.MULTILINE)


@dataclass
class Worker:
    """A program of examples/workers, in its own process group, with its children."""

    name: str
    process: Process
    output: Path

    def send(self, number: signal.Signals) -> None:
        """Send all its processes a signal."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    async def leave(self) -> None:
        """Send SIGTERM, and wait for its exit."""
        self.process.terminate()
        await asyncio.wait_for(self.process.wait(), PATIENCE)

    async def told(self, answer: str, job: UUID) -> None:
        """Wait until the end of a run of this job here has this answer."""
        await eventually(lambda: job in self.ends(answer), why=f"{self.name} gets {answer}")

    def ends(self, answer: str) -> list[UUID]:
        """The jobs whose runs here ended with this answer."""
        return [UUID(job) for found, job in _ENDED.findall(self.output.read_text()) if found == answer]


class Workers:
    """Starts workers, and kills the remaining ones at the end."""

    def __init__(self, folder: Path, url: str, psql: Path) -> None:
        self._folder = folder
        self._all: list[Worker] = []
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("JOEX_", "PG"))}
        ours = {"JOEX_DATABASE_URL": url, "DATABASE": url, "PSQL": str(psql), "JOEX_WAIT": "1"}
        self._environment = clean | ours

    async def python(self, name: str, **environment: str) -> Worker:
        """Start the worker in Python."""
        return await self._start(name, sys.executable, "-u", WORKERS / "worker.py", "deliver", **environment)

    async def shell(self, name: str, http: str, command: str = COMMAND, **environment: str) -> Worker:
        """Start the worker in a shell, with a command for each job."""
        run = ("sh", "-c", command)
        return await self._start(name, WORKERS / "worker.sh", "deliver", *run, JOEX_HTTP=http, **environment)

    async def _start(self, name: str, *command: Any, **environment: str) -> Worker:
        output = self._folder / name
        ours = {"JOEX_WORKER": name, "TMPDIR": str(self._folder), **environment}
        with output.open("wb") as file:
            process = await asyncio.create_subprocess_exec(
                *command, env=self._environment | ours, stdout=file, stderr=file, start_new_session=True
            )
        self._all.append(Worker(name, process, output))
        return self._all[-1]

    async def close(self) -> None:
        """Kill all."""
        for worker in self._all:
            worker.send(signal.SIGKILL)
            await worker.process.wait()
            print(f"{worker.name}:\n{worker.output.read_text()}")  # pytest shows it


@pytest.fixture
async def workers(tmp_path: Path, database_url: str, postgres: TestServer) -> AsyncIterator[Workers]:
    made = Workers(tmp_path, database_url, postgres.binaries / "psql")
    yield made
    await made.close()


@asynccontextmanager
async def an_executor(client: AnyClient, url: str, app_id: str, **settings: str) -> AsyncIterator[str]:
    """Start an executor process; returns the address of its HTTP interface."""
    command = "joex executor --app tests.support.deliveries:app --http-address 127.0.0.1:0"
    environment = {f"JOEX_{name.upper()}": value for name, value in settings.items()}
    async with running(command, ROOT, url, "registered", JOEX_APP_ID=app_id, **environment):
        asked = "SELECT http_address FROM joex_private.executor WHERE app_id = $1 AND left_at IS NULL"
        async with client.acquire() as connection:
            address = await connection.fetchval(asked, app_id)
        yield f"http://{address}"


class Load:
    """Parcels of several tenants, as submitted jobs and as keyed jobs, for as long as the test needs."""

    def __init__(self, client: AnyClient, connection: asyncpg.Connection) -> None:
        self._client = client
        self._connection = connection
        self.jobs: list[UUID] = []

    async def keep_up(self) -> None:
        """Submit more jobs if few are left."""
        waiting = await self._connection.fetchval("SELECT count(*) FROM joex_private.job WHERE lane IS NOT NULL")
        if waiting < AT_ONCE:
            await self.submit(AT_ONCE)

    async def submit(self, jobs: int) -> None:
        """Submit this many jobs."""
        first = len(self.jobs)
        async with self._client.acquire() as connection, connection.transaction():
            for parcel in range(first, first + jobs):
                group, data = f"tenant {parcel % GROUPS}", {"parcel": parcel, "seconds": WAY}
                if parcel % 2:
                    job = await self._client.submit(
                        "deliver", data, group=group, queue="deliver", connection=connection
                    )
                else:
                    opts = {"data": data, "priority": parcel % 3}
                    job = await self._client.keyed.add(
                        "deliver", ("parcel", parcel), opts, group=group, connection=connection
                    )
                self.jobs.append(job)

    async def delivered(self, worker: str, jobs: int) -> None:
        """Wait until a worker has delivered this many, while there is work for all."""

        async def enough() -> bool:
            await self.keep_up()
            asked = "SELECT count(*) >= $2 FROM delivery WHERE worker = $1 AND ended IS NOT NULL"
            return bool(await self._connection.fetchval(asked, worker, jobs))

        await eventually(enough, why=f"{worker} delivers {jobs} parcels")

    async def stopped_on_the_way(self, worker: Worker) -> asyncpg.Record:
        """Stop a worker in the middle of a run; returns the run. If it has none, let it continue, and stop it again."""

        async def on_the_way() -> asyncpg.Record | None:
            await self.keep_up()
            worker.send(signal.SIGSTOP)
            # (Neither row is locked, so the worker is in no transaction, which would stay open while it is stopped.)
            found = await self._connection.fetchrow(
                """
                SELECT d.run, d.job FROM delivery d JOIN joex_private.job j ON j.id = d.job AND j.lock_id = d.run
                WHERE d.worker = $1 AND d.ended IS NULL AND j.state = 'running' FOR UPDATE SKIP LOCKED
                """,
                worker.name,
            )
            if found is None:
                worker.send(signal.SIGCONT)
            return found

        found: asyncpg.Record = await eventually(on_the_way, why=f"{worker.name} is on the way")
        return found

    async def given_to_another(self, run: asyncpg.Record) -> None:
        """Wait until another run has the job of a run."""
        asked = "SELECT lock_id IS NOT NULL AND lock_id <> $2 FROM joex_private.job WHERE id = $1"
        await eventually(lambda: self._connection.fetchval(asked, *(run["job"], run["run"])), why="another has the job")

    async def all_finished(self) -> None:
        """Wait until all jobs are finished."""
        asked = "SELECT count(*) = $1 FROM joex_private.job WHERE finished_at IS NOT NULL"
        await eventually(lambda: self._connection.fetchval(asked, len(self.jobs)), why="all are finished")


@pytest.mark.heavy
@pytest.mark.postgres
async def test_executors_and_workers_in_python_and_in_a_shell_run_all_jobs_under_load_and_none_twice_at_a_time(
    client: AnyClient, connection: asyncpg.Connection, database_url: str, workers: Workers
) -> None:
    await connection.execute(TABLE)
    await client.keyed.set_timeout("deliver", activity=TIMEOUT)
    load = Load(client, connection)
    await load.submit(AT_ONCE)
    async with AsyncExitStack() as stack:
        first, _ = await asyncio.gather(
            *(
                stack.enter_async_context(
                    an_executor(client, database_url, app_id, queues="deliver", retry_delay="100ms")
                )
                for app_id in ("one", "two")
            )
        )
        python, shell = await workers.python("python 1"), await workers.shell("shell 1", first)
        for name in (EXECUTOR, python.name, shell.name):
            await load.delivered(name, 5)

        # One of each kind dies in the middle of a run.
        killed = []
        for worker in (python, shell):
            killed.append(await load.stopped_on_the_way(worker))
            worker.send(signal.SIGKILL)

        # Their replacements are late: other workers have their jobs meanwhile, and they get worker_conflict.
        late = [await workers.python("python 2"), await workers.shell("shell 2", first)]
        for worker in late:
            await load.delivered(worker.name, 1)
        lost = [await load.stopped_on_the_way(worker) for worker in late]
        for run in (*killed, *lost):
            await load.given_to_another(run)
        for worker, run in zip(late, lost, strict=True):
            worker.send(signal.SIGCONT)
            await worker.told("worker_conflict", run["job"])
            await load.delivered(worker.name, 3)

        await load.submit(max(0, JOBS - len(load.jobs)))
        await load.all_finished()
        for worker in late:
            await worker.leave()

    states = await connection.fetch("SELECT state::text, count(*) FROM joex_private.job GROUP BY 1")
    assert [tuple(row) for row in states] == [("success", len(load.jobs))]
    assert await connection.fetch(OVERLAPPING) == []
    by_others = await connection.fetch("SELECT job FROM delivery WHERE worker NOT LIKE 'shell%' AND ended IS NOT NULL")
    by_shells = Counter(job for name in (shell, late[1]) for job in name.ends("ok"))
    assert Counter(row["job"] for row in by_others) + by_shells == Counter(load.jobs), "each is delivered once"


async def a_worker(kind: str, workers: Workers, http: str, **environment: str) -> Worker:
    """A worker of this kind."""
    return await (workers.shell(kind, http, **environment) if kind == "shell" else workers.python(kind, **environment))


@pytest.fixture
async def http(client: AnyClient, connection: asyncpg.Connection, database_url: str) -> AsyncIterator[str]:
    """The HTTP interface of an executor that leaves the jobs to others."""
    await connection.execute(TABLE)
    async with an_executor(client, database_url, "one", queues="other", api_token=TOKEN) as address:
        yield address


@pytest.mark.parametrize("kind", ["python", "shell"])
async def test_a_worker_reports_as_long_as_it_works_and_stops_when_its_job_is_cancelled(
    client: AnyClient, connection: asyncpg.Connection, workers: Workers, http: str, kind: str
) -> None:
    await client.keyed.set_timeout("deliver", activity="1h")
    job = await client.keyed.add("deliver", 1, {"data": {"parcel": 1, "seconds": FAR}})
    worker = await a_worker(kind, workers, http, JOEX_REPORT_EVERY="0.05", JOEX_API_TOKEN=TOKEN)
    await client.wait(job, states=["running"], timeout=PATIENCE)
    reports: set[Any] = set()

    async def has_reported() -> bool:
        reports.add(await connection.fetchval("SELECT overdue_at FROM joex_private.job WHERE id = $1", job))
        return len(reports) > 3

    await eventually(has_reported, why="it reports again and again")

    await client.cancel(job)
    assert (await client.wait(job, timeout=PATIENCE)).state == "cancelled"
    await worker.told("canceled", job)
    next_one = await client.keyed.add("deliver", 2, {"data": {"parcel": 2, "seconds": 0}})
    assert (await client.wait(next_one, timeout=PATIENCE)).state == "success"


@pytest.mark.parametrize(("kind", "error"), [("python", "KeyError('seconds')"), ("shell", 'no "way" to \\ there')])
async def test_a_run_that_fails_is_tried_again_and_its_job_says_why(
    client: AnyClient, workers: Workers, http: str, kind: str, error: str
) -> None:
    command = "echo one line; printf 'no \"way\" \tto \\\\ there\\n'; exit 3"
    job = await client.keyed.add("deliver", 1, {"data": {"parcel": 1}})
    await (workers.shell(kind, http, command, JOEX_API_TOKEN=TOKEN) if kind == "shell" else workers.python(kind))
    assert (await client.wait(job, states=["stuck"], timeout=PATIENCE)).error == error


async def test_a_worker_in_python_that_is_to_leave_gives_back_what_it_runs(
    client: AnyClient, connection: asyncpg.Connection, workers: Workers
) -> None:
    await connection.execute(TABLE)
    job = await client.keyed.add("deliver", 1, {"data": {"parcel": 1, "seconds": FAR}})
    worker = await workers.python("python")
    await eventually(lambda: connection.fetchval("SELECT count(*) = 1 FROM delivery"), why="it is on the way")
    await worker.leave()
    assert worker.process.returncode == 0
    stored = await client.get(job)
    assert (stored.state, stored.attempt) == ("waiting", 0)


async def test_a_worker_in_a_shell_that_is_to_leave_finishes_what_it_runs(
    client: AnyClient, tmp_path: Path, workers: Workers, http: str
) -> None:
    go = tmp_path / "go"
    command = f'test "$JOEX_JOB"; while ! test -e {go}; do sleep 0.05; done; echo "gone at last"'
    job, later = [await client.keyed.add("deliver", nr, {"data": {"parcel": nr}}) for nr in range(2)]
    worker = await workers.shell("shell", http, command, JOEX_API_TOKEN=TOKEN)
    await client.wait(job, states=["running"], timeout=PATIENCE)
    worker.process.terminate()
    go.touch()
    await worker.leave()
    assert worker.process.returncode == 0
    done, left = await client.get(job), await client.get(later)
    assert (done.state, done.message, left.state) == ("success", "gone at last", "waiting")
    assert {file.name for file in os.scandir(tmp_path)} == {"shell", "go"}, "it leaves no files"


async def test_a_worker_in_a_shell_says_why_it_is_refused(workers: Workers, http: str) -> None:
    worker = await workers.shell("shell", http, "true", JOEX_API_TOKEN="wrong")
    assert await asyncio.wait_for(worker.process.wait(), PATIENCE) == 1
    assert worker.output.read_text().startswith('worker.sh: {"detail":"the token of this call')

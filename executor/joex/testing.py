"""Run submitted jobs inside a test, on a real database, without an executor.

>>> async def test_an_order_is_confirmed(connection):  # doctest: +SKIP
...     await shop.place_order(connection, "A-7")  # which submits a job
...     [job] = await drain(app, connection)
...     assert job.result == {"confirmed": "A-7"}

With a connection, all of it happens in the connection's open transaction, so that a test can roll it back in the end.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from functools import partial
from importlib.metadata import version
from uuid import uuid4

from joex.app import App
from joex.client.client import Client
from joex.context import ConnectionSource
from joex.core.job import State, TakenJob
from joex.core.priority_turns import CountingScheme
from joex.errors import JoexError
from joex.runtime.calling import blocking_connection
from joex.runtime.finisher import End
from joex.runtime.identity import this_process
from joex.runtime.processes import runs_in_process
from joex.runtime.run import Defaults
from joex.runtime.runner import Runner
from joex.runtime.text import storable
from joex.store import executors, job_logs, jobs, runs, stats
from joex.store.errors import translated
from joex.store.executors import NewExecutor
from joex.store.job_logs import LogEntry
from joex.store.jobs import Job
from joex.store.runs import LogLine, Progress
from joex.store.statement import Connection

_MOST_LOSSES = 5
_SCHEME = CountingScheme(4, 1)


class RunFailed(JoexError):
    """A run failed. The message has the job's log; ``job`` is the job as it is stored."""

    def __init__(self, job: Job, log: Sequence[LogEntry]) -> None:
        said = "".join(f"\n  {line}" for entry in log for line in entry.message.splitlines())
        super().__init__(f"job {job.id} of task {job.task!r} is {job.state}: {job.error}{said}")
        self.job = job


async def drain(
    app: App,
    database: Connection | Client,
    *,
    queues: Collection[str] | None = None,
    early: bool = False,
    raise_failures: bool = True,
    retries: int = 5,
    processes: bool = False,
    most: int = 10_000,
) -> list[Job]:
    """Run jobs one after the other, in the order in which an executor with one slot takes them, until none is left.

    This includes jobs that the runs submit. Runs work as in an executor: Joex checks their arguments, transactions
    finish jobs, failed jobs wait for their retry.

    Args:
        app: the tasks.
        database: an asyncpg connection: if it has an open transaction, all of it happens there (if a task raises, its
            writes on a connection of its context are rolled back); or a client: then each step commits, as in an
            executor.
        queues: run only jobs of these queues.
        early: run jobs now that are due later, retries included, instead of leaving them.
        raise_failures: raise `RunFailed` at the first run that fails, after its end is written.
        retries: retries of a failed job, unless the task or the job sets them.
        processes: as the setting of executors: the plain functions are of processes, unless their tasks say otherwise.
        most: the most runs.

    Returns:
        The jobs in the order of their runs, each as it was stored after the run; a retried job once for each run. Those
        that are removed by then are left out.

    Raises:
        RunFailed: see ``raise_failures``.
        RuntimeError: there was still work after ``most`` runs.
    """
    done: list[Job] = []
    ran = 0
    async with _opened(database) as (connection, connections):
        slot = await _Slot.open(connection, app, connections, retries, processes=processes, url=_url_of(database))
        try:
            while (taken := await slot.take(queues, early=early)) is not None:
                if ran == most:
                    raise RuntimeError(f"drain: there is still work after {most} runs: next is task {taken.task!r}")
                ran += 1
                if (job := await slot.run(taken)) is None:
                    continue
                done.append(job)
                if raise_failures and job.state in (State.STUCK, State.FAILED):
                    raise RunFailed(job, await job_logs.job_log(connection, taken.id))
        finally:
            await slot.close()
    return done


class _Slot:
    """The slot of a short-lived executor. The runner reports to it, and it stores these reports after the run."""

    def __init__(self, connection: Connection, executor: int, runner_of: Callable[[_Slot], Runner]) -> None:
        self._connection = connection
        self._executor = executor
        self._runner = runner_of(self)
        self._ends: list[End] = []
        self._lines: list[LogLine] = []
        self._progress: Progress | None = None

    @classmethod
    async def open(
        cls,
        connection: Connection,
        app: App,
        connections: ConnectionSource,
        retries: int,
        *,
        processes: bool,
        url: str | None,
    ) -> _Slot:
        """Register the executor. It keeps no lease: no other executor has to notice the end of so short a life."""
        process = this_process()
        me = NewExecutor(
            app_id=f"joex.testing-{uuid4()}",
            pod_uid=None,
            host=process.host,
            boot_id=process.boot,
            pid=process.pid,
            process_start=process.start,
            version=version("joex"),
            queues=["default"],
            tasks=app.names,
            pool_size=1,
            most_losses=_MOST_LOSSES,
            http_address=None,
            lease=timedelta(hours=1),
            locks=False,
        )
        async with _step(connection):
            registered = await executors.register(connection, me)
        if registered.id is None:
            raise RuntimeError("a new app-id is in use")
        limits = await runs.size_limits(connection)
        opened = None if url is None else partial(blocking_connection, url)

        def runner_of(slot: _Slot) -> Runner:
            defaults = Defaults(retries, timedelta(minutes=1), None)
            return Runner(
                app,
                1,
                defaults,
                finisher=slot,
                reports=slot,
                connections=lambda _: connections,
                sync_connections=lambda task: opened if runs_in_process(task, by_default=processes) else None,
                fetch=lambda job: runs.arguments(connection, job.id, job.lock_id),
                mark_start=lambda job: runs.mark_start(connection, job.id, job.lock_id),
                largest_result=limits.result,
                is_trusted=lambda: True,
                on_room=lambda: None,
                on_overrun=lambda _: None,
                emit=lambda _: None,
            )

        return cls(connection, registered.id, runner_of)

    async def take(self, queues: Collection[str] | None, *, early: bool) -> TakenJob | None:
        """Take the next job, or None."""
        async with _step(self._connection):
            served = list(queues or []) or [queue.queue for queue in await stats.queue_stats(self._connection)]
            for queue in served:
                await executors.serve(self._connection, queue)
            taken = await runs.take(self._connection, self._executor, served, 1, _SCHEME)
            if not taken and early and await jobs.bring_forward(self._connection, served):
                taken = await runs.take(self._connection, self._executor, served, 1, _SCHEME)
            return taken[0] if taken else None

    async def run(self, taken: TakenJob) -> Job | None:
        """Run a job, and store its end; None: it has been removed."""
        self._runner.start(taken)
        run = self._runner.runs[taken.lock_id]
        if run.worker is not None:
            await run.worker
        lines, progress, ends = self._lines, self._progress, self._ends
        self._lines, self._progress, self._ends = [], None, []
        await runs.note_many(self._connection, lines, [] if progress is None else [progress])
        unusual = await runs.finish_many(self._connection, ends)
        if [answer for _, answer in unusual] == ["canceled"] and ends[0].state != State.CANCELLED:
            self._runner.clean_up(taken, self._runner.release)
            if run.worker is not None:
                await run.worker
        self._runner.release([taken])
        return await jobs.get_job(self._connection, taken.id)

    async def close(self) -> None:
        """End the registration, if the database still takes it."""
        self._runner.close()
        with suppress(JoexError):
            async with _step(self._connection):
                await executors.leave(self._connection, self._executor)

    # The runner calls these (`Ends` and `RunReports`).

    def started(self, job: TakenJob, at: float) -> None:
        """Mark nothing: no reader sees the run while it lasts."""

    def ended(self, end: End) -> None:
        """Keep the end of the run."""
        self._ends.append(end)

    def forget(self, job: TakenJob) -> None:
        """Write nothing about this run."""

    def log(self, job: TakenJob, level: str, message: str) -> None:
        """Keep a line of the log."""
        self._lines.append(LogLine(job.id, job.lock_id, job.attempt + 1, 0.0, level, storable(message)))

    def progress(self, job: TakenJob, percent: int, message: str | None) -> None:
        """Keep the latest progress."""
        said = None if message is None else storable(message, 1000)
        self._progress = Progress(job.id, job.lock_id, percent, said)


@asynccontextmanager
async def _step(connection: Connection) -> AsyncIterator[None]:
    """A READ COMMITTED transaction, as in an executor, whatever the default of the connection is; or the open one."""
    if connection.is_in_transaction():
        yield
        return
    with translated():
        async with connection.transaction(isolation="read_committed"):
            yield


class _OneConnection(ConnectionSource):
    """The one connection, for tasks too. If it has an open transaction, a task that raises does not abort it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[Connection]:
        if not self._connection.is_in_transaction():
            yield self._connection
            return
        async with self._connection.transaction():
            yield self._connection


def _url_of(database: Connection | Client) -> str | None:
    return database.connections.url if isinstance(database, Client) else None


@asynccontextmanager
async def _opened(database: Connection | Client) -> AsyncIterator[tuple[Connection, ConnectionSource]]:
    """A connection for the drain, and connections for tasks."""
    if isinstance(database, Client):
        async with database.acquire() as connection:
            yield connection, database
    else:
        yield database, _OneConnection(database)

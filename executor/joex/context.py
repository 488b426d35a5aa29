"""The context of a run: the job, its log, progress, connections. Public as ``joex.Context``."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar
from uuid import UUID

from joex.client.blocking import blocking
from joex.core.job import TakenJob
from joex.core.outcome import Judged
from joex.core.text import ErrorTexts, cut
from joex.errors import Cancel, ConfigError, Fail, InvalidJob, WorkerConflict
from joex.store import runs
from joex.store.adapters import PsycopgAdapter
from joex.store.errors import translated
from joex.store.json_text import json_text
from joex.store.statement import Connection

if TYPE_CHECKING:
    import psycopg

    SyncConnection: TypeAlias = psycopg.Connection[Any]
else:
    SyncConnection = Any

A_co = TypeVar("A_co", covariant=True)
S_co = TypeVar("S_co", covariant=True)

_EVENT_LOCK = threading.RLock()  # (a finalizer may wait, too)
_BLOCK: ContextVar[object] = ContextVar("block", default=None)
"""The block in which code is that has, or had, a connection."""
_TOLD_AFTER = 10.0  # seconds that a block waits for another one of its run, perhaps for ever, until its log says so
_WAITS = "waits for the connection of its run, which another block has: a run has one at a time"

ExcInfo: TypeAlias = (
    bool
    | BaseException
    | tuple[type[BaseException], BaseException, TracebackType | None]
    | tuple[None, None, None]
    | None
)
"""An exception, in the forms that the standard library's loggers accept."""


class RunReports(Protocol):
    """Receives log lines and progress. Both calls return at once, from any thread."""

    def log(self, job: TakenJob, level: str, message: str) -> None:
        """Keep a log line for writing, or drop it if the buffer is full."""

    def progress(self, job: TakenJob, percent: int, message: str | None) -> None:
        """Keep the latest progress for writing."""


class ConnectionSource(Protocol):
    """Lends connections."""

    def acquire(self) -> AbstractAsyncContextManager[Any]:
        """A connection, for the time of a block."""


class Block(Generic[A_co, S_co]):
    """A block of a task: ``async with`` in an async function, ``with`` in a plain one that runs in a process."""

    def __init__(
        self,
        waiting: Callable[[], AbstractAsyncContextManager[A_co]],
        blocking: Callable[[], AbstractContextManager[S_co]],
    ) -> None:
        self._waiting = waiting
        self._blocking = blocking

    async def __aenter__(self) -> A_co:
        self._entered = self._waiting()
        return await self._entered.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._entered.__aexit__(kind, error, trace)

    def __enter__(self) -> S_co:
        self._entered_blocking = self._blocking()
        return self._entered_blocking.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return self._entered_blocking.__exit__(kind, error, trace)


class JobLog:
    """Writes lines to the job's log in the database. It never blocks: when the buffer is full, it drops lines.

    ``exc_info`` is as in the standard library: True (the exception that is being handled), or an exception, whose
    traceback follows the message.
    """

    def __init__(self, job: TakenJob, reports: RunReports) -> None:
        self._job = job
        self._reports = reports

    def debug(self, message: str, *args: object, exc_info: ExcInfo = None) -> None:
        """Log detail. ``%`` fills the arguments into the message, as in the standard library."""
        self._write("debug", message, args, exc_info)

    def info(self, message: str, *args: object, exc_info: ExcInfo = None) -> None:
        """Log normal progress."""
        self._write("info", message, args, exc_info)

    def warning(self, message: str, *args: object, exc_info: ExcInfo = None) -> None:
        """Log something unusual."""
        self._write("warning", message, args, exc_info)

    def error(self, message: str, *args: object, exc_info: ExcInfo = None) -> None:
        """Log an error."""
        self._write("error", message, args, exc_info)

    def exception(self, message: str, *args: object, exc_info: ExcInfo = True) -> None:
        """Log an error, with the traceback of the exception that is being handled."""
        self._write("error", message, args, exc_info)

    def _write(self, level: str, message: str, args: tuple[object, ...], exc_info: ExcInfo) -> None:
        text = str(message) % args if args else str(message)
        error = (
            exc_info if isinstance(exc_info, BaseException) else exc_info[1] if isinstance(exc_info, tuple) else None
        )
        if error is None and exc_info and not isinstance(exc_info, tuple):
            error = sys.exception()
        if error is not None:
            text = f"{text}\n{ErrorTexts(error).trace()}"
        self._reports.log(self._job, level, text)


class Context:
    """The job that a run works on, and the first argument of every task.

    Attributes:
        job_id: the job.
        lock_id: the fencing token of this run, for `joex.finish(id, lock_id, ...)` in SQL.
        task, queue, group, priority, subject, submitter: as submitted.
        attempt: 1 for the first run.
        is_last_attempt: no retry follows if this run fails.
    """

    def __init__(
        self,
        job: TakenJob,
        *,
        retries: int,
        reports: RunReports,
        connections: ConnectionSource,
        largest_result: int,
        judge: Callable[[BaseException], Future[Judged]],
        sync_connections: Callable[[], AbstractContextManager[SyncConnection]] | None = None,
        on_finished: Callable[[], None] = lambda: None,
    ) -> None:
        self._job = job
        self._sync_connections = sync_connections  # for plain functions; None: there are none
        self._on_finished = on_finished  # called after the task's own transaction has ended the job
        self._largest_result = largest_result
        self._judge = judge
        self._reports = reports
        self._connections = connections
        self._turn: asyncio.Lock | None = None  # of the blocks of this run: it has one connection at a time
        self._open: object | None = None  # the block that has it
        self._is_asked_to_end = False
        self._end: threading.Event | None = None  # wakes threads in `wait`
        self.is_finished: bool = False
        self.message: str | None = None
        self.judged: Judged | None = None  # what code of the run knows of its end
        self.attempt: int = job.attempt + 1
        self.is_last_attempt: bool = job.failures >= retries

    @property
    def log(self) -> JobLog:
        """The job's log."""
        return JobLog(self._job, self._reports)

    @property
    def job_id(self) -> UUID:
        """The id of the job."""
        return self._job.id

    @property
    def lock_id(self) -> UUID:
        """The fencing token of this run."""
        return self._job.lock_id

    @property
    def task(self) -> str:
        """The name of the task."""
        return self._job.task

    @property
    def queue(self) -> str:
        """The queue that the job was in."""
        return self._job.queue

    @property
    def group(self) -> str:
        """The group (tenant) of the job."""
        return self._job.group

    @property
    def priority(self) -> str:
        """``high`` or ``low``."""
        return self._job.priority

    @property
    def subject(self) -> str:
        """What the job is about; Joex only shows it."""
        return self._job.subject

    @property
    def submitter(self) -> str:
        """The user or program that submitted the job; Joex only shows it."""
        return self._job.submitter

    @property
    def cancelled(self) -> bool:
        """Whether this run should end: its job was cancelled or timed out, or the executor exits. For threads.

        A process is ended instead; there it is True while the code cleans up (``finally``).
        """
        return self._is_asked_to_end

    def check_cancelled(self) -> None:
        """Raise `joex.Cancel` if the run should end. Call it in threads, at points where the code can stop."""
        if self._is_asked_to_end:
            raise Cancel("the run was asked to end")

    def wait_cancelled(self, seconds: float) -> bool:
        """Wait in a thread for up to ``seconds``; True as soon as the run should end."""
        with _EVENT_LOCK:  # (created on demand: an event costs more than the rest of a context, and few runs wait)
            end = self._end = self._end or threading.Event()
        # Read after the event is set up, so that no request is missed.
        return self._is_asked_to_end or end.wait(seconds)

    def ask_to_end(self) -> None:
        """Set `cancelled`. Called by the executor."""
        self._is_asked_to_end = True
        if self._end is not None:
            self._end.set()

    def note_end(self) -> None:
        """The task's own transaction has ended the job. Called by the executor."""
        self.is_finished = True
        self._on_finished()

    def result_text(self, result: Any) -> str | None:
        """A result as JSON text. Called by the executor.

        Raises:
            Fail: the result can't be stored, or is too large. (A retry would give the same result, so there is none.)
        """
        try:
            return None if result is None else json_text("result", result, self._largest_result)
        except InvalidJob as error:
            raise Fail(str(error)) from error

    def judge(self, error: BaseException) -> Future[Judged]:
        """What this error makes of the run, for code that goes on after it. Called by the backend of Django."""
        return self._judge(error)

    def end_by(self, error: BaseException) -> Judged | None:
        """What this error makes of the run, if that is known already. Called by the executor."""
        known, self.judged = self.judged, None  # (a traceback has this context, too: the two would be a cycle)
        return known if known is not None and known.error is error else None

    def connection(self) -> Block[Connection, SyncConnection]:
        """A connection to the executor's database, for the time of an ``async with`` block.

        A run has one at a time: another block waits until this one has ended.

        A plain function that runs in a process writes ``with``, and gets a connection of psycopg.

        Raises:
            ConfigError: the block is inside of another one of this run.
        """
        return Block(self._lent, self._blocking_connection)

    @asynccontextmanager
    async def _lent(self) -> AsyncIterator[Connection]:
        # (An asyncio task that is made in a block has the block's variable, too: the block may wait for it.)
        if self._open is not None and _BLOCK.get() is self._open:
            raise ConfigError(
                "this code is in a block that has the connection of its run, and wants another one: end the block of "
                "ctx.connection() before ctx.transaction(), or use one connection for both"
            )
        self._turn = self._turn or asyncio.Lock()
        timer = asyncio.get_running_loop().call_later(_TOLD_AFTER, self.log.warning, _WAITS)
        try:
            await self._turn.acquire()
        finally:
            timer.cancel()
        try:
            async with self._connections.acquire() as connection:
                self._open = object()
                _BLOCK.set(self._open)
                yield connection
        finally:
            self._open = None
            self._turn.release()

    def progress(self, percent: float, message: str | None = None) -> None:
        """Report progress: 0 to 100, and a message. Joex writes the latest report in the background."""
        self._reports.progress(self._job, max(0, min(100, int(percent))), message)

    def transaction(self, result: Any = None, message: str | None = None) -> Block[Connection, SyncConnection]:
        """A transaction whose commit also finishes the job: the task's own writes and the job's end, or neither.

        Use it once, as the last step of the task: ``async with`` in an async function, ``with`` in a plain one that
        runs in a process. The job's result is ``result``; Joex ignores what the task returns afterwards. In a thread,
        do the same with another driver: run ``SELECT joex.finish(id, lock_id, result)`` as the last statement of your
        transaction, and roll back unless it answers ``ok``.

        Raises:
            WorkerConflict: the run has lost its job; everything is rolled back.
            Cancel: the job was cancelled; everything is rolled back.
            Fail: the result can't be stored; everything is rolled back.
        """
        return Block(lambda: self._transaction(result, message), lambda: self._blocking_transaction(result, message))

    @asynccontextmanager
    async def _transaction(self, result: Any, message: str | None) -> AsyncIterator[Connection]:
        text = self.result_text(result)
        async with self._lent() as connection:
            async with connection.transaction():
                yield connection
                await self._finish(connection, text, message)
            self.note_end()

    @contextmanager
    def _blocking_transaction(self, result: Any, message: str | None) -> Iterator[SyncConnection]:
        text = self.result_text(result)
        with self._blocking_connection() as connection:
            with connection.transaction():
                yield connection
                blocking(self._finish(PsycopgAdapter(connection), text, message))
            self.note_end()

    async def _finish(self, connection: Any, text: str | None, message: str | None) -> None:
        said = None if message is None else cut(message)
        try:
            with translated():
                answer = await runs.finish(connection, self._job.id, self._job.lock_id, text, said)
        except InvalidJob as error:
            raise Fail(str(error)) from error
        if answer == "worker_conflict":
            raise WorkerConflict(f"job {self._job.id} does not belong to this run any more")
        if answer == "canceled":
            raise Cancel("the job was cancelled")

    def _blocking_connection(self) -> AbstractContextManager[SyncConnection]:
        if self._sync_connections is None:
            raise ConfigError(
                f"task {self._job.task!r}: `with` has a connection only in a process (process=True); in an async "
                "function write `async with`, in a thread use a connection of your own, in a test give drain a client "
                "(and processes=True, if executors have that setting)"
            )
        return self._sync_connections()

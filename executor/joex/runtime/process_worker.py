"""A process of an executor: runs the jobs that come through its channel, one after the other.

A run has the same context as elsewhere: its reports go through the channel, and its connections are the process's own.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress
from contextvars import copy_context
from functools import partial
from inspect import isawaitable
from pathlib import Path
from typing import Any
from uuid import UUID

from joex.app import App
from joex.context import Context, SyncConnection
from joex.core.job import TakenJob
from joex.core.outcome import Ending, Judged
from joex.errors import ConfigError, InvalidJob
from joex.runtime.calling import blocking_connection
from joex.runtime.judge import judged
from joex.runtime.process_channel import Channel, Message
from joex.runtime.text import storable
from joex.store.connection import BREAKS, drop
from joex.store.database import connect
from joex.store.statement import Connection
from joex.task import Task
from joex.tracing import flush, go_on_in

if sys.platform == "win32":
    raise ImportError("Windows can't fork")

_CLOSE_WITHIN = 5.0
# (Each costs a microsecond of each run, so the thirty without a name are left out.)
_RESTORED = set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}


class Worker:
    """Runs jobs of an app.

    Args:
        app: the tasks.
        url: the database, for the connections of tasks.
        name: of these connections, in pg_stat_activity.
        name_run: lets the lines that the code of a run logs name the run.
    """

    def __init__(self, app: App, url: str, name: str, name_run: Callable[[TakenJob], None]) -> None:
        self._app = app
        self._name_run = name_run
        self._connections = _Connections(url, name)

    def __call__(self, end: socket.socket, asked: int) -> None:
        """Run what comes through this end of a channel; ``asked``: see `joex.runtime.process_server.Work`."""
        self._channel = Channel(end)
        self._asked = asked
        self._context: Context | None = None
        self._is_asked_to_end = self._is_fork = False
        signal.signal(signal.SIGTERM, self._on_sigterm)
        surroundings = _Surroundings()
        threads = set(threading.enumerate())  # OpenTelemetry starts its own anew in each fork
        # (Python forgets a signal that reaches a fork before it has begun.)
        os.register_at_fork(
            before=partial(signal.pthread_sigmask, signal.SIG_BLOCK, [signal.SIGTERM]),
            after_in_parent=partial(signal.pthread_sigmask, signal.SIG_UNBLOCK, [signal.SIGTERM]),
            after_in_child=self._be_a_fork,
        )
        with suppress(_AskedToEnd):
            self._channel.send({"keeper": os.getppid()})
            while not self._is_asked_to_end and (message := self._channel.receive()) is not None:
                said = copy_context().run(self._run, message)
                if self._is_fork:
                    return
                is_exhausted = said.pop("is_exhausted", False)
                said["run"] = message["job"][1]
                said["is_clean"] = surroundings.are_restored() and not is_exhausted and not _has_left_something(threads)
                self._channel.send(said)
        with suppress(_AskedToEnd, Exception):
            flush()

    def _be_a_fork(self) -> None:
        """The code of a run has forked this process: it ends where that code ends, and at SIGTERM, as everywhere."""
        self._is_fork = True  # so it does not read its parent's next job
        self._channel.mute()  # it must not write into the middle of its parent's messages
        if signal.getsignal(signal.SIGTERM) == self._on_sigterm:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])

    def _on_sigterm(self, *_: object) -> None:
        try:
            os.read(self._asked, 1)
        except BlockingIOError:
            return
        except OSError:  # the task has closed it
            pass
        self._is_asked_to_end = True
        if self._context is not None:
            self._context.ask_to_end()
        raise _AskedToEnd

    def _run(self, message: Message) -> Message:
        """Run a job; returns the message about its end."""
        job = _job(message["job"])
        go_on_in(message["trace_context"])
        self._name_run(job)
        self._context = context = Context(
            job,
            retries=message["retries"],
            reports=_Reports(self._channel),
            connections=self._connections,
            sync_connections=self._connections.blocking,
            largest_result=message["largest_result"],
            judge=partial(_judged_early, job),
            on_finished=lambda: self._channel.send({"finished": True}),
        )
        end: Message
        try:
            with _limited(message["memory"]):
                result = context.result_text(self._called(job, context, message))
            text = None if context.message is None else storable(context.message)
            end = {"end": Ending.RETURNED.value, "result": result, "message": text}
        except _AskedToEnd:
            raise
        except _Refused as error:
            end = {"end": Ending.FAILED.value, "error": storable(str(error), 2000)}
        except BaseException as error:  # whatever a task does, its job has an end
            if self._is_fork:
                raise
            found = context.end_by(error) or judged(error, job)
            delay = found.outcome.retry_after
            end = {"end": found.outcome.ending.value, "error": found.outcome.error, "trace": found.trace}
            end["retry_after"] = None if delay is None else delay.total_seconds()
            end["is_exhausted"] = isinstance(error, MemoryError)
        self._context = None
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        return end

    def _called(self, job: TakenJob, context: Context, message: Message) -> Any:
        task = self._app.get(job.task)
        if task is None:  # (the files of the app have changed since the executor has loaded it)
            raise ConfigError(f"task {job.task!r} is unknown to the process, which has loaded the app anew")
        function = task.cancel_handler if message["is_cancel_handler"] else task.function
        if function is None:
            return None
        value = function(context, **_arguments(task, message["args"]))
        return asyncio.run(_awaited(value)) if isawaitable(value) else value


class _Refused(Exception):
    """The arguments don't fit the task."""


class _AskedToEnd(BaseException):
    """The executor ends the run. No Exception, so that tasks do not take it for an error of their own."""


class _Reports:
    """Passes reports on to the executor."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def log(self, job: TakenJob, level: str, message: str) -> None:  # noqa: ARG002 - the executor knows it
        """Pass on a line."""
        self._channel.send({"log": [level, storable(message)]})

    def progress(self, job: TakenJob, percent: int, message: str | None) -> None:  # noqa: ARG002 - likewise
        """Pass on progress."""
        self._channel.send({"progress": [percent, None if message is None else storable(message, 1000)]})


class _Connections:
    """Connections of this process, each for one block of a task."""

    def __init__(self, url: str, name: str) -> None:
        self._url = url
        self._name = name

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[Connection]:
        """A connection for the time of a block."""
        connection = await connect(self._url, name=self._name)
        try:
            yield connection
        except BREAKS:
            drop(connection)
            raise
        finally:
            if not connection.is_closed():
                with suppress(OSError, TimeoutError):
                    await connection.close(timeout=_CLOSE_WITHIN)

    def blocking(self) -> AbstractContextManager[SyncConnection]:
        """A connection of psycopg for the time of a block."""
        return blocking_connection(self._url)


def _job(fields: list[Any]) -> TakenJob:
    job = TakenJob(*fields)
    return job._replace(id=UUID(fields[0]), lock_id=UUID(fields[1]))


def _judged_early(job: TakenJob, error: BaseException) -> Future[Judged]:
    """What the code of a run has raised, judged here and now: the process has no other runs."""
    found: Future[Judged] = Future()
    found.set_result(judged(error, job, is_early=True))
    return found


def _arguments(task: Task[..., Any], args: str) -> dict[str, Any]:
    try:
        return task.parse_arguments(args)
    except InvalidJob as error:
        raise _Refused(str(error)) from error


async def _awaited(value: Awaitable[Any]) -> Any:
    return await value


@contextmanager
def _limited(memory: int | None) -> Iterator[None]:
    """Limit what the process may allocate: the kernel refuses more, and Python raises a MemoryError."""
    if memory is None or sys.platform != "linux":
        yield
        return
    import resource  # noqa: PLC0415 - other systems have none

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = memory if hard == resource.RLIM_INFINITY else min(memory, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


class _Surroundings:
    """What a run may change in its process, though the next run must find it as the app has left it."""

    def __init__(self) -> None:
        self._folder = Path.cwd()
        self._umask = os.umask(0)
        os.umask(self._umask)
        self._environment = dict(os.environ)
        self._timeout = socket.getdefaulttimeout()
        self._handlers = {number: signal.getsignal(number) for number in _RESTORED}
        self._blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])

    def are_restored(self) -> bool:
        """Restore them; False: that fails, because the folder is gone, or a handler was none of Python's."""
        for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
            signal.setitimer(timer, 0)
        for number, handler in self._handlers.items():
            if signal.getsignal(number) != handler:
                if handler is None:
                    return False
                signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._blocked)
        os.umask(self._umask)
        socket.setdefaulttimeout(self._timeout)
        if os.environ != self._environment:
            os.environ.clear()
            os.environ.update(self._environment)
        try:
            os.chdir(self._folder)
        except OSError:
            return False
        return True


def _has_left_something(threads: set[threading.Thread]) -> bool:
    """Whether the run has left threads, or processes: they would go on beside the next run, and belong to this one."""
    if not threads.issuperset(threading.enumerate()):
        return True
    keeper = os.getppid()
    with suppress(OSError):
        # What a child of this process has started, and not waited for, is a child of the keeper.
        if len(Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()) > 1:
            return True
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return False
    return True

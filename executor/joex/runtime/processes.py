"""The processes of an executor: runs that compute, crash, or can't be interrupted otherwise.

``process_server`` describes the server that forks them, and their keepers; ``process_worker`` is what they do. Each
runs one job at a time, and waits for the next one. It ends when it was asked to, when a run has left threads or
processes in it, and after the task's ``max_tasks``.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from joex import tracing
from joex.app import App
from joex.context import RunReports
from joex.core.job import TakenJob
from joex.errors import ConfigError
from joex.places import Places
from joex.runtime.process_channel import READY, Message, blocking_pair, packed
from joex.runtime.process_handle import LAST_BYTES_WITHIN, Ended, JsonText, Process, ProcessDied, is_closed
from joex.runtime.run import Run
from joex.runtime.waits import until
from joex.task import Task

GRACE = 3.0
"""Seconds that a process has to end by itself."""

_START_WITHIN = 60.0
_END_WITHIN = 5.0


class StartOfServer(NamedTuple):
    """How to start the server of processes, as it was at first: later ones replace it, and tasks may have changed this.

    Attributes:
        command: to which the number of a file descriptor is added.
        folder: in which it works; None: it is not known.
        environment: its variables.
    """

    command: list[str]
    folder: Path | None
    environment: dict[str, str]

    @classmethod
    def by(cls, command: Sequence[str]) -> StartOfServer:
        """The start by this command, here and now."""
        folder = None
        with suppress(OSError):  # it is gone
            folder = Path.cwd()
        return cls(list(command), folder, dict(os.environ))


class Processes:
    """Runs tasks in processes.

    Args:
        server: how to start the server.
        settings: what the server gets: url, name (of connections), log_format and log_level.
        by_default: whether plain functions run in processes, if their tasks do not say it.
    """

    def __init__(self, server: StartOfServer, settings: Message, *, by_default: bool) -> None:
        self._start_of_server = server
        self._settings = {**settings, "pid": os.getpid()}
        self._by_default = by_default
        self._server: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._is_serving = False
        # One start at a time: a fork takes milliseconds, and the server one processor. Runs that die need one each.
        self._starting: Places[tuple[str, str]] = Places(1)
        self._idle: list[Process] = []
        self._first = asyncio.ensure_future(self._start_server_first())

    def has(self, task: Task[..., Any]) -> bool:
        """Whether a task runs in a process."""
        return runs_in_process(task, by_default=self._by_default)

    async def call(
        self,
        run: Run,
        task: Task[..., Any],
        reports: RunReports,
        *,
        retries: int,
        largest_result: int,
        limit: float | None,
        is_cancel_handler: bool = False,
    ) -> JsonText:
        """Call a task's code, or its cancel handler; after ``limit`` seconds, or when it is cancelled, end its process.

        Raises:
            Ended: the run has not returned.
            TimeoutError: it was ended because of its limit.
        """
        message = {
            "job": [str(run.job.id), str(run.job.lock_id), *run.job._replace(args=None)[2:]],
            "args": run.args_text,
            "retries": retries,
            "largest_result": largest_result,
            "memory": task.memory,
            "is_cancel_handler": is_cancel_handler,
            "trace_context": tracing.current(),
        }
        most = 6 * largest_result + 1_000_000  # (JSON in JSON: six bytes for one are the most)
        async with self._process(run.job) as process:
            run.kill = process.kill
            try:
                return await process.run(message, run, task, reports, limit=limit, grace=GRACE, largest=most)
            finally:
                run.kill = None

    async def close(self) -> None:
        """End all processes."""
        self._first.cancel()
        await asyncio.gather(*(process.end(GRACE) for process in self._idle))
        for process in self._idle:
            process.close()
        if self._control is not None:
            self._control.close()
        if self._server is not None and not await _has_ended(self._server, _END_WITHIN):
            self._server.kill()
            self._server.wait()

    @asynccontextmanager
    async def _process(self, job: TakenJob) -> AsyncIterator[Process]:
        """A process for one run."""
        process = None
        while self._idle and process is None:
            process = self._idle.pop()
            if process.has_ended:
                process.close()
                process = None
        if process is None:
            async with self._starting.one_of(job.tenant):
                process = await self._start()
        try:
            yield process
        finally:
            if process.is_reusable and not process.has_ended:
                self._idle.append(process)
            else:
                process.close()

    async def _start(self) -> Process:
        """A new process.

        Raises:
            Ended: there is none; the error says why.
        """
        process = await self._forked() or await self._forked()  # a server that has just died is replaced
        if process is None:
            raise self._no_process()
        return process

    async def _forked(self) -> Process | None:
        if sys.platform == "win32":  # `check_processes` refuses it
            raise NotImplementedError
        server, control = await self._started_server()
        server.send_signal(signal.SIGCONT)  # the code of a run may have stopped it
        channel, its_channel = blocking_pair()
        leash, its_leash = blocking_pair()
        with its_channel, its_leash, suppress(OSError):  # (then the process is seen as ended)
            socket.send_fds(control, [b"F"], [its_channel.fileno(), its_leash.fileno()])
        process = await Process.opened(channel, leash, server)
        try:
            await process.until_ready(_START_WITHIN)
        except BaseException as error:
            process.close()
            if not isinstance(error, TimeoutError):
                raise
            self._is_serving = process.has_ended and not is_closed(control)  # it has said that it could not fork
            return None
        return process

    async def _start_server_first(self) -> None:
        """Load the app before the first run needs it."""
        with suppress(Ended):
            async with self._starting.one_of(("", "")):
                await self._started_server()

    async def _started_server(self) -> tuple[subprocess.Popen[bytes], socket.socket]:
        if self._control is not None and self._server is not None:
            if self._is_serving and self._server.poll() is None:
                return self._server, self._control
            self._server.kill()  # before it sees that its control is closed: its processes go on
            self._control.close()
        self._is_serving = False
        self._control, its_end = blocking_pair()
        command, folder, environment = self._start_of_server
        with its_end:
            # (In its own session: a terminal's signals to the executor must not reach it.)
            self._server = subprocess.Popen(  # noqa: ASYNC220, S603 - our own program; this waits for no program
                [*command, str(its_end.fileno())],
                stdin=subprocess.DEVNULL,
                cwd=folder if folder is not None and folder.is_dir() else None,
                env=environment,
                pass_fds=[its_end.fileno()],
                start_new_session=True,
            )
        self._control.setblocking(False)  # noqa: FBT003 - as the method has it
        loop = asyncio.get_running_loop()
        said = b""
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(_START_WITHIN):
                await loop.sock_sendall(self._control, packed(self._settings))
                said = await loop.sock_recv(self._control, 1)
        self._is_serving = said == READY
        if not self._is_serving:
            await _has_ended(self._server, LAST_BYTES_WITHIN)
            raise self._no_process()
        return self._server, self._control

    def _no_process(self) -> Ended:
        code = None if self._server is None else self._server.poll()
        ended = "" if code is None else f", the server of processes has ended with code {code}"
        return ProcessDied(f"no process could be started for it{ended}: see the executor's standard error")


async def _has_ended(server: subprocess.Popen[bytes], within: float) -> bool:
    """Wait so many seconds for the end of the server; returns whether it came."""
    with suppress(TimeoutError):
        async with asyncio.timeout(within):
            await until(lambda: server.poll() is not None)
    return server.poll() is not None


def check_processes(app: App, *, by_default: bool, server: Sequence[str] | None) -> bool:
    """Whether an app needs processes.

    Raises:
        ConfigError: it does, and there can be none.
    """
    name = next((task.name for task in app if runs_in_process(task, by_default=by_default)), None)
    if name is None:
        return False
    if sys.platform == "win32":
        raise ConfigError(
            f"task {name!r}: runs in a process, and Windows can't fork: use process=False, a thread, there"
        )
    if server is None:
        raise ConfigError(f"task {name!r}: runs in a process: start the executor by `joex executor --app MODULE:APP`")
    return True


def runs_in_process(task: Task[..., Any], *, by_default: bool) -> bool:
    """Whether a task runs in a process."""
    return by_default and not task.is_async if task.process is None else task.process

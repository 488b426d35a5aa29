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
from datetime import timedelta
from typing import Any, NamedTuple

from joex import tracing
from joex.context import RunReports
from joex.core.outcome import Ending, Outcome
from joex.errors import ConfigError
from joex.runtime.process_channel import (
    ASK,
    GO_ON,
    KILL,
    PAUSE_WITH_EXECUTOR,
    READY,
    STATUS,
    Message,
    NotAMessage,
    packed,
    read_message,
)
from joex.runtime.run import Run
from joex.runtime.text import storable
from joex.task import App, Task

if sys.platform != "win32":
    from joex.runtime.process_server import is_stopped

GRACE = 3.0
"""Seconds that a process has to end by itself."""

_START_WITHIN = 60.0
_LAST_BYTES_WITHIN = 5.0
_END_WITHIN = 5.0
_CHECK_EVERY = 0.25
_LINES, _PER = 1000, 0.05  # a process may log so many lines in so many seconds, which is what the log writer writes


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class JsonText(NamedTuple):
    """A result that is JSON text already; None: there is none."""

    text: str | None


class Ended(Exception):
    """A run in a process has not returned.

    Attributes:
        outcome: how it has ended.
        trace: of what it raised, for the job's log.
    """

    def __init__(self, outcome: Outcome, trace: str | None = None) -> None:
        super().__init__(outcome.error)
        self.outcome = outcome
        self.trace = trace


class ProcessDied(Ended):
    """The process of a run has died, or there could be none."""

    def __init__(self, how: str) -> None:
        super().__init__(Outcome(Ending.RAISED, how))


class Processes:
    """Runs tasks in processes.

    Args:
        server: the command of the server, to which the number of a file descriptor is added.
        settings: what the server gets: url, name (of connections), log_format and log_level.
        by_default: whether plain functions run in processes, if their tasks do not say it.
        exclusive_grace: seconds that a process of an exclusive task has to end by itself; others have `GRACE`.
    """

    def __init__(self, server: Sequence[str], settings: Message, *, by_default: bool, exclusive_grace: float) -> None:
        self._command = list(server)
        self._settings = {**settings, "pid": os.getpid()}
        self._by_default = by_default
        self._exclusive_grace = exclusive_grace
        self._server: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._is_serving = False
        self._starting = asyncio.Lock()  # one at a time: a fork takes milliseconds, and the server one processor
        self._idle: list[_Process] = []
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
        grace = self._exclusive_grace if task.exclusive else GRACE
        most = 6 * largest_result + 1_000_000  # (JSON in JSON: six bytes for one are the most)
        async with self._process() as process:
            return await process.run(message, run, task, reports, limit=limit, grace=grace, largest=most)

    async def close(self) -> None:
        """End all processes."""
        self._first.cancel()
        await asyncio.gather(*(process.end(GRACE) for process in self._idle))
        for process in self._idle:
            process.close()
        if self._control is not None:
            self._control.close()
        if self._server is not None:
            try:
                await asyncio.to_thread(self._server.wait, _END_WITHIN)
            except subprocess.TimeoutExpired:
                self._server.kill()
                self._server.wait()

    @asynccontextmanager
    async def _process(self) -> AsyncIterator[_Process]:
        """A process for one run."""
        process = None
        while self._idle and process is None:
            process = self._idle.pop()
            if process.has_ended:
                process.close()
                process = None
        if process is None:
            async with self._starting:
                process = await self._start()
        try:
            yield process
        finally:
            if process.is_reusable and not process.has_ended:
                self._idle.append(process)
            else:
                process.close()

    async def _start(self) -> _Process:
        """A new process.

        Raises:
            Ended: there is none; the error says why.
        """
        process = await self._forked() or await self._forked()  # a server that has just died is replaced
        if process is None:
            raise self._no_process()
        return process

    async def _forked(self) -> _Process | None:
        if sys.platform == "win32":  # `check_processes` refuses it
            raise NotImplementedError
        server, control = await self._started_server()
        server.send_signal(signal.SIGCONT)  # the code of a run may have stopped it
        channel, its_channel = socket.socketpair()
        leash, its_leash = socket.socketpair()
        with its_channel, its_leash, suppress(OSError):  # (then the process is seen as ended)
            socket.send_fds(control, [b"F"], [its_channel.fileno(), its_leash.fileno()])
        process = await _Process.opened(channel, leash, server)
        try:
            await process.until_ready(_START_WITHIN)
        except BaseException as error:
            process.close()
            if not isinstance(error, TimeoutError):
                raise
            self._is_serving = process.has_ended and not _is_closed(control)  # it has said that it could not fork
            return None
        return process

    async def _start_server_first(self) -> None:
        """Load the app before the first run needs it."""
        with suppress(Ended):
            async with self._starting:
                await self._started_server()

    async def _started_server(self) -> tuple[subprocess.Popen[bytes], socket.socket]:
        if self._control is not None and self._server is not None:
            if self._is_serving and self._server.poll() is None:
                return self._server, self._control
            self._server.kill()  # before it sees that its control is closed: its processes go on
            self._control.close()
        self._is_serving = False
        self._control, its_end = socket.socketpair()
        with its_end:
            # (In its own session: a terminal's signals to the executor must not reach it.)
            self._server = subprocess.Popen(  # noqa: ASYNC220, S603 - our own program; this waits for no program
                [*self._command, str(its_end.fileno())],
                stdin=subprocess.DEVNULL,
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
            with suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(self._server.wait, _LAST_BYTES_WITHIN)
            raise self._no_process()
        return self._server, self._control

    def _no_process(self) -> Ended:
        code = None if self._server is None else self._server.poll()
        ended = "" if code is None else f", the server of processes has ended with code {code}"
        return ProcessDied(f"no process could be started for it{ended}: see the executor's standard error")


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


class _Process:
    """A process, and its keeper.

    Attributes:
        is_reusable: whether it may run another job.
    """

    def __init__(self, channel: Streams, leash: Streams, server: subprocess.Popen[bytes]) -> None:
        self.is_reusable = False
        self._server = server
        self._keeper: tuple[int, int] | None = None  # its process id, and a file descriptor of it
        self._runs = 0
        self._reader, self._writer = channel
        self._leash = leash[1]
        self._gone = asyncio.ensure_future(_status(leash[0]))

    @classmethod
    async def opened(cls, channel: socket.socket, leash: socket.socket, server: subprocess.Popen[bytes]) -> _Process:
        """A process with these ends of its sockets, forked by this server."""
        if sys.platform == "win32":
            raise NotImplementedError
        first = await asyncio.open_unix_connection(sock=channel)
        return cls(first, await asyncio.open_unix_connection(sock=leash), server)

    @property
    def has_ended(self) -> bool:
        """Whether nothing of it is left."""
        return self._gone.done()

    def close(self) -> None:
        """Close the ends: its keeper kills it."""
        self._writer.close()
        self._leash.close()
        if self._keeper is not None:
            os.close(self._keeper[1])
            self._keeper = None

    async def until_ready(self, seconds: float) -> None:
        """Wait until it can run jobs.

        Raises:
            TimeoutError: it can't, or not within this time.
        """
        first = asyncio.ensure_future(read_message(self._reader, 1000))
        try:
            await asyncio.wait({first, self._gone}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if not first.done() or first.exception() is not None or (said := first.result()) is None:
                raise TimeoutError
            if sys.platform == "linux":
                with suppress(OSError):  # (a sandbox may forbid it)
                    self._keeper = said["keeper"], os.pidfd_open(said["keeper"])
        finally:
            first.cancel()

    async def run(
        self,
        message: Message,
        run: Run,
        task: Task[..., Any],
        reports: RunReports,
        *,
        limit: float | None,
        grace: float,
        largest: int,
    ) -> JsonText:
        """Run a job. Afterwards it is reusable, or nothing of it is left.

        Errors are those of `Processes.call`.
        """
        self.is_reusable = False
        if task.exclusive:
            self._order(PAUSE_WITH_EXECUTOR)
        talk = asyncio.ensure_future(self._talk(message, run, reports, largest))
        try:
            done, _ = await asyncio.wait({talk, self._gone}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self.end(grace)
            await self._last_of(talk)
            raise
        if not done:
            await self.end(grace)
            end = await self._last_of(talk)
            if end is None or end.get("end") != Ending.RETURNED.value:
                raise TimeoutError
            return _result(end)
        end = await self._end_of(talk, grace)
        self._runs += 1
        if not end.get("is_clean") or (task.max_tasks is not None and self._runs >= task.max_tasks):
            await self.end(grace)
        else:
            if task.exclusive:
                self._order(GO_ON)
            self.is_reusable = True
        return _result(end)

    async def end(self, grace: float) -> None:
        """End it: ask it, and after these seconds kill it, with all that it has started. Returns when nothing is left.

        It goes on if it is cancelled: while something is left, the run is not over.
        """
        ending = asyncio.ensure_future(self._end(grace))
        is_cancelled = False
        while not ending.done():
            try:
                await asyncio.wait({ending})
            except asyncio.CancelledError:
                is_cancelled = True
        if is_cancelled:
            raise asyncio.CancelledError

    async def _end(self, grace: float) -> None:
        if grace:
            self._order(ASK)
            await asyncio.wait({self._gone}, timeout=grace)
        if not self._gone.done():
            self._order(KILL)
        while not self._gone.done():
            self._free()
            await asyncio.wait({self._gone}, timeout=_CHECK_EVERY)

    def _free(self) -> None:
        """Undo what a run may have done: a keeper that is stopped ends nothing, nor does a stopped server."""
        if sys.platform == "linux":
            self._server.send_signal(signal.SIGCONT)
            if self._keeper is not None and is_stopped(self._keeper[0]):
                self._signal_keeper(signal.SIGKILL)  # (it may be stopped again and again)

    def _signal_keeper(self, number: signal.Signals) -> None:
        if sys.platform == "linux" and self._keeper is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._keeper[1], number)

    async def _talk(self, message: Message, run: Run, reports: RunReports, largest: int) -> Message | None:
        """Give it a job, and pass on its reports; returns its last message, None: it has none.

        That one bears the run: an end that the code of an earlier run has forged is none of this run.

        Raises:
            NotAMessage: it has written something else.
        """
        self._writer.write(packed(message))
        with suppress(OSError):
            await self._writer.drain()
        lines = 0
        while (said := await read_message(self._reader, largest)) is not None and said.get("run") != message["job"][1]:
            try:
                if "log" in said:
                    level, line = said["log"]
                    reports.log(run.job, _LEVELS[level], str(line))
                    lines += 1
                    if lines % _LINES == 0:
                        await asyncio.sleep(_PER)
                elif "progress" in said:
                    percent, text = said["progress"]
                    reports.progress(run.job, max(0, min(100, int(percent))), None if text is None else str(text))
                elif "finished" in said and run.context is not None:
                    run.context.is_finished = True
            except (KeyError, TypeError, ValueError, OverflowError):
                raise NotAMessage from None
        if said is not None and run.context is not None:
            run.context.message = said.get("message")
        return said

    async def _end_of(self, talk: asyncio.Task[Message | None], grace: float) -> Message:
        """The message about the end of a run.

        Raises:
            Ended: there is none, because the process has died, or has spoiled its channel.
        """
        try:
            end = await self._last_of(talk) if self._gone.done() else await talk
        except NotAMessage:
            await self.end(0)
            raise ProcessDied(_SPOILED) from None
        if end is None:  # it is about to be gone; or it has closed its channel
            await self.end(grace)
            raise ProcessDied(_how_it_died(self._gone.result()))
        return end

    async def _last_of(self, talk: asyncio.Task[Message | None]) -> Message | None:
        """What has come from a process that is gone."""
        done, _ = await asyncio.wait({talk}, timeout=_LAST_BYTES_WITHIN)
        if not done:
            talk.cancel()
            return None
        with suppress(NotAMessage):
            return talk.result()
        return None

    def _order(self, order: bytes) -> None:
        if sys.platform == "linux":
            self._signal_keeper(signal.SIGCONT)  # the code of a run may have stopped it
        self._leash.write(order)


async def _status(leash: asyncio.StreamReader) -> int | None:
    """How the process of a keeper ended; None: the keeper has died."""
    try:
        (status,) = STATUS.unpack(await leash.readexactly(STATUS.size))
    except (asyncio.IncompleteReadError, OSError):
        return None
    return int(status)


def _is_closed(control: socket.socket) -> bool:
    """Whether the server has closed its end, which is before its process can be waited for."""
    try:
        return not control.recv(1)
    except BlockingIOError:
        return False
    except OSError:
        return True


_SPOILED = "its process has spoiled its connection to the executor, and was ended"
_ENDINGS = {ending.value: ending for ending in Ending if ending is not Ending.GIVEN_BACK}
_LEVELS = {level: level for level in ("debug", "info", "warning", "error")}


def _result(end: Message) -> JsonText:
    """The result of a run that has ended by itself.

    Raises:
        Ended: it has not returned.
    """
    try:
        ending = _ENDINGS[end["end"]]
        if ending is Ending.RETURNED:
            return JsonText(None if end["result"] is None else str(end["result"]))
        delay = end.get("retry_after")
        error = None if end["error"] is None else storable(str(end["error"]), 2000)
        outcome = Outcome(ending, error, None if delay is None else timedelta(seconds=delay))
        trace = end.get("trace")
    except (KeyError, TypeError, ValueError, OverflowError):
        outcome, trace = Outcome(Ending.RAISED, "its process has sent an end that is none"), None
    raise Ended(outcome, None if trace is None else str(trace))


def _how_it_died(status: int | None) -> str:
    if status is None:
        return "its process is gone, together with the keeper of that process"
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"its process exited with code {code} before the task had ended"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = ": by hand, or by the kernel because memory ran out" if name == "SIGKILL" else ""
    return f"its process was killed by {name}{hint}"

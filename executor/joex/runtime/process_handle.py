"""A process of an executor, as the executor sees it: runs a job there, and ends it with all that it has started."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from datetime import timedelta
from typing import Any, NamedTuple

from joex.context import RunReports
from joex.core.outcome import Ending, Outcome
from joex.runtime.process_channel import (
    ASK,
    GO_ON,
    KILL,
    PAUSE_WITH_EXECUTOR,
    STATUS,
    Message,
    NotAMessage,
    packed,
    parsed,
    read_bytes,
    read_message,
)
from joex.runtime.run import Run
from joex.runtime.text import storable
from joex.task import Task

if sys.platform != "win32":
    from joex.runtime.process_tree import is_stopped

LAST_BYTES_WITHIN = 5.0
"""Seconds in which what a process has written before its end is here."""

_CHECK_EVERY = 0.25
_REPORTS, _BYTES, _PER = 1000, 250_000, 0.05
"""So many reports of a process, and so many bytes of them, cost it so many seconds: the loop serves other runs, too."""


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


class Process:
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
    async def opened(cls, channel: socket.socket, leash: socket.socket, server: subprocess.Popen[bytes]) -> Process:
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

    def kill(self) -> None:
        """Kill it, with all that it has started, also while it has time to end."""
        self._order(KILL)

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
        owed = 0.0
        while (body := await read_bytes(self._reader, largest)) is not None:
            said = parsed(body)
            if said.get("run") == message["job"][1]:
                if run.context is not None:
                    run.context.message = said.get("message")
                return said
            _pass_on(said, run, reports)
            owed += 1 / _REPORTS + len(body) / _BYTES
            if owed >= 1:
                await asyncio.sleep(_PER * owed)
                owed = 0.0
        return None

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
        done, _ = await asyncio.wait({talk}, timeout=LAST_BYTES_WITHIN)
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


def _pass_on(said: Message, run: Run, reports: RunReports) -> None:
    """Pass a report of a run on.

    Raises:
        NotAMessage: it is none.
    """
    try:
        if "log" in said:
            level, line = said["log"]
            reports.log(run.job, _LEVELS[level], str(line))
        elif "progress" in said:
            percent, text = said["progress"]
            reports.progress(run.job, max(0, min(100, int(percent))), None if text is None else str(text))
        elif "finished" in said and run.context is not None:
            run.context.note_end()
    except (KeyError, TypeError, ValueError, OverflowError):
        raise NotAMessage from None


def is_closed(control: socket.socket) -> bool:
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

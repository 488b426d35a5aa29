"""The process of a replica, restarted with a back-off as a kubelet does, whenever it ends by itself."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Protocol

from joex.cli.parent_watch import ParentWatch

_HEALTHY_AFTER = 60.0
"""Seconds after which a process counts as healthy."""
_LONGEST_DELAY = 300.0
_LAST_WORDS_WITHIN = 1.0
_LONGEST_LINE = 65536


class ProcessObserver(Protocol):
    """Is notified of what happens to a process."""

    def printed(self, replica: str, line: str) -> None:
        """The process has printed a line."""

    def failed(self, replica: str, problem: str, again_in: float) -> None:
        """The process has ended by itself, and restarts in so many seconds."""

    def ended(self, replica: str) -> None:
        """The process has ended, and does not restart."""


class ReplicaProcess:
    """Keeps a process running from now until `end`.

    Args:
        replica: the name of the replica.
        arguments: of the command ``joex``.
        parent_watch: the process drains when the process that holds its end has ended.
        environment: of the process.
        observer: is notified of what happens.

    Attributes:
        is_running: there is a process.
        is_backing_off: the process has failed more than once, and waits for its restart.
        has_ended: `end` was called, and there is no process any more.
        exit_code: of the last process that has ended; negative: the signal that killed it.
    """

    def __init__(
        self,
        replica: str,
        arguments: Sequence[str],
        parent_watch: ParentWatch,
        environment: Mapping[str, str],
        observer: ProcessObserver,
    ) -> None:
        self.replica = replica
        self.has_ended = False
        self.is_backing_off = False
        self.exit_code: int | None = None
        self._arguments = arguments
        self._parent_watch = parent_watch
        self._environment = environment
        self._observer = observer
        self._process: asyncio.subprocess.Process | None = None
        self._problem: str | None = None
        self._last_line = ""
        self._began = 0.0
        self._ending = asyncio.Event()
        self._keeping = asyncio.create_task(self._keep())

    @property
    def is_running(self) -> bool:
        """Whether there is a process."""
        return self._process is not None

    @property
    def running_since(self) -> datetime | None:
        """Since when the process runs; None: there is none."""
        return datetime.now(UTC) - timedelta(seconds=self._age()) if self.is_running else None

    @property
    def problem(self) -> str | None:
        """Why the process does not stay up; None: it is healthy, or has not failed."""
        is_healthy = self.is_running and self._age() >= _HEALTHY_AFTER
        return None if is_healthy else self._problem

    def end(self, within: float) -> None:
        """Drain the process, and kill it if it has not ended within so many seconds. A second call does nothing."""
        if not self._ending.is_set():
            self._ending.set()
            self.signal(signal.SIGTERM)
            asyncio.get_running_loop().call_later(within, self.signal, signal.SIGKILL)

    def signal(self, number: signal.Signals) -> None:
        """Send the process a signal."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def ended(self) -> None:
        """Wait until the process has ended, after `end`."""
        await self._keeping

    async def _keep(self) -> None:
        failures = 0
        while not self._ending.is_set():
            self._began = asyncio.get_running_loop().time()
            problem = await self._run()
            failures = 1 if self._age() >= _HEALTHY_AFTER else failures + 1
            if not self._ending.is_set():
                await self._wait_to_start_again(problem, failures)
        self.has_ended = True
        self._observer.ended(self.replica)

    async def _wait_to_start_again(self, problem: str, failures: int) -> None:
        is_failure = self.exit_code != 0 or failures > 1
        self._problem = problem if is_failure else None
        # A process that has drained did so most likely by order of an operator, which is about to delete its replica.
        delay = max(restart_delay(failures), 1.0 if self.exit_code == 0 else 0.0)
        self.is_backing_off = failures > 1
        self._observer.failed(self.replica, problem, delay)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ending.wait(), delay)
        self.is_backing_off = False

    async def _run(self) -> str:
        """Run the process once, to its end; returns how it ended."""
        self._last_line = ""
        # Not a pipe of asyncio, for which a process ends only when its output does.
        reader, writer = os.pipe()
        try:
            self._process = await self._start(writer)
        except (OSError, ValueError) as error:  # ValueError: a text that no process can be given
            os.close(reader)
            self.exit_code = None
            return f"can't start the process: {error}"
        finally:
            os.close(writer)
        if self._ending.is_set():
            self.signal(signal.SIGTERM)
        reading = asyncio.create_task(self._read(reader))
        self.exit_code = await self._process.wait()
        self._process = None
        # A child of the process may still hold its output open.
        with suppress(TimeoutError):
            await asyncio.wait_for(reading, _LAST_WORDS_WITHIN)
        return _how_it_ended(self.exit_code, self._last_line)

    async def _start(self, output: int) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *self._parent_watch.command(*self._arguments),
            env=self._environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C is for joex up, which then ends the process
            pass_fds=[self._parent_watch.end],
        )

    async def _read(self, output: int) -> None:
        stream = asyncio.StreamReader(limit=_LONGEST_LINE)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(output, "rb")
        )
        try:
            while line := await _next_line(stream):
                self._last_line = line.decode(errors="replace").rstrip()
                self._observer.printed(self.replica, self._last_line)
        finally:
            transport.close()

    def _age(self) -> float:
        return asyncio.get_running_loop().time() - self._began


def restart_delay(failures: int) -> float:
    """Seconds before the restart of a process that has failed so many times in a row.

    >>> [restart_delay(failures) for failures in (1, 2, 3, 4, 20)]
    [0.0, 1.0, 2.0, 4.0, 300.0]
    """
    return 0.0 if failures <= 1 else min(2.0 ** (min(failures, 20) - 2), _LONGEST_DELAY)


def _how_it_ended(code: int, last_line: str) -> str:
    """How a process has ended.

    >>> _how_it_ended(2, "joex: --app: there is no module 'shop'")
    "exit code 2: --app: there is no module 'shop'"
    >>> _how_it_ended(-9, "a line that has nothing to do with it")
    'killed by SIGKILL'
    """
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    why = last_line.removeprefix("joex: ") if code else ""
    return f"exit code {code}: {why}" if why else f"exit code {code}"


async def _next_line(stream: asyncio.StreamReader) -> bytes:
    """The next line, or a part of one that is too long; empty at the end."""
    try:
        return await stream.readuntil(b"\n")
    except asyncio.IncompleteReadError as error:
        return error.partial
    except asyncio.LimitOverrunError as error:
        return await stream.readexactly(error.consumed)

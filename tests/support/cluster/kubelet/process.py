"""The process of a container, and the commands that run beside it: probes and hooks."""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, Self

from tests.support import loaded
from tests.support.cluster.processes import kill_marked, only_child

CONTAINER_MARK = "JOEX_TEST_CONTAINER"


class Running(Protocol):
    """A process that was started or forked."""

    @property
    def pid(self) -> int:
        """Its number."""

    async def wait(self) -> int:
        """Wait until it has exited, and return its exit code."""


class Forked:
    """A process with Joex loaded."""

    def __init__(self, pid: int, connection: socket.socket) -> None:
        self.pid = pid
        self._exited = asyncio.ensure_future(_exit_code(connection))

    @classmethod
    async def start(cls, connection: socket.socket) -> Self:
        """The process of a `loaded.request`.

        Raises:
            OSError: it has not started.
        """
        connection.settimeout(0)
        answer = await asyncio.get_running_loop().sock_recv(connection, loaded.MESSAGE)
        return cls(loaded.pid_of(connection, answer), connection)

    async def wait(self) -> int:
        """Wait until it has exited, and return its exit code."""
        return await asyncio.shield(self._exited)


async def _exit_code(connection: socket.socket) -> int:
    with connection:
        return loaded.exit_code_of(await asyncio.get_running_loop().sock_recv(connection, loaded.MESSAGE))


@dataclass(frozen=True)
class Launch:
    """The settings with which the processes of a container start."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    folder: Path
    rewriting: Callable[[str], str]
    """For the commands of probes and hooks."""
    mark: str
    """Set for all processes of this container, so that they end with it."""
    has_first: bool = False
    """Whether the program is the only child of the process that is started."""
    forked: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """As in `Image`."""

    async def start(self, log: Path) -> Running:
        """Start the container's process.

        Raises:
            OSError: there is no such program, or it can't be started.
        """
        return await self._start(self.argv, log)

    async def command(self, argv: Sequence[str], log: Path, seconds: float) -> int | None:
        """Run a command beside the container's process; None: it took too long."""
        try:
            process = await self._start([self.rewriting(word) for word in argv], log)
        except OSError:
            return 127
        try:
            async with asyncio.timeout(seconds):  # not wait_for: until Python 3.12 that may swallow a cancellation
                return await process.wait()
        except TimeoutError:
            return None
        finally:
            kill_group(process)

    def pid(self, process: Running) -> int:
        """The process of the container's program, or of its launcher until that has started the program."""
        return (only_child(process.pid) if self.has_first else 0) or process.pid

    def terminate(self, process: Running) -> None:
        """Send SIGTERM to a container's first process, and to it alone."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid(process), signal.SIGTERM)

    def kill_all(self) -> None:
        """Kill the remaining processes of the container, as the kernel does when its first process ends."""
        kill_marked(f"{CONTAINER_MARK}={self.mark}")

    async def _start(self, argv: Sequence[str], log: Path) -> Running:
        environment = {**self.environment, CONTAINER_MARK: self.mark}
        with log.open("ab") as output:
            if argv[0] in self.forked:
                server, program = self.forked[argv[0]]
                connection = loaded.request(
                    server,
                    program,
                    argv[1:],
                    environment=environment,
                    folder=self.folder,
                    output=output.fileno(),
                    session=True,
                )
                return await Forked.start(connection)
            return await asyncio.create_subprocess_exec(
                *argv,
                cwd=self.folder,
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )


def kill_group(process: Running) -> None:
    """Kill a process with all of its group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


@dataclass
class Backoff:
    """The waits of a container before its restarts: none at first, then ever longer."""

    first: float
    most: float
    _next: float = field(default=0.0, init=False)

    def delay(self, ran: float) -> float:
        """Seconds to wait after a run. A run that was long enough resets the back-off.

        >>> backoff = Backoff(0.5, 5)
        >>> [backoff.delay(0.1) for _ in range(6)], backoff.delay(60)
        ([0.0, 0.5, 1.0, 2.0, 4.0, 5], 0.0)
        """
        if ran > 2 * self.most:
            self._next = 0.0
        delay, self._next = self._next, min(max(self.first, 2 * self._next), self.most)
        return delay

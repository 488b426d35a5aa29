"""The process of a container, and the commands that run beside it: probes and hooks."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.cluster.processes import kill_marked, only_child

CONTAINER_MARK = "JOEX_TEST_CONTAINER"


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

    async def start(self, log: Path) -> asyncio.subprocess.Process:
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

    def pid(self, process: asyncio.subprocess.Process) -> int:
        """The process of the container's program, or of its launcher until that has started the program."""
        return (only_child(process.pid) if self.has_first else 0) or process.pid

    def terminate(self, process: asyncio.subprocess.Process) -> None:
        """Send SIGTERM to a container's first process, and to it alone."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid(process), signal.SIGTERM)

    def kill_all(self) -> None:
        """Kill the remaining processes of the container, as the kernel does when its first process ends."""
        kill_marked(f"{CONTAINER_MARK}={self.mark}")

    async def _start(self, argv: Sequence[str], log: Path) -> asyncio.subprocess.Process:
        with log.open("ab") as output:
            return await asyncio.create_subprocess_exec(
                *argv,
                cwd=self.folder,
                env={**self.environment, CONTAINER_MARK: self.mark},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )


def kill_group(process: asyncio.subprocess.Process) -> None:
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

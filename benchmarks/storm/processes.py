"""The processes of the executors: started, killed, stopped and replaced."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.parent import die_with_parent

_ROOT = Path(__file__).parents[2]


class Processes:
    """The processes of the storm, in the order of their starts.

    Args:
        url: the database, as executors reach it.
        executors: of each process.
        slots: of each executor.
    """

    def __init__(self, url: str, executors: int, slots: int) -> None:
        self.executors = executors
        self.living: dict[str, subprocess.Popen[bytes]] = {}
        self._arguments = [str(executors), str(slots)]
        self._environment = {**os.environ, "JOEX_DATABASE_URL": url}
        self._numbers = itertools.count(1)
        self._output = tempfile.TemporaryFile("a+b")  # noqa: SIM115 - open as long as the processes

    def start(self) -> str:
        """Start a process; returns its name, with which the app-ids of its executors begin."""
        name = f"storm-{next(self._numbers)}"
        self.living[name] = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.storm.host", name, *self._arguments],
            env=self._environment,
            cwd=_ROOT,
            stdout=self._output,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - one system call, no locks
        )
        return name

    async def end(self, name: str, number: signal.Signals) -> int:
        """Send a signal to a process; returns its exit code."""
        process = self.living.pop(name)
        process.send_signal(number)
        return await asyncio.to_thread(process.wait)

    def restart(self) -> list[str]:
        """Start a process for each that has exited by itself; returns the names of these."""
        exited = [name for name, process in self.living.items() if process.poll() is not None]
        for name in exited:
            del self.living[name]
            self.start()
        return exited

    @property
    def oldest(self) -> str:
        """The name of the process that has lived for longest."""
        return next(iter(self.living))

    @property
    def lines(self) -> list[str]:
        """The lines of their output."""
        self._output.seek(0)
        return self._output.read().decode().splitlines()


@contextmanager
def processes(url: str, executors: int, slots: int) -> Iterator[Processes]:
    """Processes, killed at the end of the block."""
    made = Processes(url, executors, slots)
    try:
        yield made
    finally:
        for process in made.living.values():
            process.kill()
            process.wait()

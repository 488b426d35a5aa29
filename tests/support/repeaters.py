"""Processes that do nothing but make the jobs of periodic tasks."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from joex.repeating import Repeater
from joex.store import periodic
from joex.store.database import connect, create_pool
from tests.support.processes import die_with_parent

_ROOT = Path(__file__).parents[2]


class RepeaterProcesses:
    """Starts repeaters, and kills what is left of them at its end."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.alive: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self.alive:
            self.kill(0)

    def start(self) -> None:
        """Start one; it connects by itself."""
        command = [sys.executable, "-m", "tests.support.repeaters", self._url]
        self.alive.append(
            subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.DEVNULL, preexec_fn=die_with_parent)  # noqa: PLW1509
        )

    def kill(self, number: int) -> None:
        """Kill one (SIGKILL)."""
        process = self.alive.pop(number)
        process.send_signal(signal.SIGKILL)
        process.wait(30)


async def repeat(url: str) -> None:
    """Make jobs until killed, and hear of changes as executors do."""
    pool = await create_pool(url, most=2, name="joex repeater", for_services=True)
    repeater = Repeater(pool, f"process {os.getpid()}", lambda _event: None)
    listener = await connect(url, name="joex repeater listens")
    await listener.add_listener(periodic.CHANNEL, lambda *_: repeater.wake())
    repeater.wake()
    await repeater.run()


if __name__ == "__main__":
    asyncio.run(repeat(sys.argv[1]))

"""Runs the drivers: their commands, their workers, and databases for them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from benchmarks.peers.systems import System
from examples.demo.temporary_databases import drop, url_of
from joex.store.database import connect

_ROOT = Path(__file__).parent.parent.parent
_LIMIT = 600.0
"""Seconds: no command and no wait of the race lasts longer."""
_STOP_WITHIN = 20.0

Line = dict[str, Any]


class RaceError(Exception):
    """A peer could not be measured; the message says why."""


@asynccontextmanager
async def stage(server_url: str, system: System) -> AsyncIterator[str]:
    """The URL of a new database with the system's schema, dropped at the end."""
    name = f"joex_race_{secrets.token_hex(4)}"
    administrator = await connect(server_url)
    try:
        await administrator.execute(f"CREATE DATABASE {name} TEMPLATE template0")
        try:
            url = url_of(server_url, name)
            await ask(system, url, "setup")
            yield url
        finally:
            await drop(administrator, name)
    finally:
        await administrator.close()


async def ask(system: System, url: str, *command: str) -> Line:
    """The answer of a driver to a command: its last line.

    Raises:
        RaceError: it failed.
    """
    process = await _start(system, url, *command, errors=asyncio.subprocess.PIPE)
    try:
        async with asyncio.timeout(_LIMIT):
            output, errors = await process.communicate()
    finally:
        _kill(process)
    lines = output.decode().splitlines()
    if process.returncode or not lines:
        raise RaceError(f"{system.name} {' '.join(command)}: {errors.decode().strip()[-1000:] or 'no answer'}")
    answer: Line = json.loads(lines[-1])
    return answer


async def submit(
    system: System, url: str, plan: Sequence[tuple[float, str, float]], parallel: int, *, fair: bool = False
) -> None:
    """Let a driver submit `sleep` jobs: after so many seconds, of this group, of so many milliseconds."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(plan, file)
        file.flush()
        flags = ["--fair"] if fair else []
        await ask(system, url, "plan", file.name, "--parallel", str(parallel), *flags)


class Worker:
    """A worker of a system, and all lines that it has printed."""

    def __init__(self, system: System, process: asyncio.subprocess.Process) -> None:
        self._system = system
        self._process = process
        self.lines: list[Line] = []
        self._more = asyncio.Event()
        self._reading = asyncio.create_task(self._read())

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until the lines fulfil a condition.

        Raises:
            RaceError: the worker has exited before, or the wait lasted too long.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LIMIT):
                while not condition():
                    if self._reading.done():
                        raise RaceError(
                            f"{self._system.name}: its worker ended with exit code {self._process.returncode}"
                        )
                    self._more.clear()
                    await self._more.wait()
                return
        raise RaceError(f"{self._system.name}: {what} was not to be seen in {_LIMIT:.0f} s")

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            self.lines.append(json.loads(line))
            self._more.set()
        await self._process.wait()
        self._more.set()

    async def ended(self) -> None:
        """Wait until it has ended."""
        await asyncio.wait([self._reading])

    def pause(self) -> None:
        """Stop the worker and all of its processes (SIGSTOP)."""
        os.killpg(self._process.pid, signal.SIGSTOP)

    async def kill(self) -> None:
        """Kill the worker and all of its processes (SIGKILL)."""
        _kill(self._process)
        await self.ended()

    async def stop(self) -> None:
        """Send SIGTERM, and SIGKILL if that has no effect."""
        if self._process.returncode is None:
            self._process.terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), _STOP_WITHIN)
        _kill(self._process)
        await self._reading


@asynccontextmanager
async def worker(
    system: System, url: str, slots: int, *, fair: bool = False, settings: Mapping[str, str] | None = None
) -> AsyncIterator[Worker]:
    """A running worker, stopped at the end. ``settings``: variables of its environment."""
    flags = ["--fair"] if fair else []
    process = await _start(system, url, "work", "--slots", str(slots), *flags, errors=None, settings=settings)
    found = Worker(system, process)
    try:
        await found.until(lambda: bool(found.lines), "a ready worker")
        yield found
    finally:
        await found.stop()


async def _start(
    system: System, url: str, *command: str, errors: int | None, settings: Mapping[str, str] | None = None
) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *system.command, *command,
        env={**os.environ, **(settings or {}), "DATABASE_URL": url}, cwd=_ROOT,
        stdout=asyncio.subprocess.PIPE, stderr=errors,
        start_new_session=True,  # so that its children can be ended with it
    )  # fmt: skip


def _kill(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)

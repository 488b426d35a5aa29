"""Executors as real processes: started as a user starts them, and killed as an orchestrator does."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support import loaded
from tests.support.apps import EFFECTS_URL, ENDS, TROUBLE, Effects
from tests.support.loaded import Fork
from tests.support.parent import die_with_parent
from tests.support.waiting import eventually

_ROOT = Path(__file__).parents[2]
_JOEX = [sys.executable, "-m", "joex"]

SHORT = 3.0
"""Seconds: a lease for tests that wait for its end. A machine that stalls for a second does not end it, and interrupted
runs have six tenths of a second to end, or their executor exits. Other tests have the default lease."""


class Process:
    """A program that ends with the tests; ``python -m joex`` is forked with Joex loaded.

    ``output``: a file descriptor for its output, instead of its log; ``joex``: the file that is forked in its place.
    """

    def __init__(
        self, command: list[str], environment: Mapping[str, str], output: int | None = None, *, joex: str = "joex"
    ) -> None:
        self._log = tempfile.TemporaryFile("w+b")  # noqa: SIM115 - open as long as the process
        output = self._log.fileno() if output is None else output
        if command[: len(_JOEX)] == _JOEX:
            self._process: Fork | subprocess.Popen = Fork(
                joex, command[len(_JOEX) :], environment=environment, folder=_ROOT, output=output
            )
        else:
            self._process = subprocess.Popen(
                command,
                env=environment,
                cwd=_ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - one system call, no locks
            )
        self.pid = self._process.pid

    @property
    def log(self) -> str:
        """Its output."""
        # (Not seek and read: the process shares the position, and would write where this puts it.)
        return os.pread(self._log.fileno(), os.fstat(self._log.fileno()).st_size, 0).decode(errors="replace")

    @property
    def is_alive(self) -> bool:
        """Whether it has not exited."""
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """Its exit code; None: it has not exited. -9: killed."""
        return self._process.poll()

    def pause(self) -> None:
        """Stop it at once (SIGSTOP): it keeps its connections, and sends nothing."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it continue (SIGCONT)."""
        self._process.send_signal(signal.SIGCONT)

    def terminate(self) -> None:
        """Ask it to drain (SIGTERM)."""
        self._process.send_signal(signal.SIGTERM)

    def close(self) -> None:
        """Kill it if it has not exited."""
        if self.is_alive:
            self._process.send_signal(signal.SIGKILL)
            self._process.send_signal(signal.SIGCONT)
        self._process.wait(30)
        self._log.close()

    async def kill(self) -> None:
        """Kill it (SIGKILL); it no longer exists when this returns."""
        self._process.send_signal(signal.SIGKILL)
        await self.exited()

    async def exited(self) -> int:
        """Wait until it has exited, and return its exit code."""
        await eventually(lambda: not self.is_alive, why=f"process {self.pid} exits; its log:\n{self.log}")
        assert self.exit_code is not None
        return self.exit_code


class ExecutorProcess(Process):
    """``joex executor`` with the tasks of `tests.support.apps`."""

    def __init__(
        self, command: list[str], environment: Mapping[str, str], effects: Effects, app_id: str, output: int | None
    ) -> None:
        super().__init__(command, environment, output)
        self.app_id = app_id
        self._effects = effects
        self._killed_at: datetime | None = None

    async def kill(self) -> None:
        """Kill it (SIGKILL); it no longer exists when this returns."""
        # From here on it does nothing. The next one may be at work before the tests notice its exit.
        self._killed_at = datetime.now(UTC)
        await super().kill()

    async def exited(self) -> int:
        """Wait until it has exited, and return its exit code."""
        code = await super().exited()
        await eventually(self._mark_its_end, why="the server is there")
        return code

    async def _mark_its_end(self) -> bool:
        with contextlib.suppress(*TROUBLE):
            await self._effects.end_of(self.pid, self._killed_at)
            return True
        return False


class ExecutorProcesses:
    """Starts executors, and kills the remaining ones at its end."""

    def __init__(self, effects: Effects, url: str, **settings: Any) -> None:
        loaded.address()  # not during a test, which may have no time for it
        self._effects = effects
        self._ends = tempfile.TemporaryDirectory(prefix="joex-tests-ends-")
        effects.ends = Path(self._ends.name)
        self._url = url
        self._settings: dict[str, Any] = {
            "pool_size": 2,
            "retry_delay": 0.1,
            "http_address": "",
            **settings,
        }
        self._processes: list[ExecutorProcess] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            print(
                f"{process.app_id}, process {process.pid}, exit code {process.exit_code}:\n{process.log}"
            )  # pytest shows it
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.close()
        self._ends.cleanup()

    def __iter__(self) -> Iterator[ExecutorProcess]:
        return iter(self._processes)

    async def start(self, app_id: str, *, url: str | None = None, **settings: Any) -> ExecutorProcess:
        """Start an executor, and wait until it is registered."""
        process = self.launch(app_id, url=url, **settings)
        await self.registered(process)
        return process

    async def start_all(self, *app_ids: str, **settings: Any) -> list[ExecutorProcess]:
        """Start several at a time."""
        return list(await asyncio.gather(*(self.start(app_id, **settings) for app_id in app_ids)))

    def launch(
        self,
        app_id: str,
        *,
        url: str | None = None,
        output: int | None = None,
        app: str = "tests.support.apps:app",
        **settings: Any,
    ) -> ExecutorProcess:
        """Start an executor, without waiting. ``output``: a file descriptor for its output, instead of its log."""
        settings = {**self._settings, **settings, "app_id": app_id, "database_url": url or self._url}
        environment = {name: value for name, value in os.environ.items() if not name.startswith("JOEX_")}
        environment |= {f"JOEX_{name.upper()}": str(value) for name, value in settings.items()}
        environment |= {EFFECTS_URL: self._effects.url, ENDS: self._ends.name}
        command = [sys.executable, "-m", "joex", "executor", "--app", app]
        process = ExecutorProcess(command, environment, self._effects, app_id, output)
        self._processes.append(process)
        return process

    async def is_registered(self, process: ExecutorProcess) -> bool:
        """Whether a process has registered."""
        return await self._effects.executor_of(process.pid) is not None

    async def registered(self, process: ExecutorProcess) -> int:
        """Wait until a process has registered; returns the id of the (latest) registration."""

        async def found() -> int | None:
            if not process.is_alive:
                raise AssertionError(f"{process.app_id} exited with {process.exit_code}:\n{process.log}")
            return await self._effects.executor_of(process.pid)

        return int(await eventually(found, why=f"{process.app_id} is registered"))

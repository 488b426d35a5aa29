"""The executors of the demo: a pool in a file, as a user writes it, and ``joex up`` on it, as a user starts it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from joex.cli.parent_watch import ParentWatch
from joex.errors import JoexError

FILE = "pool.yaml"
SLOTS, MOST = 2, 3
POOL = f"""\
apiVersion: joex.dev/v1alpha1
kind: JoexPool
metadata: {{name: documents}}
spec:
  app: joex.examples.documents:app
  database: {{secretName: joex-demo}}
  poolSize: {SLOTS}
  scaling:
    minReplicas: 0
    maxReplicas: {MOST}
    behavior:
      scaleUp: {{policies: [{{type: Executors, value: 1, periodSeconds: 1}}]}}
      scaleDown: {{stabilizationWindowSeconds: 1}}
"""
"""The slots of an executor, the most executors, and the whole file."""

PROCESSES = str(hasattr(os, "fork"))
"""Whether tasks run in processes: not on Windows, which has no fork."""

_NAME = "demo"
_PATIENCE = 5.0
_LAST_LINES = 15

Event = dict[str, Any]
"""A line of ``joex up --json``."""


class Up:
    """``joex up`` with the pool. Neither it nor its executors outlive the block."""

    def __init__(self, url: str, folder: Path, tell: Callable[[Event], None]) -> None:
        self._folder = folder
        self._tell = tell
        # The user's settings are for the user's executors, and so is a joex.toml in this folder. So these run in
        # another one, which is empty.
        own = {name: value for name, value in os.environ.items() if not name.startswith("JOEX_")}
        # The pool's name is unique in this folder only: several demos may run, each on its own database.
        # Parsing is computing: in threads, Python's lock would keep the two slots of an executor to one processor.
        self._environment = {**own, "JOEX_DATABASE_URL": url, "JOEX_PROCESSES": PROCESSES, "TMPDIR": str(folder)}
        self._cwd = folder / "cwd"
        self._cwd.mkdir()
        (self._cwd / FILE).write_text(POOL)
        self._ready = asyncio.Event()
        self.replicas: set[str] = set()
        """The executors that it has added and not removed, by its events."""
        self._parent_watch = ParentWatch()

    async def __aenter__(self) -> Self:
        with self._log().open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._parent_watch.command("up", "-f", FILE, "--name", _NAME, "--json"),
                env=self._environment,
                cwd=self._cwd,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches the demo, which then stops it
                pass_fds=[self._parent_watch.end],
            )
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Drain; give the jobs back at once; kill.
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
            with suppress(TimeoutError, ProcessLookupError):
                self._process.send_signal(number)
                await asyncio.wait_for(self._process.wait(), _PATIENCE)
                break
        await self._reading
        self._parent_watch.close()

    async def ready(self) -> None:
        """Wait until it manages the pool."""
        ready = asyncio.create_task(self._ready.wait())
        await asyncio.wait({ready, self._reading}, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        self.check()

    def check(self) -> None:
        """Check that it is running.

        Raises:
            JoexError: it has exited without a request.
        """
        if self._reading.done():
            lines = self._log().read_text(errors="replace").splitlines()[-_LAST_LINES:]
            raise JoexError(f"joex up ended with exit code {self._process.returncode}; it said: {' | '.join(lines)}")

    async def _read(self) -> None:
        """Pass on its events, until it exits."""
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            event: Event = json.loads(line)
            named = event["message"].partition(":")[0].split(", ")
            if event["reason"] == "Added":
                self.replicas.update(named)
            elif event["reason"] == "Removed":
                self.replicas.difference_update(named)
            self._tell(event)
            self._ready.set()
        await self._process.wait()

    def _log(self) -> Path:
        return self._folder / "up.log"


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal to an executor, if it is running."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def slot(app_id: str) -> str:
    """The short name of an executor: its slot.

    >>> slot("demo/documents-0")
    'documents-0'
    """
    return app_id.rpartition("/")[2]

"""The executors of the demo: real processes, started as a user starts them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from joex.errors import JoexError

APP = "joex.examples.documents:app"
SLOTS = 2
"""Jobs that each executor runs at a time."""

_PATIENCE = 5.0
_LAST_LINES = 15


class Crew:
    """The executors, by app-id. None of them outlives the block."""

    def __init__(self, url: str, folder: Path) -> None:
        self._folder = folder
        # The user's own settings are for the user's own executors. So is a joex.toml in this folder: they run in
        # another one, which is empty.
        own = {name: value for name, value in os.environ.items() if not name.startswith("JOEX_")}
        self._environment = {**own, "JOEX_DATABASE_URL": url}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._cwd = folder / "cwd"
        self._cwd.mkdir()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            for process in self._processes.values():
                process.terminate()
            for process in self._processes.values():
                process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            pass
        finally:
            for process in self._processes.values():
                process.kill()
                process.wait()

    def start(self, app_id: str) -> int:
        """Start an executor; returns its process id."""
        command = [sys.executable, "-m", "joex", "executor", "--app", APP, "--app-id", app_id]
        command += ["--pool-size", str(SLOTS), "--http-address", ""]
        with self._log(app_id).open("ab") as log:
            self._processes[app_id] = subprocess.Popen(  # noqa: S603 - our own command
                command,
                env=self._environment,
                cwd=self._cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the demo, which then ends them
            )
        return self._processes[app_id].pid

    def pause(self, app_id: str) -> None:
        """Stop an executor in the middle of what it does."""
        self._processes[app_id].send_signal(signal.SIGSTOP)

    def resume(self, app_id: str) -> None:
        """Let it go on."""
        self._processes[app_id].send_signal(signal.SIGCONT)

    def kill(self, app_id: str) -> None:
        """Kill an executor with -9; it does not exist any more afterwards."""
        process = self._processes.pop(app_id)
        process.kill()
        process.wait()

    def check(self) -> None:
        """Check that all are there.

        Raises:
            JoexError: one has exited, though nobody killed it.
        """
        for app_id, process in self._processes.items():
            if process.poll() is not None:
                lines = self._log(app_id).read_text(errors="replace").splitlines()[-_LAST_LINES:]
                raise JoexError(
                    f"executor {app_id} exited with code {process.returncode}; it said: {' | '.join(lines)}"
                )

    def _log(self, app_id: str) -> Path:
        return self._folder / f"{app_id}.log"

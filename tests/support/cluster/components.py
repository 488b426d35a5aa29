"""A program of the control plane: started with its log in a file, stopped, and restarted in the same way."""

import os
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.support.cluster.processes import MARK

THRIFT = {"GOGC": "off", "GOMEMLIMIT": "1GiB", "GOMAXPROCS": "1"}
"""For programs of Go: they collect garbage once they have that much memory, because more often costs a quarter of their
CPU; and they run on one CPU, because the search for work by a second one costs a seventh of what they take at rest."""

_PAUSE = 0.02


class StartError(Exception):
    """A program of the cluster does not get ready; the message has the end of its log."""


class Component:
    """A program with its arguments."""

    def __init__(
        self, folder: Path, program: Path, *arguments: str, name: str = "", variables: Mapping[str, str] | None = None
    ) -> None:
        self.name = name or program.name
        self._folder = folder
        self._variables = variables or {}
        self._command = [str(program), *arguments]
        self._process: subprocess.Popen | None = None
        (folder / "log").mkdir(exist_ok=True)
        self._log = folder / "log" / f"{self.name}.log"

    @property
    def is_running(self) -> bool:
        """Whether there is a process."""
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """Its log, of all its runs."""
        return self._log.read_text(errors="replace")

    def start(self) -> None:
        """Start it, in its own session, so that Ctrl-C does not reach it: its clients must end first."""
        assert not self.is_running
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self._folder),
            MARK: str(self._folder),
            **THRIFT,
            **self._variables,
        }
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=self._folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_until(self, ready: Callable[[], bool], patience: float) -> None:
        """Wait until a condition is true, while the process runs.

        Raises:
            StartError: it did not become true.
        """
        deadline = time.monotonic() + patience
        while not ready():
            if not self.is_running:
                raise StartError(f"{self.name} ended:\n{self.log[-3000:]}")
            if time.monotonic() > deadline:
                raise StartError(f"{self.name} is not ready after {patience:.0f} s:\n{self.log[-3000:]}")
            time.sleep(_PAUSE)

    def stop(self, grace: float = 2.0) -> None:
        """Send SIGTERM, and SIGKILL after the grace; 0 kills at once."""
        if self._process is None:
            return
        if grace > 0:
            self._process.terminate()
            try:
                self._process.wait(grace)
            except subprocess.TimeoutExpired:
                self._process.kill()
        else:
            self._process.kill()
        self._process.wait(10)

"""The executor, as the HTTP interface sees it."""

from __future__ import annotations

from typing import Protocol

from joex.core.job import RunningJob


class ExecutorProtocol(Protocol):
    """An executor. All methods return at once, from the memory of the process."""

    @property
    def app_id(self) -> str:
        """Its stable name."""

    @property
    def phase(self) -> str:
        """starting, waiting (until another executor with its app-id has exited), running, draining or left."""

    @property
    def described(self) -> str:
        """Its phase, and what keeps it from taking jobs, or from taking them at once, if the phase does not say."""

    @property
    def ready(self) -> bool:
        """Whether it takes jobs."""

    @property
    def alive(self) -> bool:
        """Whether its services run and its lease is valid. If not, restart the process."""

    def running(self) -> list[RunningJob]:
        """Its runs."""

    def drain(self) -> None:
        """Take no more jobs, finish the running ones, exit."""

    def wake(self) -> None:
        """Look for work now."""

"""The executor, as the HTTP interface sees it."""

from __future__ import annotations

from typing import Protocol

from joex.core.job import RunningJob


class ExecutorProtocol(Protocol):
    """An executor. All of it answers at once, from what the process knows."""

    @property
    def app_id(self) -> str:
        """Its stable name."""

    @property
    def phase(self) -> str:
        """starting, waiting (until another executor with its app-id has gone), running, draining or left."""

    @property
    def ready(self) -> bool:
        """It takes jobs."""

    @property
    def alive(self) -> bool:
        """Its services run, and its lease is trusted. False: restart the process."""

    def running(self) -> list[RunningJob]:
        """Its runs."""

    def drain(self) -> None:
        """Take nothing more, finish what runs, leave."""

    def wake(self) -> None:
        """Look for work now."""

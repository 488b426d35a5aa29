"""The executor, as the HTTP interface sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from uuid import UUID


class RunningJob(Protocol):
    """A run of this executor."""

    @property
    def id(self) -> UUID:
        """The job."""

    @property
    def task(self) -> str:
        """As submitted."""

    @property
    def group(self) -> str:
        """As submitted."""

    @property
    def queue(self) -> str:
        """As submitted."""

    @property
    def subject(self) -> str:
        """As submitted."""

    @property
    def attempt(self) -> int:
        """1 for the first run of the job."""

    @property
    def seconds(self) -> float:
        """Seconds since its code started."""


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

    def running(self) -> Sequence[RunningJob]:
        """Its runs."""

    def drain(self) -> None:
        """Take nothing more, finish what runs, leave."""

    def wake(self) -> None:
        """Look for work now."""

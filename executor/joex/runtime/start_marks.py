"""The runs that the executor has yet to mark as running, and when (ADR 7)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from uuid import UUID

from joex.core.job import TakenJob

_AFTER = 0.02  # seconds: a shorter run is never marked running, its end says it all


class StartMarks:
    """The marks that are not written yet.

    Args:
        on_due: called, on the loop, when marks are due.
    """

    def __init__(self, on_due: Callable[[], None]) -> None:
        self._on_due = on_due
        self._marks: dict[UUID, tuple[TakenJob, float, float]] = {}  # when the run's code started; when to write it
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def add(self, job: TakenJob, at: float, due: float | None = None) -> None:
        """The code of a run has started, at this time of the monotonic clock; ``due``: when to write that."""
        self._marks[job.lock_id] = (job, at, at + _AFTER if due is None else due)
        if self._timer is None:
            self._timer = self._loop.call_later(_AFTER, self._tick)

    def forget(self, job: TakenJob) -> None:
        """The run needs no mark any more."""
        self._marks.pop(job.lock_id, None)

    def take_due(self) -> list[tuple[TakenJob, float]]:
        """Remove and return the runs to mark now, with the times at which their code started."""
        now = time.monotonic()
        found = [(job, at) for job, at, due in self._marks.values() if now >= due]
        for job, _ in found:
            del self._marks[job.lock_id]
        return found

    def close(self) -> None:
        """End the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        self._timer = self._loop.call_later(_AFTER, self._tick) if self._marks else None
        now = time.monotonic()
        if any(now >= due for _, _, due in self._marks.values()):
            self._on_due()

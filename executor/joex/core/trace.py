"""A trace: the history of each job, a line each. ``joex stats --trace`` writes it, and ``joex simulate`` reads it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal


@dataclass(frozen=True, slots=True)
class TracedJob:
    """A job that has run, and the settings of its group.

    Attributes:
        at: when it became runnable: its submission, or its not-before time.
        seconds: how long its last run held a slot, from the take until its end was written.
        waited: seconds from when it became runnable to its take, the last time; None: unknown.
        attempts: runs that started.
        failures: runs that failed.
        retries: its own limit of re-runs; None: that of its task, or of its executor.
        weight, max_running: of the group in this queue, when the trace was made.
        seq: orders jobs that became runnable at the same time; the smallest is first.
    """

    at: datetime
    group: str
    seconds: float
    queue: str = "default"
    task: str = ""
    priority: Literal["high", "low"] = "low"
    state: Literal["success", "failed", "cancelled"] = "success"
    attempts: int = 1
    failures: int = 0
    retries: int | None = None
    waited: float | None = None
    weight: int = 1
    max_running: int | None = None
    seq: int = 0

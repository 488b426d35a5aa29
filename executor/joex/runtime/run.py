"""One run of a job in a slot, and the defaults of its task."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

from joex.context import Context
from joex.core.job import TakenJob
from joex.core.outcome import Interruption
from joex.runtime.task_threads import CALLS, TENANT
from joex.task import Task


class Run:
    """A job in a slot."""

    __slots__ = (
        "args",
        "args_text",
        "calls",
        "context",
        "has_ended",
        "interruptible",
        "interruption",
        "is_cleaning_up",
        "is_executing",
        "job",
        "kill",
        "started",
        "task",
        "variables",
        "worker",
    )

    def __init__(self, job: TakenJob) -> None:
        self.job = job
        self.task: Task[..., Any] | None = None
        self.worker: asyncio.Task[None] | None = None
        self.context: Context | None = None
        self.args: dict[str, Any] | None = None  # None: not parsed yet, or they don't fit
        self.args_text = ""
        self.variables = contextvars.copy_context()  # the context variables of the task's code, and its cancel handler
        self.variables.run(TENANT.set, job.tenant)
        self.calls: set[Future[Any]] = set()  # of an exclusive run, in threads: they are a part of it
        self.started: float | None = None
        self.interruption: Interruption | None = None
        self.interruptible = False  # the task's code is at an await, or in a process, and may be interrupted there
        self.is_executing = False  # the task's code is running, on the loop, in a thread or in a process
        self.has_ended = False  # its end is handed over, to be written
        self.is_cleaning_up = False  # its end is written, and its cancel handler runs
        self.kill: Callable[[], object] | None = None  # ends its process, or the wait of its cancel handler

    def keep_calls(self) -> None:
        """Note the calls that its code has in threads."""
        self.variables.run(CALLS.set, self.calls)

    @property
    def is_exclusive(self) -> bool:
        """Whether no other run of the job may be at work at the same time."""
        return self.task is not None and self.task.exclusive

    @property
    def has_committed(self) -> bool:
        """Whether its own transaction has ended the job."""
        return self.context is not None and self.context.is_finished

    @property
    def seconds(self) -> float | None:
        """Seconds since the task's code started; None if it has not started."""
        return None if self.started is None else time.monotonic() - self.started


class Defaults:
    """The defaults for tasks that set no values of their own."""

    def __init__(
        self, retries: int, retry_delay: timedelta, timeout: timedelta | None, retry_jitter: float = 0.0
    ) -> None:
        self.retries = retries
        self.retry_delay = retry_delay
        self.retry_jitter = retry_jitter
        self.timeout = timeout

    def retries_of(self, job: TakenJob, task: Task[..., Any] | None) -> int:
        """The re-runs of a job: its own number, else its task's, else the default."""
        if job.retries is not None:
            return job.retries
        return self.retries if task is None or task.retries is None else task.retries

    def retry_delay_of(self, task: Task[..., Any] | None) -> timedelta:
        """The first delay of a task."""
        return self.retry_delay if task is None or task.retry_delay is None else task.retry_delay

    def timeout_of(self, task: Task[..., Any]) -> float | None:
        """The longest run of a task, in seconds; None: no limit."""
        limit = task.timeout or self.timeout
        return limit.total_seconds() if limit else None

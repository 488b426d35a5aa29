"""The context of a Django task that runs in an executor."""

from __future__ import annotations

from dataclasses import dataclass

from joex.context import Context
from joex.django.framework import TaskContext


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext(TaskContext):
    """What a task with ``takes_context`` gets: Django's context, and that of Joex.

    Attributes:
        run: the run: its job, its log, its progress, whether it should end.
    """

    run: Context

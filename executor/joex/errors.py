"""Errors, one class for each way in which the caller can react.

::

    JoexError
    ├── ConfigError          fix the configuration or the call; nothing was done
    │   ├── InvalidJob       fix the submission (also a ValueError); nothing was stored
    │   ├── MissingExtra     install this extra of the package (also an ImportError); nothing was done
    │   ├── JobExists        a type has a job with this id already; nothing was stored
    │   ├── NotYours         the periodic task has another owner: change it there, or force it; nothing was done
    │   └── SchemaError      run `joex migrate`, or a newer joex; nothing was done
    ├── DatabaseUnavailable  try again later; nothing is lost
    ├── GroupFull            the group has as many waiting jobs as it may: submit again later; nothing was stored
    ├── AppIdInUse           another executor with this app-id is alive
    ├── LeaseLost            another executor declared this one dead; it registers again
    ├── WorkerConflict       the run lost its job; drop its result, roll back its transaction
    ├── NoResult             the job failed, was cancelled or is gone; its message says which (`joex.results`)
    └── (raised by tasks)
        ├── Fail             final: no retry helps
        ├── Retry            try again, after a delay of the task's choice
        └── Cancel           end as cancelled
"""

from __future__ import annotations

from datetime import timedelta

from joex.core.duration import parse_duration


class JoexError(Exception):
    """Base of all errors of Joex."""


class ConfigError(JoexError):
    """A setting, an argument or a file is wrong; the message names it and the fix."""


class InvalidJob(ConfigError, ValueError):
    """A submission is wrong: the message names the field. Nothing was stored."""


class MissingExtra(ConfigError, ImportError):
    """A library is not installed: the message names the extra of the package that brings it."""


class JobExists(ConfigError):
    """The type already has a keyed job with this id. Nothing was stored."""


class NotYours(ConfigError):
    """This periodic task has another owner: the message says which, and where to change it. Nothing was done."""


class SchemaError(ConfigError):
    """The database has no Joex schema, or one that this version can't use, or would not change.

    Attributes:
        reason: one word, for a condition: ``SchemaMissing``, ``SchemaTooOld`` (this version needs a migration),
            ``SchemaTooNew`` (the schema needs a newer version), ``MigrationLocksOut`` (living executors
            need a newer version before the migration).
    """

    def __init__(self, message: str, reason: str = "SchemaMissing") -> None:
        super().__init__(message)
        self.reason = reason


class DatabaseUnavailable(JoexError):
    """The database is unreachable, or refuses the work for now."""


class GroupFull(JoexError):
    """The group has as many waiting jobs as it may. Nothing was stored."""


class AppIdInUse(JoexError):
    """Another executor with this app-id is alive; two must never share one."""


class LeaseLost(JoexError):
    """Another executor has declared this one dead, and put its jobs back."""


class WorkerConflict(JoexError):
    """The run has lost its job: its result is dropped."""


class TaskSignal(JoexError):
    """Base of the exceptions by which a task chooses how its run ends."""


class Fail(TaskSignal):
    """Raise in a task: the job fails for good, without a retry."""


class Cancel(TaskSignal):
    """Raise in a task: the job ends as cancelled."""


class Retry(TaskSignal):
    """Raise in a task: retry the job after a delay of the task's choice. This counts as one of its retries.

    Args:
        message: why, for the log.
        after: the delay; by default the usual retry delay of the job.

    Raises:
        ValueError: ``after`` is no delay.
    """

    def __init__(self, message: str = "", *, after: timedelta | float | str | None = None) -> None:
        super().__init__(message)
        try:
            if after is not None:
                parse_duration(after)
        except ValueError as error:
            raise ValueError(f"after: {error}") from None
        self.after = after

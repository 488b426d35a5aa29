"""Errors, named by what the caller does about them.

::

    JoexError
    ├── ConfigError          mend the configuration or the call; nothing was done
    │   ├── InvalidJob       mend the submission (also a ValueError); nothing was stored
    │   ├── JobExists        a type has a job with this id already; nothing was stored
    │   ├── NotYours         somebody else owns it: change it there, or force it; nothing was done
    │   └── SchemaError      run `joex migrate`, or a newer joex; nothing was done
    ├── DatabaseUnavailable  try again later; nothing is lost
    ├── AppIdInUse           another executor lives under this app-id
    ├── LeaseLost            this executor was declared dead; start a new incarnation
    ├── WorkerConflict       the run lost its job; drop its result, roll back its transaction
    └── (raised by tasks)
        ├── Fail             final: no retry helps
        ├── Retry            try again, after a delay of the task's choice
        └── Cancel           end as cancelled
"""

from __future__ import annotations

from datetime import timedelta


class JoexError(Exception):
    """Base of all errors of Joex."""


class ConfigError(JoexError):
    """A setting, an argument or a file is wrong; the message names it and the mend."""


class InvalidJob(ConfigError, ValueError):
    """A submission is wrong: the message names the field. Nothing was stored."""


class JobExists(ConfigError):
    """A job with an id of the caller's own is there already. Nothing was stored."""


class NotYours(ConfigError):
    """Somebody else owns this periodic task: the message says who, and where it is changed. Nothing was done."""


class SchemaError(ConfigError):
    """The database has no Joex schema, or one of another version."""


class DatabaseUnavailable(JoexError):
    """The database can't be reached, or refused the work for now."""


class AppIdInUse(JoexError):
    """Another executor with this app-id lives; two must never share one."""


class LeaseLost(JoexError):
    """Others consider this executor dead, and its jobs have been put back."""


class WorkerConflict(JoexError):
    """The job does not belong to this run any more: its result is dropped."""


class TaskSignal(JoexError):
    """Base of what a task raises to choose its own end."""


class Fail(TaskSignal):
    """Raise in a task: the job fails for good, no retry will help."""


class Cancel(TaskSignal):
    """Raise in a task: the job ends as cancelled."""


class Retry(TaskSignal):
    """Raise in a task: run it again, after a delay of its own choice. It counts as one of the job's retries.

    Args:
        message: why, for the log.
        after: the delay; by default the one that the job's retry delay gives.
    """

    def __init__(self, message: str = "", *, after: timedelta | float | str | None = None) -> None:
        super().__init__(message)
        self.after = after

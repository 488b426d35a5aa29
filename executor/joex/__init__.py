"""Joex: a fair job executor for PostgreSQL."""

from importlib.metadata import version as _version

from joex.client import Client
from joex.context import Context, JobLog
from joex.core.job import NewJob, Priority, State
from joex.errors import (
    AppIdInUse,
    Cancel,
    ConfigError,
    DatabaseUnavailable,
    Fail,
    InvalidJob,
    JobExists,
    JoexError,
    LeaseLost,
    Retry,
    SchemaError,
    WorkerConflict,
)
from joex.store.jobs import Job, LogEntry
from joex.task import App, Task
from joex.typed import TypedJob, TypedJobs

__version__ = _version("joex")

__all__ = [
    "App",
    "AppIdInUse",
    "Cancel",
    "Client",
    "ConfigError",
    "Context",
    "DatabaseUnavailable",
    "Fail",
    "InvalidJob",
    "Job",
    "JobExists",
    "JobLog",
    "JoexError",
    "LeaseLost",
    "LogEntry",
    "NewJob",
    "Priority",
    "Retry",
    "SchemaError",
    "State",
    "Task",
    "TypedJob",
    "TypedJobs",
    "WorkerConflict",
]

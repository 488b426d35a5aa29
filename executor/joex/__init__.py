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
    NotYours,
    Retry,
    SchemaError,
    WorkerConflict,
)
from joex.periodic_tasks import PeriodicTasks, TimerCheck, check_timer
from joex.store.jobs import Job, LogEntry
from joex.store.periodic import PeriodicTask
from joex.store.watching import ExecutorEvent, JobEvent
from joex.task import App, Task
from joex.typed import TypedJob, TypedJobs, TypeTimeout

__version__ = _version("joex")

__all__ = [
    "App",
    "AppIdInUse",
    "Cancel",
    "Client",
    "ConfigError",
    "Context",
    "DatabaseUnavailable",
    "ExecutorEvent",
    "Fail",
    "InvalidJob",
    "Job",
    "JobEvent",
    "JobExists",
    "JobLog",
    "JoexError",
    "LeaseLost",
    "LogEntry",
    "NewJob",
    "NotYours",
    "PeriodicTask",
    "PeriodicTasks",
    "Priority",
    "Retry",
    "SchemaError",
    "State",
    "Task",
    "TimerCheck",
    "TypeTimeout",
    "TypedJob",
    "TypedJobs",
    "WorkerConflict",
    "check_timer",
]

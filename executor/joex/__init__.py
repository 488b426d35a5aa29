"""Joex: a fair job executor for PostgreSQL."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from joex.app import App
    from joex.client.client import Client
    from joex.client.groups import Groups
    from joex.client.keyed_jobs import KeyedJobs
    from joex.client.keyed_model import KeyedJob, TypeTimeout
    from joex.client.periodic import PeriodicTasks, TimerCheck, check_timer
    from joex.client.queues import Queues
    from joex.context import Context, JobLog
    from joex.core.job import NewJob, Priority, State
    from joex.errors import (
        AppIdInUse,
        Cancel,
        ConfigError,
        DatabaseUnavailable,
        Fail,
        GroupFull,
        InvalidJob,
        JobExists,
        JoexError,
        LeaseLost,
        MissingExtra,
        NotYours,
        Retry,
        SchemaError,
        WorkerConflict,
    )
    from joex.results import NoResult
    from joex.store.job_logs import Attempt, LogEntry
    from joex.store.jobs import Job
    from joex.store.periodic import PeriodicTask
    from joex.store.stats import GroupSetting, GroupStats, PausedQueue
    from joex.store.subscriptions import ExecutorEvent, JobEvent
    from joex.task import Task

    __version__: str

# Imported at first use: a command must handle SIGTERM before it imports slow modules.
_MODULES = {
    "App": "joex.app",
    "AppIdInUse": "joex.errors",
    "Attempt": "joex.store.job_logs",
    "Cancel": "joex.errors",
    "Client": "joex.client.client",
    "ConfigError": "joex.errors",
    "Context": "joex.context",
    "DatabaseUnavailable": "joex.errors",
    "ExecutorEvent": "joex.store.subscriptions",
    "Fail": "joex.errors",
    "GroupFull": "joex.errors",
    "GroupSetting": "joex.store.stats",
    "GroupStats": "joex.store.stats",
    "Groups": "joex.client.groups",
    "InvalidJob": "joex.errors",
    "Job": "joex.store.jobs",
    "JobEvent": "joex.store.subscriptions",
    "JobExists": "joex.errors",
    "JobLog": "joex.context",
    "JoexError": "joex.errors",
    "KeyedJob": "joex.client.keyed_model",
    "KeyedJobs": "joex.client.keyed_jobs",
    "LeaseLost": "joex.errors",
    "LogEntry": "joex.store.job_logs",
    "MissingExtra": "joex.errors",
    "NewJob": "joex.core.job",
    "NoResult": "joex.results",
    "NotYours": "joex.errors",
    "PausedQueue": "joex.store.stats",
    "PeriodicTask": "joex.store.periodic",
    "PeriodicTasks": "joex.client.periodic",
    "Priority": "joex.core.job",
    "Queues": "joex.client.queues",
    "Retry": "joex.errors",
    "SchemaError": "joex.errors",
    "State": "joex.core.job",
    "Task": "joex.task",
    "TimerCheck": "joex.client.periodic",
    "TypeTimeout": "joex.client.keyed_model",
    "WorkerConflict": "joex.errors",
    "check_timer": "joex.client.periodic",
}


def __getattr__(name: str) -> object:
    """A public name of `_MODULES`, or the version."""
    if name == "__version__":
        value: object = import_module("importlib.metadata").version("joex")
    elif name in _MODULES:
        value = getattr(import_module(_MODULES[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, "__version__"})


__all__ = [
    "App",
    "AppIdInUse",
    "Attempt",
    "Cancel",
    "Client",
    "ConfigError",
    "Context",
    "DatabaseUnavailable",
    "ExecutorEvent",
    "Fail",
    "GroupFull",
    "GroupSetting",
    "GroupStats",
    "Groups",
    "InvalidJob",
    "Job",
    "JobEvent",
    "JobExists",
    "JobLog",
    "JoexError",
    "KeyedJob",
    "KeyedJobs",
    "LeaseLost",
    "LogEntry",
    "MissingExtra",
    "NewJob",
    "NoResult",
    "NotYours",
    "PausedQueue",
    "PeriodicTask",
    "PeriodicTasks",
    "Priority",
    "Queues",
    "Retry",
    "SchemaError",
    "State",
    "Task",
    "TimerCheck",
    "TypeTimeout",
    "WorkerConflict",
    "check_timer",
]

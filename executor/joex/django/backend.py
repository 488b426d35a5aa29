"""A backend for the tasks of Django: ``enqueue`` submits a job, and executors run it.

The name of the job's task is the path of the function, such as ``shop.tasks.confirm``. Its arguments are those that
``enqueue`` gets by name; the others are a list with the name ``*``.
"""

from __future__ import annotations

import builtins
import copy
import inspect
import re
import sys
from collections.abc import Coroutine, Mapping, Sequence
from datetime import datetime
from functools import partial
from types import ModuleType
from typing import Any, TypeVar
from uuid import UUID

from django.conf import settings
from django.core.checks import CheckMessage, Error
from django.core.exceptions import SynchronousOnlyOperation
from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.utils import timezone

from joex import errors
from joex.client.blocking import blocking
from joex.client.calls import new_name
from joex.core.job import NewJob, Priority, State, id_once
from joex.django.database import database_url
from joex.django.declared import find_task
from joex.django.framework import (
    BaseTaskBackend,
    InvalidTask,
    Task,
    TaskError,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_enqueued,
)
from joex.django.options import TaskOptions, current_options
from joex.store import job_logs, jobs
from joex.store.drivers import adapted_sync
from joex.store.jobs import Job
from joex.store.json_text import json_text

T = TypeVar("T")

POSITIONAL = "*"
"""The name of the arguments that come without one."""

_STATUS = {
    State.WAITING: TaskResultStatus.READY,
    State.STUCK: TaskResultStatus.READY,  # Django's word for a task that is to run again, too
    State.SCHEDULED: TaskResultStatus.RUNNING,
    State.RUNNING: TaskResultStatus.RUNNING,
    State.SUCCESS: TaskResultStatus.SUCCESSFUL,
    State.FAILED: TaskResultStatus.FAILED,
    State.CANCELLED: TaskResultStatus.FAILED,
}
_OPTIONS = ("database", "on_commit", *TaskOptions.__annotations__)
_CLASS = re.compile(r"([\w.]+)(?:: |$)")
_LAST_LINES = 20


class JoexBackend(BaseTaskBackend):
    """Submits the tasks of Django as jobs, on a connection of Django.

    ``OPTIONS`` of the backend in the settings:

    - ``database``: the alias of the database that has the jobs; by default ``default``. Joex uses one database: all
      backends name the same.
    - ``on_commit``: the alias of a database. ``enqueue`` then submits when the transaction that is open there has
      committed. By default it submits at once, in the transaction of ``database``, and the job exists if and only if
      that commits.
    - ``group``, ``subject``, ``submitter``, ``retries``: defaults for `joex.django.options`.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True  # in two levels: a priority above 0 is high

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        self._database = self.options.get("database", DEFAULT_DB_ALIAS)
        self._on_commit = self.options.get("on_commit")
        self.defaults = {name: self.options[name] for name in TaskOptions.__annotations__ if name in self.options}

    def check(self, **_: object) -> list[CheckMessage]:
        """What is wrong with ``OPTIONS``, for ``manage.py check``."""
        wrong = [f"there is no {name!r}; there are {', '.join(_OPTIONS)}" for name in self.options.keys() - {*_OPTIONS}]
        if self._on_commit is not None and self._on_commit not in list(connections):
            wrong.append(f"on_commit: expected the alias of a database in DATABASES; got {self._on_commit!r}")
        try:
            database_url(self._database)
            NewJob("checked", **self.defaults)
        except (errors.ConfigError, ValueError) as error:
            wrong.append(str(error))
        return [Error(f"TASKS[{self.alias!r}]['OPTIONS']: {each}", id="joex.E001") for each in sorted(wrong)]

    def validate_task(self, task: Task) -> None:
        """As every backend does; and refuse a task that executors can't import.

        Raises:
            InvalidTask: why.
        """
        super().validate_task(task)
        if task.func.__module__ == "__main__":
            raise InvalidTask("Task function must be in a module that executors can import; got one of __main__.")

    def enqueue(self, task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskResult:
        """Submit a job, in the transaction of its database; or, with ``on_commit``, after the other one has committed.

        Raises:
            InvalidTask: the task or a field of the job is wrong; the message names it. Nothing was stored.
            TypeError: the arguments don't fit the function, or JSON has no such values. Nothing was stored.
            joex.GroupFull, joex.DatabaseUnavailable: as `joex.Client.submit`.
        """
        self.validate_task(task)
        check_call(task, args, kwargs)
        result = TaskResult(
            task=task,
            id="",
            status=TaskResultStatus.READY,
            enqueued_at=timezone.now(),
            started_at=None,
            last_attempted_at=None,
            finished_at=None,
            args=args,
            kwargs=kwargs,
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        once = None if self._on_commit is None else new_name()
        try:
            job = self._job_of(result)
            if once is None:
                job_id = self._submit(job)
            else:
                json_text("args", job.args)  # after the commit it is too late to refuse them
                job_id = id_once(once, job.queue, job.group)
        except (ValueError, TypeError) as error:
            raise InvalidTask(str(error)) from error
        object.__setattr__(result, "id", str(job_id))
        if once is None:
            task_enqueued.send(type(self), task_result=result)
        else:
            transaction.on_commit(partial(self._submit_late, job, once, result), using=self._on_commit)
        return result

    def get_result(self, result_id: str) -> TaskResult:
        """The result of a job as it is stored now.

        Raises:
            TaskResultDoesNotExist: there is no such job (its transaction may not have committed), or this program has
                no such task.
        """
        try:
            job_id = UUID(result_id)
        except (ValueError, TypeError, AttributeError):
            raise TaskResultDoesNotExist(result_id) from None
        job = _now(self._read(job_id))
        task = None if job is None else find_task(job.task, type(self))
        if job is None or task is None:
            raise TaskResultDoesNotExist(result_id)
        is_high = job.priority == Priority.HIGH
        args = dict(job.args)
        result = TaskResult(
            task=_as_stored(
                task,
                priority=task.priority if (task.priority > 0) == is_high else int(is_high),
                queue_name=job.queue,
                run_after=_time(job.due_at) if job.state == State.WAITING else None,
                backend=self.alias,
            ),
            id=str(job.id),
            status=_STATUS[State(job.state)],
            enqueued_at=_time(job.submitted_at),
            started_at=_time(job.started_at),
            last_attempted_at=_time(job.started_at),
            finished_at=_time(job.finished_at),
            args=args.pop(POSITIONAL, []),
            kwargs=args,
            backend=self.alias,
            errors=_now(self._errors(job)),
            worker_ids=worker_ids(job.attempt, job.app_id or ""),
        )
        object.__setattr__(result, "_return_value", job.result)
        return result

    def _job_of(self, result: TaskResult) -> NewJob:
        task, args = result.task, dict(result.kwargs)
        if POSITIONAL in args:
            raise ValueError(f"no argument can have the name {POSITIONAL!r}")
        if result.args:
            args[POSITIONAL] = result.args
        run_after = task.run_after
        return NewJob(
            task.module_path,
            args,
            queue=task.queue_name,
            priority=priority_of(task),
            not_before=timezone.make_aware(run_after) if run_after and timezone.is_naive(run_after) else run_after,
            **{**self.defaults, **current_options()},
        )

    def _submit(self, job: NewJob, once: UUID | None = None) -> UUID | None:
        return _now(self._stored(job, once))

    def _submit_late(self, job: NewJob, once: UUID, result: TaskResult) -> None:
        self._submit(job, once)
        task_enqueued.send(type(self), task_result=result)

    async def _stored(self, job: NewJob, once: UUID | None) -> UUID | None:
        return await jobs.submit(await adapted_sync(connections[self._database]), job, once)

    async def _read(self, job_id: UUID) -> Job | None:
        return await jobs.get_job(await adapted_sync(connections[self._database]), job_id)

    async def _errors(self, job: Job) -> list[TaskError]:
        """The error of the latest failed run, with the traceback that its log has."""
        if job.state == State.CANCELLED:
            return [TaskError(exception_class_path="joex.Cancel", traceback=job.error or "the job was cancelled")]
        if job.error is None or job.state not in (State.STUCK, State.FAILED):
            return []
        connection = await adapted_sync(connections[self._database])
        lines = (await job_logs.latest_log(connection, [job.id], _LAST_LINES)).get(job.id, [])
        of_run = [line.message for line in lines if line.attempt == job.attempt]
        traces = [message for message in of_run if message.startswith(("Traceback ", "  + Exception Group "))]
        return [_JobError(exception_class_path=class_path_of(job.error), traceback=[job.error, *traces][-1])]


class _JobError(TaskError):
    """The error of a job. A worker may have written its text, so nothing is imported or made because that names it."""

    @property
    def exception_class(self) -> type[BaseException]:
        module, _, name = self.exception_class_path.rpartition(".")
        # (By `type` and `vars`: a module may import what it is asked for, and a lazy object be made.)
        found: Any = sys.modules.get(module)
        kind: Any = vars(found).get(name) if issubclass(type(found), ModuleType) else None
        return kind if issubclass(type(kind), type) and issubclass(kind, BaseException) else errors.JoexError


def check_call(task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Check that the function of a task takes these arguments.

    Raises:
        TypeError: it does not; as for a call of it.
    """
    try:
        inspect.signature(task.func).bind(*((None,) if task.takes_context else ()), *args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{task.module_path}: {error}") from None


def priority_of(task: Task) -> Priority:
    """The priority of the jobs of a task."""
    return Priority.HIGH if task.priority > 0 else Priority.LOW


def worker_ids(attempts: int, last: str) -> list[str]:
    """The workers of all runs; Joex knows the last one."""
    return [""] * (attempts - 1) + [last] * min(attempts, 1)


def class_path_of(error: str) -> str:
    """The path of the class that the error of a job names; that of `joex.JoexError` if it names none."""
    named = _CLASS.match(error)
    name = named[1] if named else ""
    if "." in name:
        return name
    for module in (builtins, errors):
        kind = getattr(module, name, None)
        if isinstance(kind, type) and issubclass(kind, BaseException):
            return f"{kind.__module__}.{name}"
    return "joex.errors.JoexError"


def _now(call: Coroutine[Any, Any, T]) -> T:
    """The result of a call on a connection of Django; on an event loop it raises what Django raises there."""
    try:
        return blocking(call)
    except errors.ConfigError as error:
        if isinstance(error.__cause__, SynchronousOnlyOperation):
            raise error.__cause__ from None
        raise


def _as_stored(task: Task, **fields: Any) -> Task:
    """A task with the fields of a job, whether or not the settings still allow them: its queue may be gone."""
    stored = copy.copy(task)
    for name, value in fields.items():
        object.__setattr__(stored, name, value)
    return stored


def _time(at: datetime | None) -> datetime | None:
    """A time as the models of Django have it."""
    return at if at is None or settings.USE_TZ else timezone.make_naive(at)

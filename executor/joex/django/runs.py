"""Runs of Django's tasks in an executor.

A plain function runs in a thread of the executor, between two calls of ``close_old_connections``, as a request does:
the connections of the thread stay open for ``CONN_MAX_AGE``. An async function runs on the executor's event loop. What
it does by ``sync_to_async``, such as its queries, has a thread of its own, whose connections end with the run.
"""

from __future__ import annotations

from asyncio import wrap_future
from collections.abc import Callable
from inspect import iscoroutinefunction
from typing import Any

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.db import close_old_connections, connections, reset_queries
from django.utils import timezone

import joex
from joex.core.outcome import Judged
from joex.django.backend import POSITIONAL, JoexBackend, check_call, priority_of, worker_ids
from joex.django.context import RunContext
from joex.django.declared import declared_tasks
from joex.django.framework import (
    Task,
    TaskError,
    TaskResult,
    TaskResultStatus,
    normalize_json,
    task_finished,
    task_started,
)
from joex.django.schedules import schedules_of
from joex.runtime.judge import until_done
from joex.runtime.text import error_line, storable


def add_tasks(app: joex.App) -> None:
    """Let an app run the tasks of Django, those whose backend is `JoexBackend`, with their schedules.

    Raises:
        ConfigError: the app has a task with such a name, or a schedule is wrong.
    """
    for path, task in sorted(declared_tasks(JoexBackend).items()):
        backend = task.get_backend()
        ours = joex.Task(_function(task), path, queue=task.queue_name, retries=backend.defaults.get("retries"))
        app.add(ours)
        for timer, fields in schedules_of(path):
            try:
                check_call(task, (), fields.get("args") or {})
            except TypeError as error:
                raise joex.ConfigError(f"periodic task {fields.get('id') or path!r}: {error}") from error
            app.periodic(timer, **{"priority": str(priority_of(task)), **fields})(ours)


def _function(task: Task) -> Callable[..., Any]:
    """The function of a task, as Joex calls it."""

    def run(ctx: joex.Context, /, **given: Any) -> Any:
        reset_queries()
        close_old_connections()
        try:
            current = _Run(task, ctx, given)
            task_started.send_robust(current.sender, task_result=current.result)
            try:
                value = current.succeeded(task.func(*current.args, **current.kwargs))
            except Exception as error:
                if current.is_ended_by(error):
                    try:
                        raise current.failed(ctx.judge(error).result())  # noqa: TRY301 - receivers see it
                    except Exception:  # noqa: BLE001 - any error
                        task_finished.send_robust(current.sender, task_result=current.result)
                raise
            task_finished.send_robust(current.sender, task_result=current.result)
            return value
        finally:
            close_old_connections()

    async def run_async(ctx: joex.Context, /, **given: Any) -> Any:
        async with ThreadSensitiveContext():
            try:
                current = _Run(task, ctx, given)
                await task_started.asend_robust(current.sender, task_result=current.result)
                try:
                    value = await task.func(*current.args, **current.kwargs)
                    value = await sync_to_async(current.succeeded)(value)  # (half a second for 1 MB of small lists)
                except Exception as error:
                    if current.is_ended_by(error):
                        judging = wrap_future(ctx.judge(error))
                        await until_done(judging)
                        try:
                            raise current.failed(judging.result())  # noqa: TRY301 - likewise
                        except Exception:  # noqa: BLE001 - any error
                            await task_finished.asend_robust(current.sender, task_result=current.result)
                    raise
                await task_finished.asend_robust(current.sender, task_result=current.result)
                return value
            finally:
                # (Also when the run is interrupted. The end of the block waits for the thread.)
                await sync_to_async(connections.close_all)()

    return run_async if iscoroutinefunction(task.func) else run


class _Run:
    """A run, and its result as Django's signals and contexts show it while it lasts."""

    def __init__(self, task: Task, ctx: joex.Context, given: dict[str, Any]) -> None:
        positional = given.pop(POSITIONAL, [])
        now = timezone.now()
        self._ctx = ctx
        self.sender = type(task.get_backend())
        self.result = TaskResult(
            task=task,
            id=str(ctx.job_id),
            status=TaskResultStatus.RUNNING,
            enqueued_at=None,
            started_at=now,
            last_attempted_at=now,
            finished_at=None,
            args=[],
            kwargs={},
            backend=task.backend,
            errors=[],
            worker_ids=worker_ids(ctx.attempt, ""),
        )
        # (It would look through all values of these, in the event loop. They come from JSON.)
        object.__setattr__(self.result, "args", positional)
        object.__setattr__(self.result, "kwargs", given)
        try:
            if not isinstance(positional, list):
                raise TypeError(f"{POSITIONAL}: expected a list")  # noqa: TRY301 - as the other mistakes
            check_call(task, positional, given)
        except TypeError as error:
            raise joex.Fail(error_line(error)) from error
        context = [RunContext(task_result=self.result, run=ctx)] if task.takes_context else []
        self.args, self.kwargs = [*context, *positional], given

    def succeeded(self, value: Any) -> Any:
        """What the task returns, as JSON has it.

        Raises:
            Fail: JSON has no such value; another run would return such a one again.
        """
        try:
            found = normalize_json(value)
        except (TypeError, ValueError) as error:
            raise joex.Fail(f"its return value: {error}") from error
        object.__setattr__(self.result, "_return_value", found)
        self._end(TaskResultStatus.SUCCESSFUL)
        return found

    def is_ended_by(self, error: Exception) -> bool:
        """Whether no other run of the job follows."""
        return self._ctx.is_last_attempt or isinstance(error, joex.Fail | joex.Cancel)

    def failed(self, judged: Judged) -> BaseException:
        """Note how the task has failed for good. Returns the error that receivers of the signal may see being handled.

        Django's own shows it, without turns or limits: so one whose text takes long has another one, with its line, in
        its place.
        """
        self._ctx.judged = judged
        error, line, texts = judged.error, judged.outcome.error or "", judged.texts
        path = f"{type(error).__module__}.{type(error).__qualname__}"
        traceback = line if texts is None else storable(texts.trace())
        self.result.errors.append(TaskError(exception_class_path=path, traceback=traceback))
        self._end(TaskResultStatus.FAILED)
        if texts is not None and not texts.is_long:
            return error
        short = joex.JoexError(line)
        short.__suppress_context__ = True
        return short

    def _end(self, status: TaskResultStatus) -> None:
        object.__setattr__(self.result, "finished_at", timezone.now())
        object.__setattr__(self.result, "status", status)

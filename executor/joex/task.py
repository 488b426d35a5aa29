"""Tasks: functions that jobs refer to by name. `joex.App.task` makes them."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, cast, overload
from uuid import UUID

from joex.arguments import Arguments
from joex.core.duration import parse_duration
from joex.core.job import check_retries
from joex.core.json_values import shown
from joex.core.size import parse_size
from joex.errors import ConfigError, InvalidJob
from joex.results import Results

if TYPE_CHECKING:
    from typing import Unpack

    from joex.client.submissions import Options, Submits
    from joex.context import Context
    from joex.core.job import NewJob
    from joex.store.drivers import AnyConnection
    from joex.store.jobs import Job

P = ParamSpec("P")
T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)
Id = TypeVar("Id")


class Task(Generic[P, R_co]):
    """A function with a name and default settings. Calling the task calls the function.

    Type checkers know its parameters without the context, ``P``, and what calling it returns, ``R_co``: so they check
    the arguments of `submit`, and know the type of a `result`.

    Attributes:
        function: the function.
        name: how jobs name it.
        queue: the queue of the jobs that `submit` submits.
        retries: re-runs after a failed run; None: the executor's default.
        retry_delay: delay before the first re-run; None: the executor's default.
        timeout: the longest a run may take; None: the executor's default.
        exclusive: whether a run ends before another executor may start the same job.
        is_async: whether it is an async function.
        process: whether it runs in a child process of the executor; None: an async function does not, and for a plain
            one the executor's setting ``processes`` says it.
        memory: bytes of memory that its process may allocate; None: no limit.
        max_tasks: runs after which its process is replaced; None: no limit.
    """

    def __init__(
        self,
        function: Callable[Concatenate[Context, P], R_co],
        name: str,
        *,
        queue: str = "default",
        retries: int | None = None,
        retry_delay: timedelta | float | str | None = None,
        timeout: timedelta | float | str | None = None,
        exclusive: bool = False,
        process: bool | None = None,
        memory: int | str | None = None,
        max_tasks: int | None = None,
    ) -> None:
        self.function: Callable[..., R_co] = function
        self.name = name
        self.queue = queue
        self.retries = retries
        self.retry_delay: timedelta | None = _duration(name, "retry_delay", retry_delay)
        self.timeout: timedelta | None = _duration(name, "timeout", timeout)
        self.exclusive = exclusive
        self.is_async: bool = inspect.iscoroutinefunction(function)
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise ConfigError(f"task {name!r}: the function yields, and a result is one value: return a list instead")
        self.process = process
        self.memory: int | None = _memory(name, memory)
        self.max_tasks = max_tasks
        if process is not True and not (memory is None and max_tasks is None):
            wrong = "max_tasks" if memory is None else "memory"
            raise ConfigError(f"task {name!r}: {wrong}: only a task with process=True has a process of its own")
        if max_tasks is not None and not (type(max_tasks) is int and max_tasks >= 1):
            raise ConfigError(
                f"task {name!r}: max_tasks: expected a number of runs, at least 1; got {shown(max_tasks)}"
            )
        self.cancel_handler: Callable[..., Any] | None = None
        if retries is not None:
            try:
                check_retries("retries", retries)
            except ValueError as error:
                raise ConfigError(f"task {name!r}: {error}") from error
        self._arguments = Arguments(function, name)
        self._results = Results(function, name)

    def __call__(self, ctx: Context, /, *args: P.args, **kwargs: P.kwargs) -> R_co:  # noqa: D102 - the function's own says it
        return self.function(ctx, *args, **kwargs)

    def on_cancel(self, handler: Callable[Concatenate[Context, P], T]) -> Callable[Concatenate[Context, P], T]:
        """Decorate a function that the executor calls after it cancelled a run, with the same context and arguments."""
        self.cancel_handler = handler
        return handler

    def parse_arguments(self, args: str | Mapping[str, Any]) -> dict[str, Any]:
        """Parse arguments, JSON text or values, into the types of the function's annotations.

        Raises:
            InvalidJob: the arguments don't fit the signature; the message names each wrong one.
        """
        return self._arguments.parse(args)

    def name_arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Give the arguments of a call their names, and check them.

        Raises:
            InvalidJob: the arguments don't fit the signature; the message names each wrong one.
        """
        named = self._arguments.name(args, kwargs)
        self.parse_arguments(named)
        return named

    def submit(self, client: Submits[Id, Any], /, *args: P.args, **kwargs: P.kwargs) -> Id:
        """Submit a job with these arguments, those of the function without its context; returns the id of the job.

        With a `joex.Client`, await the id; with a `joex.sync.Client`, the call returns it.

        Set other fields of the job with `options`.

        Raises:
            InvalidJob: the arguments don't fit the signature, or can't be stored. Nothing was stored.
            DatabaseUnavailable: as `Client.submit`.
        """
        return self.options().submit(client, *args, **kwargs)

    def new_job(self, /, *args: P.args, **kwargs: P.kwargs) -> NewJob:
        """A job with these arguments, for `Client.submit_many`; set its other fields with `options`.

        Raises:
            InvalidJob: the arguments don't fit the signature.
        """
        return self.options().new_job(*args, **kwargs)

    @overload
    def options(self, *, connection: AnyConnection | None = None, **options: Unpack[Options]) -> Submission[P]: ...
    @overload
    def options(
        self, *, connection: AnyConnection | None = None, tracker: str | None, **options: Unpack[Options]
    ) -> TrackedSubmission[P]: ...
    def options(
        self,
        *,
        group: str = "default",
        queue: str | None = None,
        priority: str = "low",
        subject: str = "",
        submitter: str = "",
        not_before: datetime | timedelta | str | None = None,
        tracker: str | None = None,
        retries: int | None = None,
        connection: AnyConnection | None = None,
    ) -> Submission[P] | TrackedSubmission[P]:
        """Set further options of a submission: ``task.options(group="acme").submit(client, path=p)``.

        They are those of `Client.submit`; by default the queue is the task's. Only a submission with a tracker can be
        skipped, and so return None.
        """
        given = {
            "group": group,
            "queue": queue or self.queue,
            "priority": priority,
            "subject": subject,
            "submitter": submitter,
            "not_before": not_before,
            "tracker": tracker,
            "retries": retries,
        }
        kind = Submission if tracker is None else TrackedSubmission
        return kind(self, given, connection)

    @overload
    def result(
        self: Task[..., Coroutine[Any, Any, T]],
        client: Submits[Coroutine[Any, Any, UUID], Any],
        job_id: UUID,
        *,
        timeout: timedelta | float | str | None = None,
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def result(
        self,
        client: Submits[Coroutine[Any, Any, UUID], Any],
        job_id: UUID,
        *,
        timeout: timedelta | float | str | None = None,
    ) -> Coroutine[Any, Any, R_co]: ...
    @overload
    def result(
        self: Task[..., Coroutine[Any, Any, T]],
        client: Submits[UUID, Any],
        job_id: UUID,
        *,
        timeout: timedelta | float | str | None = None,
    ) -> T: ...
    @overload
    def result(
        self, client: Submits[UUID, Any], job_id: UUID, *, timeout: timedelta | float | str | None = None
    ) -> R_co: ...
    def result(self, client: Submits[Any, Any], job_id: UUID, *, timeout: timedelta | float | str | None = None) -> Any:
        """Wait until a job of this task is finished, and return what its run returned.

        With a `joex.Client`, await the result; with a `joex.sync.Client`, the call returns it.

        Joex stores results as JSON, and turns them back into the type that the function's annotation names.

        Args:
            client: reads the job.
            job_id: the job.
            timeout: the longest time to wait (``"30s"``); by default there is no limit.

        Raises:
            NoResult: the job failed, was cancelled or is gone, or its result does not fit the annotation.
            TimeoutError: the job is not finished in time.
            ConfigError: the job is of another task, or no value can be checked against the annotation.
        """
        found = cast("Any", client).wait(job_id, timeout=timeout)
        return self._read(job_id, found) if isawaitable(found) else self._results.read(job_id, found)

    async def _read(self, job_id: UUID, found: Awaitable[Job | None]) -> Any:
        return self._results.read(job_id, await found)


@dataclass(frozen=True, slots=True)
class _Submission(Generic[P]):
    """A task with the options of a submission."""

    task: Task[P, Any]
    given: Mapping[str, Any]
    connection: AnyConnection | None

    def _submit(self, client: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        named = self.task.name_arguments(args, kwargs)
        return client.submit(self.task.name, named, connection=self.connection, **self.given)

    def new_job(self, /, *args: P.args, **kwargs: P.kwargs) -> NewJob:
        """Check these arguments, and return the job, for `Client.submit_many`.

        Raises:
            InvalidJob: an argument or an option is wrong; the message names it.
        """
        from joex.client.submissions import new_job  # noqa: PLC0415 - programs that run tasks don't need it

        if self.connection is not None:  # submit_many would not submit the job in its transaction
            raise InvalidJob("connection: give it to submit_many, not to options")
        return new_job(task=self.task.name, args=self.task.name_arguments(args, kwargs), **self.given)


class Submission(_Submission[P]):
    """A task with the options of a submission, without a tracker."""

    def submit(self, client: Submits[Id, Any], /, *args: P.args, **kwargs: P.kwargs) -> Id:
        """Check these arguments, and submit. Returns and raises as the client's `submit`."""
        return cast("Id", self._submit(client, args, kwargs))


class TrackedSubmission(_Submission[P]):
    """A task with the options of a submission, which a tracker may skip."""

    def submit(self, client: Submits[Any, Id], /, *args: P.args, **kwargs: P.kwargs) -> Id:
        """Check these arguments, and submit. Returns and raises as the client's `submit`."""
        return cast("Id", self._submit(client, args, kwargs))


def _duration(task: str, name: str, value: timedelta | float | str | None) -> timedelta | None:
    try:
        return None if value is None else parse_duration(value)
    except ValueError as error:
        raise ConfigError(f"task {task!r}: {name}: {error}") from error


def _memory(task: str, value: int | str | None) -> int | None:
    try:
        return None if value is None else parse_size(value)
    except ValueError as error:
        raise ConfigError(f"task {task!r}: memory: {error}") from error

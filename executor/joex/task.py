"""Tasks: functions that jobs refer to by name. Public as ``joex.App``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar
from uuid import UUID

from joex.arguments import Arguments
from joex.core.duration import parse_duration
from joex.core.job import check_name, check_retries
from joex.core.json_values import shown
from joex.core.periodic import NewPeriodicTask
from joex.errors import ConfigError

if TYPE_CHECKING:
    from joex.client.client import Client
    from joex.store.statement import Connection

P = ParamSpec("P")
R = TypeVar("R")


class Task(Generic[P, R]):
    """A function with a name and default settings. Calling the task calls the function.

    Attributes:
        name: how jobs name it.
        queue: the queue of the jobs that `submit` submits.
        retries: re-runs after a failed run; None: the executor's default.
        retry_delay: delay before the first re-run; None: the executor's default.
        timeout: the longest a run may take; None: the executor's default.
        is_async: whether it runs on the executor's event loop; otherwise it runs in a thread.
    """

    def __init__(
        self,
        function: Callable[P, R],
        name: str,
        *,
        queue: str = "default",
        retries: int | None = None,
        retry_delay: timedelta | float | str | None = None,
        timeout: timedelta | float | str | None = None,
    ) -> None:
        self.function = function
        self.name = name
        self.queue = queue
        self.retries = retries
        self.retry_delay = _duration(name, "retry_delay", retry_delay)
        self.timeout = _duration(name, "timeout", timeout)
        self.is_async = inspect.iscoroutinefunction(function)
        self.cancel_handler: Callable[..., Any] | None = None
        if retries is not None:
            try:
                check_retries("retries", retries)
            except ValueError as error:
                raise ConfigError(f"task {name!r}: {error}") from error
        self._arguments = Arguments(function, name)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:  # noqa: D102 - the function's own docstring says it
        return self.function(*args, **kwargs)

    def on_cancel(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        """Decorate a function that the executor calls after it cancelled a run, with the same context and arguments."""
        self.cancel_handler = handler
        return handler

    def parse_arguments(self, args: str | Mapping[str, Any]) -> dict[str, Any]:
        """Parse arguments, JSON text or values, into the types of the function's annotations.

        Raises:
            InvalidJob: the arguments don't fit the signature; the message names each wrong one.
        """
        return self._arguments.parse(args)

    async def submit(self, client: Client, **args: Any) -> UUID | None:
        """Submit a job with these arguments; set its other fields with `options`. Returns as `Client.submit`."""
        return await Submission(self).submit(client, **args)

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
        connection: Connection | None = None,
    ) -> Submission:
        """Set further options of a submission: ``task.options(group="acme").submit(client, path=p)``."""
        given = {
            "group": group,
            "queue": queue or self.queue,
            "priority": priority,
            "subject": subject,
            "submitter": submitter,
            "not_before": not_before,
            "tracker": tracker,
            "retries": retries,
            "connection": connection,
        }
        return Submission(self, given)


@dataclass(frozen=True, slots=True)
class Submission:
    """A task with the options of a submission."""

    task: Task[Any, Any]
    given: Mapping[str, Any] = field(default_factory=dict)

    async def submit(self, client: Client, **args: Any) -> UUID | None:
        """Check these arguments, and submit. Returns and raises as `Client.submit`."""
        self.task.parse_arguments(args)
        return await client.submit(self.task.name, args, **{"queue": self.task.queue, **self.given})


class App:
    """A set of tasks, and their schedules.

    Args:
        name: the app's name, the owner of its periodic tasks: two apps on one database need two names. By default the
            place it is loaded from (``module:attribute``).

    >>> app = App()
    >>> @app.task("greetings.hello")
    ... def hello(ctx, name: str) -> str:
    ...     return f"hello {name}"
    >>> "greetings.hello" in app
    True
    """

    def __init__(self, name: str = "") -> None:
        self.name = name
        self._tasks: dict[str, Task[..., Any]] = {}
        self._periodic: dict[str, NewPeriodicTask] = {}

    def task(
        self,
        name: str,
        *,
        queue: str = "default",
        retries: int | None = None,
        retry_delay: timedelta | float | str | None = None,
        timeout: timedelta | float | str | None = None,
    ) -> Callable[[Callable[P, R]], Task[P, R]]:
        """Make a function a task: ``async def``, or plain ``def`` (which runs in a thread).

        The function gets a `joex.Context` as its first argument, and the job's arguments by name; these are checked
        against its annotations.

        Args:
            name: how jobs name it.
            queue: the queue of the jobs that `Task.submit` submits.
            retries: re-runs after a failed run.
            retry_delay: delay before the first re-run (``"1m"``, seconds or a timedelta); it doubles each time.
            timeout: the longest a run may take. An async task is interrupted then; code in a thread can't be: it sees
                ``ctx.cancelled``, and keeps its slot until it ends.

        Raises:
            ConfigError: the name is taken, or a setting is wrong.
        """
        if not isinstance(name, str):  # @app.task without parentheses passes the function
            raise ConfigError(f'task: expected a name; write @app.task("name"); got {shown(name)}')

        def register(function: Callable[P, R]) -> Task[P, R]:
            task = Task(function, name, queue=queue, retries=retries, retry_delay=retry_delay, timeout=timeout)
            self.add(task)
            return task

        return register

    def periodic(
        self,
        timer: str,
        *,
        zone: str = "UTC",
        id: str = "",  # noqa: A002 - what it is everywhere else
        args: Mapping[str, Any] | None = None,
        group: str = "default",
        queue: str | None = None,
        priority: str = "low",
        subject: str = "",
        starting_deadline: timedelta | float | str | None = None,
    ) -> Callable[[Task[P, R]], Task[P, R]]:
        """Run a task on a schedule; put this above `task`.

        The app's executors register it when they start, and remove the periodic tasks that the app no longer has. When
        it is due, any executor creates the job: never twice, and not while the last job is unfinished.

        Args:
            timer: when: a systemd calendar event (``"Mon..Fri 08:00"``) or a cron line; see docs/reference/timers.md.
            zone: the time zone, such as ``"Europe/Zurich"``, of a timer that names none.
            id: tells the schedules of a task apart, if it has several; by default the task's name.
            args: the arguments of its jobs.
            group: the group of its jobs.
            queue: the queue of its jobs; by default the task's.
            priority: the priority of its jobs.
            subject: what its jobs are about; Joex only shows it; by default its id.
            starting_deadline: skip a time missed by more than this (``"1h"``); by default Joex catches up on the
                latest, however late.

        Raises:
            ConfigError: an argument is wrong; the message names it.
        """
        if not isinstance(timer, str):  # likewise
            raise ConfigError(f'periodic: expected a timer; write @app.periodic("Mon..Fri 08:00"); got {shown(timer)}')

        def register(task: Task[P, R]) -> Task[P, R]:
            if not isinstance(task, Task):
                raise ConfigError(f"periodic {timer!r}: put @app.periodic(...) above @app.task(...), not below")
            name = id or task.name
            if name in self._periodic:
                raise ConfigError(
                    f"periodic task {name!r}: the app already has one with this id; give each its own: id=..."
                )
            self._periodic[name] = _periodic(
                name,
                task,
                timer=timer,
                zone=zone,
                args=args or {},
                group=group,
                queue=queue or task.queue,
                priority=priority,
                subject=subject,
                starting_deadline=starting_deadline,
            )
            return task

        return register

    @property
    def owner(self) -> str:
        """The owner of the app's periodic tasks."""
        return f"app:{self.name or 'app'}"

    @property
    def periodic_tasks(self) -> list[NewPeriodicTask]:
        """The app's periodic tasks. Their ids begin with the app's name.

        Raises:
            ConfigError: an id is too long with the app's name before it.
        """
        try:
            return [replace(one, id=f"{self.name or 'app'}/{one.id}") for one in self._periodic.values()]
        except ValueError as error:
            raise ConfigError(f"app {self.name!r}: periodic tasks: {error}") from error

    def add(self, task: Task[..., Any]) -> None:
        """Add a task that another module defined.

        Raises:
            ConfigError: its name is taken.
        """
        try:
            check_name("name", task.name)
        except ValueError as error:
            raise ConfigError(f"task {task.name!r}: {error}") from None
        if task.name in self._tasks:
            raise ConfigError(f"task {task.name!r}: the app already has one with this name")
        self._tasks[task.name] = task

    def get(self, name: str) -> Task[..., Any] | None:
        """The task with this name, or None."""
        return self._tasks.get(name)

    def __contains__(self, name: object) -> bool:
        return name in self._tasks

    def __iter__(self) -> Iterator[Task[..., Any]]:
        return iter(self._tasks.values())

    @property
    def names(self) -> list[str]:
        """The names of all tasks, sorted."""
        return sorted(self._tasks)


def _periodic(name: str, task: Task[..., Any], *, starting_deadline: Any, **fields: Any) -> NewPeriodicTask:
    """A checked periodic task."""
    task.parse_arguments(fields["args"])
    deadline = _duration(name, "starting_deadline", starting_deadline)
    try:
        return NewPeriodicTask(id=name, task=task.name, starting_deadline=deadline, submitter="joex", **fields)
    except ValueError as error:
        raise ConfigError(f"periodic task {name!r}: {error}") from error


def _duration(task: str, name: str, value: timedelta | float | str | None) -> timedelta | None:
    try:
        return None if value is None else parse_duration(value)
    except ValueError as error:
        raise ConfigError(f"task {task!r}: {name}: {error}") from error

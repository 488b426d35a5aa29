"""The tasks of a program, and their schedules. Public as ``joex.App``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from joex.core.duration import parse_duration
from joex.core.job import OWN_NAMES, check_name
from joex.core.json_values import shown
from joex.core.periodic import NewPeriodicTask
from joex.errors import ConfigError, MissingExtra
from joex.task import Task

if TYPE_CHECKING:
    from joex.context import Context

P = ParamSpec("P")
T = TypeVar("T")


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
        self._periodic: dict[str, Callable[[], NewPeriodicTask]] = {}

    def task(
        self,
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
    ) -> Callable[[Callable[Concatenate[Context, P], T]], Task[P, T]]:
        """Make a function a task: ``async def``, or plain ``def`` (which runs in a thread, or in a process).

        The function gets a `joex.Context` as its first argument, and the job's arguments by name; these are checked
        against its annotations.

        Args:
            name: how jobs name it.
            queue: the queue of the jobs that `Task.submit` submits.
            retries: re-runs after a failed run.
            retry_delay: delay before the first re-run (``"1m"``, seconds or a timedelta); it doubles each time.
            timeout: the longest a run may take. An async task is interrupted then, a process is ended; code in a thread
                can't be interrupted: it sees ``ctx.cancelled``, and keeps its slot until it ends.
            exclusive: interrupt a run that has lost the database before another executor may start the job. By default
                runs go on for ``outage_patience``, so that an outage costs no work; but if only this executor's link is
                lost, another run of the job may start meanwhile. The database takes the end of one run only.
            process: run it in a child process of the executor: for code that computes, may crash, or can't be
                interrupted. By default an async function runs on the executor's event loop, and a plain one in a
                thread, or where the executor's setting ``processes`` says.
            memory: the memory that the process may allocate (``"2Gi"``, or bytes); beyond it, the code gets a
                MemoryError. On Linux.
            max_tasks: replace the process after this many runs, because its code leaks.

        Raises:
            ConfigError: the name is taken, or one of Joex's own (``joex.``), or a setting is wrong.
        """
        if not isinstance(name, str):  # @app.task without parentheses passes the function
            raise ConfigError(f'task: expected a name; write @app.task("name"); got {shown(name)}')

        def register(function: Callable[Concatenate[Context, P], T]) -> Task[P, T]:
            task = Task(
                function,
                name,
                queue=queue,
                retries=retries,
                retry_delay=retry_delay,
                timeout=timeout,
                exclusive=exclusive,
                process=process,
                memory=memory,
                max_tasks=max_tasks,
            )
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
    ) -> Callable[[Task[P, T]], Task[P, T]]:
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

        def register(task: Task[P, T]) -> Task[P, T]:
            if not isinstance(task, Task):
                raise ConfigError(f"periodic {timer!r}: put @app.periodic(...) above @app.task(...), not below")
            name = id or task.name
            if name in self._periodic:
                raise ConfigError(
                    f"periodic task {name!r}: the app already has one with this id; give each its own: id=..."
                )
            new = partial(
                _periodic,
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
            with suppress(MissingExtra):  # a program that only submits jobs: the executors check it when they start
                new()
            self._periodic[name] = new
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
            return [replace(new(), id=f"{self.name or 'app'}/{name}") for name, new in self._periodic.items()]
        except ValueError as error:
            raise ConfigError(f"app {self.name!r}: periodic tasks: {error}") from error

    def add(self, task: Task[..., Any]) -> None:
        """Add a task that another module defined.

        Raises:
            ConfigError: its name is taken, or one of Joex's own.
        """
        try:
            check_name("name", task.name)
        except ValueError as error:
            raise ConfigError(f"task {task.name!r}: {error}") from None
        if task.name.startswith(OWN_NAMES):
            raise ConfigError(f"task {task.name!r}: name: must not begin with {OWN_NAMES}, as Joex's own names do")
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
    try:
        deadline = None if starting_deadline is None else parse_duration(starting_deadline)
    except ValueError as error:
        raise ConfigError(f"periodic task {name!r}: starting_deadline: {error}") from error
    try:
        return NewPeriodicTask(id=name, task=task.name, starting_deadline=deadline, submitter="joex", **fields)
    except ValueError as error:
        raise ConfigError(f"periodic task {name!r}: {error}") from error

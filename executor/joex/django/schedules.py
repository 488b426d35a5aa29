"""The schedules of Django's tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_schedules: dict[str, dict[str, tuple[str, dict[str, Any]]]] = {}


def periodic(timer: str, **fields: Any) -> Callable[[T], T]:
    """Run a task of Django on a schedule; put this above ``@task``.

    Args:
        timer: when: a systemd calendar event (``"Mon..Fri 08:00"``) or a cron line.
        **fields: as for `joex.App.periodic`. If a task has several schedules, each needs an ``id``. The queue is the
            task's, unless you name one.

    Raises:
        TypeError: it decorates something else.
    """

    def decorate(task: T) -> T:
        path = getattr(task, "module_path", None)
        if path is None:
            raise TypeError("periodic: expected a task of Django: put @periodic(...) above @task")
        _schedules.setdefault(path, {})[fields.get("id") or path] = (timer, fields)
        return task

    return decorate


def schedules_of(path: str) -> list[tuple[str, dict[str, Any]]]:
    """The timers of a task, with the other arguments of `periodic`."""
    return list(_schedules.get(path, {}).values())

"""The tasks of Django that the modules of this process declare.

A job names its task by the path of a function. Joex imports no module because a job names it: else a client that may
submit jobs could run the code of any installed module.
"""

from __future__ import annotations

import sys

from django.utils.module_loading import autodiscover_modules

from joex.django.framework import BaseTaskBackend, Task

_found: dict[str, Task] = {}


def declared_tasks(backend: type[BaseTaskBackend]) -> dict[str, Task]:
    """The tasks of a kind of backend, by their paths: those of all modules that have been imported.

    It first imports the module ``tasks`` of each application in ``INSTALLED_APPS`` that has one.
    """
    autodiscover_modules("tasks")
    found: dict[str, Task] = {}
    for module in list(sys.modules.values()):
        for value in list(getattr(module, "__dict__", {}).values()):
            # (By its type: to ask some objects for their class makes them do something.)
            if issubclass(type(value), Task) and isinstance(value.get_backend(), backend):
                found.setdefault(value.module_path, value)
    return found


def find_task(path: str, backend: type[BaseTaskBackend]) -> Task | None:
    """The task of this path, or None."""
    if path not in _found:
        _found.update(declared_tasks(backend))
    return _found.get(path)

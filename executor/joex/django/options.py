"""The options of a submission that Django's tasks don't know."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, TypedDict, Unpack

_current: ContextVar[Mapping[str, Any]] = ContextVar("joex_django_options", default=MappingProxyType({}))


class TaskOptions(TypedDict, total=False):
    """The options of `options`."""

    group: str
    subject: str
    submitter: str
    retries: int | None


@contextmanager
def options(**given: Unpack[TaskOptions]) -> Iterator[None]:
    """Set fields of the jobs that ``enqueue`` submits in the block: those that Django's tasks don't have.

    A middleware can set the group (the tenant) for a whole request. Other backends, such as the immediate one of tests,
    ignore the options.

    Args:
        **given: ``group``, ``subject``, ``submitter`` and ``retries``, as for `joex.Client.submit`. Inner blocks
            override outer ones, and these the backend's ``OPTIONS``.

    Raises:
        TypeError: there is no such option.

    >>> with options(group="acme"):  # doctest: +SKIP
    ...     confirm.enqueue(order.pk)
    """
    if unknown := given.keys() - TaskOptions.__annotations__.keys():
        raise TypeError(f"options: there is no {min(unknown)!r}; there are {', '.join(TaskOptions.__annotations__)}")
    token = _current.set({**_current.get(), **given})
    try:
        yield
    finally:
        _current.reset(token)


def current_options() -> Mapping[str, Any]:
    """The options of the blocks around the caller."""
    return _current.get()

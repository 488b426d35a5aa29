"""What an API token may do, and where: its scopes, and the groups and queues that it is bound to."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Scope(StrEnum):
    """What a token may do.

    - ``view``: read jobs, queues, groups and periodic tasks, without arguments, results and logs.
    - ``payloads``: read arguments, results and logs too, wherever another scope lets the token read.
    - ``submit``: submit jobs, wait for them, cancel them; the same for keyed jobs, and run again and remove these.
    - ``work``: accept jobs, report, and finish them.
    - ``operate``: steer jobs, groups, periodic tasks and executors.
    """

    VIEW = "view"
    PAYLOADS = "payloads"
    SUBMIT = "submit"
    WORK = "work"
    OPERATE = "operate"


@dataclass(frozen=True, slots=True)
class Bounds:
    """The queues and the groups that a caller may reach; None: all of them.

    >>> Bounds(groups=("acme",)).holds("mails", "acme"), Bounds(groups=("acme",)).holds("mails", "other")
    (True, False)
    """

    queues: tuple[str, ...] | None = None
    groups: tuple[str, ...] | None = None

    @property
    def are_set(self) -> bool:
        """Whether anything may lie outside."""
        return self.queues is not None or self.groups is not None

    def holds(self, queue: str, group: str) -> bool:
        """Whether what belongs to this queue and this group lies inside."""
        return (self.queues is None or queue in self.queues) and (self.groups is None or group in self.groups)

    def narrowed(self, queue: str | None = None, group: str | None = None) -> Bounds:
        """What of a queue (None: of all) and of a group lies inside. An empty tuple: nothing.

        >>> Bounds(groups=("acme", "shop")).narrowed("mails", "other")
        Bounds(queues=('mails',), groups=())
        """
        return Bounds(_only(self.queues, queue), _only(self.groups, group))


def _only(names: tuple[str, ...] | None, name: str | None) -> tuple[str, ...] | None:
    if name is None:
        return names
    return (name,) if names is None or name in names else ()


EVERYTHING = Bounds()
"""The bounds of callers that are bound to nothing."""


def is_own_id(name: Any, own: str) -> bool:
    """Whether an id that all groups share is one of this group (or queue); SQL: ``must_be_own_id``.

    A text begins with the group and a slash, and has no other slash: ids that begin with ``acme/eu/`` are those of a
    group ``acme/eu``. The first element of a tuple is the group.

    >>> [is_own_id(name, "acme") for name in ("acme/nightly", "acme/eu/nightly", ("acme", 7))]
    [True, False, True]
    """
    if isinstance(name, str):
        return name.startswith(f"{own}/") and "/" not in name[len(own) + 1 :]
    return isinstance(name, tuple) and name[:1] == (own,)

"""The pools that serve the same queues in one database, and so share their jobs (see `decide.sharing`)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from joex_operator.api.objects import Pool
from joex_operator.control.database import Database
from joex_operator.decide.replicas import Replica
from joex_operator.decide.sharing import able_slots, most_slots

_Key = tuple[str, str]
"""The namespace and the name of a pool."""


@dataclass(frozen=True, slots=True)
class Sharer:
    """A pool, its database, and the slots on which the others count."""

    pool: Pool
    database: Database
    slots: int


class Sharers:
    """What the reconciles of all pools have last told of their slots."""

    def __init__(self) -> None:
        self._known: dict[_Key, Sharer] = {}

    def starting(self, pool: Pool, database: Database) -> Sharer:
        """A reconcile begins; returns the pool with all slots that it may have. Others with its URL know of it at once.

        Those with another URL of the same database know of it when the database has accepted that of this pool.
        """
        one = Sharer(pool, database, most_slots(pool))
        self._known.setdefault(_key(pool), one)
        return one

    def beside(self, own: Sharer) -> list[Sharer]:
        """The other pools that serve the same queues."""
        key, queues = _key(own.pool), set(own.pool.spec.queues)
        return [
            one
            for other, one in self._known.items()
            if other != key
            and one.database.name == own.database.name
            and one.database.is_prepared
            and set(one.pool.spec.queues) == queues
        ]

    def observed(self, pool: Pool, database: Database, replicas: Collection[Replica]) -> None:
        """A pool has these replicas. Without any, and without slots that it may have, it takes no part."""
        slots = able_slots(pool, replicas)
        if slots or replicas:
            self._known[_key(pool)] = Sharer(pool, database, slots)
        else:
            self._known.pop(_key(pool), None)

    def failed(self, pool: Pool) -> None:
        """A pool can't use its database, or not change: it gets no executor, and the others count all of the jobs."""
        if (known := self._known.get(_key(pool))) is not None:
            self._known[_key(pool)] = replace(known, slots=0)

    def forget(self, namespace: str, name: str) -> None:
        """A pool is gone, or invalid."""
        self._known.pop((namespace, name), None)


def _key(pool: Pool) -> _Key:
    return pool.namespace, pool.name

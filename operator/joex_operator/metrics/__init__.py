"""The operator's numbers for Prometheus.

Three rules hold for all of them. A number that is unknown is absent, never 0. Of a pool or a database that is gone, no
series is left. A counter that somebody is alerted by is there, at 0, before it first moves.

What is true now is kept as it was found, and made into numbers only when somebody asks for the page, so that a
reconcile costs next to nothing. docs/reference/metrics.md explains each number.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from joex.store.stats import QueueStats, Shares
from joex_operator.actions import Action
from joex_operator.metrics.databases import Databases, database_name
from joex_operator.metrics.decisions import Decisions
from joex_operator.metrics.itself import Itself
from joex_operator.metrics.lives import Lives
from joex_operator.metrics.pools import Found, Pools
from joex_operator.objects import Pool
from joex_operator.reconcile import Decision, Seen
from joex_operator.slots import Slot

__all__ = ["Metrics", "database_name"]


class Metrics:
    """Counts and measures what an operator sees and does, in a registry of its own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._pools = Pools(self._registry)
        self._lives = Lives(self._registry)
        self._decisions = Decisions(self._registry)
        self._databases = Databases(self._registry)
        self._itself = Itself(self._registry)

    def observed(self, pool: Pool, seen: Seen, decision: Decision, now: datetime, *, database: str | None) -> None:
        """A pool as it was found and what was decided, once per reconcile, before anything is done.

        ``database`` is the name of the pool's database, the same as for `queues`; None: it is not known.
        """
        self._pools.observed(Found(pool, seen, decision, database))
        self._decisions.observed(pool, seen)
        if seen.trouble is None:
            self._lives.observed(pool, seen.slots, now)

    def acted(self, pool: Pool, action: Action, slot: Slot | None, now: datetime) -> None:
        """An action was carried out; one that failed, or that the database has refused, was not.

        ``slot`` is the one that it is about as it was last seen; None: there was none.
        """
        self._decisions.acted(pool, action, slot)
        self._lives.acted(pool, action, now)

    def forget(self, namespace: str, pool: str) -> None:
        """A pool is gone."""
        for part in (self._pools, self._lives, self._decisions):
            part.forget(namespace, pool)

    def woken(self, seconds: float) -> None:
        """So long after a submission was heard of, the Deployment that it called for was made."""
        self._lives.woken(seconds)

    def reclaimed(self, jobs: int) -> None:
        """Jobs were put back because their pod was reported gone."""
        self._decisions.reclaimed(jobs)

    def queues(self, database: str, stats: Iterable[QueueStats]) -> None:
        """The queues of a database, all of them; `database_name` says what it is called."""
        self._databases.queues(database, stats)

    def shares(self, database: str, shares: Iterable[Shares]) -> None:
        """How the slots of the queues of a database are shared: of all that have active groups."""
        self._databases.shares(database, shares)

    def database_reachable(self, database: str, value: bool) -> None:  # noqa: FBT001 - the value of a gauge
        """Whether a database answers. While it does not, nothing is told of its queues."""
        self._databases.reachable(database, value)

    def forget_database(self, database: str) -> None:
        """No pool uses a database any more."""
        self._databases.forget(database)

    def reconciled(self, seconds: float, *, ok: bool, now: datetime) -> None:
        """A reconcile has ended, in so many seconds; not ``ok``: it will be repeated."""
        self._itself.reconciled(seconds, ok=ok, now=now)

    def leading(self, value: bool) -> None:  # noqa: FBT001 - the value of a gauge
        """Whether this operator leads. Of one that does not, nothing is told that only the leader sees."""
        self._itself.leading(value)
        if not value:
            self._pools.clear()
            self._databases.clear()

    def api_request(self, method: str, code: str) -> None:
        """A request to the Kubernetes API was answered, with this HTTP status; a word of ours where none came."""
        self._itself.api_request(method, code)

    def repeated(self, outcome: str) -> None:
        """A periodic task was due, and this operator was the one who decided about it."""
        self._itself.repeated(outcome)

    def render(self) -> tuple[bytes, str]:
        """The page for Prometheus, and its content type."""
        return generate_latest(self._registry), CONTENT_TYPE_PLAIN_0_0_4

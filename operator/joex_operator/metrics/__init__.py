"""The operator's metrics for Prometheus. docs/reference/metrics.md explains each.

Three rules hold for all of them. An unknown number is absent, never 0. A pool or database that is gone leaves no
series. A counter with an alert is exported as 0 before it first increases.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from joex.store.stats import QueueStats, Shares
from joex_operator.api.objects import Pool
from joex_operator.decide.actions import Action
from joex_operator.decide.plan import ObservedPool, Plan
from joex_operator.decide.slots import Slot
from joex_operator.metrics.databases import DatabaseMetrics, database_name
from joex_operator.metrics.decisions import DecisionMetrics
from joex_operator.metrics.pools import PoolMetrics, PoolSnapshot
from joex_operator.metrics.self_metrics import SelfMetrics
from joex_operator.metrics.slot_timings import SlotTimings

__all__ = ["OperatorMetrics", "database_name"]


class OperatorMetrics:
    """All metrics of an operator, in a registry of its own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._pools = PoolMetrics(self._registry)
        self._slot_timings = SlotTimings(self._registry)
        self._decisions = DecisionMetrics(self._registry)
        self._databases = DatabaseMetrics(self._registry)
        self._self_metrics = SelfMetrics(self._registry)

    def observed(self, pool: Pool, observed: ObservedPool, plan: Plan, now: datetime, *, database: str | None) -> None:
        """A reconcile has observed a pool and made its plan, and begins to act.

        ``database``: the `database_name` of the pool; None: it is not known.
        """
        self._pools.observed(PoolSnapshot(pool, observed, plan, database))
        self._decisions.observed(pool, observed)
        if observed.database_problem is None:
            self._slot_timings.observed(pool, observed.slots, now)

    def acted(self, pool: Pool, action: Action, slot: Slot | None, now: datetime) -> None:
        """An action was carried out: it has not failed, and the database has not refused it.

        ``slot``: the slot of the action as observed; None: it was not observed.
        """
        self._decisions.acted(pool, action, slot)
        self._slot_timings.acted(pool, action, now)

    def forget(self, namespace: str, pool: str) -> None:
        """Remove a deleted pool."""
        for part in (self._pools, self._slot_timings, self._decisions):
            part.forget(namespace, pool)

    def woken(self, seconds: float) -> None:
        """The operator created a Deployment so many seconds after the notification that called for it."""
        self._slot_timings.woken(seconds)

    def reclaimed(self, jobs: int) -> None:
        """The operator reclaimed the jobs of a pod that is gone."""
        self._decisions.reclaimed(jobs)

    def queues(self, database: str, stats: Iterable[QueueStats]) -> None:
        """Replace the statistics of all queues of a database, which `database_name` names."""
        self._databases.queues(database, stats)

    def shares(self, database: str, shares: Iterable[Shares]) -> None:
        """Replace the shares of all queues of a database that have active groups."""
        self._databases.shares(database, shares)

    def database_reachable(self, database: str, value: bool) -> None:  # noqa: FBT001 - the value of a gauge
        """Note whether a database answers. While it does not, its queues have no samples."""
        self._databases.reachable(database, value)

    def forget_database(self, database: str) -> None:
        """Remove a database that no pool uses any more."""
        self._databases.forget(database)

    def reconciled(self, seconds: float, *, ok: bool, now: datetime) -> None:
        """A reconcile has ended after so many seconds. Not ``ok``: the controller repeats it."""
        self._self_metrics.reconciled(seconds, ok=ok, now=now)

    def leading(self, value: bool) -> None:  # noqa: FBT001 - the value of a gauge
        """Note whether this operator leads. One that does not has no samples of pools and databases."""
        self._self_metrics.leading(value)
        if not value:
            self._pools.clear()
            self._databases.clear()

    def api_request(self, method: str, code: str) -> None:
        """A request to the Kubernetes API has ended with this HTTP status; ``none``: no answer came."""
        self._self_metrics.api_request(method, code)

    def repeated(self, outcome: str) -> None:
        """This operator decided about a run of a periodic task that was due."""
        self._self_metrics.repeated(outcome)

    def render(self) -> tuple[bytes, str]:
        """The page for Prometheus and its content type."""
        return generate_latest(self._registry), CONTENT_TYPE_PLAIN_0_0_4

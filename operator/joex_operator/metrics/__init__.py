"""The operator's metrics for Prometheus. docs/reference/metrics.md explains each.

Three rules hold for all of them. An unknown number is absent, never 0. A pool or database that is gone leaves no
series. A counter with an alert is exported as 0 before it first increases.
"""

from __future__ import annotations

from datetime import datetime

from prometheus_client import CollectorRegistry

from joex.observe import page
from joex_operator.api.objects import Pool
from joex_operator.decide.actions import Action
from joex_operator.decide.plan import ObservedPool, Plan
from joex_operator.decide.replicas import Replica
from joex_operator.metrics.databases import DatabaseMetrics, database_name
from joex_operator.metrics.decisions import DecisionMetrics
from joex_operator.metrics.pools import PoolMetrics, PoolSnapshot
from joex_operator.metrics.replica_timings import ReplicaTimings
from joex_operator.metrics.self_metrics import SelfMetrics

__all__ = ["OperatorMetrics", "database_name"]


class OperatorMetrics:
    """All metrics of an operator, in a separate registry. The methods here feed several parts of it."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.pools = PoolMetrics(self._registry)
        self.replica_timings = ReplicaTimings(self._registry)
        self.decisions = DecisionMetrics(self._registry)
        self.databases = DatabaseMetrics(self._registry)
        self.own = SelfMetrics(self._registry)

    def observed(self, pool: Pool, observed: ObservedPool, plan: Plan, now: datetime, *, database: str | None) -> None:
        """A reconcile has observed a pool and made its plan, and begins to act.

        ``database``: the `database_name` of the pool; None: it is not known.
        """
        self.pools.observed(PoolSnapshot(pool, observed, plan, database))
        self.decisions.observed(pool, observed)
        if observed.database_problem is None:
            self.replica_timings.observed(pool, observed.replicas, now)

    def acted(self, pool: Pool, action: Action, replica: Replica | None, now: datetime) -> None:
        """An action was carried out: it has not failed, and the database has not refused it.

        ``replica``: the replica of the action as observed; None: it was not observed.
        """
        self.decisions.acted(pool, action, replica)
        self.replica_timings.acted(pool, action, now)

    def forget(self, namespace: str, pool: str) -> None:
        """Remove a deleted pool."""
        for part in (self.pools, self.replica_timings, self.decisions):
            part.forget(namespace, pool)

    def leading(self, value: bool) -> None:  # noqa: FBT001 - the value of a gauge
        """Note whether this operator leads. One that does not has no samples of pools and databases.

        Counters too: while another operator leads, this one does not learn of a pool's deletion.
        """
        self.own.leading(value)
        if not value:
            for part in (self.pools, self.replica_timings, self.decisions, self.databases):
                part.clear()

    def render(self) -> tuple[bytes, str]:
        """The page for Prometheus and its content type."""
        return page.render(self._registry)

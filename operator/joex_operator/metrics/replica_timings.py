"""Durations of executors' starts and drains, from the phases in which reconciles observe their replicas.

A start begins when this operator creates the Deployment: starts under way when an operator restarts are not measured. A
drain begins when the database says so, by its own clock: one that ends between two reconciles is not measured.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from prometheus_client import CollectorRegistry, Histogram

from joex_operator.api.names import replica_name
from joex_operator.api.objects import Pool
from joex_operator.decide.actions import Action, CreateReplica
from joex_operator.decide.replicas import Phase, Replica, draining

_WAKE_SECONDS = (
    *(0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75),
    *(1, 1.5, 2, 3, 5, 7.5, 10, 15, 30, 60),
)
_STARTUP_SECONDS = (0.1, 0.25, 0.5, 1, 1.5, 2, 3, 5, 7.5, 10, 15, 30, 60, 120, 300, 600, 1800)
_DRAIN_SECONDS = (0.1, 0.5, 1, 5, 15, 30, 60, 300, 900, 1800, 3600, 7200, 14400, 43200, 86400)


@dataclass(slots=True)
class _PoolTimings:
    """The starts and drains under way in a pool, by replica, and the pool's histograms.

    ``draining``: the time in the database, which names the drain; and the time of the operator's clock when it began.
    """

    startup: Histogram
    drain: Histogram
    created: dict[str, datetime] = field(default_factory=dict)
    draining: dict[str, tuple[datetime, datetime]] = field(default_factory=dict)


class ReplicaTimings:
    """Measures starts and drains."""

    def __init__(self, registry: CollectorRegistry) -> None:
        by_pool = ("namespace", "pool")
        self._pools: dict[tuple[str, str], _PoolTimings] = {}
        self._startup = Histogram(
            "joex_executor_startup_seconds",
            "Time from the creation of an executor's Deployment until it takes jobs.",
            by_pool,
            buckets=_STARTUP_SECONDS,
            registry=registry,
        )
        self._drain = Histogram(
            "joex_executor_drain_seconds",
            "Time from the beginning of an executor's drain to its end.",
            by_pool,
            buckets=_DRAIN_SECONDS,
            registry=registry,
        )
        self._wake = Histogram(
            "joex_scale_up_seconds",
            "Time from a notification of work to the creation of the Deployment that it called for.",
            buckets=_WAKE_SECONDS,
            registry=registry,
        )

    def acted(self, pool: Pool, action: Action, now: datetime) -> None:
        """An action was carried out."""
        if isinstance(action, CreateReplica):
            self._of(pool).created[replica_name(pool.name, action.index)] = now

    def observed(self, pool: Pool, replicas: Iterable[Replica], now: datetime) -> None:
        """A reconcile has observed all replicas of a pool, with the database's answer."""
        timings, replicas = self._of(pool), tuple(replicas)
        for replica in replicas if timings.created else ():
            _started(timings, replica, now)
        _drained(timings, replicas, now)

    def woken(self, seconds: float) -> None:
        """The operator created a Deployment so many seconds after the notification that called for it."""
        self._wake.observe(seconds)

    def forget(self, namespace: str, pool: str) -> None:
        """Remove a deleted pool."""
        self._pools.pop((namespace, pool), None)
        for histogram in (self._startup, self._drain):
            histogram.remove_by_labels({"namespace": namespace, "pool": pool})

    def clear(self) -> None:
        """Remove all pools."""
        for key in list(self._pools):
            self.forget(*key)

    def _of(self, pool: Pool) -> _PoolTimings:
        key = (pool.namespace, pool.name)
        if key not in self._pools:
            self._pools[key] = _PoolTimings(self._startup.labels(*key), self._drain.labels(*key))
        return self._pools[key]


def _started(timings: _PoolTimings, replica: Replica, now: datetime) -> None:
    since = timings.created.get(replica.name)
    if since is None or replica.phase in (Phase.PENDING, Phase.UNSCHEDULED):
        return
    if replica.phase in (Phase.IDLE, Phase.BUSY):
        timings.startup.observe((now - since).total_seconds())
    del timings.created[replica.name]  # it has started, or drains before it has


def _drained(timings: _PoolTimings, replicas: tuple[Replica, ...], now: datetime) -> None:
    under_way = {
        replica.name: (executor.retired_at, now - executor.retired_for)
        for replica in draining(replicas)
        if (executor := replica.executor) is not None
        and executor.retired_at is not None
        and executor.retired_for is not None
    }
    for name, (retired_at, began) in timings.draining.items():
        if name not in under_way or under_way[name][0] != retired_at:
            timings.drain.observe((now - began).total_seconds())
    timings.draining = under_way

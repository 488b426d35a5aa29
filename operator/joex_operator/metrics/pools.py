"""Metrics of the pools, from their latest reconcile: executors, bounds, demand, conditions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from joex.observe.gauge import Gauge
from joex_operator.api.objects import Pool
from joex_operator.decide.conditions import Condition, conditions
from joex_operator.decide.plan import ObservedPool, Plan
from joex_operator.decide.replicas import Phase, ready
from joex_operator.decide.scaling import Mode

_STATUS = {"True": 1, "False": 0, "Unknown": -1}
_KNOWN_IN_SILENCE = (Phase.UNKNOWN, Phase.GOING)
_Values: TypeAlias = Iterable[tuple[tuple[str, ...], float]]


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    """A reconciled pool. ``database``: the name of its database; None: it is not known."""

    pool: Pool
    observed: ObservedPool
    plan: Plan
    database: str | None


class PoolMetrics(Collector):
    """The gauges of all pools."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._snapshots: dict[tuple[str, str], PoolSnapshot] = {}
        self._refused: dict[tuple[str, str], Sequence[Condition]] = {}
        registry.register(self)

    def observed(self, snapshot: PoolSnapshot) -> None:
        """Replace the snapshot of a pool."""
        self.forget(snapshot.pool.namespace, snapshot.pool.name)
        self._snapshots[snapshot.pool.namespace, snapshot.pool.name] = snapshot

    def refused(self, namespace: str, pool: str, found: Sequence[Condition]) -> None:
        """A pool has become invalid: nothing is known of it but its conditions, until it is reconciled again."""
        self.forget(namespace, pool)
        self._refused[namespace, pool] = found

    def forget(self, namespace: str, pool: str) -> None:
        """Remove a deleted pool."""
        self._snapshots.pop((namespace, pool), None)
        self._refused.pop((namespace, pool), None)

    def clear(self) -> None:
        """Remove all pools."""
        self._snapshots.clear()
        self._refused.clear()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The samples of a page."""
        snapshots = list(self._snapshots.items())
        yield from (gauge.family(("namespace", "pool"), snapshots) for gauge in _GAUGES)
        found = [(key, conditions(one.pool, one.observed, one.plan)) for key, one in snapshots]
        yield _CONDITION.family(("namespace", "pool"), [*found, *self._refused.items()])


def _phases(snapshot: PoolSnapshot) -> _Values:
    counted = Counter(replica.phase for replica in snapshot.observed.replicas)
    phases = Phase if snapshot.observed.database_problem is None else _KNOWN_IN_SILENCE
    return [((str(phase),), counted[phase]) for phase in phases]


def _desired(snapshot: PoolSnapshot) -> _Values:
    return [((), snapshot.plan.sizing.target)]


def _least(snapshot: PoolSnapshot) -> _Values:
    """The minimum that holds now: an order of the user is minimum and maximum."""
    sizing = snapshot.plan.sizing
    is_order = sizing.mode in (Mode.FIXED, Mode.SUSPENDED, Mode.DELETED)
    return [((), sizing.target if is_order else snapshot.pool.spec.scaling.min_replicas)]


def _most(snapshot: PoolSnapshot) -> _Values:
    return [((), snapshot.plan.sizing.most)]


def _overdue(snapshot: PoolSnapshot) -> _Values:
    return [((), len(snapshot.plan.overdue))] if snapshot.observed.database_problem is None else []


def _slots(snapshot: PoolSnapshot) -> _Values:
    if snapshot.observed.database_problem is not None:
        return []
    return [((), len(ready(snapshot.observed.replicas)) * snapshot.pool.spec.pool_size)]


def _busy_slots(snapshot: PoolSnapshot) -> _Values:
    if snapshot.observed.database_problem is not None:
        return []
    return [((), sum(replica.held - replica.left for replica in ready(snapshot.observed.replicas)))]


def _runnable(snapshot: PoolSnapshot) -> _Values:
    return [] if snapshot.observed.demand is None else [((), snapshot.observed.demand.runnable)]


def _queues(snapshot: PoolSnapshot) -> _Values:
    return [] if snapshot.database is None else [((snapshot.database, queue), 1) for queue in snapshot.pool.spec.queues]


_GAUGES: tuple[Gauge[PoolSnapshot], ...] = (
    Gauge("joex_pool_executors", "Executors, by phase.", _phases, ("phase",)),
    Gauge("joex_pool_executors_desired", "The desired number of executors that take jobs.", _desired),
    Gauge("joex_pool_executors_min", "The minimum of executors that holds now.", _least),
    Gauge("joex_pool_executors_max", "The maximum of executors that holds now.", _most),
    Gauge("joex_pool_executors_overdue", "Executors that have drained for longer than drain.timeout.", _overdue),
    Gauge("joex_pool_slots", "Slots of the executors that take jobs.", _slots),
    Gauge("joex_pool_slots_busy", "Slots in use, of the executors that take jobs.", _busy_slots),
    Gauge("joex_pool_runnable_jobs", "Runnable jobs, counted as far as they matter for the size.", _runnable),
    Gauge("joex_pool_queue_info", "Always 1: the pool serves this queue.", _queues, ("database", "queue")),
)
_CONDITION: Gauge[Sequence[Condition]] = Gauge(
    "joex_pool_condition",
    "Conditions: 1 True, 0 False, -1 Unknown.",
    lambda some: [((condition.type,), _STATUS[condition.status]) for condition in some],
    ("type",),
)

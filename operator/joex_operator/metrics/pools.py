"""PoolMetrics as they were last found: their executors, their bounds, their work, their conditions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from joex_operator.api.objects import Pool
from joex_operator.decide.conditions import conditions
from joex_operator.decide.plan import Decision, ObservedPool
from joex_operator.decide.scaling import Mode
from joex_operator.decide.slots import Phase, ready

_STATUS = {"True": 1, "False": 0, "Unknown": -1}
_KNOWN_IN_SILENCE = (Phase.UNKNOWN, Phase.GOING)
_Values: TypeAlias = Iterable[tuple[tuple[str, ...], float]]


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    """A pool as it was found, and what was decided. ``database``: the name of its database; None: it is not known."""

    pool: Pool
    seen: ObservedPool
    decision: Decision
    database: str | None


class PoolMetrics(Collector):
    """The gauges of all pools, made when they are asked for."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._found: dict[tuple[str, str], PoolSnapshot] = {}
        registry.register(self)

    def observed(self, found: PoolSnapshot) -> None:
        """A pool as it is now."""
        self._found[found.pool.namespace, found.pool.name] = found

    def forget(self, namespace: str, pool: str) -> None:
        """A pool is gone."""
        self._found.pop((namespace, pool), None)

    def clear(self) -> None:
        """Nothing is known any more."""
        self._found.clear()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Called for each page."""
        found = list(self._found.items())
        for gauge in _GAUGES:
            family = GaugeMetricFamily(gauge.name, gauge.text, labels=["namespace", "pool", *gauge.labels])
            for pool, one in found:
                for labels, value in gauge.values(one):
                    family.add_metric([*pool, *labels], value)
            yield family


@dataclass(frozen=True, slots=True)
class _Gauge:
    """A number of each pool, or several, by further labels."""

    name: str
    text: str
    values: Callable[[PoolSnapshot], _Values]
    labels: tuple[str, ...] = ()


def _phases(found: PoolSnapshot) -> _Values:
    counted = Counter(slot.phase for slot in found.seen.slots)
    phases = Phase if found.seen.database_problem is None else _KNOWN_IN_SILENCE
    return [((str(phase),), counted[phase]) for phase in phases]


def _desired(found: PoolSnapshot) -> _Values:
    return [((), found.decision.sizing.target)]


def _least(found: PoolSnapshot) -> _Values:
    """The bound that holds now: orders leave no choice."""
    sizing = found.decision.sizing
    is_order = sizing.mode in (Mode.FIXED, Mode.SUSPENDED, Mode.DELETED)
    return [((), sizing.target if is_order else found.pool.spec.scaling.min_replicas)]


def _most(found: PoolSnapshot) -> _Values:
    return [((), found.decision.sizing.most)]


def _overdue(found: PoolSnapshot) -> _Values:
    return [((), len(found.decision.overdue))] if found.seen.database_problem is None else []


def _slots(found: PoolSnapshot) -> _Values:
    if found.seen.database_problem is not None:
        return []
    return [((), len(ready(found.seen.slots)) * found.pool.spec.pool_size)]


def _busy_slots(found: PoolSnapshot) -> _Values:
    if found.seen.database_problem is not None:
        return []
    return [((), sum(slot.held for slot in ready(found.seen.slots)))]


def _runnable(found: PoolSnapshot) -> _Values:
    return [] if found.seen.demand is None else [((), found.seen.demand.runnable)]


def _conditions(found: PoolSnapshot) -> _Values:
    told = conditions(found.pool, found.seen, found.decision)
    return [((condition.type,), _STATUS[condition.status]) for condition in told]


def _queues(found: PoolSnapshot) -> _Values:
    return [] if found.database is None else [((found.database, queue), 1) for queue in found.pool.spec.queues]


_GAUGES = (
    _Gauge("joex_pool_executors", "Executors, by the phase of their life.", _phases, ("phase",)),
    _Gauge("joex_pool_executors_desired", "Executors that shall take jobs.", _desired),
    _Gauge("joex_pool_executors_min", "The fewest executors that there may be now.", _least),
    _Gauge("joex_pool_executors_max", "The most executors that there may be now.", _most),
    _Gauge("joex_pool_executors_overdue", "Executors that drain for longer than they should.", _overdue),
    _Gauge("joex_pool_slots", "Jobs that the executors that take jobs can run at a time.", _slots),
    _Gauge("joex_pool_slots_busy", "Jobs that the executors that take jobs hold.", _busy_slots),
    _Gauge("joex_pool_runnable_jobs", "Jobs that could be taken now; not counted beyond what matters.", _runnable),
    _Gauge("joex_pool_condition", "Conditions: 1 True, 0 False, -1 Unknown.", _conditions, ("type",)),
    _Gauge("joex_pool_queue_info", "Always 1: the pool serves this queue.", _queues, ("database", "queue")),
)

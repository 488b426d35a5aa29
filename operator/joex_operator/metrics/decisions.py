"""Metrics of the operator's actions on pools, by reason."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter

from joex_operator.api.objects import Pool
from joex_operator.decide.actions import (
    Action,
    AskDrain,
    CreateSlot,
    DeleteSlot,
    ForgetSlot,
    ReportGone,
    UpdateSlot,
    Why,
)
from joex_operator.decide.plan import ObservedPool
from joex_operator.decide.slots import Slot

_REPLICAS, _POD_GONE = "replicas", "pod gone"
_ORDINARY = (
    ("up", Why.DEMAND),
    ("down", Why.DEMAND),
    ("replace", Why.TEMPLATE),
    ("replace", Why.LOST),
    ("repair", _REPLICAS),
    ("repair", _POD_GONE),
)
_FORCED = (Why.DRAIN_TIMEOUT, Why.UNREACHABLE)


class DecisionMetrics:
    """Counts actions."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._busy: dict[tuple[str, str], frozenset[str]] = {}
        self._decisions = Counter(
            "joex_pool_decisions",
            "Decisions about executors: create (up), drain (down), replace, repair; by reason.",
            ("namespace", "pool", "direction", "reason"),
            registry=registry,
        )
        self._terminations = Counter(
            "joex_busy_executor_terminations",
            "Executors that the operator ended while they held jobs, by reason.",
            ("namespace", "pool", "reason"),
            registry=registry,
        )
        reclaimed = Counter(
            "joex_jobs_reclaimed",
            "Jobs that the operator reclaimed because the pod of their executor was gone (pod gone).",
            ("cause",),
            registry=registry,
        )
        self._reclaimed = reclaimed.labels(_POD_GONE)

    def observed(self, pool: Pool, observed: ObservedPool) -> None:
        """Remember which slots hold jobs, for the time in which the database is down."""
        key = (pool.namespace, pool.name)
        if key not in self._busy:
            self._busy[key] = frozenset()
            self._begin(*key)
        if observed.database_problem is None:
            self._busy[key] = frozenset(slot.name for slot in observed.slots if _is_busy(slot))

    def acted(self, pool: Pool, action: Action, slot: Slot | None) -> None:
        """An action was carried out."""
        key = (pool.namespace, pool.name)
        decision = _decision(action)
        if decision is not None:
            self._decisions.labels(*key, *decision).inc()
        if isinstance(action, DeleteSlot) and slot is not None and self._was_busy(key, slot):
            self._terminations.labels(*key, str(action.why)).inc()

    def reclaimed(self, jobs: int) -> None:
        """The operator reclaimed the jobs of a pod that is gone."""
        self._reclaimed.inc(jobs)

    def forget(self, namespace: str, pool: str) -> None:
        """Remove a deleted pool."""
        self._busy.pop((namespace, pool), None)
        for counter in (self._decisions, self._terminations):
            counter.remove_by_labels({"namespace": namespace, "pool": pool})

    def clear(self) -> None:
        """Remove all pools."""
        for key in list(self._busy):
            self.forget(*key)

    def _begin(self, namespace: str, pool: str) -> None:
        """Export the series from the start, so that Prometheus sees their first increase."""
        for direction, reason in _ORDINARY:
            self._decisions.labels(namespace, pool, direction, str(reason))
        for why in _FORCED:
            self._terminations.labels(namespace, pool, str(why))

    def _was_busy(self, key: tuple[str, str], slot: Slot) -> bool:
        return _is_busy(slot) if slot.executor is not None else slot.name in self._busy.get(key, ())


def _is_busy(slot: Slot) -> bool:
    return slot.executor is not None and slot.executor.alive and slot.executor.held > 0


def _decision(action: Action) -> tuple[str, str] | None:
    """Direction and reason; None: the action follows from a decision that is counted already."""
    match action:
        case CreateSlot(_, why):
            return "up", str(why)
        case AskDrain(_, _, why):
            return "replace" if why in (Why.TEMPLATE, Why.LOST) else "down", str(why)
        case DeleteSlot(_, _, why):
            return None if why is Why.RETIRED else ("down", str(why))
        case UpdateSlot():
            return "repair", _REPLICAS
        case ReportGone():
            return "repair", _POD_GONE
        case ForgetSlot():
            return None

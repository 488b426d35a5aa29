"""Metrics of the operator's actions on pools, by reason."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter

from joex_operator.api.objects import Pool
from joex_operator.decide.actions import (
    Action,
    AskDrain,
    CreateReplica,
    DeleteReplica,
    ForgetReplica,
    MarkSpare,
    ReportGone,
    UpdateReplica,
    Why,
)
from joex_operator.decide.plan import ObservedPool
from joex_operator.decide.replicas import Replica

_REPLICAS, _POD_GONE = "replicas", "pod gone"
_ORDINARY = (
    ("up", Why.DEMAND),
    ("down", Why.DEMAND),
    ("replace", Why.TEMPLATE),
    ("replace", Why.DATABASE),
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
        """Remember which replicas hold jobs, for the time in which the database is down."""
        key = (pool.namespace, pool.name)
        if key not in self._busy:
            self._busy[key] = frozenset()
            self._begin(*key)
        if observed.database_problem is None:
            self._busy[key] = frozenset(replica.name for replica in observed.replicas if _is_busy(replica))

    def acted(self, pool: Pool, action: Action, replica: Replica | None) -> None:
        """An action was carried out."""
        key = (pool.namespace, pool.name)
        decision = _decision(action)
        if decision is not None:
            self._decisions.labels(*key, *decision).inc()
        if isinstance(action, DeleteReplica) and replica is not None and self._was_busy(key, replica):
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

    def _was_busy(self, key: tuple[str, str], replica: Replica) -> bool:
        return _is_busy(replica) if replica.executor is not None else replica.name in self._busy.get(key, ())


def _is_busy(replica: Replica) -> bool:
    return replica.executor is not None and replica.executor.alive and replica.executor.held > 0


def _decision(action: Action) -> tuple[str, str] | None:
    """Direction and reason; None: the action follows from a decision that is counted already."""
    match action:
        case CreateReplica(_, why):
            return "up", str(why)
        case AskDrain(_, _, why):
            return "replace" if why in (Why.TEMPLATE, Why.DATABASE, Why.LOST) else "down", str(why)
        case DeleteReplica(_, _, why):
            return None if why is Why.RETIRED else ("down", str(why))
        case UpdateReplica():
            return "repair", _REPLICAS
        case ReportGone():
            return "repair", _POD_GONE
        case ForgetReplica() | MarkSpare():
            return None

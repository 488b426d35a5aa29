"""Pools and replicas for the tests, each from one word about its kind."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from joex_operator.api.objects import Pool, parse_pool
from joex_operator.decide.plan import DatabaseProblem, ObservedPool
from joex_operator.decide.replicas import ObservedExecutor, Phase, Replica
from joex_operator.decide.scaling import Demand

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
SILENT = DatabaseProblem("Unreachable", "connection refused")


def manifest(name: str = "documents", metadata: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    """The manifest of a JoexPool; ``spec`` as in the file."""
    return {
        "apiVersion": "joex.dev/v1alpha1",
        "kind": "JoexPool",
        "metadata": {"name": name, "namespace": "prod", "uid": "pool-uid", "generation": 3, **(metadata or {})},
        "spec": {"app": "shop.tasks:app", "database": {"secretName": "joex-db"}, **spec},
    }


def pool(*, deleted_at: datetime | None = None, **spec: Any) -> Pool:
    metadata = {"deletionTimestamp": deleted_at.isoformat()} if deleted_at else {}
    return parse_pool(manifest(metadata=metadata, **spec))


def autoscaled(least: int = 0, most: int = 10, window: int = 0, **scaling: Any) -> dict[str, Any]:
    """The field ``scaling``, by default without any delay."""
    behavior = scaling.pop("behavior", {"scaleDown": {"stabilizationWindowSeconds": window}})
    return {"minReplicas": least, "maxReplicas": most, "behavior": behavior, **scaling}


def replica(
    index: int, phase: Phase = Phase.IDLE, held: int = 0, *, since: timedelta = timedelta(0), **more: Any
) -> Replica:
    """A replica in a phase; ``held`` jobs make it busy; ``since`` is how long it has been retired."""
    if held and phase is Phase.IDLE:
        phase = Phase.BUSY
    executors = {
        Phase.UNKNOWN: None,
        Phase.PENDING: ObservedExecutor(),
        Phase.UNSCHEDULED: ObservedExecutor(),
        Phase.LOST: ObservedExecutor(),
        Phase.CRASHING: ObservedExecutor(),
        Phase.IDLE: ObservedExecutor(alive=True, pods=(f"pod-{index}",)),
        Phase.BUSY: ObservedExecutor(alive=True, held=held or 1, pods=(f"pod-{index}",)),
        Phase.DRAINING: ObservedExecutor(
            alive=True,
            held=held,
            draining=True,
            retired_at=NOW - since,
            retired_for=since,
            pods=(f"pod-{index}",),
        ),
        Phase.RETIRED: ObservedExecutor(retired_at=NOW - since),
        Phase.GOING: ObservedExecutor(retired_at=NOW - since),
    }
    given = {
        "uid": None if phase is Phase.GOING else f"uid-{index}",
        "template": "now",
        "pods": (f"pod-{index}",),
        "executor": executors[phase],
        "lost": phase is Phase.LOST,
        "crashing": phase is Phase.CRASHING,
        "unscheduled": phase is Phase.UNSCHEDULED,
        "unscheduled_since": NOW - timedelta(minutes=5) if phase is Phase.UNSCHEDULED else None,
        **more,
    }
    return Replica(f"documents-{index}", index, **given)


def replicas(count: int, phase: Phase = Phase.IDLE, held: int = 0, *, first: int = 0, **more: Any) -> list[Replica]:
    return [replica(index, phase, held, **more) for index in range(first, first + count)]


def seen(
    *found: Replica, runnable: int | None = 0, next_due: float | None = None, template: str = "now"
) -> ObservedPool:
    """An observed pool. ``runnable`` None: the database is down, so executors are unknown too."""
    if runnable is None:
        return ObservedPool(found, None, template, SILENT)
    return ObservedPool(found, Demand(runnable, next_due), template)

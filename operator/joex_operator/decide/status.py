"""The status of an object: its conditions and numbers.

A condition keeps the time of its last transition and the generation of the spec that it is about. Its message has no
number that changes by the second, so that the operator writes a status only when something has changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from joex.core.text import cut
from joex.store.periodic import PeriodicTask
from joex_operator.api.names import selector
from joex_operator.api.objects import Pool
from joex_operator.decide.conditions import Condition, conditions
from joex_operator.decide.plan import ObservedPool, Plan
from joex_operator.decide.replicas import asked_for, crashing, draining, ready

_LONGEST_MESSAGE = 1000
"""A database server says what it likes, and the API server refuses a status with a message of more than 32,768."""


def pool_status(
    pool: Pool,
    observed: ObservedPool,
    plan: Plan,
    previous: Mapping[str, Any],
    now: datetime,
    *,
    failure: str = "",
) -> dict[str, Any]:
    """The whole status of a pool.

    ``previous``: the stored status. ``failure``: the error of an action; empty: none failed.
    """
    staying, leaving = asked_for(observed.replicas), draining(observed.replicas)
    status = {
        "observedGeneration": pool.generation,
        "replicas": len(staying) + len(leaving) + len(crashing(observed.replicas)),
        "desiredReplicas": plan.sizing.target,
        "readyReplicas": len(ready(observed.replicas))
        if observed.database_problem is None
        else previous.get("readyReplicas", 0),
        "updatedReplicas": sum(replica.template == observed.template for replica in staying),
        "drainingReplicas": len(leaving),
        "selector": selector(pool.name),
        "conditions": dated(conditions(pool, observed, plan, failure), previous, pool.generation, now),
    }
    history = plan.sizing.history.to_dict()
    return {**status, "history": history} if history else status


def periodic_status(
    ready: Condition, row: PeriodicTask | None, generation: int, previous: Mapping[str, Any], now: datetime
) -> dict[str, Any]:
    """The whole status of a periodic task. ``row``: its row in the database; None: it has none."""
    status = {"observedGeneration": generation, "conditions": dated([ready], previous, generation, now)}
    if row is None:
        return status
    job = None if row.last_job is None else {"id": str(row.last_job), "state": row.last_job_state}
    found = {
        "nextRun": row.nextrun and _time(row.nextrun),
        "lastRun": row.last_run and _time(row.last_run),
        "lastOutcome": row.last_outcome,
        "lastJob": job and {key: value for key, value in job.items() if value is not None},
    }
    return {**status, **{key: value for key, value in found.items() if value is not None}}


def with_conditions(
    new: Iterable[Condition], generation: int, previous: Mapping[str, Any], now: datetime
) -> dict[str, Any]:
    """The stored status with these conditions. Its other conditions stay."""
    changed = dated(new, previous, generation, now)
    names = {condition["type"] for condition in changed}
    kept = [condition for condition in previous.get("conditions") or [] if condition["type"] not in names]
    return {**previous, "observedGeneration": generation, "conditions": [*changed, *kept]}


def dated(
    new: Iterable[Condition], previous: Mapping[str, Any], generation: int, now: datetime
) -> list[dict[str, Any]]:
    """The conditions as stored, each with the time of its last transition."""
    before = by_type(previous)
    return [
        {
            "type": condition.type,
            "status": condition.status,
            "observedGeneration": generation,
            "lastTransitionTime": _since(condition, before.get(condition.type), now),
            "reason": condition.reason,
            "message": cut(condition.message, _LONGEST_MESSAGE),
        }
        for condition in new
    ]


def _since(condition: Condition, before: Mapping[str, Any] | None, now: datetime) -> str:
    if before is not None and before["status"] == condition.status:
        return str(before["lastTransitionTime"])
    return _time(now)


def _time(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def by_type(status: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The stored conditions, by their type."""
    return {condition["type"]: condition for condition in status.get("conditions") or []}

"""The conditions of a pool: a function for each, of the observed state and the plan."""

from __future__ import annotations

from dataclasses import dataclass

from joex.core.duration import format_duration
from joex_operator.api.objects import Pool, SpecError
from joex_operator.decide.actions import AskDrain, CreateReplica
from joex_operator.decide.plan import ObservedPool, Plan
from joex_operator.decide.replicas import Phase, Replica, asked_for, crashing, draining, ready, takers, unscheduled
from joex_operator.decide.rollout import may_be_missing
from joex_operator.decide.scaling import Limit, Mode


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition of an object: ``True``, ``False`` or ``Unknown``. ``bad``: its Event is a warning."""

    type: str
    status: str
    reason: str
    message: str
    bad: bool = False


_MISTAKES = (
    "InvalidURL", "MigrationLocksOut", "SchemaMissing", "SchemaTooNew", "SchemaTooOld", "SecretKeyMissing",
    "SecretMissing", "SecretNotAllowed", "SecretUnreadable", "UrlUnknown",
)  # fmt: skip
"""Reasons that a user can fix, so that Ready, which users read first, has them too."""


def conditions(pool: Pool, observed: ObservedPool, plan: Plan, failure: str = "") -> list[Condition]:
    """All conditions of a pool, always in the same order. ``failure``: the error of an action; empty: none failed."""
    return [
        _ready(pool, observed, plan),
        _scaling_active(pool, plan),
        _able_to_scale(observed, plan, failure),
        _scaling_limited(pool, observed, plan),
        _database_reachable(observed),
        _suspended(pool),
        _reconciling(pool, observed, plan),
        Condition("Stalled", "False", "Valid", "the pool is valid"),
    ]


def refused(error: SpecError) -> list[Condition]:
    """The conditions of an invalid pool: the operator changes nothing of it until a user fixes it."""
    return [
        Condition("Ready", "False", error.reason, str(error), bad=True),
        Condition("Reconciling", "False", error.reason, "nothing is done before the pool is valid"),
        Condition("Stalled", "True", error.reason, str(error), bad=True),
    ]


def _ready(pool: Pool, observed: ObservedPool, plan: Plan) -> Condition:
    """The pool takes jobs when it should, and none of its executors fails to start."""
    name, sizing = "Ready", plan.sizing
    if sizing.mode in (Mode.DELETED, Mode.SUSPENDED):
        left = takers(observed.replicas) or draining(observed.replicas)
        doing = "its executors finish what they run" if left else "it has no executors"
        if sizing.mode is Mode.DELETED:
            return Condition(name, "False", "Deleting", doing)
        return Condition(name, "True", "Suspended", f"as spec.suspend says, it takes no jobs; {doing}")
    if observed.database_problem is not None:
        if observed.database_problem.reason in _MISTAKES:
            return Condition(name, "Unknown", observed.database_problem.reason, observed.database_problem.message)
        return Condition(name, "Unknown", "DatabaseUnreachable", "only the database knows which executors take jobs")
    return _working(name, pool, observed, sizing.target)


def _working(name: str, pool: Pool, observed: ObservedPool, target: int) -> Condition:
    homeless = [one for one in asked_for(observed.replicas) if _is_homeless(one)]
    waiting = (Phase.PENDING, Phase.CRASHING)
    failing = [
        replica
        for replica in observed.replicas
        if replica.is_deaf or (replica.phase in waiting and replica.problem is not None and replica not in homeless)
    ]
    if failing:
        return Condition(name, "False", "ExecutorFailing", _failure(failing, observed), bad=True)
    if _is_starting(pool, observed, target):
        if homeless:
            return Condition(name, "False", _without_room(homeless), _failure(homeless, observed), bad=True)
        return Condition(name, "False", "Starting", "executors are starting")
    return Condition(name, "True", *_at_work(pool, observed, target))


def _at_work(pool: Pool, observed: ObservedPool, target: int) -> tuple[str, str]:
    """The reason and the message of a pool that is ready."""
    if _is_rolling_out(observed):
        if pool.spec.rollout.paused:
            return "RolloutPaused", "spec.rollout.paused is set: executors with the previous template stay"
        return "RollingOut", "executors with the previous template are being replaced"
    if target == 0:
        return "AtZero", "there is no work, and so no executor"
    return "Ready", "its executors take jobs"


def _is_rolling_out(observed: ObservedPool) -> bool:
    there = [*asked_for(observed.replicas), *draining(observed.replicas)]
    return any(replica.template != observed.template for replica in there if replica.uid is not None)


def _is_starting(pool: Pool, observed: ObservedPool, target: int) -> bool:
    spare = may_be_missing(pool.spec.rollout, target) if _is_rolling_out(observed) else 0
    return len(ready(observed.replicas)) < _needed(pool, target) - spare


def _is_homeless(replica: Replica) -> bool:
    """Whether the cluster has had no room for it so far."""
    return replica.unscheduled_since is not None and replica.phase in (Phase.PENDING, Phase.UNSCHEDULED)


def _without_room(homeless: list[Replica]) -> str:
    """The reason, as of the one that `_failure` names."""
    return "PodRefused" if _first(homeless).refused else "Unschedulable"


def _first(failing: list[Replica]) -> Replica:
    return min(failing, key=lambda replica: replica.index)


def _failure(failing: list[Replica], observed: ObservedPool) -> str:
    first = _first(failing)
    said = first.problem or "it takes no jobs; its /readyz, and the log of its pod, say why"
    there = len(asked_for(observed.replicas)) + len(crashing(observed.replicas))
    return f"{first.name}: {said} ({len(failing)} of {_executors(there)})"


def _executors(number: int) -> str:
    return f"{number} executor{'s' * (number != 1)}"


def _needed(pool: Pool, target: int) -> int:
    """The executors without which a pool is not ready: its minimum, and one if there is demand."""
    if pool.spec.replicas is not None:
        return pool.spec.replicas
    return min(target, max(pool.spec.scaling.min_replicas, 1))


def _scaling_active(pool: Pool, plan: Plan) -> Condition:
    """The size follows the demand."""
    name = "ScalingActive"
    match plan.sizing.mode:
        case Mode.DEMAND:
            return Condition(name, "True", "ByDemand", f"its size follows the work in {', '.join(pool.spec.queues)}")
        case Mode.FIXED:
            said = "spec.replicas is set; set it to null to scale by demand again"
            return Condition(name, "False", "FixedReplicas", said)
        case Mode.SUSPENDED:
            return Condition(name, "False", "Suspended", "spec.suspend is set")
        case Mode.DELETED:
            return Condition(name, "False", "Deleting", "the pool is being deleted")
        case Mode.FALLBACK:
            after = format_duration(pool.spec.scaling.fallback.after) if pool.spec.scaling.fallback else ""
            said = f"the amount of work has been unknown for {after}: it keeps at least the size of the fallback"
            return Condition(name, "False", "Fallback", said, bad=True)
        case Mode.HOLD:
            said = "the amount of work is unknown: the pool keeps its size"
            return Condition(name, "False", "DemandUnknown", said, bad=True)


def _able_to_scale(observed: ObservedPool, plan: Plan, failure: str) -> Condition:
    """The pool can grow and shrink now."""
    name, sizing = "AbleToScale", plan.sizing
    if observed.database_problem is not None:
        return Condition(name, "False", "DatabaseUnreachable", "no executor can be drained without the database")
    if failure:
        return Condition(name, "False", "ActionFailed", failure, bad=True)
    if plan.overdue:
        slow = f"{', '.join(plan.overdue)}: draining for longer than drain.timeout, and onTimeout is Wait"
        return Condition(name, "True", "DrainSlow", slow, bad=True)
    if sizing.waiting:
        shrinks = sizing.wanted is not None and sizing.wanted < sizing.target
        reason = "ScaleDownStabilized" if shrinks else "ScaleUpStabilized"
        until = "it shrinks once fewer have sufficed" if shrinks else "it grows once more have been wanted"
        return Condition(name, "True", reason, f"{until} for the stabilization window")
    too_many = len(takers(observed.replicas)) - _leaving(plan) > sizing.target
    if sizing.mode is Mode.DEMAND and too_many and not _is_rolling_out(observed):
        return Condition(
            name,
            "True",
            "WaitingForIdle",
            "executors beyond the demand leave new jobs to others, and go when they are idle",
        )
    return Condition(name, "True", "ReadyForNewScale", "nothing delays a change of size")


def _leaving(plan: Plan) -> int:
    return sum(isinstance(action, AskDrain) for action in plan.actions)


def _scaling_limited(pool: Pool, observed: ObservedPool, plan: Plan) -> Condition:
    """The size is not what the demand calls for."""
    name, sizing = "ScalingLimited", plan.sizing
    scaling = pool.spec.scaling
    created = sum(isinstance(action, CreateReplica) for action in plan.actions)
    if crashing(observed.replicas) and sizing.target > len(takers(observed.replicas)) + created:
        return Condition(name, "True", "ExecutorsCrashing", "crashing executors count against the maximum", bad=True)
    nowhere = [one for one in unscheduled(observed.replicas) if one.template == observed.template]
    if nowhere and sizing.target > len(takers(observed.replicas)):
        reason = _without_room(nowhere)
        lack = "pod" if reason == "PodRefused" else "node"
        said = f"{_failure(nowhere, observed)}: no more are created before these have a {lack}"
        return Condition(name, "True", reason, said, bad=True)
    match sizing.limit:
        case Limit.MOST:
            most = f"the work calls for more than maxReplicas ({scaling.max_replicas})"
            return Condition(name, "True", "TooManyReplicas", most)
        case Limit.LEAST:
            least = f"the work calls for fewer than minReplicas ({scaling.min_replicas})"
            return Condition(name, "True", "TooFewReplicas", least)
        case Limit.SCALE_UP | Limit.SCALE_DOWN:
            policies = f"the policies of scaling.behavior.{sizing.limit} allow no more for now"
            return Condition(name, "True", "ScalingPolicies", policies)
        case None:
            return Condition(name, "False", "DesiredWithinRange", "the size wanted is allowed")


def _database_reachable(observed: ObservedPool) -> Condition:
    """The operator can use the database."""
    if observed.database_problem is None:
        return Condition("DatabaseReachable", "True", "Connected", "the database answers")
    return Condition(
        "DatabaseReachable", "False", observed.database_problem.reason, observed.database_problem.message, bad=True
    )


def _suspended(pool: Pool) -> Condition:
    """A user has suspended the pool."""
    if pool.spec.suspend:
        return Condition("Suspended", "True", "Suspended", "spec.suspend is set: executors drain, and none is started")
    return Condition("Suspended", "False", "NotSuspended", "spec.suspend is not set")


def _reconciling(pool: Pool, observed: ObservedPool, plan: Plan) -> Condition:
    """What a change of the spec calls for is under way; growing and shrinking with the demand is not meant.

    With ``Ready`` and ``Stalled`` it follows the conventions of kstatus, by which Flux and Helm wait for objects.
    """
    name, target = "Reconciling", plan.sizing.target
    ordered = plan.sizing.mode in (Mode.DELETED, Mode.SUSPENDED, Mode.FIXED)
    if ordered and len(takers(observed.replicas)) + len(draining(observed.replicas)) > target:
        return Condition(name, "True", "Draining", "executors finish what they run, and leave")
    if observed.database_problem is None and plan.sizing.mode is not Mode.SUSPENDED:
        if _is_starting(pool, observed, target):
            return Condition(name, "True", "Starting", "executors are starting")
        if _is_rolling_out(observed) and not pool.spec.rollout.paused:
            return Condition(name, "True", "RollingOut", "executors with the previous template are being replaced")
    return Condition(name, "False", "Settled", "all of the spec holds")

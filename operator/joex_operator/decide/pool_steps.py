"""The steps of a pool: its size as it is decided, with the reason in a sentence and the numbers behind it."""

from __future__ import annotations

from joex.core.duration import format_duration
from joex.store.pools import NewPoolStep
from joex_operator.api.objects import Pool
from joex_operator.decide.plan import ObservedPool, Plan
from joex_operator.decide.replicas import draining, ready
from joex_operator.decide.scaling import Demand, Limit, Load, Mode, Sizing, executors_for, most_counted, slots_for


def pool_step(home: str, pool: Pool, observed: ObservedPool, plan: Plan) -> NewPoolStep | None:
    """What a plan makes of a pool; None: the database was away, so neither the demand nor the executors are known.

    ``home``: the first part of the app-ids of its executors, which two clusters on one database never share.
    """
    demand, sizing, found = observed.demand, plan.sizing, plan.load
    if demand is None:
        return None
    return NewPoolStep(
        namespace=pool.namespace,
        home=home,
        pool=pool.name,
        before=found.takers,
        target=sizing.target,
        ready=len(ready(observed.replicas)),
        draining=len(draining(observed.replicas)),
        mode=str(sizing.mode),
        why=_why(pool, sizing, found, demand),
        wanted=sizing.wanted,
        capped_by=None if sizing.limit is None else str(sizing.limit),
        runnable=demand.runnable,
        held=found.held,
        next_due=demand.next_due,
    )


def _why(pool: Pool, sizing: Sizing, found: Load, demand: Demand) -> str:
    match sizing.mode:
        case Mode.DELETED:
            return "the pool is being deleted"
        case Mode.SUSPENDED:
            return "spec.suspend is set"
        case Mode.FIXED:
            return f"spec.replicas is {sizing.target}"
        case _:
            parts = [_wanted(pool, sizing, found, demand), _capped(pool, sizing), _delayed(sizing)]
            return "; ".join(part for part in parts if part)


def _wanted(pool: Pool, sizing: Sizing, found: Load, demand: Demand) -> str:
    """The size that the work calls for."""
    spec, jobs, called_for = pool.spec, demand.runnable + found.held, slots_for(demand, found.held)
    scaling, wanted = spec.scaling, sizing.wanted
    need = executors_for(spec, called_for) + scaling.idle_reserve
    slots = f"{_number(spec.pool_size, 'slot')} each"
    if scaling.target_utilization < 100:  # noqa: PLR2004 - percent
        slots += f", {scaling.target_utilization} % of them in use"
    if scaling.idle_reserve:
        slots += f", {scaling.idle_reserve} in reserve"
    at_least = "at least " if demand.runnable >= most_counted(spec) else ""
    text = f"{at_least}{_number(jobs, 'job')} {'waits or runs' if jobs == 1 else 'wait or run'}"
    if scaling.target is not None and jobs:
        text += f", {_number(called_for, 'slot')} for a wait of {format_duration(scaling.target.wait)}"
    text = f"{text}, {slots}: {_number(need, 'executor')}" if jobs or need else text
    if wanted == need or wanted is None:
        return text
    kept = max(
        need,
        min(found.takers, executors_for(spec, slots_for(demand, found.held + found.leaving)) + scaling.idle_reserve),
    )
    if kept == wanted:
        return f"{text}; no fewer than {wanted} while draining executors run {_number(found.leaving, 'job')}"
    return f"{text}; {wanted} are within the tolerance"


def _capped(pool: Pool, sizing: Sizing) -> str:
    match sizing.limit:
        case Limit.MOST:
            return f"the maximum is {pool.spec.scaling.max_replicas}"
        case Limit.LEAST:
            return f"the minimum is {pool.spec.scaling.min_replicas}"
        case Limit.SCALE_UP | Limit.SCALE_DOWN:
            return f"the policies of {sizing.limit} allow {sizing.target} for now"
        case None:
            return ""


def _delayed(sizing: Sizing) -> str:
    if not sizing.waiting:
        return ""
    few = sizing.wanted is not None and sizing.wanted < sizing.target
    until = "fewer have sufficed" if few else "more have been wanted"
    return f"{sizing.target} until {until} for the stabilization window"


def _number(number: int, word: str) -> str:
    return f"{number or 'no'} {word}{'s' * (number != 1)}"

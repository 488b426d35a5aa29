"""The desired number of executors of a pool: by demand, as HorizontalPodAutoscaler computes it, or by a user's order.

The demand is the runnable and running jobs, divided by the slots of an executor. Starting executors count as ready, so
that the same jobs never call for two. Draining executors take no jobs: the jobs that they finish call for no new
executor, but keep the pool from shrinking further, because more jobs may follow them::

    need = (runnable + running on executors that take jobs) / slots      grow, where there are fewer
    keep = (runnable + running anywhere)                    / slots      shrink, where there are more

With ``scaling.target.wait``, jobs whose run times are known share slots: as many as do the waiting work in that time
(see `slots_for` and ADR 48).

When the demand is unknown, the pool keeps its size: unknown never means zero.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, replace

from joex_operator.api.objects import Pool
from joex_operator.api.spec import JoexPoolSpec, Scaling, ScalingPolicy
from joex_operator.decide.growth_watch import REST
from joex_operator.decide.history import History, largest_lately, smallest_lately

_LEAST_COUNTED = 1000
_MOST_SHARED = 50_000
_CHECKS, _LEAST_PAUSE = 4, 1.0
"""How often in the time of a target a pool with a backlog is sized, and after how many seconds at the earliest."""


@dataclass(frozen=True, slots=True)
class Work:
    """How many slots jobs fill for the time of a target, by the measured seconds of their tasks.

    A job counts with its expected run seconds over those of the target, and as 1 when it needs all that time, or when
    nothing is known of its task.

    Attributes:
        runnable: slots that all runnable jobs fill together.
        running: the part of that time, from 0 to 1, for which an average running job fills its slot.
    """

    runnable: float
    running: float


@dataclass(frozen=True, slots=True)
class Demand:
    """The demand for a pool: what the database knows of its queues.

    Attributes:
        runnable: jobs that an executor could take now: without those of paused queues and groups, and within the limit
            of each group.
        next_due: seconds until the next job is due; None: no job is due later.
        work: for a pool with a target; None: each job counts as a slot.
    """

    runnable: int
    next_due: float | None = None
    work: Work | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """The load of a pool. ``held``: jobs on executors that take more (``takers``); ``leaving``: on draining ones.

    Those that the cluster has no room for are among the takers here: policies and windows are about what is asked for.
    So replacements that start beyond the size during a rollout are not.
    """

    demand: Demand | None
    takers: int
    held: int = 0
    leaving: int = 0


class Mode(enum.StrEnum):
    """What determines the size."""

    DEMAND = "demand"
    FIXED = "fixed"
    SUSPENDED = "suspended"
    DELETED = "deleted"
    HOLD = "hold"
    FALLBACK = "fallback"


class Limit(enum.StrEnum):
    """What keeps a pool from the size that its demand calls for."""

    MOST = "maxReplicas"
    LEAST = "minReplicas"
    SCALE_UP = "scaleUp"
    SCALE_DOWN = "scaleDown"


@dataclass(frozen=True, slots=True)
class Sizing:
    """The desired size of a pool.

    Attributes:
        target: the desired number of executors that take jobs.
        most: the maximum.
        mode: what determined the target.
        wanted: the size that the demand alone calls for; None: the demand does not count.
        limit: what keeps the target from ``wanted``, if not a stabilization window.
        waiting: a stabilization window delays a change.
        again_in: seconds after which the target may change even if nothing happens.
        is_paced: jobs wait for slots that there are, as the target allows: the size follows them by time.
        history: to store in the status.
    """

    target: int
    most: int
    mode: Mode
    history: History
    wanted: int | None = None
    limit: Limit | None = None
    waiting: bool = False
    again_in: float | None = None
    is_paced: bool = False


def size(pool: Pool, load: Load, history: History, now: float) -> Sizing:
    """The desired size of a pool. Orders come before demand: deletion, suspension, a fixed number, the bounds."""
    spec = pool.spec
    if pool.deleted_at is not None:
        return Sizing(0, 0, Mode.DELETED, History())
    if spec.suspend:
        return Sizing(0, 0, Mode.SUSPENDED, History())
    if spec.replicas is not None:
        return Sizing(spec.replicas, spec.replicas, Mode.FIXED, History())
    up, down = _windows(spec.scaling)
    history = history.by_clock(now, down=down, up=up, longest_period=longest_period(spec.scaling))
    if load.demand is None:
        return _blind(spec.scaling, load, history, now)
    return _by_demand(spec, load.demand, load, replace(history, unknown_since=None), now)


def can_grow(spec: JoexPoolSpec, sizing: Sizing) -> bool:
    """Whether more demand would make the pool larger at once."""
    is_delayed = sizing.wanted is not None and sizing.wanted > sizing.target  # by a window or a policy, or the maximum
    return (
        sizing.mode is Mode.DEMAND and sizing.target < spec.scaling.max_replicas and not (is_delayed or sizing.is_paced)
    )


def most_counted(spec: JoexPoolSpec) -> int:
    """The number up to which the database counts jobs: more of them hardly change the size."""
    most = max(2 * spec.scaling.max_replicas * spec.pool_size, _LEAST_COUNTED)
    return most if spec.scaling.target is None else max(most, _MOST_SHARED)


def slots_for(demand: Demand, running: int) -> int:
    """The slots that the runnable jobs call for, and so many running ones.

    Without a target: one for each job. With one: as many as have done the work within its time, but never fewer than
    run, and at least one when a job is runnable.
    """
    jobs = demand.runnable + running
    if demand.work is None:
        return jobs
    work = demand.work.runnable + running * demand.work.running
    enough = math.ceil(round(work, 6))  # (300 jobs of a thousandth of the time need no second slot for a last digit)
    return min(max(enough, running, min(jobs, 1)), jobs)


def _blind(scaling: Scaling, load: Load, history: History, now: float) -> Sizing:
    """Hold; grow to the minimum, and later to the fallback. Windows start over when the demand is known again."""
    since = now if history.unknown_since is None else history.unknown_since
    remembered = History(changes=history.changes, unknown_since=since)
    target = max(load.takers, scaling.min_replicas)
    holding = Sizing(target, scaling.max_replicas, Mode.HOLD, remembered)
    if scaling.fallback is None:
        return holding
    rest = since + scaling.fallback.after.total_seconds() - now
    if rest > 0:
        return replace(holding, again_in=rest)
    return replace(holding, target=max(target, scaling.fallback.replicas), mode=Mode.FALLBACK)


def _by_demand(spec: JoexPoolSpec, demand: Demand, load: Load, history: History, now: float) -> Sizing:
    scaling, takers = spec.scaling, load.takers
    wanted = _wanted(spec, demand, load)
    bounded = _clamp(wanted, scaling)
    calm, history, until = _calmed(scaling, takers, bounded, history, now)
    allowed = _allowed(scaling, takers, calm, history, now)
    target = _clamp(allowed, scaling)  # the bounds are orders: neither windows nor policies delay them
    times = [until, _next_freed(scaling, history, now) if allowed != calm else None]
    delays = [time - now for time in times if time is not None]
    is_paced = scaling.target is not None and demand.runnable > 0 and takers > 0
    if scaling.target is not None and is_paced:
        delays.append(max(scaling.target.wait.total_seconds() / _CHECKS, _LEAST_PAUSE))
    if demand.next_due is not None and target < scaling.max_replicas:
        delays.append(max(demand.next_due, REST))  # (those that come due within it are counted together)
    return Sizing(
        target=target,
        most=scaling.max_replicas,
        mode=Mode.DEMAND,
        history=history,
        wanted=wanted,
        limit=_limit(wanted, bounded, _clamp(calm, scaling), target),
        waiting=bounded not in (target, calm),
        again_in=min(delays, default=None),
        is_paced=is_paced,
    )


def _wanted(spec: JoexPoolSpec, demand: Demand, load: Load) -> int:
    """The size that the demand calls for; the present one where that is within the tolerance."""
    scaling, takers = spec.scaling, load.takers
    need = executors_for(spec, slots_for(demand, load.held)) + scaling.idle_reserve
    keep = executors_for(spec, slots_for(demand, load.held + load.leaving)) + scaling.idle_reserve
    wanted = max(need, min(takers, keep))
    return takers if abs(wanted - takers) <= scaling.tolerance * takers else wanted


def executors_for(spec: JoexPoolSpec, slots: int) -> int:
    """The executors that have so many slots, at the utilization that the user desires."""
    return -(-slots * 100 // (spec.pool_size * spec.scaling.target_utilization))


def _clamp(executors: int, scaling: Scaling) -> int:
    return min(max(executors, scaling.min_replicas), scaling.max_replicas)


def _limit(wanted: int, bounded: int, calm: int, target: int) -> Limit | None:
    if target != calm:
        return Limit.SCALE_UP if target < calm else Limit.SCALE_DOWN
    if wanted != bounded:
        return Limit.MOST if wanted > bounded else Limit.LEAST
    return None


def _calmed(
    scaling: Scaling, takers: int, wanted: int, history: History, now: float
) -> tuple[int, History, float | None]:
    """The size after the stabilization windows, the new history, and when the size may change next."""
    up, down = _windows(scaling)
    if wanted < takers and down:
        marks, calm, until = largest_lately(history.below, size=takers, wanted=wanted, now=now, window=down)
        return calm, replace(history, below=marks, above=()), until if calm > wanted else None
    if wanted > takers and up:
        marks, calm, until = smallest_lately(history.above, size=takers, wanted=wanted, now=now, window=up)
        return calm, replace(history, below=(), above=marks), until if calm < wanted else None
    return wanted, replace(history, below=(), above=()), None


def _windows(scaling: Scaling) -> tuple[float, float]:
    """The stabilization windows for growth and for shrinking."""
    behavior = scaling.behavior
    return (
        float(behavior.scale_up.stabilization_window_seconds),
        float(behavior.scale_down.stabilization_window_seconds),
    )


def _allowed(scaling: Scaling, takers: int, wanted: int, history: History, now: float) -> int:
    """The size after the policies."""
    rules = scaling.behavior.scale_up if wanted > takers else scaling.behavior.scale_down
    if wanted == takers or rules.select_policy == "Disabled":
        return takers
    if not rules.policies:
        return wanted
    # A policy counts from the size at the start of its period.
    end, farthest, nearest = (_highest, max, min) if wanted > takers else (_lowest, min, max)
    ends = [end(policy, takers - history.changed(now, policy.period_seconds)) for policy in rules.policies]
    chosen = farthest(ends) if rules.select_policy == "Max" else nearest(ends)
    return max(takers, min(wanted, chosen)) if wanted > takers else min(takers, max(wanted, chosen))


def _highest(policy: ScalingPolicy, start: int) -> int:
    """The size to which a policy lets a pool grow that began the period with this size: from zero, at least one."""
    if policy.type == "Executors":
        return start + policy.value
    return max(start + 1, -(-start * (100 + policy.value) // 100))


def _lowest(policy: ScalingPolicy, start: int) -> int:
    """The size to which a policy lets a pool shrink that began the period with this size."""
    return start - policy.value if policy.type == "Executors" else start * (100 - policy.value) // 100


def longest_period(scaling: Scaling) -> int:
    """The longest period of a policy, for which the history keeps changes. 0: there is no policy."""
    return max(_periods(scaling), default=0)


def _next_freed(scaling: Scaling, history: History, now: float) -> float | None:
    """When a change leaves the period of a policy next."""
    ends = [at + period for at, _ in history.changes for period in _periods(scaling)]
    return min((end for end in ends if end > now), default=None)


def _periods(scaling: Scaling) -> set[int]:
    behavior = scaling.behavior
    return {policy.period_seconds for policy in behavior.scale_up.policies + behavior.scale_down.policies}

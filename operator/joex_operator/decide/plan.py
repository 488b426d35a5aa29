"""Plans for pools: from the spec and the observed state of a pool to actions.

Level-based: a plan depends on the observed state, not on what happened, so an operator may make it at any time,
twice, or right after its start. It may be interrupted after any action of a plan: the next plan has the rest.
A replica is deleted only when the database says that its app-id is retired (see `replicas`), with two exceptions, which
the user orders: `Why.DRAIN_TIMEOUT` and `Why.UNREACHABLE`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice

from joex_operator.api.objects import Pool
from joex_operator.decide import rollout
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
from joex_operator.decide.history import History
from joex_operator.decide.replicas import (
    Phase,
    Replica,
    asked_for,
    crashing,
    draining,
    first_to_leave,
    free_indices,
    ready,
    unscheduled,
)
from joex_operator.decide.scaling import Demand, Load, Mode, Sizing, longest_period, size

_OVERTIME = timedelta(seconds=15)
"""The time beyond drain.timeout in which an executor gives its jobs back by itself, before its pod is deleted."""
_PATIENCE = timedelta(minutes=1)
"""How long the deletion of a pool waits for a database that is down, before its pods drain at their SIGTERM."""
_SOONEST = 0.05


@dataclass(frozen=True, slots=True)
class DatabaseProblem:
    """Why the database can't be used: a reason of one word, and a message for people.

    ``is_refusal``: pools may not use its URL, so that no executor may get it.
    """

    reason: str
    message: str
    is_refusal: bool = False


@dataclass(frozen=True, slots=True)
class ObservedPool:
    """The observed state of a pool.

    Attributes:
        replicas: of the pool, each once; without ``executor`` while the database is down.
        demand: of its queues; None while the database is down.
        template: the hash of the present template.
        database_problem: why the database can't be used.
        taken: indices that no new replica can have, because another owner has something of that name.
    """

    replicas: tuple[Replica, ...]
    demand: Demand | None
    template: str
    database_problem: DatabaseProblem | None = None
    taken: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do about a pool: the actions, and the history to store before the first of them.

    Attributes:
        actions: in the order in which to carry them out.
        load: the load for which the size was decided.
        sizing: the desired size, its reason, and the history to store.
        requeue_after: seconds after which to reconcile again even if nothing happens; None: no need to.
        overdue: replicas that have drained for longer than drain.timeout, and that the pool waits for.
    """

    actions: tuple[Action, ...]
    load: Load
    sizing: Sizing
    requeue_after: float | None
    overdue: tuple[str, ...] = ()

    @property
    def is_stuck(self) -> bool:
        """Whether executors are missing that it can't create, as while the cluster has no room for those there are."""
        created = sum(isinstance(action, CreateReplica) for action in self.actions)
        return self.sizing.target > self.load.takers + created


def decide(pool: Pool, observed: ObservedPool, history: History, now: datetime) -> Plan:
    """The plan for a pool."""
    rolling = rollout.is_under_way(pool.spec.rollout, observed.replicas, observed.template)
    found = _load(observed, history.size if rolling else None)
    sizing = size(pool, found, history, now.timestamp())
    surge = _surge(pool, observed, sizing) if rolling else 0
    order = _order(pool, observed, surge, rolling=rolling)
    # Each replacement that takes jobs stands for an outdated executor that is about to drain: no surplus of the demand.
    replaced = min(rollout.proven(order, observed.template), sizing.target) if rolling else 0
    surplus = _surplus(order, sizing, replaced)
    outdated = _outdated(pool, observed, sizing, surplus)
    created = _created(observed, sizing, [*surplus, *outdated], surge)
    crashed = _crashing(observed, sizing, len(order) - replaced)
    asked = [*surplus, *outdated, *crashed, *_lost(observed), *_elsewhere(observed)]
    marked = _marked(order, sizing, asked)
    actions = (*_reports(observed), *_deletions(pool, observed, now), *_repairs(observed), *asked, *marked, *created)
    sizing = _remembering(pool, found, sizing, shrunk=len(surplus), created=len(created), now=now)
    return Plan(
        actions=actions,
        load=found,
        sizing=_with_size(sizing, rolling=rolling),
        requeue_after=_SOONEST if asked else _requeue_after(pool, observed, sizing, now),
        overdue=tuple(replica.name for replica in observed.replicas if _is_overdue(pool, replica)),
    )


def _load(observed: ObservedPool, size: int | None) -> Load:
    """The load of a pool as it is observed. ``size``: what was desired before, during a rollout."""
    staying, leaving = asked_for(observed.replicas), draining(observed.replicas)
    # The jobs of a crashing executor will wait for another one as soon as the database finds it dead.
    held = sum(replica.held - replica.left for replica in [*staying, *crashing(observed.replicas)])
    there = len(staying) if size is None else min(len(staying), size)
    left = sum(replica.held for replica in leaving) + sum(replica.left for replica in staying)
    return Load(observed.demand, there, held, left)


def _surge(pool: Pool, observed: ObservedPool, sizing: Sizing) -> int:
    """How many replacements may start beyond the size. Those that crash are some of them."""
    if sizing.mode not in (Mode.DEMAND, Mode.FIXED) or observed.database_problem is not None:
        return 0
    failed = sum(replica.template == observed.template for replica in crashing(observed.replicas))
    return max(rollout.surge(pool.spec.rollout, sizing.target) - failed, 0)


def _order(pool: Pool, observed: ObservedPool, surge: int, *, rolling: bool) -> list[Replica]:
    """The replicas that count for the size, in the order in which they leave: without the replacements beyond it."""
    starting = rollout.starting(observed.replicas, observed.template)
    beyond = {replica.name for replica in starting[max(len(starting) - surge, 0) :]}
    there = [replica for replica in asked_for(observed.replicas) if replica.name not in beyond]
    return first_to_leave(there, observed.template, rolling=rolling, paused=pool.spec.rollout.paused)


def _surplus(order: Sequence[Replica], sizing: Sizing, replaced: int) -> list[AskDrain]:
    """Drain surplus replicas. One that was observed idle and has taken a job since stays: the next plan decides.

    A busy replica drains only where there are more than the user allows. Where there are more than the demand calls
    for, it stays until it is idle (see `_marked`).
    """
    disallowed = len(order) - replaced - sizing.most
    return [
        AskDrain(replica.name, not replica.held, Why(sizing.mode))
        for number, replica in enumerate(order[: max(len(order) - replaced - sizing.target, 0)])
        if not replica.held or number < disallowed
    ]


def _marked(order: Sequence[Replica], sizing: Sizing, asked: Sequence[AskDrain]) -> list[MarkSpare]:
    """Mark the executors that the pool could do without, so that they take only what the others have no slots for.

    Otherwise steady work would keep each of them busy for ever. The marks of others go: after the drains, because an
    executor that drains may leave jobs to them.
    """
    leaving = {action.replica for action in asked}
    staying = [replica for replica in order if replica.name not in leaving]
    spare = {replica.name for replica in staying[: max(len(staying) - sizing.target, 0)]}
    return [
        MarkSpare(replica.name, replica.name in spare)
        for replica in staying
        if replica.phase in (Phase.IDLE, Phase.BUSY) and replica.is_spare != (replica.name in spare)
    ]


def _outdated(pool: Pool, observed: ObservedPool, sizing: Sizing, surplus: Sequence[AskDrain]) -> list[AskDrain]:
    """Drain replicas with an outdated template: all that can't take jobs, and the others as the rollout allows.

    One that is starting may only be between two lives, as after the eviction of its pod: while no executor has proved
    the new template, it stays as those do that take jobs.
    """
    if sizing.mode not in (Mode.DEMAND, Mode.FIXED) or pool.spec.rollout.paused:
        return []
    leaving = {asked.replica for asked in surplus}
    staying = [replica for replica in asked_for(observed.replicas) if replica.name not in leaving]
    order = first_to_leave([replica for replica in staying if replica.template != observed.template], observed.template)
    useless = [one for one in order if one.is_stuck or one.is_deaf]
    starting = [one for one in order if one.phase is Phase.PENDING and not one.is_stuck]
    missing = rollout.may_be_missing(pool.spec.rollout, sizing.target)
    spare = len(ready(order)) + rollout.proven(staying, observed.template) - sizing.target + missing
    others = ready(order)[: max(spare, 0)]
    if not rollout.proven(staying, observed.template):
        if rollout.surge(pool.spec.rollout, sizing.target):
            starting, others = [], []
        else:
            begun = len(rollout.starting(staying, observed.template))
            starting = starting[: max(len(staying) - len(useless) - begun - sizing.target + missing, 0)]
    return [
        *(AskDrain(replica.name, only_if_idle=True, why=Why.TEMPLATE) for replica in [*useless, *starting]),
        *(AskDrain(replica.name, only_if_idle=False, why=Why.TEMPLATE) for replica in others),
    ]


def _crashing(observed: ObservedPool, sizing: Sizing, there: int) -> list[AskDrain]:
    """Drain replicas whose executors crash, if they are surplus or their template is outdated.

    The others stay, though new replicas do their work: their pods say why they crash, and their back-off slows
    restarts.
    """
    unwanted = sizing.target == 0 or there > sizing.target
    return [
        AskDrain(replica.name, only_if_idle=False, why=Why(sizing.mode) if unwanted else Why.TEMPLATE)
        for replica in crashing(observed.replicas)
        if unwanted or replica.template != observed.template
    ]


def _lost(observed: ObservedPool) -> list[AskDrain]:
    """Retire replicas whose node is lost and whose executor is dead: if the node comes back, they take no job there."""
    lost = [replica for replica in observed.replicas if replica.phase is Phase.LOST]
    return [AskDrain(replica.name, only_if_idle=True, why=Why.LOST) for replica in lost]


def _elsewhere(observed: ObservedPool) -> list[AskDrain]:
    """Retire replicas whose executors work in another database: all at once, because they take no job of the pool."""
    return [
        AskDrain(replica.name, only_if_idle=True, why=Why.DATABASE)
        for replica in observed.replicas
        if replica.is_elsewhere and replica.uid is not None and _retired_at(replica) is None
    ]


def _created(observed: ObservedPool, sizing: Sizing, asked: Sequence[AskDrain], surge: int) -> list[CreateReplica]:
    """Create what is missing, up to the maximum, for which a replica that crashes counts; and replacements beyond it.

    None, while the cluster has no room for one of this template: another one would wait beside it. And none that
    would get the URL of a secret that is not for pools.
    """
    if observed.database_problem is not None and observed.database_problem.is_refusal:
        return []
    leaving = {action.replica for action in asked}
    staying = [replica for replica in asked_for(observed.replicas) if replica.name not in leaving]
    present = [replica for replica in staying if replica.template == observed.template]
    if unscheduled(present):
        return []
    beyond = surge if len(present) < len(staying) else 0
    # The second: where busy outdated executors are more than the work calls for, replacements come all the same.
    missing = max(sizing.target + beyond - len(staying), beyond - len(rollout.starting(present, observed.template)))
    room = sizing.most + beyond - len(staying) - len(crashing(observed.replicas))
    number = max(min(missing, sizing.target - len(present), room), 0)
    indices = islice(free_indices(observed.replicas, observed.taken), number)
    return [CreateReplica(index, Why(sizing.mode)) for index in indices]


def _reports(observed: ObservedPool) -> Iterator[ReportGone]:
    for replica in observed.replicas:
        if replica.executor is not None and replica.executor.alive:
            yield from (ReportGone(pod) for pod in replica.executor.pods if pod in replica.gone)


def _deletions(pool: Pool, observed: ObservedPool, now: datetime) -> Iterator[DeleteReplica | ForgetReplica]:
    for replica in observed.replicas:
        retired_at = _retired_at(replica)
        if replica.phase is Phase.GOING and retired_at is not None and not replica.pods:
            yield ForgetReplica(replica.name, retired_at)
        elif replica.uid is not None and (why := _may_go(pool, replica, now)):
            yield DeleteReplica(replica.name, replica.uid, why)


def _may_go(pool: Pool, replica: Replica, now: datetime) -> Why | None:
    if replica.phase is Phase.RETIRED or (replica.is_elsewhere and _retired_at(replica) is not None):
        return Why.RETIRED
    if replica.phase is Phase.UNKNOWN and pool.deleted_at is not None and now >= pool.deleted_at + _PATIENCE:
        return Why.UNREACHABLE
    due_in = _drained_in(pool, replica)
    ends = pool.spec.drain.on_timeout == "Terminate"
    return Why.DRAIN_TIMEOUT if ends and due_in is not None and due_in + _OVERTIME <= timedelta(0) else None


def _drained_in(pool: Pool, replica: Replica) -> timedelta | None:
    """In what time the drain of a replica is due; None: it does not drain, or no operator has retired it.

    By the clock of the database: with that of an operator ten minutes ahead, a drain would end ten minutes early.
    """
    retired_for = None if replica.executor is None else replica.executor.retired_for
    if replica.phase is not Phase.DRAINING or retired_for is None:
        return None
    return pool.spec.drain.timeout - retired_for


def _retired_at(replica: Replica) -> datetime | None:
    return None if replica.executor is None else replica.executor.retired_at


def _is_overdue(pool: Pool, replica: Replica) -> bool:
    due_in = _drained_in(pool, replica)
    return due_in is not None and due_in <= timedelta(0) and pool.spec.drain.on_timeout == "Wait"


def _repairs(observed: ObservedPool) -> Iterator[UpdateReplica]:
    for replica in asked_for(observed.replicas):
        if replica.uid is not None and replica.pods_wanted != 1:
            yield UpdateReplica(replica.name, replica.uid)


def _remembering(pool: Pool, found: Load, sizing: Sizing, *, shrunk: int, created: int, now: datetime) -> Sizing:
    """The sizing with this plan's change of size in its history, for the policies. A replacement is no change."""
    period = longest_period(pool.spec.scaling)
    if sizing.mode not in (Mode.DEMAND, Mode.HOLD, Mode.FALLBACK) or not period:
        return replace(sizing, history=replace(sizing.history, changes=()))
    grown = min(created, max(sizing.target - found.takers, 0))
    return replace(sizing, history=sizing.history.with_change(grown - shrunk, now.timestamp(), period))


def _with_size(sizing: Sizing, *, rolling: bool) -> Sizing:
    """The sizing with its target in its history during a rollout, when the number of replicas does not tell it."""
    is_by_number = sizing.mode in (Mode.DEMAND, Mode.HOLD, Mode.FALLBACK)
    return replace(sizing, history=replace(sizing.history, size=sizing.target if rolling and is_by_number else None))


def _requeue_after(pool: Pool, observed: ObservedPool, sizing: Sizing, now: datetime) -> float | None:
    drained_in = [due_in for replica in observed.replicas if (due_in := _drained_in(pool, replica)) is not None]
    drained_in += [due_in + _OVERTIME for due_in in drained_in]
    proved_in = timedelta(seconds=pool.spec.rollout.min_ready_seconds)
    times = [one.ready_since + proved_in for one in observed.replicas if one.fresh and one.ready_since is not None]
    if pool.deleted_at is not None and observed.database_problem is not None:
        times.append(pool.deleted_at + _PATIENCE)
    delays = [(time - now).total_seconds() for time in times if time > now]
    delays += [due_in.total_seconds() for due_in in drained_in if due_in > timedelta(0)]
    if sizing.again_in is not None:
        delays.append(sizing.again_in)
    return max(min(delays), _SOONEST) if delays else None

"""Plans for pools: from the spec and the observed state of a pool to actions.

Level-based: a plan depends on the observed state, not on what happened, so an operator may make it at any time,
twice, or right after its start. It may be interrupted after any action of a plan: the next plan has the rest.
A slot is deleted only when the database says that its app-id is retired (see `slots`), with two exceptions, which the
user orders: `Why.DRAIN_TIMEOUT` and `Why.UNREACHABLE`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice

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
from joex_operator.decide.history import History
from joex_operator.decide.scaling import Demand, Load, Mode, Sizing, longest_period, size
from joex_operator.decide.slots import Phase, Slot, crashing, draining, first_to_leave, free_indices, ready, takers

_OVERTIME = timedelta(seconds=15)
"""The time beyond drain.timeout in which an executor gives its jobs back by itself, before its pod is deleted."""
_PATIENCE = timedelta(minutes=1)
"""How long the deletion of a pool waits for a database that is down, before its pods drain at their SIGTERM."""
_SOONEST = 0.05


@dataclass(frozen=True, slots=True)
class DatabaseProblem:
    """Why the database can't be used: a reason of one word, and a message for people."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class ObservedPool:
    """The observed state of a pool.

    Attributes:
        slots: of the pool, each once; without ``executor`` while the database is down.
        demand: of its queues; None while the database is down.
        template: the hash of the present template.
        database_problem: why the database can't be used.
    """

    slots: tuple[Slot, ...]
    demand: Demand | None
    template: str
    database_problem: DatabaseProblem | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do about a pool: the actions, and the history to store before the first of them.

    Attributes:
        actions: in the order in which to carry them out.
        sizing: the desired size, its reason, and the history to store.
        requeue_after: seconds after which to reconcile again even if nothing happens; None: no need to.
        overdue: slots that have drained for longer than drain.timeout, and that the pool waits for.
    """

    actions: tuple[Action, ...]
    sizing: Sizing
    requeue_after: float | None
    overdue: tuple[str, ...] = ()


def decide(pool: Pool, observed: ObservedPool, history: History, now: datetime) -> Plan:
    """The plan for a pool."""
    sizing = size(pool, _load(observed), history, now.timestamp())
    surplus = _surplus(observed, sizing)
    outdated = _outdated(pool, observed, sizing, surplus)
    created = _created(observed, sizing, leaving=len(surplus) + len(outdated))
    asked = [*surplus, *outdated, *_crashing(observed, sizing), *_lost(observed)]
    actions = (*_reports(observed), *_deletions(pool, observed, now), *_repairs(observed), *asked, *created)
    return Plan(
        actions=actions,
        sizing=_remembering(pool, observed, sizing, shrunk=len(surplus), created=len(created), now=now),
        requeue_after=_SOONEST if asked else _requeue_after(pool, observed, sizing, now),
        overdue=tuple(slot.name for slot in observed.slots if _is_overdue(pool, slot, now)),
    )


def _load(observed: ObservedPool) -> Load:
    staying, leaving = takers(observed.slots), draining(observed.slots)
    # The jobs of a crashing executor will wait for another one as soon as the database finds it dead.
    held = sum(slot.held for slot in [*staying, *crashing(observed.slots)])
    return Load(observed.demand, len(staying), held, sum(slot.held for slot in leaving))


def _surplus(observed: ObservedPool, sizing: Sizing) -> list[AskDrain]:
    """Drain surplus slots. One that was observed idle and has taken a job since stays: the next plan decides again."""
    staying = takers(observed.slots)
    if len(staying) <= sizing.target:
        return []
    leaving = first_to_leave(staying, observed.template)[: len(staying) - sizing.target]
    return [AskDrain(slot.name, slot.phase is not Phase.BUSY, Why(sizing.mode)) for slot in leaving]


def _outdated(pool: Pool, observed: ObservedPool, sizing: Sizing, surplus: Sequence[AskDrain]) -> list[AskDrain]:
    """Drain slots with an outdated template: all pending ones, and as many others as rollout.maxUnavailable allows."""
    if sizing.mode not in (Mode.DEMAND, Mode.FIXED):
        return []
    leaving = {asked.slot for asked in surplus}
    staying = [slot for slot in takers(observed.slots) if slot.name not in leaving]
    order = first_to_leave([slot for slot in staying if slot.template != observed.template], observed.template)
    pending = [slot for slot in order if slot.phase is Phase.PENDING]
    spare = len(ready(staying)) - sizing.target + may_be_missing(pool, sizing.target)
    others = [slot for slot in order if slot.phase is not Phase.PENDING][: max(spare, 0)]
    return [
        *(AskDrain(slot.name, only_if_idle=True, why=Why.TEMPLATE) for slot in pending),
        *(AskDrain(slot.name, only_if_idle=False, why=Why.TEMPLATE) for slot in others),
    ]


def may_be_missing(pool: Pool, target: int) -> int:
    """How many executors of a pool of this size may be missing during a rollout."""
    given = pool.spec.rollout.max_unavailable
    return given if isinstance(given, int) else max(1, target * int(given.removesuffix("%")) // 100)


def _crashing(observed: ObservedPool, sizing: Sizing) -> list[AskDrain]:
    """Drain slots whose executors crash, if they are surplus or their template is outdated.

    The others stay, though new slots do their work: their pods say why they crash, and their back-off slows restarts.
    """
    unwanted = sizing.target == 0 or len(takers(observed.slots)) > sizing.target
    return [
        AskDrain(slot.name, only_if_idle=False, why=Why(sizing.mode) if unwanted else Why.TEMPLATE)
        for slot in crashing(observed.slots)
        if unwanted or slot.template != observed.template
    ]


def _lost(observed: ObservedPool) -> list[AskDrain]:
    """Retire slots whose node is lost and whose executor is dead: if the node comes back, they take no job there."""
    lost = [slot for slot in observed.slots if slot.phase is Phase.LOST]
    return [AskDrain(slot.name, only_if_idle=True, why=Why.LOST) for slot in lost]


def _created(observed: ObservedPool, sizing: Sizing, *, leaving: int) -> list[CreateSlot]:
    """Create what is missing, up to the maximum: a slot that drains or crashes counts until it is gone."""
    staying = len(takers(observed.slots))
    missing = sizing.target - (staying - leaving)
    room = sizing.most - staying - len(draining(observed.slots)) - len(crashing(observed.slots))
    indices = islice(free_indices(observed.slots), max(min(missing, room), 0))
    return [CreateSlot(index, Why(sizing.mode)) for index in indices]


def _reports(observed: ObservedPool) -> Iterator[ReportGone]:
    for slot in observed.slots:
        executor = slot.executor
        if executor is not None and executor.alive and executor.pod_uid is not None and executor.pod_uid in slot.gone:
            yield ReportGone(executor.pod_uid)


def _deletions(pool: Pool, observed: ObservedPool, now: datetime) -> Iterator[DeleteSlot | ForgetSlot]:
    for slot in observed.slots:
        retired_at = None if slot.executor is None else slot.executor.retired_at
        if slot.phase is Phase.GOING and retired_at is not None and not slot.pods:
            yield ForgetSlot(slot.name, retired_at)
        elif slot.uid is not None and (why := _may_go(pool, slot, now)):
            yield DeleteSlot(slot.name, slot.uid, why)


def _may_go(pool: Pool, slot: Slot, now: datetime) -> Why | None:
    if slot.phase is Phase.RETIRED:
        return Why.RETIRED
    if slot.phase is Phase.UNKNOWN and pool.deleted_at is not None and now >= pool.deleted_at + _PATIENCE:
        return Why.UNREACHABLE
    due = _drained_by(pool, slot)
    ends = pool.spec.drain.on_timeout == "Terminate"
    return Why.DRAIN_TIMEOUT if ends and due is not None and now >= due + _OVERTIME else None


def _drained_by(pool: Pool, slot: Slot) -> datetime | None:
    """When the drain of a slot is due; None: it does not drain, or this operator did not retire it."""
    if slot.phase is not Phase.DRAINING or slot.executor is None or slot.executor.retired_at is None:
        return None
    return slot.executor.retired_at + pool.spec.drain.timeout


def _is_overdue(pool: Pool, slot: Slot, now: datetime) -> bool:
    due = _drained_by(pool, slot)
    return due is not None and now >= due and pool.spec.drain.on_timeout == "Wait"


def _repairs(observed: ObservedPool) -> Iterator[UpdateSlot]:
    for slot in takers(observed.slots):
        if slot.uid is not None and slot.replicas != 1:
            yield UpdateSlot(slot.name, slot.uid)


def _remembering(
    pool: Pool, observed: ObservedPool, sizing: Sizing, *, shrunk: int, created: int, now: datetime
) -> Sizing:
    """The sizing with this plan's change of size in its history, for the policies. A replacement is no change."""
    period = longest_period(pool.spec.scaling)
    if sizing.mode not in (Mode.DEMAND, Mode.HOLD, Mode.FALLBACK) or not period:
        return replace(sizing, history=replace(sizing.history, changes=()))
    grown = min(created, max(sizing.target - len(takers(observed.slots)), 0))
    return replace(sizing, history=sizing.history.with_change(grown - shrunk, now.timestamp(), period))


def _requeue_after(pool: Pool, observed: ObservedPool, sizing: Sizing, now: datetime) -> float | None:
    times = [due for slot in observed.slots if (due := _drained_by(pool, slot)) is not None]
    times += [due + _OVERTIME for due in times]
    if pool.deleted_at is not None and observed.database_problem is not None:
        times.append(pool.deleted_at + _PATIENCE)
    delays = [(time - now).total_seconds() for time in times if time > now]
    if sizing.again_in is not None:
        delays.append(sizing.again_in)
    return max(min(delays), _SOONEST) if delays else None

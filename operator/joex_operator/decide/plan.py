"""What to do about a pool: from what is asked for and what was found, to actions.

Level-based: a decision looks at what is there, not at what happened, so that it may be made at any time, twice, or by
an operator that has just started. The actions of a step may be cut off after any of them: the next step finds what is
left to do. No slot is deleted but on the database's word that its app-id is retired (see `slots`); the two exceptions
are somebody's order, and `Why` names them.
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
"""What an executor has beyond its drain's time to give its jobs back by itself, before its pod is ended."""
_PATIENCE = timedelta(minutes=1)
"""How long the deletion of a pool waits for a silent database, before pods are left to drain at their SIGTERM."""
_SOONEST = 0.05


@dataclass(frozen=True, slots=True)
class DatabaseProblem:
    """Why the database is silent: a reason in one word, and a message for people."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class ObservedPool:
    """What was found.

    Attributes:
        slots: those of this pool, each once; without ``executor`` where the database is silent.
        demand: None: the database is silent.
        template: the hash of the present template.
        database_problem: why the database is silent.
    """

    slots: tuple[Slot, ...]
    demand: Demand | None
    template: str
    database_problem: DatabaseProblem | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do, in this order; and what to store, before anything is done.

    Attributes:
        actions: what to do.
        sizing: the size the pool shall have, and why; with the history to store.
        requeue_after: seconds after which to look again though nothing happens; None: no need to.
        overdue: slots that drain for longer than they should, and are waited for.
    """

    actions: tuple[Action, ...]
    sizing: Sizing
    requeue_after: float | None
    overdue: tuple[str, ...] = ()


def decide(pool: Pool, seen: ObservedPool, history: History, now: datetime) -> Decision:
    """What to do about a pool."""
    sizing = size(pool, _load(seen), history, now.timestamp())
    surplus = _surplus(seen, sizing)
    outdated = _outdated(pool, seen, sizing, surplus)
    created = _created(seen, sizing, leaving=len(surplus) + len(outdated))
    asked = [*surplus, *outdated, *_crashing(seen, sizing), *_lost(seen)]
    actions = (*_reports(seen), *_deletions(pool, seen, now), *_repairs(seen), *asked, *created)
    return Decision(
        actions=actions,
        sizing=_remembering(pool, seen, sizing, shrunk=len(surplus), created=len(created), now=now),
        requeue_after=_SOONEST if asked else _look_again(pool, seen, sizing, now),
        overdue=tuple(slot.name for slot in seen.slots if _is_overdue(pool, slot, now)),
    )


def _load(seen: ObservedPool) -> Load:
    staying, leaving = takers(seen.slots), draining(seen.slots)
    # What an executor that crashes still holds will wait for another one, as soon as the database has found out.
    held = sum(slot.held for slot in [*staying, *crashing(seen.slots)])
    return Load(seen.demand, len(staying), held, sum(slot.held for slot in leaving))


def _surplus(seen: ObservedPool, sizing: Sizing) -> list[AskDrain]:
    """Let go what is too much. One that is seen idle and has a job by now is left alone: the next step looks again."""
    staying = takers(seen.slots)
    if len(staying) <= sizing.target:
        return []
    leaving = first_to_leave(staying, seen.template)[: len(staying) - sizing.target]
    return [AskDrain(slot.name, slot.phase is not Phase.BUSY, Why(sizing.mode)) for slot in leaving]


def _outdated(pool: Pool, seen: ObservedPool, sizing: Sizing, surplus: Sequence[AskDrain]) -> list[AskDrain]:
    """Let go slots with an outdated template: all that take nothing yet, and as many others as may be missing."""
    if sizing.mode not in (Mode.DEMAND, Mode.FIXED):
        return []
    leaving = {asked.slot for asked in surplus}
    staying = [slot for slot in takers(seen.slots) if slot.name not in leaving]
    order = first_to_leave([slot for slot in staying if slot.template != seen.template], seen.template)
    pending = [slot for slot in order if slot.phase is Phase.PENDING]
    spare = len(ready(staying)) - sizing.target + may_be_missing(pool, sizing.target)
    others = [slot for slot in order if slot.phase is not Phase.PENDING][: max(spare, 0)]
    return [
        *(AskDrain(slot.name, only_if_idle=True, why=Why.TEMPLATE) for slot in pending),
        *(AskDrain(slot.name, only_if_idle=False, why=Why.TEMPLATE) for slot in others),
    ]


def may_be_missing(pool: Pool, target: int) -> int:
    """How many executors of a pool of this size may be missing while a changed template is rolled out."""
    given = pool.spec.rollout.max_unavailable
    return given if isinstance(given, int) else max(1, target * int(given.removesuffix("%")) // 100)


def _crashing(seen: ObservedPool, sizing: Sizing) -> list[AskDrain]:
    """Give up slots whose executors crash, where these are not wanted any more, or have an outdated template.

    Else they stay, though others do their work: their pods say why they crash, and their back-off is a brake.
    """
    unwanted = sizing.target == 0 or len(takers(seen.slots)) > sizing.target
    return [
        AskDrain(slot.name, only_if_idle=False, why=Why(sizing.mode) if unwanted else Why.TEMPLATE)
        for slot in crashing(seen.slots)
        if unwanted or slot.template != seen.template
    ]


def _lost(seen: ObservedPool) -> list[AskDrain]:
    """Give up slots on silent nodes, whose executors are dead: should such a node come back, nothing is taken there."""
    lost = [slot for slot in seen.slots if slot.phase is Phase.LOST]
    return [AskDrain(slot.name, only_if_idle=True, why=Why.LOST) for slot in lost]


def _created(seen: ObservedPool, sizing: Sizing, *, leaving: int) -> list[CreateSlot]:
    """Make what is missing, as far as there is room: a slot that drains, or crashes, takes up room until it is gone."""
    staying = len(takers(seen.slots))
    missing = sizing.target - (staying - leaving)
    room = sizing.most - staying - len(draining(seen.slots)) - len(crashing(seen.slots))
    indices = islice(free_indices(seen.slots), max(min(missing, room), 0))
    return [CreateSlot(index, Why(sizing.mode)) for index in indices]


def _reports(seen: ObservedPool) -> Iterator[ReportGone]:
    for slot in seen.slots:
        executor = slot.executor
        if executor is not None and executor.alive and executor.pod_uid is not None and executor.pod_uid in slot.gone:
            yield ReportGone(executor.pod_uid)


def _deletions(pool: Pool, seen: ObservedPool, now: datetime) -> Iterator[DeleteSlot | ForgetSlot]:
    for slot in seen.slots:
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
    """When a slot that drains should have done so; None: it does not, or not for us."""
    if slot.phase is not Phase.DRAINING or slot.executor is None or slot.executor.retired_at is None:
        return None
    return slot.executor.retired_at + pool.spec.drain.timeout


def _is_overdue(pool: Pool, slot: Slot, now: datetime) -> bool:
    due = _drained_by(pool, slot)
    return due is not None and now >= due and pool.spec.drain.on_timeout == "Wait"


def _repairs(seen: ObservedPool) -> Iterator[UpdateSlot]:
    for slot in takers(seen.slots):
        if slot.uid is not None and slot.replicas != 1:
            yield UpdateSlot(slot.name, slot.uid)


def _remembering(pool: Pool, seen: ObservedPool, sizing: Sizing, *, shrunk: int, created: int, now: datetime) -> Sizing:
    """The sizing with this step's change in its history, for the policies. Replacing an outdated slot is no change."""
    period = longest_period(pool.spec.scaling)
    if sizing.mode not in (Mode.DEMAND, Mode.HOLD, Mode.FALLBACK) or not period:
        return replace(sizing, history=replace(sizing.history, changes=()))
    grown = min(created, max(sizing.target - len(takers(seen.slots)), 0))
    return replace(sizing, history=sizing.history.with_change(grown - shrunk, now.timestamp(), period))


def _look_again(pool: Pool, seen: ObservedPool, sizing: Sizing, now: datetime) -> float | None:
    times = [due for slot in seen.slots if (due := _drained_by(pool, slot)) is not None]
    times += [due + _OVERTIME for due in times]
    if pool.deleted_at is not None and seen.database_problem is not None:
        times.append(pool.deleted_at + _PATIENCE)
    delays = [(time - now).total_seconds() for time in times if time > now]
    if sizing.again_in is not None:
        delays.append(sizing.again_in)
    return max(min(delays), _SOONEST) if delays else None

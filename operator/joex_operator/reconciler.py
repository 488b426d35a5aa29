"""One look at a pool: observe, decide, store what must be remembered, act, tell.

The decision is `reconcile.decide`, which is pure; here is what surrounds it. A look may be cut off after any step: the
next one, of this operator or of another, finds what is left to do.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from joex.errors import JoexError
from joex.store import executors, pools
from joex.store.pools import Known
from joex_operator import scaling
from joex_operator.actions import Action, AskDrain, CreateSlot, DeleteSlot, ForgetSlot, ReportGone, UpdateSlot
from joex_operator.conditions import conditions
from joex_operator.database import Database, Databases, trouble
from joex_operator.events import Event, events_of_actions, events_of_change
from joex_operator.fleet import Fleet, FleetError, UrlUnknown
from joex_operator.history import History
from joex_operator.metrics import Metrics
from joex_operator.names import app_id, slot_name, slot_of
from joex_operator.objects import Pool, Ref
from joex_operator.reconcile import Decision, Seen, Trouble, decide
from joex_operator.scaling import Demand
from joex_operator.slots import Executor, Slot
from joex_operator.status import pool_status
from joex_operator.watch import Watch

_AT_A_TIME = 10
_WATCH_POLLS = 4


class Reconciler:
    """Looks at pools.

    Args:
        fleet: where their executors run.
        databases: where their jobs are.
        metrics: what is counted.
        poll: seconds after which a pool is looked at though nothing was heard.
    """

    def __init__(self, fleet: Fleet, databases: Databases, metrics: Metrics, *, poll: float) -> None:
        self._fleet = fleet
        self._databases = databases
        self._metrics = metrics
        self._poll = poll
        self._watches: dict[tuple[str, str], Watch] = {}
        self._can_grow: dict[tuple[str, str], bool] = {}

    def heard(self, pool: Pool) -> None:
        """There is work for a pool: a look follows."""
        self._watch(pool).heard(time.monotonic())

    def forget(self, namespace: str, name: str) -> None:
        """Forget a pool that is gone."""
        self._watches.pop((namespace, name), None)
        self._can_grow.pop((namespace, name), None)
        self._metrics.forget(namespace, name)

    async def look(self, ref: Ref, pool: Pool) -> float:
        """Look at a pool once; returns the seconds until the next look.

        Raises:
            SpecError: the pool's template can't be used.
            FleetError, JoexError: something could not be done, and is to be tried again; everything else was.
        """
        template = self._fleet.template(pool)
        seen, database = await self._see(pool, template)
        now, stored = datetime.now(UTC), self._fleet.status(ref)
        decision = decide(pool, seen, History.from_dict(stored.get("history")), now)
        self._metrics.observed(pool, seen, decision, now, database=None if database is None else database.name)
        self._can_grow[pool.namespace, pool.name] = scaling.can_grow(pool.spec, decision.sizing)
        status = pool_status(pool, seen, decision, stored, now)
        if status.get("history") != stored.get("history"):
            # Before anything is done: who comes after this operator reckons with the same history.
            await self._store(ref, status)
        failed: Exception | None = None
        try:
            await self._act(ref, pool, seen, decision, database)
        except (FleetError, JoexError, OSError) as error:
            failed = error
        failure = "" if failed is None else " ".join(str(failed).split())
        # The rest can wait: a slot that is wanted can't. Not in a `finally`: an error there would hide a cancellation,
        # and an operator that is to end, or leads no more, would go on.
        await self._store(ref, pool_status(pool, seen, decision, stored, now, failure=failure))
        await self._fleet.tell(ref, events_of_change(conditions(pool, seen, decision, failure), stored))
        if failed is not None:
            raise failed
        return self._next_look(pool, decision)

    async def _store(self, ref: Ref, status: Mapping[str, Any]) -> None:
        if status != self._fleet.status(ref):
            await self._fleet.set_status(ref, status)

    def _next_look(self, pool: Pool, decision: Decision) -> float:
        asked = (decision.requeue_after, self._watch(pool).next_look(time.monotonic()))
        return min([self._poll, *(delay for delay in asked if delay is not None)])

    # Observe.

    async def _see(self, pool: Pool, template: str) -> tuple[Seen, Database | None]:
        database = None
        try:
            database = self._databases.get(await self._fleet.database_url(pool))
            known, demand, worked = await self._ask(pool, database)
        except UrlUnknown as error:
            silent = Trouble(error.reason, error.message)
        except (JoexError, OSError) as error:
            self._fleet.doubt_url(pool)
            silent = trouble(error)
        else:
            found = [_judged(slot, worked) for slot in self._fleet.slots(pool)]
            return Seen(tuple(_joined(pool, found, known)), demand, template), database
        return Seen(tuple(self._fleet.slots(pool)), None, template, silent), database

    async def _ask(self, pool: Pool, database: Database) -> tuple[dict[int, Known], Demand, set[str]]:
        """What the database knows: of app-ids, by slot; the work; in which pods that crash executors had registered."""
        watch, name = self._watch(pool), app_id(pool.namespace, pool.name)
        spec = pool.spec
        can_grow = self._can_grow.get((pool.namespace, pool.name), True) and _by_demand(pool)
        async with database.connection() as connection:
            if watch.wants_disarming(time.monotonic(), can_grow=can_grow):
                await pools.watch(connection, name, spec.queues, 0.0)
                watch.disarmed()
            if can_grow and watch.wants_arming(time.monotonic()):
                await pools.watch(connection, name, spec.queues, watch.length)
                watch.armed(time.monotonic(), await executors.horizon(connection))
            if watch.horizon is not None:  # before the look, which then sees all that they have done
                watch.settle(await pools.oldest_transaction(connection))
            # Where no executor is left, nobody else notices that the last one has died.
            while await executors.rescue(connection, database.observed, spec.most_losses):
                pass
            prefix = app_id(pool.namespace, slot_name(pool.name, 0))[:-1]
            runnable, next_due, known = await pools.demand_and_slots(
                connection, spec.queues, scaling.most_counted(spec), prefix
            )
            pods = [uid for slot in self._fleet.slots(pool) if slot.crashing for uid in slot.pods]
            worked = await pools.registered_in(connection, pods) if pods else set()
        indices = {slot_of(pool.namespace, pool.name, one.app_id): one for one in known}
        return {index: one for index, one in indices.items() if index is not None}, Demand(runnable, next_due), worked

    def _watch(self, pool: Pool) -> Watch:
        return self._watches.setdefault((pool.namespace, pool.name), Watch(_WATCH_POLLS * self._poll))

    # Act.

    async def _act(self, ref: Ref, pool: Pool, seen: Seen, decision: Decision, database: Database | None) -> None:
        slots = {slot.name: slot for slot in seen.slots}
        done: list[Action] = []
        failed: list[Exception] = []

        async def do(action: Action) -> None:
            try:
                if await self._do(pool, action, database):
                    done.append(action)
                    self._metrics.acted(pool, action, slots.get(_slot(pool, action)), datetime.now(UTC))
            except (FleetError, JoexError, OSError) as error:
                failed.append(error)

        for action in decision.actions:
            if not isinstance(action, CreateSlot):
                await do(action)
        await _side_by_side([do(action) for action in decision.actions if isinstance(action, CreateSlot)])
        self._count_latency(pool, done)
        told = events_of_actions(pool.name, done)
        if failed:
            told.append(Event("Warning", "ActionFailed", " ".join(str(failed[0]).split())))
        await self._fleet.tell(ref, told)
        if failed:
            raise failed[0]

    async def _do(self, pool: Pool, action: Action, database: Database | None) -> bool:
        """Carry an action out. False: there was nothing to do, or not any more."""
        match action:
            case CreateSlot(index, _):
                await self._fleet.create(pool, index)
            case DeleteSlot(slot, uid, _):
                await self._fleet.delete(pool, slot, uid)
            case UpdateSlot(slot, uid):
                await self._fleet.update(pool, slot, uid)
            case _:
                if database is None:
                    return False
                return await self._say(pool, action, database)
        return True

    async def _say(self, pool: Pool, action: AskDrain | ForgetSlot | ReportGone, database: Database) -> bool:
        """Carry out what is said to the database."""
        match action:
            case AskDrain(slot, only_if_idle, _):
                async with database.connection() as connection:
                    answer = await pools.retire(connection, app_id(pool.namespace, slot), only_if_idle=only_if_idle)
                return answer != "busy"
            case ForgetSlot(slot, retired_at):
                if not await self._fleet.is_clear(pool, slot):
                    return False
                async with database.connection() as connection:
                    return await pools.forget_retired(connection, app_id(pool.namespace, slot), retired_at)
            case ReportGone(pod_uid):
                async with database.connection() as connection:
                    self._metrics.reclaimed(await pools.pod_gone(connection, pod_uid, pool.spec.most_losses))
                return True

    def _count_latency(self, pool: Pool, done: Sequence[Action]) -> None:
        heard_at = self._watch(pool).heard_at
        if heard_at is not None and any(isinstance(action, CreateSlot) for action in done):
            self._metrics.woken(time.monotonic() - heard_at)


def _by_demand(pool: Pool) -> bool:
    return pool.spec.replicas is None and not pool.spec.suspend and pool.deleted_at is None


def _judged(slot: Slot, worked: set[str]) -> Slot:
    """A slot that crashes for what it ran. One that never registered fails for its template, and so would the next."""
    return replace(slot, crashing=slot.crashing and not worked.isdisjoint(slot.pods))


def _joined(pool: Pool, found: Sequence[Slot], known: Mapping[int, Known]) -> list[Slot]:
    """The slots that were found, with what the database knows; and those that only the database knows."""
    slots = {slot.index: slot for slot in found}
    for index in known.keys() - slots.keys():
        slots[index] = Slot(slot_name(pool.name, index), index)
    return [_with(slots[index], known.get(index)) for index in sorted(slots)]


def _with(slot: Slot, known: Known | None) -> Slot:
    if known is None:
        return replace(slot, executor=Executor())
    executor = Executor(known.executor is not None, known.held, known.draining, known.retired_at, known.pod_uid)
    return replace(slot, executor=executor)


def _slot(pool: Pool, action: Action) -> str:
    match action:
        case CreateSlot(index, _):
            return slot_name(pool.name, index)
        case ReportGone():
            return ""
        case _:
            return action.slot


async def _side_by_side(some: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Wait for all of these, a few at a time."""
    gate = asyncio.Semaphore(_AT_A_TIME)

    async def one(work: Coroutine[Any, Any, None]) -> None:
        async with gate:
            await work

    await asyncio.gather(*(one(work) for work in some))

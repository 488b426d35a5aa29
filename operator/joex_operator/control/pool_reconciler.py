"""The reconcile of a pool: observe, decide, store what the next reconcile must remember, act, record Events.

`plan.decide` makes the plan and is pure; this module gathers its input and carries the plan out. A reconcile may be
interrupted after any step: the next one, by this operator or by another, does the rest.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Mapping, Sequence
from itertools import groupby
from typing import Any

from joex.errors import JoexError
from joex.store import pools
from joex_operator.api.names import app_id, replica_name
from joex_operator.api.objects import Pool, Ref
from joex_operator.control.database import Database, Databases
from joex_operator.control.fleet import Fleet, FleetError
from joex_operator.control.pool_observer import PoolObserver
from joex_operator.control.step_writer import StepWriter
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
from joex_operator.decide.conditions import conditions
from joex_operator.decide.events import Event, events_of_actions, events_of_change
from joex_operator.decide.history import History
from joex_operator.decide.plan import DatabaseProblem, ObservedPool, Plan, decide
from joex_operator.decide.pool_steps import pool_step
from joex_operator.decide.status import pool_status
from joex_operator.metrics import OperatorMetrics

_AT_ONCE = 10
"""Replicas that are created, deleted or forgotten: an API server may take a second for each."""


class PoolReconciler:
    """Reconciles pools.

    Args:
        fleet: where the executors run.
        databases: the databases of the pools.
        metrics: counts what the reconciler does.
        poll: seconds after which a pool is reconciled without a notification.
    """

    def __init__(self, fleet: Fleet, databases: Databases, metrics: OperatorMetrics, *, poll: float) -> None:
        self._fleet = fleet
        self._databases = databases
        self._metrics = metrics
        self._poll = poll
        self._observer = PoolObserver(fleet, databases, poll=poll)
        self._steps = StepWriter()

    def notified(self, pool: Pool) -> bool:
        """A notification says that a queue of a pool has work; whether the pool waits for that. A reconcile follows."""
        return self._observer.watch(pool).notified(time.monotonic())

    def forget(self, namespace: str, name: str) -> None:
        """Forget a pool that is gone."""
        self._observer.forget(namespace, name)
        self._metrics.forget(namespace, name)
        self._steps.forget(namespace, name)

    def refused(self, namespace: str, name: str) -> None:
        """A pool is invalid, and no longer grows: other pools that serve its queues count all of the jobs."""
        self._observer.refused(namespace, name)

    async def reconcile(self, ref: Ref, pool: Pool, url: str | DatabaseProblem) -> float:
        """Reconcile a pool; returns the seconds until the next reconcile.

        Args:
            ref: the pool as an object.
            pool: its content.
            url: of its database, or why none is known.

        Raises:
            SpecError: the pool's template is invalid.
            FleetError, JoexError: an action failed and is to be tried again. All others are done, but after a replica
                that could not be created hardly any more are tried.
        """
        try:
            return await self._reconcile(ref, pool, url)
        except (Exception, asyncio.CancelledError):  # (the controller cancels one that takes too long)
            self._observer.failed(pool)
            raise

    async def _reconcile(self, ref: Ref, pool: Pool, url: str | DatabaseProblem) -> float:
        template = self._fleet.template(pool)
        observed, database = await self._observer.observe(pool, template, url)
        now, stored = self._fleet.now(), self._fleet.status(ref)
        plan = decide(pool, observed, History.from_dict(stored.get("history")), now)
        self._metrics.observed(pool, observed, plan, now, database=None if database is None else database.name)
        self._observer.decided(pool, plan)
        status = pool_status(pool, observed, plan, stored, now)
        if status.get("history") != stored.get("history"):
            # Before any action, so that another operator that takes over counts with the same history.
            await self._store_status(ref, status)
        failed: Exception | None = None
        try:
            await self._act(ref, pool, observed, plan, database)
        except (FleetError, JoexError, OSError) as error:
            failed = error
        failure = "" if failed is None else " ".join(str(failed).split())
        # The rest of the status waits until the replicas are created. Not in a `finally`: an error there would hide a
        # cancellation, and an operator that should end, or leads no more, would go on.
        await self._store_status(ref, pool_status(pool, observed, plan, stored, now, failure=failure))
        await self._fleet.record_events(ref, events_of_change(conditions(pool, observed, plan, failure), stored))
        await self._steps.write(pool_step(self._fleet.home(pool.namespace), pool, observed, plan), database)
        if failed is not None:
            raise failed
        if database is not None and observed.demand is not None:
            self._observer.succeeded(pool, observed, database)
        return self._requeue_after(pool, observed, plan)

    async def _store_status(self, ref: Ref, status: Mapping[str, Any]) -> None:
        if status != self._fleet.status(ref):
            await self._fleet.set_status(ref, status)

    def _requeue_after(self, pool: Pool, observed: ObservedPool, plan: Plan) -> float:
        # (A watch's recheck stays due while the database does not answer: it would be tried again at once, for ever.)
        recheck = None if observed.demand is None else self._observer.next_reconcile(pool, time.monotonic())
        return min([self._poll, *(delay for delay in (plan.requeue_after, recheck) if delay is not None)])

    # Act.

    async def _act(self, ref: Ref, pool: Pool, observed: ObservedPool, plan: Plan, database: Database | None) -> None:
        replicas = {replica.name: replica for replica in observed.replicas}
        done: list[Action] = []
        failed: list[Exception] = []

        async def do(action: Action) -> None:
            try:
                if await self._execute(pool, action, database):
                    done.append(action)
                    self._metrics.acted(pool, action, replicas.get(_replica(pool, action)), self._fleet.now())
            except (FleetError, JoexError, OSError) as error:
                failed.append(error)

        others = [action for action in plan.actions if not isinstance(action, CreateReplica)]
        for is_leaving, some in groupby(others, lambda action: isinstance(action, DeleteReplica | ForgetReplica)):
            await _gather([do(action) for action in some], _AT_ONCE if is_leaving else 1)
        before = len(failed)

        async def create(action: Action) -> None:
            if len(failed) == before:  # (a quota that refuses one refuses all, and a pool may want hundreds)
                await do(action)

        await _gather([create(action) for action in plan.actions if isinstance(action, CreateReplica)], _AT_ONCE)
        self._count_latency(pool, done)
        events = events_of_actions(pool.name, done)
        if failed:
            events.append(Event("Warning", "ActionFailed", " ".join(str(failed[0]).split())))
        await self._fleet.record_events(ref, events)
        if failed:
            raise failed[0]

    async def _execute(self, pool: Pool, action: Action, database: Database | None) -> bool:
        """Carry out an action. False: there was nothing left to do."""
        match action:
            case CreateReplica(index, _):
                await self._fleet.create(pool, index)
            case DeleteReplica(replica, uid, _):
                await self._fleet.delete(pool, replica, uid)
            case UpdateReplica(replica, uid):
                await self._fleet.update(pool, replica, uid)
            case _:
                return database is not None and await self._tell(pool, action, database)
        return True

    async def _tell(
        self, pool: Pool, action: AskDrain | MarkSpare | ForgetReplica | ReportGone, database: Database
    ) -> bool:
        """Carry out an action in the database. False: there was nothing left to do."""
        if isinstance(action, AskDrain) and action.why is Why.TEMPLATE:
            await self._fleet.check(pool)  # nothing leaves for a template of which no replica can be created
        if isinstance(action, ForgetReplica) and not await self._fleet.is_clear(pool, action.replica):
            return False
        async with database.connection() as connection:
            match action:
                case AskDrain(replica, only_if_idle):
                    name = app_id(self._fleet.home(pool.namespace), replica)
                    return await pools.retire(connection, name, only_if_idle=only_if_idle) != "busy"
                case MarkSpare(replica, spare):
                    return await pools.mark_spare(
                        connection, app_id(self._fleet.home(pool.namespace), replica), spare=spare
                    )
                case ForgetReplica(replica, retired_at):
                    return await pools.forget_retired(
                        connection, app_id(self._fleet.home(pool.namespace), replica), retired_at
                    )
                case ReportGone(pod_uid):
                    jobs = await pools.pod_gone(connection, pod_uid)
                    self._metrics.decisions.reclaimed(jobs)
        return True

    def _count_latency(self, pool: Pool, done: Sequence[Action]) -> None:
        notified_at = self._observer.watch(pool).notified_at
        if notified_at is not None and any(isinstance(action, CreateReplica) for action in done):
            self._metrics.replica_timings.woken(time.monotonic() - notified_at)


def _replica(pool: Pool, action: Action) -> str:
    match action:
        case CreateReplica(index, _):
            return replica_name(pool.name, index)
        case ReportGone():
            return ""
        case _:
            return action.replica


async def _gather(some: Sequence[Coroutine[Any, Any, None]], most: int) -> None:
    """Run all of these in order, so many at a time."""
    gate = asyncio.Semaphore(most)

    async def run(work: Coroutine[Any, Any, None]) -> None:
        async with gate:
            await work

    await asyncio.gather(*map(run, some))

"""The reconcile of a pool: observe, decide, store what the next reconcile must remember, act, record Events.

`plan.decide` makes the plan and is pure; this module gathers its input and carries the plan out. A reconcile may be
interrupted after any step: the next one, by this operator or by another, does the rest.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from joex.errors import JoexError
from joex.store import pools
from joex.store.horizon import announce, oldest_transaction
from joex.store.pools import Known
from joex.store.statement import Connection
from joex_operator.api.names import app_id, replica_name, replica_of
from joex_operator.api.objects import Pool, Ref
from joex_operator.control.database import Database, Databases, database_problem
from joex_operator.control.fleet import Fleet, FleetError, UrlUnknown
from joex_operator.control.sharers import Sharers
from joex_operator.control.step_writer import StepWriter
from joex_operator.decide import scaling
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
from joex_operator.decide.growth_watch import PAUSES, GrowthWatch
from joex_operator.decide.history import History
from joex_operator.decide.observed import judged
from joex_operator.decide.plan import ObservedPool, Plan, decide
from joex_operator.decide.pool_steps import pool_step
from joex_operator.decide.replicas import ObservedExecutor, Replica
from joex_operator.decide.scaling import Demand, Work
from joex_operator.decide.sharing import Server, part
from joex_operator.decide.status import pool_status
from joex_operator.metrics import OperatorMetrics

_CREATIONS_AT_ONCE = 10
_WATCH_POLLS = 4


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
        self._watches: dict[tuple[str, str], GrowthWatch] = {}
        self._can_grow: dict[tuple[str, str], bool] = {}
        self._sharers = Sharers()
        self._steps = StepWriter()

    def notified(self, pool: Pool) -> None:
        """A notification says that a pool has work. A reconcile follows."""
        self._watch(pool).notified(time.monotonic())

    def forget(self, namespace: str, name: str) -> None:
        """Forget a pool that is gone."""
        self._watches.pop((namespace, name), None)
        self._can_grow.pop((namespace, name), None)
        self._sharers.forget(namespace, name)
        self._metrics.forget(namespace, name)
        self._steps.forget(namespace, name)

    def refused(self, namespace: str, name: str) -> None:
        """A pool is invalid, and no longer grows: other pools that serve its queues count all of the jobs."""
        self._sharers.forget(namespace, name)

    async def reconcile(self, ref: Ref, pool: Pool) -> float:
        """Reconcile a pool; returns the seconds until the next reconcile.

        Raises:
            SpecError: the pool's template is invalid.
            FleetError, JoexError: an action failed and is to be tried again. All other actions are done.
        """
        try:
            return await self._reconcile(ref, pool)
        except Exception:
            self._sharers.failed(pool)
            raise

    async def _reconcile(self, ref: Ref, pool: Pool) -> float:
        template = self._fleet.template(pool)
        observed, database = await self._observe(pool, template)
        now, stored = datetime.now(UTC), self._fleet.status(ref)
        plan = decide(pool, observed, History.from_dict(stored.get("history")), now)
        self._metrics.observed(pool, observed, plan, now, database=None if database is None else database.name)
        self._can_grow[pool.namespace, pool.name] = scaling.can_grow(pool.spec, plan.sizing)
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
        if database is not None and observed.demand is not None:  # (now, because a pool may be refused at each try)
            self._sharers.observed(pool, database.name, observed.replicas)
        return self._requeue_after(pool, observed, plan)

    async def _store_status(self, ref: Ref, status: Mapping[str, Any]) -> None:
        if status != self._fleet.status(ref):
            await self._fleet.set_status(ref, status)

    def _requeue_after(self, pool: Pool, observed: ObservedPool, plan: Plan) -> float:
        # (A watch's recheck stays due while the database does not answer: it would be tried again at once, for ever.)
        recheck = None if observed.demand is None else self._watch(pool).next_reconcile(time.monotonic())
        return min([self._poll, *(delay for delay in (plan.requeue_after, recheck) if delay is not None)])

    # Observe.

    async def _observe(self, pool: Pool, template: str) -> tuple[ObservedPool, Database | None]:
        database = None
        try:
            database = self._databases.get(await self._fleet.database_url(pool))
            known, demand, worked = await self._query(pool, database)
        except UrlUnknown as error:
            problem = error.problem
        except (JoexError, OSError) as error:
            self._fleet.recheck_url(pool)
            problem = database_problem(error)
        else:
            now, min_ready = datetime.now(UTC), timedelta(seconds=pool.spec.rollout.min_ready_seconds)
            found = [judged(replica, worked, now, min_ready) for replica in self._fleet.replicas(pool)]
            replicas = _merged(pool, found, known, database.name)
            if any(replica.is_deaf for replica in replicas):  # its login may be refused, and that of the operator old
                self._fleet.recheck_url(pool)
            return ObservedPool(tuple(replicas), demand, template, taken=self._fleet.taken(pool)), database
        self._sharers.failed(pool)
        return ObservedPool(
            tuple(self._fleet.replicas(pool)), None, template, problem, self._fleet.taken(pool)
        ), database

    async def _query(self, pool: Pool, database: Database) -> tuple[dict[int, list[Known]], Demand, set[str]]:
        """Query the app-ids by replica, the demand, and the crashing pods in which an executor ever registered."""
        watch, home = self._watch(pool), self._fleet.home(pool.namespace)
        name = app_id(home, pool.name)
        spec = pool.spec
        can_grow = self._can_grow.get((pool.namespace, pool.name), True) and _by_demand(pool)
        own = self._sharers.starting(pool, database.name)
        async with database.connection() as connection:
            if watch.wants_disarming(time.monotonic(), can_grow=can_grow):
                await pools.watch(connection, name, spec.queues, 0.0)
                watch.disarmed()
            if can_grow and watch.wants_arming(time.monotonic()):
                arming = pools.watch(connection, name, spec.queues, watch.length)
                watch.armed(time.monotonic(), await announce(connection, arming, **PAUSES))
            # Before the query of the demand, which then sees the jobs of these transactions.
            if watch.recheck is not None:
                watch.settle(time.monotonic(), await oldest_transaction(connection))
            # Where no executor is left, only the operator notices that the last one has died.
            await database.rescue(connection, spec.most_losses)
            shares, wait = await self._shares(pool, database, connection)
            sharing = [own, *self._sharers.beside(own)]
            waiting, found = await pools.demand_and_replicas(
                connection,
                spec.queues,
                sum(scaling.most_counted(one.pool.spec) for one in sharing),
                [app_id(self._fleet.home(one.pool.namespace), replica_name(one.pool.name, 0))[:-1] for one in sharing],
                shares,
                wait=wait,
            )
            pods = [uid for replica in self._fleet.replicas(pool) if replica.crashing for uid in replica.pods]
            worked = await pools.registered_in(connection, pods) if pods else set()
        known = [
            _by_index(self._fleet.home(one.pool.namespace), one.pool, some)
            for one, some in zip(sharing, found, strict=True)
        ]
        demand = Demand(waiting.runnable, waiting.next_due, None if waiting.work is None else Work(*waiting.work))
        servers = [Server(one.slots, _running(some)) for one, some in zip(sharing, known, strict=True)]
        return known[0], part(demand, servers[0], servers[1:]), worked

    async def _shares(
        self, pool: Pool, database: Database, connection: Connection
    ) -> tuple[pools.Shares | None, float]:
        """Which part of the target's time a job fills a slot, and its seconds; None: the pool has no target."""
        target = pool.spec.scaling.target
        if target is None or not _by_demand(pool):
            return None, math.inf
        wait = target.wait.total_seconds()
        return (await database.run_times(connection)).shares(wait), wait

    def _watch(self, pool: Pool) -> GrowthWatch:
        return self._watches.setdefault((pool.namespace, pool.name), GrowthWatch(_WATCH_POLLS * self._poll))

    # Act.

    async def _act(self, ref: Ref, pool: Pool, observed: ObservedPool, plan: Plan, database: Database | None) -> None:
        replicas = {replica.name: replica for replica in observed.replicas}
        done: list[Action] = []
        failed: list[Exception] = []

        async def do(action: Action) -> None:
            try:
                if await self._execute(pool, action, database):
                    done.append(action)
                    self._metrics.acted(pool, action, replicas.get(_replica(pool, action)), datetime.now(UTC))
            except (FleetError, JoexError, OSError) as error:
                failed.append(error)

        for action in plan.actions:
            if not isinstance(action, CreateReplica):
                await do(action)
        await _gather([do(action) for action in plan.actions if isinstance(action, CreateReplica)])
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
                    jobs = await pools.pod_gone(connection, pod_uid, pool.spec.most_losses)
                    self._metrics.decisions.reclaimed(jobs)
        return True

    def _count_latency(self, pool: Pool, done: Sequence[Action]) -> None:
        notified_at = self._watch(pool).notified_at
        if notified_at is not None and any(isinstance(action, CreateReplica) for action in done):
            self._metrics.replica_timings.woken(time.monotonic() - notified_at)


def _by_index(home: str, pool: Pool, found: Sequence[Known]) -> dict[int, list[Known]]:
    """What the database knows of the replicas of a pool, by their indices."""
    known: dict[int, list[Known]] = {}
    for one in found:
        if (index := replica_of(home, pool.name, one.app_id)) is not None:
            known.setdefault(index, []).append(one)
    return known


def _running(known: Mapping[int, Sequence[Known]]) -> int:
    """The jobs on executors that take more."""
    return sum(one.held for some in known.values() for one in some if not one.draining)


def _by_demand(pool: Pool) -> bool:
    return pool.spec.replicas is None and not pool.spec.suspend and pool.deleted_at is None


def _merged(
    pool: Pool, observed: Sequence[Replica], known: Mapping[int, Sequence[Known]], database: str
) -> list[Replica]:
    """The observed replicas with what the database knows of them, and the replicas that only the database knows."""
    replicas = {replica.index: replica for replica in observed}
    for index in known.keys() - replicas.keys():
        replicas[index] = Replica(replica_name(pool.name, index), index)
    return [_with_executor(replicas[index], known.get(index, ()), database) for index in sorted(replicas)]


def _with_executor(replica: Replica, known: Sequence[Known], database: str) -> Replica:
    """The replica with what the database knows of its app-id: the executor that takes jobs, and those that drain."""
    living = [one for one in known if one.executor is not None]
    takes = any(not one.draining for one in living)
    executor = ObservedExecutor(
        alive=bool(living),
        held=sum(one.held for one in living),
        left=sum(one.held for one in living if one.draining) if takes else 0,
        draining=bool(living) and not takes,
        spare=any(one.spare for one in living if not one.draining),
        retired_at=next((one.retired_at for one in known), None),
        pods=tuple(one.pod_uid for one in living if one.pod_uid is not None),
        database=database,
    )
    return replace(replica, executor=executor)


def _replica(pool: Pool, action: Action) -> str:
    match action:
        case CreateReplica(index, _):
            return replica_name(pool.name, index)
        case ReportGone():
            return ""
        case _:
            return action.replica


async def _gather(some: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run all of these, a few at a time."""
    gate = asyncio.Semaphore(_CREATIONS_AT_ONCE)

    async def run(work: Coroutine[Any, Any, None]) -> None:
        async with gate:
            await work

    await asyncio.gather(*map(run, some))

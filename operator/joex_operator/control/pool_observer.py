"""What the plan of a pool is made from: its replicas, what its database knows of them, and the demand.

Between two reconciles of a pool this module keeps its growth watch, and the slots that it shares with other pools.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

from joex.errors import JoexError
from joex.store import pools
from joex.store.horizon import announce, oldest_transaction
from joex.store.pools import Known
from joex.store.statement import Connection
from joex_operator.api.names import app_id, replica_name, replica_of
from joex_operator.api.objects import Pool
from joex_operator.control.database import Database, Databases, database_problem
from joex_operator.control.fleet import Fleet
from joex_operator.control.sharers import Sharers
from joex_operator.decide import scaling
from joex_operator.decide.growth_watch import PAUSES, GrowthWatch
from joex_operator.decide.observed import judged
from joex_operator.decide.plan import DatabaseProblem, ObservedPool, Plan
from joex_operator.decide.replicas import ObservedExecutor, Replica
from joex_operator.decide.scaling import Demand, Work
from joex_operator.decide.sharing import Server, part

_WATCH_POLLS = 4


class PoolObserver:
    """Observes pools.

    Args:
        fleet: where the executors run.
        databases: the databases of the pools.
        poll: seconds after which a pool is reconciled without a notification.
    """

    def __init__(self, fleet: Fleet, databases: Databases, *, poll: float) -> None:
        self._fleet = fleet
        self._databases = databases
        self._poll = poll
        self._watches: dict[tuple[str, str], GrowthWatch] = {}
        self._can_grow: dict[tuple[str, str], bool] = {}
        self._sharers = Sharers()

    def watch(self, pool: Pool) -> GrowthWatch:
        """The growth watch of a pool."""
        return self._watches.setdefault((pool.namespace, pool.name), GrowthWatch(_WATCH_POLLS * self._poll))

    def decided(self, pool: Pool, plan: Plan) -> None:
        """A reconcile has made this plan."""
        self._can_grow[pool.namespace, pool.name] = scaling.can_grow(pool.spec, plan.sizing) and not plan.is_stuck

    def next_reconcile(self, pool: Pool, now: float) -> float | None:
        """Seconds until the growth watch of a pool needs the next reconcile; None: it needs none."""
        watch = self.watch(pool)
        if self._waits_for_news(pool) and watch.wants_arming(now):
            return 0.0  # this plan is the first after which the pool can grow: until it is armed, no news comes
        return watch.next_reconcile(now)

    def _waits_for_news(self, pool: Pool) -> bool:
        return self._can_grow.get((pool.namespace, pool.name), True) and _by_demand(pool)

    def succeeded(self, pool: Pool, observed: ObservedPool, database: Database) -> None:
        """A reconcile has ended well; not before, because a pool may be refused its executors at each try."""
        self._sharers.observed(pool, database, observed.replicas)

    def failed(self, pool: Pool) -> None:
        """A reconcile has failed: other pools that serve the same queues count all of the jobs."""
        self._sharers.failed(pool)

    def refused(self, namespace: str, name: str) -> None:
        """A pool is invalid, and no longer grows."""
        self._sharers.forget(namespace, name)

    def forget(self, namespace: str, name: str) -> None:
        """Forget a pool that is gone."""
        self._watches.pop((namespace, name), None)
        self._can_grow.pop((namespace, name), None)
        self._sharers.forget(namespace, name)

    async def observe(
        self, pool: Pool, template: str, url: str | DatabaseProblem
    ) -> tuple[ObservedPool, Database | None]:
        """Observe a pool whose executors have this template; the demand is None where its database does not answer."""
        if isinstance(url, DatabaseProblem):
            return self._without_database(pool, template, url), None
        database = self._databases.get(url)
        try:
            known, demand, worked = await self._query(pool, database)
        except (JoexError, OSError) as error:
            self._fleet.recheck_url(pool)
            return self._without_database(pool, template, database_problem(error)), database
        now, min_ready = self._fleet.now(), timedelta(seconds=pool.spec.rollout.min_ready_seconds)
        found = [judged(replica, worked, now, min_ready) for replica in self._fleet.replicas(pool)]
        replicas = _merged(pool, found, known, database.name)
        if any(replica.is_deaf for replica in replicas):  # its login may be refused, and that of the operator old
            self._fleet.recheck_url(pool)
        return ObservedPool(tuple(replicas), demand, template, taken=self._fleet.taken(pool)), database

    def _without_database(self, pool: Pool, template: str, problem: DatabaseProblem) -> ObservedPool:
        self._sharers.failed(pool)
        return ObservedPool(tuple(self._fleet.replicas(pool)), None, template, problem, self._fleet.taken(pool))

    async def _query(self, pool: Pool, database: Database) -> tuple[dict[int, list[Known]], Demand, set[str]]:
        """Query the app-ids by replica, the demand, and the crashing pods in which an executor ever registered."""
        watch, home = self.watch(pool), self._fleet.home(pool.namespace)
        name = app_id(home, pool.name)
        spec = pool.spec
        can_grow = self._waits_for_news(pool)
        own = self._sharers.starting(pool, database)
        async with database.connection() as connection:
            if watch.wants_disarming(time.monotonic(), can_grow=can_grow):
                await pools.watch(connection, name, spec.queues, 0.0)
                watch.disarmed()
            if not can_grow:
                watch.notified_at = None  # (only an arming ends its rest: the pool would be reconciled without a pause)
            elif watch.wants_arming(time.monotonic()):
                arming = pools.watch(connection, name, spec.queues, watch.length)
                watch.armed(time.monotonic(), await announce(connection, arming, **PAUSES))
            # Before the query of the demand, which then sees the jobs of these transactions.
            if watch.recheck is not None:
                watch.settle(time.monotonic(), await oldest_transaction(connection))
            # Where no executor is left, only the operator notices that the last one has died.
            await database.rescue(connection)
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
        retired_for=next((one.retired_for for one in known), None),
        pods=tuple(one.pod_uid for one in living if one.pod_uid is not None),
        database=database,
    )
    return replace(replica, executor=executor)

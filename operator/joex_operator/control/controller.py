"""The controller: it knows the pools and periodic tasks that exist, and decides when to reconcile each.

Its inputs say only *when* to reconcile: an object has changed, the fleet of a pool has changed, the database has sent a
notification, or time has passed. An object that can't be reconciled never stops another one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

from joex.core.backoff import retry_delay
from joex.errors import JoexError
from joex.store.name_lookups import OWNER
from joex_operator.api.names import pools_named, replica_of
from joex_operator.api.objects import Pool, SpecError, parse_pool, reference
from joex_operator.control.database import Databases
from joex_operator.control.fleet import Fleet, FleetError, UrlUnknown
from joex_operator.control.periodic_reconciler import Left, PeriodicReconciler
from joex_operator.control.periodic_scheduler import SchedulerService
from joex_operator.control.pool_reconciler import PoolReconciler
from joex_operator.control.work_queue import WorkQueue
from joex_operator.decide.conditions import refused
from joex_operator.decide.events import events_of_change
from joex_operator.decide.periodic_rows import owner
from joex_operator.decide.plan import DatabaseProblem
from joex_operator.decide.status import with_conditions
from joex_operator.metrics import OperatorMetrics

_log = logging.getLogger("joex.operator")

_WORKERS = 64
_FIRST_RETRY, _LAST_RETRY = timedelta(seconds=0.5), timedelta(minutes=1)
_WITHIN = 240.0
"""Seconds for a reconcile. An operator with one that lasts longer than 300 asks for its restart, which stops all."""
_SOON = 0.02
"""Seconds within which several changes of a pool are merged into one reconcile."""

POOL, PERIODIC = "JoexPool", "PeriodicTask"


class Key(NamedTuple):
    """The unit of a reconcile: a pool, or (without a name) all periodic tasks of a namespace."""

    kind: str
    namespace: str
    name: str = ""


class Controller:
    """Reconciles pools and periodic tasks until it is cancelled.

    Args:
        fleet: where executors run.
        poll: seconds after which a pool, or a periodic task, is reconciled without a notification.
        worker: the name under which this controller submits the jobs of periodic tasks.
        migrate: bring databases to this version's schema before their first use.
        metrics: counts what the controller does.
    """

    def __init__(
        self,
        fleet: Fleet,
        *,
        worker: str,
        poll: float = 15.0,
        migrate: bool = True,
        metrics: OperatorMetrics | None = None,
    ) -> None:
        self.metrics = metrics or OperatorMetrics()
        start_scheduler = partial(SchedulerService, worker=worker, poll=poll, metrics=self.metrics)
        self.databases = Databases(self._on_notification, migrate=migrate, start_scheduler=start_scheduler)
        self._fleet = fleet
        self._poll = poll
        self._queue: WorkQueue[Key] = WorkQueue(owner=lambda key: key.namespace)
        self._objects: dict[Key, Mapping[str, Any]] = {}
        self._pools: dict[Key, Pool] = {}
        self._refused: dict[Key, SpecError] = {}
        self._urls: dict[Key, str] = {}
        self._unknown: set[Key] = set()
        self._failures: dict[Key, int] = {}
        self._under_way: dict[Key, float] = {}
        self._left: dict[str, set[Left]] = {}
        self._pool_reconciler = PoolReconciler(fleet, self.databases, self.metrics, poll=poll)
        self._periodic_reconciler = PeriodicReconciler(fleet, self.databases, poll=poll)

    def put(self, manifest: Mapping[str, Any]) -> None:
        """Add an object, or replace one that has changed."""
        ref = reference(manifest)
        key = Key(ref.kind, ref.namespace, ref.name)
        before, self._objects[key] = self._objects.get(key), manifest
        # A changed status, which this operator writes itself, is no reason to reconcile.
        if before is not None and _desired_state(before) == _desired_state(manifest):
            # The parsed pool has parts of the earlier spec: memory for both would be twice as much.
            self._objects[key] = {**manifest, "spec": before.get("spec")}
            return
        if ref.kind == POOL:
            self._parse(key, manifest)
            self._queue.add(key)
        self._queue.add(Key(PERIODIC, ref.namespace))

    def _parse(self, key: Key, manifest: Mapping[str, Any]) -> None:
        """Parse a pool at once, so that its periodic tasks find it in whichever order the queue runs."""
        self._refused.pop(key, None)
        try:
            self._pools[key] = parse_pool(manifest, stored=True)
        except SpecError as error:
            self._pools.pop(key, None)
            # Nothing of what is refused stays in memory. (The traceback and the cause of the error have all of it.)
            self._refused[key] = SpecError(str(error), error.reason)
            self._objects[key] = {**manifest, "spec": None}

    def remove(self, kind: str, namespace: str, name: str) -> None:
        """Remove an object that is gone."""
        key = Key(kind, namespace, name)
        if self._objects.pop(key, None) is None:
            return
        if kind == POOL:
            if (url := self._urls.get(key)) is not None:
                self._left.setdefault(namespace, set()).add(Left(owner(self._fleet.home(namespace), name), url))
            self._forget_pool(key)
        self._queue.add(Key(PERIODIC, namespace))

    def remove_all(self, namespace: str) -> None:
        """Remove the objects of a namespace that is gone; `Fleet.home` still is that of this one."""
        for key in self._keys(namespace):
            self.remove(*key)

    def abandon(self, namespace: str) -> None:
        """Do nothing more in a namespace: its objects are there, but another release acts for them.

        To `remove` them would delete the rows of its periodic tasks.
        """
        self._left.pop(namespace, None)
        for key in self._keys(namespace):
            del self._objects[key]
            if key.kind == POOL:
                self._forget_pool(key)
        self._queue.add(Key(PERIODIC, namespace))  # which closes databases that are not used any more

    def _keys(self, namespace: str) -> list[Key]:
        return [key for key in self._objects if key.namespace == namespace]

    def _forget_pool(self, key: Key) -> None:
        self._queue.drop(key)
        for known in (self._pools, self._refused, self._urls, self._failures):
            known.pop(key, None)
        self._unknown.discard(key)
        self._pool_reconciler.forget(key.namespace, key.name)

    def enqueue(self, namespace: str, pool: str) -> None:
        """Reconcile a pool soon, because its Deployments, pods or processes have changed."""
        key = Key(POOL, namespace, pool)
        if key in self._objects:
            self._queue.add(key, _SOON)

    @property
    def longest_reconcile(self) -> float:
        """Seconds since the oldest reconcile under way began. Each reconcile has a time limit."""
        return time.monotonic() - min(self._under_way.values(), default=time.monotonic())

    async def run(self) -> None:
        """Reconcile each key when it is due, until cancelled."""
        try:
            await self._queue.run(self._reconcile, _WORKERS)
        finally:
            await self.databases.close()

    def _on_notification(self, url: str, kind: str, name: str) -> None:
        """Enqueue the pools that a notification of a database concerns."""
        if kind == "executor":
            self._on_news_of_executor(url, name)
            return
        for key, pool in self._pools.items():
            if self._urls.get(key) != url:
                continue
            if kind == "queue" and name in pool.spec.queues and self._pool_reconciler.notified(pool):
                self._queue.add(key)
            elif kind == "all":
                self._queue.add(key, _SOON)

    def _on_news_of_executor(self, url: str, executor: str) -> None:
        """Enqueue the pool of an executor. Looks at no other one: with many pools there is much news."""
        for namespace, name in pools_named(executor):
            key = Key(POOL, namespace, name)
            if (
                self._urls.get(key) == url
                and key in self._pools
                and replica_of(self._fleet.home(namespace), name, executor) is not None
            ):
                self._queue.add(key, _SOON)

    async def _reconcile(self, key: Key) -> None:
        began, ok = time.monotonic(), True
        self._under_way[key] = began
        OWNER.set(key.namespace)
        try:
            after = await self._reconcile_in_time(key)
            self._failures.pop(key, None)
        except Exception as error:  # noqa: BLE001 - no error of one object stops the others
            ok, after = False, self._failed(key, error)
        finally:
            del self._under_way[key]
        if key.kind == POOL:
            self.metrics.own.reconciled(time.monotonic() - began, ok=ok, now=datetime.now(UTC))
            if key not in self._objects:  # it went meanwhile
                self._forget_pool(key)
        if after is not None:
            self._queue.add(key, after)

    async def _reconcile_in_time(self, key: Key) -> float | None:
        limit = asyncio.timeout(_WITHIN)
        try:
            async with limit:
                return await (
                    self._reconcile_periodic_tasks(key) if key.kind == PERIODIC else self._reconcile_pool(key)
                )
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise FleetError(f"not done within {_WITHIN:.0f} s: a database or the API server is slow") from error

    async def _reconcile_pool(self, key: Key) -> float | None:
        manifest = self._objects.get(key)
        if manifest is None:
            return None
        if key in self._refused:
            await self._refuse(manifest, self._refused[key])
            return None  # until the object changes
        try:
            pool = self._pools[key]
            url = await self._note_url(key, pool)
            if self._pools.get(key) is not pool:  # it has gone meanwhile, or changed: then it is due again
                return None
            return await self._pool_reconciler.reconcile(reference(manifest), pool, url)
        except SpecError as error:
            await self._refuse(manifest, error)
            return None  # until the object changes

    async def _note_url(self, key: Key, pool: Pool) -> str | DatabaseProblem:
        """Remember the database whose notifications concern a pool, and close the databases that no pool uses."""
        before = self._urls.get(key)
        try:
            url = await self._fleet.database_url(pool)
        except UrlUnknown as error:
            if key in self._pools:  # it may have gone meanwhile
                self._unknown.add(key)
            # (Meanwhile the pool may have gone or changed, and another reconcile may have read a newer URL.)
            if error.is_withdrawn and before and self._pools.get(key) is pool and self._urls.get(key) == before:
                del self._urls[key]
                # Whoever has taken it away, or the label of its secret, expects that nobody logs in by it any more.
                self._queue.add(Key(PERIODIC, key.namespace))  # which closes databases that are not used any more
            return error.problem
        if key in self._unknown:
            self._unknown.remove(key)
            self._queue.add(Key(PERIODIC, key.namespace))  # it may have rows of tasks that have gone meanwhile
        if self._pools.get(key) is pool and self._urls.get(key) != url:  # it may have gone or changed meanwhile
            self._urls[key] = url
            await self._close_unused()
        return url

    async def _reconcile_periodic_tasks(self, key: Key) -> float | None:
        before = self._keys(key.namespace)
        pools = {other: self._pools.get(other) for other in before if other.kind == POOL}
        urls = {
            other: await self._note_url(other, pool)
            for other, pool in pools.items()
            if pool is not None and other in self._pools  # it may have gone meanwhile
        }
        # What follows is of one moment: meanwhile objects may have gone, which left rows, and pools been made again.
        here = [other for other in before if other in self._objects]
        now = [other for other in self._keys(key.namespace) if other.kind == POOL]
        owners = {other.name: owner(self._fleet.home(key.namespace), other.name) for other in now}
        used = {owners[other.name]: self._urls.get(other) for other in now}
        left = self._left.get(key.namespace, set())
        left -= {one for one in left if used.get(one.owner) == one.url}
        # The rows of a pool that was made again may be in the database that it has now, while that is not known.
        gone = {one for one in left if one.owner not in used or used[one.owner] is not None}
        manifests = [self._objects[other] for other in here if other.kind == PERIODIC]
        # First, and whatever comes after: a pool that was made again may have its rows in the same database, by another
        # URL of it.
        held = await self._periodic_reconciler.remove(gone)
        left -= gone
        left |= held
        if not self._left.get(key.namespace):
            self._left.pop(key.namespace, None)
        await self._close_unused()  # this was the last to need the database of a pool that is gone
        after = await self._periodic_reconciler.reconcile(
            owners,
            manifests,
            {other.name: pools[other] for other in here if other in pools},
            {other.name: urls[other] for other in here if other in urls},
            left,
        )
        return self._poll if after is None and held else after

    async def _close_unused(self) -> None:
        left = {one.url for some in self._left.values() for one in some}
        await self.databases.close_others({*self._urls.values(), *left})

    async def _refuse(self, manifest: Mapping[str, Any], error: SpecError) -> None:
        ref = reference(manifest)
        stored = self._fleet.status(ref)
        self._pool_reconciler.refused(ref.namespace, ref.name)
        found = refused(error)
        self.metrics.pools.refused(ref.namespace, ref.name, found)
        status = with_conditions(found, ref.generation, stored, self._fleet.now())
        if status != stored:
            await self._fleet.set_status(ref, status)
            await self._fleet.record_events(ref, events_of_change(found, stored))

    def _failed(self, key: Key, error: Exception) -> float:
        """Log an error; returns the seconds until the next try, an exponential back-off."""
        expected = isinstance(error, FleetError | JoexError | OSError)
        where = "/".join(part for part in key if part)
        if expected:
            _log.warning("%s: %s", where, " ".join(str(error).split()))
        else:
            _log.error("%s: a bug in Joex", where, exc_info=error)
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        return retry_delay(_FIRST_RETRY, failures, _LAST_RETRY).total_seconds()


def _desired_state(manifest: Mapping[str, Any]) -> tuple[Any, ...]:
    """The parts of an object that call for a reconcile when they change."""
    metadata = manifest["metadata"]
    return metadata.get("uid"), metadata.get("deletionTimestamp"), manifest.get("spec")

"""The pools and periodic tasks that exist, and when to look at each.

What comes in here only says *when* to look: an object has changed, something of a pool has changed in the fleet, the
database has said something, or time has passed. One object that can't be worked with never stops another.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

from joex.errors import JoexError
from joex_operator.api.names import slot_of
from joex_operator.api.objects import Pool, SpecError, parse_pool, reference
from joex_operator.control.database import Databases
from joex_operator.control.fleet import Fleet, FleetError, UrlUnknown
from joex_operator.control.periodic_reconciler import PeriodicReconciler
from joex_operator.control.periodic_scheduler import SchedulerService
from joex_operator.control.pool_reconciler import PoolReconciler
from joex_operator.control.work_queue import WorkQueue
from joex_operator.decide.conditions import refused
from joex_operator.decide.events import events_of_change
from joex_operator.decide.status import with_conditions
from joex_operator.metrics import Metrics

_log = logging.getLogger("joex.operator")

_WORKERS = 64
_FIRST_RETRY = 0.25
_LAST_RETRY = 60.0
_SOON = 0.02
"""Seconds in which several things that executors say make one look."""

POOL, PERIODIC = "JoexPool", "PeriodicTask"


class Key(NamedTuple):
    """What is looked at: a pool, or all periodic tasks of a namespace (without a name)."""

    kind: str
    namespace: str
    name: str = ""


class Controller:
    """Looks at pools and periodic tasks until it is cancelled.

    Args:
        fleet: where executors run.
        poll: seconds after which a pool, or a periodic task, is looked at though nothing was heard.
        worker: who makes the jobs of periodic tasks.
        migrate: bring databases to this version's schema before their first use.
        metrics: what is counted.
    """

    def __init__(
        self, fleet: Fleet, *, worker: str, poll: float = 15.0, migrate: bool = True, metrics: Metrics | None = None
    ) -> None:
        self.metrics = metrics or Metrics()
        repeat = partial(SchedulerService, worker=worker, poll=poll, metrics=self.metrics)
        self.databases = Databases(self._heard, migrate=migrate, repeat=repeat)
        self._fleet = fleet
        self._poll = poll
        self._queue: WorkQueue[Key] = WorkQueue()
        self._objects: dict[Key, Mapping[str, Any]] = {}
        self._pools: dict[Key, Pool] = {}
        self._refused: dict[Key, SpecError] = {}
        self._urls: dict[Key, str] = {}
        self._failures: dict[Key, int] = {}
        self._under_way: dict[Key, float] = {}
        self._pool_reconciler = PoolReconciler(fleet, self.databases, self.metrics, poll=poll)
        self._periodic_reconciler = PeriodicReconciler(fleet, self.databases, poll=poll)

    def put(self, manifest: Mapping[str, Any]) -> None:
        """Take an object that is new, or has changed."""
        ref = reference(manifest)
        key, before = Key(ref.kind, ref.namespace, ref.name), None
        before, self._objects[key] = self._objects.get(key), manifest
        # A status that was written, by this operator for one, is no reason to look.
        if before is not None and _asked(before) == _asked(manifest):
            return
        if ref.kind == POOL:
            self._parse(key, manifest)
            self._queue.add(key)
        self._queue.add(Key(PERIODIC, ref.namespace))

    def _parse(self, key: Key, manifest: Mapping[str, Any]) -> None:
        """Read a pool at once, so that periodic tasks find it, whatever is looked at first."""
        self._refused.pop(key, None)
        try:
            self._pools[key] = parse_pool(manifest)
        except SpecError as error:
            self._pools.pop(key, None)
            self._refused[key] = error

    def remove(self, kind: str, namespace: str, name: str) -> None:
        """Take it that an object is gone."""
        key = Key(kind, namespace, name)
        if self._objects.pop(key, None) is None:
            return
        if kind == POOL:
            self._queue.drop(key)
            for known in (self._pools, self._refused, self._urls, self._failures):
                known.pop(key, None)
            self._pool_reconciler.forget(namespace, name)
        self._queue.add(Key(PERIODIC, namespace))

    def wake(self, namespace: str, pool: str) -> None:
        """Look at a pool: something of it has changed in the fleet."""
        key = Key(POOL, namespace, pool)
        if key in self._objects:
            self._queue.add(key, _SOON)

    @property
    def longest_reconcile(self) -> float:
        """Seconds that the longest of the looks under way has lasted: each of its steps has a time limit."""
        return time.monotonic() - min(self._under_way.values(), default=time.monotonic())

    async def run(self) -> None:
        """Look, whenever there is a reason."""
        try:
            await self._queue.run(self._look, _WORKERS)
        finally:
            await self.databases.close()

    def _heard(self, url: str, kind: str, name: str) -> None:
        """What a database says unasked."""
        for key, pool in self._pools.items():
            if self._urls.get(key) != url:
                continue
            if kind == "queue" and name in pool.spec.queues:
                self._pool_reconciler.heard(pool)
                self._queue.add(key)
            elif kind == "all" or (kind == "executor" and slot_of(pool.namespace, pool.name, name) is not None):
                self._queue.add(key, _SOON)

    async def _look(self, key: Key) -> None:
        began, ok = time.monotonic(), True
        self._under_way[key] = began
        try:
            after = await (self._reconcile_periodic_tasks(key) if key.kind == PERIODIC else self._reconcile_pool(key))
            self._failures.pop(key, None)
        except Exception as error:  # noqa: BLE001 - whatever it is, others are looked at all the same
            ok, after = False, self._failed(key, error)
        finally:
            del self._under_way[key]
        if key.kind == POOL:
            self.metrics.reconciled(time.monotonic() - began, ok=ok, now=datetime.now(UTC))
        if after is not None:
            self._queue.add(key, after)

    async def _reconcile_pool(self, key: Key) -> float | None:
        manifest = self._objects.get(key)
        if manifest is None:
            return None
        try:
            if key in self._refused:
                raise self._refused[key]
            pool = self._pools[key]
            await self._note_url(key, pool)
            return await self._pool_reconciler.look(reference(manifest), pool)
        except SpecError as error:
            await self._refuse(manifest, error)
            return None  # until it changes

    async def _note_url(self, key: Key, pool: Pool) -> None:
        """Remember which database is to be heard for a pool, and close those that nobody uses any more."""
        try:
            url = await self._fleet.database_url(pool)
        except UrlUnknown:
            return
        if key in self._pools and self._urls.get(key) != url:  # it may have gone meanwhile
            self._urls[key] = url
            await self._close_unused()

    async def _reconcile_periodic_tasks(self, key: Key) -> float | None:
        here = {other: manifest for other, manifest in self._objects.items() if other.namespace == key.namespace}
        tasks = [manifest for other, manifest in here.items() if other.kind == PERIODIC]
        pools = {other: self._pools.get(other) for other in here if other.kind == POOL}
        for other, pool in pools.items():
            if pool is not None:
                await self._note_url(other, pool)
        after = await self._periodic_reconciler.look(
            key.namespace, tasks, {other.name: pool for other, pool in pools.items()}
        )
        await self._close_unused()  # of a pool that is gone, the database was wanted just now, for the last time
        return after

    async def _close_unused(self) -> None:
        await self.databases.keep({*self._urls.values(), *self._periodic_reconciler.visited})

    async def _refuse(self, manifest: Mapping[str, Any], error: SpecError) -> None:
        ref = reference(manifest)
        stored = self._fleet.status(ref)
        condition = refused(error)
        status = with_conditions([condition], ref.generation, stored, datetime.now(UTC))
        if status != stored:
            await self._fleet.set_status(ref, status)
            await self._fleet.tell(ref, events_of_change([condition], stored))

    def _failed(self, key: Key, error: Exception) -> float:
        """Say what went wrong, and when it is tried again."""
        expected = isinstance(error, FleetError | JoexError | OSError)
        where = "/".join(part for part in key if part)
        if expected:
            _log.warning("%s: %s", where, " ".join(str(error).split()))
        else:
            _log.error("%s: a mistake of Joex's own", where, exc_info=error)
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        return float(min(_FIRST_RETRY * 2**failures, _LAST_RETRY))


def _asked(manifest: Mapping[str, Any]) -> tuple[Any, ...]:
    """What an object asks for: who it is, its spec, whether it is being deleted."""
    metadata = manifest["metadata"]
    return metadata.get("uid"), metadata.get("deletionTimestamp"), manifest.get("spec")

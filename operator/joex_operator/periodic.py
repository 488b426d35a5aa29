"""PeriodicTask objects -> rows of the table of periodic tasks, in the database of their pool.

All tasks of a namespace are looked at together, so that a row whose object has gone while nobody looked is found: it is
one that this namespace owns, and no object asks for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from joex.core.job import Priority
from joex.core.periodic import NewPeriodicTask
from joex.errors import JoexError
from joex.store import periodic as store
from joex_operator.conditions import Condition, refused
from joex_operator.database import Database, Databases, trouble
from joex_operator.events import events_of_change
from joex_operator.fleet import Fleet, UrlUnknown
from joex_operator.objects import Periodic, Pool, SpecError, parse_periodic, reference
from joex_operator.status import with_conditions

_READY = "Ready"


def row_id(namespace: str, name: str) -> str:
    """The id of the row of a PeriodicTask.

    >>> row_id("prod", "nightly")
    'prod/nightly'
    """
    return f"{namespace}/{name}"


def owner(namespace: str) -> str:
    """The owner of the rows of a namespace.

    >>> owner("prod")
    'kubernetes:prod'
    """
    return f"kubernetes:{namespace}"


class Mirror:
    """Keeps the rows as the objects ask for."""

    def __init__(self, fleet: Fleet, databases: Databases) -> None:
        self._fleet = fleet
        self._databases = databases

    async def look(self, namespace: str, manifests: Sequence[Mapping[str, Any]], pools: Mapping[str, Pool]) -> bool:
        """Bring the rows of a namespace in line; returns whether all is as it should be, or can't be without a change.

        Args:
            namespace: which.
            manifests: all its PeriodicTasks.
            pools: its pools, by name.
        """
        settled = True
        for manifest in manifests:
            condition = await self._set(manifest, pools)
            await self._say(manifest, condition)
            settled = settled and condition.status != "Unknown"
        ids = [row_id(namespace, manifest["metadata"]["name"]) for manifest in manifests]
        return await self._tidy(namespace, ids, pools) and settled

    async def _set(self, manifest: Mapping[str, Any], pools: Mapping[str, Pool]) -> Condition:
        try:
            task = parse_periodic(manifest)
            pool = pools.get(task.spec.pool)
            if pool is None:
                said = f"spec.pool: there is no JoexPool {task.spec.pool!r} in this namespace"
                return Condition(_READY, "False", "UnknownPool", said, bad=True)
            return await self._store(task, pool)
        except SpecError as error:
            return refused(error)
        except UrlUnknown as error:
            return Condition(_READY, "Unknown", error.reason, error.message, bad=True)
        except (JoexError, OSError) as error:
            silent = trouble(error)
            return Condition(_READY, "Unknown", silent.reason, silent.message, bad=True)

    async def _store(self, task: Periodic, pool: Pool) -> Condition:
        database = await self._database(pool)
        async with database.connection() as connection:
            answer = await store.put(connection, _row(task, pool), owner(task.namespace))
        if answer == "not_yours":
            said = f"the database has a periodic task {row_id(task.namespace, task.name)!r} that somebody else owns"
            return Condition(_READY, "False", "OwnedByOther", said, bad=True)
        if task.spec.suspend:
            return Condition(_READY, "False", "Suspended", "spec.suspend is set")
        return Condition(_READY, "True", "Stored", "the database has it")

    async def _say(self, manifest: Mapping[str, Any], condition: Condition) -> None:
        ref = reference(manifest)
        stored = self._fleet.status(ref)
        status = with_conditions([condition], ref.generation, stored, datetime.now(UTC))
        if status != stored:
            await self._fleet.set_status(ref, status)
            await self._fleet.tell(ref, events_of_change([condition], stored))

    async def _tidy(self, namespace: str, ids: Sequence[str], pools: Mapping[str, Pool]) -> bool:
        """Remove the rows whose objects are gone, in each database that is known; False: one of them is silent."""
        done: set[int] = set()
        settled = True
        for pool in pools.values():
            try:
                database = await self._database(pool)
                if id(database) in done:
                    continue
                done.add(id(database))
                async with database.connection() as connection:
                    await store.keep(connection, owner(namespace), ids)
            except (UrlUnknown, JoexError, OSError):  # that pool's own conditions say so
                settled = False
        return settled

    async def _database(self, pool: Pool) -> Database:
        return self._databases.get(await self._fleet.database_url(pool))


def _row(task: Periodic, pool: Pool) -> NewPeriodicTask:
    spec = task.spec
    return NewPeriodicTask(
        id=row_id(task.namespace, task.name),
        enabled=not spec.suspend,
        task=spec.task,
        timer=spec.timer,
        zone=spec.time_zone,
        queue=spec.queue or pool.spec.queues[0],
        group=spec.group,
        args=spec.args,
        subject=spec.subject,
        submitter=spec.submitter,
        priority=Priority(spec.priority),
        starting_deadline=spec.starting_deadline,
    )

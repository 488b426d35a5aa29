"""Syncs PeriodicTask objects to rows in the database of their pool, and the rows' state back to the objects' status.

All tasks of a namespace are reconciled together. So the reconciler finds rows whose object was deleted while no
operator ran: a pool of this namespace owns them, and no object asks for them. Databases are synced concurrently: one
that is down delays no task of another, unless a pool that has just gone used it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import chain
from typing import Any, NamedTuple, TypeAlias, TypeVar

from joex.core.periodic import NewPeriodicTask
from joex.errors import InvalidJob, JoexError
from joex.store import periodic as store
from joex.store.periodic import PeriodicTask, TaskKey
from joex.store.statement import Connection
from joex_operator.api.objects import Pool, Ref
from joex_operator.control.database import Databases, database_problem
from joex_operator.control.fleet import Fleet, FleetError
from joex_operator.decide.events import Event, events_of_change
from joex_operator.decide.periodic_rows import (
    DesiredRow,
    RowChanges,
    changes,
    condition,
    desired_row,
    next_reconcile,
    with_next_run,
)
from joex_operator.decide.plan import DatabaseProblem
from joex_operator.decide.status import periodic_status, with_conditions

_One = TypeVar("_One")

_PAGE, _MOST_PAGES = 1000, 100
_USED_FOR = 100.0
"""Seconds for which the rows of a database are synced: ten thousand new ones take some twenty, and stay if it ends."""
_STATUSES_AT_ONCE = 10
"""An API server may take a second for each."""
_LOCKED = DatabaseProblem("Locked", "an open transaction holds its row in the database: the operator tries again")

_Answer: TypeAlias = dict[str, PeriodicTask | DatabaseProblem] | DatabaseProblem
"""Rows by their ids, each with its problem where the database refused it; or why the database can't be read."""


class Left(NamedTuple):
    """What a pool that is gone has left: all rows of its owner in a database, or the one that could not be removed.

    After the first try, one row each, with the time at which it was made: a pool that was made again may have new rows
    of the same owner there, by another URL of the same database.
    """

    owner: str
    url: str
    row: TaskKey | None = None
    made_at: datetime | None = None


class _HeldError(Exception):
    """Another transaction holds a row that is to be changed."""


class PeriodicReconciler:
    """Reconciles the periodic tasks of namespaces.

    Args:
        fleet: stores statuses.
        databases: hold the rows.
        poll: seconds after which the tasks of a namespace are reconciled again, at the latest.
    """

    def __init__(self, fleet: Fleet, databases: Databases, *, poll: float) -> None:
        self._fleet = fleet
        self._databases = databases
        self._poll = poll

    async def remove(self, left: Collection[Left]) -> set[Left]:
        """Remove what pools have left, if its database answers; returns the rows that a transaction holds."""
        here: dict[str, set[Left]] = {}
        for one in left:
            here.setdefault(one.url, set()).add(one)
        return set().union(*await asyncio.gather(*(self._remove(url, some) for url, some in here.items())))

    async def reconcile(
        self,
        owners: Mapping[str, str],
        manifests: Sequence[Mapping[str, Any]],
        pools: Mapping[str, Pool | None],
        databases: Mapping[str, str | DatabaseProblem],
        left: set[Left],
    ) -> float | None:
        """Sync the tasks of a namespace; returns the seconds until the next reconcile, None: when something changes.

        Args:
            owners: of the rows of each pool, by its name.
            manifests: all PeriodicTasks of the namespace.
            pools: all its pools, by name; None for an invalid one.
            databases: the URL of each valid pool's database, or why it is not known.
            left: what could not be removed. It loses the rows that are found in the database of a pool that was made
                again, by another URL of it: they are that pool's now, and keep their last times.

        Raises:
            FleetError: a status could not be stored. All else is done.
        """
        desired = [desired_row(manifest, pools) async for manifest in _in_turn(manifests)]
        urls = {name: url for name, url in databases.items() if isinstance(url, str)}
        problems = {name: problem for name, problem in databases.items() if isinstance(problem, DatabaseProblem)}
        for name in pools.keys() - databases.keys():
            problems[name] = DatabaseProblem("InvalidPool", f"JoexPool {name!r} is invalid: its conditions say why")
        here: dict[str, dict[str, list[DesiredRow]]] = {}
        for name, url in urls.items():
            here.setdefault(url, {})[owners[name]] = []
        for one in desired:
            if one.pool in urls:
                here[urls[one.pool]][owners[one.pool]].append(one)
        answers = await asyncio.gather(*(self._sync_rows(url, some, left) for url, some in here.items()))
        at = dict(zip(here, answers, strict=True))
        found: dict[str, _Answer] = {**problems, **{name: at[url] for name, url in urls.items()}}
        await self._store_statuses(desired, found)
        if not desired and not any(isinstance(one, DatabaseProblem) or _LOCKED in one.values() for one in answers):
            return None
        rows = [
            row
            for some in found.values()
            if not isinstance(some, DatabaseProblem)
            for row in some.values()
            if isinstance(row, PeriodicTask)
        ]
        return next_reconcile(rows, self._fleet.now(), self._poll)

    async def _remove(self, url: str, left: set[Left]) -> set[Left]:
        """Remove what is left in one database; returns the rows that a transaction holds."""
        held: set[Left] = set()
        with suppress(JoexError, OSError):
            async with self._databases.get(url).connection(within=_USED_FOR) as connection:
                found = await _rows(connection, {one.owner for one in left})
                for row in chain.from_iterable(found.values()):
                    one = Left(row.owner, url, row.name, row.created_at)
                    if (
                        not left.isdisjoint({one, Left(row.owner, url)})
                        and await store.remove(connection, row.name, row.owner, waits=False) == "locked"
                    ):
                        held.add(one)
        return held

    async def _sync_rows(self, url: str, owned: Mapping[str, Sequence[DesiredRow]], left: set[Left]) -> _Answer:
        """Sync the rows of one database; returns the rows. ``owned``: the desired ones of each owner."""
        database = self._databases.get(url)
        try:
            async with database.connection(within=_USED_FOR) as connection:
                found = await _rows(connection, owned)
                kept = {(row.owner, row.name, row.created_at) for row in chain.from_iterable(found.values())}
                left -= {one for one in left if (one.owner, one.row, one.made_at) in kept}
                todo = {name: changes(some, found[name]) for name, some in owned.items()}
                refused = await _change(connection, todo)
                if any(todo.values()):
                    found = await _rows(connection, owned)
                    database.periodic_changed()  # a pooler may drop the notification
        except (JoexError, OSError) as error:
            return database_problem(error)
        now = self._fleet.now()
        rows = [row for some in found.values() for row in some]
        return {row.id: with_next_run(row, now) async for row in _in_turn(rows)} | refused

    async def _store_statuses(self, desired: Sequence[DesiredRow], found: Mapping[str, _Answer]) -> None:
        """Store the status of each object and record its Events. ``found``: the rows, by their pool."""
        failed: list[FleetError] = []
        gate = asyncio.Semaphore(_STATUSES_AT_ONCE)

        async def store(ref: Ref, status: Mapping[str, Any], events: Sequence[Event]) -> None:
            try:
                await self._fleet.set_status(ref, status)
                await self._fleet.record_events(ref, events)
            except FleetError as error:
                failed.append(error)
            finally:
                gate.release()

        async with asyncio.TaskGroup() as group:
            async for one in _in_turn(desired):
                now, stored = self._fleet.now(), self._fleet.status(one.ref)
                rows = found.get(one.pool, {})
                row = rows if isinstance(rows, DatabaseProblem) else rows.get(one.id)
                ready = condition(one, row)
                if isinstance(row, DatabaseProblem):
                    status = with_conditions([ready], one.ref.generation, stored, now)
                else:
                    status = periodic_status(ready, row, one.ref.generation, stored, now)
                if status != stored:
                    await gate.acquire()
                    group.create_task(store(one.ref, status, events_of_change([ready], stored)))
        if failed:
            raise failed[0]


async def _in_turn(some: Sequence[_One]) -> AsyncIterator[_One]:
    """These, with time for all else before each: of ten thousand, all together would take seconds."""
    for one in some:
        await asyncio.sleep(0)
        yield one


async def _change(connection: Connection, todo: Mapping[str, RowChanges]) -> dict[str, DatabaseProblem]:
    """Change the rows of each owner; returns why some are not set, by id."""
    refused: dict[str, DatabaseProblem] = {}
    leaving: dict[str, list[tuple[TaskKey, str]]] = {}
    for name, some in todo.items():
        for key in some.remove:
            leaving.setdefault(key.id, []).append((key, name))
    for name, some in todo.items():
        for row in some.put:
            try:
                await _replace(connection, leaving.pop(row.id, []), row, name)
            except InvalidJob as error:  # by a check of the database: it concerns this row only
                refused[row.id] = DatabaseProblem("Refused", str(error))
            except _HeldError:
                refused[row.id] = _LOCKED
        for key in some.disable:
            await store.enable(connection, key, name, enabled=False, waits=False)
    for key, name in chain.from_iterable(leaving.values()):
        if await store.remove(connection, key, name, waits=False) == "locked":
            refused[key.id] = _LOCKED
    return refused


async def _replace(
    connection: Connection, before: Sequence[tuple[TaskKey, str]], row: NewPeriodicTask, name: str
) -> None:
    """Set a row in place of others, all or nothing: a task that moves, to another pool too, is there all the time."""
    async with connection.transaction():
        answers = [await store.remove(connection, key, other, waits=False) for key, other in before]
        answers.append(await store.put(connection, row, name, waits=False))
        if "locked" in answers:
            raise _HeldError


async def _rows(connection: Connection, owners: Collection[str]) -> dict[str, list[PeriodicTask]]:
    """The rows of each of these owners. Reads them together: a namespace may have a thousand pools."""
    found: dict[str, list[PeriodicTask]] = {one: [] for one in owners}
    after: str | None = None
    for _ in range(_MOST_PAGES):
        page = await store.list_tasks(connection, owners=list(owners), after=after, most=_PAGE)
        for row in page:
            if row.owner in found:  # (whoever owns a database may have its view answer with others)
                found[row.owner].append(row)
        if len(page) < _PAGE:
            return found
        after = page[-1].key
    raise JoexError(f"the pools of the namespace have more than {_PAGE * _MOST_PAGES} periodic tasks in the database")

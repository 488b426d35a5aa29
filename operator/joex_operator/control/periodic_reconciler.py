"""PeriodicTask objects -> rows of the table of periodic tasks, in the database of their pool; and back: their status.

All tasks of a namespace are looked at together, so that a row whose object has gone while nobody looked is found: it is
one that a pool of this namespace owns, and no object asks for. Databases are looked at side by side: a silent one holds
up no task of another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeAlias

from joex.errors import InvalidJob, JoexError
from joex.store import periodic as store
from joex.store.periodic import PeriodicTask
from joex.store.statement import Connection
from joex_operator.api.objects import Pool
from joex_operator.control.database import Databases, database_problem
from joex_operator.control.fleet import Fleet, FleetError, UrlUnknown
from joex_operator.decide.events import events_of_change
from joex_operator.decide.periodic_rows import DesiredRow, ask, changes, condition, next_reconcile, owner, with_next_run
from joex_operator.decide.plan import DatabaseProblem
from joex_operator.decide.status import periodic_status, with_conditions

_PAGE = 1000


_Answer: TypeAlias = dict[str, PeriodicTask | DatabaseProblem] | DatabaseProblem
"""Rows by their ids; or why nobody knows them."""


class PeriodicReconciler:
    """Keeps the rows as the objects ask for, and the objects' statuses as the rows are.

    Args:
        fleet: knows the URLs, and stores statuses.
        databases: where the rows are.
        poll: seconds after which the tasks of a namespace are looked at again, at the latest.
    """

    def __init__(self, fleet: Fleet, databases: Databases, *, poll: float) -> None:
        self._fleet = fleet
        self._databases = databases
        self._poll = poll
        self._known_urls: dict[str, dict[str, str]] = {}
        self._last_visits: dict[str, set[str]] = {}

    @property
    def visited(self) -> set[str]:
        """The URLs that are used at this moment though no pool has them any more."""
        return {url for urls in self._last_visits.values() for url in urls}

    async def look(
        self, namespace: str, manifests: Sequence[Mapping[str, Any]], pools: Mapping[str, Pool | None]
    ) -> float | None:
        """Bring the rows of a namespace in line; returns the seconds until the next look, None: until it changes.

        Args:
            namespace: which.
            manifests: all its PeriodicTasks.
            pools: all its pools, by name; None: one that can't be worked with as it is.

        Raises:
            FleetError: a status could not be stored, and all else was done.
        """
        asked = [ask(manifest, pools) for manifest in manifests]
        urls, silent = await self._urls(pools)
        known = self._known_urls.get(namespace, {}) | urls
        self._known_urls[namespace] = {name: url for name, url in known.items() if name in pools}
        gone = {name: url for name, url in known.items() if name not in pools}  # their rows go, where they are reached
        here: dict[str, dict[str, list[DesiredRow]]] = {}
        for name, url in (urls | gone).items():
            here.setdefault(url, {})[name] = [one for one in asked if one.pool == name and name not in gone]
        self._last_visits[namespace] = set(gone.values())
        try:
            answers = await asyncio.gather(*(self._follow(namespace, url, some) for url, some in here.items()))
        finally:
            del self._last_visits[namespace]
        at = dict(zip(here, answers, strict=True))
        found = silent | {name: at[url] for name, url in urls.items()}
        await self._say(asked, found)
        if not asked and not any(isinstance(at[url], DatabaseProblem) for url in urls.values()):
            return None
        rows = [
            row
            for some in found.values()
            if not isinstance(some, DatabaseProblem)
            for row in some.values()
            if isinstance(row, PeriodicTask)
        ]
        return next_reconcile(rows, datetime.now(UTC), self._poll)

    async def _urls(self, pools: Mapping[str, Pool | None]) -> tuple[dict[str, str], dict[str, _Answer]]:
        """Where the database of each pool is, or why that is not known."""
        urls: dict[str, str] = {}
        silent: dict[str, _Answer] = {}
        for name, pool in pools.items():
            if pool is None:
                silent[name] = DatabaseProblem(
                    "InvalidPool", f"JoexPool {name!r} can't be worked with: its conditions say why"
                )
                continue
            try:
                urls[name] = await self._fleet.database_url(pool)
            except UrlUnknown as error:
                silent[name] = DatabaseProblem(error.reason, error.message)
        return urls, silent

    async def _follow(self, namespace: str, url: str, asked: Mapping[str, Sequence[DesiredRow]]) -> _Answer:
        """Bring the rows of the pools of a database in line, and return them. ``asked``: the objects of each pool."""
        database = self._databases.get(url)
        try:
            async with database.connection() as connection:
                owned = {owner(namespace, pool): some for pool, some in asked.items()}
                found = {name: await _rows(connection, name) for name in owned}
                refused: dict[str, DatabaseProblem] = {}
                todo = {name: changes(some, found[name]) for name, some in owned.items()}
                for name, some in todo.items():  # first of all pools: a task may have gone to another
                    for row_id in some.remove:
                        await store.remove(connection, row_id, name)
                for name, some in todo.items():
                    for row in some.put:
                        try:
                            async with connection.transaction():
                                await store.put(connection, row, name)
                        except InvalidJob as error:  # a limit of the database's own: it concerns no other row
                            refused[row.id] = DatabaseProblem("Refused", str(error))
                    for row_id in some.disable:
                        await store.enable(connection, row_id, name, enabled=False)
                    if some:
                        found[name] = await _rows(connection, name)
                if any(todo.values()):
                    database.periodic_changed()  # a notification may not come through a pooler
        except (JoexError, OSError) as error:
            return database_problem(error)
        now = datetime.now(UTC)
        return {row.id: with_next_run(row, now) for rows in found.values() for row in rows.values()} | refused

    async def _say(self, asked: Sequence[DesiredRow], found: Mapping[str, _Answer]) -> None:
        """Store and tell what was found of each; ``found``: by its pool."""
        failed: FleetError | None = None
        for one in asked:
            now, stored = datetime.now(UTC), self._fleet.status(one.ref)
            rows = found.get(one.pool, {})
            row = rows if isinstance(rows, DatabaseProblem) else rows.get(one.id)
            ready = condition(one, row)
            if isinstance(row, DatabaseProblem):
                status = with_conditions([ready], one.ref.generation, stored, now)
            else:
                status = periodic_status(ready, row, one.ref.generation, stored, now)
            if status == stored:
                continue
            try:
                await self._fleet.set_status(one.ref, status)
                await self._fleet.tell(one.ref, events_of_change([ready], stored))
            except FleetError as error:
                failed = error
        if failed is not None:
            raise failed


async def _rows(connection: Connection, name: str) -> dict[str, PeriodicTask]:
    """The rows of an owner, by id."""
    found: dict[str, PeriodicTask] = {}
    after: str | None = None
    while page := await store.list_tasks(connection, owner=name, after=after, most=_PAGE):
        found.update((row.id, row) for row in page)
        after = page[-1].id
        if len(page) < _PAGE:
            break
    return found

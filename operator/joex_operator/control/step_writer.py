"""Writes the steps of pools into their databases, for people. Nothing depends on them."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from joex.errors import JoexError
from joex.store import pools
from joex.store.pools import NewPoolStep
from joex.trouble import Trouble
from joex_operator.control.database import Database
from joex_operator.control.trouble_lines import trouble_lines

_WITHIN = 0.5
"""Seconds that a reconcile waits for the database."""
_AGAIN_AFTER = 3600.0
"""Seconds after which the database judges again whether it has a step: there may be a new one of this name."""
_FIRST_PAUSE, _LONGEST_PAUSE = 10.0, 60.0
"""Seconds. (Half of the first is longer than an abandoned statement waits, so no step comes after a later one.)"""


@dataclass(frozen=True, slots=True)
class _Written:
    state: tuple[object, ...]
    at: float


class StepWriter:
    """Writes steps of pools. A database that is away, or slow, costs a reconcile half a second, and then a pause."""

    def __init__(self) -> None:
        self._written: dict[tuple[str, str], _Written] = {}
        self._troubles: WeakKeyDictionary[Database, Trouble] = WeakKeyDictionary()
        self._pauses: WeakKeyDictionary[Database, float] = WeakKeyDictionary()

    async def write(self, step: NewPoolStep | None, database: Database | None) -> None:
        """Write a step, if it is another one than the last of its pool. Raises no error."""
        if step is None or database is None:
            return
        now = time.monotonic()
        state = (
            database.url, step.home, step.before, step.target, step.ready, step.draining, step.mode, step.capped_by,
        )  # fmt: skip
        last = self._written.get((step.namespace, step.pool))
        if last is not None and last.state == state and now - last.at < _AGAIN_AFTER:
            return
        if now < self._pauses.get(database, now):
            return
        try:
            async with asyncio.timeout(_WITHIN), database.connection() as connection:
                is_there = await pools.note_step(connection, step)
        except (JoexError, OSError) as error:
            said = str(error) or f"the database has not answered within {_WITHIN} s"
            self._pauses[database] = time.monotonic() + self._trouble(database).failed(said)
        else:
            self._trouble(database).over()
            if is_there:
                self._written[step.namespace, step.pool] = _Written(state, now)

    def forget(self, namespace: str, pool: str) -> None:
        """Forget a pool that is gone."""
        self._written.pop((namespace, pool), None)

    def _trouble(self, database: Database) -> Trouble:
        if database not in self._troubles:
            emit = trouble_lines(f"the history of pools in {database.name}")
            self._troubles[database] = Trouble("pool steps", emit, first=_FIRST_PAUSE, longest=_LONGEST_PAUSE)
        return self._troubles[database]

"""Making the jobs of periodic tasks, in each executor and in each operator; any number of them may do so.

Nobody is in charge. Each sleeps until the next task is due, or one has changed; reads the tasks that are due, works
out when each is due next, and hands both to joex.fire_periodic, which decides in one transaction who was first. What it
holds while it decides is held by the server, for as long as that one statement takes, so whoever dies, hangs, or is cut
off in between leaves nothing behind.

Time is the database's: it says what is due, and how long it is until the next; our own clock only measures how long
we sleep. If the database's clock is set forward, what has become due is found at the latest when the longest sleep ends;
if it is set back, no time of a timer that was decided comes again.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

from joex.core.events import DatabaseTrouble, Emit, Repeated
from joex.core.periodic import decide
from joex.errors import JoexError
from joex.store import periodic
from joex.store.database import borrowed

if TYPE_CHECKING:
    import asyncpg

_BATCH = 200
_LONGEST_SLEEP = 60.0
_JITTER = 0.02  # seconds: of many that wake at one moment, most find that it is done
_BUSY_RETRY_IN = 0.1
_TROUBLE_RETRY_IN = 1.0


class Repeater:
    """The service that makes the jobs of periodic tasks.

    Args:
        pool: where connections come from.
        worker: the name under which it decides, for people.
        emit: where events go.
        system: Joex's own tasks too: an operator leaves them alone, so that they don't start executors.
    """

    def __init__(self, pool: asyncpg.Pool[Any], worker: str, emit: Emit, *, system: bool = True) -> None:
        self._pool = pool
        self._worker = worker
        self._emit = emit
        self._system = system
        self._ring = asyncio.Event()

    def wake(self) -> None:
        """A periodic task may have changed."""
        self._ring.set()

    async def run(self) -> None:
        """Make jobs, until cancelled."""
        while True:
            self._ring.clear()
            try:
                sleep = await self._round()
            except (JoexError, OSError) as error:
                sleep = _TROUBLE_RETRY_IN
                self._emit(DatabaseTrouble("repeater", str(error), sleep))
            await self._wait(sleep)

    async def _round(self) -> float:
        """Decide what is due now; returns for how long to sleep."""
        async with borrowed(self._pool) as connection:
            tasks = await periodic.due(connection, _BATCH, system=self._system)
            if not tasks:
                return _until(await periodic.next_in(connection, system=self._system))
            decided = [(task, decide(task.schedule, task.now)) for task in tasks]
            fired = await periodic.fire(connection, self._worker, decided)
        errors = {task.id: decision.error for task, decision in decided}
        for one in fired:
            if one.outcome not in ("set", "stale"):
                self._emit(Repeated(one.id, one.outcome, one.job, errors[one.id]))
        if all(one.outcome == "stale" for one in fired):
            return _BUSY_RETRY_IN  # somebody else is at work on these
        return _TROUBLE_RETRY_IN if all(one.outcome in ("stale", "trouble") for one in fired) else 0.0

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._ring.wait()
        except TimeoutError:
            pass


def _until(seconds: float | None) -> float:
    """How long to sleep until the next task is due."""
    if seconds is None:
        return _LONGEST_SLEEP
    if seconds <= 0:
        return _BUSY_RETRY_IN  # it is due, and somebody has locked it
    return min(seconds, _LONGEST_SLEEP) + random.random() * _JITTER  # noqa: S311 - there is no secret in it

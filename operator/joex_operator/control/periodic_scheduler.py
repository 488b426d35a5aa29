"""The jobs of periodic tasks that are due, made by the operator: also where no executor runs that would make them."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from joex.core.events import DatabaseTrouble, Event, Repeated
from joex.periodic_scheduler import PeriodicScheduler
from joex_operator.metrics import Metrics

if TYPE_CHECKING:
    import asyncpg

_log = logging.getLogger("joex.operator")

_BEGIN_AGAIN_IN = 1.0
_BAD = ("refused", "trouble")


class SchedulerService:
    """Makes the jobs of one database, until it is closed. Executors and other operators may do the same meanwhile.

    Args:
        pool: connections to the database.
        database: its name, for people.
        worker: who this operator is.
        poll: seconds after which it looks though nothing was heard: a pooler may keep notifications back.
        metrics: what is counted.
    """

    def __init__(self, pool: asyncpg.Pool[Any], database: str, *, worker: str, poll: float, metrics: Metrics) -> None:
        self._database = database
        self._metrics = metrics
        self._told = ""
        self._scheduler = PeriodicScheduler(pool, worker, self._emit, poll_every=poll)
        self._running = asyncio.create_task(self._run())

    def wake(self) -> None:
        """A periodic task may have changed."""
        self._scheduler.wake()

    async def close(self) -> None:
        """Make no more."""
        self._running.cancel()
        with suppress(asyncio.CancelledError):
            await self._running

    async def _run(self) -> None:
        while True:
            try:
                await self._scheduler.run()
            except Exception as error:  # noqa: BLE001 - whatever it is, pools are looked at all the same
                _log.error("periodic tasks in %s: a mistake of Joex's own", self._database, exc_info=error)
            await asyncio.sleep(_BEGIN_AGAIN_IN)

    def _emit(self, event: Event) -> None:
        match event:
            case Repeated(task_id, outcome, job, error):
                self._told = ""
                self._metrics.repeated(outcome)
                level = logging.WARNING if outcome in _BAD else logging.INFO
                more = "" if job is None and not error else f" ({job or error})"
                _log.log(level, "periodic task %r in %s was due: %s%s", task_id, self._database, outcome, more)
            case DatabaseTrouble(_, error, _) if error != self._told:
                self._told = error
                _log.warning("periodic tasks in %s: %s", self._database, error)

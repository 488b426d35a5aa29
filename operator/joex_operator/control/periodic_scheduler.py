"""The operator's scheduler of periodic tasks: it submits their jobs even while no executor runs."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from joex.core.events import Event, Repeated
from joex.periodic_scheduler import PeriodicScheduler
from joex_operator.control.trouble_lines import trouble_lines
from joex_operator.metrics import OperatorMetrics

if TYPE_CHECKING:
    import asyncpg

_log = logging.getLogger("joex.operator")

_START_OVER_IN = 1.0
_SHARE = 0.2
_BAD = ("refused", "trouble")


class SchedulerService:
    """Runs the scheduler of one database until it is stopped. Executors and other operators may run theirs beside it.

    Args:
        pool: connections to the database.
        database: the database's name, for the log.
        worker: the name of this operator.
        poll: seconds between polls without a notification, because a pooler may drop notifications.
        metrics: counts the scheduler's decisions.
    """

    def __init__(
        self, pool: asyncpg.Pool[Any], database: str, *, worker: str, poll: float, metrics: OperatorMetrics
    ) -> None:
        self._database = database
        self._metrics = metrics
        self._log_trouble = trouble_lines(f"periodic tasks in {database}")
        self._scheduler = PeriodicScheduler(pool, worker, self._emit, poll_every=poll, share=_SHARE)
        self._running = asyncio.create_task(self._run())

    def wake(self) -> None:
        """Compute again what is due: a periodic task may have changed."""
        self._scheduler.wake()

    def stop(self) -> asyncio.Task[None]:
        """Stop the scheduler; returns the task that ends then."""
        self._running.cancel()
        return self._running

    async def _run(self) -> None:
        while True:
            try:
                await self._scheduler.run()
            except Exception as error:  # noqa: BLE001 - no error here stops the reconcilers
                _log.error("periodic tasks in %s: a bug in Joex", self._database, exc_info=error)
            await asyncio.sleep(_START_OVER_IN)

    def _emit(self, event: Event) -> None:
        match event:
            case Repeated(task_id, queue, group, outcome, job, error):
                self._metrics.own.repeated(outcome)
                level = logging.WARNING if outcome in _BAD else logging.INFO
                more = "" if job is None and not error else f" ({job or error})"
                said = "periodic task %r (queue %r, group %r) in %s was due: %s%s"
                _log.log(level, said, task_id, queue, group, self._database, outcome, more)
            case _:
                self._log_trouble(event)

"""An executor inside the test's own process, for tests of what tasks and users see.

Its tasks are closures of the test, so that they and the test can wait for each other.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from joex import App
from joex.config import Settings
from joex.core.events import Emit, Registered, RunEnded
from joex.observe.log_lines import fan_out
from joex.runtime.executor import Executor
from tests.support.waiting import EventLog

_numbers = itertools.count(1)

LONG = timedelta(hours=1)
"""A lease so long that no heartbeat matters while a test runs."""


class Inside:
    """An executor at work, and its events."""

    def __init__(self, executor: Executor, log: EventLog, work: asyncio.Task[None]) -> None:
        self.executor = executor
        self.log = log
        self.work = work
        """`Executor.run`."""

    async def ended(self, job_id: object, *, after: int = 0) -> RunEnded:
        """Wait until the end of a run of this job is written."""
        return await self.log.wait_for(RunEnded, lambda event: event.job.id == job_id, after=after)


@asynccontextmanager
async def executor_inside(
    app: App,
    url: str,
    *,
    log: EventLog | None = None,
    emits: Sequence[Emit] = (),
    registered: bool = True,
    process_server: Sequence[str] | None = None,
    **settings: Any,
) -> AsyncIterator[Inside]:
    """Run an executor for the duration of a block, and drain it at the end. An error of the executor ends the block.

    ``emits``: receive its events, before the log.
    """
    log = EventLog() if log is None else log
    given = {"app_id": f"inside-{next(_numbers)}", "http_address": "", "pool_size": 4, "retry_delay": 0, **settings}
    emit = fan_out(*emits, log)
    executor = Executor(app, Settings(**given), url, emit=emit, process_server=process_server)
    async with asyncio.TaskGroup() as group:
        work = group.create_task(executor.run())
        if registered:
            await log.wait_for(Registered)
        try:
            yield Inside(executor, log, work)
        finally:
            executor.stop()

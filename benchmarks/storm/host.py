"""A process with several executors: ``python -m benchmarks.storm.host NAME COUNT SLOTS``, JOEX_DATABASE_URL.

Each has its own app-id, registration, lease, thread and connections, as in a process of its own; only the watchdog is
missing. An executor that has drained, or could not start, starts again under its app-id, as an orchestrator would do
it; the error of the latter is a line of the output. At SIGTERM all drain, and the process exits.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import joex
from joex.config import Settings
from joex.errors import JoexError
from joex.event_loop import new_event_loop
from joex.runtime.executor import Executor

LEASE = 15.0
"""Seconds: two and a half times the default, because all executors share the cores of the server."""

_RESTART_AFTER = 1.0

app = joex.App()


@app.task("storm.work")
async def work(ctx: joex.Context, seconds: float) -> None:
    """Hold a slot; then leave a trace, in the transaction that ends the job."""
    await asyncio.sleep(seconds)
    async with ctx.transaction() as connection:
        await connection.execute("INSERT INTO effect (job_id, grp) VALUES ($1, $2)", ctx.job_id, ctx.group)


class _Host:
    def __init__(self, url: str, slots: int) -> None:
        self._url = url
        self._slots = slots
        self._living: dict[str, Executor] = {}
        self._is_stopping = False

    def stop(self) -> None:
        """Let all executors drain."""
        self._is_stopping = True
        for one in self._living.values():
            one.drain()

    async def keep(self, app_id: str) -> None:
        """Run an executor, and its successors."""
        while not self._is_stopping:
            settings = Settings(app_id=app_id, pool_size=self._slots, http_address="", lease=LEASE, retry_delay="1s")
            self._living[app_id] = Executor(app, settings, self._url)
            try:
                await self._living[app_id].run()
            except JoexError as error:
                print(error, flush=True)
                await asyncio.sleep(_RESTART_AFTER)


async def _run(name: str, count: int, slots: int) -> None:
    host = _Host(os.environ["JOEX_DATABASE_URL"], slots)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, host.stop)
    async with asyncio.TaskGroup() as group:
        for number in range(count):
            group.create_task(host.keep(f"{name}-{number}"))


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_run(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))

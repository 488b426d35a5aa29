"""The tasks of the race, as Joex runs them."""

from __future__ import annotations

import joex
from benchmarks.peers.drivers.protocol import Tasks

app = joex.App()
_tasks = Tasks()


@app.task("noop")
async def noop(ctx: joex.Context) -> None:
    """Do nothing."""
    await _tasks.noop()


@app.task("stamp")
async def stamp(ctx: joex.Context, sent: float) -> None:
    """Print how late the job starts."""
    await _tasks.stamp(sent)


@app.task("sleep")
async def sleep(ctx: joex.Context, group: str, ms: float, sent: float) -> None:
    """Hold a slot."""
    await _tasks.sleep(group, ms, sent)

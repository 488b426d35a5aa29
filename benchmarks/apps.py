"""The tasks that the benchmarks run."""

from __future__ import annotations

import asyncio

import joex

app = joex.App()


@app.task("bench.noop")
async def noop(ctx: joex.Context) -> None:
    """Do nothing, so that only the cost of the queue is left."""


@app.task("bench.sleep")
async def sleep(ctx: joex.Context, seconds: float) -> None:
    """Hold a slot."""
    await asyncio.sleep(seconds)

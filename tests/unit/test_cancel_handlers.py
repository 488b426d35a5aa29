"""The handlers of tasks for cancelled runs."""

import asyncio
from datetime import timedelta
from uuid import UUID

import joex
from joex.core.job import TakenJob
from joex.runtime.calling import Caller
from joex.runtime.run import Defaults, Run

JOB = TakenJob(UUID(int=1), UUID(int=2), 1, "default", "a", "t", "{}", "low", "", "", 0, 0, None, 0.0)

app = joex.App()
interrupted: list[bool] = []


@app.task("t", timeout=0.01)
async def task(ctx: joex.Context) -> None: ...


@task.on_cancel
async def clean_up(ctx: joex.Context) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        interrupted.append(True)


class Lines:
    """Collects the lines of a job's log."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def log(self, job: TakenJob, level: str, message: str) -> None:  # noqa: ARG002 - as the protocol has them
        self.lines.append(message)

    def progress(self, job: TakenJob, percent: int, message: str | None) -> None: ...


async def test_a_handler_that_takes_longer_than_the_timeout_of_its_task_is_interrupted():
    reports, run = Lines(), Run(JOB)
    run.args = {}
    await Caller(1, Defaults(0, timedelta(), None), reports, None, 1000).call_cancel_handler(run, task)
    assert interrupted
    [line] = reports.lines
    assert line.startswith("its on_cancel handler failed: ")
    assert line.rstrip().endswith("timed out after 0.01 s")

"""A runner of four slots, without a database."""

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import joex
from joex.core.events import RunStarted
from joex.core.job import TakenJob
from joex.runtime.finisher import End
from joex.runtime.run import Defaults
from joex.runtime.runner import Runner


def taken(*, suspect: bool, losses: int, args: str | None, group: str = "default") -> TakenJob:
    return TakenJob(uuid4(), uuid4(), 1, "default", group, "t", args, "low", "", "", 0, 0, None, 0.0, suspect, losses)


class Slots:
    """A runner with its reports. A test decides when ends are written."""

    def __init__(self, app: joex.App) -> None:
        self.said: list[tuple[str, UUID]] = []
        self.marking: Any = lambda: True  # the answer of the database to a mark
        self.room = asyncio.Event()
        nothing: Any = None
        self.runner = Runner(
            app,
            4,
            Defaults(0, timedelta(), None),
            finisher=self,
            reports=self,
            connections=lambda _: nothing,
            fetch=self._fetch,
            mark_start=self._mark_start,
            largest_result=1000,
            is_trusted=lambda: True,
            on_room=self.room.set,
            on_overrun=nothing,
            emit=lambda event: self._say("begins", event.job) if isinstance(event, RunStarted) else None,
        )

    def start(self, *, suspect: bool, losses: int | None = None, args: str | None = "{}", **more: Any) -> TakenJob:
        job = taken(suspect=suspect, losses=2 * suspect if losses is None else losses, args=args, **more)
        self.runner.start(job)
        return job

    def of(self, job: TakenJob) -> list[str]:
        return [what for what, job_id in self.said if job_id == job.id]

    async def settled(self) -> None:
        """Run the loop until all tasks wait (none waits for anything outside of the loop)."""
        for _ in range(20):
            await asyncio.sleep(0)

    def log(self, job: TakenJob, level: str, message: str) -> None: ...

    def progress(self, job: TakenJob, percent: int, message: str | None) -> None: ...

    def started(self, job: TakenJob, at: float) -> None: ...

    def ended(self, end: End) -> None:
        self._say(end.state, end.job)

    def forget(self, job: TakenJob) -> None:
        self._say("forgotten", job)

    def _say(self, what: str, job: TakenJob) -> None:
        self.said.append((what, job.id))

    async def _fetch(self, job: TakenJob) -> str:
        self._say("fetched", job)
        return "{}"

    async def _mark_start(self, job: TakenJob) -> bool:
        self._say("marked", job)
        return bool(self.marking())

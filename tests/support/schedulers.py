"""Processes that only submit the jobs of periodic tasks."""

import asyncio
import multiprocessing
import os
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Self

from joex.periodic_scheduler import PeriodicScheduler
from joex.store import periodic
from joex.store.database import connect, create_pool
from tests.support.parent import die_with_parent
from tests.support.waiting import PATIENCE

RECORD = """
    CREATE TABLE decisions
        (id text, fire timestamptz, outcome text, job uuid, next timestamptz, at timestamptz, worker text);
    CREATE FUNCTION record() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO public.decisions VALUES (NEW.id, NEW.last_run, NEW.last_outcome,
            CASE NEW.last_outcome WHEN 'submitted' THEN NEW.last_job END, NEW.nextrun, NEW.marked, NEW.worker);
        RETURN NULL;
    END $$;
    CREATE TRIGGER record AFTER UPDATE OF marked ON joex_private.periodic_task
        FOR EACH ROW WHEN (OLD.nextrun > '-infinity') EXECUTE FUNCTION record();
"""
"""Keeps each decision about a time of a periodic task, as it was made: `fire`, and `next`, the one to come."""

# Tests start dozens of them: they fork from a process that has only imported this module.
_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload([__name__])


class RepeaterProcesses:
    """Starts schedulers, and kills the remaining ones at its end."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.alive: list[BaseProcess] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self.alive:
            self.kill(0)

    def start(self) -> None:
        """Start one; it connects by itself."""
        process = _forks.Process(target=_repeat, args=(self._url,))
        process.start()
        self.alive.append(process)

    def kill(self, number: int) -> None:
        """Kill one (SIGKILL)."""
        process = self.alive.pop(number)
        process.kill()
        process.join(PATIENCE)


def _repeat(url: str) -> None:
    die_with_parent()  # the server of forks, which ends with the tests
    asyncio.run(repeat(url))


async def repeat(url: str) -> None:
    """Submit jobs until killed, and listen for changes as executors do."""
    pool = await create_pool(url, most=2, name="joex scheduler", for_services=True)
    scheduler = PeriodicScheduler(pool, f"process {os.getpid()}", lambda _event: None)
    listener = await connect(url, name="joex scheduler listens")
    await listener.add_listener(periodic.CHANNEL, lambda *_: scheduler.wake())
    scheduler.wake()
    await scheduler.run()

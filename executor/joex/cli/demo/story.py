"""What happens in the demo, in its order."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from datetime import timedelta

from joex.cli.demo.crew import SLOTS, Crew
from joex.cli.demo.database import own_place
from joex.cli.demo.ledger import Ledger, Snapshot
from joex.cli.demo.orders import ACME, EACH, GLOBEX, INITECH, LIBRARY, Orders, make_orders
from joex.cli.demo.stage import Stage, counted
from joex.cli.demo.summary import Kill, Summary, summarise
from joex.client import Client
from joex.errors import JoexError

_EXECUTORS = ("demo-1", "demo-2")
_LOOK_EVERY = 0.25
_PATIENCE = 300.0
"""Seconds for everything; a machine that needs longer has other troubles."""


async def play(server_url: str, files: int | None, stage: Stage) -> Summary:
    """Play the demo on a database of its own, and sum it up. Nothing of it is left behind, however it ends."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGHUP):  # as Ctrl-C: the blocks below are left in order
        loop.add_signal_handler(number, signal.raise_signal, signal.SIGINT)
    async with own_place(server_url) as (url, folder), Client(url) as client, client.acquire() as connection:
        orders = make_orders(folder / "uploads", files)
        with Crew(url, folder) as crew:
            return await Story(orders, crew, Ledger(client, connection), stage).play()


class Story:
    """One run of the demo."""

    def __init__(self, orders: Orders, crew: Crew, ledger: Ledger, stage: Stage) -> None:
        self._orders = orders
        self._crew = crew
        self._ledger = ledger
        self._stage = stage
        self._uploads = dict(orders.uploads)
        self._told: set[str] = set()
        self._all_jobs = len(orders.library) + len(orders.others)

    async def play(self) -> Summary:
        """Play it, from the start of the executors to the last result."""
        try:
            async with asyncio.timeout(_PATIENCE):
                kill = await self._play()
        except TimeoutError:
            ended, all_jobs = (await self._ledger.look()).ended, self._all_jobs
            raise JoexError(f"demo: after {_PATIENCE:.0f} s, {ended} of {all_jobs} jobs are in a final state") from None
        return summarise(self._ledger.submitted, await self._ledger.records(), await self._ledger.executors(), kill)

    async def _play(self) -> Kill | None:
        await self._start_executors()
        await self._submit()
        await self._until(lambda now: now.ended * 2 >= self._all_jobs)
        kill = await self._kill_one()
        if kill is not None:
            await self._replace(kill)
        await self._until(lambda now: now.ended == self._all_jobs)
        return kill

    async def _start_executors(self) -> None:
        for app_id in _EXECUTORS:
            self._crew.start(app_id)
        self._stage.tell(f"starting the executors {' and '.join(_EXECUTORS)}, with {SLOTS} slots each")
        while len(await self._ledger.executors()) < len(_EXECUTORS):
            self._crew.check()
            await asyncio.sleep(_LOOK_EVERY)

    async def _submit(self) -> None:
        """The library first; the others when it is well under way."""
        library = len(self._orders.library)
        await self._ledger.submit(self._orders.library)
        self._stage.tell(f"{LIBRARY} hands in {library} files of Python's standard library at once, to parse and count")
        await self._until(lambda now: now.ended * 20 >= library)
        await self._ledger.submit(self._orders.others)
        self._stage.tell(f"{ACME}, {GLOBEX} and {INITECH} hand in {EACH} files each, behind what {LIBRARY} has waiting")

    async def _kill_one(self) -> Kill | None:
        """Kill an executor in the midst of its jobs. None: there was nothing left to run."""
        victim = _EXECUTORS[-1]
        while (await self._look()).ended < self._all_jobs:
            # It is halted first, so that it certainly has jobs when the kill hits it.
            self._crew.pause(victim)
            await asyncio.sleep(_LOOK_EVERY)
            held = await self._ledger.held_by(victim)
            if held:
                self._crew.kill(victim)
                return await self._killed(victim, len(held))
            self._crew.resume(victim)
            await asyncio.sleep(_LOOK_EVERY)
        return None

    async def _killed(self, app_id: str, jobs: int) -> Kill:
        executor = next(e for e in await self._ledger.executors() if e.app_id == app_id)
        self._ledger.killed = executor.id
        now = executor.heartbeat_at + timedelta(seconds=executor.silent_seconds)
        self._stage.tell(
            f"half is done: kill -9 {executor.pid}, which is {app_id}, while it runs {counted(jobs, 'job')}; "
            f"{_EXECUTORS[0]} goes on alone"
        )
        return Kill(executor, now, jobs)

    async def _replace(self, kill: Kill) -> None:
        """Wait until the other executor has found out by itself, then start a new one under the same app-id."""
        app_id = kill.executor.app_id
        await self._until(lambda now: _is_gone(now, kill))
        seconds = (await self._ledger.end_of(kill.executor) - kill.at).total_seconds()
        self._stage.tell(
            f"{seconds:.1f} s after the kill {_EXECUTORS[0]} found the lease of {app_id} run out, "
            "and put its jobs back in line"
        )
        if (await self._look()).ended < self._all_jobs:
            self._stage.tell(f"a new {app_id} is started, process {self._crew.start(app_id)}")

    async def _until(self, condition: Callable[[Snapshot], bool]) -> None:
        now = await self._look()
        while not condition(now):
            await asyncio.sleep(_LOOK_EVERY)
            now = await self._look()

    async def _look(self) -> Snapshot:
        """Look how things stand, show it, and do what is due."""
        self._crew.check()
        now = await self._ledger.look()
        self._stage.show(now)
        self._mend(now)
        self._tell_ended(now)
        return now

    def _mend(self, now: Snapshot) -> None:
        """Let the rest of the uploads arrive whose jobs have failed because of it."""
        stuck = [job for job in now.stuck if job.subject in self._uploads]
        for job in stuck:
            self._uploads.pop(job.subject).complete()
        if stuck:
            names = ", ".join(job.subject for job in stuck)
            self._stage.tell(
                f"{stuck[0].group}'s {names} had arrived by half, so stuck; the rest comes now, a retry soon"
            )

    def _tell_ended(self, now: Snapshot) -> None:
        to_go = now.tenant(LIBRARY).submitted - now.tenant(LIBRARY).ended
        for tenant in now.tenants:
            if tenant.name != LIBRARY and tenant.ended == tenant.submitted > 0 and tenant.name not in self._told:
                self._told.add(tenant.name)
                failed = f" ({tenant.failed} failed for good)" if tenant.failed else ""
                self._stage.tell(f"all {tenant.ended} of {tenant.name} have ended{failed}; {LIBRARY} has {to_go} to go")


def _is_gone(now: Snapshot, kill: Kill) -> bool:
    return all(executor.id != kill.executor.id or executor.left_at is not None for executor in now.executors)

"""The events of the demo, in their order."""

from __future__ import annotations

import asyncio
import signal
import textwrap
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

from examples.demo.console import console_of
from examples.demo.database import own_place
from examples.demo.ledger import Ledger, Snapshot
from examples.demo.orders import ACME, EACH, GLOBEX, INITECH, LIBRARY, Orders, make_orders
from examples.demo.pool import FILE, POOL, Event, Up, send, slot
from examples.demo.stage import Stage, counted
from examples.demo.summary import Kill, Summary, summarise
from joex.client.client import Client
from joex.errors import JoexError
from joex.store.executors import Executor

_LOOK_EVERY = 0.25
_PATIENCE = 300.0
"""Seconds for the whole demo; a machine that needs longer has other trouble."""
_WORTH_TELLING = ("Added", "Draining", "Removed")


async def play(server_url: str, files: int | None, stage: Stage, *, keep: bool) -> Summary:
    """Play the demo on a database of its own, and sum it up. It cleans up after itself, however it ends.

    ``keep``: go on afterwards with the same jobs again and again, until Ctrl-C.
    """
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGHUP):  # as Ctrl-C does, so that the blocks below clean up
        loop.add_signal_handler(number, signal.raise_signal, signal.SIGINT)
    async with own_place(server_url) as (url, folder), Client(url) as client, client.using() as connection:
        orders = make_orders(folder / "uploads", files)
        async with (
            console_of(client) as address,
            Up(url, folder, lambda event: _relay(event, stage)) as up,
        ):
            stage.tell(f"watch it in the console: {address}")
            story = Story(orders, up, Ledger(client, connection), stage)
            summary = await story.play()
            if keep:
                stage.tell(f"the console stays on {address}, and the tenants submit again, until Ctrl-C")
                with suppress(asyncio.CancelledError):
                    await story.go_on()
            return summary


class Story:
    """One run of the demo."""

    def __init__(self, orders: Orders, up: Up, ledger: Ledger, stage: Stage) -> None:
        self._orders = orders
        self._up = up
        self._ledger = ledger
        self._stage = stage
        self._uploads = dict(orders.uploads)
        self._told: set[str] = set()
        self._all_jobs = len(orders.library) + len(orders.others)

    async def play(self) -> Summary:
        """Play it, from an empty pool to an empty pool."""
        try:
            async with asyncio.timeout(_PATIENCE):
                kill = await self._play()
        except TimeoutError:
            ended, all_jobs = (await self._ledger.look()).ended, self._all_jobs
            raise JoexError(f"demo: after {_PATIENCE:.0f} s, {ended} of {all_jobs} jobs are in a final state") from None
        return summarise(self._ledger.submitted, await self._ledger.records(), await self._ledger.executors(), kill)

    async def go_on(self) -> None:
        """Submit the same jobs again whenever few are left, until this is cancelled."""
        while True:
            await self._submit()
            await self._until(lambda now: now.submitted - now.ended <= EACH)

    async def _play(self) -> Kill | None:
        await self._open_the_pool()
        await self._submit()
        await self._until(lambda now: now.ended * 2 >= self._all_jobs)
        kill = await self._kill_one()
        if kill is not None:
            await self._see_it_come_back(kill)
        await self._until(lambda now: now.ended == self._all_jobs)
        self._stage.tell("all jobs are done, so the pool shrinks")
        await self._until(lambda now: not now.living and not self._up.replicas)
        return kill

    async def _open_the_pool(self) -> None:
        self._stage.tell(f"joex up -f {FILE}, with this file:\n\n{textwrap.indent(POOL, ' ' * 9)}")
        await self._up.ready()

    async def _submit(self) -> None:
        """Submit the library's jobs first, and the others when a part of these has ended."""
        library = len(self._orders.library)
        before = (await self._ledger.look()).ended
        await self._ledger.submit(self._orders.library)
        self._stage.tell(f"{LIBRARY} submits {library} files of Python's standard library at once, to parse and count")
        await self._until(lambda now: (now.ended - before) * 20 >= library)
        await self._ledger.submit(self._orders.others)
        self._stage.tell(f"{ACME}, {GLOBEX} and {INITECH} submit {EACH} files each, behind those of {LIBRARY}")

    async def _kill_one(self) -> Kill | None:
        """Kill an executor while it runs jobs. None: no job was left to run."""
        while (now := await self._look()).ended < self._all_jobs:
            victim = max(
                (executor for executor in now.living if executor.held), key=lambda e: e.started_at, default=None
            )
            held = 0 if victim is None else await self._kill(victim)
            if victim is not None and held:
                return self._killed(await self._ledger.registration(victim.id), held)
            await asyncio.sleep(_LOOK_EVERY)
        return None

    async def _kill(self, victim: Executor) -> int:
        """Kill an executor, if it has jobs; returns how many it had."""
        # Stop it first, so that it certainly has jobs when the kill hits it.
        send(victim.pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(_LOOK_EVERY)
            held = await self._ledger.held_by(victim.app_id)
            if held:
                send(victim.pid, signal.SIGKILL)
            return len(held)
        finally:
            send(victim.pid, signal.SIGCONT)

    def _killed(self, executor: Executor, jobs: int) -> Kill:
        self._ledger.killed = executor.id
        now = executor.heartbeat_at + timedelta(seconds=executor.silent_seconds)
        self._stage.tell(
            f"half of the jobs are done: kill -9 {executor.pid}, which is {slot(executor.app_id)}, "
            f"while it runs {counted(jobs, 'job')}"
        )
        return Kill(executor, now, jobs)

    async def _see_it_come_back(self, kill: Kill) -> None:
        """Wait until the replica of the killed executor has a process again, which puts the lost jobs back."""
        await self._until(lambda now: _is_gone(now, kill))
        seconds = ((await self._ledger.registration(kill.executor.id)).left_at or kill.at) - kill.at
        self._stage.tell(
            f"{seconds.total_seconds():.1f} s after the kill {slot(kill.executor.app_id)} is back as a new process, "
            "and its jobs are in line again"
        )

    async def _until(self, condition: Callable[[Snapshot], bool]) -> None:
        now = await self._look()
        while not condition(now):
            await asyncio.sleep(_LOOK_EVERY)
            now = await self._look()

    async def _look(self) -> Snapshot:
        """Take a snapshot, show it, and act on it."""
        self._up.check()
        now = await self._ledger.look()
        self._stage.show(now)
        self._mend(now)
        self._tell_ended(now)
        return now

    def _mend(self, now: Snapshot) -> None:
        """Complete the uploads whose jobs have failed because they were incomplete."""
        stuck = [job for job in now.stuck if job.subject in self._uploads]
        for job in stuck:
            self._uploads.pop(job.subject).complete()
        if stuck:
            names = ", ".join(job.subject for job in stuck)
            self._stage.tell(
                f"{stuck[0].group}'s {names} had arrived only in part, so stuck; the rest arrives now, a retry soon"
            )

    def _tell_ended(self, now: Snapshot) -> None:
        to_go = now.tenant(LIBRARY).submitted - now.tenant(LIBRARY).ended
        for tenant in now.tenants:
            if tenant.name != LIBRARY and tenant.ended == tenant.submitted > 0 and tenant.name not in self._told:
                self._told.add(tenant.name)
                failed = f" ({tenant.failed} failed for good)" if tenant.failed else ""
                self._stage.tell(f"all {tenant.ended} of {tenant.name} have ended{failed}; {LIBRARY} has {to_go} to go")


def _relay(event: Event, stage: Stage) -> None:
    """Show an event of ``joex up``, if it belongs to the story."""
    if event["type"] == "Warning" or event["reason"] in _WORTH_TELLING:
        stage.tell(f"  joex up: {event['reason']} {event['message']}")


def _is_gone(now: Snapshot, kill: Kill) -> bool:
    return all(executor.id != kill.executor.id or executor.left_at is not None for executor in now.executors)

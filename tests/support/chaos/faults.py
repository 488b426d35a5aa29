"""Does the faults of a schedule to the world."""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from functools import partial

import asyncpg
import psutil

from tests.support import clock
from tests.support.apps import TROUBLE
from tests.support.chaos.schedule import Fault
from tests.support.chaos.world import Link, Member, World
from tests.support.waiting import eventually

_SLOWEST = 0.4
_FURTHEST = 10.0
_PAGE = 8192
# Takes what room is left in the table, and makes it larger than a segment of the WAL, which goes on.
_BALLAST = """
    WITH ballast AS (
        INSERT INTO joex_private.job (queue, task, lane, args)
        SELECT 'ballast', 'ballast', 2, jsonb_build_object('text', repeat('x', 200)) FROM generate_series(1, 5000)
        RETURNING 1
    ) SELECT max(pg_relation_size('joex_private.job')) FROM (SELECT count(*) FROM ballast) full_now
"""


class Faults:
    """Breaks the world, and mends it again."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._locks = {link: asyncio.Lock() for link in world.links}
        self._kinds: dict[str, Callable[[Fault], Awaitable[None]]] = {
            "restart": self._restart,
            "crash": self._restart,
            "kill the server": self._restart,
            "replication": self._cut_replication,
            "promotion": self._promote,
            "disk": self._fill_disk,
            "clock": self._step_clock,
            "connections": self._fill_connections,
        }

    async def do(self, fault: Fault) -> None:
        """Break something, and mend it when its time is over."""
        self._world.history.note("fault", kind=fault.kind)
        if fault.kind in self._kinds:
            await self._kinds[fault.kind](fault)
            await self._world.mended()
            return
        targets = [*self._world.members, None]
        member = targets[fault.target % len(targets)]
        link = self._world.clients if member is None else member.link
        if fault.kind in ("cut", "refuse", "freeze", "slow") or member is None:
            await self._break_link(fault, link, member)
        elif pids := member.pids:
            await self._signal(fault, pids[int(fault.amount * len(pids))])

    async def _signal(self, fault: Fault, pid: int) -> None:
        with suppress(ProcessLookupError):
            if fault.kind != "pause":
                self._disturb(*([pid] if fault.kind == "kill" else []))
                os.kill(pid, signal.SIGKILL if fault.kind == "kill" else signal.SIGTERM)
                return
            self._disturb(pid)
            since = time.monotonic()
            os.kill(pid, signal.SIGSTOP)
            try:
                await asyncio.sleep(fault.seconds)
            finally:
                self._disturb(pid)
                self._world.history.note("stop", pid=pid, since=since)
                os.kill(pid, signal.SIGCONT)

    async def _break_link(self, fault: Fault, link: Link, member: Member | None) -> None:
        async with self._locks[link]:  # mended before it is broken again
            await self._break_free_link(fault, link, member)

    async def _break_free_link(self, fault: Fault, link: Link, member: Member | None) -> None:
        self._disturb(*(member.pids if member else []))
        since = time.monotonic()
        try:
            match fault.kind:
                case "refuse":
                    await link.refuse()
                case "freeze":
                    link.freeze()
                case "slow":
                    link.slow(_SLOWEST * fault.amount)
                case _:
                    await link.cut()
            await asyncio.sleep(fault.seconds)
        finally:
            # Those that were started meanwhile too; they may have been declared dead already.
            self._disturb(*(member.pids if member else []), since=since)
            match fault.kind:
                case "refuse":
                    await link.accept()
                case "freeze":
                    link.thaw()
                case "slow":
                    link.slow(0)

    async def _restart(self, fault: Fault) -> None:
        primary = self._world.primary
        match fault.kind:
            case "restart":
                await asyncio.to_thread(primary.stop, "fast")
            case "crash":
                await asyncio.to_thread(primary.stop, "immediate")
            case _:
                await asyncio.to_thread(primary.kill)
        await asyncio.sleep(fault.seconds)
        await asyncio.to_thread(primary.start)

    async def _cut_replication(self, fault: Fault) -> None:
        await self._world.replication.refuse()
        await asyncio.sleep(fault.seconds)
        await self._world.replication.accept()

    async def _promote(self, fault: Fault) -> None:
        """Lose the primary, promote its standby, and make a new one."""
        world = self._world
        assert world.standby is not None
        await world.standby.has_all()
        since = time.monotonic()
        if not world.is_synchronous:
            await world.replication.refuse()
            await asyncio.sleep(fault.amount * fault.seconds)
        await asyncio.to_thread(world.primary.kill)
        await asyncio.sleep(fault.seconds)
        await world.promote()
        if not world.is_synchronous:
            world.history.note("lossy", since=since)
            await world.replication.accept()
        await world.make_standby()

    async def _fill_disk(self, fault: Fault) -> None:
        """The table of jobs has no room and can't grow: the kernel refuses to write beyond a size of files."""
        async with self._world.administrator() as administrator:
            transaction = administrator.transaction()
            await transaction.start()
            size = await administrator.fetchval(_BALLAST)
            await asyncio.to_thread(self._limit_files, str(size + _PAGE // 2))
            await asyncio.sleep(fault.seconds)
            await asyncio.to_thread(self._limit_files, "unlimited")
            await transaction.rollback()

    def _limit_files(self, size: str) -> None:
        primary = self._world.primary
        with suppress(psutil.NoSuchProcess, OSError, ValueError, IndexError):  # it has ended
            server = psutil.Process(primary.pid)
            for process in [
                server,
                *server.children(recursive=True),
            ]:  # (later ones begin with the limit of the server)
                command = ["prlimit", f"--fsize={size}:", f"--pid={process.pid}"]
                subprocess.run(command, user=primary.user, check=False, stderr=subprocess.DEVNULL)

    async def _step_clock(self, fault: Fault) -> None:
        """Set the clock forward or back, and right again."""
        seconds = (2 * fault.amount - 1) * _FURTHEST
        for step in (seconds, -seconds):
            await eventually(partial(self._set_clock, step), why="the clock is set")
            await asyncio.sleep(fault.seconds)

    async def _set_clock(self, seconds: float) -> bool:
        with suppress(*TROUBLE):
            async with self._world.administrator() as administrator:
                await clock.step(administrator, seconds)
                return True
        return False

    async def _fill_connections(self, fault: Fault) -> None:
        since = time.monotonic()
        async with AsyncExitStack() as stack:
            with suppress(*TROUBLE):
                while True:
                    connection = await asyncpg.connect(self._world.primary.url())
                    stack.push_async_callback(_close, connection)
            # One has to connect again meanwhile.
            member = self._world.members[int(fault.amount * len(self._world.members))]
            await member.link.cut()
            await asyncio.sleep(fault.seconds)
            # So have those that were started meanwhile, or that an earlier fault has cut off.
            self._disturb(*(pid for one in self._world.members for pid in one.pids), since=since)

    def _disturb(self, *pids: int, since: float | None = None) -> None:
        self._world.history.note("disturbed", pids=pids, **({} if since is None else {"since": since}))


async def _close(connection: asyncpg.Connection) -> None:
    with suppress(*TROUBLE):
        await connection.close()

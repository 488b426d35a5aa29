"""The database is away for ten seconds: how soon new jobs run afterwards, and whether runs were disturbed.

All systems go through the same outage, each with its own database and worker. The workers reach the server by an
address that refuses connections during the outage, and leads to the promoted standby after it. A worker that exits is
started again a second later, as systemd and Kubernetes do.

Of four jobs that run when the outage begins, two end during it, and two after it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from benchmarks.peers.drive import Line, RaceError, Worker, ask, submit, worker
from benchmarks.peers.systems import System
from benchmarks.recovery.lines import DRIVER, begun, disturbed, through
from benchmarks.recovery.lost import SLOTS
from tests.support.postgres import Standby, TestServer
from tests.support.proxy import Proxy

_SECONDS = 10.0
_RESTART_AFTER = 1.0
_ANNOUNCED = 5.0  # seconds before the end: the client that submits the new job starts, and waits for the server
_GIVE_UP = 120.0
_SETTLE = 45.0  # seconds after the outage: all runs have ended, and jobs that were interrupted run again
_RUNNING = {"group 0": 0.5, "group 1": 0.6, "group 2": 1.8, "group 3": 2.0}
"""The lengths of the jobs that run, in lengths of the outage."""
RUNS = len(_RUNNING)
_NEW = "group 9"


@dataclass(frozen=True, slots=True)
class Passed:
    """How a system got through an outage.

    Attributes:
        seconds: from the server's return to the start of the first new job.
        disturbed: how many runs began again, did not end, or ended without a trace in the database.
        exits: how often the worker exited.
    """

    seconds: float
    disturbed: int
    exits: int


class _Outage:
    """An outage, for all systems at a time: the address that they use, and the way of a client that waits for the end.

    Attributes:
        address: of the server.
        waiting: leads to the server as well; during the outage, connections wait there.
        announced: when it is about to end.
        ready: how many systems are prepared.
    """

    def __init__(self, address: Proxy, waiting: Proxy) -> None:
        self.address = address
        self.waiting = waiting
        self.announced = asyncio.Event()
        self.ready = 0
        self._over: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    async def over(self) -> float:
        """When the server was back."""
        return await asyncio.shield(self._over)

    async def happen(self, lose: Callable[[], None], bring_back: Callable[[], Awaitable[TestServer]]) -> None:
        """Take the server away, and bring it, or its successor, back."""
        self.waiting.reaches.clear()
        await asyncio.to_thread(lose)
        await self.address.refuse()
        await asyncio.sleep(_SECONDS - _ANNOUNCED)
        self.announced.set()
        await asyncio.sleep(_ANNOUNCED)
        server = await bring_back()
        self._over.set_result(time.time())
        self.address.target = self.waiting.target = server.port
        self.waiting.reaches.set()
        await self.address.accept()


async def restart(server: TestServer, systems: Sequence[System]) -> dict[str, Passed | RaceError]:
    """Restart the server; returns how each system got through it, or why it can't be measured."""

    async def bring_back() -> TestServer:
        await asyncio.to_thread(server.start)
        return server

    async with _databases(server, systems) as urls:
        return await _all_through(server, urls, server.stop, bring_back)


async def promotion(server: TestServer, systems: Sequence[System]) -> dict[str, Passed | RaceError]:
    """Kill the server, and promote its standby, which has everything. In the end the server runs again."""
    standby: Standby | None = None

    async def prepare() -> None:
        nonlocal standby
        standby = await asyncio.to_thread(Standby, server)
        await standby.has_all()

    async def bring_back() -> TestServer:
        assert standby is not None
        await standby.promote()
        return standby

    async with _databases(server, systems) as urls:
        try:
            return await _all_through(server, urls, server.kill, bring_back, prepare)
        finally:
            if standby is not None:
                await standby.leave()


@asynccontextmanager
async def _databases(server: TestServer, systems: Sequence[System]) -> AsyncIterator[dict[System, str]]:
    """The URLs of new databases, by system. (No session stays open, which would not survive the outage.)"""
    names = {system: await server.create_database(migrated=False) for system in systems}
    try:
        yield {system: server.tcp_url(name) for system, name in names.items()}
    finally:
        for name in names.values():
            await server.drop_database(name)


async def _nothing() -> None:
    pass


async def _all_through(
    server: TestServer,
    urls: Mapping[System, str],
    lose: Callable[[], None],
    bring_back: Callable[[], Awaitable[TestServer]],
    prepare: Callable[[], Awaitable[None]] = _nothing,
) -> dict[str, Passed | RaceError]:
    async with Proxy(server.port) as address, Proxy(server.port) as waiting:
        outage = _Outage(address, waiting)
        tasks = [asyncio.create_task(_through(outage, system, url)) for system, url in urls.items()]
        try:
            while outage.ready + sum(task.done() for task in tasks) < len(tasks):  # noqa: ASYNC110 - several
                await asyncio.sleep(0.1)
            await prepare()
            await outage.happen(lose, bring_back)
            await asyncio.wait(tasks)
        finally:
            waiting.reaches.set()
            for task in tasks:
                task.cancel()
            found = await asyncio.gather(*tasks, return_exceptions=True)
    for one in found:
        if not isinstance(one, Passed | RaceError):
            raise one
    return {system.name: one for system, one in zip(urls, found, strict=True) if isinstance(one, Passed | RaceError)}


async def _through(outage: _Outage, system: System, url: str) -> Passed:
    await ask(system, url, "setup")
    direct, waiting = through(url, outage.address), through(url, outage.waiting)
    async with _kept(system, direct) as one:
        jobs = [(0.0, group, round(length * _SECONDS * 1000)) for group, length in _RUNNING.items()]
        await submit(system, direct, jobs, 1)
        await one.until(lambda: len(begun(one.lines)) == RUNS, "the start of its jobs")
        outage.ready += 1
        await outage.announced.wait()
        await submit(system, waiting, [(0.0, _NEW, 10)], 1)
        back = await outage.over()
        await one.until(lambda: _NEW in begun(one.lines), "the new job")
        left = await _left(system, waiting, one, back + _SETTLE)
        return Passed(begun(one.lines)[_NEW] - back, max(disturbed(one.lines, list(_RUNNING)), left), one.exits)


async def _left(system: System, url: str, one: _Kept, deadline: float) -> int:
    """The jobs that are unfinished in the database at the deadline; 0 if all have run, and have ended there, before."""
    while True:
        left = int((await ask(system, url, "pending"))["pending"])
        if time.time() > deadline or (left == 0 and disturbed(one.lines, list(_RUNNING)) == 0):
            return left
        await asyncio.sleep(0.5)


class _Kept:
    """A worker that is started again when it exits, and the lines of all its starts."""

    def __init__(self, system: System, url: str) -> None:
        self.exits = 0
        self._system = system
        self._url = url
        self._workers: list[Worker] = []

    @property
    def lines(self) -> list[Line]:
        return [line for one in self._workers for line in one.lines]

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GIVE_UP):
                while not condition():  # noqa: ASYNC110 - of several workers; the times are in the lines
                    await asyncio.sleep(0.05)
                return
        raise RaceError(f"{self._system.name}: {what} was not to be seen in {_GIVE_UP:.0f} s")

    async def keep(self) -> None:
        while True:
            with contextlib.suppress(RaceError):  # it ended before it was ready: the server is away
                async with worker(self._system, self._url, SLOTS, settings=DRIVER) as one:
                    self._workers.append(one)
                    await one.ended()
                    self.exits += 1
            await asyncio.sleep(_RESTART_AFTER)

    async def kill(self) -> None:
        for one in self._workers:
            await one.kill()


@asynccontextmanager
async def _kept(system: System, url: str) -> AsyncIterator[_Kept]:
    kept = _Kept(system, url)
    keeping = asyncio.create_task(kept.keep())
    try:
        yield kept
    finally:
        await kept.kill()  # (it would wait for its jobs)
        keeping.cancel()
        await asyncio.wait([keeping])

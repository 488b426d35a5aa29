"""A worker is lost with its jobs: how long until another worker runs the first of them again."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

from benchmarks.peers.drive import RaceError, Worker, stage, submit, worker
from benchmarks.peers.systems import System
from benchmarks.recovery.lines import DRIVER, begun, through
from joex.store.database import connect
from joex.store.pools import pod_gone
from tests.support.postgres import TestServer
from tests.support.proxy import Proxy

SLOTS = 20  # Joex's default
_JOBS = 2
_MS = 900_000
_SETTLE = (
    8.0,
    18.0,
)  # seconds: both workers have sent heartbeats for longer than a lease of Joex, and fall out of step
GIVE_UP = 150.0  # seconds


@dataclass(frozen=True, slots=True)
class Victim:
    """The worker that is lost, its link to the database, the database's URL, and the uid of its pod."""

    worker: Worker
    link: Proxy
    url: str
    pod_uid: str


async def _kill(victim: Victim) -> float:
    at = time.time()
    await victim.worker.kill()
    return at


async def _stop(victim: Victim) -> float:
    victim.worker.pause()
    return time.time()


async def _cut(victim: Victim) -> float:
    at = time.time()
    await victim.link.refuse()
    return at


async def _lose_host(victim: Victim) -> float:
    # Nothing tells the server that its client has gone, so the session stays.
    victim.link.freeze()
    return await _kill(victim)


async def _lose_pod(victim: Victim) -> float:
    await _lose_host(victim)
    connection = await connect(victim.url)
    at = time.time()
    await pod_gone(connection, victim.pod_uid)
    await connection.close()
    return at


@dataclass(frozen=True, slots=True)
class Fault:
    """A way to lose a worker; ``make`` returns when it happened. ``below``: the goal of Joex, in seconds."""

    what: str
    make: Callable[[Victim], Awaitable[float]]
    below: float


FAULTS = (
    Fault("worker killed (kill -9)", _kill, 10),
    Fault("its link cut", _cut, 10),
    Fault("worker stopped (SIGSTOP)", _stop, 40),
    Fault("its host gone", _lose_host, 40),
)
TOLD = Fault("its pod gone, as the operator says (pod_gone)", _lose_pod, 2)
"""Of Joex alone: the others have no operator."""


async def measure(server: TestServer, system: System, fault: Fault, rounds: int) -> list[float]:
    """Seconds from the fault to the next run (`GIVE_UP` at most), in so many rounds at a time, each with a database.

    Raises:
        RaceError: the system could not be measured.
    """
    barrier = asyncio.Barrier(rounds)  # no fault while the workers of other rounds start
    chance = random.Random(rounds)
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(_round(server, system, fault, barrier, chance.uniform(*_SETTLE)))
                for _ in range(rounds)
            ]
    except* RaceError as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


async def _round(server: TestServer, system: System, fault: Fault, barrier: asyncio.Barrier, settle: float) -> float:
    pod_uid = "pod of the victim"
    settings = {**DRIVER, "JOEX_POD_UID": pod_uid}
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(stage(server.tcp_url(), system))
        link = await stack.enter_async_context(Proxy(server.port))
        victim = await stack.enter_async_context(worker(system, through(url, link), SLOTS, settings=settings))
        stack.push_async_callback(victim.kill)  # (it would wait for its jobs)
        await submit(system, url, [(0.0, f"group {number}", _MS) for number in range(_JOBS)], 1)
        await victim.until(lambda: len(begun(victim.lines)) == _JOBS, "the start of its jobs")
        heir = await stack.enter_async_context(worker(system, url, SLOTS, settings=DRIVER))
        stack.push_async_callback(heir.kill)
        await barrier.wait()
        await asyncio.sleep(settle)
        at = await fault.make(Victim(victim, link, url, pod_uid))
        try:
            async with asyncio.timeout(GIVE_UP):
                await heir.until(lambda: bool(begun(heir.lines)), "the next run of a job")
        except TimeoutError:
            return GIVE_UP
    return min(begun(heir.lines).values()) - at

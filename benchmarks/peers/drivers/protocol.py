"""The common part of the drivers in Python: the commands, and the lines that they print.

    DRIVER version                           {"version": ..., "runtime": ...}
    DRIVER setup                             makes the schema; {"setup": true}
    DRIVER submit --jobs --batch --groups --connections
                                             submits no-op jobs; {"seconds": s}: once connected, to the last commit
    DRIVER work --slots [--fair]             {"ready": true}, then lines about the jobs, see `Tasks`; ends at SIGTERM
    DRIVER trickle --jobs --pause            submits one job each `pause` milliseconds; {"submitted": n}
    DRIVER plan FILE --parallel [--fair]     submits FILE, [[at, group, ms], ...]; {"submitted": n, "seconds": s}
    DRIVER pending                           {"pending": n}: jobs that are not finished

Times are Unix seconds. The database is in DATABASE_URL; all other output goes to stderr. If RECOVERY is set, the
task `sleep` also prints a line when it begins, and settings that only make a system fast are left at their defaults.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import uvloop

_REPORT_EVERY = 0.05
_RECOVERY = "RECOVERY" in os.environ


@dataclass(frozen=True, slots=True)
class Submission:
    """A job to submit."""

    task: str
    args: dict[str, Any] = field(default_factory=dict)
    group: str = "group 0"


class Producer(Protocol):
    """A connection that submits."""

    async def submit(self, jobs: Sequence[Submission]) -> None:
        """Submit these jobs in one transaction, in the system's fastest documented way for this number."""


class Driver(Protocol):
    """The part of a driver that differs between systems."""

    async def version(self) -> str:
        """The version of the system."""

    async def setup(self, url: str) -> None:
        """Make its schema in an empty database."""

    def producer(self, url: str, *, fair: bool) -> AbstractAsyncContextManager[Producer]:
        """A producer with one connection."""

    async def work(self, url: str, slots: int, *, fair: bool) -> None:
        """Print that it is ready, and run jobs until SIGTERM."""

    async def pending(self, url: str) -> int:
        """The jobs that are not finished."""


def tell(**line: Any) -> None:
    """Print a line of the answer."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


class Tasks:
    """The three tasks, and the lines about their runs."""

    def __init__(self) -> None:
        self._started = 0.0
        self._done = 0
        self._at = 0.0
        self._report: asyncio.TimerHandle | None = None

    async def noop(self) -> None:
        """Do nothing; print the first start, and now and then how many have returned."""
        self._at = time.time()
        self._started = self._started or self._at
        self._done += 1
        if self._report is None:
            self._report = asyncio.get_running_loop().call_later(_REPORT_EVERY, self._tell)

    def _tell(self) -> None:
        self._report = None
        tell(started=self._started, done=self._done, at=self._at)

    async def stamp(self, sent: float) -> None:
        """Print how long ago the job was submitted."""
        tell(late=time.time() - sent)

    async def sleep(self, group: str, ms: float, sent: float) -> None:
        """Hold a slot, and print when."""
        start = time.time()
        if _RECOVERY:
            tell(group=group, began=start)
        await asyncio.sleep(ms / 1000)
        tell(group=group, sent=sent, start=start, end=time.time())


def stop_signal() -> asyncio.Event:
    """Is set by SIGTERM and SIGINT."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


def main(driver: Driver) -> None:
    """Run a driver's command line."""
    given = _parser().parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(driver, given, os.environ.get("DATABASE_URL", "")))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="A driver of the race between job queues.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("version", "setup", "pending"):
        commands.add_parser(name)
    submit = commands.add_parser("submit")
    for flag in ("--jobs", "--batch", "--groups", "--connections"):
        submit.add_argument(flag, type=int, required=True)
    work = commands.add_parser("work")
    work.add_argument("--slots", type=int, required=True)
    trickle = commands.add_parser("trickle")
    trickle.add_argument("--jobs", type=int, required=True)
    trickle.add_argument("--pause", type=float, required=True, help="milliseconds")
    plan = commands.add_parser("plan")
    plan.add_argument("file", type=Path)
    plan.add_argument("--parallel", type=int, required=True)
    for command in (work, plan):
        command.add_argument("--fair", action="store_true")
    return parser


async def _run(driver: Driver, given: argparse.Namespace, url: str) -> None:
    match given.command:
        case "version":
            tell(version=await driver.version(), runtime=f"python {platform.python_version()}")
        case "setup":
            await driver.setup(url)
            tell(setup=True)
        case "submit":
            await _submit(driver, url, given)
        case "work":
            await driver.work(url, given.slots, fair=given.fair)
        case "trickle":
            await _trickle(driver, url, given.jobs, given.pause / 1000)
        case "plan":
            await _plan(driver, url, json.loads(given.file.read_text()), given.parallel, fair=given.fair)
        case "pending":
            tell(pending=await driver.pending(url))


async def _submit(driver: Driver, url: str, given: argparse.Namespace) -> None:
    jobs = [Submission("noop", {}, f"group {i % given.groups}") for i in range(given.jobs)]
    batches = [jobs[start : start + given.batch] for start in range(0, len(jobs), given.batch)]

    async def send(producer: Producer, number: int) -> None:
        for batch in batches[number :: given.connections]:
            await producer.submit(batch)

    async with AsyncExitStack() as stack:
        producers = [
            await stack.enter_async_context(driver.producer(url, fair=False)) for _ in range(given.connections)
        ]
        begin = time.perf_counter()
        await asyncio.gather(*(send(producer, number) for number, producer in enumerate(producers)))
        tell(seconds=time.perf_counter() - begin)


async def _trickle(driver: Driver, url: str, jobs: int, pause: float) -> None:
    async with driver.producer(url, fair=False) as producer:
        for _ in range(jobs):
            await producer.submit([Submission("stamp", {"sent": time.time()})])
            await asyncio.sleep(pause)
    tell(submitted=jobs)


async def _plan(driver: Driver, url: str, plan: list[tuple[float, str, float]], parallel: int, *, fair: bool) -> None:
    """Submit each job of the plan at its time, with any free submitter."""
    todo = iter(plan)

    async def send(producer: Producer) -> None:
        for at, group, ms in todo:
            if (ahead := begin + at - time.perf_counter()) > 0:
                await asyncio.sleep(ahead)
            args = {"group": group, "ms": ms, "sent": time.time()}
            await producer.submit([Submission("sleep", args, group)])

    async with AsyncExitStack() as stack:
        producers = [await stack.enter_async_context(driver.producer(url, fair=fair)) for _ in range(parallel)]
        begin = time.perf_counter()
        await asyncio.gather(*map(send, producers))
        tell(submitted=len(plan), seconds=time.perf_counter() - begin)

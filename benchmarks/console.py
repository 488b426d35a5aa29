"""The console on the database of a large system: what its viewers cost the server, and how long each page takes.

Nothing else uses the database meanwhile: what the server does, the console has asked for.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import psutil

from benchmarks.cpu import cpu_seconds, server_process, server_seconds
from benchmarks.production import POOL, QUEUES, fill
from benchmarks.report import Figure, quantile
from benchmarks.support import fresh_database, say
from joex.client.client import Client
from joex.store.database import connect

_MOST_CPU = 2.0  # percent of a core of the server, for all viewers
_LONGEST = 300.0  # ms of a page
_PAUSE = 0.05  # seconds between two calls of a page that is asked alone
_WARM_UP = 40.0  # seconds: after thirty the pages know how often they may ask
_EVERY = re.compile(r'data-every="([\d.]+)"')
_VIEWERS = {
    "Overview": 25, "Fairness": 25, "Group": 10, "Jobs": 15, "Job": 10, "Executors": 5, "Pools": 5, "Pool": 5,
}  # fmt: skip
"""How many of a hundred look at a page."""

Paths = Mapping[str, Sequence[str]]


async def measure(server_url: str, *, quick: bool) -> list[Figure]:
    """Each page asked alone; and the load of a hundred viewers, whose pages ask as they do in a browser."""
    jobs, calls, window = (100_000, 20, 60.0) if quick else (1_000_000, 50, 180.0)
    groups = jobs // 100
    async with fresh_database(server_url) as url, Client(url) as client:
        connection = await connect(url)
        await fill(client, connection, jobs, groups)
        paths = await _paths(connection, groups)
        async with _console(url) as (process, browser):
            first, _ = await _ask(browser, "/")
            figures = [Figure("console, Overview: the first call, which waits for the first reading", first, "ms")]
            backend = await server_process(connection)
            for name, of_page in paths.items():
                say(f"console: {name}")
                figures += await _alone(browser, backend, name, of_page, calls)
            figures += await _together(backend, process, browser, paths, window)
        await connection.close()
    return figures


async def _paths(connection: asyncpg.Connection[Any], groups: int) -> Paths:
    """The paths of each page; of those about a job or a group, many."""
    running = "SELECT id FROM joex_private.job WHERE state = 'running' AND executor_id IS NOT NULL LIMIT 50"
    waiting = "SELECT id FROM joex_private.job WHERE lane IS NOT NULL ORDER BY md5(id::text) LIMIT 50"
    ids = [str(row[0]) for sql in (running, waiting) for row in await connection.fetch(sql)]
    names = [f"tenant-{nr * groups // 50}" for nr in range(50)]
    queue, group = QUEUES[0], f"tenant-{groups // 2}"
    filters = {
        "state": "state=failed", "queue": f"queue={QUEUES[1]}", "group": f"group={group}",
        "queue and group": f"queue={queue}&group={group}", "task": f"task={QUEUES[2]}.task-4",
        "submitter": "submitter=user-7", "tracker": "tracker=order-33", "subject": "text=scan-4711",
        "none that matches": "task=none",
    }  # fmt: skip
    return {
        "Overview": ["/"],
        "Fairness": [f"/fairness?queue={queue}"],
        "Fairness by wait": [f"/fairness?queue={queue}&order=wait"],
        "Group": [f"/group?queue={queue}&group={name}" for name in names],
        "Group with a preview": [f"/group?queue={queue}&group={group}&weight=7"],
        "Jobs": ["/jobs"],
        **{f"Jobs by {name}": [f"/jobs?{query}"] for name, query in filters.items()},
        "Job": [f"/jobs/{job_id}" for job_id in ids],
        "Executors": ["/executors"],
        "Pools": ["/pools"],
        "Pool": [f"/pool?home={POOL[0]}&pool={POOL[1]}&hours=24"],
        "Periodic": ["/periodic"],
        "Simulate": ["/simulate"],
    }


@contextmanager
def _process(url: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A console process, and its URL."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = "{}:{}".format(*free.getsockname())
    process = subprocess.Popen(
        [sys.executable, "-m", "joex", "console", "--http-address", address, "--log-level", "warning"],
        env={**os.environ, "JOEX_DATABASE_URL": url},
        cwd=Path(__file__).parent.parent,
    )
    try:
        yield process, f"http://{address}"
    finally:
        process.terminate()
        process.wait()


@asynccontextmanager
async def _console(url: str) -> AsyncIterator[tuple[subprocess.Popen[bytes], httpx.AsyncClient]]:
    """A console process that has started, and a client of it."""
    with _process(url) as (process, at):
        async with httpx.AsyncClient(base_url=at, timeout=60) as browser:
            async with asyncio.timeout(60):
                while not await _answers(browser):  # noqa: ASYNC110 - it has no event
                    await asyncio.sleep(0.1)
            yield process, browser


async def _answers(browser: httpx.AsyncClient) -> bool:
    try:
        return (await browser.get("/static/icon.svg")).is_success
    except httpx.ConnectError:
        return False


async def _ask(browser: httpx.AsyncClient, path: str, known: str | None = None) -> tuple[float, httpx.Response]:
    """A page, unless it is the known one; and how many ms it has taken."""
    begin = time.perf_counter()
    answer = await browser.get(path, headers={"If-None-Match": known} if known else {})
    took = (time.perf_counter() - begin) * 1000
    if answer.status_code not in {200, 304}:
        raise RuntimeError(f"{path}: the console answers with status {answer.status_code}: {answer.text}")
    return took, answer


async def _alone(
    browser: httpx.AsyncClient, backend: int | None, name: str, paths: Sequence[str], calls: int
) -> list[Figure]:
    took, served = [], []
    for nr in range(calls):
        before = 0.0 if backend is None else server_seconds(backend)
        took.append((await _ask(browser, paths[nr % len(paths)]))[0])
        served.append(0.0 if backend is None else (server_seconds(backend) - before) * 1000)
        await asyncio.sleep(_PAUSE)
    high = quantile(took, 0.95)
    return [
        Figure(f"console, {name}: median", statistics.median(took), "ms"),
        Figure(f"console, {name}: 95 %", high, "ms", f"below {_LONGEST:.0f}", high < _LONGEST),
        Figure(f"console, {name}: median of the server's CPU", statistics.median(served), "ms"),
    ]


async def _together(
    backend: int | None,
    process: subprocess.Popen[bytes],
    browser: httpx.AsyncClient,
    paths: Paths,
    window: float,
) -> list[Figure]:
    viewers = sum(_VIEWERS.values())
    say(f"console: {viewers} viewers, for {window:.0f} s")
    took: list[float] = []
    async with asyncio.TaskGroup() as group:
        looking = [
            group.create_task(_look(browser, paths[name][nr % len(paths[name])], took))
            for name, number in _VIEWERS.items()
            for nr in range(number)
        ]
        await asyncio.sleep(_WARM_UP)
        took.clear()
        begin, own = time.perf_counter(), cpu_seconds(process.pid)
        served = 0.0 if backend is None else server_seconds(backend)
        await asyncio.sleep(window)
        seconds = time.perf_counter() - begin
        own = (cpu_seconds(process.pid) - own) / seconds * 100
        of_server = 0.0 if backend is None else (server_seconds(backend) - served) / seconds * 100
        for one in looking:
            one.cancel()
    what, high = f"console, {viewers} viewers", quantile(took, 0.95)
    memory = psutil.Process(process.pid).memory_info().rss / 2**20
    figures = [
        Figure(f"{what}: calls", len(took) / seconds, "per second"),
        Figure(f"{what}: a call, median", statistics.median(took), "ms"),
        Figure(f"{what}: a call, 95 %", high, "ms", f"below {_LONGEST:.0f}", high < _LONGEST),
        Figure(f"{what}: a call, the longest", max(took), "ms"),
        Figure(f"{what}: CPU of the console", own, "% of a core"),
        Figure(f"{what}: memory of the console", memory, "MiB"),
    ]
    if backend is not None:
        aim = f"at most {_MOST_CPU:.0f}"
        figures.append(Figure(f"{what}: CPU of the server", of_server, "% of a core", aim, of_server <= _MOST_CPU))
    return figures


async def _look(browser: httpx.AsyncClient, path: str, took: list[float]) -> None:
    """Look at a page, which asks again as `console.js` does; until cancelled."""
    known, every = None, 0.0
    await asyncio.sleep(random.random() * 5)  # not all of them at once
    while True:
        ms, answer = await _ask(browser, path, known)
        took.append(ms)
        if answer.status_code == 200:
            known, found = answer.headers["etag"], _EVERY.search(answer.text)
            if found is None:
                raise RuntimeError(f"{path}: it does not ask again")
            every = float(found[1])
        await asyncio.sleep(every * random.uniform(0.9, 1.1))

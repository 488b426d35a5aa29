"""Tasks in processes: what a process costs a job, and how fast two of them compute, beside threads and others."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import statistics
import sysconfig
import tempfile
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.peers import install
from benchmarks.report import Figure
from benchmarks.side_by_side import ratio
from benchmarks.support import executor, fresh_database, say
from benchmarks.work import pack, parse
from joex.client.client import Client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

_SLOTS = 2
_ROUNDS = 3
_LIMIT = 600.0
_FILES = 20  # of a job, which so takes about half a second
_SMALLEST, _LARGEST = 8_000, 200_000  # bytes


async def measure(server_url: str, *, quick: bool) -> list[Figure]:
    """Jobs that do nothing, and jobs that compute on files, in two processes of one executor.

    It has two slots more, so that the next jobs are at hand when runs end.
    """
    jobs, batches = (200, 10) if quick else (5000, 40)
    install.python()
    say(f"processes: {jobs:,} no-op jobs and twice {batches} with {_FILES} files each, {_ROUNDS} rounds")
    paths = [str(path) for path in _files(batches * _FILES)]
    items = [paths[number::batches] for number in range(batches)]
    nothing: dict[str, list[float]] = {"thread": [], "process": []}
    parsing, packing = ({kind: list[float]() for kind in ("thread", "process", "pool", "celery")} for _ in range(2))
    loads: list[tuple[str, Callable[[list[str]], object], dict[str, list[float]]]] = [
        ("parse", parse, parsing),
        ("pack", pack, packing),
    ]
    async with fresh_database(server_url) as url, Client(url) as client, _celery() as in_celery:
        with (
            executor(
                url,
                "processes",
                "--pool-size",
                str(2 * _SLOTS),
                "--process-slots",
                str(_SLOTS),
                app="benchmarks.computing:app",
            ),
            multiprocessing.get_context("spawn").Pool(_SLOTS) as pool,
        ):
            few = items[:_SLOTS]
            for kind in nothing:  # load the app, and start the processes
                await _elapsed(client, f"bench.pack.{kind}", [{"paths": item} for item in few])
            await asyncio.to_thread(pool.map, pack, few, 1)
            await in_celery("pack", few)
            for _ in range(_ROUNDS):
                for kind, measured in nothing.items():
                    measured.append(await _elapsed(client, f"bench.noop.{kind}", [{}] * jobs) / jobs)
                for name, function, seconds in loads:
                    for kind in ("thread", "process"):
                        args = [{"paths": item} for item in items]
                        seconds[kind].append(await _elapsed(client, f"bench.{name}.{kind}", args))
                    begin = time.perf_counter()
                    await asyncio.to_thread(pool.map, function, items, 1)
                    seconds["pool"].append(time.perf_counter() - begin)
                    seconds["celery"].append(await in_celery(name, items))
    overhead = [process - thread for process, thread in zip(nothing["process"], nothing["thread"], strict=True)]
    what = f"{batches} jobs of {_FILES} files"
    return [
        Figure("a no-op job in a thread", statistics.median(nothing["thread"]) * 1000, "ms"),
        Figure("the same in a process: more than in a thread", statistics.median(overhead) * 1000, "ms"),
        *_compared(f"{what}, parse", parsing, gain_at_least=1.9),
        # zlib and hashlib release the interpreter's lock, so threads too use more than one core: no aim.
        *_compared(f"{what}, parse, compress, hash", packing, gain_at_least=None),
    ]


@asynccontextmanager
async def _celery() -> AsyncIterator[Callable[[str, list[list[str]]], Awaitable[float]]]:
    """A worker of Celery with two processes; gives a function that runs a batch there, and tells its seconds."""
    with tempfile.TemporaryDirectory(prefix="joex-bench-") as folder:
        program = await asyncio.create_subprocess_exec(
            install.PYTHON,
            *("-m", "benchmarks.peers.drivers.celery", str(_SLOTS)),
            env={**os.environ, "JOEX_BENCH_CELERY_FOLDER": folder},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        to_it, from_it = program.stdin, program.stdout
        assert to_it is not None
        assert from_it is not None

        async def run(name: str, items: list[list[str]]) -> float:
            to_it.write(json.dumps([name, items]).encode() + b"\n")
            return float(await asyncio.wait_for(from_it.readline(), _LIMIT))

        try:
            yield run
        finally:
            to_it.close()
            await program.wait()


def _compared(what: str, seconds: dict[str, list[float]], *, gain_at_least: float | None) -> list[Figure]:
    """Times of threads, processes and multiprocessing, and their ratios, taken within each round."""
    gain = ratio(seconds["thread"], seconds["process"])
    share = ratio(seconds["pool"], seconds["process"])
    name = f"{what}: speed of processes, over that of"
    return [
        Figure(f"{what}: in {2 * _SLOTS} threads", statistics.median(seconds["thread"]), "s"),
        Figure(f"{what}: in {_SLOTS} processes", statistics.median(seconds["process"]), "s"),
        Figure(f"{what}: by multiprocessing.Pool", statistics.median(seconds["pool"]), "s"),
        Figure(f"{what}: by Celery's prefork", statistics.median(seconds["celery"]), "s"),
        Figure(f"{name} threads", gain, "x")
        if gain_at_least is None
        else Figure(f"{name} threads", gain, "x", f"at least {gain_at_least}", gain >= gain_at_least),
        Figure(f"{name} multiprocessing", share, "x", "at least 0.95", share >= 0.95),
        Figure(f"{name} Celery's prefork", ratio(seconds["celery"], seconds["process"]), "x"),
    ]


async def _elapsed(client: Client, task: str, args: list[dict[str, Any]]) -> float:
    """Seconds from the submission of jobs to the end of the last one, by the database's clock."""
    found = await client.submit_many({"task": task, "args": one} for one in args)
    ids = [job_id for job_id in found if job_id is not None]
    jobs = await client.wait_many(ids)
    ended = [job.finished_at for job in jobs if job is not None and job.finished_at and job.state == "success"]
    if len(ended) != len(args):
        raise RuntimeError(f"{len(args) - len(ended)} jobs of {task} have not succeeded")
    first = min(job.submitted_at for job in jobs if job is not None)
    return (max(ended) - first).total_seconds()


def _files(most: int) -> list[Path]:
    """Files of the standard library of this Python, spread over all of them."""
    root = Path(sysconfig.get_path("stdlib"))
    found = sorted(
        path
        for path in root.rglob("*.py")
        if "site-packages" not in path.parts
        and not any("test" in part for part in path.relative_to(root).parts)
        and _SMALLEST <= path.stat().st_size <= _LARGEST
        and _is_python(path)
    )
    return [found[number * len(found) // most] for number in range(most)]


def _is_python(path: Path) -> bool:
    try:
        compile(path.read_bytes(), str(path), "exec", flags=0)
    except (SyntaxError, ValueError):
        return False
    return True

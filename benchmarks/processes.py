"""Tasks in processes: what a process costs a job, and how fast two of them compute, beside threads and others."""

from __future__ import annotations

import asyncio
import multiprocessing
import statistics
import sysconfig
import time
from pathlib import Path
from typing import Any

from benchmarks.computing import work_on
from benchmarks.report import Figure
from benchmarks.side_by_side import ratio
from benchmarks.support import executor, fresh_database, say
from joex.client.client import Client

_SLOTS = 2
_ROUNDS = 3
_FILES = 20  # of a job, which so takes half a second
_SMALLEST, _LARGEST = 8_000, 200_000  # bytes


async def measure(server_url: str, *, quick: bool) -> list[Figure]:
    """Jobs that do nothing, and jobs that parse, compress and hash a file, in two slots of one executor."""
    jobs, batches = (200, 10) if quick else (5000, 40)
    say(f"processes: {jobs:,} no-op jobs and {batches} with {_FILES} files each, {_ROUNDS} rounds")
    paths = [str(path) for path in _files(batches * _FILES)]
    work_items = [paths[number::batches] for number in range(batches)]
    few = work_items[:_SLOTS]
    nothing: dict[str, list[float]] = {"thread": [], "process": []}
    work: dict[str, list[float]] = {"thread": [], "process": [], "multiprocessing": []}
    async with fresh_database(server_url) as url, Client(url) as client:
        with (
            executor(url, "processes", "--pool-size", str(_SLOTS), app="benchmarks.computing:app"),
            multiprocessing.get_context("spawn").Pool(_SLOTS) as pool,
        ):
            for kind in nothing:  # load the app, and start the processes
                await _elapsed(client, f"bench.work.{kind}", [{"paths": item} for item in few])
            await asyncio.to_thread(pool.map, work_on, few, 1)
            for _ in range(_ROUNDS):
                for kind, measured in nothing.items():
                    measured.append(await _elapsed(client, f"bench.noop.{kind}", [{}] * jobs) / jobs)
                for kind in ("thread", "process"):
                    work[kind].append(
                        await _elapsed(client, f"bench.work.{kind}", [{"paths": item} for item in work_items])
                    )
                begin = time.perf_counter()
                await asyncio.to_thread(pool.map, work_on, work_items, 1)
                work["multiprocessing"].append(time.perf_counter() - begin)
    overhead = [process - thread for process, thread in zip(nothing["process"], nothing["thread"], strict=True)]
    gain = ratio(work["thread"], work["process"])
    share = ratio(work["multiprocessing"], work["process"])
    what = f"{batches} jobs of {_FILES} files, {_SLOTS} slots"
    return [
        Figure("a no-op job in a thread", statistics.median(nothing["thread"]) * 1000, "ms"),
        Figure("the same in a process: more than in a thread", statistics.median(overhead) * 1000, "ms"),
        Figure(f"{what}: in threads", statistics.median(work["thread"]), "s"),
        Figure(f"{what}: in processes", statistics.median(work["process"]), "s"),
        Figure(f"{what}: by multiprocessing.Pool", statistics.median(work["multiprocessing"]), "s"),
        Figure("speed of processes, over that of threads", gain, "x", "at least 1.9", gain >= 1.9),
        Figure("speed of processes, over that of multiprocessing", share, "x", "at least 0.95", share >= 0.95),
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

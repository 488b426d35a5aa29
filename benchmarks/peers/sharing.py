"""The races for fairness: one tenant with very many jobs among many with one, and ten different groups."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence

from benchmarks.peers.drive import Worker, stage, submit, worker
from benchmarks.peers.figures import Run, all_backlogged
from benchmarks.peers.speed import settle
from benchmarks.peers.systems import System
from benchmarks.report import quantile
from benchmarks.shares import jain, slot_time
from benchmarks.support import say

SLOTS = 20
_BIG = "group 0"
_SMALL = 99
_MS = 30
_SUBMITTERS, _FEW_SUBMITTERS = 50, 5
_ARRIVE, _GIVE_UP = (0.1, 0.7), 2.5
"""As shares of the time that the big tenant's jobs take at best."""
_MANY = {50: (320, 500, 800, 1300, 2000), 500: (32, 64, 128, 256, 512)}
"""Numbers of jobs of ten groups, by milliseconds. With equal shares, the smallest last eight seconds."""
_WINDOW = 8.0

SMALL_MEDIAN = "wait of the 99 small tenants, p50"
SMALL_P95 = "wait of the 99 small tenants, p95"
SMALL_MAX = "wait of the 99 small tenants, max"
BUSY = "slots busy meanwhile"
JAIN = "Jain's index of ten backlogged groups"
BUSY_TEN = "slots busy with ten backlogged groups"

UNITS = {
    **dict.fromkeys((SMALL_MEDIAN, SMALL_P95, SMALL_MAX), "ms"),
    **dict.fromkeys((BUSY, BUSY_TEN), f"of {SLOTS}"),
    JAIN: "",
}

Plan = list[tuple[float, str, int]]


async def crowd(server_url: str, system: System, jobs: int, *, fair: bool) -> dict[str, float]:
    """50 submitters submit very many jobs of a tenant; while these run, 99 other tenants submit one job each.

    The race ends when the jobs of the others have run, or after 2.5 times the time that all jobs take at best: a job
    that has not started by then counts as if it started then.
    """
    at_best = jobs * _MS / 1000 / SLOTS
    chance = random.Random(1)
    arrivals = {f"group {number}": chance.uniform(*_ARRIVE) * at_best for number in range(1, _SMALL + 1)}
    small: Plan = sorted((at, group, _MS) for group, at in arrivals.items())
    async with stage(server_url, system) as url:
        await submit(system, url, [(0.0, _BIG, _MS)] * jobs, _SUBMITTERS, fair=fair)
        await settle(url)
        async with worker(system, url, SLOTS, fair=fair) as one:
            submission = asyncio.create_task(submit(system, url, small, _FEW_SUBMITTERS, fair=fair))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_GIVE_UP * at_best):
                    await one.until(_all_small(one), "the last small tenant")
            await submission
    runs = _runs(one)
    waits = {run.group: run.wait * 1000 for run in runs if run.group != _BIG}
    if waiting := [group for group in arrivals if group not in waits]:
        say(f"peers: {system.name}: {len(waiting)} of the small tenants still wait, and are counted so")
        waits |= {group: (_GIVE_UP * at_best - arrivals[group]) * 1000 for group in waiting}
    begin = min(run.start for run in runs)
    return {
        SMALL_MEDIAN: quantile(list(waits.values()), 0.5),
        SMALL_P95: quantile(list(waits.values()), 0.95),
        SMALL_MAX: max(waits.values()),
        BUSY: _busy(runs, (begin, max(run.start for run in runs))),
    }


async def ten(server_url: str, system: System, size: float, *, fair: bool) -> dict[str, float]:
    """Ten groups, all with jobs that wait, of very different lengths and numbers: the slot time of each.

    ``size``: a factor of the numbers of jobs, and of the window.
    """
    sizes = [(ms, round(n * size)) for ms in _MANY for n in _MANY[ms]]
    counts = {one: f"group {number}" for number, one in enumerate(sizes)}
    plan: Plan = [(0.0, group, ms) for (ms, n), group in counts.items() for _ in range(n)]
    random.Random(1).shuffle(plan)
    async with stage(server_url, system) as url:
        await submit(system, url, plan, _SUBMITTERS, fair=fair)
        await settle(url)
        async with worker(system, url, SLOTS, fair=fair) as one:
            await one.until(lambda: _lasted(one) >= _WINDOW * size, "the end of the window")
    runs = _runs(one)
    window = all_backlogged(runs, {group: n for (_, n), group in counts.items()})
    held = slot_time(runs, *window)
    return {JAIN: jain(held.get(group, 0.0) for group in counts.values()), BUSY_TEN: _busy(runs, window)}


def _lasted(one: Worker) -> float:
    return float(one.lines[-1]["end"] - one.lines[1]["start"]) if len(one.lines) > 1 else 0.0


def _all_small(one: Worker) -> Callable[[], bool]:
    """Whether the jobs of all small tenants have run; it reads each line once."""
    looked_at, found = 0, set[str]()

    def condition() -> bool:
        nonlocal looked_at
        found.update(line["group"] for line in one.lines[looked_at:] if line.get("group", _BIG) != _BIG)
        looked_at = len(one.lines)
        return len(found) == _SMALL

    return condition


def _runs(one: Worker) -> list[Run]:
    return [Run(**line) for line in one.lines if "end" in line]


def _busy(runs: Sequence[Run], window: tuple[float, float]) -> float:
    begin, end = window
    return sum(slot_time(runs, begin, end).values()) / (end - begin)

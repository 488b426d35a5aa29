"""How long a take lasts, with few and many jobs, in few and many groups."""

from __future__ import annotations

import statistics

from benchmarks.report import Figure
from benchmarks.side_by_side import Contender, Cost, by_turns, contenders
from benchmarks.support import say

_WARM_UP = 20  # takes: the first ones make their plans


async def measure(server_url: str, *, quick: bool) -> list[Figure]:
    """Take latencies, and how those of large queues compare with those of the smallest one."""
    most, takes = (100_000, 100) if quick else (1_000_000, 300)
    sizes = [(1000, 10), (most, 100), (most, most // 10)]
    figures = []
    async with contenders(server_url, len(sizes)) as those:
        for (jobs, groups), one in zip(sizes, those, strict=True):
            say(f"take: making {jobs:,} jobs in {groups:,} groups")
            await one.stock(jobs, groups)
            await one.settle()
        for batch in (1, 20):
            say(f"take: {takes} takes of {batch} from each, by turns")
            found = await _measure(those, batch, takes)
            for (jobs, groups), costs in zip(sizes, found, strict=True):
                figures += _latencies(f"take of {batch} at {jobs:,} jobs, {groups:,} groups", costs)
            figures += _ratios(f"take of {batch}", sizes, found)
    return figures


async def _measure(those: list[Contender], batch: int, takes: int) -> list[list[Cost]]:
    found = await by_turns(those, takes + _WARM_UP, lambda one: one.take_and_replace(batch))
    return [costs[_WARM_UP:] for costs in found]


def _latencies(what: str, costs: list[Cost]) -> list[Figure]:
    return [
        Figure(f"{what}, median", statistics.median(cost.wall for cost in costs) * 1000, "ms"),
        Figure(f"{what}, median of the server's CPU", statistics.median(cost.cpu for cost in costs) * 1000, "ms"),
    ]


def _ratios(what: str, sizes: list[tuple[int, int]], found: list[list[Cost]]) -> list[Figure]:
    """The ratios of the medians: a take that the server delays for other work says nothing about the queue."""
    figures = []
    for (jobs, groups), costs in zip(sizes[1:], found[1:], strict=True):
        for name, of in (("by the clock", lambda cost: cost.wall), ("of the CPU", lambda cost: cost.cpu)):
            base = statistics.median(map(of, found[0]))
            if base:
                value = statistics.median(map(of, costs)) / base
                against = f"{jobs:,} jobs, {groups:,} groups against {sizes[0][0]:,}, {sizes[0][1]:,}"
                figures.append(Figure(f"{what}, {name}: {against}", value, "x", "below 1.5", value < 1.5))
    return figures

"""The pages of pools: their sizes, and how each was sized within the last day, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from joex.console.calls import Text, TheConsole, not_found
from joex.core.access import Scope
from joex.http.caller import TheCaller, needs
from joex.store import pools, stats
from joex.store.pools import PoolStep

routes = APIRouter()

_MOST_POOLS = 500
_MOST_STEPS = 500
_WIDTH, _HEIGHT = 400, 100
_BAR = 2
"""The width of a bar of the chart: steps that lie closer share one."""


@dataclass(frozen=True, slots=True)
class Chart:
    """The steps of a pool over time, for an SVG of 400 by 100.

    Attributes:
        most, most_jobs: what the full height means: executors of the line and the area, jobs of the bars.
        target: the points of the line.
        ready: the path of the area.
        jobs: the bars, each with its x, y and height: the jobs that waited at a step.
    """

    most: int
    most_jobs: int
    target: str
    ready: str
    jobs: list[tuple[int, float, float]]


def chart(steps: Sequence[PoolStep], begin: datetime, end: datetime) -> Chart:
    """The chart of these steps, the first one first. What lies before ``begin`` is at the left edge."""
    most = max([1, *(max(step.target, step.ready) for step in steps)])
    most_jobs = max([1, *(step.runnable for step in steps)])
    seconds = (end - begin).total_seconds()
    line: list[str] = []
    area: list[str] = []
    columns: dict[int, int] = {}
    x = 0.0
    for step, following in zip(steps, [*(step.at for step in steps[1:]), end], strict=True):
        x = _place((step.at - begin).total_seconds() / seconds)
        until = _place((following - begin).total_seconds() / seconds)
        line.append(f"{x:g},{_high(step.target / most):g} {until:g},{_high(step.target / most):g}")
        area.append(f"M{x:g} {_HEIGHT}V{_high(step.ready / most):g}H{until:g}V{_HEIGHT}Z")
        column = min(int(x) // _BAR * _BAR, _WIDTH - _BAR)
        columns[column] = max(columns.get(column, 0), step.runnable)
    bars = [(column, _high(jobs / most_jobs), round(_HEIGHT - _high(jobs / most_jobs), 2))
            for column, jobs in columns.items() if jobs]  # fmt: skip
    return Chart(most, most_jobs, " ".join(line), "".join(area), bars)


def _place(part: float) -> float:
    return round(min(max(part, 0.0), 1.0) * _WIDTH, 2)


def _high(part: float) -> float:
    """The y of a part of the height, a unit away from the edges, where a line would lose half of its width."""
    return round(_HEIGHT - 1 - part * (_HEIGHT - 2), 2)


@routes.get("/pools", dependencies=[needs(Scope.VIEW, whole_system=True)])
async def list_pools(console: TheConsole, caller: TheCaller, request: Request) -> Response:
    """The pools, each with its size and the reason."""
    async with console.pace.reading(caller.tenant) as connection:
        found = await pools.list_pools(connection, most=_MOST_POOLS + 1)
        now = await stats.now(connection)
    return console.views.page(
        request, "pools.html", pools=found[:_MOST_POOLS], has_more=len(found) > _MOST_POOLS, now=now
    )


@routes.get("/pool", dependencies=[needs(Scope.VIEW, whole_system=True)])
async def show_pool(  # noqa: PLR0917 - what they depend on
    console: TheConsole,
    caller: TheCaller,
    request: Request,
    home: Text,
    pool: Text,
    hours: Annotated[int, Query(ge=1, le=24)] = 1,
) -> Response:
    """How a pool was sized within the last hours, and why."""
    async with console.pace.reading(caller.tenant) as connection:
        found = await pools.list_steps(connection, home, pool, most=_MOST_STEPS + 1)
        now = await stats.now(connection)
    if not found:
        not_found(f"No pool {pool!r} in {home!r} had a step within a day.")
    begin = now - timedelta(hours=hours)
    inside = sum(step.at >= begin for step in found)
    shown = found[: min(inside + 1, _MOST_STEPS)]  # with the one that held when they began
    return console.views.page(
        request, "pool.html", steps=shown, last=found[0], inside=min(inside, len(shown)), hours=hours, now=now,
        has_more=inside > _MOST_STEPS, chart=chart(shown[::-1], begin, now),
    )  # fmt: skip

"""The take in the state of production: all slots are held, and all groups have a backlog.

E executors of S slots hold a job in each slot. In each step one executor ends one job and takes one, over eight
connections. Jobs of every second group are ten times shorter: they end ten times as often. Meanwhile new tenants submit
their first job. A plain first-in-first-out take of the same shape runs in turns with Joex on the same server: the price
of fairness is the extra cost of Joex.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import asyncpg

from benchmarks.cpu import server_process
from benchmarks.held_slots import Fleet, JoexFleet, PlainFleet, Shape, Slice
from benchmarks.report import Figure, quantile
from benchmarks.side_by_side import by_turns, ratio
from benchmarks.support import fresh_database, say
from joex.store.database import connect

TABLE = "a large fleet"  # of the results

_CONNECTIONS = 8
_ROUNDS = 5

_BASE = Shape(1, 20, 10)
_ALONE = Shape(500, 20, 1)
_THOUSAND = Shape(500, 20, 1000)
_LARGE = (Shape(500, 20, 100), _THOUSAND, Shape(500, 20, 5000))
_SHAPES = (_BASE, Shape(50, 20, 100), *_LARGE, Shape(50, 20, 1), _ALONE)


async def measure(server_url: str, *, quick: bool) -> list[Figure]:
    """The cost and the length of a take by the size of the fleet, and their comparison."""
    seconds, backlog = (1.0, 20_000) if quick else (3.0, 80_000)
    async with AsyncExitStack() as stack:
        fleets: list[Fleet] = []
        for shape, kind in itertools.product(_SHAPES, (JoexFleet, PlainFleet)):
            connections, pids = await stack.enter_async_context(_connections(server_url))
            fleets.append(kind(shape, connections, pids))
            if kind is JoexFleet:
                say(f"fleet: {shape} take what they can")
            await fleets[-1].fill(backlog)
        say(f"fleet: {_ROUNDS} rounds of {seconds:.0f} s for each, beside first in, first out")
        await by_turns(fleets, 1, lambda fleet: fleet.measure(1.0))  # the first takes make their plans
        slices = dict(zip(fleets, await by_turns(fleets, _ROUNDS, lambda one: one.measure(seconds)), strict=True))
        joex = {fleet.shape: slices[fleet] for fleet in fleets if isinstance(fleet, JoexFleet)}
        plain = {fleet.shape: slices[fleet] for fleet in fleets if isinstance(fleet, PlainFleet)}
    figures = [figure for shape in _SHAPES for figure in _of_shape(shape, joex[shape], plain[shape])]
    return figures + _verdicts(joex, plain)


@asynccontextmanager
async def _connections(server_url: str) -> AsyncIterator[tuple[Sequence[asyncpg.Connection[Any]], list[int]]]:
    """A connection for visitors and eight for takes, and the server's processes of these."""
    async with fresh_database(server_url) as url:
        connections = [await connect(url) for _ in range(_CONNECTIONS + 1)]
        found = [await server_process(connection) for connection in connections[1:]]
        try:
            yield connections, [pid for pid in found if pid is not None]
        finally:
            for connection in connections:
                await connection.close()


def _of_shape(shape: Shape, joex: Sequence[Slice], plain: Sequence[Slice]) -> list[Figure]:
    waits = [wait for one in joex for wait in one.waits]
    takes = [take for one in joex for take in one.takes]
    measured = {
        "server's CPU per job": (_cpu(joex) * 1000, "ms"),
        "the same, first in, first out": (_cpu(plain) * 1000, "ms"),
        f"through {_CONNECTIONS} connections": (_rate(joex), "jobs/s"),
        "take of 1, p50": (quantile(takes, 0.5) * 1000, "ms"),
        "take of 1, p95": (quantile(takes, 0.95) * 1000, "ms"),
        "wait of a new tenant's first job, p95": (quantile(waits, 0.95) * 1000, "ms"),
    }
    return [Figure(what, value, unit, system=str(shape), table=TABLE) for what, (value, unit) in measured.items()]


def _cpu(slices: Sequence[Slice]) -> float:
    return statistics.median(one.cpu_per_job for one in slices)


def _rate(slices: Sequence[Slice]) -> float:
    return statistics.median(one.rate for one in slices)


def _verdicts(joex: dict[Shape, list[Slice]], plain: dict[Shape, list[Slice]]) -> list[Figure]:
    def cpu(of: list[Slice], to: list[Slice]) -> float:
        return ratio([one.cpu_per_job for one in of], [one.cpu_per_job for one in to])

    def rate(of: list[Slice], to: list[Slice]) -> float:
        return ratio([one.rate for one in of], [one.rate for one in to])

    longest = max(wait for one in joex[_THOUSAND] for wait in one.waits)
    figures = []
    for shape in _LARGE:
        figures += [
            _below(f"server's CPU per job, {shape} against {_BASE}", cpu(joex[shape], joex[_BASE]), 1.5),
            _below(f"server's CPU per job, {shape}, against first in, first out", cpu(joex[shape], plain[shape]), 2.0),
        ]
    return [
        *figures,
        _above(f"jobs/s, {_THOUSAND} against {_BASE}", rate(joex[_THOUSAND], joex[_BASE]), 0.8),
        _above(f"jobs/s, {_ALONE} against {_THOUSAND}", rate(joex[_ALONE], joex[_THOUSAND]), 1.0),
        *(
            _above(f"Jain's index of slots held, {shape}", min(one.jain for one in joex[shape]), 0.99, "")
            for shape in _LARGE
        ),
        _below(f"a new tenant's first job, {_THOUSAND}, the longest wait", longest * 1000, 300, "ms"),
    ]


def _below(what: str, value: float, aim: float, unit: str = "x") -> Figure:
    return Figure(what, value, unit, f"at most {aim:g}", value <= aim, table=TABLE)


def _above(what: str, value: float, aim: float, unit: str = "x") -> Figure:
    return Figure(what, value, unit, f"at least {aim:g}", value >= aim, table=TABLE)

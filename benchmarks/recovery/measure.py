"""All faults and all systems, and the figures."""

from __future__ import annotations

import asyncio
import statistics
from collections import defaultdict
from collections.abc import Sequence
from math import inf

from benchmarks.peers.drive import RaceError
from benchmarks.peers.race import Entrants
from benchmarks.peers.systems import JOEX, System
from benchmarks.recovery import lost, outage
from benchmarks.recovery.documented import DOCUMENTED
from benchmarks.report import Figure
from benchmarks.support import say
from joex.store.embedded import NEWEST
from tests.support.postgres import TestServer

LOST, OUTAGES = "lost workers", "outages"
"""The tables of the figures."""
_SETTINGS = "fsync = on\nmax_connections = 400\n"
_OUTAGES = {"PostgreSQL restarted": outage.restart, "standby promoted": outage.promotion}
_FIRST = "{}: first new job"
_EXITS = "{}: worker exits"
_BACK_WITHIN = 10.0


async def measure(_server_url: str, *, quick: bool, peers: Sequence[System]) -> list[Figure]:
    """Recovery after each fault, on a server of its own: the faults stop, kill and replace it."""
    entrants = Entrants([JOEX, *peers])
    await entrants.install()
    server = await asyncio.to_thread(TestServer, NEWEST, settings=_SETTINGS)
    try:
        lost_workers = await _lost(server, entrants, 2 if quick else 5)
        outages = await _outages(server, entrants, 1 if quick else 3)
    finally:
        server.close()
    return [*lost_workers, *outages, *entrants.missing(LOST)]


async def _lost(server: TestServer, entrants: Entrants, rounds: int) -> list[Figure]:
    found: dict[tuple[str, str], list[float]] = {}
    for fault in (*lost.FAULTS, lost.TOLD):
        for system in list(entrants.here):
            if system.name in DOCUMENTED or (fault is lost.TOLD and system is not JOEX):
                continue
            say(f"recovery: {fault.what}: {system.name}, {rounds} rounds at a time")
            try:
                found[fault.what, system.name] = await lost.measure(server, system, fault, rounds)
            except RaceError as error:
                entrants.leave(system, error)
    return lost_figures(found, [system.name for system in entrants.here])


def lost_figures(found: dict[tuple[str, str], list[float]], systems: Sequence[str]) -> list[Figure]:
    """The figures of the lost workers of these systems: measured, or documented."""
    figures = []
    for fault in lost.FAULTS:
        for system in systems:
            if (known := DOCUMENTED.get(system)) is not None:
                figures.append(Figure(fault.what, known.seconds, "s", system=system, table=LOST, documented=known.text))
            else:
                figures.append(_median(fault.what, found[fault.what, system], system, LOST, give_up=lost.GIVE_UP))
    for fault in (*lost.FAULTS, lost.TOLD) if JOEX.name in systems else ():
        worst = max(found[fault.what, JOEX.name])
        figures.append(
            Figure(f"{fault.what}, worst", worst, "s", f"below {fault.below:g}", worst < fault.below, table=LOST)
        )
    return figures


def _median(what: str, values: Sequence[float], system: str, table: str, *, give_up: float = inf) -> Figure:
    median, worst = statistics.median(values), max(values)
    return Figure(what, median, "s", system=system, table=table, worst=worst, unfinished=median >= give_up)


async def _outages(server: TestServer, entrants: Entrants, rounds: int) -> list[Figure]:
    found: defaultdict[tuple[str, str], list[outage.Passed]] = defaultdict(list)
    for what, happen in _OUTAGES.items():
        for number in range(1, rounds + 1):
            say(f"recovery: {what}, turn {number} of {rounds}, all at a time")
            passed = await happen(server, entrants.here)
            for system in list(entrants.here):
                one = passed[system.name]
                if isinstance(one, RaceError):
                    entrants.leave(system, one)
                else:
                    found[what, system.name].append(one)
    return outage_figures(found, [system.name for system in entrants.here])


def outage_figures(found: dict[tuple[str, str], list[outage.Passed]], systems: Sequence[str]) -> list[Figure]:
    """The figures of these systems in the outages that they got through."""
    figures = []
    for what in _OUTAGES:
        for system in systems:
            passed = found[what, system]
            figures += [
                _median(_FIRST.format(what), [one.seconds for one in passed], system, OUTAGES),
                Figure(
                    disturbed_of(what, len(passed)),
                    sum(one.disturbed for one in passed),
                    "",
                    system=system,
                    table=OUTAGES,
                ),
                Figure(_EXITS.format(what), sum(one.exits for one in passed), "", system=system, table=OUTAGES),
            ]
        if JOEX.name not in systems:
            continue
        ours = found[what, JOEX.name]
        worst, disturbed = max(one.seconds for one in ours), sum(one.disturbed for one in ours)
        first = f"{_FIRST.format(what)}, worst"
        figures += [
            Figure(first, worst, "s", f"below {_BACK_WITHIN:g}", worst < _BACK_WITHIN, table=OUTAGES),
            Figure(disturbed_of(what, len(ours)), disturbed, "", "0", disturbed == 0, table=OUTAGES),
        ]
    return figures


def disturbed_of(what: str, outages: int) -> str:
    """The name of the figure of disturbed runs."""
    return f"{what}: runs disturbed, of {outage.RUNS * outages}"

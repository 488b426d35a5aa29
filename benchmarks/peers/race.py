"""The race: its systems, its turns, and its results."""

from __future__ import annotations

import asyncio
import statistics
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from benchmarks.peers import sharing, speed
from benchmarks.peers.drive import RaceError, ask
from benchmarks.peers.install import NotInstalled
from benchmarks.peers.systems import JOEX, PEERS, System
from benchmarks.peers.verdicts import FAIR, Found, verdicts
from benchmarks.report import Figure
from benchmarks.support import say

_FULL = speed.Sizes(drained=1.0, singly=1000, late=500)
_QUICK = speed.Sizes(drained=0.3, singly=500, late=200)
_BIG_JOBS, _BIG_JOBS_QUICK = 10_000, 2_000
_UNITS = speed.UNITS | sharing.UNITS

Turn = Callable[[System], Awaitable[dict[str, float]]]


def choose(names: str) -> list[System]:
    """The peers of these names, separated by commas.

    Raises:
        ValueError: one is unknown; the message lists the peers.
    """
    given = [name.strip() for name in names.split(",") if name.strip()]
    if unknown := [name for name in given if name not in PEERS]:
        raise ValueError(f"--peers: there is no peer {unknown[0]!r}; choose from: {', '.join(PEERS)}")
    return [PEERS[name] for name in given]


async def versions(peers: Sequence[System]) -> dict[str, str]:
    """The versions of these peers and of their runtimes; without peers that can't run here."""
    found = {}
    for peer in peers:
        try:
            await _install(peer)
            answer = await ask(peer, "", "version")
            found[peer.name] = f"{answer['version']} on {answer['runtime']}"
        except (NotInstalled, RaceError) as error:
            say(f"peers: {peer.name}: {error}")
    return found


async def measure(server_url: str, *, quick: bool, peers: Sequence[System]) -> list[Figure]:
    """The race of Joex against these peers. A peer that fails is reported, and leaves the race."""
    entrants = Entrants([JOEX, *peers])
    await entrants.install()
    rounds = 1 if quick else 3
    sizes, big = (_QUICK, _BIG_JOBS_QUICK) if quick else (_FULL, _BIG_JOBS)
    for number in range(1, rounds + 1):
        many = number == rounds and not quick
        await entrants.turns(
            f"speed, turn {number} of {rounds}", partial(speed.turn, server_url, sizes=sizes, many=many)
        )
    for fair in (False, True):
        await entrants.turns(
            "fairness, one tenant with very many jobs" + FAIR * fair,
            partial(sharing.crowd, server_url, jobs=big, fair=fair),
            fair=fair,
        )
        await entrants.turns(
            "fairness, ten tenants that differ" + FAIR * fair,
            partial(sharing.ten, server_url, size=0.5 if quick else 1.0, fair=fair),
            fair=fair,
        )
    return entrants.figures()


async def _install(system: System) -> None:
    if system.install is not None:
        await asyncio.to_thread(system.install)


class Entrants:
    """The systems that are still in the race (``here``), and their figures."""

    def __init__(self, systems: Sequence[System]) -> None:
        self.here = list(systems)
        self._missing: dict[str, str] = {}
        self._found: defaultdict[tuple[str, str], list[float]] = defaultdict(list)

    async def install(self) -> None:
        for system in list(self.here):
            try:
                await _install(system)
            except NotInstalled as error:
                self.leave(system, error)

    async def turns(self, what: str, turn: Turn, *, fair: bool = False) -> None:
        """One turn of each system; with ``fair``, only of systems that have other settings for fairness."""
        for system in list(self.here):
            if fair and (system is JOEX or not system.fairness):
                continue
            name = system.name + FAIR * fair
            say(f"peers: {what}: {system.name}")
            try:
                for measure, value in (await turn(system)).items():
                    self._found[measure, name].append(value)
            except RaceError as error:
                self.leave(system, error)

    def leave(self, system: System, error: Exception) -> None:
        """Take a system out of the race."""
        say(f"peers: {system.name} can't be measured: {error}")
        self.here.remove(system)
        self._missing[system.name] = str(error).splitlines()[-1]

    def figures(self) -> list[Figure]:
        """The medians of the turns, the verdicts on the aims, and the missing systems."""
        medians: Found = {key: statistics.median(values) for key, values in self._found.items()}
        return [
            *(
                Figure(what, value, _UNITS[what], system=system)
                for (what, system), value in medians.items()
                if what != speed.OWN
            ),
            *(
                Figure(f"{what}: {system}", value, "jobs/s")
                for (what, system), value in medians.items()
                if what == speed.OWN
            ),
            *verdicts(medians),
            *self.missing(),
        ]

    def missing(self, table: str = "") -> list[Figure]:
        """The systems that have left the race, each as a goal that was missed."""
        return [
            Figure(f"{name} can't be measured: {reason}", 0, "", "measured", met=False, table=table)
            for name, reason in self._missing.items()
        ]

"""``python -m benchmarks``: measure, print a table, write JSON."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import (
    bystanders,
    console,
    executor,
    fairness,
    fleet,
    footprint,
    hearing,
    lone,
    page,
    periodic,
    pinned,
    pools,
    processes,
    rescue,
    simulate,
    take,
)
from benchmarks.peers import race
from benchmarks.peers.systems import PEERS, System
from benchmarks.recovery import measure as recovery
from benchmarks.report import Figure, machine, show, write_json
from benchmarks.storm import measure as storm
from benchmarks.support import say
from joex.store.database import connect
from joex.store.embedded import EmbeddedServer

MEASUREMENTS: dict[str, Callable[..., Awaitable[list[Figure]]]] = {
    "take": take.measure,
    "fleet": fleet.measure,
    "submit": executor.measure_submit,
    "drain": executor.measure_drain,
    "idle": executor.measure_idle,
    "recovery": recovery.measure,
    "rescue": rescue.measure,
    "storm": storm.measure,
    "bystanders": bystanders.measure,
    "console": console.measure,
    "fairness": fairness.measure,
    "footprint": footprint.measure,
    "hearing": hearing.measure,
    "lone": lone.measure,
    "pinned": pinned.measure,
    "periodic": periodic.measure,
    "processes": processes.measure,
    "growth": pools.measure_growth,
    "pools": pools.measure_pools,
    "quiet": pools.measure_quiet,
    "simulate": simulate.measure,
    "peers": race.measure,
}
_WITH_PEERS = {"peers", "recovery"}
_WITH_MINUTES = {"storm"}
_WITH_POOLS = {"pools"}


def parse(arguments: list[str]) -> tuple[argparse.Namespace, list[System]]:
    """The arguments of a command line, and the peers that it names; exits with a line that says what is wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure Joex.")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"what to measure (default: all): {', '.join(MEASUREMENTS)}"
    )
    parser.add_argument("--quick", action="store_true", help="smaller sizes, for a first impression")
    parser.add_argument("--json", type=Path, default=Path("build/benchmarks.json"), metavar="FILE")
    parser.add_argument("--database-url", help="a PostgreSQL to measure on (default: an embedded one, with fsync on)")
    parser.add_argument(
        "--peers",
        default=",".join(PEERS),
        metavar="NAME,...",
        help="the peers of `peers` and `recovery` (default: %(default)s)",
    )
    parser.add_argument("--minutes", type=float, help="how long each `storm` lasts (default: 10, with --quick 1)")
    parser.add_argument("--pools", type=int, help="how many pools `pools` has (default: 1000, with --quick 20)")
    parser.add_argument("--docs", action="store_true", help="write docs/why/benchmarks.md and its plots too")
    given = parser.parse_args(arguments)
    try:
        peers = race.choose(given.peers)
    except ValueError as error:
        parser.error(str(error))
    if unknown := [name for name in given.names if name not in MEASUREMENTS]:
        parser.error(f"there is no measurement {unknown[0]!r}; choose from: {', '.join(MEASUREMENTS)}")
    return given, peers


def main() -> int:
    """Run the measurements of the command line; returns 1 if Joex misses an aim."""
    given, peers = parse(sys.argv[1:])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server stops then too
    with tempfile.TemporaryDirectory(prefix="joex-bench-", dir="/var/tmp") as folder:
        Path(folder).chmod(0o755)  # the server may run as another user
        server = None if given.database_url else EmbeddedServer(Path(folder))
        try:
            url = given.database_url or (server.url if server else "")
            figures, about = asyncio.run(_measure(url, given, peers))
        finally:
            if server is not None:
                server.close()
    show(figures, about)
    given.json.parent.mkdir(parents=True, exist_ok=True)
    write_json(figures, about, given.json)
    page.write(figures, about, given.json.parent)
    if given.docs:
        page.write(figures, about, Path("docs/why"))
    say(f"written to {given.json}, and as a page beside it")
    return 1 if any(figure.met is False for figure in figures) else 0


async def _measure(url: str, given: argparse.Namespace, peers: list[System]) -> tuple[list[Figure], dict[str, str]]:
    names = given.names or list(MEASUREMENTS)
    connection = await connect(url)
    about = {
        **machine(),
        "sizes": "quick" if given.quick else "full",
        "postgresql": await connection.fetchval("SHOW server_version"),
    }
    await connection.close()
    if _WITH_PEERS.intersection(names):
        about |= await race.versions(peers)
    figures: list[Figure] = []
    for name in names:
        chosen: dict[str, Any] = {"peers": peers} if name in _WITH_PEERS else {}
        if name in _WITH_MINUTES:
            chosen["minutes"] = given.minutes
        if name in _WITH_POOLS:
            chosen["pools"] = given.pools
        made = await MEASUREMENTS[name](url, quick=given.quick, **chosen)
        figures += [replace(figure, measurement=name) for figure in made]
        await executor.pause()
    return figures, about


if __name__ == "__main__":
    sys.exit(main())

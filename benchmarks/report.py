"""The figures of a measurement, as a table for people and as JSON for programs."""

from __future__ import annotations

import json
import os
import platform
import re
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

_JOEX = "joex"


@dataclass(frozen=True, slots=True)
class Figure:
    """One number.

    Attributes:
        aim: its target, if it has one.
        met: whether it reaches that.
        system: the measured system, if several race; or the fleet.
        table: of which part of the results it is: empty, or a name.
        measurement: which one made it: a name that ``python -m benchmarks`` takes.
        worst: of a median.
        unfinished: the benchmark gave up after this value.
        documented: where a value comes from that was not measured; empty: it was.
    """

    what: str
    value: float
    unit: str
    aim: str = ""
    met: bool | None = None
    system: str = ""
    table: str = ""
    measurement: str = ""
    worst: float | None = None
    unfinished: bool = False
    documented: str = ""


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which this share of the values lies (inclusive, by linear interpolation)."""
    if len(values) == 1:
        return values[0]
    return statistics.quantiles(values, n=1000, method="inclusive")[round(share * 1000) - 1]


def machine() -> dict[str, str]:
    """The machine of the measurement. Figures of different machines can't be compared; most ratios can."""
    return {
        "measured": datetime.now(UTC).strftime("%Y-%m-%d"),
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "cpus": str(os.cpu_count()),
        "processor": _processor(),
        "load": f"{os.getloadavg()[0]:.2f} before it began",
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "python": platform.python_version(),
        "joex": version("joex"),
        "asyncpg": version("asyncpg"),
    }


def _processor() -> str:
    try:
        found = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1] if found else platform.processor()


def show(figures: Sequence[Figure], about: dict[str, str]) -> None:
    """Print the tables."""
    console = Console(width=None if os.isatty(1) else 160)
    title = "joex benchmarks: " + ", ".join(f"{name} {value}" for name, value in about.items())
    console.print(title)
    names = dict.fromkeys(["", *(figure.table for figure in figures)])
    tables = [rows for name in names for rows in (one_by_one(figures, name), *side_by_side(figures, name))]
    for rows in (*tables, *advantages(figures)):
        if len(rows) > 1:
            console.print(_table(rows))


def one_by_one(figures: Sequence[Figure], table: str = "") -> list[list[str]]:
    """The figures of Joex alone: a heading, and a line for each."""
    return [
        ["what", "value", "unit", "aim", ""],
        *(
            [figure.what, number(figure.value), figure.unit, figure.aim, _verdict(figure)]
            for figure in figures
            if not figure.system and figure.table == table
        ),
    ]


def side_by_side(figures: Sequence[Figure], table: str = "") -> list[list[list[str]]]:
    """The figures of a race: a table for each set of systems, with a line for each system."""
    tables = []
    for systems, named in _races([figure for figure in figures if figure.table == table]):
        found = {(figure.what, figure.system): _cell(figure) for figure in named}
        whats = {figure.what: f"{figure.what} ({figure.unit})" if figure.unit else figure.what for figure in named}
        lines = [[system, *(found[what, system] for what in whats)] for system in systems]
        tables.append([["system" if _JOEX in systems else "", *whats.values()], *lines])
    return tables


def _cell(figure: Figure) -> str:
    if figure.documented:
        return f"{number(figure.value)}, by its documents"
    if figure.unfinished:
        return f"over {number(figure.value)}"
    return number(figure.value) + ("" if figure.worst is None else f" (worst {number(figure.worst)})")


def _races(figures: Sequence[Figure]) -> list[tuple[tuple[str, ...], list[Figure]]]:
    """The sets of systems that raced, with their figures."""
    systems: defaultdict[str, list[str]] = defaultdict(list)
    for figure in figures:
        if figure.system:
            systems[figure.what].append(figure.system)
    races = dict.fromkeys(map(tuple, systems.values()))
    return [(race, [one for one in figures if one.system and tuple(systems[one.what]) == race]) for race in races]


def advantage(unit: str, joex: float, peer: float) -> float:
    """How many times better Joex is: of rates more is better, of times less.

    >>> advantage("jobs/s", 300, 100), advantage("ms", 2, 10)
    (3.0, 5.0)
    """
    return peer / joex if unit == "ms" else joex / peer


def advantages(figures: Sequence[Figure]) -> list[list[list[str]]]:
    """How many times better Joex is than the other systems of a race, in rates and times; as `side_by_side`."""
    tables = []
    for systems, named in _races([figure for figure in figures if figure.unit in {"jobs/s", "ms"}]):
        found = {(figure.what, figure.system): figure for figure in named}
        whats = [figure.what for figure in named if figure.system == _JOEX]
        peers = [system for system in systems if system != _JOEX]
        lines = [[peer, *(_times(found[what, _JOEX], found[what, peer]) for what in whats)] for peer in peers]
        if whats and lines:
            tables.append([["joex against", *whats], *lines])
    return tables


def _times(joex: Figure, peer: Figure) -> str:
    return f"{number(advantage(joex.unit, joex.value, peer.value))} x"


def number(value: float) -> str:
    """A number with about three significant digits.

    >>> [number(value) for value in (12345.6, 98.76, 9.876, 0.98765)]
    ['12,346', '98.8', '9.88', '0.988']
    """
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _verdict(figure: Figure) -> str:
    return "" if figure.met is None else "met" if figure.met else "MISSED"


def _table(rows: Sequence[Sequence[str]]) -> Table:
    table = Table()
    for place, name in enumerate(rows[0]):
        table.add_column(name, justify="right" if any(row[place][:1].isdigit() for row in rows[1:]) else "left")
    for row in rows[1:]:
        table.add_row(*row)
    return table


def write_json(figures: Sequence[Figure], about: dict[str, str], path: Path) -> None:
    """Write the figures as JSON."""
    content = {"about": about, "figures": [asdict(figure) for figure in figures]}
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")

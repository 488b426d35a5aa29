"""What a measurement gives, as a table for people and as JSON for programs."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Figure:
    """One number. ``aim`` says what it should be, where there is an aim, and ``met`` whether it is.

    ``system`` is what was measured, where that is one of several in a race.
    """

    what: str
    value: float
    unit: str
    aim: str = ""
    met: bool | None = None
    system: str = ""


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which this share of the values lies (inclusive, by linear interpolation)."""
    if len(values) == 1:
        return values[0]
    return statistics.quantiles(values, n=1000, method="inclusive")[round(share * 1000) - 1]


def machine() -> dict[str, str]:
    """What was measured on: figures of different machines can't be compared, ratios mostly can."""
    return {
        "cpus": str(os.cpu_count()),
        "python": platform.python_version(),
        "joex": version("joex"),
        "asyncpg": version("asyncpg"),
    }


def show(figures: Sequence[Figure], about: dict[str, str]) -> None:
    """Print the table."""
    table = Table(title="joex benchmarks: " + ", ".join(f"{name} {value}" for name, value in about.items()))
    for name in ("what", "value", "unit", "aim", ""):
        table.add_column(name, justify="right" if name == "value" else "left")
    for figure in figures:
        verdict = "" if figure.met is None else "met" if figure.met else "MISSED"
        table.add_row(figure.what, f"{figure.value:,.2f}", figure.unit, figure.aim, verdict)
    Console(width=None if os.isatty(1) else 120).print(table)


def write_json(figures: Sequence[Figure], about: dict[str, str], path: Path) -> None:
    """Write the figures as JSON."""
    content = {"about": about, "figures": [asdict(figure) for figure in figures]}
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")

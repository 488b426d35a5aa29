"""Writes the page about the benchmarks: the text of docs/why/benchmarks.md with the measured figures.

Between ``<!-- begin NAME -->`` and ``<!-- end NAME -->`` this module writes the text; people write all
other text. Figures that were not measured stay.

    python -m benchmarks.page build/benchmarks.json docs/why     writes page and plots from an earlier measurement
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.fleet import TABLE as FLEET
from benchmarks.peers.systems import JOEX, PEERS
from benchmarks.plots import draw
from benchmarks.recovery.measure import LOST, OUTAGES
from benchmarks.report import Figure, advantages, one_by_one, side_by_side
from benchmarks.storm.figures import OVER_TIME, STORM

_TEXT = Path(__file__).parent.parent / "docs" / "why" / "benchmarks.md"
_ABOUT_ALONE = ("measured", "sizes", "cpus", "processor", "memory", "load", "python", "postgresql")
_ABOUT_RACE = ("cpus", "processor", "memory", "load", "system", "postgresql", "python", "measured", "sizes")


def write(figures: Sequence[Figure], about: dict[str, str], folder: Path) -> Path:
    """Write ``benchmarks.md`` and ``benchmarks/*.png`` and ``.svg`` into a folder; returns the page."""
    text = _TEXT.read_text(encoding="utf-8")
    for name, content in _parts(figures, about).items():
        text = _replaced(text, name, content)
    draw(figures, folder / "benchmarks")
    page = folder / "benchmarks.md"
    page.write_text(text, encoding="utf-8")
    return page


def _parts(figures: Sequence[Figure], about: dict[str, str]) -> dict[str, str]:
    """The parts of the page that show these figures, by name."""
    race, ratios = side_by_side(figures), advantages(figures)
    race_about = {name: value for name, value in about.items() if name in {*_ABOUT_RACE, JOEX.name, *PEERS}}
    made = {"settings": _settings()}
    for name in dict.fromkeys(figure.measurement for figure in figures):
        alone = one_by_one([figure for figure in figures if figure.measurement == name])
        if len(alone) > 1:
            made[f"joex {name}"] = f"{_on_one_line(about)}\n\n{_markdown(alone)}"
    if race:
        made |= {"machine": _listed(race_about), "race": _several(race), "ratios": _several(ratios)}
    if any(figure.table == FLEET for figure in figures):
        tables = [*side_by_side(figures, FLEET), one_by_one(figures, FLEET)]
        made["fleet"] = "\n\n".join([_listed(race_about), *map(_markdown, tables)])
    recovery = [figure for figure in figures if figure.table in {LOST, OUTAGES}]
    if recovery:
        tables = [*side_by_side(figures, LOST), *side_by_side(figures, OUTAGES)]
        goals = [
            one_by_one(figures, LOST)[0],
            *(row for name in (LOST, OUTAGES) for row in one_by_one(figures, name)[1:]),
        ]
        made["recovery"] = "\n\n".join(
            [_listed(race_about), *map(_markdown, tables), _sources(recovery), _markdown(goals)]
        )
    if any(figure.table == STORM for figure in figures):
        over_time = [[["after", *head[1:]], *rows] for head, *rows in side_by_side(figures, OVER_TIME)]
        made["storm"] = "\n\n".join([_listed(race_about), *map(_markdown, [one_by_one(figures, STORM), *over_time])])
    return made


def _sources(figures: Sequence[Figure]) -> str:
    """Where the values come from that were not measured."""
    documented = {figure.system: figure.documented for figure in figures if figure.documented}
    return _listed(documented)


def _settings() -> str:
    """The settings of each system, from the registry of the race."""
    rows = [
        [system.name, system.language, system.settings, system.fairness or "none", system.history]
        for system in (JOEX, *PEERS.values())
    ]
    return _markdown(
        [["system", "workers in", "settings", "fairness between groups", "keeps of a finished job"], *rows]
    )


def _several(tables: Sequence[Sequence[Sequence[str]]]) -> str:
    return "\n\n".join(map(_markdown, tables))


def _listed(about: dict[str, str]) -> str:
    return "\n".join(f"- {name}: {value}" for name, value in about.items())


def _on_one_line(about: dict[str, str]) -> str:
    return ", ".join(f"{name} {about[name]}" for name in _ABOUT_ALONE if name in about)


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    head, *lines = ["| " + " | ".join(row) + " |" for row in rows]
    numbers = [any(row[place][:1].isdigit() for row in rows[1:]) for place in range(len(rows[0]))]
    return "\n".join([head, "|" + "|".join("---:" if right else "---" for right in numbers) + "|", *lines])


def _replaced(text: str, name: str, content: str) -> str:
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    made, count = re.subn(f"{begin}.*?{end}", lambda _: f"{begin}\n{content}\n{end}", text, flags=re.DOTALL)
    if count != 1:
        raise ValueError(f"{_TEXT}: expected {begin} and {end} once; found {count} of them")
    return made


def main() -> int:
    """Write the page from the JSON of a measurement."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page", description="Write the page of a measurement.")
    parser.add_argument("json", type=Path, help="what `python -m benchmarks` has written")
    parser.add_argument("folder", type=Path, help="where to: the page, and the plots in its folder benchmarks/")
    given = parser.parse_args()
    measured = json.loads(given.json.read_text(encoding="utf-8"))
    page = write([Figure(**one) for one in measured["figures"]], measured["about"], given.folder)
    print(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())

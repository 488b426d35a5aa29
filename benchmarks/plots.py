"""The plots of the race, as PNG and SVG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from benchmarks.peers import sharing, speed
from benchmarks.report import Figure, number

_OURS, _THEIRS = "#c2410c", "#64748b"
_SHADES = ("#cbd5e1", "#94a3b8", "#475569")
_JOEX = "joex"


def draw(figures: Sequence[Figure], folder: Path) -> list[Path]:
    """Draw the figures of the race; returns the files."""
    mpl.rcParams["svg.hashsalt"] = "joex"  # the same figures make the same file
    mpl.rcParams["svg.fonttype"] = "none"  # text stays text
    made: list[Path] = []
    for name, kind, panels in (
        ("drain", _bars, (speed.DRAIN, speed.DRAIN_MANY)),
        ("submit", _bars, (speed.BATCHES, speed.SINGLY, speed.PARALLEL)),
        ("latency", _spans, (speed.MEDIAN, speed.LATE)),
        ("small-tenants", _spans, (sharing.SMALL_MEDIAN, sharing.SMALL_P95, sharing.SMALL_MAX)),
        ("shares", _bars, (sharing.JAIN, sharing.BUSY_TEN)),
    ):
        there = [what for what in panels if any(figure.what == what and figure.system for figure in figures)]
        if there:
            made += _save(kind(figures, there), folder / name)
    return made


def _bars(figures: Sequence[Figure], panels: Sequence[str]) -> Canvas:
    """A panel for each figure, with a bar for each system."""
    canvas = Canvas(figsize=(4.6 * len(panels), 3.6), layout="constrained")
    axes: Axes
    for axes, what in zip(canvas.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        found = [figure for figure in reversed(figures) if figure.what == what and figure.system]
        colours = [_OURS if figure.system == _JOEX else _THEIRS for figure in found]
        bars = axes.barh([figure.system for figure in found], [figure.value for figure in found], color=colours)
        axes.bar_label(bars, [number(figure.value) for figure in found], padding=3, fontsize=8)
        axes.set_title(f"{what}\n{found[0].unit or ' '}", fontsize=9)
        axes.margins(x=0.2)
        _plain(axes)
    return canvas


def _spans(figures: Sequence[Figure], panels: Sequence[str]) -> Canvas:
    """Several quantiles of the same times, side by side for each system, on a logarithmic scale."""
    systems = list(dict.fromkeys(figure.system for figure in figures if figure.what in panels and figure.system))
    canvas = Canvas(figsize=(8.6, 0.6 + 0.55 * len(systems)), layout="constrained")
    axes = canvas.subplots()
    height = 0.8 / len(panels)
    for place, what in enumerate(panels):
        values = {figure.system: figure.value for figure in figures if figure.what == what}
        heights = [len(systems) - 1 - row - place * height for row in range(len(systems))]
        bars = axes.barh(
            heights, [values.get(system, 0.0) for system in systems], height, label=what, color=_SHADES[place]
        )
        axes.bar_label(bars, [number(values.get(system, 0.0)) for system in systems], padding=3, fontsize=7)
    axes.set_yticks([len(systems) - 1 - row - 0.4 + height / 2 for row in range(len(systems))], systems)
    axes.set_xscale("log")
    axes.set_xlabel("ms", fontsize=8)
    axes.margins(x=0.15)
    axes.legend(fontsize=7, loc="lower right")
    _plain(axes)
    return canvas


def _plain(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)


def _save(canvas: Canvas, stem: Path) -> list[Path]:
    stem.parent.mkdir(parents=True, exist_ok=True)
    files = [stem.with_suffix(".png"), stem.with_suffix(".svg")]
    canvas.savefig(files[0], dpi=150, metadata={"Software": None})
    canvas.savefig(files[1], metadata={"Date": None})
    return files

"""The plot of ``joex simulate``: waits and executors over time."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING

from joex.errors import ConfigError
from joex.extras import needs
from joex_operator.simulate.report import Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FORMATS = (".svg", ".png", ".pdf")
_UNITS = ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))
_LONGEST = 3
"""The axis has the largest unit of which the longest simulation lasts at least so many."""


def check_plot(path: Path) -> None:
    """Check that a plot is possible, before the simulation.

    Raises:
        ConfigError: the name has no known suffix.
        MissingExtra: matplotlib is not installed.
    """
    if path.suffix not in _FORMATS:
        raise ConfigError(f"--plot: expected a name that ends in {', '.join(_FORMATS)}; got {str(path)!r}")
    with needs("plot", "--plot needs"):
        import matplotlib.figure  # noqa: F401, PLC0415 - an extra


def plot(reports: Sequence[Report], path: Path) -> None:
    """Plot the waits and the executors of each policy over time.

    Raises:
        ConfigError: the file is not writable.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra

    figure = Figure(figsize=(9, 6), layout="constrained")
    waits, sizes = figure.subplots(2, 1, sharex=True)
    seconds, unit = _unit(max(one.seconds for one in reports))
    for nr, one in enumerate(reports):
        _draw(waits, sizes, one, f"C{nr}", seconds)
    waits.set(ylabel="wait, seconds", title="Waits: median and 95th percentile (dashed)")
    sizes.set(ylabel="executors", xlabel=unit, title="Executors")
    for axes in (waits, sizes):
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend()
    try:
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    except OSError as error:
        raise ConfigError(f"--plot {path}: {error.strerror}") from error


def _draw(waits: Axes, sizes: Axes, one: Report, color: str, seconds: float) -> None:
    times = [step.at / seconds for step in one.over_time]
    waits.plot(times, [_or_gap(step.wait_p50) for step in one.over_time], color=color, label=one.policy)
    waits.plot(times, [_or_gap(step.wait_p95) for step in one.over_time], color=color, linestyle="--")
    sizes.step(times, [step.executors for step in one.over_time], where="pre", color=color, label=one.policy)


def _or_gap(value: float | None) -> float:
    return nan if value is None else value


def _unit(longest: float) -> tuple[float, str]:
    return next(((seconds, unit) for seconds, unit in _UNITS if longest >= _LONGEST * seconds), _UNITS[-1])

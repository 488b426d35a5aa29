"""The command ``joex simulate``: try a pool and its policy on a trace or a workload.

It imports what is slow to import when it runs, because ``joex --help`` imports this module.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Annotated

import typer

from joex.cli.options import AsJson
from joex.cli.output import note, print_json
from joex.core.duration import parse_duration
from joex.errors import ConfigError
from joex_operator.simulate.clock import Timing

if TYPE_CHECKING:
    from joex_operator.simulate.jobs import Jobs
    from joex_operator.simulate.policies import Policy
    from joex_operator.simulate.report import Report

_WORKLOADS = (".yaml", ".yml")
_REPORTED_EVERY = 5.0
_LATEST_START = timedelta(hours=1)
_MOST_GROUPS = 10
"""In a table."""


def simulate(
    source: Annotated[
        str,
        typer.Argument(
            metavar="FILE", help="Workload (.yaml), or trace of `joex stats --trace`; '-' reads a trace from stdin."
        ),
    ],
    *,
    files: Annotated[
        list[Path] | None,
        typer.Option("--file", "-f", metavar="FILE", help="YAML file with JoexPools, as for `joex up`."),
    ] = None,
    compare: Annotated[
        list[Path] | None,
        typer.Option("--compare", metavar="FILE", help="Another such file, to compare. May be repeated."),
    ] = None,
    executors: Annotated[
        list[int] | None,
        typer.Option(
            "--executors", min=1, max=10_000, help="A fixed number of executors instead. May be repeated, to compare."
        ),
    ] = None,
    keda: Annotated[
        list[int] | None,
        typer.Option(
            "--keda",
            metavar="JOBS",
            min=1,
            max=1_000_000,
            help="The pools of --file, as KEDA's formula sizes them: an executor for so many jobs. May be repeated.",
        ),
    ] = None,
    pool_size: Annotated[int, typer.Option(min=1, max=100_000, help="With --executors: slots of each.")] = 2,
    start_up: Annotated[
        str, typer.Option(metavar="DURATION", help="Time from the decision to add an executor until it takes jobs.")
    ] = "5s",
    overhead: Annotated[
        str, typer.Option(metavar="DURATION", help="Time for which a job holds its slot beyond its run.")
    ] = "5ms",
    price: Annotated[float | None, typer.Option(min=0, help="Price of an executor for an hour.")] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the random numbers in a workload. Default: the file's.")
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=10_000,
            show_default="10; with --json all",
            help="Show at most so many groups, those that wait the longest first.",
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Plot waits and executors: .svg, .png or .pdf.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Simulate pools on a load: waits, sizes, executor hours and their cost.

    The functions that decide in production choose the jobs, their retries and the sizes. No task runs.
    """
    from joex_operator.simulate import plot as plots  # noqa: PLC0415
    from joex_operator.simulate.output import show  # noqa: PLC0415

    timing = Timing(start_up=_seconds("--start-up", start_up), overhead=_seconds("--overhead", overhead))
    if plot is not None:
        plots.check_plot(plot)
    jobs = _read(source, seed)
    policies = _policies(
        jobs, files or [], compare or [], keda=keda or [], executors=executors or [], pool_size=pool_size
    )
    reports = [_simulate(policy, jobs, timing, price, limit if as_json else None) for policy in policies]
    if plot is not None:
        plots.plot(reports, plot)
    if as_json:
        print_json({"policies": reports})
    else:
        show(reports, _MOST_GROUPS if limit is None else limit)


def _policies(
    jobs: Jobs, files: list[Path], compare: list[Path], *, keda: list[int], executors: list[int], pool_size: int
) -> list[Policy]:
    from joex_operator.simulate.policies import of_files, of_keda, of_size  # noqa: PLC0415

    if not (files or executors or compare):
        raise ConfigError("simulate: expected pools with --file, or a number with --executors")
    if keda and not files:
        raise ConfigError("simulate: --keda sizes the pools of --file")
    return [
        *([of_files(files, jobs)] if files else []),
        *(of_files([path], jobs) for path in compare),
        *(of_keda(of_files(files, jobs), number) for number in keda),
        *(of_size(number, pool_size, jobs) for number in executors),
    ]


def _read(source: str, seed: int | None) -> Jobs:
    path = Path(source)
    jobs = _read_workload(path, seed) if path.suffix in _WORKLOADS else _read_trace(path)
    if not jobs:
        raise ConfigError(f"{source}: no jobs")
    return jobs


def _read_workload(path: Path, seed: int | None) -> Jobs:
    from joex_operator.local.files import load_yaml  # noqa: PLC0415
    from joex_operator.simulate.generate import generate  # noqa: PLC0415
    from joex_operator.simulate.workload import parse_workload  # noqa: PLC0415

    documents = [document for document in load_yaml(path) if document is not None]
    if len(documents) != 1:
        raise ConfigError(f"{path}: expected one document, with period and tenants; got {len(documents)}")
    try:
        workload = parse_workload(documents[0])
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    return generate(workload, Random(workload.seed if seed is None else seed))  # noqa: S311 - a load, no secret


def _read_trace(path: Path) -> Jobs:
    from joex_operator.simulate.trace import read_trace  # noqa: PLC0415

    try:
        with nullcontext(sys.stdin) if str(path) == "-" else path.open(encoding="utf-8") as lines:
            return read_trace(lines, str(path))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8: {error.reason} at byte {error.start}") from error


def _simulate(policy: Policy, jobs: Jobs, timing: Timing, price: float | None, most_groups: int | None) -> Report:
    from joex_operator.simulate.engine import Simulation  # noqa: PLC0415
    from joex_operator.simulate.report import report  # noqa: PLC0415

    totals = Simulation(jobs, policy.pools, timing, policy.jobs_per_executor).run(_progress(policy.name, len(jobs)))
    return report(policy.name, jobs, policy.pools, totals, price, most_groups=most_groups)


def _progress(policy: str, jobs: int) -> Callable[[int], None]:
    """Report the progress of a simulation every few seconds."""
    reported = time.monotonic()

    def report_progress(come: int) -> None:
        nonlocal reported
        if time.monotonic() >= reported + _REPORTED_EVERY:
            reported = time.monotonic()
            note(f"{policy}: {come:,} of {jobs:,} jobs have arrived")

    return report_progress


def _seconds(flag: str, text: str) -> float:
    try:
        duration = parse_duration(text)
    except ValueError as error:
        raise ConfigError(f"{flag}: {error}") from error
    if duration > _LATEST_START:
        raise ConfigError(f"{flag}: expected at most 1h; got {text!r}")
    return duration.total_seconds()

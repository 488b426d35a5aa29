"""The result of a run: as text, as JSON, and as Markdown for a page."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from tests.support.chaos.checker import GUARANTEES
from tests.support.chaos.session import Result

MARK = "<!-- report of a run -->"
"""A page that has this line gets the report behind it."""
_MOST = 20


def to_text(result: Result) -> str:
    """The result in lines."""
    rows = "\n".join(f"  {what}: {found}" for what, found in _facts(result))
    told = [f"BROKEN: {breach.guarantee}: {breach.what}" for breach in result.breaches[:_MOST]]
    if len(result.breaches) > _MOST:
        told.append(f"... and {len(result.breaches) - _MOST} more")
    broken = sorted({breach.guarantee for breach in result.breaches})
    verdict = f"NOT kept: {', '.join(broken)}" if broken else f"all {len(GUARANTEES)} guarantees kept"
    return "\n".join([rows, *told, f"chaos: {verdict}"])


def to_json(result: Result) -> str:
    """The result as one line of JSON."""
    return json.dumps(asdict(result))


def to_markdown(result: Result) -> str:
    """The result as tables."""
    broken = {breach.guarantee for breach in result.breaches}
    facts = [f"| {what} | {found} |" for what, found in _facts(result)]
    verdicts = [f"| {text} | {'**broken**' if name in broken else 'kept'} |" for name, text in GUARANTEES.items()]
    return "\n".join(["| the run | |", "|---|---|", *facts, "", "| guarantee | |", "|---|---|", *verdicts]) + "\n"


def write(result: Result, path: Path) -> None:
    """Write the tables to a file; to a page with the mark, behind the mark."""
    before = path.read_text().partition(MARK) if path.exists() else ("", "", "")
    page = f"{before[0]}{MARK}\n\n" if before[1] else ""
    path.write_text(page + to_markdown(result))


def _facts(result: Result) -> list[tuple[str, str]]:
    samples, held = result.shares
    mode = "synchronous" if result.plan.is_synchronous else "asynchronous"
    return [
        ("duration", f"{result.plan.seconds / 60:g} min of faults and load, {result.seconds / 60:.1f} min in all"),
        ("seed", f"{result.plan.seed}, with {mode} replication"),
        ("faults", f"{sum(result.faults.values())}: {_counted(result.faults)}"),
        ("acts of clients", f"{_counted(result.acts)}; {result.refused} refused while the database was away"),
        ("jobs", _counted(result.jobs)),
        ("runs", f"{result.runs}"),
        ("effects in transactions", f"{result.effects}"),
        ("times of periodic tasks", f"{result.times}"),
        ("slots held for the weight", f"{_averages(held)}, on average of {samples} samples"),
        ("processes that ended", _counted(result.exits) or "none"),
    ]


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))


def _averages(held: Mapping[str, float]) -> str:
    return ", ".join(f"{group} {slots:.2f}" for group, slots in held.items())

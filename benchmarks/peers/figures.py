"""Fairness, computed from the runs of jobs: pure arithmetic."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a job, in seconds of one clock."""

    group: str
    sent: float
    start: float
    end: float

    @property
    def wait(self) -> float:
        """From its submission to its start."""
        return self.start - self.sent


def all_backlogged(runs: Sequence[Run], jobs: Mapping[str, int]) -> tuple[float, float]:
    """The window in which every group has waiting jobs: from the first start to the earliest last start of a group.

    Args:
        runs: those that have ended so far; all jobs were submitted before the first.
        jobs: how many jobs each group has in all. A group with fewer runs is backlogged to the end of the runs.
    """
    starts: defaultdict[str, list[float]] = defaultdict(list)
    for run in runs:
        starts[run.group].append(run.start)
    begin = min(run.start for run in runs)
    last = max(run.start for run in runs)
    return begin, min(max(starts[group]) if len(starts[group]) >= count else last for group, count in jobs.items())

"""What the runs of jobs say about fairness: pure arithmetic."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
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


def jain(shares: Iterable[float]) -> float:
    """Jain's index of fairness: 1 where all shares are equal, 1/n where one of n has everything.

    Jain, Chiu and Hawe: A Quantitative Measure of Fairness and Discrimination for Resource Allocation in Shared
    Computer Systems, 1984.

    >>> jain([2, 2, 2])
    1.0
    >>> jain([1, 0, 0, 0])
    0.25
    """
    given = list(shares)
    return sum(given) ** 2 / (len(given) * sum(share * share for share in given))


def slot_time(runs: Iterable[Run], begin: float, end: float) -> dict[str, float]:
    """How long each group held slots within a window, in slot-seconds."""
    held: defaultdict[str, float] = defaultdict(float)
    for run in runs:
        held[run.group] += max(0.0, min(run.end, end) - max(run.start, begin))
    return dict(held)


def all_backlogged(runs: Sequence[Run], jobs: Mapping[str, int]) -> tuple[float, float]:
    """The window in which every group has jobs that wait: from the first start, to the first last start of a group.

    Args:
        runs: those that have ended so far; all jobs were submitted before the first.
        jobs: how many jobs each group has in all. One that has had fewer runs is backlogged to the end of the runs.
    """
    starts: defaultdict[str, list[float]] = defaultdict(list)
    for run in runs:
        starts[run.group].append(run.start)
    begin = min(run.start for run in runs)
    last = max(run.start for run in runs)
    return begin, min(max(starts[group]) if len(starts[group]) >= count else last for group, count in jobs.items())

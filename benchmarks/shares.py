"""Who had which share: the arithmetic of fairness, pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Hold:
    """A slot was one group's, from ``begin`` to ``end``, on any clock."""

    group: str
    begin: float
    end: float


def slot_times(holds: Iterable[Hold], begin: float, end: float) -> dict[str, float]:
    """The slot time of each group within a window: two slots for three seconds are six."""
    times: defaultdict[str, float] = defaultdict(float)
    for hold in holds:
        times[hold.group] += max(0, min(hold.end, end) - max(hold.begin, begin))
    return dict(times)


def jain(shares: Collection[float]) -> float:
    """Jain's index of fairness: 1 where all have the same, 1/n where one of n has all.

    The shares are per unit of weight, so that weights which are kept give 1 as well. Source: R. Jain, D. Chiu, W. Hawe,
    A Quantitative Measure of Fairness and Discrimination for Resource Allocation in Shared Computer Systems, 1984.
    """
    if not any(shares):
        return 1.0
    return sum(shares) ** 2 / (len(shares) * sum(share**2 for share in shares))

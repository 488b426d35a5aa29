"""The shares of groups: the arithmetic of fairness, as pure functions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol


class Held(Protocol):
    """A group held a slot for some time, on any clock."""

    @property
    def group(self) -> str: ...
    @property
    def start(self) -> float: ...
    @property
    def end(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Hold:
    """The simplest `Held`."""

    group: str
    start: float
    end: float


def slot_time(holds: Iterable[Held], start: float, end: float) -> dict[str, float]:
    """The slot time of each group within a window: two slots for three seconds are six."""
    times: defaultdict[str, float] = defaultdict(float)
    for hold in holds:
        times[hold.group] += max(0.0, min(hold.end, end) - max(hold.start, start))
    return dict(times)


def jain(shares: Iterable[float]) -> float:
    """Jain's index of fairness: 1 if all have the same (even nothing), 1/n if one of n has all.

    Shares per unit of weight give 1 if they follow the weights. Source: R. Jain, D. Chiu, W. Hawe, A Quantitative
    Measure of Fairness and Discrimination for Resource Allocation in Shared Computer Systems, 1984.
    """
    given = list(shares)
    return sum(given) ** 2 / (len(given) * sum(share**2 for share in given)) if any(given) else 1.0

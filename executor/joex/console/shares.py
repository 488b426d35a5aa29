"""What each group of a queue would hold if all slots were shared fairly: the share that Joex steers towards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Want:
    """What a group could use. ``jobs``: those it holds, and those that could run now; ``most``: its limit."""

    jobs: int
    weight: int = 1
    most: int | None = None
    paused: bool = False

    @property
    def slots(self) -> int:
        """How many slots it could use."""
        if self.paused:
            return 0
        return self.jobs if self.most is None else min(self.jobs, self.most)


def fair_shares(wants: Sequence[Want], slots: int) -> list[float]:
    """The max-min shares of groups, by their weights: no group gets more than it can use, and others share the rest.

    >>> fair_shares([Want(100), Want(100, weight=3), Want(1)], 9)
    [2.0, 6.0, 1.0]
    """
    order = sorted(range(len(wants)), key=lambda nr: wants[nr].slots / wants[nr].weight)
    shares = [0.0] * len(wants)
    left, weights = float(slots), sum(want.weight for want in wants if want.slots)
    for nr in order:
        want = wants[nr]
        if want.slots:
            shares[nr] = min(float(want.slots), left / weights * want.weight)
            left, weights = left - shares[nr], weights - want.weight
    return shares

"""What each group of a queue would hold if all slots were shared fairly: the share that Joex steers towards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from joex.console.pieces import in_order


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
    wanted = [(want.slots, want.weight) for want in wants]
    shares = [0.0] * len(wants)
    able = [nr for nr, (most, _) in enumerate(wanted) if most]
    left, weights = float(slots), sum(wanted[nr][1] for nr in able)
    for nr in in_order(able, lambda nr: wanted[nr][0] / wanted[nr][1]):
        most, weight = wanted[nr]
        shares[nr] = min(float(most), left / weights * weight)
        left, weights = left - shares[nr], weights - weight
    return shares

"""The totals of a simulation."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import itemgetter

from joex.core.fair_queue import runnable
from joex.core.fairness import Group
from joex.core.job import State


@dataclass(slots=True)
class Takes:
    """The takes of jobs, as columns: the time, the group, and how long the job had waited."""

    at: array[float] = field(default_factory=lambda: array("d"))
    group: array[int] = field(default_factory=lambda: array("I"))
    waited: array[float] = field(default_factory=lambda: array("d"))

    def add(self, at: float, group: int, waited: float) -> None:
        """Add a take."""
        self.at.append(at)
        self.group.append(group)
        self.waited.append(waited)


class ShareTotals:
    """How evenly the groups of a queue held its slots, from samples while jobs waited.

    A group is entitled to its max-min share, by weight, of the slots in use: to no more than it could use, and what one
    group can't use the others share.
    """

    def __init__(self) -> None:
        self._held: dict[int, float] = defaultdict(float)
        self._entitled: dict[int, float] = defaultdict(float)

    def sample(self, groups: Iterable[Group], seconds: float) -> None:
        """Add what each group holds and is entitled to, for so many seconds."""
        usable = [(group.running + runnable(group), group) for group in groups]
        slots = sum(group.running for _, group in usable)
        if not slots or sum(some for some, _ in usable) == slots:
            return  # no slot is in use, or each group has what it can use
        wanting = [(some / group.weight, group) for some, group in usable if some]
        wanting.sort(key=itemgetter(0))
        weights, left = sum(group.weight for _, group in wanting), float(slots)
        for level, group in wanting:  # water-filling: the groups that want least first
            share = min(level, left / weights) * group.weight
            self._held[group.place] += group.running * seconds
            self._entitled[group.place] += share * seconds
            weights, left = weights - group.weight, left - share

    @property
    def jain(self) -> float | None:
        """Jain's index of held over entitled, weighted by share: 1 is even. None: no job ever waited.

        Source: R. Jain, D. Chiu, W. Hawe, "A quantitative measure of fairness and discrimination", DEC-TR-301, 1984.
        """
        squares = sum(held * held / self._entitled[group] for group, held in self._held.items() if held)
        return sum(self._held.values()) / squares if squares else None


class Sizes:
    """The number of executors of a pool over time, starting and draining ones included."""

    def __init__(self) -> None:
        self.points: list[tuple[float, int]] = [(0.0, 0)]
        self.started = 0
        self.removed = 0
        self.slot_seconds = 0.0

    def changed(self, now: float, by: int) -> None:
        """Add executors, or (negative) remove them."""
        at, size = self.points[-1]
        if at == now:
            self.points.pop()
        self.points.append((now, size + by))
        if by > 0:
            self.started += by
        else:
            self.removed -= by

    def at(self, time: float) -> int:
        """The number of executors at a time."""
        return self.points[bisect_right(self.points, time, key=itemgetter(0)) - 1][1]


@dataclass(slots=True)
class Totals:
    """The totals of a simulation.

    Attributes:
        slot_seconds: by group.
        shares: by queue.
        sizes: by pool.
        end: the time at which the simulation ended.
    """

    slot_seconds: list[float]
    shares: dict[str, ShareTotals]
    sizes: list[Sizes]
    taken: Takes = field(default_factory=Takes)
    ended: Counter[State] = field(default_factory=Counter)
    end: float = 0.0

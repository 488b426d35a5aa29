"""What is counted while a simulation runs."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field
from operator import itemgetter

from joex.core.job import State


@dataclass(slots=True)
class Taken:
    """Each take of a job, as columns: when it was, of which group, and how long the job had waited."""

    at: array[float] = field(default_factory=lambda: array("d"))
    group: array[int] = field(default_factory=lambda: array("I"))
    waited: array[float] = field(default_factory=lambda: array("d"))

    def add(self, at: float, group: int, waited: float) -> None:
        """Count a take."""
        self.at.append(at)
        self.group.append(group)
        self.waited.append(waited)


class Slots:
    """Slot time by group: all of it, and what a group held while more of its work waited.

    The latter, over the time it waited, is how many slots it got on average when it wanted more: what is to be fair.
    """

    def __init__(self, groups: int) -> None:
        self.all = [0.0] * groups
        self._wanting = [0.0] * groups
        self._wanted = [0.0] * groups
        self._since = [0.0] * groups
        self._waiting = [0] * groups
        self._held = [0] * groups

    def changed(self, group: int, now: float, *, waiting: int = 0, held: int = 0) -> None:
        """So many more jobs of a group wait from now on, and so many more slots are held by it."""
        seconds = now - self._since[group]
        if seconds:
            self._since[group] = now
            slots = self._held[group]
            self.all[group] += seconds * slots
            if self._waiting[group]:
                self._wanting[group] += seconds
                self._wanted[group] += seconds * slots
        self._waiting[group] += waiting
        self._held[group] += held

    def while_wanting(self, group: int) -> float | None:
        """How many slots a group held on average while it had more work; None: it never waited."""
        return self._wanted[group] / self._wanting[group] if self._wanting[group] else None


class Sizes:
    """The size of a pool over time: how many executors there were, starting and draining ones included."""

    def __init__(self) -> None:
        self.points: list[tuple[float, int]] = [(0.0, 0)]
        self.started = 0
        self.removed = 0
        self.slot_seconds = 0.0

    def changed(self, now: float, by: int) -> None:
        """So many executors more, or fewer."""
        at, size = self.points[-1]
        if at == now:
            self.points.pop()
        self.points.append((now, size + by))
        if by > 0:
            self.started += by
        else:
            self.removed -= by

    def at(self, time: float) -> int:
        """How many there were at a time."""
        return self.points[bisect_right(self.points, time, key=itemgetter(0)) - 1][1]


@dataclass(slots=True)
class Tally:
    """What a simulation has given. ``end``: the second at which it ended."""

    slots: Slots
    sizes: list[Sizes]
    taken: Taken = field(default_factory=Taken)
    ended: Counter[State] = field(default_factory=Counter)
    end: float = 0.0

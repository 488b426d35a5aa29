"""How long the runs of each task take: exponentially weighted means."""

from __future__ import annotations

from collections import OrderedDict

Name = str | int
_Kind = tuple[Name, Name | None]
"""A task, and a group of its jobs; None: all of them."""

_LEAST_RUNS = 10
_WEIGHT = 100
_MOST = 1000


class RunTimes:
    """The mean seconds for which runs held their slots, by task, and by task and group.

    A mean counts from ten runs on. The runs before weigh as a hundred at most, so a mean follows a change within some
    hundred runs. It remembers the thousand kinds that ran last.
    """

    def __init__(self) -> None:
        self._means: OrderedDict[_Kind, tuple[int, float]] = OrderedDict()

    def add(self, task: Name, group: Name, runs: int, seconds: float) -> None:
        """Add runs of a task in a group, which held their slots for so many seconds together."""
        for kind in ((task, group), (task, None)):
            before, mean = self._means.pop(kind, (0, 0.0))
            self._means[kind] = min(before + runs, _WEIGHT), (before * mean + seconds) / (before + runs)
        while len(self._means) > _MOST:
            self._means.popitem(last=False)

    def share(self, task: Name, group: Name, wait: float) -> float:
        """The part of so many seconds for which a job fills a slot. 1: all of it, or too few runs are known."""
        for kind in ((task, group), (task, None)):
            runs, mean = self._means.get(kind, (0, 0.0))
            if runs >= _LEAST_RUNS:
                return _part(mean, wait)
        return 1.0

    def shares(self, wait: float) -> dict[Name, dict[Name, float]]:
        """All known shares: by task, by group, and under ``""`` those of the task in other groups."""
        known: dict[Name, dict[Name, float]] = {}
        for (task, group), (runs, mean) in self._means.items():
            if runs >= _LEAST_RUNS:
                known.setdefault(task, {})["" if group is None else group] = _part(mean, wait)
        return known


def _part(mean: float, wait: float) -> float:
    return min(max(mean / wait, 0.0), 1.0)

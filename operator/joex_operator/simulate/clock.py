"""The time of a simulation, and what is to happen in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import Any


@dataclass(frozen=True, slots=True)
class Timing:
    """What takes time besides the jobs, in seconds.

    Attributes:
        start_up: from the decision to add an executor until it takes jobs.
        overhead: how much longer than its run a job holds its slot; so long it also takes to wake an executor.
        poll: how often a pool is looked at though nothing was heard.
    """

    start_up: float = 5.0
    overhead: float = 0.005
    poll: float = 15.0


class Clock:
    """Goes from one event to the next; of those at the same time, the first that was planned comes first."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = count()

    @property
    def next(self) -> float:
        """When something happens next; infinity: nothing will."""
        return self._events[0][0] if self._events else inf

    def plan(self, time: float, happens: Callable[..., None], *arguments: Any) -> None:
        """Let something happen at a time."""
        heappush(self._events, (time, next(self._order), happens, arguments))

    def step(self) -> None:
        """Let happen what comes next."""
        self.now, _, happens, arguments = heappop(self._events)
        happens(*arguments)

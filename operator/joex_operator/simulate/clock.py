"""The simulated time, and the events planned in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import Any


@dataclass(frozen=True, slots=True)
class Timing:
    """What takes time besides the runs, in seconds.

    Attributes:
        start_up: from the decision to add an executor until it takes jobs.
        overhead: the time for which a job holds its slot beyond its run, and in which an executor wakes up.
        poll: after which a pool is reconciled without a notification.
    """

    start_up: float = 5.0
    overhead: float = 0.005
    poll: float = 15.0


class Clock:
    """Steps from one event to the next. Events of the same time happen in the order in which they were planned."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = count()

    @property
    def next(self) -> float:
        """The time of the next event; infinity: there is none."""
        return self._events[0][0] if self._events else inf

    def plan(self, time: float, happens: Callable[..., None], *arguments: Any) -> None:
        """Plan an event."""
        heappush(self._events, (time, next(self._order), happens, arguments))

    def step(self) -> None:
        """Go to the next event, and let it happen."""
        self.now, _, happens, arguments = heappop(self._events)
        happens(*arguments)

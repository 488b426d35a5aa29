"""The buffer of the log lines of runs.

It is bounded, in lines and in bytes, and adding to it never waits. When it is full, the tenant that has the most there
loses the newest line of its run that has the most: a tenant that floods the buffer, with however many runs, harms no
other one.
"""

from __future__ import annotations

import math
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING

from joex.core.text import LONGEST_TEXT
from joex.runtime.text import storable

if TYPE_CHECKING:
    from uuid import UUID

    from joex.core.job import TakenJob

_ROOM = 4_000_000  # bytes: ends of runs wait until a full buffer is written, which takes some 30 ms next to the server
_SHORT = 200  # bytes; as many lines of this size fit as the buffer may have lines
_LINE_BYTES = 100  # the overhead of a line


@dataclass(eq=False, slots=True)
class Line:
    """A line of a run, logged at this time of the monotonic clock.

    ``size``: its bytes, about; ``cost``: what it takes of the buffer.
    """

    job: TakenJob
    at: float
    level: str
    message: str
    size: int
    cost: int


@dataclass(eq=False, slots=True)
class _Run:
    lines: deque[Line] = field(default_factory=deque)
    cost: int = 0


@dataclass(eq=False, slots=True)
class _Tenant:
    runs: defaultdict[UUID, _Run] = field(default_factory=lambda: defaultdict(_Run))
    cost: int = 0


_NO_TENANT, _NO_RUN = _Tenant(), _Run()
_cost = attrgetter("cost")


class LogBuffer:
    """The buffer. Its methods may be called from any thread.

    Args:
        most: the most lines. A long line takes the room of several.

    Attributes:
        lock: held while the buffer changes. The garbage collector may begin then, and call a finalizer of a task, which
            logs: so its thread may acquire it again, and lines wait in `_arrived` while the buffer changes.
    """

    def __init__(self, most: int) -> None:
        self._room = max(_ROOM, _SHORT * most)
        self._least = self._room // most  # what a line costs of it
        self.lock = threading.RLock()
        self._is_changing = False
        self._arrived: deque[tuple[TakenJob, float, str, str]] = deque()
        self._tenants: defaultdict[tuple[str, str], _Tenant] = defaultdict(_Tenant)
        self._cost = 0
        self._dropped = 0

    @property
    def is_empty(self) -> bool:
        """Whether no line waits."""
        return not (self._tenants or self._arrived)

    def add(self, job: TakenJob, level: str, message: str) -> None:
        """Add a line; if there is no room for all, drop one, perhaps this one."""
        # (A subclass of str may have methods of its own, of which none must run here.)
        self._arrived.append((job, time.monotonic(), level, str.__str__(message)))
        with self.lock:
            if not self._is_changing:
                self._sort_in()

    def _sort_in(self) -> None:
        self._is_changing = True
        try:
            while self._arrived:
                self._keep(*self._arrived.popleft())
        finally:
            self._is_changing = False

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Held while the buffer changes otherwise, in the event loop."""
        with self.lock:
            self._sort_in()
            self._is_changing = True
            try:
                yield
            finally:
                self._is_changing = False

    def _keep(self, job: TakenJob, at: float, level: str, message: str) -> None:
        # (An estimate: to clean a line and to encode it takes longer than to drop it.)
        size = _LINE_BYTES + min(len(message), LONGEST_TEXT) * (1 if message.isascii() else 3)
        cost = max(size, self._least)
        if self._cost + cost <= self._room or self._makes_room_for(job, cost):
            line = Line(job, at, level, storable(message), size, cost)
            self._charged(job, cost).lines.append(line)

    def take(self, most: float = math.inf, size: float = math.inf, until: float = math.inf) -> list[Line]:
        """Take lines that were there at this time: at most so many, of so many bytes, but one in any case.

        The run whose first line is the oldest comes first, so that none waits for what others log without a pause.
        """
        taken: list[Line] = []
        with self._changing():
            runs = [run for tenant in self._tenants.values() for run in tenant.runs.values()]
            for run in sorted(runs, key=lambda run: run.lines[0].at):
                job, cost = run.lines[0].job, 0
                while run.lines and run.lines[0].at <= until and len(taken) < most:
                    size -= run.lines[0].size
                    if size < 0 and taken:
                        break
                    taken.append(run.lines.popleft())
                    cost += taken[-1].cost
                self._free(job, cost)
        return taken

    def put_back(self, lines: list[Line]) -> None:
        """Put lines back that were taken. The buffer may be fuller than full then."""
        with self._changing():
            for line in reversed(lines):
                self._charged(line.job, line.cost).lines.appendleft(line)

    def dropped(self) -> int:
        """How many lines were dropped since the last call."""
        with self._changing():
            dropped, self._dropped = self._dropped, 0
        return dropped

    def _makes_room_for(self, job: TakenJob, cost: int) -> bool:
        """Drop lines of the tenant and run that have the most; False: with this line, they are this one's."""
        own_tenant = self._tenants.get(job.tenant, _NO_TENANT)
        own_run = own_tenant.runs.get(job.lock_id, _NO_RUN)
        needed = min(self._cost + cost - self._room, cost)  # (what was put back may stay)
        gone: list[Line] = []
        while needed > 0:
            if (run := self._longest(own_tenant, own_run, cost)) is None:
                for line in reversed(gone):
                    self._charged(line.job, line.cost).lines.append(line)
                self._dropped += 1
                return False
            gone.append(run.lines.pop())
            self._free(gone[-1].job, gone[-1].cost)
            needed -= gone[-1].cost
        self._dropped += len(gone)
        return True

    def _longest(self, own_tenant: _Tenant, own_run: _Run, cost: int) -> _Run | None:
        """The run whose newest line is to go for one of this cost; None: its own has the most, with it."""
        if self._cost - own_run.cost <= own_run.cost + cost:  # (as mostly: all others together have no more)
            return None
        tenant = max(self._tenants.values(), key=_cost)
        if tenant.cost <= own_tenant.cost + cost:
            tenant = own_tenant
        run = max(tenant.runs.values(), key=_cost, default=own_run)
        return None if tenant is own_tenant and run.cost <= own_run.cost + cost else run

    def _charged(self, job: TakenJob, cost: int) -> _Run:
        """The run of a job, with this cost added to its own."""
        tenant = self._tenants[job.tenant]
        run = tenant.runs[job.lock_id]
        self._cost += cost
        tenant.cost += cost
        run.cost += cost
        return run

    def _free(self, job: TakenJob, cost: int) -> None:
        """Take this cost off a run whose lines have gone, and forget the run if it has none left."""
        if not self._charged(job, -cost).lines:
            tenant = self._tenants[job.tenant]
            del tenant.runs[job.lock_id]
            if not tenant.runs:
                del self._tenants[job.tenant]

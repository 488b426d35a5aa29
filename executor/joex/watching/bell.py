"""The bell that rings for workers that wait for work: one connection for all of them in a process.

A submission tells of a job while its transaction is open, to those who had said then that they wait (`wake` in SQL).
So after somebody has said so, the queue is looked at again and again until all transactions that were open at that
time have ended (`joex.core.looks`); and again when a job is due there, or a run overdue; and now and then in any
case, for a notification can get lost. Through a pooler none comes: there it is looked every second.

One ring is one job, so it is heard by one of those who wait, the first who came; who gets a job rings for the next one.
Who takes nothing above some priority can't speak for the others: there is a line for each such limit.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from uuid import uuid4

from joex.core.looks import Looks
from joex.store import executors, keyed
from joex.store.database import POLL_EVERY
from joex.store.errors import NO_MESSAGE
from joex.store.statement import Connection
from joex.watching.link import LINGER, Attendant, Connect, Link

_LEASE = 60.0
_RENEW_EVERY = 20.0
_LOCKED_RETRY_IN = 0.2  # a job that is due and not taken: somebody has locked its row


class Waiter:
    """One who waits for work."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()
        self._error: BaseException | None = None

    def ring(self, error: BaseException | None = None) -> None:
        """There may be work; or, with an error, there never will be any."""
        self._error = error
        self._rung.set()

    @property
    def is_rung(self) -> bool:
        """There may be work, and it has not heard of that yet."""
        return self._rung.is_set()

    async def rung(self) -> None:
        """Wait until there may be work."""
        await self._rung.wait()
        self._rung.clear()
        if self._error is not None:
            raise self._error


@dataclass(slots=True)
class _Line:
    """What is known of a queue while somebody waits there."""

    looks: Looks | None
    look_at: float
    renew_at: float


class Bell:
    """Rings for workers.

    Args:
        connect: gives a connection.
    """

    def __init__(self, connect: Connect) -> None:
        self._name = f"worker {uuid4()}"
        self._waiting: dict[str, dict[bytes | None, deque[Waiter]]] = {}
        self._changed = asyncio.Event()
        self._attendant = Attendant("joex bell", connect, self._serve, lambda: self._waiting, self._fail)

    @asynccontextmanager
    async def waiting(self, queue: str, limit: bytes | None) -> AsyncIterator[Waiter]:
        """Wait for work in a queue, for the time of a block; ``limit``: whose limit of priorities is the same."""
        waiter = Waiter()
        self._waiting.setdefault(queue, {}).setdefault(limit, deque()).append(waiter)
        self._changed.set()
        self._attendant.call()
        try:
            yield waiter
        finally:
            self._remove(queue, limit, waiter)

    def ring(self, queue: str) -> None:
        """There may be a job in this queue: tell the first in each line."""
        for line in self._waiting.get(queue, {}).values():
            line[0].ring()
            line.rotate(-1)

    async def close(self) -> None:
        """End the connection. Who still waits gets an error."""
        await self._attendant.close()

    def _remove(self, queue: str, limit: bytes | None, waiter: Waiter) -> None:
        lines = self._waiting[queue]
        lines[limit].remove(waiter)
        if not lines[limit]:
            del lines[limit]
        if not lines:
            del self._waiting[queue]
        elif waiter.is_rung:
            self.ring(queue)  # it has heard of a job, and does not come for it
        self._changed.set()

    def _fail(self, error: BaseException) -> None:
        for lines in self._waiting.values():
            for line in lines.values():
                for waiter in line:
                    waiter.ring(error)

    async def _serve(self, connection: Connection) -> None:
        await _Session(self, Link(connection, self._changed), self._name, self._waiting, self._changed).run()


class _Session:
    """One connection of the bell."""

    def __init__(
        self,
        bell: Bell,
        link: Link,
        name: str,
        waiting: dict[str, dict[bytes | None, deque[Waiter]]],
        changed: asyncio.Event,
    ) -> None:
        self._bell = bell
        self._link = link
        self._connection = link.connection
        self._name = name
        self._waiting = waiting
        self._changed = changed
        self._lines: dict[str, _Line] = {}
        self._clock = asyncio.get_running_loop().time

    async def run(self) -> None:
        """Ring, until nobody waits.

        Raises:
            DatabaseUnavailable: the connection is lost.
        """
        async with self._link.held(lambda connection: keyed.watch_no_more(connection, self._name)):
            await self._link.listen("joex_wake", self._hear)
            while True:
                self._changed.clear()
                for queue in list(self._waiting):
                    await self._attend(queue)
                if self._waiting:
                    # (A line where nobody waits any more stays as it is: its time must not count.)
                    looks = (line.look_at for queue, line in self._lines.items() if queue in self._waiting)
                    await self._link.rung(min(looks, default=0.0))
                elif not await self._link.rung(self._clock() + LINGER):
                    return

    async def _attend(self, queue: str) -> None:
        """Say that somebody waits in the queue, and look at it, each when it is time."""
        line = self._lines.get(queue)
        if self._link.is_pooled:
            line = self._lines.setdefault(queue, _Line(None, 0.0, math.inf))
        elif line is None or self._clock() >= line.renew_at:
            await self._link.ask(keyed.watch(self._connection, self._name, queue, _LEASE))
            horizon = await self._link.ask(executors.horizon(self._connection))
            now = self._clock()
            line = self._lines[queue] = _Line(Looks(horizon), now, now + _RENEW_EVERY)
        if self._clock() >= line.look_at:
            next_due, oldest_xid = await self._link.ask(keyed.accept_state(self._connection, queue))
            self._bell.ring(queue)
            line.look_at = self._clock() + POLL_EVERY if self._link.is_pooled else line.renew_at
            if next_due is not None:
                line.look_at = min(line.look_at, self._clock() + (next_due if next_due > 0 else _LOCKED_RETRY_IN))
            if line.looks is not None:
                line.look_at = min(line.look_at, self._clock() + line.looks.look_in)
                line.looks = line.looks.after(oldest_xid)

    def _hear(self, payload: str) -> None:
        try:
            queue = str(json.loads(payload)["queue"])
        except NO_MESSAGE:
            return
        self._bell.ring(queue)

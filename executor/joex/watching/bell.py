"""The bell that rings for workers that wait for work: one connection for all of them in a process.

A submission tells of a job while its transaction is open, to those who had said then that they wait (joex.wake in SQL).
So after somebody has said so, the queue is looked at again and again until all transactions that were open at that
time have ended (`joex.core.looks`); and again when a job is due there, or a run overdue; and now and then in any
case, for a notification can get lost.

One ring is one job, so it is heard by one of those who wait, the first who came; who gets a job rings for the next one.
Who takes nothing above some priority can't speak for the others: there is a line for each such limit.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar
from uuid import uuid4

from joex.core.backoff import retry_delay
from joex.core.looks import Looks
from joex.errors import DatabaseUnavailable, JoexError
from joex.store import executors, keyed
from joex.store.errors import translated
from joex.store.statement import Connection

T = TypeVar("T")

_LEASE = 60.0
_RENEW_EVERY = 20.0
_LOCKED_RETRY_IN = 0.2  # a job that is due and not taken: somebody has locked its row
_STATEMENT_WITHIN = 10.0
_LINGER = 1.0  # seconds for which an idle connection is kept: a worker that has done its job comes again
_FIRST_RETRY, _LONGEST_RETRY = timedelta(seconds=0.1), timedelta(seconds=5)


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
        connect: gives a connection for the time of a block, with errors translated.
    """

    def __init__(self, connect: Callable[[], AbstractAsyncContextManager[Connection]]) -> None:
        self._connect = connect
        self._name = f"worker {uuid4()}"
        self._waiting: dict[str, dict[bytes | None, deque[Waiter]]] = {}
        self._changed = asyncio.Event()
        self._work: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def waiting(self, queue: str, limit: bytes | None) -> AsyncIterator[Waiter]:
        """Wait for work in a queue, for the time of a block; ``limit``: whose limit of priorities is the same."""
        waiter = Waiter()
        self._waiting.setdefault(queue, {}).setdefault(limit, deque()).append(waiter)
        self._changed.set()
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._serve(), name="joex bell")
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
        self._fail(JoexError("the client was closed"))
        work, self._work = self._work, None
        if work is not None:
            work.cancel()
            await asyncio.wait([work])

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

    async def _serve(self) -> None:
        failures = 0
        while self._waiting:
            try:
                async with self._connect() as connection:
                    await _Session(self, connection, self._name, self._waiting, self._changed).run()
                failures = 0
            except DatabaseUnavailable:
                failures += 1
                await asyncio.sleep(retry_delay(_FIRST_RETRY, failures, _LONGEST_RETRY).total_seconds())
            except Exception as error:  # noqa: BLE001 - whatever it is, who waits must not wait for ever
                self._fail(error)
                return


class _Session:
    """One connection of the bell."""

    def __init__(
        self,
        bell: Bell,
        connection: Connection,
        name: str,
        waiting: dict[str, dict[bytes | None, deque[Waiter]]],
        changed: asyncio.Event,
    ) -> None:
        self._bell = bell
        self._connection = connection
        self._name = name
        self._waiting = waiting
        self._changed = changed
        self._lines: dict[str, _Line] = {}
        self._is_lost = False
        self._clock = asyncio.get_running_loop().time

    async def run(self) -> None:
        """Ring, until nobody waits.

        Raises:
            DatabaseUnavailable: the connection is lost.
        """
        try:
            self._connection.add_termination_listener(self._lose)
            with translated():
                await self._within(self._connection.add_listener("joex_wake", self._hear))
            while self._waiting or (await self._has_changed(self._clock() + _LINGER) and self._waiting):
                self._changed.clear()
                if self._is_lost:
                    raise DatabaseUnavailable("the connection to the database is lost")
                for queue in list(self._waiting):
                    await self._attend(queue)
                await self._has_changed(min(line.look_at for line in self._lines.values()))
        finally:
            await self._leave()

    async def _attend(self, queue: str) -> None:
        """Say that somebody waits in the queue, and look at it, each when it is time."""
        line = self._lines.get(queue)
        if line is None or self._clock() >= line.renew_at:
            await self._within(keyed.watch(self._connection, self._name, queue, _LEASE))
            horizon = await self._within(executors.horizon(self._connection))
            now = self._clock()
            line = self._lines[queue] = _Line(Looks(horizon), now, now + _RENEW_EVERY)
        if self._clock() >= line.look_at:
            next_due, oldest_xid = await self._within(keyed.look(self._connection, queue))
            self._bell.ring(queue)
            line.look_at = line.renew_at
            if next_due is not None:
                line.look_at = min(line.look_at, self._clock() + (next_due if next_due > 0 else _LOCKED_RETRY_IN))
            if line.looks is not None:
                line.look_at = min(line.look_at, self._clock() + line.looks.look_in)
                line.looks = line.looks.after(oldest_xid)

    async def _has_changed(self, until: float) -> bool:
        """Wait for a change, until then at the latest; whether there was one."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                return await self._changed.wait()
        return False

    async def _leave(self) -> None:
        """Leave no listener on a connection that others use after us."""
        is_left = False
        try:
            with suppress(JoexError, OSError), translated():
                self._connection.remove_termination_listener(self._lose)
                async with asyncio.timeout(0 if self._is_lost else _STATEMENT_WITHIN):
                    await keyed.watch_no_more(self._connection, self._name)
                    await self._connection.remove_listener("joex_wake", self._hear)
                is_left = True
        finally:
            if not is_left:
                with suppress(JoexError), translated():
                    self._connection.terminate()

    async def _within(self, answer: Awaitable[T]) -> T:
        async with asyncio.timeout(_STATEMENT_WITHIN):
            return await answer

    def _lose(self, _connection: object) -> None:
        self._is_lost = True
        self._changed.set()

    def _hear(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        self._bell.ring(json.loads(str(payload))["queue"])

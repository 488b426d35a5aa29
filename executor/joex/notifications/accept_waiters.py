"""One connection for all workers of a client that wait for work.

After the announcement that a worker waits in a queue, the connection polls the queue until the race with open
transactions is settled (`joex.core.recheck`); again when a job is due there, or a run overdue; and now and then in any
case, because a notification can get lost. Notifications do not pass a pooler: there, and while there is a flood of
them, it polls every second.

A notification is about one job, and wakes one worker: the one that has waited longest. A worker that gets a job wakes
the next one. The job may be due later, as those of a queue that has been resumed may be: so after a notification the
connection reads again when the next one is due, once for all notifications of a moment, because all waiting connections
hear of each job. Workers with different priority limits wait in separate lines, because one that accepts nothing above
its limit may leave a job that the others accept.
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

from joex.core.recheck import Recheck
from joex.notifications.listener import LINGER, Connect, Floods, Listener, ListenerLoop
from joex.store import worker_runs
from joex.store.database import POLL_EVERY
from joex.store.errors import NO_MESSAGE
from joex.store.horizon import announce
from joex.store.statement import Connection

_LEASE = 60.0
_RENEW_EVERY = 20.0
_READ_WITHIN = 0.2
_LOCKED_RETRY_IN = 0.2  # a due job is not taken while another transaction locks its row


class Waiter:
    """A worker that waits for work."""

    def __init__(self) -> None:
        self._wakeup = asyncio.Event()
        self._error: BaseException | None = None

    def wake(self, error: BaseException | None = None) -> None:
        """Wake the worker: there may be work; or, with an error, there never will be any."""
        self._error = error
        self._wakeup.set()

    @property
    def is_woken(self) -> bool:
        """Whether there may be work that the worker has not looked for yet."""
        return self._wakeup.is_set()

    async def woken(self) -> None:
        """Wait until there may be work."""
        await self._wakeup.wait()
        self._wakeup.clear()
        if self._error is not None:
            raise self._error


class AcceptWaiters:
    """Wakes waiting workers.

    Args:
        connect: lends a connection.
    """

    def __init__(self, connect: Connect) -> None:
        self.waiting: dict[str, dict[bytes | None, deque[Waiter]]] = {}
        """By queue and priority limit; the worker that has waited longest comes first."""
        self.changed: asyncio.Event = asyncio.Event()
        """Set when the waiters have changed."""
        self._name = f"worker {uuid4()}"
        self._floods = Floods()
        self._loop = ListenerLoop("joex accept waiters", connect, self._serve, lambda: self.waiting, self._fail)

    @asynccontextmanager
    async def wait(self, queue: str, limit: bytes | None) -> AsyncIterator[Waiter]:
        """Wait for work in a queue, for the time of a block; the worker accepts no priority above ``limit``."""
        waiter = Waiter()
        self.waiting.setdefault(queue, {}).setdefault(limit, deque()).append(waiter)
        self.changed.set()
        self._loop.start()
        try:
            yield waiter
        finally:
            self._remove(queue, limit, waiter)

    def wake(self, queue: str) -> None:
        """Wake the first worker in each line of this queue: it may have a job."""
        for line in self.waiting.get(queue, {}).values():
            line[0].wake()
            line.rotate(-1)

    async def close(self) -> None:
        """End the connection. Waiting workers get an error."""
        await self._loop.close()

    def _remove(self, queue: str, limit: bytes | None, waiter: Waiter) -> None:
        lines = self.waiting[queue]
        lines[limit].remove(waiter)
        if not lines[limit]:
            del lines[limit]
        if not lines:
            del self.waiting[queue]
        elif waiter.is_woken:
            self.wake(queue)  # it was woken for a job, and leaves without it: wake the next one
        self.changed.set()

    def _fail(self, error: BaseException) -> None:
        for lines in self.waiting.values():
            for line in lines.values():
                for waiter in line:
                    waiter.wake(error)

    async def _serve(self, connection: Connection) -> None:
        await _QueueWatch(self, Listener(connection, self.changed, self._floods), self._name).run()


@dataclass(slots=True)
class _Queue:
    """The state of a queue in which workers wait.

    Attributes:
        recheck: None if it is settled, or none is needed.
        read_at: when to read when a job is due, because a notification has come.
    """

    recheck: Recheck | None
    poll_at: float
    renew_at: float
    read_at: float = math.inf


class _QueueWatch:
    """Watches the queues with one connection."""

    def __init__(self, waiters: AcceptWaiters, listener: Listener, name: str) -> None:
        self._waiters = waiters
        self._listener = listener
        self._connection = listener.connection
        self._name = name
        self._queues: dict[str, _Queue] = {}
        self._clock = asyncio.get_running_loop().time

    async def run(self) -> None:
        """Wake workers, until none waits.

        Raises:
            DatabaseUnavailable: the connection is lost.
        """
        waiting = self._waiters.waiting
        async with self._listener.held(lambda connection: worker_runs.watch_no_more(connection, self._name)):
            await self._listener.listen("joex_wake", self._hear)
            while True:
                self._waiters.changed.clear()
                for name in list(waiting):
                    await self._attend(name)
                now = self._clock()
                self._queues = {
                    name: queue for name, queue in self._queues.items() if name in waiting or now < queue.renew_at
                }
                if waiting:
                    # (Skip queues where no worker waits any more: their times must not count.)
                    known = (queue for name, queue in self._queues.items() if name in waiting)
                    await self._listener.woken(min((min(queue.poll_at, queue.read_at) for queue in known), default=0.0))
                elif not await self._listener.woken(self._clock() + LINGER):
                    return

    async def _attend(self, name: str) -> None:
        """Announce that workers wait in the queue, and poll it, each when it is due."""
        queue, ask, is_deaf = self._queues.get(name), self._listener.ask, self._listener.is_deaf
        if queue is None or self._clock() >= queue.renew_at:
            recheck = None
            if not is_deaf:
                watch = worker_runs.watch(self._connection, self._name, name, _LEASE)
                recheck = await ask(announce(self._connection, watch))
            now = self._clock()
            queue = self._queues[name] = _Queue(recheck, now, now + _RENEW_EVERY)
        is_due = self._clock() >= queue.poll_at
        if is_due or self._clock() >= queue.read_at:
            queue.read_at = math.inf
            next_due, oldest_xid = await ask(worker_runs.accept_state(self._connection, name))
            now = self._clock()
            if is_due:
                self._waiters.wake(name)
                queue.poll_at = now + POLL_EVERY if is_deaf else queue.renew_at
            if next_due is not None:
                queue.poll_at = min(queue.poll_at, now + (next_due if next_due > 0 else _LOCKED_RETRY_IN))
            if is_due and queue.recheck is not None:
                if queue.recheck.settles(oldest_xid, now):
                    queue.recheck = None
                else:
                    queue.poll_at = min(queue.poll_at, queue.recheck.due_at)

    def _hear(self, payload: str) -> None:
        try:
            queue = str(json.loads(payload)["queue"])
        except NO_MESSAGE:
            return
        self._waiters.wake(queue)
        if (known := self._queues.get(queue)) is not None and known.read_at == math.inf:
            known.read_at = self._clock() + _READ_WITHIN
            if queue in self._waiters.waiting:  # (else the next caller that waits reads it)
                self._waiters.changed.set()

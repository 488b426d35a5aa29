"""How workers take jobs, and wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any, Protocol

from joex.client.keyed_model import NO_LIMIT, KeyedJob, keyed_job, name_of, pack, type_and_id
from joex.client.submissions import invalid
from joex.client.worker import Worker
from joex.core.duration import parse_duration
from joex.core.job import check_name
from joex.errors import DatabaseUnavailable, InvalidJob, JoexError
from joex.store import worker_runs
from joex.store.drivers import AnyConnection
from joex.store.json_text import json_text, read_json
from joex.store.keyed import KeyedRow

_RETRY_IN = 1.0  # seconds


class Turn(Protocol):
    """What lets calls look for a job by turns, such as a semaphore."""

    def locked(self) -> bool:
        """Whether a call would wait for its turn."""

    async def acquire(self) -> object:
        """Wait for a turn."""

    def release(self) -> None:
        """End the turn."""


class AcceptingWorker(Worker):
    """Accepts jobs, too."""

    async def accept(
        self,
        job_type: Any,
        max_priority: Any = NO_LIMIT,
        *,
        wait: timedelta | float | str = 0,
        worker: str = "worker",
        connection: AnyConnection | None = None,
    ) -> KeyedJob | None:
        """Take the next job of a type, to run it yourself; None if there is none.

        The run owns the job as long as it calls `update` within the type's timeout (see `set_timeout`; 60 seconds by
        default). Call `finish` in the end.

        Args:
            job_type: the type; or the name of another queue, whose jobs may have any task as their type.
            max_priority: take no job above it: if priorities are times, no job that is not due.
            wait: the longest time to wait for a job; by default the call returns at once. While the database is away,
                the wait goes on.
            worker: the name of the worker; Joex only shows it.
            connection: take the job in this connection's transaction: if that rolls back, the job was not taken.
        """
        wanted = _wanted(job_type, max_priority, worker)
        with invalid("wait"):
            patience = parse_duration(wait).total_seconds()
        if patience and connection is not None:
            raise InvalidJob(
                "wait: expected none with a connection: an open transaction receives no notifications; got both"
            )
        if not patience:
            return _read(await self._accept(*wanted, connection, patiently=True))
        deadline = asyncio.get_running_loop().time() + patience
        with suppress(DatabaseUnavailable):
            if found := await self._accept(*wanted):
                return _read(found)
        return _read(await self._accept_later(*wanted, deadline))

    async def _accept_in_turn(
        self,
        job_type: Any,
        max_priority: Any = NO_LIMIT,
        *,
        worker: str,
        turn: Turn | None,
        deadline: float | None = None,
        waits: bool = False,
    ) -> KeyedRow | None:
        """As `accept`, for a caller over HTTP: it looks once, or waits for a job. Its payloads are unread.

        Args:
            job_type: likewise.
            max_priority: likewise.
            worker: likewise.
            turn: held while the call looks for a job, but not while it waits for one.
            deadline: the time of the loop's clock at which the wait, also for the turn, ends; None: it has no end.
            waits: whether to wait for a job until the deadline.
        """
        wanted = _wanted(job_type, max_priority, worker)
        if waits and deadline is not None:
            return await self._accept_later(*wanted, deadline, turn)
        async with _held(turn, deadline) as is_held:
            return await self._accept(*wanted, patiently=True) if is_held else None

    async def _accept(
        self,
        queue: str,
        worker: str,
        limit: bytes | None,
        connection: AnyConnection | None = None,
        *,
        patiently: bool = False,
    ) -> KeyedRow | None:
        """Take a job, or none. If this call is cancelled in the middle, it gives the job back."""

        async def take() -> KeyedRow | None:
            async with self._connections.using(connection, patiently=patiently) as used:
                found = await worker_runs.accept(used, queue, 1, worker, limit)
            return found[0] if found else None

        if connection is not None:
            return await take()
        taking = asyncio.ensure_future(take())
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            with suppress(JoexError):  # the job's timeout frees it then
                job = await taking
                if job is not None and job.lock_id is not None:
                    await self.give_back(*type_and_id(job), job.lock_id)
            raise

    async def _accept_later(
        self,
        queue: str,
        worker: str,
        limit: bytes | None,
        deadline: float,
        turn: Turn | None = None,
    ) -> KeyedRow | None:
        waiters = self._connections.accept_waiters
        while True:
            poll_at = deadline
            async with AsyncExitStack() as line:  # in it are no workers that wait for their turn
                async with _held(turn, deadline) as is_held:
                    if not is_held:
                        return None
                    waiter = await line.enter_async_context(waiters.wait(queue, limit))
                    try:
                        found = await self._accept(queue, worker, limit)
                    except DatabaseUnavailable:
                        found, poll_at = None, min(deadline, asyncio.get_running_loop().time() + _RETRY_IN)
                    except BaseException:  # such as a token that was revoked meanwhile
                        waiter.wake()  # it may have been woken for a job: it leaves that to the next worker in line
                        raise
                if found is not None:
                    waiters.wake(queue)  # the next worker in line looks for more
                    return found
                try:
                    async with asyncio.timeout_at(poll_at):
                        await waiter.woken()
                except TimeoutError:
                    if poll_at == deadline:
                        return None
            if turn is not None and turn.locked():
                waiters.wake(queue)  # another worker may look earlier


def _read(row: KeyedRow | None) -> KeyedJob | None:
    if row is None:
        return None
    data, opts = read_json(json_text("data", row.data)), read_json(json_text("opts", row.opts))
    return replace(keyed_job(replace(row, data=data, opts=opts)), lock_id=row.lock_id)


def _wanted(job_type: Any, max_priority: Any, worker: str) -> tuple[str, str, bytes | None]:
    """The queue, the worker and the packed limit of a call of `accept`."""
    queue = name_of("type", job_type)
    with invalid():
        check_name("worker", worker)
    return queue, worker, None if max_priority is NO_LIMIT else pack("max_priority", max_priority)


@asynccontextmanager
async def _held(turn: Turn | None, deadline: float | None) -> AsyncIterator[bool]:
    """Held during a turn; False: it did not come before the deadline."""
    if turn is None:
        yield True
        return
    try:
        async with asyncio.timeout_at(deadline):
            await turn.acquire()
    except TimeoutError:
        yield False
        return
    try:
        yield True
    finally:
        turn.release()

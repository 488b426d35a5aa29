"""The watcher of a client: serves all waits on one connection, while there are any."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Any, TypeVar
from uuid import UUID, uuid4

from joex.core.duration import format_duration, parse_duration
from joex.errors import ConfigError
from joex.notifications.job_watch import JobWatch
from joex.notifications.listener import Connect, Floods, Listener, ListenerLoop
from joex.notifications.streams import Changes, Event, Events, Read, Streams
from joex.store.statement import Connection

T = TypeVar("T")


class Watcher:
    """Watches jobs and receives events.

    During a wait it keeps one connection and one row in the table of subscribers. While the database is away, waits go
    on: the changes of jobs come later, events of that time are lost. A permanent error, such as a wrong URL
    or a missing schema, ends all waits.

    Args:
        connect: lends a connection.
    """

    def __init__(self, connect: Connect) -> None:
        self._name = f"client {uuid4()}"
        self._streams = streams = Streams()
        self._floods = Floods()
        self._loop = ListenerLoop("joex watcher", connect, self._serve, lambda: bool(streams), streams.fail)

    @asynccontextmanager
    async def watch(
        self, ids: Iterable[UUID], read: Read[T], *, states: Collection[str] | None = None
    ) -> AsyncIterator[AsyncIterator[tuple[UUID, T | None]]]:
        """Watch jobs for the time of a block.

        Gives an iterator over ids and what ``read`` returned: first of each job, then of each changed job, only the
        latest if several changes have come; None: the job is gone. It ends when all are gone.

        Args:
            ids: the jobs.
            read: reads all changed jobs in one query; streams with the same function share it.
            states: leave out jobs that are in no such state (those that are gone come in any case).
        """
        changes = Changes(ids, read, states)
        with self._added(changes):
            yield changes

    async def wait(
        self,
        ids: Iterable[UUID],
        read: Read[T],
        is_reached: Callable[[T], bool],
        *,
        states: Collection[str],
        timeout: timedelta | float | str | None = None,  # noqa: ASYNC109 - it is the caller's
    ) -> dict[UUID, T | None]:
        """Wait until each job has reached its state, or is gone (None).

        Args:
            ids: the jobs.
            read: as for `watch`.
            is_reached: whether a job has reached its state.
            states: the states in which this is possible.
            timeout: the longest time.

        Raises:
            TimeoutError: the jobs did not get there in time.
        """
        wanted, reached = frozenset(ids), {}
        limit = time_limit(timeout)
        try:
            async with (
                asyncio.timeout(None if limit is None else limit.total_seconds()),
                self.watch(wanted, read, states=states) as jobs,
            ):
                async for job_id, job in jobs:
                    if job is None or is_reached(job):
                        reached[job_id] = job
                    if len(reached) == len(wanted):
                        break
        except TimeoutError as error:
            raise too_late(len(wanted) - len(reached), len(wanted), states, limit or timedelta()) from error
        return reached

    @asynccontextmanager
    async def events(self) -> AsyncIterator[AsyncIterator[Event]]:
        """All events for the time of a block: those of each transaction that begins after the block has begun."""
        events = Events()
        with self._added(events):
            await events.begun()
            yield events

    async def close(self) -> None:
        """End the connection and the subscription. Waits that have not ended get an error."""
        await self._loop.close()

    @contextmanager
    def _added(self, stream: Changes[Any] | Events) -> Iterator[None]:
        self._streams.add(stream)
        self._loop.start()
        try:
            yield
        finally:
            self._streams.remove(stream)

    async def _serve(self, connection: Connection) -> None:
        listener = Listener(connection, self._streams.wakeup, self._floods)
        await JobWatch(listener, self._name, self._streams).run()


def time_limit(timeout: timedelta | float | str | None) -> timedelta | None:
    """The longest wait, as given; None: no limit."""
    try:
        return None if timeout is None else parse_duration(timeout)
    except ValueError as error:
        raise ConfigError(f"timeout: {error}") from error


def too_late(left: int, jobs: int, states: Collection[str], limit: timedelta) -> TimeoutError:
    """The error of a wait of which this many jobs are left at its end."""
    return TimeoutError(f"{left} of {jobs} jobs are not {' or '.join(sorted(states))} after {format_duration(limit)}")

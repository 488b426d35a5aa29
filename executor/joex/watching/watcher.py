"""The watcher of a client: serves all who wait, on one connection, for as long as somebody does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Any, TypeVar
from uuid import UUID, uuid4

from joex.core.backoff import retry_delay
from joex.core.duration import format_duration, parse_duration
from joex.errors import ConfigError, DatabaseUnavailable, JoexError
from joex.store.statement import Connection
from joex.watching.session import Session
from joex.watching.streams import Changes, Event, Events, Read, Streams

T = TypeVar("T")

_FIRST_RETRY, _LONGEST_RETRY = timedelta(seconds=0.1), timedelta(seconds=5)


class Watcher:
    """Watches jobs and hears events.

    While somebody waits it keeps one connection and one row in joex.subscriber. While the database is away, who waits
    goes on waiting: the changes of jobs come later, events of that time are lost. Errors that do not pass, such as a
    wrong URL or a missing schema, come to all who wait.

    Args:
        connect: gives a connection for the time of a block, with errors translated.
    """

    def __init__(self, connect: Callable[[], AbstractAsyncContextManager[Connection]]) -> None:
        self._connect = connect
        self._name = f"client {uuid4()}"
        self._streams = Streams()
        self._work: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def watch(
        self, ids: Iterable[UUID], read: Read[T], *, states: Collection[str] | None = None
    ) -> AsyncIterator[AsyncIterator[tuple[UUID, T | None]]]:
        """Watch jobs for the time of a block.

        Gives an iterator over ids and what was read: first of each job, then of each that has changed, the latest only
        where several changes have come; None: the job is gone. It ends when all are gone.

        Args:
            ids: the jobs.
            read: reads jobs, all that have changed in one question; who gives the same function shares that.
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
        """Wait until each job is as it should be, or gone (None).

        Args:
            ids: the jobs.
            read: as for `watch`.
            is_reached: whether a job is as it should be.
            states: the states in which it can be so.
            timeout: the longest time.

        Raises:
            TimeoutError: they were not in time.
        """
        wanted, reached = frozenset(ids), {}
        limit = _limit(timeout)
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
            raise TimeoutError(
                f"{len(wanted) - len(reached)} of {len(wanted)} jobs are not {' or '.join(sorted(states))} "
                f"after {format_duration(limit or timedelta())}"
            ) from error
        return reached

    @asynccontextmanager
    async def events(self) -> AsyncIterator[AsyncIterator[Event]]:
        """All events for the time of a block: those of each transaction that begins after the block has begun."""
        events = Events()
        with self._added(events):
            await events.begun()
            yield events

    async def close(self) -> None:
        """End the connection and the subscription. Who still waits gets an error."""
        self._streams.fail(JoexError("the client was closed"))
        work, self._work = self._work, None
        if work is not None:
            work.cancel()
            await asyncio.wait([work])

    @contextmanager
    def _added(self, stream: Changes[Any] | Events) -> Iterator[None]:
        self._streams.add(stream)
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._serve(), name="joex watcher")
        try:
            yield
        finally:
            self._streams.remove(stream)

    async def _serve(self) -> None:
        failures = 0
        while self._streams:
            session: Session | None = None
            try:
                async with self._connect() as connection:
                    session = Session(connection, self._name, self._streams)
                    await session.run()
            except DatabaseUnavailable:
                failures = 1 if session is not None and session.has_worked else failures + 1
                await asyncio.sleep(retry_delay(_FIRST_RETRY, failures, _LONGEST_RETRY).total_seconds())
            except Exception as error:  # noqa: BLE001 - whatever it is, who waits must not wait for ever
                self._streams.fail(error)
                return


def _limit(timeout: timedelta | float | str | None) -> timedelta | None:
    try:
        return None if timeout is None else parse_duration(timeout)
    except ValueError as error:
        raise ConfigError(f"timeout: {error}") from error

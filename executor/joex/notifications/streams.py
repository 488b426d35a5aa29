"""The streams, one for each wait, which the job watch fills; and the register of them."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Any, Generic, Self, TypeAlias, TypeVar
from uuid import UUID

from joex.errors import ConfigError
from joex.store.statement import Connection
from joex.store.subscriptions import ExecutorEvent, JobEvent, Version

T = TypeVar("T")
Event: TypeAlias = JobEvent | ExecutorEvent
Read: TypeAlias = Callable[[Connection, Collection[UUID]], Awaitable[Mapping[UUID, T]]]
"""Reads jobs in one query; leaves out jobs that are gone."""

_MOST_EVENTS = 10_000


class Stream(ABC, Generic[T]):
    """An async iterator over changes or events, for one reader."""

    def __init__(self) -> None:
        self._arrived = asyncio.Event()
        self._error: BaseException | None = None

    def fail(self, error: BaseException) -> None:
        """End the stream with an error, which the reader gets after everything that came before."""
        self._error = error
        self._arrived.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        while not self._is_filled:
            if self._error is not None:
                raise self._error
            if self._is_over:
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()
        return self._next()

    @property
    @abstractmethod
    def _is_filled(self) -> bool: ...

    @property
    @abstractmethod
    def _is_over(self) -> bool: ...

    @abstractmethod
    def _next(self) -> T: ...


class Changes(Stream[tuple[UUID, T | None]]):
    """The jobs as they are, then each change, only the latest if several have come; None: the job is gone.

    Args:
        ids: the jobs.
        read: reads them.
        states: give only jobs in one of these states, and jobs that are gone; None: all.
    """

    def __init__(self, ids: Iterable[UUID], read: Read[T], states: Collection[str] | None) -> None:
        super().__init__()
        self.ids = frozenset(_checked(job_id) for job_id in ids)
        self.read = read
        self._states = states
        self._seen: dict[UUID, Version | None] = {}
        self._latest: dict[UUID, T | None] = {}
        self._unread: dict[UUID, None] = {}  # in the order in which they came

    def wants(self, job_id: UUID, version: Version | None) -> bool:
        """Whether this version (None: gone) is new to the stream, and wanted."""
        is_known = job_id in self._seen and self._seen[job_id] == version
        return not is_known and (version is None or self._states is None or version.state in self._states)

    def forget_versions(self) -> None:
        """Want each job again; only those that differ come again."""
        self._seen.clear()

    def put(self, job_id: UUID, version: Version | None, value: T | None) -> None:
        """Add a new version. If the job read is newer than that, it comes once more later."""
        self._seen[job_id] = version
        if job_id not in self._latest or self._latest[job_id] != value:
            self._latest[job_id] = value
            self._unread[job_id] = None
            self._arrived.set()

    @property
    def _is_filled(self) -> bool:
        return bool(self._unread)

    @property
    def _is_over(self) -> bool:
        return len(self._latest) == len(self.ids) and not any(value is not None for value in self._latest.values())

    def _next(self) -> tuple[UUID, T | None]:
        job_id = next(iter(self._unread))
        del self._unread[job_id]
        return job_id, self._latest[job_id]


class Events(Stream[Event]):
    """All events, in order. A reader that is more than 10,000 behind loses the oldest."""

    def __init__(self) -> None:
        super().__init__()
        self._unread: deque[Event] = deque(maxlen=_MOST_EVENTS)
        self._begun = asyncio.Event()

    def begin(self) -> None:
        """Start receiving each event."""
        self._begun.set()

    def fail(self, error: BaseException) -> None:
        """End the stream with this error, also for a reader that waits in `begun`."""
        super().fail(error)
        self._begun.set()

    async def begun(self) -> None:
        """Wait until each event comes."""
        await self._begun.wait()
        if self._error is not None:
            raise self._error

    def put(self, event: Event) -> None:
        """Deliver an event."""
        self._unread.append(event)
        self._arrived.set()

    @property
    def _is_filled(self) -> bool:
        return bool(self._unread)

    @property
    def _is_over(self) -> bool:
        return False

    def _next(self) -> Event:
        return self._unread.popleft()


class Streams:
    """The open streams.

    Attributes:
        of: the streams of changes, by job.
        events: the streams of all events.
        unsettled: jobs to read: their stream is new, or they may have changed.
        wakeup: set when there is something to do.
    """

    def __init__(self) -> None:
        self.of: dict[UUID, set[Changes[Any]]] = {}
        self.events: set[Events] = set()
        self.unsettled: set[UUID] = set()
        self.wakeup = asyncio.Event()

    def __bool__(self) -> bool:
        return bool(self.of or self.events)

    def add(self, stream: Changes[Any] | Events) -> None:
        """Register a stream."""
        if isinstance(stream, Events):
            self.events.add(stream)
        else:
            for job_id in stream.ids:
                self.of.setdefault(job_id, set()).add(stream)
            self.unsettled |= stream.ids
        self.wakeup.set()

    def remove(self, stream: Changes[Any] | Events) -> None:
        """Remove a stream."""
        if isinstance(stream, Events):
            self.events.discard(stream)
        else:
            for job_id in stream.ids:
                self.of[job_id].discard(stream)
                if not self.of[job_id]:
                    del self.of[job_id]
        self.wakeup.set()

    def begin_anew(self) -> None:
        """Read all jobs in a new session. A promoted standby gives versions again that replication has lost."""
        self.unsettled |= self.of.keys()
        for changes in set[Changes[Any]]().union(*self.of.values()):
            changes.forget_versions()

    def heard(self, ids: Iterable[UUID]) -> None:
        """Note that these jobs may have changed."""
        known = self.of.keys() & set(ids)
        if known:
            self.unsettled |= known
            self.wakeup.set()

    def fail(self, error: BaseException) -> None:
        """End all streams with this error."""
        for events in self.events:
            events.fail(error)
        for changes in set[Changes[Any]]().union(*self.of.values()):
            changes.fail(error)


def _checked(job_id: object) -> UUID:
    if not isinstance(job_id, UUID):  # a text would look like a job that is gone
        raise ConfigError(f"job id: expected a UUID; got {job_id!r}")
    return job_id

"""The patience of a client: its calls wait while the database is away."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from joex.core.backoff import retry_delay
from joex.errors import DatabaseUnavailable
from joex.store.drivers import AnyConnection
from joex.store.statement import Connection

T = TypeVar("T")

_FIRST_RETRY, _LONGEST_RETRY = timedelta(seconds=0.1), timedelta(seconds=1)


class PatientConnections(ABC):
    """Connections for the calls of a client.

    Args:
        patience: seconds for which calls wait for a database that is away.

    Attributes:
        is_patient: calls wait.
    """

    def __init__(self, patience: float) -> None:
        self.is_patient: bool = patience > 0
        self._patience = patience
        self._closed = 0  # times

    @abstractmethod
    def using(
        self, given: AnyConnection | None = None, *, patiently: bool = True
    ) -> AbstractAsyncContextManager[Connection]:
        """The given connection, or one from the pool, which the pool does not reset afterwards.

        ``patiently``: if the client is patient, wait while the database is away.
        """

    async def repeat(self, work: Callable[[Connection], Awaitable[T]], given: AnyConnection | None = None) -> T:
        """Do this with a connection of the pool; again while the database is away. Twice must do no harm.

        With the ``given`` connection it is done once: its transaction is lost with the connection.
        """
        once = partial(self._once, work, given)
        return await (self.patiently(once) if given is None else once())

    async def patiently(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Make an attempt; again and again while the database is away, until the patience is over."""
        until, failures, closed = self._now() + self._patience, 1, self._closed
        try:
            return await attempt()  # it has its own time limits
        except DatabaseUnavailable as error:
            latest = error
        while (left := until - self._now()) > 0:
            if self._closed > closed or self._is_closing():
                break
            # (A random part, because all clients lose their database at the same moment.)
            delay = retry_delay(_FIRST_RETRY, failures, _LONGEST_RETRY, jitter=1.0, chance=random.random())  # noqa: S311
            await self._sleep(min(delay.total_seconds(), left))
            try:
                async with self._until(until):
                    return await attempt()
            except DatabaseUnavailable as error:
                latest, failures = error, failures + 1
            except TimeoutError:
                break
        raise latest

    async def _once(self, work: Callable[[Connection], Awaitable[T]], given: AnyConnection | None) -> T:
        async with self.using(given, patiently=False) as used:
            return await work(used)

    @abstractmethod
    def _now(self) -> float:
        """Seconds of a clock that is never set."""

    @abstractmethod
    async def _sleep(self, seconds: float) -> None:
        """Wait."""

    @abstractmethod
    def _until(self, time: float) -> AbstractAsyncContextManager[Any]:
        """A block that ends with a `TimeoutError` at this time of `_now`."""

    @abstractmethod
    def _is_closing(self) -> bool:
        """Whether the pool gives no connections any more."""

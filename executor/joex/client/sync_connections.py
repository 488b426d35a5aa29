"""The connections of a synchronous client, and its waits."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager, nullcontext
from datetime import timedelta
from typing import Any, cast
from uuid import UUID

import psycopg

from joex.client.patience import PatientConnections
from joex.errors import ConfigError, DatabaseUnavailable
from joex.notifications.watcher import too_late
from joex.store.adapters import PsycopgAdapter
from joex.store.database import POLL_EVERY
from joex.store.drivers import AnyConnection, adapted_sync, is_sync
from joex.store.errors import translate
from joex.store.jobs import Job
from joex.store.statement import Connection
from joex.store.subscriptions import job_states, read_jobs
from joex.store.sync_pool import OwnAdapter, Pool

_FIRST_POLL = 0.05


class SyncConnections(PatientConnections):
    """The connections to one database without an event loop: a pool, the caller's pool, or one connection of it.

    Args:
        database: a PostgreSQL URL, the caller's pool of psycopg, or the caller's connection.
        within: seconds that a statement may take on the client's own connections; None: no limit.
        patience: seconds for which calls wait for a database that is away.

    Raises:
        ConfigError: the database is none of these, or patience comes with a connection.
    """

    def __init__(self, database: Any, within: float | None, patience: float) -> None:
        super().__init__(patience)
        self._own: Pool | None = None
        self._given: Any = None
        if isinstance(database, str):
            self._own = self._pool = Pool(database, most=10, within=within)
        elif is_sync(database):
            self._given = database
            if self.is_patient:
                raise ConfigError("patience: expected none with a connection, whose transaction is lost with it")
        elif hasattr(database, "getconn") and hasattr(database, "connection"):
            self._pool = database
        else:
            raise ConfigError(
                "database: expected a PostgreSQL URL, a psycopg_pool.ConnectionPool, or a synchronous connection; got "
                f"{type(database).__module__}.{type(database).__qualname__}"
            )

    def close(self) -> None:
        """Close the pool if the client opened it."""
        self._closed += 1
        if self._own is not None:
            self._own.close()

    @asynccontextmanager
    async def using(self, given: AnyConnection | None = None, *, patiently: bool = True) -> AsyncIterator[Connection]:
        """As `PatientConnections`'s."""
        fixed = self._given if given is None else given
        if fixed is not None:
            yield await adapted_sync(fixed)
            return
        with _translated(), ExitStack() as stack:

            async def borrow() -> Any:
                with _translated():
                    return stack.enter_context(self._pool.connection())

            connection = await (self.patiently(borrow) if patiently and self.is_patient else borrow())
            yield cast("Connection", (PsycopgAdapter if self._own is None else OwnAdapter)(connection))

    async def wait(
        self, ids: Collection[UUID], states: frozenset[str], limit: timedelta | None
    ) -> dict[UUID, Job | None]:
        """Wait until each of these jobs was in one of these states, or is gone (None).

        Polls: soon at first, later each second.

        Raises:
            TimeoutError: the jobs did not get there in time.
            DatabaseUnavailable: the client, or the caller's pool, was closed meanwhile.
        """
        begun, closed, left, found = self._now(), self._closed, set(ids), dict[UUID, Job | None]()
        while True:
            try:
                async with self.using(patiently=False) as used:
                    seen = await job_states(used, left)
                    reached = {job_id for job_id, state in seen.items() if state in states}
                    jobs = await read_jobs(used, reached) if reached else {}
            except DatabaseUnavailable:
                if self._given is not None:
                    raise
            else:
                found |= dict.fromkeys(left - seen.keys())
                found |= {job_id: job for job_id, job in jobs.items() if job.state in states}
                left -= found.keys()
            if not left:
                return found
            waited = self._now() - begun
            if limit is not None and waited >= limit.total_seconds():
                raise too_late(len(left), len(set(ids)), states, limit)
            rest = POLL_EVERY if limit is None else limit.total_seconds() - waited
            await self._sleep(min(max(_FIRST_POLL, waited / 4), POLL_EVERY, rest))
            if self._closed > closed or (self._given is None and self._is_closing()):
                raise DatabaseUnavailable("this client is closed")

    def _now(self) -> float:
        return time.monotonic()

    async def _sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - there is no event loop

    def _until(self, time: float) -> AbstractAsyncContextManager[Any]:  # noqa: ARG002 - an attempt has its own limits
        return nullcontext()

    def _is_closing(self) -> bool:
        return bool(getattr(self._pool, "closed", False))


@contextmanager
def _translated() -> Iterator[None]:
    """Translate what a pool of psycopg raises."""
    try:
        yield
    except psycopg.Error as error:
        raise translate(error) from error

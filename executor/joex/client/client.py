"""The client: submits, manages and reads jobs. Public as ``joex.Client``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Coroutine, Iterable
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID

from joex.client.calls import Calls
from joex.client.connections import Connections
from joex.client.options import FINAL, seconds_of, states_of, time_limit
from joex.client.submissions import Submits
from joex.store.drivers import AnyConnection
from joex.store.jobs import Job
from joex.store.statement import Connection
from joex.store.subscriptions import ExecutorEvent, JobEvent, read_jobs

if TYPE_CHECKING:
    import asyncpg

    from joex.client.groups import Groups
    from joex.client.keyed_jobs import KeyedJobs
    from joex.client.periodic import PeriodicTasks
    from joex.client.queues import Queues


class Client(Calls, Submits[Coroutine[Any, Any, UUID], Coroutine[Any, Any, UUID | None]]):
    """Submits, manages and reads jobs.

    Each method takes an optional ``connection``: it then runs in the transaction of that connection, so that a job
    exists if and only if the transaction commits. Without one, it uses the client's pool, in its own transaction. The
    connection is one of asyncpg or psycopg, a connection or a session of SQLAlchemy, or a connection of Django; if it
    is a synchronous one, the call blocks the event loop, as your own statements on it do.

    While callers wait for jobs or events, the client holds one connection of its pool for all of them together.

    Args:
        database: a PostgreSQL URL (the client opens its own pool at first use, and closes it), or your asyncpg pool
            (close the client before the pool).
        timeout: the longest a statement may take, on the client's own connections; when the link goes silent, the call
            then raises `DatabaseUnavailable`. None: no limit. (Your own pool has its ``command_timeout``.)
        patience: how long a call waits while the database is away, such as during a failover (``"60s"``); by default it
            raises `DatabaseUnavailable` at once. When the connection is lost during a call, Joex repeats `submit` and
            `submit_many` without storing a job twice, `cancel`, `set_priority`, `set_args` and reads of jobs; any other
            call raises, because it may have been done. A call with your ``connection`` never waits: your transaction is
            lost with the connection.

    Raises:
        ConfigError: the URL, the timeout or the patience is wrong.

    >>> async with Client("postgresql://localhost/shop") as client:  # doctest: +SKIP
    ...     await client.submit("mail.send", {"to": "a@example.org"}, group="acme")
    """

    connections: Connections
    _connections_class: type[Connections] = Connections

    def __init__(
        self,
        database: str | asyncpg.Pool[Any],
        *,
        timeout: timedelta | float | str | None = "30s",
        patience: timedelta | float | str = 0,
    ) -> None:
        super().__init__(self._connections_class(database, time_limit(timeout), seconds_of("patience", patience)))

    @property
    def groups(self) -> Groups:
        """The groups: their settings, and their unfinished jobs."""
        from joex.client.groups import Groups  # noqa: PLC0415 - few programs use them

        return Groups(self.connections)

    @property
    def queues(self) -> Queues:
        """The queues: to pause and resume them."""
        from joex.client.queues import Queues  # noqa: PLC0415 - few programs use them

        return Queues(self.connections)

    @property
    def keyed(self) -> KeyedJobs:
        """Keyed jobs, and workers that run them in their own loops; they need the extra `keyed`."""
        from joex.client.keyed_jobs import KeyedJobs  # noqa: PLC0415 - an extra

        return KeyedJobs(self.connections)

    @property
    def periodic(self) -> PeriodicTasks:
        """The periodic tasks, which create jobs when their timers are due."""
        from joex.client.periodic import PeriodicTasks  # noqa: PLC0415 - few programs use them

        return PeriodicTasks(self.connections)

    async def __aenter__(self) -> Self:
        await self.connections.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End all waits, and close the pool if the client opened it."""
        await self.connections.close()

    async def wait(
        self,
        job_id: UUID,
        *,
        states: Collection[str] = FINAL,
        timeout: timedelta | float | str | None = None,  # noqa: ASYNC109 - it reads like the other durations
    ) -> Job | None:
        """Wait until a job is in one of these states; by default, until it is finished.

        Returns None if the job is gone, or the transaction of its submission has not committed. The wait may miss a
        state that the job passes through quickly, so wait for the final states too. While the database is away, the
        wait goes on.

        Args:
            job_id: the job.
            states: the states to wait for.
            timeout: the longest time (``"30s"``).

        Raises:
            TimeoutError: the job did not reach any of these states in time.
            ConfigError: the states, the timeout, or the database's URL is wrong.
        """
        [job] = await self.wait_many([job_id], states=states, timeout=timeout)
        return job

    async def wait_many(
        self,
        job_ids: Iterable[UUID],
        *,
        states: Collection[str] = FINAL,
        timeout: timedelta | float | str | None = None,  # noqa: ASYNC109 - likewise
    ) -> list[Job | None]:
        """Wait until each of these jobs is, or was meanwhile, in one of these states; as `wait`, in the order given."""
        ids, wanted = list(job_ids), states_of(states)
        found = await self.connections.watcher.wait(
            ids, read_jobs, lambda job: job.state in wanted, states=wanted, timeout=timeout
        )
        return [found[job_id] for job_id in ids]

    def subscribe(self, *job_ids: UUID) -> AbstractAsyncContextManager[AsyncIterator[tuple[UUID, Job | None]]]:
        """Receive each change of these jobs, for the time of an ``async with`` block.

        Yields an async iterator over ids and jobs: first each job as it is, then again whenever it has changed (its
        progress included), only the latest version if several changes come at once. None: the job is gone; when all are
        gone, the iterator ends.

        >>> async with client.subscribe(a, b) as changes:  # doctest: +SKIP
        ...     async for job_id, job in changes:
        ...         print(job_id, job and job.state)
        """
        return self.connections.watcher.watch(job_ids, read_jobs)

    def events(self) -> AbstractAsyncContextManager[AsyncIterator[JobEvent | ExecutorEvent]]:
        """Receive all events through an async iterator, for the time of an ``async with`` block.

        Each event arrives at most once. The client loses events that happen while its connection is lost, and the
        oldest ones when more than 10,000 are unread.

        >>> async with client.events() as events:  # doctest: +SKIP
        ...     async for event in events:
        ...         print(event.kind)
        """
        return self.connections.watcher.events()

    def acquire(self, connection: Connection | None = None) -> AbstractAsyncContextManager[Connection]:
        """The given connection, or one from the pool, for your own statements.

        After the block, the client's pool resets the session: settings, roles, temporary tables, listeners and an open
        transaction end. Your own pool follows its own rules. If the block is cancelled, ends with a `TimeoutError`, or
        leaves what can't be reset (codecs of types, for example), the client closes the connection.
        """
        return self.connections.acquire(connection)

    def using(self, connection: AnyConnection | None = None) -> AbstractAsyncContextManager[Connection]:
        """The given connection, or one from the pool, for statements that leave nothing in the session.

        Joex's own statements are such. The pool does not reset the connection, which saves a round trip each time.
        """
        return self.connections.using(connection)

"""The client: submit jobs, steer and read them. Public as ``joex.Client``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID

from joex.core.duration import parse_duration
from joex.core.job import NewJob, Priority
from joex.core.why import Reason
from joex.errors import InvalidJob
from joex.store import executors, jobs
from joex.store.database import create_pool
from joex.store.errors import translated
from joex.store.jobs import Job, LogEntry
from joex.store.statement import Connection
from joex.typed import TypedJobs

if TYPE_CHECKING:
    import asyncpg

_BATCH = 1000


class Client:
    """Submits jobs, steers and reads them.

    Each method takes an optional ``connection`` (asyncpg): it then works inside that connection's transaction, so that
    a job exists if and only if the transaction commits. Without one it uses its pool, in a transaction of its own.

    Args:
        database: a PostgreSQL URL (the client then has a pool of its own, made at first use and closed with it), or an
            asyncpg pool of yours.

    >>> async with Client("postgresql://localhost/shop") as client:  # doctest: +SKIP
    ...     await client.submit("mail.send", {"to": "a@example.org"}, group="acme")
    """

    def __init__(self, database: str | asyncpg.Pool[Any]) -> None:
        self._url = database if isinstance(database, str) else None
        self._pool: asyncpg.Pool[Any] | None = None if isinstance(database, str) else database

    @property
    def typed(self) -> TypedJobs:
        """Jobs with ids of the caller's own, and workers with loops of their own."""
        return TypedJobs(self)

    async def __aenter__(self) -> Self:
        await self._get_pool()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the pool, if it is the client's own."""
        if self._url is not None and self._pool is not None:
            pool, self._pool = self._pool, None
            await pool.close()

    async def submit(
        self,
        task: str,
        args: Mapping[str, Any] | None = None,
        *,
        group: str = "default",
        queue: str = "default",
        priority: str = "low",
        subject: str = "",
        submitter: str = "",
        not_before: datetime | timedelta | str | None = None,
        tracker: str | None = None,
        retries: int | None = None,
        connection: Connection | None = None,
    ) -> UUID | None:
        """Submit a job.

        Args:
            task: the name of the task.
            args: its arguments by name; anything that JSON can hold.
            group: the tenant it belongs to; groups are served in round robin.
            queue: the lane of work; executors serve one or more queues.
            priority: ``high`` or ``low``, within its group.
            subject: what it is about, for people.
            submitter: who submitted it, for people.
            not_before: run it no sooner: a time with a zone, or a delay (``"10m"``).
            tracker: skip this submission while an unfinished job has the same tracker.
            retries: re-runs after a failed run; by default what its task, or the executor, says.
            connection: submit in this connection's transaction.

        Returns:
            The id of the job; None where it was skipped because of its tracker.

        Raises:
            InvalidJob: a field is wrong; the message names it. Nothing was stored.
            DatabaseUnavailable: try again later.
        """
        job = new_job(
            task=task,
            args=args or {},
            group=group,
            queue=queue,
            priority=priority,
            subject=subject,
            submitter=submitter,
            not_before=not_before,
            tracker=tracker,
            retries=retries,
        )
        async with self.acquire(connection) as used:
            return await jobs.submit(used, job)

    async def submit_many(
        self, new_jobs: Iterable[NewJob | Mapping[str, Any]], *, connection: Connection | None = None
    ) -> list[UUID | None]:
        """Submit many jobs, in one transaction: all of them or none.

        Args:
            new_jobs: the jobs: `NewJob` objects, or mappings with the arguments of `submit`.
            connection: submit in this connection's transaction.

        Returns:
            An id per job, in order; None where one was skipped because of its tracker.

        Raises:
            InvalidJob, DatabaseUnavailable: as with `submit`; nothing was stored.
        """
        given = [job if isinstance(job, NewJob) else new_job(**job) for job in new_jobs]
        ids: list[UUID | None] = []
        async with self.acquire(connection) as used:
            with translated():
                async with used.transaction():
                    for start in range(0, len(given), _BATCH):
                        ids += await jobs.submit_many(used, given[start : start + _BATCH])
        return ids

    async def cancel(self, job_id: UUID, *, connection: Connection | None = None) -> str:
        """Cancel a job.

        Returns:
            ``cancelled`` (nobody had it), ``requested`` (it runs, and is told), ``finished`` or ``not_found``.
        """
        async with self.acquire(connection) as used:
            return await jobs.cancel(used, job_id)

    async def set_priority(self, job_id: UUID, priority: str, *, connection: Connection | None = None) -> bool:
        """Change the priority of a waiting job; False where it is not waiting."""
        async with self.acquire(connection) as used:
            return await jobs.set_priority(used, job_id, priority)

    async def retry(self, job_id: UUID, *, connection: Connection | None = None) -> bool:
        """Run a failed or cancelled job again, or a stuck one now; False where it is none of these."""
        async with self.acquire(connection) as used:
            return await jobs.retry(used, job_id)

    async def retry_failed(
        self,
        *,
        queue: str | None = None,
        group: str | None = None,
        task: str | None = None,
        most: int = 10_000,
        connection: Connection | None = None,
    ) -> int:
        """Run the failed jobs that match again, the oldest first, at most ``most``; returns how many."""
        async with self.acquire(connection) as used:
            return await jobs.retry_failed(used, queue, group, task, most)

    async def notify(self, queue: str = "default", *, connection: Connection | None = None) -> int:
        """Ask all executors of a queue to look for work now; returns how many take from it.

        A submission wakes those it needs by itself: this is for work that came in another way.
        """
        async with self.acquire(connection) as used:
            return await executors.notify(used, queue)

    async def get(self, job_id: UUID, *, connection: Connection | None = None) -> Job | None:
        """A job, or None."""
        async with self.acquire(connection) as used:
            return await jobs.get_job(used, job_id)

    async def why(self, job_id: UUID, *, connection: Connection | None = None) -> list[Reason]:
        """Why a job is not running, what stands in its way first; its ``message`` says it in a sentence."""
        async with self.acquire(connection) as used:
            return await jobs.why(used, job_id)

    async def log(self, job_id: UUID, *, after: int = 0, connection: Connection | None = None) -> list[LogEntry]:
        """The log of all attempts of a job; ``after`` is the seq of the last line already known."""
        async with self.acquire(connection) as used:
            return await jobs.job_log(used, job_id, after=after)

    @asynccontextmanager
    async def acquire(self, connection: Connection | None = None) -> AsyncIterator[Connection]:
        """The given connection, or one of the pool."""
        if connection is not None:
            yield connection
            return
        pool = await self._get_pool()
        with translated():
            used = await pool.acquire()
        try:
            yield used
        finally:
            await pool.release(used)

    async def _get_pool(self) -> asyncpg.Pool[Any]:
        if self._pool is None:
            if self._url is None:
                raise RuntimeError("this client is closed")
            self._pool = await create_pool(self._url, most=10, name="joex client")
        return self._pool


def new_job(
    *,
    task: str,
    args: Mapping[str, Any] | None = None,
    not_before: datetime | timedelta | str | None = None,
    **fields: Any,
) -> NewJob:
    """A checked submission from the arguments of `Client.submit`.

    Raises:
        InvalidJob: a field is wrong or unknown; the message names it.
    """
    try:
        if isinstance(not_before, timedelta | str):
            not_before = datetime.now(UTC) + parse_duration(not_before)
        if fields.get("priority") in ("high", "low"):
            fields["priority"] = Priority(fields["priority"])
        return NewJob(task=task, args={} if args is None else args, not_before=not_before, **fields)
    except (ValueError, TypeError) as error:
        raise InvalidJob(str(error)) from error

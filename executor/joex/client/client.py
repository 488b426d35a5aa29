"""The client: submits, manages and reads jobs. Public as ``joex.Client``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, cast
from uuid import UUID

from joex.client.connections import Connections
from joex.client.explain import Reason
from joex.client.keyed_jobs import KeyedJobs
from joex.client.periodic import PeriodicTasks
from joex.client.submissions import columns_of_any, time_of
from joex.core.duration import parse_duration
from joex.core.job import NewJob, Priority, State
from joex.core.json_values import shown
from joex.errors import ConfigError, InvalidJob
from joex.store import executors, jobs, keyed
from joex.store.jobs import Job, LogEntry
from joex.store.statement import Connection
from joex.store.subscriptions import ExecutorEvent, JobEvent, read_jobs

if TYPE_CHECKING:
    import asyncpg

_BATCH = 1000
_STATES = frozenset(State)
_FINAL = tuple(state for state in State if state.is_final)


class Client:
    """Submits, manages and reads jobs.

    Each method takes an optional ``connection`` (asyncpg): it then runs in the transaction of that connection, so that
    a job exists if and only if the transaction commits. Without one, it uses the client's pool, in its own
    transaction.

    While callers wait for jobs or events, the client holds one connection of its pool for all of them together.

    Args:
        database: a PostgreSQL URL (the client opens its own pool at first use, and closes it), or your asyncpg pool
            (close the client before the pool).
        timeout: the longest a statement may take, on the client's own connections; when the link goes silent, the call
            then raises `DatabaseUnavailable`. None: no limit. (Your own pool has its ``command_timeout``.)

    Raises:
        ConfigError: the URL, or the timeout, is wrong.

    >>> async with Client("postgresql://localhost/shop") as client:  # doctest: +SKIP
    ...     await client.submit("mail.send", {"to": "a@example.org"}, group="acme")
    """

    def __init__(self, database: str | asyncpg.Pool[Any], *, timeout: timedelta | float | str | None = "30s") -> None:
        self.connections = Connections(database, _seconds(timeout))
        """The connections to the database, which all parts of the client share."""

    @property
    def keyed(self) -> KeyedJobs:
        """Keyed jobs, and workers that run them in their own loops."""
        return KeyedJobs(self.connections)

    @property
    def periodic(self) -> PeriodicTasks:
        """The periodic tasks, which create jobs when their timers are due."""
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
            args: its arguments by name: values that JSON can represent (see docs/how-to/jobs.md).
            group: the tenant that the job belongs to; Joex is fair between groups.
            queue: the queue; each executor serves one or more of them.
            priority: ``high`` or ``low`` (in upper or lower case), within its group.
            subject: what the job is about; Joex only shows it.
            submitter: the user or program that submits it; Joex only shows it.
            not_before: don't run the job before: a time with a zone, or a delay (``"10m"``).
            tracker: skip this submission while an unfinished job has the same tracker.
            retries: how often to retry the job; by default as its task, or the executor, is configured.
            connection: submit in this connection's transaction.

        Returns:
            The id of the job; None if its tracker skipped the submission.

        Raises:
            InvalidJob: a field is wrong; the message names it. Nothing was stored.
            DatabaseUnavailable: try again later.
        """
        try:
            # (Positional arguments are cheaper; and a plain text does as a priority here.)
            known, time = cast("Priority", priority), time_of(not_before)
            job = NewJob(
                task, {} if args is None else args, group, queue, known, subject, submitter, time, tracker, retries
            )
        except (ValueError, TypeError) as error:
            raise InvalidJob(str(error)) from error
        async with self.using(connection) as used:
            return await jobs.submit(used, job)

    async def submit_many(
        self, new_jobs: Iterable[NewJob | Mapping[str, Any]], *, connection: Connection | None = None
    ) -> list[UUID | None]:
        """Submit many jobs, in one transaction: all of them or none.

        Args:
            new_jobs: the jobs: `NewJob` objects, or mappings with the arguments of `submit`.
            connection: submit in this connection's transaction.

        Returns:
            An id per job, in order; None for each submission that its tracker skipped.

        Raises:
            InvalidJob, DatabaseUnavailable: as with `submit`; nothing was stored.
        """
        try:
            given = list(new_jobs)
        except TypeError as error:
            raise InvalidJob(f"jobs: expected submissions, one after the other; got {shown(new_jobs)}") from error
        batches = [columns_of_any(given[start : start + _BATCH], start) for start in range(0, len(given), _BATCH)]
        async with self.using(connection) as used:
            return await jobs.submit_batches(used, batches)

    async def cancel(self, job_id: UUID, *, connection: Connection | None = None) -> str:
        """Cancel a job.

        Returns:
            ``cancelled`` (no executor held it), ``requested`` (its run is asked to end), ``finished`` or ``not_found``.
        """
        async with self.using(connection) as used:
            return await jobs.cancel(used, job_id)

    async def set_priority(self, job_id: UUID, priority: str, *, connection: Connection | None = None) -> bool:
        """Change the priority of a waiting job; False if it is not waiting."""
        async with self.using(connection) as used:
            return await jobs.set_priority(used, job_id, priority)

    async def set_args(self, job_id: UUID, args: Mapping[str, Any], *, connection: Connection | None = None) -> bool:
        """Replace all arguments of a waiting job; False if it is not waiting, and so unchanged."""
        async with self.using(connection) as used:
            return await jobs.set_args(used, job_id, args)

    async def remove(self, job_id: UUID, *, connection: Connection | None = None) -> Literal["ok", "not_found"]:
        """Remove a job and its log. A running job is asked to stop, and removed when its run has ended."""
        async with self.using(connection) as used:
            return await keyed.remove(used, job_id)

    async def retry(self, job_id: UUID, *, connection: Connection | None = None) -> bool:
        """Run a failed or cancelled job again, or a stuck one now; False if the job is none of these."""
        async with self.using(connection) as used:
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
        """Run all failed jobs that match again, the oldest first, at most ``most``; returns how many."""
        async with self.using(connection) as used:
            return await jobs.retry_failed(used, queue, group, task, most)

    async def notify(self, queue: str = "default", *, connection: Connection | None = None) -> int:
        """Ask all executors of a queue to look for work now; returns how many take jobs from it.

        A submission wakes the executors that it needs. Call this when work arrived in another way.
        """
        async with self.using(connection) as used:
            return await executors.notify(used, queue)

    async def get(self, job_id: UUID, *, connection: Connection | None = None) -> Job | None:
        """A job, or None."""
        async with self.using(connection) as used:
            return await jobs.get_job(used, job_id)

    async def wait(
        self,
        job_id: UUID,
        *,
        states: Collection[str] = _FINAL,
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
        states: Collection[str] = _FINAL,
        timeout: timedelta | float | str | None = None,  # noqa: ASYNC109 - likewise
    ) -> list[Job | None]:
        """Wait until each of these jobs is, or was meanwhile, in one of these states; as `wait`, in the order given."""
        ids, wanted = list(job_ids), _states(states)
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

    async def why(self, job_id: UUID, *, connection: Connection | None = None) -> list[Reason]:
        """The reasons why a job is not running, those that block it first; ``message`` is a reason in a sentence."""
        async with self.using(connection) as used:
            return [Reason(*reason) for reason in await jobs.why(used, job_id)]

    async def log(self, job_id: UUID, *, after: int = 0, connection: Connection | None = None) -> list[LogEntry]:
        """The log of all attempts of a job; ``after`` is the seq of the last line that you have read."""
        async with self.using(connection) as used:
            return await jobs.job_log(used, job_id, after=after)

    def acquire(self, connection: Connection | None = None) -> AbstractAsyncContextManager[Connection]:
        """The given connection, or one from the pool, for your own statements.

        The client's pool ends settings, listeners and an open transaction of the session after the block; your own pool
        follows its own rules. If the block is cancelled, or ends with a `TimeoutError`, the client closes the
        connection.
        """
        return self.connections.acquire(connection)

    def using(self, connection: Connection | None = None) -> AbstractAsyncContextManager[Connection]:
        """The given connection, or one from the pool, for statements that leave nothing in the session.

        Joex's own statements are such. The pool does not reset the connection, which saves a round trip each time.
        """
        return self.connections.using(connection)


def _seconds(timeout: timedelta | float | str | None) -> float | None:
    if timeout is None:
        return None
    try:
        seconds = parse_duration(timeout).total_seconds()
    except ValueError as error:
        raise ConfigError(f"timeout: {error}") from error
    if not seconds:
        raise ConfigError("timeout: expected more than 0, or None for no limit; got 0")
    return seconds


def _states(given: Collection[str]) -> frozenset[str]:
    try:
        states = frozenset([given] if isinstance(given, str) else given)
    except TypeError:
        states = frozenset()
    if not states or not states <= _STATES:
        raise ConfigError(f"states: expected some of {', '.join(State)}; got {shown(given)}")
    return states

"""The client: submit jobs, steer and read them. Public as ``joex.Client``."""

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
    """Submits jobs, steers and reads them.

    Each method takes an optional ``connection`` (asyncpg): it then works inside that connection's transaction, so that
    a job exists if and only if the transaction commits. Without one it uses its pool, in a transaction of its own.

    While callers wait for jobs or hear events it holds one connection of its pool, for all of them together.

    Args:
        database: a PostgreSQL URL (the client then has a pool of its own, made at first use and closed with it), or an
            asyncpg pool of yours (close the client before the pool).
        timeout: the longest a statement may take, on the client's own connections; where the link has gone silent, a
            call raises `DatabaseUnavailable` after it. None: no limit. (A pool of yours has its ``command_timeout``.)

    Raises:
        ConfigError: the URL, or the timeout, is wrong.

    >>> async with Client("postgresql://localhost/shop") as client:  # doctest: +SKIP
    ...     await client.submit("mail.send", {"to": "a@example.org"}, group="acme")
    """

    def __init__(self, database: str | asyncpg.Pool[Any], *, timeout: timedelta | float | str | None = "30s") -> None:
        self.connections = Connections(database, _seconds(timeout))
        """Of the database, for all parts of the client."""

    @property
    def keyed(self) -> KeyedJobs:
        """Jobs with ids of the caller's own, and workers with loops of their own."""
        return KeyedJobs(self.connections)

    @property
    def periodic(self) -> PeriodicTasks:
        """The periodic tasks, whose jobs are made when their timers say."""
        return PeriodicTasks(self.connections)

    async def __aenter__(self) -> Self:
        await self.connections.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End all waiting, and close the pool, if it is the client's own."""
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
            args: its arguments by name: values that JSON holds, or that it has a text for (see docs/how-to/jobs.md).
            group: the tenant it belongs to; groups are served in round robin.
            queue: the lane of work; executors serve one or more queues.
            priority: ``high`` or ``low`` (in whichever case), within its group.
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
        try:
            # (By position, which is cheaper; and a priority that is a plain text is as good here.)
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
            An id per job, in order; None where one was skipped because of its tracker.

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
            ``cancelled`` (nobody had it), ``requested`` (it runs, and is told), ``finished`` or ``not_found``.
        """
        async with self.using(connection) as used:
            return await jobs.cancel(used, job_id)

    async def set_priority(self, job_id: UUID, priority: str, *, connection: Connection | None = None) -> bool:
        """Change the priority of a waiting job; False where it is not waiting."""
        async with self.using(connection) as used:
            return await jobs.set_priority(used, job_id, priority)

    async def set_args(self, job_id: UUID, args: Mapping[str, Any], *, connection: Connection | None = None) -> bool:
        """Replace the arguments of a waiting job, all of them; False where it is not waiting, and stays as it is."""
        async with self.using(connection) as used:
            return await jobs.set_args(used, job_id, args)

    async def remove(self, job_id: UUID, *, connection: Connection | None = None) -> Literal["ok", "not_found"]:
        """Remove a job and its log. Where it runs, its run is told to stop, and it is removed when that has ended."""
        async with self.using(connection) as used:
            return await keyed.remove(used, job_id)

    async def retry(self, job_id: UUID, *, connection: Connection | None = None) -> bool:
        """Run a failed or cancelled job again, or a stuck one now; False where it is none of these."""
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
        """Run the failed jobs that match again, the oldest first, at most ``most``; returns how many."""
        async with self.using(connection) as used:
            return await jobs.retry_failed(used, queue, group, task, most)

    async def notify(self, queue: str = "default", *, connection: Connection | None = None) -> int:
        """Ask all executors of a queue to look for work now; returns how many take from it.

        A submission wakes those it needs by itself: this is for work that came in another way.
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

        None: the job is gone, or its submission has not been committed. A state that it passes through quickly may not
        be seen: wait for the final ones too. While the database is away, the wait goes on.

        Args:
            job_id: the job.
            states: the states to wait for.
            timeout: the longest time (``"30s"``).

        Raises:
            TimeoutError: it was not in time.
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
        """Hear of each change of these jobs, for the time of an ``async with`` block.

        It gives an async iterator over ids and jobs: first each job as it is, then as it has become, whenever it has
        changed (its progress too); the latest only, where several changes come at once. None: the job is gone; when all
        are, it ends.

        >>> async with client.subscribe(a, b) as changes:  # doctest: +SKIP
        ...     async for job_id, job in changes:
        ...         print(job_id, job and job.state)
        """
        return self.connections.watcher.watch(job_ids, read_jobs)

    def events(self) -> AbstractAsyncContextManager[AsyncIterator[JobEvent | ExecutorEvent]]:
        """Hear all events, for the time of an ``async with`` block: it gives an async iterator.

        Each comes once at most. Lost are those that happen while the connection is lost, and the oldest where more than
        10,000 have not been read.

        >>> async with client.events() as events:  # doctest: +SKIP
        ...     async for event in events:
        ...         print(event.kind)
        """
        return self.connections.watcher.events()

    async def why(self, job_id: UUID, *, connection: Connection | None = None) -> list[Reason]:
        """Why a job is not running, what stands in its way first; its ``message`` says it in a sentence."""
        async with self.using(connection) as used:
            return [Reason(*reason) for reason in await jobs.why(used, job_id)]

    async def log(self, job_id: UUID, *, after: int = 0, connection: Connection | None = None) -> list[LogEntry]:
        """The log of all attempts of a job; ``after`` is the seq of the last line already known."""
        async with self.using(connection) as used:
            return await jobs.job_log(used, job_id, after=after)

    def acquire(self, connection: Connection | None = None) -> AbstractAsyncContextManager[Connection]:
        """The given connection, or one of the pool, for statements of yours.

        What they leave in the session (settings, listeners, an open transaction) ends with the block; a pool of yours
        sees to that itself. A block that is cancelled, or ends with a `TimeoutError`, ends the connection.
        """
        return self.connections.acquire(connection)

    def using(self, connection: Connection | None = None) -> AbstractAsyncContextManager[Connection]:
        """The given connection, or one of the pool, for statements that leave nothing in the session, as Joex's own.

        It is not reset, which would be one more question to the server each time.
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

"""The calls of a client that need no more than a connection; those of both clients."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Literal, Unpack, cast, overload
from uuid import UUID, uuid4

from joex.client.explain import Reason
from joex.client.patience import PatientConnections
from joex.client.submissions import Options, columns_of_any, invalid, time_of
from joex.core.arguments import check_id, check_number
from joex.core.job import Columns, NewJob, Priority, check_name
from joex.core.json_values import shown
from joex.errors import InvalidJob
from joex.store import executors, job_logs, jobs, keyed
from joex.store.drivers import AnyConnection
from joex.store.job_logs import Attempt, LogEntry
from joex.store.jobs import Job
from joex.tracing import submitting, submitting_many

_BATCH = 1000
_HIGHEST_SEQ = 2**63 - 1


class Calls:
    """The calls of a client.

    Attributes:
        connections: the connections to the database, which all parts of the client share.
    """

    def __init__(self, connections: PatientConnections) -> None:
        self.connections = connections

    @overload
    async def submit(
        self,
        task: str,
        args: Mapping[str, Any] | None = None,
        *,
        tracker: None = None,
        connection: AnyConnection | None = None,
        **options: Unpack[Options],
    ) -> UUID: ...
    @overload
    async def submit(
        self,
        task: str,
        args: Mapping[str, Any] | None = None,
        *,
        tracker: str | None,
        connection: AnyConnection | None = None,
        **options: Unpack[Options],
    ) -> UUID | None: ...
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
        connection: AnyConnection | None = None,
    ) -> UUID | None:
        """Submit a job.

        Args:
            task: the name of the task.
            args: its arguments by name: values that JSON can represent (see docs/how-to/jobs.md).
            group: the tenant that the job belongs to (``default``, unless you name one); Joex is fair between groups.
            queue: the queue (likewise); each executor serves one or more of them.
            priority: ``high`` or ``low`` (the default), in upper or lower case, within its group.
            subject: what the job is about; Joex only shows it.
            submitter: the user or program that submits it; Joex only shows it.
            not_before: don't run the job before: a time with a zone, or a delay (``"10m"``).
            tracker: skip this submission while an unfinished job of the group has the same tracker.
            retries: how often to retry the job; by default as its task, or the executor, is configured.
            connection: submit in this connection's transaction.

        Returns:
            The id of the job; None if its tracker skipped the submission.

        Raises:
            InvalidJob: a field is wrong; the message names it. Nothing was stored.
            DatabaseUnavailable: try again later. If the connection was lost during the call, the job may be stored.
        """
        try:
            # (Positional arguments are cheaper; and a plain text does as a priority here.)
            known, time = cast("Priority", priority), time_of(not_before)
            job = NewJob(
                task, {} if args is None else args, group, queue, known, subject, submitter, time, tracker, retries
            )
        except (ValueError, TypeError) as error:
            raise InvalidJob(str(error)) from error
        with submitting(job.task, job.queue, job.group) as submission:
            carried = submission.trace_context
            if connection is None and self.connections.is_patient:
                work = partial(jobs.submit, job=job, once=new_name(), trace_context=carried)
                job_id = await self.connections.repeat(work)
            else:
                async with self.connections.using(connection) as used:
                    job_id = await jobs.submit(used, job, trace_context=carried)
            submission.stored(job_id)
        return job_id

    async def submit_many(
        self, new_jobs: Iterable[NewJob | Mapping[str, Any]], *, connection: AnyConnection | None = None
    ) -> list[UUID | None]:
        """Submit many jobs, in one transaction: all of them or none.

        Args:
            new_jobs: the jobs: `NewJob` objects, or mappings with the arguments of `submit`.
            connection: submit in this connection's transaction.

        Returns:
            An id per job, in order; None for each submission that its tracker skipped.

        Raises:
            InvalidJob, DatabaseUnavailable: as with `submit`, for all of them.
        """
        try:
            given = list(new_jobs)
        except TypeError as error:
            raise InvalidJob(f"jobs: expected submissions, one after the other; got {shown(new_jobs)}") from error
        batches = [columns_of_any(given[start : start + _BATCH], start) for start in range(0, len(given), _BATCH)]
        with submitting_many(len(given), _queue_of(batches)) as submission:
            carried = submission.trace_context
            if connection is None and self.connections.is_patient:
                names = [new_name() for _ in batches]
                work = partial(jobs.submit_batches, batches=batches, onces=names, trace_context=carried)
                return await self.connections.repeat(work)
            async with self.connections.using(connection) as used:
                return await jobs.submit_batches(used, batches, trace_context=carried)

    async def cancel(self, job_id: UUID, *, connection: AnyConnection | None = None) -> str:
        """Cancel a job.

        Returns:
            ``cancelled`` (no executor held it), ``requested`` (its run is asked to end), ``finished`` or ``not_found``.
        """
        return await self.connections.repeat(partial(jobs.cancel, job_id=_id(job_id)), connection)

    async def set_priority(self, job_id: UUID, priority: str, *, connection: AnyConnection | None = None) -> bool:
        """Change the priority of a waiting job; False if it is not waiting."""
        return await self.connections.repeat(
            partial(jobs.set_priority, job_id=_id(job_id), priority=priority), connection
        )

    async def set_args(self, job_id: UUID, args: Mapping[str, Any], *, connection: AnyConnection | None = None) -> bool:
        """Replace all arguments of a waiting job; False if it is not waiting, and so unchanged."""
        return await self.connections.repeat(partial(jobs.set_args, job_id=_id(job_id), args=args), connection)

    async def remove(self, job_id: UUID, *, connection: AnyConnection | None = None) -> Literal["ok", "not_found"]:
        """Remove a job and its log. A running job is asked to stop, and removed when its run has ended."""
        known = _id(job_id)
        async with self.connections.using(connection) as used:
            return await keyed.remove(used, known)

    async def retry(self, job_id: UUID, *, connection: AnyConnection | None = None) -> bool:
        """Run a failed or cancelled job again, or now one that is stuck or not due; False if it is none of these."""
        known = _id(job_id)
        async with self.connections.using(connection) as used:
            return await jobs.retry(used, known)

    async def retry_failed(
        self,
        *,
        queue: str | None = None,
        group: str | None = None,
        task: str | None = None,
        most: int = 10_000,
        connection: AnyConnection | None = None,
    ) -> int:
        """Run all failed jobs that match again, the oldest first, at most ``most``; returns how many."""
        with invalid():
            check_number("most", most)
            for field, name in (("queue", queue), ("group", group), ("task", task)):
                if name is not None:
                    check_name(field, name)
        async with self.connections.using(connection) as used:
            return await jobs.retry_failed(used, queue, group, task, most)

    async def notify(self, queue: str = "default", *, connection: AnyConnection | None = None) -> int:
        """Ask all executors of a queue to look for work now; returns how many take jobs from it.

        A submission wakes the executors that it needs. Call this when work arrived in another way.
        """
        with invalid():
            check_name("queue", queue)
        async with self.connections.using(connection) as used:
            return await executors.notify(used, queue)

    async def get(self, job_id: UUID, *, connection: AnyConnection | None = None) -> Job | None:
        """A job, or None."""
        return await self.connections.repeat(partial(jobs.get_job, job_id=_id(job_id)), connection)

    async def why(self, job_id: UUID, *, connection: AnyConnection | None = None) -> list[Reason]:
        """The reasons why a job is not running, those that block it first; ``message`` is a reason in a sentence."""
        found = await self.connections.repeat(partial(jobs.why, job_id=_id(job_id)), connection)
        return [Reason(*reason) for reason in found]

    async def log(self, job_id: UUID, *, after: int = 0, connection: AnyConnection | None = None) -> list[LogEntry]:
        """The log of all attempts of a job; ``after`` is the seq of the last line that you have read."""
        with invalid():
            check_number("after", after, highest=_HIGHEST_SEQ)
        return await self.connections.repeat(partial(job_logs.job_log, job_id=_id(job_id), after=after), connection)

    async def attempts(
        self, job_id: UUID, *, most: int = 100, connection: AnyConnection | None = None
    ) -> list[Attempt]:
        """The attempts of a job, in order, at most the last ``most`` ones: when, where and how each run ended."""
        with invalid():
            check_number("most", most)
        return await self.connections.repeat(partial(job_logs.attempts, job_id=_id(job_id), most=most), connection)


def _id(job_id: UUID) -> UUID:
    with invalid():
        return check_id("job_id", job_id)


def _queue_of(batches: Sequence[Columns]) -> str | None:
    """The queue of all of these jobs; None: there are several."""
    queues = {queue or "default" for batch in batches for queue in batch.queues or ["default"]}
    return queues.pop() if len(queues) == 1 else None


def new_name() -> UUID:
    """A name for a submission that is stored once, with the time in front, as in the ids that the server makes."""
    return UUID(int=time.time_ns() // 1_000_000 << 80 | uuid4().int >> 48)

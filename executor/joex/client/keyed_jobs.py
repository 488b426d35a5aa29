"""Keyed jobs, whose types, ids and priorities the caller chooses, and workers with their own loops: ``client.keyed``.

The job API of CouchDB's background jobs (its RFC "Background jobs with FoundationDB"), on the table of all other jobs:
executors run these jobs too, groups take turns, the views show them. Its state *pending* covers Joex's waiting,
scheduled and stuck. This module has its "Job Creation API", `joex.client.accepting_worker` and `joex.client.worker` its
"Worker Implementation API", and `joex.client.keyed_waits` its watches.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Literal
from uuid import UUID

from joex.client.accepting_worker import AcceptingWorker
from joex.client.keyed_model import (
    NO_LIMIT,
    STATES,
    JobState,
    KeyedJob,
    TypeTimeout,
    checked,
    found,
    keyed_job,
    name_of,
    pack,
    to_text,
)
from joex.client.keyed_waits import KeyedWaits
from joex.client.submissions import invalid
from joex.core import tuples
from joex.core.duration import parse_duration
from joex.core.job import check_texts
from joex.errors import InvalidJob, JobExists
from joex.store import jobs, keyed, timeouts
from joex.store.drivers import AnyConnection
from joex.store.keyed import NewKeyedJob
from joex.tracing import submitting

_MOST_LISTED = 1_000_000


class KeyedJobs(AcceptingWorker, KeyedWaits):
    """The keyed jobs of a database: ``client.keyed``.

    A type, an id or a priority is any value that FoundationDB's tuple layer orders: None, texts, bytes, numbers,
    booleans, UUIDs, and tuples of them. A type is also the name of a task and of a queue (`joex.core.tuples.to_name`):
    executors that serve the queue and know the task run its jobs, with ``data`` as arguments.

    With ``connection``, a call works in that connection's transaction. Wrong values raise `InvalidJob`, which names the
    field.
    """

    async def add(
        self,
        job_type: Any,
        job_id: Any,
        opts: Mapping[str, Any] | None = None,
        *,
        group: str | None = None,
        queue: str | None = None,
        subject: str | None = None,
        submitter: str = "",
        connection: AnyConnection | None = None,
    ) -> UUID:
        """Add a job. It stays until you remove it, even when it is finished.

        Args:
            job_type: its type.
            job_id: its id, unique within the type.
            opts: ``priority`` (the lowest runs first, equal ones first in, first out; a job without one runs
                before all jobs with one), ``data`` (an object), ``cancel`` (don't run it until a client resubmits it),
                ``resubmit`` (run it once more when its run ends), and free fields.
            group: the tenant it belongs to; by default all jobs of a type are one group, so that priorities order all.
            queue: by default the queue that is named like the type.
            subject: what the job is about; Joex only shows it; by default its id.
            submitter: the user or program that adds it; Joex only shows it.
            connection: add it in this connection's transaction.

        Returns:
            Its UUID.

        Raises:
            JobExists: the type already has a job with this id.
        """
        name = name_of("type", job_type)
        opts = {} if opts is None else opts
        said = checked(opts, may_cancel=True)
        key = pack("id", job_id)
        shown = to_text(job_id)[:250] if subject is None else subject
        names = {field: value for field, value in (("group", group), ("queue", queue)) if value is not None}
        with invalid():
            check_texts(names, shown, submitter)
        new = NewKeyedJob(
            type=name,
            key=key,
            data=said.data or "{}",
            opts=said.opts or "{}",
            rank=said.rank or b"",
            group=group,
            queue=queue,
            subject=shown,
            submitter=submitter,
            cancel=opts.get("cancel", False),
            resubmit=said.resubmit,
        )
        with submitting(name, queue or name, group or name) as submission:
            async with self._connections.using(connection) as used:
                job = await keyed.add(used, new, submission.trace_context)
            submission.stored(job)
        if job is None:
            raise JobExists(f"id: the type {job_type!r} has a job {job_id!r} already")
        return job

    async def remove(
        self, job_type: Any, job_id: Any, *, connection: AnyConnection | None = None
    ) -> Literal["ok", "not_found"]:
        """Remove a job and its log. A running job is asked to stop, and removed when its run has ended."""
        async with found(self._connections, job_type, job_id, connection) as (used, job):
            return "not_found" if job is None else await keyed.remove(used, job)

    async def cancel(
        self, job_type: Any, job_id: Any, *, connection: AnyConnection | None = None
    ) -> Literal["ok", "not_found"]:
        """Cancel a job: it is finished now, or when its run has stopped. It stays, and you can resubmit it."""
        async with found(self._connections, job_type, job_id, connection) as (used, job):
            return "ok" if job is not None and await jobs.cancel(used, job) != "not_found" else "not_found"

    async def get_job(self, job_type: Any, job_id: Any, *, connection: AnyConnection | None = None) -> KeyedJob | None:
        """A job, or None."""
        async with found(self._connections, job_type, job_id, connection) as (used, job):
            row = None if job is None else await keyed.get(used, job)
        return None if row is None else keyed_job(row)

    async def list_jobs(
        self,
        job_type: Any,
        *,
        state: JobState | None = None,
        after: Any = NO_LIMIT,
        most: int = 1000,
        connection: AnyConnection | None = None,
    ) -> list[KeyedJob]:
        """The jobs of a type in the order of their ids, at most ``most``; ``after``: the last id of the previous page.

        A page reads only the jobs that it returns; with ``state``, it also reads the jobs that it skips. For running
        jobs, use `active`.
        """
        if state is not None and state not in STATES.values():
            raise InvalidJob(f"state: expected pending, running or finished; got {state!r}")
        if type(most) is not int or not 1 <= most <= _MOST_LISTED:
            raise InvalidJob(f"most: expected 1 to {_MOST_LISTED}; got {most!r}")
        states = None if state is None else [ours for ours, theirs in STATES.items() if theirs == state]
        start = None if after is NO_LIMIT else pack("after", after)
        async with self._connections.using(connection) as used:
            rows, _ = await keyed.list_keyed(used, name_of("type", job_type), start, states, most)
        return [keyed_job(row) for row in rows]

    async def count(
        self, job_type: Any, max_priority: Any = NO_LIMIT, *, connection: AnyConnection | None = None
    ) -> dict[str, int]:
        """Count the pending, running and finished jobs of a type; with ``max_priority``, only jobs not above it."""
        limit = None if max_priority is NO_LIMIT else pack("max_priority", max_priority)
        async with self._connections.using(connection) as used:
            return await keyed.count(used, name_of("type", job_type), limit)

    async def active(self, job_type: Any, *, connection: AnyConnection | None = None) -> list[Any]:
        """The ids of the running jobs of a type."""
        async with self._connections.using(connection) as used:
            return [tuples.unpack(key) for key in await keyed.active(used, name_of("type", job_type))]

    async def timeouts(self, *, connection: AnyConnection | None = None) -> list[TypeTimeout]:
        """The types that have a timeout."""
        async with self._connections.using(connection) as used:
            return [_timeout(one) for one in await timeouts.timeouts(used)]

    async def set_timeout(
        self,
        job_type: Any,
        *,
        activity: timedelta | float | str | None = None,
        visibility: timedelta | float | str | None = None,
        connection: AnyConnection | None = None,
    ) -> None:
        """Set when Joex puts back a run of this type, so that another executor or worker may take its job.

        Applies to runs that begin later.

        Args:
            job_type: the type; or the name of any task.
            activity: the longest time between two reports (`update`, or progress).
            visibility: the longest time of a run. With neither, executors have no limit, workers 60 s between reports.
            connection: set it in this connection's transaction.
        """
        if activity is not None and visibility is not None:
            raise InvalidJob("activity, visibility: a type has one timeout; got both")
        with invalid("visibility" if activity is None else "activity"):
            given = visibility if activity is None else activity
            if not isinstance(given, timedelta | int | float | str | None):
                raise ValueError(f"expected a duration such as '30s'; got {given!r}")  # noqa: TRY004 - one error for callers
            timeout = None if given is None else parse_duration(given)
            if timeout is not None and timeout <= timedelta(0):
                raise ValueError(f"expected more than 0; got {given!r}")
        async with self._connections.using(connection) as used:
            await timeouts.set_timeout(used, name_of("type", job_type), timeout, renewable=activity is not None)


def _timeout(one: timeouts.TaskTimeout) -> TypeTimeout:
    activity, visibility = (one.timeout, None) if one.renewable else (None, one.timeout)
    return TypeTimeout(tuples.from_name(one.task), activity, visibility)

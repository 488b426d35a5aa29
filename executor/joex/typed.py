"""Jobs whose types, ids and priorities are the caller's own, and workers with loops of their own.

The job API of CouchDB's background jobs (its RFC "Background jobs with FoundationDB"), on the table of all other jobs:
executors run these jobs too, groups take turns, the views show them. What it calls pending is waiting, scheduled or
stuck here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID

from joex.core import tuples
from joex.core.duration import parse_duration
from joex.core.job import LONGEST_NAME, LONGEST_SUBJECT, check_name, check_text
from joex.core.outcome import Ending, Outcome, decide
from joex.errors import DatabaseUnavailable, InvalidJob, JobExists
from joex.store import jobs, keyed
from joex.store.errors import translated
from joex.store.jobs import json_text
from joex.store.keyed import KeyedJob, NewKeyedJob, Report
from joex.store.statement import Connection

if TYPE_CHECKING:
    from joex.client import Client

Answer = Literal["ok", "worker_conflict", "canceled"]
"""What a worker is told. ``worker_conflict`` (the job is not this run's any more), ``canceled``: stop, roll back."""
JobState = Literal["pending", "running", "finished"]
"""Where a job is. A type's own states (completed, failed, ...) are kept in its data."""

_PENDING = ("waiting", "scheduled", "stuck")
_FINISHED = ("success", "failed", "cancelled")
_STATES: dict[str, JobState] = {
    **dict.fromkeys(_PENDING, "pending"),
    "running": "running",
    **dict.fromkeys(_FINISHED, "finished"),
}
_KNOWN = ("priority", "data", "cancel", "resubmit")
_NO_LIMIT = object()
_MOST_LISTED = 1_000_000
_RETRY_IN = 1.0  # seconds


@dataclass(frozen=True, slots=True)
class TypedJob:
    """A job.

    Attributes:
        type, id: as added; for a submitted job, its task and its UUID.
        opts: ``priority`` where it has one, ``data``, ``cancel`` and ``resubmit`` where asked for, free fields.
        state: pending, running or finished.
        job: its UUID, by which all else of Joex knows it (`Client.get`, `Client.log`, the views).
        attempt: runs that were started.
        lock_id: of the run, for the worker that has accepted it, and for nobody else.
    """

    type: Any
    id: Any
    opts: dict[str, Any]
    state: JobState
    job: UUID
    attempt: int
    lock_id: UUID | None = None

    @property
    def data(self) -> dict[str, Any]:
        """What its type keeps in it; of a submitted job, its arguments."""
        data: dict[str, Any] = self.opts["data"]
        return data


class TypedJobs:
    """The jobs, through a client: ``client.typed``.

    Types, ids and priorities are any values that FoundationDB's tuple layer orders: None, texts, bytes, numbers,
    booleans, UUIDs, and tuples of them. A type is also a task's name and a queue's (`joex.core.tuples.to_name`), so
    that executors that serve the queue and know the task run its jobs, with ``data`` as arguments.

    With ``connection``, a call works in that connection's transaction. Wrong values raise `InvalidJob`, which names the
    field.
    """

    def __init__(self, client: Client, *, retries: int = 5, retry_delay: timedelta = timedelta(minutes=1)) -> None:
        self._client = client
        self._retries = retries
        self._retry_delay = retry_delay

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
        connection: Connection | None = None,
    ) -> UUID:
        """Add a job. It stays, finished or not, until it is removed.

        Args:
            job_type: its type.
            job_id: its id, unique within the type.
            opts: ``priority`` (its place in line: the lowest first, then first in, first out; without one it comes
                before all that have one), ``data`` (an object), ``cancel`` (it is not to run until it is resubmitted),
                ``resubmit`` (it goes round once more when its run ends), and free fields.
            group: the tenant it belongs to; by default all jobs of a type are one group, so that priorities order all.
            queue: by default the type has one of its own.
            subject: what it is about, for people; by default its id.
            submitter: who has added it, for people.
            connection: add it in this connection's transaction.

        Returns:
            Its UUID.

        Raises:
            JobExists: the type has a job with this id.
        """
        name = _name("type", job_type)
        for field, value in (("group", group), ("queue", queue)):
            if value is not None:
                with _invalid():
                    check_name(field, value)
        opts = {} if opts is None else opts
        said = _checked(opts, may_cancel=True)
        key = _pack("id", job_id)
        shown = to_text(job_id)[:250] if subject is None else subject
        with _invalid():
            check_text("subject", shown, LONGEST_SUBJECT)
            check_text("submitter", submitter, LONGEST_NAME)
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
        async with self._client.acquire(connection) as used:
            found = await keyed.add(used, new)
        if found is None:
            raise JobExists(f"id: the type {job_type!r} has a job {job_id!r} already")
        return found

    async def remove(
        self, job_type: Any, job_id: Any, *, connection: Connection | None = None
    ) -> Literal["ok", "not_found"]:
        """Remove a job and its log. Where it runs, its run is told to stop, and it is removed when that has ended."""
        async with self._found(job_type, job_id, connection) as (used, found):
            return "ok" if found is not None and await keyed.remove(used, found) == "ok" else "not_found"

    async def cancel(
        self, job_type: Any, job_id: Any, *, connection: Connection | None = None
    ) -> Literal["ok", "not_found"]:
        """Cancel a job: it is finished, or will be when its run has stopped. It stays, and may be resubmitted."""
        async with self._found(job_type, job_id, connection) as (used, found):
            return "ok" if found is not None and await jobs.cancel(used, found) != "not_found" else "not_found"

    async def resubmit(
        self, job_type: Any, job_id: Any, lock_id: UUID | None = None, *, connection: Connection | None = None
    ) -> Literal["ok", "not_found"] | Answer:
        """Run a job once more. One that runs goes round again when its run ends, however often this is said meanwhile.

        Args:
            job_type: the job's type.
            job_id: the job's id.
            lock_id: said by the run itself, of its own job; the answer then is as of `update`, else ok or not_found.
            connection: say it in this connection's transaction.
        """
        if lock_id is not None:
            return await self.update(job_type, job_id, {"resubmit": True}, lock_id, connection=connection)
        async with self._found(job_type, job_id, connection) as (used, found):
            return "ok" if found is not None and await keyed.resubmit(used, found) == "ok" else "not_found"

    async def get_job(self, job_type: Any, job_id: Any, *, connection: Connection | None = None) -> TypedJob | None:
        """A job, or None."""
        async with self._found(job_type, job_id, connection) as (used, found):
            row = None if found is None else await keyed.get(used, found)
        return None if row is None else typed_job(row)

    async def accept(
        self,
        job_type: Any,
        max_priority: Any = _NO_LIMIT,
        *,
        wait: timedelta | float | str = 0,
        worker: str = "worker",
        connection: Connection | None = None,
    ) -> TypedJob | None:
        """Take the next job of a type for a run of one's own, or None: there is none.

        The run has the job to itself, as long as it calls `update` within the type's timeout (see `set_timeout`; 60
        seconds where none is set), and says `finish` in the end.

        Args:
            job_type: the type; or the name of any other queue, whose jobs may have any task for their type.
            max_priority: nothing above it is taken: with times for priorities, nothing that is not due.
            wait: the longest time to wait for one; by default it says at once that there is none. While the database is
                away, the wait goes on.
            worker: the name of the worker, for people.
            connection: take it in this connection's transaction: if that rolls back, nothing was taken.
        """
        queue = _name("type", job_type)
        with _invalid():
            check_name("worker", worker)
        limit = None if max_priority is _NO_LIMIT else _pack("max_priority", max_priority)
        with _invalid("wait"):
            patience = parse_duration(wait).total_seconds()
        if patience and connection is not None:
            raise InvalidJob("wait: not in a transaction: what comes while it is open is not seen there; got both")
        found = await self._accept(queue, worker, limit, connection)
        if found is None and patience:
            found = await self._accept_later(queue, worker, limit, patience)
        return found

    async def _accept(
        self, queue: str, worker: str, limit: bytes | None, connection: Connection | None
    ) -> TypedJob | None:
        """Take a job, or nothing: where this is cancelled in the middle, what was taken is given back."""

        async def take() -> TypedJob | None:
            async with self._client.acquire(connection) as used:
                found = await keyed.accept(used, queue, 1, worker, limit)
            return replace(typed_job(found[0]), lock_id=found[0].lock_id) if found else None

        if connection is not None:
            return await take()
        taking = asyncio.ensure_future(take())
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            job = await taking
            if job is not None and job.lock_id is not None:
                await self.give_back(job.type, job.id, job.lock_id)
            raise

    async def _accept_later(self, queue: str, worker: str, limit: bytes | None, patience: float) -> TypedJob | None:
        deadline = asyncio.get_running_loop().time() + patience
        async with self._client.bell.waiting(queue, limit) as bell:
            while True:
                look_at = deadline
                try:
                    found = await self._accept(queue, worker, limit, None)
                except DatabaseUnavailable:
                    found, look_at = None, min(deadline, asyncio.get_running_loop().time() + _RETRY_IN)
                if found is not None:
                    self._client.bell.ring(queue)  # there may be more, for the next in line
                    return found
                try:
                    async with asyncio.timeout_at(look_at):
                        await bell.rung()
                except TimeoutError:
                    if look_at == deadline:
                        return None

    async def update(
        self,
        job_type: Any,
        job_id: Any,
        opts: Mapping[str, Any],
        lock_id: UUID,
        *,
        progress: float | None = None,
        message: str | None = None,
        connection: Connection | None = None,
    ) -> Answer:
        """Report that a run goes on, and change what its job says.

        In the transaction of the run's own writes this is the mutual exclusion: where the answer is not ``ok``, roll
        back, and nothing is ever seen that was written by a run that had lost its job.

        Args:
            job_type: the job's type.
            job_id: the job's id.
            opts: what changes: ``data`` (all of it), ``priority``, ``resubmit``, free fields (all of them).
            lock_id: of this run.
            progress: 0 to 100, and ``message`` in words.
            message: see ``progress``.
            connection: say it in this connection's transaction.
        """
        said = _checked(opts, progress=progress, message=message)
        _check_lock(lock_id)
        async with self._found(job_type, job_id, connection) as (used, found):
            return _answer("worker_conflict" if found is None else await keyed.update(used, found, lock_id, said))

    async def finish(
        self,
        job_type: Any,
        job_id: Any,
        opts: Mapping[str, Any],
        lock_id: UUID,
        *,
        result: Any = None,
        message: str | None = None,
        error: str | None = None,
        retry: bool = True,
        connection: Connection | None = None,
    ) -> Answer:
        """End a run. With ``resubmit``, in ``opts`` or asked for meanwhile, the job is pending again, else finished.

        Where the job was cancelled the answer is ``canceled``, and the run has ended as well (but not where this was
        said in a transaction of the caller's, who rolls it back: say it once more without).

        Args:
            job_type: as for `update`, and so the next three.
            job_id: the job's id.
            opts: what changes.
            lock_id: of this run.
            result: what came out, as JSON; and ``message``, in words.
            message: see ``result``.
            error: the run has failed, and why: the job is tried again, after a delay that doubles each time, until its
                retries are used up.
            retry: False: no try can help.
            connection: say it in this connection's transaction.
        """
        said = _checked(opts)
        _check_lock(lock_id)
        _check_texts(message=message, error=error)
        text = None if result is None else json_text("result", result)
        async with self._found(job_type, job_id, connection) as (used, found), _transaction(used) as is_ours:
            row = None if found is None else await keyed.get(used, found)
            if row is None or found is None:
                return "worker_conflict"
            answer = await keyed.update(used, found, lock_id, said) if opts else "ok"
            if answer == "ok":
                verdict = decide(
                    _outcome(error, retry=retry),
                    failures=row.failures,
                    retries=self._retries if row.retries is None else row.retries,
                    first_delay=self._retry_delay,
                )
                answer = await keyed.finish(
                    used,
                    found,
                    lock_id,
                    verdict.state,
                    result=text,
                    message=message,
                    error=verdict.error,
                    delay=verdict.delay,
                )
            return await _end_canceled(used, found, lock_id, answer) if is_ours else _answer(answer)

    async def give_back(
        self, job_type: Any, job_id: Any, lock_id: UUID, *, connection: Connection | None = None
    ) -> Answer:
        """End a run that does not count: the job waits again, at its old place in the line, for others to take it.

        Where the job was cancelled, it is as with `finish`.
        """
        _check_lock(lock_id)
        async with self._found(job_type, job_id, connection) as (used, found), _transaction(used) as is_ours:
            if found is None:
                return "worker_conflict"
            answer = await keyed.finish(used, found, lock_id, "waiting")
            return await _end_canceled(used, found, lock_id, answer) if is_ours else _answer(answer)

    async def list_jobs(
        self,
        job_type: Any,
        *,
        state: JobState | None = None,
        after: Any = _NO_LIMIT,
        most: int = 1000,
        connection: Connection | None = None,
    ) -> list[TypedJob]:
        """The jobs of a type in the order of their ids, at most ``most``; ``after``: the last id of the page before.

        A page costs what it shows; with ``state``, also what it passes over: for running ones see `active`.
        """
        if state is not None and state not in _STATES.values():
            raise InvalidJob(f"state: expected pending, running or finished; got {state!r}")
        if not 1 <= most <= _MOST_LISTED:
            raise InvalidJob(f"most: expected 1 to {_MOST_LISTED}; got {most!r}")
        states = None if state is None else [ours for ours, theirs in _STATES.items() if theirs == state]
        start = None if after is _NO_LIMIT else _pack("after", after)
        async with self._client.acquire(connection) as used:
            return [
                typed_job(row) for row in await keyed.list_keyed(used, _name("type", job_type), start, states, most)
            ]

    async def count(self, job_type: Any, *, connection: Connection | None = None) -> dict[str, int]:
        """How many jobs of a type are pending, running and finished."""
        async with self._client.acquire(connection) as used:
            return await keyed.count(used, _name("type", job_type))

    async def active(self, job_type: Any, *, connection: Connection | None = None) -> list[Any]:
        """The ids of the jobs of a type that run."""
        async with self._client.acquire(connection) as used:
            return [tuples.unpack(key) for key in await keyed.active(used, _name("type", job_type))]

    async def set_timeout(
        self,
        job_type: Any,
        *,
        activity: timedelta | float | str | None = None,
        visibility: timedelta | float | str | None = None,
        connection: Connection | None = None,
    ) -> None:
        """Set when a run of this type is put back, and others may have its job. It holds for runs that begin later.

        Args:
            job_type: the type; or the name of any task.
            activity: the longest time between two reports (`update`, or progress).
            visibility: the longest time of a run. Neither: no limit for executors, 60 s between reports for others.
            connection: set it in this connection's transaction.
        """
        if activity is not None and visibility is not None:
            raise InvalidJob("activity, visibility: a type has one timeout; got both")
        with _invalid("visibility" if activity is None else "activity"):
            given = visibility if activity is None else activity
            if not isinstance(given, timedelta | int | float | str | None):
                raise ValueError(f"expected a duration such as '30s'; got {given!r}")  # noqa: TRY004 - one error for callers
            timeout = None if given is None else parse_duration(given)
            if timeout is not None and timeout <= timedelta(0):
                raise ValueError(f"expected more than 0; got {given!r}")
        async with self._client.acquire(connection) as used:
            await keyed.set_timeout(used, _name("type", job_type), timeout, renewable=activity is not None)

    @asynccontextmanager
    async def _found(
        self, job_type: Any, job_id: Any, connection: Connection | None
    ) -> AsyncIterator[tuple[Connection, UUID | None]]:
        name, key = _name("type", job_type), _pack("id", job_id)
        async with self._client.acquire(connection) as used:
            yield used, await keyed.find(used, name, key)


def typed_job(row: KeyedJob) -> TypedJob:
    """A job as its caller sees it."""
    opts: dict[str, Any] = {**row.opts, "data": row.data}
    if row.rank:
        opts["priority"] = tuples.unpack(row.rank)
    if row.cancel_requested:
        opts["cancel"] = True
    if row.resubmit_requested:
        opts["resubmit"] = True
    job_id = row.id if row.key is None else tuples.unpack(row.key)
    return TypedJob(tuples.from_name(row.type), job_id, opts, _STATES[row.state], row.id, row.attempt)


def to_text(value: Any) -> str:
    """An id as people read it: a text is itself, other values are as in JSON."""
    return tuples.to_name("id", value).removeprefix("#") if not isinstance(value, str) else value.replace("\0", "")


def _checked(
    opts: Mapping[str, Any], *, may_cancel: bool = False, progress: Any = None, message: str | None = None
) -> Report:
    """What these options say.

    Raises:
        InvalidJob: one of them is wrong; the message names it.
    """
    if not isinstance(opts, Mapping):
        raise InvalidJob(f"opts: expected an object (names and values); got {type(opts).__name__}")
    data = opts.get("data")
    if data is not None and not isinstance(data, Mapping):
        raise InvalidJob(f"data: expected an object (names and values); got {type(data).__name__}")
    for flag in ("cancel", "resubmit"):
        if not isinstance(opts.get(flag, False), bool):
            raise InvalidJob(f"{flag}: expected true or false; got {opts[flag]!r}")
    if opts.get("cancel") and not may_cancel:
        raise InvalidJob("cancel: a run can't cancel its own job; finish it, or call cancel()")
    if progress is not None and not 0 <= progress <= 100:  # noqa: PLR2004 - a percentage
        raise InvalidJob(f"progress: expected 0 to 100; got {progress!r}")
    _check_texts(message=message)
    free = {name: value for name, value in opts.items() if name not in _KNOWN}
    return Report(
        data=None if data is None else json_text("data", data),
        opts=json_text("opts", free) if free else None,
        rank=_pack("priority", opts["priority"]) if "priority" in opts else None,
        progress=None if progress is None else int(progress),
        message=message,
        resubmit=opts.get("resubmit", False),
    )


def _check_texts(**texts: str | None) -> None:
    with _invalid():
        for field, text in texts.items():
            if text is not None:
                check_text(field, text)


def _check_lock(lock_id: UUID) -> None:
    if not isinstance(lock_id, UUID):
        raise InvalidJob(f"lock_id: expected the UUID that accept gave; got {lock_id!r}")


def _outcome(error: str | None, *, retry: bool) -> Outcome:
    if error is None:
        return Outcome(Ending.RETURNED)
    return Outcome(Ending.RAISED if retry else Ending.FAILED, error)


async def _end_canceled(used: Connection, found: UUID, lock_id: UUID, answer: str) -> Answer:
    """The answer to the end of a run, which has ended even so where its job was cancelled."""
    if answer == "canceled":
        await keyed.finish(used, found, lock_id, "cancelled")
    return _answer(answer)


@asynccontextmanager
async def _transaction(used: Connection) -> AsyncIterator[bool]:
    """A transaction of our own (True), unless the caller has one on this connection."""
    if used.is_in_transaction():
        yield False
        return
    with translated():
        async with used.transaction():
            yield True


class _invalid:  # noqa: N801 - it reads like a statement
    """Errors about a value become `InvalidJob`, with the field's name before them."""

    def __init__(self, field: str = "") -> None:
        self._field = field

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ValueError) and not isinstance(error, InvalidJob):
            raise InvalidJob(f"{self._field}: {error}" if self._field else str(error)) from error


def _pack(field: str, value: Any) -> bytes:
    with _invalid():
        return tuples.pack(field, value)


def _name(field: str, value: Any) -> str:
    with _invalid():
        name = tuples.to_name(field, value)
        check_name(field, name)
        return name


def _answer(text: str) -> Answer:
    if text == "ok":
        return "ok"
    return "canceled" if text == "canceled" else "worker_conflict"

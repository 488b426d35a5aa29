"""Keyed jobs as creators and workers see them, and the checks of their fields before they reach the database."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, Self
from uuid import UUID

from joex.client.connections import Connections
from joex.client.submissions import invalid
from joex.core import tuples
from joex.core.job import check_name, check_text
from joex.core.json_values import shown
from joex.core.text import cut
from joex.errors import InvalidJob
from joex.store import keyed
from joex.store.drivers import AnyConnection
from joex.store.json_text import json_text
from joex.store.keyed import OPTIONS, KeyedRow
from joex.store.statement import Connection
from joex.store.worker_runs import Report

JobState = Literal["pending", "running", "finished"]
"""The state of a job. A type keeps its own states (completed, failed, ...) in its data."""

PENDING = ("waiting", "scheduled", "stuck")
FINISHED = ("success", "failed", "cancelled")
STATES: dict[str, JobState] = {
    **dict.fromkeys(PENDING, "pending"),
    "running": "running",
    **dict.fromkeys(FINISHED, "finished"),
}
FREE: Any = object()
"""The name, in options, of the free fields that are here as their text (`joex.core.json_values.Written`)."""
NO_LIMIT: Any = object()
"""The caller gave no value (None is a value)."""


class Answer(str):
    """The answer to a worker: ok; or, to stop and roll back, worker_conflict (the run has lost its job) or canceled.

    Attributes:
        resubmit: in the answer of `update`: a client asked to resubmit the job, so it runs again when this run ends.
    """

    __slots__ = ("resubmit",)
    resubmit: bool

    def __new__(cls, text: str, *, resubmit: bool = False) -> Self:  # noqa: D102
        answer = super().__new__(cls, text)
        answer.resubmit = resubmit
        return answer


@dataclass(frozen=True, slots=True)
class TypeTimeout:
    """When Joex puts back runs of a type: this long after their last report (``activity``), or after their start."""

    type: Any
    activity: timedelta | None
    visibility: timedelta | None


@dataclass(frozen=True, slots=True)
class KeyedJob:
    """A job as clients and workers see it.

    Attributes:
        type, id: as added; a submitted job has its task and its UUID.
        opts: ``data``, free fields, and ``priority``, ``cancel`` and ``resubmit`` if they are set.
        state: pending, running or finished.
        job: its UUID, for the rest of Joex (`Client.get`, `Client.log`, the views).
        attempt: the number of runs that have started.
        lock_id: the lock id of the run; only the worker that accepted the job has it.
        trace_context: of the caller that submitted it: a W3C ``traceparent``; after a space, if there is one, the
            ``tracestate``.
    """

    type: Any
    id: Any
    opts: dict[str, Any]
    state: JobState
    job: UUID
    attempt: int
    lock_id: UUID | None = None
    trace_context: str | None = None

    @property
    def data(self) -> dict[str, Any]:
        """The data that its type keeps in it; for a submitted job, its arguments."""
        data: dict[str, Any] = self.opts["data"]
        return data


def keyed_job(row: KeyedRow) -> KeyedJob:
    """A job from a row of the database."""
    return KeyedJob(
        *type_and_id(row),
        {**row.opts, "data": row.data, **known_opts(row)},
        STATES[row.state],
        row.id,
        row.attempt,
        trace_context=row.trace_context,
    )


def type_and_id(row: KeyedRow) -> tuple[Any, Any]:
    """The type and the id of a job."""
    return tuples.from_name(row.type), row.id if row.key is None else tuples.unpack(row.key)


def known_opts(row: KeyedRow) -> dict[str, Any]:
    """The options of a job that are set, besides its data and its free fields."""
    opts: dict[str, Any] = {}
    if row.rank:
        opts["priority"] = tuples.unpack(row.rank)
    if row.cancel_requested:
        opts["cancel"] = True
    if row.resubmit_requested:
        opts["resubmit"] = True
    return opts


def to_text(value: Any) -> str:
    """An id in readable form: a text as it is, another value as JSON."""
    return tuples.to_name("id", value).removeprefix("#") if not isinstance(value, str) else value.replace("\0", "")


def checked(
    opts: Mapping[str, Any], *, may_cancel: bool = False, progress: Any = None, message: str | None = None
) -> Report:
    """Parse options.

    Raises:
        InvalidJob: an option is wrong; the message names it.
    """
    if not isinstance(opts, Mapping):
        raise InvalidJob(f"opts: expected an object (names and values); got {type(opts).__name__}")
    data = opts.get("data")
    if data is not None and not isinstance(data, Mapping):
        raise InvalidJob(f"data: expected an object (names and values); got {type(data).__name__}")
    for flag in ("cancel", "resubmit"):
        if not isinstance(opts.get(flag, False), bool):
            given = opts[flag]
            text = shown(given) if isinstance(given, str | int | float | None) else type(given).__name__
            raise InvalidJob(f"{flag}: expected true or false; got {text}")
    if opts.get("cancel") and not may_cancel:
        raise InvalidJob("cancel: a run can't cancel its own job; finish it, or call cancel()")
    if progress is not None and not (isinstance(progress, int | float) and 0 <= progress <= 100):  # noqa: PLR2004 - a percentage
        raise InvalidJob(f"progress: expected 0 to 100; got {progress!r}")
    check_texts(message=message)
    free = opts[FREE] if FREE in opts else {name: value for name, value in opts.items() if name not in OPTIONS}
    return Report(
        data=None if data is None else json_text("data", data),
        opts=json_text("opts", free) if free else None,
        rank=_rank(opts["priority"]) if "priority" in opts else None,
        progress=None if progress is None else int(progress),
        message=None if message is None else cut(message),
        resubmit=opts.get("resubmit", False),
    )


def check_texts(**texts: str | None) -> None:
    """Check texts before the database stores them; the keys are the names of their fields."""
    with invalid():
        for field, text in texts.items():
            if text is not None:
                check_text(field, text)


def check_lock(lock_id: UUID) -> None:
    """Check that this value has the form of a lock id."""
    if not isinstance(lock_id, UUID):
        raise InvalidJob(f"lock_id: expected the UUID that accept gave; got {lock_id!r}")


def pack(field: str, value: Any) -> bytes:
    """An id or a priority as bytes; see `joex.core.tuples.pack`."""
    with invalid():
        return tuples.pack(field, value)


def _rank(priority: Any) -> bytes:
    with invalid():
        return tuples.pack_priority(priority)


def name_of(field: str, value: Any) -> str:
    """A type as the name of a task and a queue; see `joex.core.tuples.to_name`."""
    with invalid():
        name = tuples.to_name(field, value)
        check_name(field, name)
        return name


@asynccontextmanager
async def found(
    connections: Connections, job_type: Any, job_id: Any, connection: AnyConnection | None
) -> AsyncIterator[tuple[Connection, UUID | None]]:
    """Find a job for the time of a block: gives a connection (the given one or another), and its UUID or None."""
    name, key = name_of("type", job_type), pack("id", job_id)
    async with connections.using(connection) as used:
        yield used, await keyed.find(used, name, key)

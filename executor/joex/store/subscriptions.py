"""Subscriptions of clients, their notifications, and the state of the jobs that they wait for."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from pydantic_core import from_json

from joex.store.errors import NO_MESSAGE, translated
from joex.store.jobs import COLUMNS, Job, job_of
from joex.store.statement import Connection, id_of, statement

JOBS = "joex_jobs"
"""The channel of changes of jobs that clients wait for. (That of all events has a secret name.)"""

_SUBSCRIBE = statement("SELECT joex.subscribe($1::text, $2::interval, $3::boolean)")
_UNSUBSCRIBE = statement("SELECT joex.unsubscribe($1::text)")
_LONG_AGO = datetime.min.replace(tzinfo=UTC)
_FORGET = (
    (
        statement("SELECT * FROM joex_private.forget_subscriptions($1::timestamptz, $2::text, $3::uuid)"),
        _LONG_AGO,
        None,
        None,
    ),
    (statement("SELECT joex_private.forget_watches('', $1::timestamptz)"), _LONG_AGO),
)
_EVENTS_CHANNEL = statement("SELECT joex.events_channel()")
_WAIT_FOR = statement("SELECT joex.wait_for($1::text, $2::uuid[])")
_WAIT_NO_MORE = statement("SELECT joex.wait_no_more($1::text, $2::uuid[])")
_VERSIONS = statement("SELECT oldest_xid, ids, xmins, states FROM joex_client.versions($1::uuid[])")
_READ = statement(f"SELECT {COLUMNS} FROM joex.jobs WHERE id = ANY ($1::uuid[])")  # noqa: S608 - put together of constants

_STATES = statement("SELECT id, state::text FROM joex.jobs WHERE id = ANY ($1::uuid[])")


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a job: another ``xmin`` means that it has changed."""

    xmin: int
    state: str


@dataclass(frozen=True, slots=True)
class JobVersions:
    """The versions of jobs (one that is missing is gone), and the oldest transaction that was open then."""

    versions: dict[UUID, Version]
    oldest_xid: int


@dataclass(frozen=True, slots=True)
class JobEvent:
    """Something has happened to a job. ``executor``: of a running or finished job, the executor or worker that took it.

    ``kind``: ``job-submitted``, ``job-started`` or ``job-finished`` (``state`` says how).
    """

    kind: str
    id: UUID
    task: str
    queue: str
    group: str
    state: str
    executor: str | None


@dataclass(frozen=True, slots=True)
class ExecutorEvent:
    """An executor has come or gone. ``kind``: ``executor-joined`` or ``executor-left``.

    ``executor`` is its app-id. ``ending``: ``left``, ``dead`` or ``replaced``; None: it has joined.
    """

    kind: str
    executor: str
    registration: int
    queues: list[str] | None
    ending: str | None


async def subscribe(connection: Connection, name: str, duration: timedelta, *, events: bool) -> bool:
    """Subscribe under this name, or renew that; False: the subscription is new, or had run out, and has no jobs."""
    with translated():
        return bool(await connection.fetchval(_SUBSCRIBE, name, duration, events))


async def events_channel(connection: Connection) -> str:
    """The channel of all events, as it is called now."""
    with translated():
        return str(await connection.fetchval(_EVENTS_CHANNEL))


async def unsubscribe(connection: Connection, name: str) -> None:
    """End a subscription."""
    with translated():
        await connection.execute(_UNSUBSCRIBE, name)


async def forget(connection: Connection, most: int = 10_000) -> None:
    """Delete subscriptions and watches of queues that ended more than an hour ago, in at most so many batches of each.

    What is left then is for the next time: a role can make more of them than one connection deletes.
    """
    with translated():
        for sql, *begin in _FORGET:
            place: Any = begin
            for _ in range(most):
                [place] = await connection.fetch(sql, *place)
                if place[0] is None:
                    break


async def wait_for(connection: Connection, name: str, ids: Collection[UUID]) -> None:
    """Subscribe to changes of these jobs."""
    with translated():
        await connection.execute(_WAIT_FOR, name, list(ids))


async def wait_no_more(connection: Connection, name: str, ids: Collection[UUID]) -> None:
    """Unsubscribe from changes of these jobs."""
    with translated():
        await connection.execute(_WAIT_NO_MORE, name, list(ids))


async def job_versions(connection: Connection, ids: Collection[UUID]) -> JobVersions:
    """Read the versions of jobs: cheap, however large the jobs are."""
    with translated():
        row = await connection.fetchrow(_VERSIONS, list(ids))
    if row is None:
        raise RuntimeError("an aggregate gave no row")
    seen = zip(row["ids"] or (), row["xmins"] or (), row["states"] or (), strict=True)
    return JobVersions({id_of(job_id): Version(xmin, state) for job_id, xmin, state in seen}, row["oldest_xid"])


async def job_states(connection: Connection, ids: Collection[UUID]) -> dict[UUID, str]:
    """The states of jobs, without those that are gone."""
    with translated():
        return {id_of(row["id"]): row["state"] for row in await connection.fetch(_STATES, list(ids))}


async def read_jobs(connection: Connection, ids: Collection[UUID]) -> dict[UUID, Job]:
    """Read jobs, without those that are gone."""
    with translated():
        rows = await connection.fetch(_READ, list(ids))
    return {job.id: job for job in map(job_of, rows)}


def heard_jobs(payload: str) -> list[UUID]:
    """The jobs that a notification on the channel `JOBS` names; none if it is not Joex's."""
    try:
        return [UUID(job_id) for job_id in from_json(payload)["jobs"]]
    except NO_MESSAGE:
        return []


def heard_event(payload: str) -> JobEvent | ExecutorEvent | None:
    """The event of a notification on the channel of all events; None: a kind of a later version, or not Joex's."""
    with suppress(*NO_MESSAGE):
        event: dict[str, Any] = from_json(payload)
        match event["event"]:
            case "job-submitted" | "job-started" | "job-finished" as kind:
                names = (event[name] for name in ("task", "queue", "group", "state", "executor"))
                return JobEvent(kind, UUID(event["id"]), *names)
            case "executor-joined" | "executor-left" as kind:
                return ExecutorEvent(kind, event["executor"], event["registration"], event["queues"], event["ending"])
    return None


def ends_channel(payload: str) -> bool:
    """Whether a notification on the channel of all events is its last one: the events have another channel now."""
    with suppress(*NO_MESSAGE):
        return bool(from_json(payload)["event"] == "channel-changed")
    return False

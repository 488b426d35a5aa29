"""Periodic tasks as their owners change and read them. Schedulers have `joex.store.periodic_due`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

import asyncpg

from joex.core.access import EVERYTHING, Bounds
from joex.core.json_values import shown
from joex.core.periodic import SYSTEM_OWNER, NewPeriodicTask
from joex.errors import InvalidJob
from joex.store.bounded import UNLIMITED, fitting, listing, read_each
from joex.store.errors import translated
from joex.store.json_text import json_text, read_json
from joex.store.statement import Connection, id_of, statement

CHANNEL = "joex_periodic"
"""The channel for changes of periodic tasks by their owners; its notifications say nothing else."""

_PUT = statement("""
    SELECT joex.put_periodic_task($1::text, $2::text, $3::text, $4::text, $5::text::jsonb, $6::text, $7::text, $8::text,
                                  $9::text, $10::text, $11::interval, $12::boolean, $13::text)
""")
_PUT_OWN = statement("""
    SELECT joex_private.store_periodic_task($1::text, $2::text, $3::text, $4::text, $5::text::jsonb, $6::text, $7::text,
                                            $8::text, $9::text, $10::text, $11::interval, $12::boolean, $13::text)
""")
_WAIT_SHORTLY = statement("SELECT set_config('lock_timeout', '200ms', true)")
_REMOVE = statement("SELECT joex.remove_periodic_task($1::text, $2::text, $3::boolean, $4::text, $5::text)")
_ENABLE = statement(
    "SELECT joex.enable_periodic_task($1::text, $2::boolean, $3::text, $4::boolean, $5::text, $6::text)"
)
_KEEP = statement("SELECT joex_private.keep_periodic_tasks($1::text, $2::text[], $3::text[], $4::text[])")
_RUN = statement("SELECT answer, job FROM joex.run_periodic_task($1::text, $2::text, $3::text)")


def _listing_of(source: str) -> str:
    return listing(
        f"""
        SELECT id, owner, enabled, task, timer, zone, grp, queue, priority::text, subject, submitter,
               starting_deadline, nextrun, last_run, last_outcome, last_job, last_job_state::text,
               CASE WHEN $12::boolean THEN error WHEN error IS NOT NULL THEN '' END AS error, worker, marked,
               created_at, changed_at, key
        FROM {source} t
        WHERE ($1::text[] IS NULL OR id = ANY ($1) AND EXISTS (
                   SELECT FROM unnest($1::text[], $2::text[], $3::text[]) n(id, queue, grp)
                   WHERE n.id = t.id AND coalesce(n.queue, t.queue) = t.queue AND coalesce(n.grp, t.grp) = t.grp))
          AND ($4::text[] IS NULL OR owner = ANY ($4))
          AND ($5::text IS NULL OR (id, queue, grp) > ($5::text, $6::text, $7::text))
          AND ($9::text[] IS NULL OR queue = ANY ($9)) AND ($10::text[] IS NULL OR grp = ANY ($10))
          AND ($11::text IS NULL OR owner <> $11)
        ORDER BY id, queue, grp LIMIT $8::integer
        """,  # noqa: S608 - put together of constants
        source,
        {"args": "args::text"},
        13,
        ("id", "queue", "grp"),
    )


_LIST = _listing_of("joex_private.periodic_tasks")
_LIST_OF_CLIENTS = _listing_of("joex.periodic_tasks")


class TaskKey(NamedTuple):
    """What is unique of a periodic task."""

    id: str
    queue: str
    group: str


TaskName: TypeAlias = tuple[str, str | None, str | None]
"""Names a periodic task: its id, its queue and its group; None: in any queue, in any group."""


@dataclass(frozen=True, slots=True)
class PeriodicTask:
    """A periodic task as it is stored.

    Attributes:
        id, owner, enabled, task, timer, zone: as set; so are the next seven.
        nextrun: when it is due; None: it is disabled, has an error, or there never is a next time.
        last_run: the latest time of its timer that was decided, and ``last_outcome`` how: ``submitted``,
            ``started`` (Joex's own work: without a job), ``overlapping`` (the job before was not finished: left
            out), ``late`` (it was missed by more than the deadline: left out).
        last_job: the latest job that was made, and ``last_job_state`` where it stands (None: it has been deleted).
        error: why it can't run, until that is changed; empty: that was not read.
        worker: the process that decided about it last, and ``marked`` when.
        key: its id, queue and group as one text: what is unique, and where the next page of a list begins.
    """

    id: str
    owner: str
    enabled: bool
    task: str
    timer: str
    zone: str
    args: dict[str, Any]
    group: str
    queue: str
    priority: str
    subject: str
    submitter: str
    starting_deadline: timedelta | None
    nextrun: datetime | None
    last_run: datetime | None
    last_outcome: str | None
    last_job: UUID | None
    last_job_state: str | None
    error: str | None
    worker: str | None
    marked: datetime | None
    created_at: datetime
    changed_at: datetime
    key: str

    @property
    def name(self) -> TaskKey:
        """Names this task alone."""
        return TaskKey(self.id, self.queue, self.group)


def columns(names: Sequence[TaskName]) -> list[list[str | None]]:
    """The ids, the queues and the groups of tasks, for parameters that are arrays."""
    return [[name[at] for name in names] for at in range(3)]


async def put(connection: Connection, task: NewPeriodicTask, owner: str, *, waits: bool = True) -> str:
    """Set a periodic task; answers set, same, or not_yours (the one with this name has another owner).

    With `SYSTEM_OWNER` this is for Joex's own code: joex.put_periodic_task refuses that owner.

    Args:
        connection: changes it in this connection's transaction.
        task: as it is to be.
        owner: its owner.
        waits: for another transaction that holds its row; False: answers locked then.
    """
    return await _answer(
        connection,
        _PUT_OWN if owner == SYSTEM_OWNER else _PUT,
        task.id,
        task.task,
        task.timer,
        task.zone,
        json_text("args", task.args),
        task.group,
        task.queue,
        str(task.priority),
        task.subject,
        task.submitter,
        task.starting_deadline,
        task.enabled,
        owner,
        waits=waits,
    )


async def remove(
    connection: Connection, name: TaskName, owner: str, *, any_owner: bool = False, waits: bool = True
) -> str:
    """Remove a periodic task; answers removed, not_found or not_yours. ``waits``: as for `put`.

    Raises:
        InvalidJob: several have this name.
    """
    return await _answer(connection, _REMOVE, name[0], owner, any_owner, *name[1:], waits=waits)


async def enable(
    connection: Connection, name: TaskName, owner: str, *, enabled: bool, any_owner: bool = False, waits: bool = True
) -> str:
    """Enable or disable a periodic task; answers set, same, not_found or not_yours. The rest as `remove`."""
    return await _answer(connection, _ENABLE, name[0], enabled, owner, any_owner, *name[1:], waits=waits)


async def _answer(connection: Connection, sql: str, *args: Any, waits: bool) -> str:
    with translated():
        if waits:
            return str(await connection.fetchval(sql, *args))
        # (A role that may operate in its group can leave its transaction open.)
        try:
            async with connection.transaction():
                await connection.execute(_WAIT_SHORTLY)
                return str(await connection.fetchval(sql, *args))
        except asyncpg.LockNotAvailableError:
            return "locked"


async def keep(connection: Connection, owner: str, keys: Sequence[TaskKey]) -> list[str]:
    """Remove the periodic tasks of an owner, all but these; returns the ids of those removed."""
    with translated():
        return [row[0] for row in await connection.fetch(_KEEP, owner, *columns(keys))]


async def run_now(connection: Connection, name: TaskName) -> tuple[str, UUID | None]:
    """Create the job of a periodic task now; answers submitted (and which), overlapping, not_found or not_yours.

    Raises:
        InvalidJob: several have this name.
    """
    with translated():
        row: Any = await connection.fetchrow(_RUN, *name)
    return row["answer"], id_of(row["job"])


async def find(
    connection: Connection,
    name: TaskName,
    *,
    bounds: Bounds = EVERYTHING,
    most_bytes: int = UNLIMITED,
    errors: bool = True,
) -> PeriodicTask | None:
    """The periodic task with this name within these bounds; SQL: ``named_periodic_task``.

    Raises:
        InvalidJob: several have it.
    """
    found, _ = await page_of_tasks(connection, [name], most=2, bounds=bounds, most_bytes=most_bytes, errors=errors)
    if len(found) > 1:
        queue, group = (json.dumps(one, ensure_ascii=False) for one in (found[0].queue, found[0].group))
        raise InvalidJob(
            f"id: several periodic tasks have the id {json.dumps(name[0], ensure_ascii=False)}: name the queue and the "
            f"group too, such as queue {queue} and group {group}"
        )
    return found[0] if found else None


async def list_tasks(
    connection: Connection,
    names: Sequence[TaskName] | None = None,
    *,
    owners: Sequence[str] | None = None,
    after: str | None = None,
    most: int = 1000,
) -> list[PeriodicTask]:
    """Periodic tasks in the order of their ids, after the one with this key, as executors and operators read them.

    No role of a client can keep others from what this reads, as it can from the view that `page_of_tasks` reads.
    """
    tasks, _ = await page_of_tasks(connection, names, owners=owners, after=after, most=most, is_client=False)
    return tasks


async def page_of_tasks(
    connection: Connection,
    names: Sequence[TaskName] | None = None,
    *,
    owners: Sequence[str] | None = None,
    after: str | None = None,
    most: int = 1000,
    bounds: Bounds = EVERYTHING,
    most_bytes: int = UNLIMITED,
    errors: bool = True,
    is_client: bool = True,
) -> tuple[list[PeriodicTask], bool]:
    """Periodic tasks in the order of their ids, after the one with this key; and whether there are more.

    At most ``most`` tasks, with ``most_bytes`` of arguments, but one at least. `joex.store.bounded.NOTHING`: their
    arguments are None. Without ``errors``, each error is empty. No bounds hold Joex's own. ``is_client``: what the role
    of the connection may see, and not all.

    Raises:
        InvalidJob: ``after`` is no key.
    """
    after_name = [None] * 3 if after is None else _read_key(after)
    not_of = SYSTEM_OWNER if bounds.are_set else None
    with translated():
        rows = await connection.fetch(
            _LIST_OF_CLIENTS if is_client else _LIST,
            *([None] * 3 if names is None else columns(names)),
            owners,
            *after_name,
            most + 1,
            bounds.queues,
            bounds.groups,
            not_of,
            errors,
            most_bytes,
            1,
        )
    ends = min(fitting(rows, most_bytes, "args")[0], most)
    return read_each(_task_of, rows[:ends]), len(rows) > ends


def _read_key(key: str) -> TaskKey:
    with suppress(ValueError, TypeError):
        match read_json(key):
            case [str() as task_id, str() as queue, str() as group] if "\0" not in task_id + queue + group:
                return TaskKey(task_id, queue, group)
    raise InvalidJob(f"after: expected the key of a periodic task; got {shown(key)}")


def _task_of(row: Any) -> PeriodicTask:
    values = dict(row)
    del values["nr"], values["size"]
    values["group"] = values.pop("grp")
    values["args"] = None if values["args"] is None else read_json(values["args"])
    values["last_job"] = id_of(values["last_job"])
    return PeriodicTask(**values)

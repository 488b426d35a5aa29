"""Keyed jobs, whose callers choose their ids.

These functions take ids and priorities packed (`joex.core.tuples`), and types as names. A submitted job has its UUID.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

from joex.core.access import EVERYTHING, Bounds
from joex.store.bounded import UNLIMITED, fitting, listing, read_each
from joex.store.errors import translated
from joex.store.json_text import read_json
from joex.store.statement import Connection, columns, id_of, planned_anew, statement


@dataclass(frozen=True, slots=True)
class KeyedRow:
    """A job as its caller, or a worker, sees it.

    ``key``: None for a submitted job; ``lock_id``: of the latest run; ``trace_context``: of its submission.
    """

    id: UUID
    type: str
    queue: str
    group: str
    key: bytes | None
    rank: bytes
    data: dict[str, Any]
    opts: dict[str, Any]
    state: str
    attempt: int
    failures: int
    retries: int | None
    cancel_requested: bool
    resubmit_requested: bool
    lock_id: UUID | None
    trace_context: str | None


_ADD = statement("""
    SELECT joex_client.add($1::text, $2::bytea, $3::text::jsonb, $4::text::jsonb, $5::bytea, $6::text, $7::text,
                            subject => $8::text, submitter => $9::text, cancel => $10::boolean,
                            resubmit => $11::boolean, trace_context => $12::text)
""")
_FIND = statement("SELECT joex_client.find($1::text, $2::bytea)")
_REMOVE = statement("SELECT joex.remove($1::uuid)")
_RESUBMIT = statement("SELECT joex_client.resubmit($1::uuid)")
_FIELDS = frozenset(KeyedRow.__match_args__)
OPTIONS = ("priority", "data", "cancel", "resubmit")
"""The options of a job; its other fields are free. (SQL may have given a free one such a name.)"""
_PAYLOADS = {"data": "args::text", "opts": f"(opts - '{{{', '.join(OPTIONS)}}}'::text[])::text"}
_AS_TEXT = {"type": "task", "group": "grp", "state": "state::text"}
COLUMNS = columns(KeyedRow, **_AS_TEXT, **_PAYLOADS)
"""What a statement selects for `row_of`."""
_HEADS = columns(KeyedRow, _PAYLOADS, **_AS_TEXT)
_GET, _GET_HEAD = (
    statement(
        f"SELECT {fields} FROM joex_private.job WHERE id = $1::uuid"  # noqa: S608 - put together of constants
        " AND ($2::text[] IS NULL OR queue = ANY ($2)) AND ($3::text[] IS NULL OR grp = ANY ($3))"
    )
    for fields in (COLUMNS, _HEADS)
)
_FIND_MANY = statement("""
    SELECT joex_client.find($1::text, k.key) FROM unnest($2::bytea[]) WITH ORDINALITY AS k(key, nr) ORDER BY k.nr
""")
_READ = statement(f"SELECT {COLUMNS} FROM joex_private.job WHERE id = ANY ($1::uuid[])")  # noqa: S608 - likewise
_LIST = listing(
    f"""
    SELECT {_HEADS} FROM joex_private.job
    WHERE task = $1::text AND key IS NOT NULL AND ($2::bytea IS NULL OR key > $2::bytea)
      AND ($3::text[] IS NULL OR state::text = ANY ($3))
      AND ($5::text[] IS NULL OR queue = ANY ($5)) AND ($6::text[] IS NULL OR grp = ANY ($6))
    ORDER BY key LIMIT $4::integer
    """,  # noqa: S608 - likewise
    "joex_private.job",
    _PAYLOADS,
    7,
)
_COUNT = planned_anew("""
    SELECT count(*) FILTER (WHERE finished_at IS NULL AND state <> 'running') AS pending,
           count(*) FILTER (WHERE state = 'running') AS running,
           count(*) FILTER (WHERE finished_at IS NOT NULL) AS finished
    FROM joex_private.job WHERE task = $1::text AND key IS NOT NULL AND ($2::bytea IS NULL OR rank <= $2)
      AND ($3::text[] IS NULL OR queue = ANY ($3)) AND ($4::text[] IS NULL OR grp = ANY ($4))
""")
_ACTIVE = planned_anew("""
    SELECT key FROM joex_private.held WHERE state = 'running' AND task = $1::text AND key IS NOT NULL
      AND ($2::text[] IS NULL OR queue = ANY ($2)) AND ($3::text[] IS NULL OR grp = ANY ($3))
      AND ($4::bytea IS NULL OR key > $4) ORDER BY key LIMIT $5::integer
""")


@dataclass(frozen=True, slots=True)
class NewKeyedJob:
    """A job to add. ``data`` and ``opts`` are JSON texts; a group or queue of None is the type."""

    type: str
    key: bytes
    data: str
    opts: str
    rank: bytes
    group: str | None
    queue: str | None
    subject: str
    submitter: str
    cancel: bool
    resubmit: bool


async def add(connection: Connection, job: NewKeyedJob, trace_context: str | None = None) -> UUID | None:
    """Add a job; None if its type has one with this key already."""
    with translated():
        found: UUID | None = id_of(
            await connection.fetchval(
                _ADD,
                job.type,
                job.key,
                job.data,
                job.opts,
                job.rank,
                job.group,
                job.queue,
                job.subject,
                job.submitter,
                job.cancel,
                job.resubmit,
                trace_context,
            )
        )
    return found


async def find(connection: Connection, job_type: str, key: bytes) -> UUID | None:
    """The UUID of a job, or None."""
    with translated():
        found: UUID | None = id_of(await connection.fetchval(_FIND, job_type, key))
    return found


async def find_many(connection: Connection, job_type: str, keys: Sequence[bytes]) -> list[UUID | None]:
    """The UUIDs of jobs of a type, in the order given; None: there is no such job."""
    with translated():
        return [id_of(row[0]) for row in await connection.fetch(_FIND_MANY, job_type, keys)]


async def read(connection: Connection, ids: Collection[UUID]) -> list[KeyedRow]:
    """Read jobs; leaves out a job that is gone."""
    with translated():
        return [row_of(row) for row in await connection.fetch(_READ, list(ids))]


async def remove(connection: Connection, job_id: UUID) -> Literal["ok", "not_found"]:
    """Remove a job; a running one when its run has stopped."""
    with translated():
        return "ok" if await connection.fetchval(_REMOVE, job_id) == "ok" else "not_found"


async def resubmit(connection: Connection, job_id: UUID) -> str:
    """Run a job once more, whatever its state; answers ok or not_found."""
    with translated():
        return str(await connection.fetchval(_RESUBMIT, job_id))


async def get(
    connection: Connection, job_id: UUID | None, *, payloads: bool = True, bounds: Bounds = EVERYTHING
) -> KeyedRow | None:
    """A job, or None. Without ``payloads`` these are not read: ``data`` is None, and ``opts`` empty."""
    with translated():
        row = await connection.fetchrow(_GET if payloads else _GET_HEAD, job_id, bounds.queues, bounds.groups)
    return None if row is None else row_of(row)


async def list_keyed(
    connection: Connection,
    job_type: str,
    after: bytes | None,
    states: Sequence[str] | None,
    most: int,
    *,
    bounds: Bounds = EVERYTHING,
    most_bytes: int = UNLIMITED,
) -> tuple[list[KeyedRow], bool]:
    """The jobs of a type in the order of their ids, after one of them; and whether there are more.

    At most ``most`` jobs, with ``most_bytes`` of payloads, but one at least. `joex.store.bounded.NOTHING`: without
    payloads, as `get`.
    """
    with translated():
        rows = await connection.fetch(
            _LIST, job_type, after, states, most + 1, bounds.queues, bounds.groups, most_bytes, 1
        )
    ends = min(fitting(rows, most_bytes, "data")[0], most)
    return read_each(row_of, rows[:ends]), len(rows) > ends


async def count(
    connection: Connection, job_type: str, max_rank: bytes | None = None, bounds: Bounds = EVERYTHING
) -> dict[str, int]:
    """How many jobs of a type are pending, running, finished; none whose rank is above ``max_rank``."""
    with translated():
        return dict(await connection.fetchrow(_COUNT, job_type, max_rank, bounds.queues, bounds.groups) or {})


async def active(
    connection: Connection,
    job_type: str,
    bounds: Bounds = EVERYTHING,
    *,
    after: bytes | None = None,
    most: int | None = None,
) -> list[bytes]:
    """The keys of the jobs of a type that run, in their order, after one of them; all, or at most so many."""
    with translated():
        rows = await connection.fetch(_ACTIVE, job_type, bounds.queues, bounds.groups, after, most)
    return [row["key"] for row in rows]


def row_of(row: Any, read: Callable[[str], Any] = read_json) -> KeyedRow:
    """A row of the database with the `COLUMNS`, or the `_HEADS`; ``read`` makes objects of the texts of payloads."""
    values: dict[str, Any] = dict.fromkeys(_PAYLOADS)
    values.update((name, value) for name, value in row.items() if name in _FIELDS)
    values["data"] = None if values["data"] is None else read(values["data"])
    values["opts"] = {} if values["opts"] is None else read(values["opts"])
    values["id"], values["lock_id"] = id_of(values["id"]), id_of(values["lock_id"])
    return KeyedRow(**values)

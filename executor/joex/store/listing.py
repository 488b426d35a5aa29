"""Lists of jobs, page by page (see `joex.store.job_pages`), and those that executors hold, or that wait."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from joex.core.access import EVERYTHING, Bounds
from joex.store.bounded import UNLIMITED, fitting, listing, read_each
from joex.store.errors import translated
from joex.store.job_pages import PARTS, Page, Part, cursor_after, job_in, parts_after
from joex.store.jobs import HEADS, PAYLOADS, Job
from joex.store.statement import Connection

_TABLE = "joex_private.job"
_NEVER_NULL = "args"
_WITHIN = "($1::text[] IS NULL OR queue = ANY ($1)) AND ($2::text[] IS NULL OR grp = ANY ($2))"
_OF_KIND = "($3::text IS NULL OR task = $3) AND ($4::text[] IS NULL OR state::text = ANY ($4))"
_WANTED_OF_ONE = f"""
    ($1::text IS NULL OR queue = $1) AND ($2::text IS NULL OR ring = joex_private.ring($2) AND grp = $2) AND {_OF_KIND}
"""
WANTED = f"{_WITHIN} AND {_OF_KIND}"
"""The condition of a `Filter`: its parameters are queues, groups, a task and states."""


@dataclass(frozen=True, slots=True)
class Filter:
    """Which jobs are wanted; None: all."""

    queue: str | None = None
    group: str | None = None
    task: str | None = None
    states: Sequence[str] | None = None
    bounds: Bounds = EVERYTHING

    @property
    def within(self) -> Bounds:
        """The bounds, narrowed to the queue and the group."""
        return self.bounds.narrowed(self.queue, self.group)

    @property
    def is_nothing(self) -> bool:
        """Whether the queue or the group lies outside of the bounds."""
        return () in (self.within.queues, self.within.groups)


def _page(part: Part, place: str, wanted: str) -> str:
    heads = f"""
        SELECT {HEADS}, {part.keys} FROM {_TABLE}
        WHERE {place} AND {wanted} AND ({part.given(5)[0]} IS NULL OR {part.after(5)})
        ORDER BY {part.order} LIMIT ${5 + len(part.key)}::integer
    """  # noqa: S608 - put together of constants
    return listing(heads, _TABLE, PAYLOADS, 6 + len(part.key))


_PAGES = {
    (part, is_of_many): [_page(part, place, wanted) for place in part.places]
    for part in PARTS
    for is_of_many, wanted in ((False, _WANTED_OF_ONE), (True, WANTED))
}
"""Statements for each index of a part: those for one queue or group, which find the group by the index; and others."""

_IN_PROGRESS = listing(
    f"""
    SELECT {HEADS} FROM {_TABLE}
    WHERE executor_id IS NOT NULL AND {_WITHIN}
    ORDER BY state <> 'running', CASE state WHEN 'running' THEN started_at ELSE scheduled_at END, seq LIMIT $3::integer
    """,  # noqa: S608 - put together of constants
    _TABLE,
    PAYLOADS,
    4,
)
_QUEUED = listing(
    f"SELECT {HEADS} FROM joex_private.queued($1::text, $2::text, $3::integer, $4::text[], $5::text[])",  # noqa: S608
    _TABLE,
    PAYLOADS,
    6,
)


async def list_held(
    connection: Connection,
    queue: str | None,
    group: str | None,
    most: int,
    bounds: Bounds = EVERYTHING,
    *,
    most_bytes: int = UNLIMITED,
) -> list[Job]:
    """The jobs that executors hold: running ones, the first started first, then those that are about to start."""
    within = bounds.narrowed(queue, group)
    with translated():
        rows = await connection.fetch(_IN_PROGRESS, within.queues, within.groups, most, most_bytes, 1)
    return _fitted(rows, most_bytes)


async def list_queued(
    connection: Connection,
    queue: str | None,
    group: str | None,
    most: int,
    bounds: Bounds = EVERYTHING,
    *,
    most_bytes: int = UNLIMITED,
) -> list[Job]:
    """The jobs that wait, the first submitted first (see joex_private.queued)."""
    with translated():
        rows = await connection.fetch(_QUEUED, queue, group, most, bounds.queues, bounds.groups, most_bytes, 1)
    return _fitted(rows, most_bytes)


async def list_jobs(
    connection: Connection,
    wanted: Filter,
    cursor: str | None = None,
    most: int = 100,
    most_bytes: int = UNLIMITED,
) -> Page:
    """A page of at most ``most`` jobs, from a cursor on. A job that moves between two pages can be on both, or on none.

    It has at most ``most_bytes`` of payloads, but one job at least. With `joex.store.bounded.NOTHING`, they are None.

    Raises:
        InvalidJob: the cursor is not one that a page has given.
    """
    places: list[Any] = [wanted.within.queues, wanted.within.groups]
    if not (is_of_many := any(names is not None and len(names) != 1 for names in places)):
        places = [names and names[0] for names in places]
    found: list[tuple[Part, Any]] = []
    ends, left = 0, most_bytes
    for part, states, key in parts_after(cursor, wanted.states):
        if not ends == len(found) <= most:  # one more than wanted shows that there is a next page
            break
        given = key or [None] * len(part.key)
        rows: list[Any] = []
        with translated():
            for sql in _PAGES[part, is_of_many]:
                filled = (*places, wanted.task, states, *given, most + 1 - len(found))
                rows += await connection.fetch(sql, *filled, left, 0 if found else 1)
        if len(part.places) > 1:
            rows.sort(key=part.key_of, reverse=part.down)
        found += [(part, row) for row in rows[: most + 1 - len(found)]]
        ends, left = fitting([row for _, row in found], most_bytes, _NEVER_NULL)
    ends = min(ends, most)
    jobs = read_each(job_in, [row for _, row in found[:ends]])
    return Page(jobs, cursor_after(*found[ends - 1]) if len(found) > ends else None)


def _fitted(rows: Sequence[Any], most_bytes: int) -> list[Job]:
    ends, _ = fitting(rows, most_bytes, _NEVER_NULL)
    return read_each(job_in, rows[:ends])

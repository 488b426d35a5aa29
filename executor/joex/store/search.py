"""Searches for jobs by what no index has.

No index has the jobs of a task, a submitter or a subject, because each submission would have to write it. A search
reads the parts in their orders instead, at most so many jobs for a page: a page may have few jobs, or none, and yet a
next page. No index has the finished jobs of a group either: it would make the end of each job a fifth dearer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from joex.store.errors import translated
from joex.store.job_pages import Page, Part, cursor_after, job_in, parts_after
from joex.store.jobs import HEADS
from joex.store.listing import WANTED, Filter
from joex.store.statement import Connection, planned_anew

_SOUGHT = f"""{WANTED}
    AND ($5::text IS NULL OR submitter = $5) AND ($6::text IS NULL OR tracker = $6)
    AND ($7::text IS NULL OR lower(subject) ~ ('***=' || lower($7)))
"""
# (LIKE takes the product of the lengths of a subject and the text; a tenant chooses both. "***=": the text is literal.)
_AFTER_SOUGHT = 8
"""The number of the first parameter after those of `_SOUGHT`."""


@dataclass(frozen=True, slots=True)
class Search(Filter):
    """Which jobs are searched for; ``subject``: a part of it, in capital or small letters."""

    submitter: str | None = None
    tracker: str | None = None
    subject: str | None = None


@cache
def _count(part: Part, conditions: tuple[str, ...]) -> str:
    """A statement that reads at most $8 jobs of a part, and counts those, and those of them that are sought.

    (The order is for the planner: it reads no more of the index than the limit; a scan could read the whole table.)
    """
    return planned_anew(f"""
        SELECT count(*) FILTER (WHERE {_SOUGHT}), count(*)
        FROM (SELECT queue, grp, task, state, submitter, tracker, subject FROM joex_private.job
              WHERE {" AND ".join(conditions)} ORDER BY {part.order} LIMIT $8::integer) job
    """)  # noqa: S608 - put together of constants


@cache
def _search(part: Part, conditions: tuple[str, ...]) -> str:
    """A statement that reads at most $8 jobs of a part, and returns at most $9 of those that are sought.

    The row whose ``nr`` is $8 comes in any case: there the next page begins. (The place after which a page begins, and
    a queue or a group by which the index is ordered, are conditions of their own, so that it is read from there.)
    """
    return planned_anew(f"""
        SELECT * FROM (
            SELECT {HEADS}, {part.keys}, nr, {_SOUGHT} AS is_sought
            FROM (SELECT *, row_number() OVER (ORDER BY {part.order}) AS nr
                  FROM joex_private.job WHERE {" AND ".join(conditions)} ORDER BY {part.order} LIMIT $8::integer) job
        ) read WHERE is_sought OR nr = $8 ORDER BY nr LIMIT $9::integer
    """)  # noqa: S608 - put together of constants


async def search_jobs(
    connection: Connection, wanted: Search, cursor: str | None = None, most: int = 100, *, most_read: int = 10_000
) -> Page:
    """A page of at most ``most`` jobs without their payloads; it reads at most ``most_read`` jobs of each part.

    With bounds, it reads those inside of them, because the cursor tells where it stopped: in which queue, and when.

    Raises:
        InvalidJob: the cursor is not one that a page has given.
    """
    parts = parts_after(cursor, wanted.states)
    found: list[tuple[Part, Any]] = []
    for part, states, key in () if wanted.is_nothing else parts:
        left = most + 1 - len(found)
        rows, end = await _read(connection, part, replace(wanted, states=states), key, (left, most_read))
        found += [(part, row) for row in rows[:left]]
        if len(found) > most:
            return _until(found[:most], *found[most - 1])
        if end is not None:
            return _until(found, part, end)
    return Page([job_in(row) for _, row in found], None)


def _until(found: Sequence[tuple[Part, Any]], part: Part, last: Any) -> Page:
    """A page of a search that has read up to this row."""
    return Page([job_in(row) for _, row in found], cursor_after(part, last), last.get("key_finished_at"))


async def _read(
    connection: Connection, part: Part, wanted: Search, key: list[Any] | None, most: tuple[int, int]
) -> tuple[list[Any], Any]:
    """The jobs of a part that are sought, and where reading stopped; None: at its end.

    ``most``: how many it returns, but one more may come; and how many it reads.
    """
    at = _AFTER_SOUGHT + 2
    after, given = ([], []) if key is None else ([part.after(at)], key)
    conditions, sought, more = _asked(part, wanted, at + len(given))
    rows: list[Any] = []
    ends: list[Any] = []
    for place in part.places:
        with translated():
            sql = _search(part, (place, *after, *conditions))
            read = await connection.fetch(sql, *sought, most[1], most[0] + 1, *given, *more)
        rows += [row for row in read if row["is_sought"]]
        ends += [row for row in read if row["nr"] == most[1]]
    rows.sort(key=part.key_of, reverse=part.down)
    if not ends:
        return rows, None
    # (Of two indexes, what the one has beyond the place where the other stopped belongs to the next page.)
    end = (max if part.down else min)(ends, key=part.key_of)
    last = part.key_of(end)
    return [row for row in rows if (part.key_of(row) >= last if part.down else part.key_of(row) <= last)], end


async def count_jobs(connection: Connection, wanted: Search, *, most_read: int) -> tuple[int, bool]:
    """How many jobs are sought, and whether these are all: it reads at most ``most_read`` jobs.

    With bounds, it reads those inside of them.
    """
    jobs, left = 0, most_read
    for part, states, _ in () if wanted.is_nothing else parts_after(None, wanted.states):
        conditions, sought, more = _asked(part, replace(wanted, states=states), _AFTER_SOUGHT + 1)
        for place in part.places:
            with translated():
                row: Any = await connection.fetchrow(_count(part, (place, *conditions)), *sought, left, *more)
            jobs, left = jobs + row[0], left - row[1]
    return jobs, left > 0


def _asked(part: Part, wanted: Search, at: int) -> tuple[list[str], list[Any], list[str]]:
    """The conditions of the jobs that a search reads; the arguments of `_SOUGHT`; and those from number ``at`` on.

    It reads the jobs inside of the bounds, and of a queue, or a group, alone if the index of the part finds these.
    """
    within = wanted.within
    sought: list[Any] = [within.queues, within.groups, wanted.task, wanted.states]
    sought += [wanted.submitter, wanted.tracker, wanted.subject]
    conditions = [] if wanted.bounds.queues is None else ["queue = ANY ($1::text[])"]
    conditions += [] if wanted.bounds.groups is None else ["grp = ANY ($2::text[])"]
    more: list[str] = []
    queue, group = (names[0] if names and len(names) == 1 else None for names in (within.queues, within.groups))
    if queue is not None and "queue" in part.key:
        conditions.append(f"queue = ${at}::text")
        more.append(queue)
        if group is not None and "ring" in part.key:
            conditions.append(f"ring = joex_private.ring(${at + 1}::text)")
            more.append(group)
    return conditions, sought, more

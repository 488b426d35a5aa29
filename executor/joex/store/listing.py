"""Lists of jobs, page by page.

No index holds all unfinished jobs in the order of submission, because each change of a job would have to write it. So a
list has parts, each in the order of its own index: held jobs (first submitted first), runnable ones (queue by queue,
group by group, in the order in which the group's jobs are taken), those that wait for their time (the next one first),
and finished ones (the latest first). A page costs the same wherever it begins.

No index has the jobs of a task, a submitter or a subject, because each submission would have to write it. A search
reads the parts in their orders instead, at most so many jobs for a page: a page may have few jobs, or none, and yet a
next page. No index has the finished jobs of a group either: it would make the end of each job a fifth dearer.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from typing import Any

from joex.core.access import EVERYTHING, Bounds
from joex.core.job import State, check_text
from joex.errors import InvalidJob
from joex.store.bounded import UNLIMITED, fitting, listing
from joex.store.errors import translated
from joex.store.jobs import HEADS, PAYLOADS, Job, job_of
from joex.store.statement import Connection, statement

_WANTED = """
    ($1::text IS NULL OR queue = $1) AND ($2::text IS NULL OR ring = joex_private.ring($2) AND grp = $2)
    AND ($3::text IS NULL OR task = $3) AND ($4::text[] IS NULL OR state::text = ANY ($4))
"""
_WANTED_OF_MANY = """
    ($1::text[] IS NULL OR queue = ANY ($1)) AND ($2::text[] IS NULL OR grp = ANY ($2))
    AND ($3::text IS NULL OR task = $3) AND ($4::text[] IS NULL OR state::text = ANY ($4))
"""


@dataclass(frozen=True, slots=True)
class Filter:
    """Which jobs are wanted; None: all."""

    queue: str | None = None
    group: str | None = None
    task: str | None = None
    states: Sequence[str] | None = None
    bounds: Bounds = EVERYTHING


@dataclass(frozen=True, slots=True)
class Search(Filter):
    """Which jobs are searched for; ``subject``: a part of it, in capital or small letters."""

    submitter: str | None = None
    tracker: str | None = None
    subject: str | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """A page of jobs, and the cursor of the next page; None: this is the last.

    ``back_to``: of the finished jobs, a search has read those that ended since then; None: it has read none, or all.
    """

    jobs: list[Job]
    next: str | None
    back_to: datetime | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """A part of the list: the states of its jobs, a statement for each index, and the columns that order it.

    ``of_many``: the statements for several queues or groups. (The others find one group by an index.) ``places``: the
    conditions of the indexes; ``columns``: those of the key, by their names in the table.
    """

    name: str
    states: frozenset[State]
    statements: Sequence[str]
    of_many: Sequence[str]
    key: Mapping[str, _Column]
    down: bool
    places: Sequence[str]
    columns: Sequence[str]


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of an order: its type in SQL, and how it is read from a cursor."""

    sql: str
    read: Callable[[Any], Any]


def _text(value: Any) -> str:
    check_text("cursor", value)
    return str(value)


def _whole(bits: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if not isinstance(value, int) or not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
            raise ValueError
        return value

    return read


def _time(value: Any) -> datetime:
    return datetime.fromisoformat(value).astimezone(UTC)  # which fails if its zone takes it out of the calendar


_FIELDS = frozenset(Job.__match_args__)
_NEVER_NULL = "args"


# A cursor comes from outside. What these accept, PostgreSQL takes.
_TEXT, _BYTES, _TIME = _Column("text", _text), _Column("bytea", bytes.fromhex), _Column("timestamptz", _time)
_SMALLINT, _BIGINT = _Column("smallint", _whole(16)), _Column("bigint", _whole(64))


def _part(
    name: str, states: Sequence[State], places: Sequence[str], key: Mapping[str, _Column], *, down: bool = False
) -> _Part:
    statements, of_many = (
        [_page(f"{place} AND {wanted}", key, down=down) for place in places] for wanted in (_WANTED, _WANTED_OF_MANY)
    )
    columns = {f"key_{name}": column for name, column in key.items()}
    return _Part(name, frozenset(states), statements, of_many, columns, down, places, list(key))


def _page(condition: str, key: Mapping[str, _Column], *, down: bool) -> str:
    given = [f"${5 + nr}::{column.sql}" for nr, column in enumerate(key.values())]
    order = ", ".join(f"{column} DESC" if down else column for column in key)
    heads = f"""
        SELECT {HEADS}, {", ".join(f"{column} AS key_{column}" for column in key)} FROM joex_private.job
        WHERE {condition}
          AND ({given[0]} IS NULL OR ({", ".join(key)}) {"<" if down else ">"} ({", ".join(given)}))
        ORDER BY {order} LIMIT ${5 + len(key)}::integer
    """  # noqa: S608 - put together of constants
    return listing(heads, "joex_private.job", PAYLOADS, 6 + len(key))


_HELD = (State.SCHEDULED, State.RUNNING)
_OPEN = (State.WAITING, State.STUCK)
_ENDED = (State.SUCCESS, State.FAILED, State.CANCELLED)
_TAKEN_BY = {"queue": _TEXT, "ring": _BIGINT, "lane": _SMALLINT, "rank": _BYTES, "seq": _BIGINT}
_LATER_BY = {"queue": _TEXT, "due_at": _TIME, "seq": _BIGINT}
_ENDED_BY = {"finished_at": _TIME, "seq": _BIGINT}
_PARTS = (
    _part("held", _HELD, ["executor_id IS NOT NULL"], {"seq": _BIGINT}),
    _part("runnable", _OPEN, ["lane IS NOT NULL"], _TAKEN_BY),
    _part("later", _OPEN, ["due_at IS NOT NULL"], _LATER_BY),
    _part(
        "finished",
        _ENDED,
        ["finished_at IS NOT NULL AND key IS NULL", "finished_at IS NOT NULL AND key IS NOT NULL"],
        _ENDED_BY,
        down=True,
    ),
)


_IN_PROGRESS = listing(
    f"""
    SELECT {HEADS} FROM joex_private.job
    WHERE executor_id IS NOT NULL
      AND ($1::text[] IS NULL OR queue = ANY ($1)) AND ($2::text[] IS NULL OR grp = ANY ($2))
    ORDER BY state <> 'running', CASE state WHEN 'running' THEN started_at ELSE scheduled_at END, seq LIMIT $3::integer
    """,  # noqa: S608 - put together of constants
    "joex_private.job",
    PAYLOADS,
    4,
)
_QUEUED = listing(
    f"SELECT {HEADS} FROM joex_private.queued($1::text, $2::text, $3::integer, $4::text[], $5::text[])",  # noqa: S608
    "joex_private.job",
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
    return _fitting(rows, most_bytes)


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
    return _fitting(rows, most_bytes)


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
    start, key = _parse(cursor)
    within = wanted.bounds.narrowed(wanted.queue, wanted.group)
    places: list[Any] = [within.queues, within.groups]
    if not (is_of_many := any(names is not None and len(names) != 1 for names in places)):
        places = [names and names[0] for names in places]
    found: list[tuple[_Part, Any]] = []
    ends, left = 0, most_bytes
    for part in _PARTS[start:]:
        states = [str(state) for state in part.states if wanted.states is None or state in wanted.states]
        if states and ends == len(found) <= most:  # one more than wanted shows that there is a next page
            given = key or [None] * len(part.key)
            rows: list[Any] = []
            with translated():
                for sql in part.of_many if is_of_many else part.statements:
                    filled = (*places, wanted.task, states, *given, most + 1 - len(found))
                    rows += await connection.fetch(sql, *filled, left, 0 if found else 1)
            if len(part.statements) > 1:
                rows.sort(key=lambda row: [row[name] for name in part.key], reverse=part.down)
            found += [(part, row) for row in rows[: most + 1 - len(found)]]
            ends, left = fitting([row for _, row in found], most_bytes, _NEVER_NULL)
        key = None
    ends = min(ends, most)
    return Page([_job(row) for _, row in found[:ends]], _cursor(*found[ends - 1]) if len(found) > ends else None)


_SOUGHT = """
    ($1::text[] IS NULL OR queue = ANY ($1)) AND ($2::text[] IS NULL OR grp = ANY ($2))
    AND ($3::text IS NULL OR task = $3) AND ($4::text[] IS NULL OR state::text = ANY ($4))
    AND ($5::text IS NULL OR submitter = $5) AND ($6::text IS NULL OR tracker = $6)
    AND ($7::text IS NULL OR subject ILIKE $7)
"""
_FIRST_KEY = 10
"""The number of the parameter with the first column of the key."""


@cache
def _count(part: _Part, place: str, bounds: tuple[str, ...], *, of_queue: bool, of_group: bool) -> str:
    """A statement that reads at most $8 jobs of a part, and counts those, and those of them that are sought.

    (The order is for the planner: it reads no more of the index than the limit; a scan could read the whole table.)
    """
    conditions = " AND ".join([place, *bounds, *_narrow(_FIRST_KEY - 1, of_queue=of_queue, of_group=of_group)])
    return statement(f"""
        SELECT count(*) FILTER (WHERE {_SOUGHT}), count(*)
        FROM (SELECT queue, grp, task, state, submitter, tracker, subject FROM joex_private.job
              WHERE {conditions} ORDER BY {_order(part)} LIMIT $8::integer) job
    """)  # noqa: S608 - put together of constants


def _order(part: _Part) -> str:
    return ", ".join(f"{name} DESC" if part.down else name for name in part.columns)


def _narrow(at: int, *, of_queue: bool, of_group: bool) -> list[str]:
    conditions = [f"queue = ${at}::text"] if of_queue else []
    return [*conditions, *([f"ring = joex_private.ring(${at + 1}::text)"] if of_group else [])]


@cache
def _search(part: _Part, place: str, bounds: tuple[str, ...], *, is_later: bool, of_queue: bool, of_group: bool) -> str:
    """A statement that reads at most $8 jobs of a part, and returns at most $9 of those that are sought.

    The row whose ``nr`` is $8 comes in any case: there the next page begins. (The place after which a page begins, and
    a queue or a group by which the index is ordered, are conditions of their own, so that it is read from there.)
    """
    order = _order(part)
    keys = ", ".join(f"{column} AS {name}" for name, column in zip(part.key, part.columns, strict=True))
    conditions, at = [place, *bounds], _FIRST_KEY
    if is_later:
        given = ", ".join(f"${at + nr}::{column.sql}" for nr, column in enumerate(part.key.values()))
        conditions.append(f"({', '.join(part.columns)}) {'<' if part.down else '>'} ({given})")
        at += len(part.key)
    conditions += _narrow(at, of_queue=of_queue, of_group=of_group)
    return statement(f"""
        SELECT * FROM (
            SELECT {HEADS}, {keys}, nr, {_SOUGHT} AS is_sought
            FROM (SELECT *, row_number() OVER (ORDER BY {order}) AS nr
                  FROM joex_private.job WHERE {" AND ".join(conditions)} ORDER BY {order} LIMIT $8::integer) job
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
    start, key = _parse(cursor)
    if _is_nothing(wanted):
        return Page([], None)
    found: list[tuple[_Part, Any]] = []
    for part in _PARTS[start:]:
        states = [str(state) for state in part.states if wanted.states is None or state in wanted.states]
        if states:
            left = most + 1 - len(found)
            rows, end = await _read(connection, part, replace(wanted, states=states), key, (left, most_read))
            found += [(part, row) for row in rows[:left]]
            if len(found) > most:
                return _until(found[:most], *found[most - 1])
            if end is not None:
                return _until(found, part, end)
        key = None
    return Page([_job(row) for _, row in found], None)


def _until(found: Sequence[tuple[_Part, Any]], part: _Part, last: Any) -> Page:
    """A page of a search that has read up to this row."""
    return Page([_job(row) for _, row in found], _cursor(part, last), last.get("key_finished_at"))


async def _read(
    connection: Connection, part: _Part, wanted: Search, key: list[Any] | None, most: tuple[int, int]
) -> tuple[list[Any], Any]:
    """The jobs of a part that are sought, and where reading stopped; None: at its end.

    ``most``: how many it returns, but one more may come; and how many it reads.
    """
    sought, of_queue, of_group, narrow = _asked(part, wanted)
    bounds = _inside(wanted.bounds)

    def order(row: Any) -> list[Any]:
        return [row[name] for name in part.key]

    rows: list[Any] = []
    ends: list[Any] = []
    for place in part.places:
        sql = _search(part, place, bounds, is_later=key is not None, of_queue=of_queue, of_group=of_group)
        with translated():
            read = await connection.fetch(sql, *sought, most[1], most[0] + 1, *(key or ()), *narrow)
        rows += [row for row in read if row["is_sought"]]
        ends += [row for row in read if row["nr"] == most[1]]
    rows.sort(key=order, reverse=part.down)
    if not ends:
        return rows, None
    # (Of two indexes, what the one has beyond the place where the other stopped belongs to the next page.)
    end = (max if part.down else min)(ends, key=order)
    return [row for row in rows if (order(row) >= order(end) if part.down else order(row) <= order(end))], end


async def count_jobs(connection: Connection, wanted: Search, *, most_read: int = 200_000) -> tuple[int, bool]:
    """How many jobs are sought, and whether these are all: it reads at most ``most_read`` jobs of each part.

    With bounds, it reads those inside of them.
    """
    jobs, is_all = 0, True
    for part in () if _is_nothing(wanted) else _PARTS:
        states = [str(state) for state in part.states if wanted.states is None or state in wanted.states]
        sought, of_queue, of_group, narrow = _asked(part, replace(wanted, states=states))
        for place in part.places if states else ():
            sql = _count(part, place, _inside(wanted.bounds), of_queue=of_queue, of_group=of_group)
            with translated():
                row: Any = await connection.fetchrow(sql, *sought, most_read, *narrow)
            jobs, is_all = jobs + row[0], is_all and row[1] < most_read
    return jobs, is_all


def _asked(part: _Part, wanted: Search) -> tuple[Sequence[Any], bool, bool, list[Any]]:
    """The arguments of `_SOUGHT`; whether the index finds the queue, and the group; and the arguments for these."""
    within = wanted.bounds.narrowed(wanted.queue, wanted.group)
    subject = None if wanted.subject is None else _containing(wanted.subject)
    sought = (within.queues, within.groups, wanted.task, wanted.states, wanted.submitter, wanted.tracker, subject)
    queue, group = (names[0] if names and len(names) == 1 else None for names in (within.queues, within.groups))
    of_queue = queue is not None and "queue" in part.columns
    of_group = of_queue and group is not None and "ring" in part.columns
    return sought, of_queue, of_group, [*([queue] if of_queue else []), *([group] if of_group else [])]


def _inside(bounds: Bounds) -> tuple[str, ...]:
    """The conditions of jobs inside of bounds, by the parameters of `_SOUGHT`."""
    of_queues = () if bounds.queues is None else ("queue = ANY ($1::text[])",)
    return of_queues if bounds.groups is None else (*of_queues, "grp = ANY ($2::text[])")


def _is_nothing(wanted: Search) -> bool:
    """Whether the queue or the group that is sought lies outside of the bounds."""
    within = wanted.bounds.narrowed(wanted.queue, wanted.group)
    return () in (within.queues, within.groups)


def _containing(text: str) -> str:
    """The pattern of texts that contain this one."""
    return "%" + re.sub(r"([%_\\])", r"\\\1", text) + "%"


def check_cursor(cursor: str | None) -> None:
    """Check a cursor, without the database.

    Raises:
        InvalidJob: the cursor is not one that a page has given.
    """
    _parse(cursor)


def _fitting(rows: Sequence[Any], most_bytes: int) -> list[Job]:
    ends, _ = fitting(rows, most_bytes, _NEVER_NULL)
    return [_job(row) for row in rows[:ends]]


def _job(row: Any) -> Job:
    return job_of({name: value for name, value in row.items() if name in _FIELDS})


def _cursor(part: _Part, last: Any) -> str:
    key = [_as_json(last[name]) for name in part.key]
    return base64.urlsafe_b64encode(json.dumps([part.name, *key]).encode()).decode().rstrip("=")


def _as_json(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return value.hex() if isinstance(value, bytes) else value


def _parse(cursor: str | None) -> tuple[int, list[Any] | None]:
    """Which part a cursor is in, and after which key."""
    if cursor is None:
        return 0, None
    try:
        name, *key = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        nr = next(nr for nr, part in enumerate(_PARTS) if part.name == name)
        return nr, [column.read(value) for column, value in zip(_PARTS[nr].key.values(), key, strict=True)]
    except (ValueError, TypeError, OverflowError, StopIteration, RecursionError):
        raise InvalidJob(f"cursor: expected the cursor of a previous page; got {cursor[:100]!r}") from None

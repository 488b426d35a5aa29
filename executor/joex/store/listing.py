"""Lists of jobs, page by page.

No index holds all unfinished jobs in the order of submission, because each change of a job would have to write it. So a
list has parts, each in the order of its own index: held jobs (first submitted first), runnable ones (queue by queue,
group by group, in the order in which the group's jobs are taken), those that wait for their time (the next one first),
and finished ones (the latest first). A page costs the same wherever it begins.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from joex.core.job import State, check_text
from joex.errors import InvalidJob
from joex.store.errors import translated
from joex.store.jobs import COLUMNS, Job, job_of
from joex.store.statement import Connection, statement

_WANTED = """
    ($1::text IS NULL OR queue = $1) AND ($2::text IS NULL OR ring = joex_private.ring($2) AND grp = $2)
    AND ($3::text IS NULL OR task = $3) AND ($4::text[] IS NULL OR state::text = ANY ($4))
"""


@dataclass(frozen=True, slots=True)
class Filter:
    """Which jobs are wanted; None: all."""

    queue: str | None = None
    group: str | None = None
    task: str | None = None
    states: Sequence[str] | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """A page of jobs, and the cursor of the next page; None: this is the last."""

    jobs: list[Job]
    next: str | None


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of the list: the states of its jobs, a statement for each index, and the columns that order it."""

    name: str
    states: frozenset[State]
    statements: Sequence[str]
    key: Mapping[str, _Column]
    down: bool


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


# A cursor comes from outside. What these accept, PostgreSQL takes.
_TEXT, _BYTES, _TIME = _Column("text", _text), _Column("bytea", bytes.fromhex), _Column("timestamptz", _time)
_SMALLINT, _BIGINT = _Column("smallint", _whole(16)), _Column("bigint", _whole(64))


def _part(
    name: str, states: Sequence[State], places: Sequence[str], key: Mapping[str, _Column], *, down: bool = False
) -> _Part:
    given = [f"${5 + nr}::{column.sql}" for nr, column in enumerate(key.values())]
    order = ", ".join(f"{column} DESC" if down else column for column in key)
    statements = [
        statement(f"""
            SELECT {COLUMNS}, {", ".join(f"{column} AS key_{column}" for column in key)} FROM joex_private.job
            WHERE {place} AND {_WANTED}
              AND ({given[0]} IS NULL OR ({", ".join(key)}) {"<" if down else ">"} ({", ".join(given)}))
            ORDER BY {order} LIMIT ${5 + len(key)}::integer
        """)  # noqa: S608 - put together of constants
        for place in places
    ]
    return _Part(name, frozenset(states), statements, {f"key_{name}": column for name, column in key.items()}, down)


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


_IN_PROGRESS = statement(f"""
    SELECT {COLUMNS} FROM joex_private.job
    WHERE executor_id IS NOT NULL AND ($1::text IS NULL OR queue = $1)
      AND ($2::text IS NULL OR ring = joex_private.ring($2) AND grp = $2)
    ORDER BY state <> 'running', CASE state WHEN 'running' THEN started_at ELSE scheduled_at END, seq LIMIT $3::integer
""")  # noqa: S608 - put together of constants
_QUEUED = statement(f"SELECT {COLUMNS} FROM joex_private.queued($1::text, $2::text, $3::integer)")  # noqa: S608 - likewise


async def list_held(connection: Connection, queue: str | None, group: str | None, most: int) -> list[Job]:
    """The jobs that executors hold: running ones, the first started first, then those that are about to start."""
    with translated():
        return [job_of(row) for row in await connection.fetch(_IN_PROGRESS, queue, group, most)]


async def list_queued(connection: Connection, queue: str | None, group: str | None, most: int) -> list[Job]:
    """The jobs that wait, the first submitted first (see joex_private.queued)."""
    with translated():
        return [job_of(row) for row in await connection.fetch(_QUEUED, queue, group, most)]


async def list_jobs(connection: Connection, wanted: Filter, cursor: str | None = None, most: int = 100) -> Page:
    """A page of at most ``most`` jobs, from a cursor on. A job that moves between two pages can be on both, or on none.

    Raises:
        InvalidJob: the cursor is not one that a page has given.
    """
    start, key = _parse(cursor)
    found: list[tuple[_Part, Any]] = []
    for part in _PARTS[start:]:
        states = [str(state) for state in part.states if wanted.states is None or state in wanted.states]
        if states and len(found) <= most:  # one more than wanted shows that there is a next page
            given = key or [None] * len(part.key)
            rows: list[Any] = []
            with translated():
                for sql in part.statements:
                    filled = (wanted.queue, wanted.group, wanted.task, states, *given, most + 1 - len(found))
                    rows += await connection.fetch(sql, *filled)
            if len(part.statements) > 1:
                rows.sort(key=lambda row: [row[name] for name in part.key], reverse=part.down)
            found += [(part, row) for row in rows[: most + 1 - len(found)]]
        key = None
    jobs = [_job(part, row) for part, row in found[:most]]
    return Page(jobs, _cursor(*found[most - 1]) if len(found) > most else None)


def check_cursor(cursor: str | None) -> None:
    """Check a cursor, without the database.

    Raises:
        InvalidJob: the cursor is not one that a page has given.
    """
    _parse(cursor)


def _job(part: _Part, row: Any) -> Job:
    values = dict(row)
    for name in part.key:
        del values[name]
    return job_of(values)


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

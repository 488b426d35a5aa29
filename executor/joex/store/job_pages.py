"""The pages of a list of jobs: its parts, each in the order of its own index, and the cursors from page to page.

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
from joex.store.jobs import Job, job_of

LONGEST_CURSOR = 5000
"""Characters: of the longest queue and priority, whatever characters they have."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page of jobs, and the cursor of the next page; None: this is the last.

    ``back_to``: of the finished jobs, a search has read those that ended since then; None: it has read none, or all.
    """

    jobs: list[Job]
    next: str | None
    back_to: datetime | None = None


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of an order: its type in SQL, and how it is read from a cursor."""

    sql: str
    read: Callable[[Any], Any]


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A part of the list: the states of its jobs, the conditions of its indexes, and the columns of their order.

    ``down``: it begins at the end of that order.
    """

    name: str
    states: Sequence[State]
    places: Sequence[str]
    key: Mapping[str, _Column]
    down: bool = False

    @property
    def order(self) -> str:
        """What its jobs are ordered by."""
        return ", ".join(f"{name} DESC" if self.down else name for name in self.key)

    @property
    def keys(self) -> str:
        """The columns of the key, as `key_of` finds them in a row."""
        return ", ".join(f"{name} AS key_{name}" for name in self.key)

    def given(self, at: int) -> list[str]:
        """The parameters of a key, the first of which has this number."""
        return [f"${at + nr}::{column.sql}" for nr, column in enumerate(self.key.values())]

    def after(self, at: int) -> str:
        """The condition of the jobs that come after this key."""
        return f"({', '.join(self.key)}) {'<' if self.down else '>'} ({', '.join(self.given(at))})"

    def key_of(self, row: Any) -> list[Any]:
        """The key of a row."""
        return [row[f"key_{name}"] for name in self.key]


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

_OPEN = (State.WAITING, State.STUCK)
_ENDED = (State.SUCCESS, State.FAILED, State.CANCELLED)
_TAKEN_BY = {"queue": _TEXT, "ring": _BIGINT, "lane": _SMALLINT, "rank": _BYTES, "seq": _BIGINT}
_LATER_BY = {"queue": _TEXT, "due_at": _TIME, "seq": _BIGINT}
_ENDED_BY = {"finished_at": _TIME, "seq": _BIGINT}
_ENDED_PLACES = ("finished_at IS NOT NULL AND key IS NULL", "finished_at IS NOT NULL AND key IS NOT NULL")
PARTS = (
    Part("held", (State.SCHEDULED, State.RUNNING), ["executor_id IS NOT NULL"], {"seq": _BIGINT}),
    Part("runnable", _OPEN, ["lane IS NOT NULL"], _TAKEN_BY),
    Part("later", _OPEN, ["due_at IS NOT NULL"], _LATER_BY),
    Part("finished", _ENDED, _ENDED_PLACES, _ENDED_BY, down=True),
)


def parts_after(
    cursor: str | None, states: Sequence[str] | None = None
) -> list[tuple[Part, list[str], list[Any] | None]]:
    """The parts from a cursor on, with their states that are wanted; the first one with the key that it begins after.

    Raises:
        InvalidJob: the cursor is not one that a page has given.
    """
    start, key = _parse(cursor)
    wanted = [[str(state) for state in part.states if states is None or state in states] for part in PARTS]
    return [(PARTS[nr], wanted[nr], key if nr == start else None) for nr in range(start, len(PARTS)) if wanted[nr]]


def check_cursor(cursor: str | None) -> None:
    """Check a cursor, without the database.

    Raises:
        InvalidJob: the cursor is not one that a page has given.
    """
    _parse(cursor)


def cursor_after(part: Part, last: Any) -> str:
    """The cursor of the page after this row."""
    key = [_as_json(value) for value in part.key_of(last)]
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
        nr = next(nr for nr, part in enumerate(PARTS) if part.name == name)
        return nr, [column.read(value) for column, value in zip(PARTS[nr].key.values(), key, strict=True)]
    except (ValueError, TypeError, OverflowError, StopIteration, RecursionError):
        raise InvalidJob(f"cursor: expected the cursor of a previous page; got {cursor[:100]!r}") from None


_FIELDS = frozenset(Job.__match_args__)


def job_in(row: Any) -> Job:
    """The job in a row that has other columns, too."""
    return job_of({name: value for name, value in row.items() if name in _FIELDS})

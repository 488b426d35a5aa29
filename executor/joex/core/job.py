"""A job as data, and the checks that a submission must pass before it reaches the database."""

from __future__ import annotations

import enum
import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import NoneType
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from joex.core.json_values import shown

T = TypeVar("T")

LONGEST_NAME = 254
OWN_NAMES = "joex."
"""The names of tasks, trackers and periodic tasks that begin so are for Joex itself."""
LONGEST_SUBJECT = 1000
"""Bytes."""
_MOST_RETRIES = 1_000_000
_FIRST_YEAR, _LAST_YEAR = 2, 9998  # so that no conversion between zones leaves the calendar


class State(enum.StrEnum):
    """The states of a job: waiting, scheduled, running, stuck, success, failed, cancelled."""

    WAITING = "waiting"
    SCHEDULED = "scheduled"
    RUNNING = "running"
    STUCK = "stuck"
    CANCELLED = "cancelled"
    FAILED = "failed"
    SUCCESS = "success"

    @property
    def is_final(self) -> bool:
        """Whether a job in this state is finished."""
        return self in (State.CANCELLED, State.FAILED, State.SUCCESS)


class Priority(enum.StrEnum):
    """The priorities within a group: high and low."""

    HIGH = "high"
    LOW = "low"


@dataclass(frozen=True, slots=True)
class NewJob:
    """A submission: a named task, its arguments, and where it stands in line.

    Attributes:
        task: the name of the task.
        args: its arguments by name; anything that JSON can hold.
        group: the tenant it belongs to; groups are served in round robin.
        queue: the queue; each executor serves one or more of them.
        priority: ``high`` or ``low``, within its group.
        subject: what the job is about; Joex only shows it.
        submitter: the user or program that submits it; Joex only shows it.
        not_before: it waits until then; None: it may run at once.
        tracker: skipped while an unfinished job of its group has the same tracker; None: never skipped.
        retries: re-runs after a failed run; None: the default of its task, or of the executor.
    """

    task: str
    args: Mapping[str, Any] = field(default_factory=dict)
    group: str = "default"
    queue: str = "default"
    priority: Priority = Priority.LOW
    subject: str = ""
    submitter: str = ""
    not_before: datetime | None = None
    tracker: str | None = None
    retries: int | None = None

    def __post_init__(self) -> None:
        names = {"task": self.task, "group": self.group, "queue": self.queue}
        if self.tracker is not None:
            names["tracker"] = self.tracker
        check_texts(names, self.subject, self.submitter)
        if self.tracker is not None and self.tracker.startswith("periodic "):
            raise ValueError('tracker: must not begin with "periodic ": only jobs of periodic tasks have such trackers')
        if self.priority not in ("high", "low") or type(self.priority) not in (str, Priority):
            object.__setattr__(self, "priority", priority_of(self.priority))  # in other letters, or of another enum
        if self.not_before is not None:
            _check_time("not_before", self.not_before)
        if self.retries is not None:
            check_retries("retries", self.retries)
        if type(self.args) is not dict and not isinstance(self.args, Mapping):
            raise ValueError(f"args: expected an object (names and values); got {type(self.args).__name__}")


class Columns(NamedTuple):
    """Submissions that have been checked, field by field. None, of a job or of all: the default."""

    tasks: list[str]
    args: list[Mapping[str, Any] | None]
    groups: list[str] | None
    queues: list[str | None] | None
    priorities: list[str | None] | None
    subjects: list[str | None] | None
    submitters: list[str | None] | None
    not_before: list[datetime | None] | None = None
    trackers: list[str | None] | None = None
    retries: list[int | None] | None = None


def columns_of(jobs: Sequence[NewJob]) -> Columns:
    """The columns of these jobs."""
    return Columns(
        [job.task for job in jobs],
        [job.args or None for job in jobs],
        [job.group for job in jobs],
        [None if job.queue == "default" else job.queue for job in jobs],
        ["high" if job.priority == "high" else None for job in jobs],
        [job.subject or None for job in jobs],
        [job.submitter or None for job in jobs],
        [job.not_before for job in jobs],
        [job.tracker for job in jobs],
        [job.retries for job in jobs],
    )


_PLAIN_FIELDS = frozenset(("task", "args", "group", "queue", "subject", "submitter"))


def columns_of_plain(jobs: Sequence[Any]) -> Columns | None:
    """The columns of jobs that are plain dicts, checked field by field: a tenth of the work of a `NewJob` for each.

    None: a job has other than the usual fields, or a value that may be wrong. The caller then checks them one by one.
    """
    if set(map(type, jobs)) != {dict} or not (fields := set().union(*jobs)) <= _PLAIN_FIELDS:
        return None
    args = [job.get("args") for job in jobs] if "args" in fields else []
    tasks = [job.get("task") for job in jobs]
    groups = [job.get("group", "default") for job in jobs] if "group" in fields else None
    queues = [job.get("queue", "default") for job in jobs] if "queue" in fields else None
    subjects = [job.get("subject", "") for job in jobs] if "subject" in fields else None
    submitters = [job.get("submitter", "") for job in jobs] if "submitter" in fields else None
    names_are_plain = all(_are_plain(texts) for texts in (tasks, groups, queues) if texts is not None)
    texts_are_plain = all(_are_plain(texts, may_be_empty=True) for texts in (subjects, submitters) if texts is not None)
    if not (names_are_plain and texts_are_plain and set(map(type, args)) <= {dict, NoneType}):
        return None
    return Columns(
        tasks,
        [each or None for each in args],
        groups,
        queues and [None if queue == "default" else queue for queue in queues],
        None,
        subjects and [subject or None for subject in subjects],
        submitters and [submitter or None for submitter in submitters],
    )


def _are_plain(texts: Collection[Any], *, may_be_empty: bool = False) -> bool:
    """Whether a quick check accepts all of them as names, as it nearly always does; otherwise `check_text` decides."""
    try:
        text = "".join(texts)
    except TypeError:  # one is not a text
        return False
    if not text.isascii() or "\0" in text or not (may_be_empty or all(texts)):
        return False
    return len(text) <= LONGEST_NAME or max(map(len, texts)) <= LONGEST_NAME


class TakenJob(NamedTuple):
    """A job that an executor holds, and the lock id that every write of this run must show.

    (A tuple, because the driver gives tuples, thousands a second.)

    ``args`` is JSON; None: they are large, and the run fetches them. ``waited``: seconds from when the job became
    runnable until an executor took it. ``suspect``: executors died while they held it; it runs alone. ``losses``: runs
    that were lost; after two, the start of the next one is marked before its code runs.
    ``trace_context``: of its submission (see `joex.core.trace_context`).
    """

    id: UUID
    lock_id: UUID
    seq: int
    queue: str
    group: str
    task: str
    args: str | None
    priority: str
    subject: str
    submitter: str
    attempt: int
    failures: int
    retries: int | None
    waited: float
    suspect: bool = False
    losses: int = 0
    trace_context: str | None = None

    @property
    def tenant(self) -> tuple[str, str]:
        """Its queue and its group: groups of one name in two queues may belong to two tenants."""
        return self.queue, self.group

    @property
    def is_marked_first(self) -> bool:
        """Whether its start is marked before its code runs."""
        return self.losses > 1


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A run of this executor. ``attempt`` is 1 for the first one; ``seconds`` since its code started, 0: it has not."""

    id: UUID
    task: str
    group: str
    queue: str
    attempt: int
    subject: str
    seconds: float


def priority_of(text: str) -> Priority:
    """Parse a priority, in upper or lower case.

    Raises:
        ValueError: the text is no priority.
    """
    try:
        return Priority(text.lower())
    except (ValueError, AttributeError):
        raise ValueError(f"priority: expected 'high' or 'low'; got {shown(text)}") from None


def _check_time(field: str, time: datetime) -> None:
    if not isinstance(time, datetime):
        raise ValueError(f"{field}: expected a time or a delay; got {time!r}")  # noqa: TRY004 - one error for callers
    if time.tzinfo is None:
        raise ValueError(f"{field}: expected a time with a time zone, such as datetime.now(UTC); got one without")
    if not _FIRST_YEAR <= time.year <= _LAST_YEAR:
        raise ValueError(f"{field}: expected a year from {_FIRST_YEAR} to {_LAST_YEAR}; got {time}")


def check_retries(field: str, retries: object) -> None:
    """Check a number of retries.

    Raises:
        ValueError: it is not a whole number in the allowed range.
    """
    if not (isinstance(retries, int) and not isinstance(retries, bool) and 0 <= retries <= _MOST_RETRIES):
        raise ValueError(f"{field}: expected 0 to {_MOST_RETRIES}; got {retries!r}")


def check_texts(names: Mapping[str, str], subject: str, submitter: str) -> None:
    """Check the texts of a submission: the names (by their fields), the subject and the submitter.

    Raises:
        ValueError: a text is wrong; the message names its field.
    """
    if _are_plain(names.values()) and _are_plain((subject, submitter), may_be_empty=True):
        return
    for name, text in names.items():
        check_name(name, text)
    check_text("subject", subject, LONGEST_SUBJECT)
    check_text("submitter", submitter, LONGEST_NAME)


def check_name(field: str, name: str) -> None:
    """Check the name of a task, a group, a queue or a tracker.

    Raises:
        ValueError: the name is empty, longer than 254 bytes, or has a NUL character.
    """
    check_text(field, name, LONGEST_NAME, may_be_empty=False)


def check_text(name: str, value: str, longest: int | None = None, *, may_be_empty: bool = True) -> None:
    """Check a text.

    Raises:
        ValueError: the value is not a text, is longer than this many bytes, or PostgreSQL can't store it.
    """
    if not isinstance(value, str):
        raise ValueError(f"{name}: expected text; got {type(value).__name__}")  # noqa: TRY004 - one error for callers
    if not value and not may_be_empty:
        raise ValueError(f"{name}: must not be empty")
    if "\0" in value:
        raise ValueError(f"{name}: must not contain a NUL character (PostgreSQL can't store it)")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise ValueError(f"{name}: must be valid Unicode; it has a lone surrogate") from None
    if longest is not None and size > longest:
        raise ValueError(f"{name}: at most {longest} bytes; got {size}")


def id_once(once: UUID, queue: str, group: str) -> UUID:
    """The id of the job that a submission with this name stores, known before it does (see sql/20_submit.sql)."""
    row = ",".join(_field_of_row(field) for field in (str(once), "1", queue, group))
    digest = hashlib.sha256(f"({row})".encode()).hexdigest()
    return UUID(f"{once.hex[:12]}8{digest[:3]}8{digest[3:18]}")


def _field_of_row(text: str) -> str:
    """A text as a field of a row that PostgreSQL turns into text."""
    if not text or re.search(r'[\\"(),\t-\r ]', text):
        doubled = text.replace("\\", r"\\").replace('"', '""')
        return f'"{doubled}"'
    return text

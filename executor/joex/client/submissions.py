"""Translates the arguments of a submission into those of the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, TypedDict, TypeVar

from joex.core.duration import parse_duration
from joex.core.job import Columns, NewJob, columns_of, columns_of_plain, priority_of
from joex.core.json_values import shown
from joex.errors import InvalidJob

_FIELDS = {one.name: None for one in fields(NewJob)}


Id_co = TypeVar("Id_co", covariant=True)
MaybeId_co = TypeVar("MaybeId_co", covariant=True)


class Submits(Generic[Id_co, MaybeId_co]):
    """A client, for type checkers: what its submissions give without and with a tracker, coroutines or ids."""


class Options(TypedDict, total=False):
    """The options of a submission that don't change what it returns, as type checkers see them; see `Client.submit`."""

    group: str
    queue: str
    priority: str
    subject: str
    submitter: str
    not_before: datetime | timedelta | str | None
    retries: int | None


class invalid:  # noqa: N801 - it reads like a statement
    """Turns errors about a value into `InvalidJob`, with the field's name in front."""

    def __init__(self, field: str = "") -> None:
        self._field = field

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ValueError | TypeError) and not isinstance(error, InvalidJob):
            raise InvalidJob(f"{self._field}: {error}" if self._field else str(error)) from error


def columns_of_any(new_jobs: Sequence[NewJob | Mapping[str, Any]], first: int = 0) -> Columns:
    """Check submissions, and turn them into columns; a fast path checks plain ones as a whole.

    ``first``: the index of the first one in the caller's list, for messages.

    Raises:
        InvalidJob: a field is wrong, missing or unknown; the message names it, and its job.
    """
    plain = columns_of_plain(new_jobs)
    if plain is not None:
        return plain
    return columns_of([job if isinstance(job, NewJob) else _new_job(nr, job) for nr, job in enumerate(new_jobs, first)])


def time_of(not_before: datetime | timedelta | str | None) -> datetime | None:
    """A time, or a delay from now on, as a time.

    Raises:
        ValueError: the text is no delay; the message names the field.
    """
    if isinstance(not_before, timedelta | str):
        try:
            return datetime.now(UTC) + parse_duration(not_before)
        except ValueError as error:
            raise ValueError(f"not_before: {error}") from error
    return not_before


def new_job(**given: Any) -> NewJob:
    """A checked submission from the arguments of `Client.submit`.

    Raises:
        InvalidJob: a field is wrong, missing or unknown; the message names it.
    """
    if not given.keys() <= _FIELDS.keys():
        unknown = next(name for name in given if name not in _FIELDS)
        name = unknown if unknown.isidentifier() else shown(unknown)
        raise InvalidJob(f"{name}: there is no such field; there are {', '.join(_FIELDS)}")
    if "task" not in given:
        raise InvalidJob("task: is required")
    try:
        if "priority" in given:
            given["priority"] = priority_of(given["priority"])
        if "not_before" in given:
            given["not_before"] = time_of(given["not_before"])
        if given.get("args", ()) is None:
            del given["args"]
        return NewJob(**given)
    except (ValueError, TypeError) as error:
        raise InvalidJob(str(error)) from error


def _new_job(nr: int, job: object) -> NewJob:
    if not isinstance(job, Mapping):
        raise InvalidJob(f"jobs[{nr}]: expected a NewJob, or a mapping of its fields; got {type(job).__name__}")
    try:
        return new_job(**job)
    except InvalidJob as error:
        raise InvalidJob(f"jobs[{nr}].{error}") from error
    except TypeError as error:  # a field's name is not text
        raise InvalidJob(f"jobs[{nr}]: expected the names of fields; got {', '.join(map(repr, job))}") from error

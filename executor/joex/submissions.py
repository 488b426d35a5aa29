"""What callers say of a job to be submitted, as what the store takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from joex.core.duration import parse_duration
from joex.core.job import Columns, NewJob, columns_of, columns_of_plain, priority_of
from joex.errors import InvalidJob


def columns_of_any(new_jobs: Sequence[NewJob | Mapping[str, Any]]) -> Columns:
    """Submissions, checked or not, as columns; plain ones are judged as a whole, which is cheaper.

    Raises:
        InvalidJob: a field is wrong or unknown; the message names it.
    """
    plain = columns_of_plain(new_jobs)
    if plain is not None:
        return plain
    return columns_of([job if isinstance(job, NewJob) else new_job(**job) for job in new_jobs])


def time_of(not_before: datetime | timedelta | str | None) -> datetime | None:
    """A time, or a delay from now on, as a time.

    Raises:
        ValueError: it is no delay.
    """
    if not_before is not None and isinstance(not_before, timedelta | str):
        return datetime.now(UTC) + parse_duration(not_before)
    return not_before


def new_job(
    *,
    task: str,
    args: Mapping[str, Any] | None = None,
    not_before: datetime | timedelta | str | None = None,
    **fields: Any,
) -> NewJob:
    """A checked submission from the arguments of `Client.submit`.

    Raises:
        InvalidJob: a field is wrong or unknown; the message names it.
    """
    try:
        if "priority" in fields:
            fields["priority"] = priority_of(fields["priority"])
        return NewJob(task=task, args={} if args is None else args, not_before=time_of(not_before), **fields)
    except (ValueError, TypeError) as error:
        raise InvalidJob(str(error)) from error

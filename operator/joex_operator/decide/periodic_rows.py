"""PeriodicTask objects -> rows of the table of periodic tasks: what is asked for, what is to be changed, what holds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any

from pydantic_core import from_json

from joex.core.job import Priority
from joex.core.periodic import NewPeriodicTask
from joex.core.timers import Timer, parse_zone
from joex.store.jobs import json_text
from joex.store.periodic import PeriodicTask
from joex_operator.api.objects import Periodic, Pool, Ref, SpecError, parse_periodic, reference
from joex_operator.decide.conditions import Condition
from joex_operator.decide.plan import DatabaseProblem

_READY = "Ready"
_MOMENT = 0.5
_LEAST_PAUSE = 5.0
"""Seconds: what is due each second changes its status each second, and the API server has other things to do."""


@dataclass(frozen=True, slots=True)
class DesiredRow:
    """What an object asks for.

    Attributes:
        id: of its row.
        pool: the name of its pool, also where the rest of it is wrong.
        row: None: its pool can't be worked with, or there is none.
        error: why it can't have a row that runs.
    """

    ref: Ref
    id: str
    pool: str
    row: NewPeriodicTask | None = None
    error: SpecError | None = None


@dataclass(frozen=True, slots=True)
class RowChanges:
    """What is to be done to the rows of a pool; false: nothing."""

    remove: Sequence[str]
    put: Sequence[NewPeriodicTask]
    disable: Sequence[str]

    def __bool__(self) -> bool:
        return bool(self.remove or self.put or self.disable)


def row_id(namespace: str, name: str) -> str:
    """The id of the row of a PeriodicTask.

    >>> row_id("prod", "nightly")
    'prod/nightly'
    """
    return f"{namespace}/{name}"


def owner(namespace: str, pool: str) -> str:
    """The owner of the rows of a pool: also where two pools share a database, each has its own.

    >>> owner("prod", "documents")
    'kubernetes:prod/documents'
    """
    return f"kubernetes:{namespace}/{pool}"


def ask(manifest: Mapping[str, Any], pools: Mapping[str, Pool | None]) -> DesiredRow:
    """What an object asks for. ``pools``: those of its namespace; None: one that can't be worked with as it is."""
    ref = reference(manifest)
    asked = DesiredRow(ref, row_id(ref.namespace, ref.name), str((manifest.get("spec") or {}).get("pool")))
    try:
        task = parse_periodic(manifest)
        pool = pools.get(asked.pool)
        if pool is not None:
            return replace(asked, row=_row(task, pool))
    except SpecError as error:
        return replace(asked, error=error)
    if asked.pool in pools:
        return asked
    said = f"spec.pool: there is no JoexPool {asked.pool!r} in this namespace"
    return replace(asked, error=SpecError(said, "UnknownPool"))


def changes(asked: Sequence[DesiredRow], found: Mapping[str, PeriodicTask]) -> RowChanges:
    """What is to be changed: ``asked`` are the objects of a pool, ``found`` the rows that it owns, by id."""
    return RowChanges(
        remove=sorted(found.keys() - {one.id for one in asked}),
        put=[one.row for one in asked if one.row is not None and not _is_as_asked(found.get(one.id), one.row)],
        disable=[one.id for one in asked if one.error is not None and one.id in found and found[one.id].enabled],
    )


def with_next_run(row: PeriodicTask, now: datetime) -> PeriodicTask:
    """The row with its next time; where it has none yet, that which whoever makes jobs will find in a moment."""
    if row.nextrun is not None or not row.enabled or row.error is not None:
        return row
    try:
        return replace(row, nextrun=Timer.parse(row.timer).next(max(now, row.last_run or now), parse_zone(row.zone)))
    except ValueError:  # somebody else has written it
        return row


def condition(asked: DesiredRow, row: PeriodicTask | DatabaseProblem | None) -> Condition:
    """Whether the jobs of an object are made.

    ``row``: as the database has it by now, `with_next_run`; None: it has none of the object's; or why nobody knows.
    """
    if asked.error is not None:
        said = "; it makes no jobs until this is mended" if isinstance(row, PeriodicTask) else ""
        return Condition(_READY, "False", asked.error.reason, f"{asked.error}{said}", bad=True)
    if isinstance(row, DatabaseProblem):
        return Condition(_READY, "Unknown", row.reason, row.message, bad=True)
    if row is None:
        said = f"the database has a periodic task {asked.id!r} that somebody else owns"
        return Condition(_READY, "False", "OwnedByOther", said, bad=True)
    return _of_row(row)


def next_reconcile(rows: Iterable[PeriodicTask], now: datetime, poll: float) -> float:
    """Seconds until the rows have something new to tell, or may have; at most ``poll``."""
    return min((_news_in(row, now, poll) for row in rows if row.enabled and row.error is None), default=poll)


def _of_row(row: PeriodicTask) -> Condition:
    if not row.enabled:
        return Condition(_READY, "False", "Suspended", "spec.suspend is set")
    if row.error is not None:
        return Condition(_READY, "False", "Refused", row.error, bad=True)
    if row.nextrun is None:
        return Condition(_READY, "True", "NeverDue", "spec.timer: no such time is to come", bad=row.last_run is None)
    return Condition(_READY, "True", "Stored", "the database has it, and its jobs are made as its timer says")


def _news_in(row: PeriodicTask, now: datetime, poll: float) -> float:
    if row.nextrun is None:
        return poll
    return min(max((row.nextrun - now).total_seconds() + _MOMENT, _LEAST_PAUSE), poll)


def _row(task: Periodic, pool: Pool) -> NewPeriodicTask:
    spec = task.spec
    try:
        return NewPeriodicTask(
            id=row_id(task.namespace, task.name),
            enabled=not spec.suspend,
            task=spec.task,
            timer=spec.timer,
            zone=spec.time_zone,
            queue=spec.queue or pool.spec.queues[0],
            group=spec.group,
            args=from_json(json_text("args", spec.args)),  # as the database gives it back
            subject=spec.subject,
            submitter=spec.submitter,
            priority=Priority(spec.priority),
            starting_deadline=spec.starting_deadline,
        )
    except ValueError as error:
        raise SpecError(f"spec.{error}") from error


def _is_as_asked(found: PeriodicTask | None, row: NewPeriodicTask) -> bool:
    return found is not None and all(
        _text(getattr(found, field.name)) == _text(getattr(row, field.name)) for field in fields(row)
    )


def _text(value: Any) -> str:
    """Compares as JSON does: in Python, True and 1 are the same."""
    return json.dumps(value, sort_keys=True, default=str)

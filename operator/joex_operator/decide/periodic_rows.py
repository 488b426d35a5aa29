"""PeriodicTask objects as rows of the database: the desired rows, the changes that lead to them, and the conditions."""

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
from joex.store.json_text import json_text
from joex.store.periodic import PeriodicTask, TaskKey
from joex_operator.api.objects import Periodic, Pool, Ref, SpecError, parse_periodic, reference
from joex_operator.decide.conditions import Condition
from joex_operator.decide.plan import DatabaseProblem

_READY = "Ready"
_MOMENT = 0.5
_LEAST_PAUSE = 5.0
"""Seconds between two writes of a status at least, because the task of a timer may be due each second."""


@dataclass(frozen=True, slots=True)
class DesiredRow:
    """The row that an object asks for.

    Attributes:
        ref: the object.
        id: of the row.
        pool: the name of the pool, even where the rest of the object is invalid.
        row: None: the object or its pool is invalid, or there is no such pool.
        error: why the object can't have an enabled row.
    """

    ref: Ref
    id: str
    pool: str
    row: NewPeriodicTask | None = None
    error: SpecError | None = None


@dataclass(frozen=True, slots=True)
class RowChanges:
    """The changes to the rows of a pool; false: there are none."""

    remove: Sequence[TaskKey]
    put: Sequence[NewPeriodicTask]
    disable: Sequence[TaskKey]

    def __bool__(self) -> bool:
        return bool(self.remove or self.put or self.disable)


def row_id(namespace: str, name: str) -> str:
    """The id of the row of a PeriodicTask.

    >>> row_id("prod", "nightly")
    'prod/nightly'
    """
    return f"{namespace}/{name}"


def owner(home: str, pool: str) -> str:
    """The owner of the rows of a pool, by which pools that share a database keep theirs apart, in two clusters too.

    >>> owner("prod.3f2a9c1e", "documents")
    'kubernetes:prod.3f2a9c1e/documents'
    """
    return f"kubernetes:{home}/{pool}"


def desired_row(manifest: Mapping[str, Any], pools: Mapping[str, Pool | None]) -> DesiredRow:
    """The row that an object asks for. ``pools``: those of its namespace, by name; None for an invalid one."""
    ref = reference(manifest)
    desired = DesiredRow(ref, row_id(ref.namespace, ref.name), str((manifest.get("spec") or {}).get("pool")))
    try:
        task = parse_periodic(manifest, stored=True)
        if task.deleted_at is not None:
            raise SpecError("it is being deleted, and stays for its finalizers", "Deleting")  # noqa: TRY301
        pool = pools.get(desired.pool)
        if pool is not None:
            return replace(desired, row=_row(task, pool))
    except SpecError as error:
        return replace(desired, error=error)
    if desired.pool in pools:
        return desired
    said = f"spec.pool: there is no JoexPool {desired.pool!r} in this namespace"
    return replace(desired, error=SpecError(said, "UnknownPool"))


def changes(desired: Sequence[DesiredRow], found: Sequence[PeriodicTask]) -> RowChanges:
    """The changes from ``found``, the rows that a pool owns, to ``desired``.

    A row can't move to another queue or group: there the object gets a new one. An object that is invalid keeps its row
    where it is.
    """
    rows = {row.name: row for row in found}
    of = {one.id: one for one in desired}
    return RowChanges(
        remove=sorted(key for key in rows if key.id not in of or _lies_elsewhere(key, of[key.id].row)),
        put=[row for one in desired if (row := one.row) is not None and not _is_as_asked(rows.get(_key(row)), row)],
        disable=[key for key, row in rows.items() if row.enabled and key.id in of and of[key.id].error is not None],
    )


def with_next_run(row: PeriodicTask, now: datetime) -> PeriodicTask:
    """The row with its next run. A new row has none yet: then it is the one that a scheduler will store in a moment."""
    if row.nextrun is not None or not row.enabled or row.error is not None:
        return row
    try:
        return replace(row, nextrun=Timer.parse(row.timer).next(max(now, row.last_run or now), parse_zone(row.zone)))
    except ValueError:  # another client has written an invalid one
        return row


def condition(desired: DesiredRow, row: PeriodicTask | DatabaseProblem | None) -> Condition:
    """The condition Ready of an object: whether a scheduler submits its jobs.

    ``row``: its present row, `with_next_run`; None: the database has none; or why the database can't be read.
    """
    if desired.error is not None:
        said = "; no jobs are submitted until this is fixed" if isinstance(row, PeriodicTask) else ""
        return Condition(_READY, "False", desired.error.reason, f"{desired.error}{said}", bad=True)
    if isinstance(row, DatabaseProblem):
        return Condition(_READY, "Unknown", row.reason, row.message, bad=True)
    if row is None:
        said = f"the database has a periodic task {desired.id!r} of another owner in this queue and group"
        return Condition(_READY, "False", "OwnedByOther", said, bad=True)
    return _of_row(row)


def next_reconcile(rows: Iterable[PeriodicTask], now: datetime, poll: float) -> float:
    """Seconds until the status of one of these rows may change; at most ``poll``."""
    return min((_news_in(row, now, poll) for row in rows if row.enabled and row.error is None), default=poll)


def _of_row(row: PeriodicTask) -> Condition:
    if not row.enabled:
        return Condition(_READY, "True", "Suspended", "spec.suspend is set: no jobs are submitted")
    if row.error is not None:
        return Condition(_READY, "False", "Refused", row.error, bad=True)
    if row.nextrun is None:
        return Condition(_READY, "True", "NeverDue", "spec.timer: it is never due again", bad=row.last_run is None)
    return Condition(_READY, "True", "Stored", "the database has it: its jobs are submitted when its timer is due")


def _news_in(row: PeriodicTask, now: datetime, poll: float) -> float:
    if row.nextrun is None:
        return poll
    return min(max((row.nextrun - now).total_seconds() + _MOMENT, _LEAST_PAUSE), poll)


def _row(task: Periodic, pool: Pool) -> NewPeriodicTask:
    spec, served = task.spec, pool.spec.queues
    if spec.queue is not None and spec.queue not in served:
        # The pool's login may reach the queues of other namespaces, and this task is for the pool's own executors.
        here = ", ".join(map(repr, served))
        raise SpecError(f"spec.queue: {spec.queue!r} is no queue of the JoexPool {pool.name!r}, which serves {here}")
    try:
        return NewPeriodicTask(
            id=row_id(task.namespace, task.name),
            enabled=not spec.suspend,
            task=spec.task,
            timer=spec.timer,
            zone=spec.time_zone,
            queue=spec.queue or served[0],
            group=spec.group,
            args=from_json(json_text("args", spec.args)),  # as the database gives it back
            subject=spec.subject,
            submitter=spec.submitter,
            priority=Priority(spec.priority),
            starting_deadline=spec.starting_deadline,
        )
    except ValueError as error:
        raise SpecError(f"spec.{error}") from error


def _key(row: NewPeriodicTask) -> TaskKey:
    return TaskKey(row.id, row.queue, row.group)


def _lies_elsewhere(key: TaskKey, row: NewPeriodicTask | None) -> bool:
    return row is not None and key != _key(row)


def _is_as_asked(found: PeriodicTask | None, row: NewPeriodicTask) -> bool:
    names = [field.name for field in fields(row)]
    return found is not None and _text([getattr(found, name) for name in names]) == _text(
        [getattr(row, name) for name in names]
    )


def _text(value: Any) -> str:
    """A value as JSON, for comparisons: in Python, True and 1 are equal."""
    return json.dumps(value, sort_keys=True, default=str)

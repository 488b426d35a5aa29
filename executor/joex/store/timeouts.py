"""Timeouts of tasks, and the runs that exceed them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from joex.store.errors import translated
from joex.store.statement import Connection, statement

_SET_TIMEOUT = statement("SELECT joex_client.set_timeout($1::text, $2::interval, $3::boolean)")
_TIMEOUTS = statement("SELECT task, timeout, renewable FROM joex_private.task_timeout ORDER BY task")
_RECOVER = statement("SELECT app_id, jobs FROM joex_private.recover_overdue()")


@dataclass(frozen=True, slots=True)
class TaskTimeout:
    """How long a run of a task may go without a report; or, if not ``renewable``, how long it may take."""

    task: str
    timeout: timedelta
    renewable: bool


async def set_timeout(connection: Connection, task: str, limit: timedelta | None, *, renewable: bool) -> None:
    """Set how long a run of a task may go without a report (if not ``renewable``: may take); None: no limit."""
    with translated():
        await connection.execute(_SET_TIMEOUT, task, limit, renewable)


async def timeouts(connection: Connection) -> list[TaskTimeout]:
    """The tasks that have a timeout."""
    with translated():
        return [TaskTimeout(*row) for row in await connection.fetch(_TIMEOUTS)]


async def recover_overdue(connection: Connection) -> list[tuple[str, int]]:
    """Put back a batch of runs that did not report in time; returns their number for each executor or worker."""
    with translated():
        return [(row["app_id"], row["jobs"]) for row in await connection.fetch(_RECOVER)]

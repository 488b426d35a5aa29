"""Maintenance: a periodic task that creates no jobs. The executor that decides that it is due does it itself.

So it needs no slot, no queue and no pool of its own: any executor can do it, whatever queues it serves.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from uuid import UUID

from joex.app import App
from joex.config import Settings
from joex.core.duration import parse_duration
from joex.core.events import Emit
from joex.core.periodic import SYSTEM_OWNER, NewPeriodicTask
from joex.errors import ConfigError, JoexError
from joex.store import audit, executors, job_logs, jobs, periodic, pools, runs, subscriptions
from joex.store.database import connect
from joex.store.json_text import json_text, read_json
from joex.store.periodic import PeriodicTask, TaskKey
from joex.store.statement import Connection
from joex.trouble import Trouble

RETENTION = "joex.retention"
"""The periodic task that deletes old finished jobs."""

_EVERY_TEN_MINUTES = "*:0/10"
_RETRY_IN = 60.0
_KEEP_ACTS = timedelta(days=90)
_BATCH = 1000
_ALL_LINES_ONCE_IN = 144  # times: about once a day


class Maintenance:
    """The service that deletes old finished jobs, each time that it is woken.

    Args:
        url: the database.
        pooled: the connection leads through a transaction pooler.
        name: the name of its connection in pg_stat_activity.
        emit: receives events.
    """

    def __init__(self, url: str, *, pooled: bool, name: str, emit: Emit) -> None:
        self._url = url
        self._pooled = pooled
        self._name = name
        self._emit = emit
        self._is_due = asyncio.Event()

    def wake(self) -> None:
        """It is due, and this executor does it."""
        self._is_due.set()

    async def run(self) -> None:
        """Serve until cancelled."""
        trouble = Trouble("maintenance", self._emit, first=_RETRY_IN, longest=_RETRY_IN)
        while True:
            await self._is_due.wait()
            self._is_due.clear()
            try:
                async with self._connection() as connection:
                    await clean(connection)
                trouble.over()
            except (JoexError, OSError) as error:
                await asyncio.sleep(trouble.failed(error))
                self._is_due.set()

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        """Its own connection, without a time limit: long logs take long to delete, and no other service waits."""
        connection = await connect(self._url, pooled=self._pooled, name=self._name)
        try:
            yield connection
        finally:
            connection.terminate()


async def clean(connection: Connection) -> None:
    """Delete old finished jobs and their logs, in batches; and what else is too old, or belongs to nothing any more.

    Raises:
        ConfigError: the row of the periodic task was changed by hand, and has no valid ages any more.
    """
    tasks = await periodic.list_tasks(connection, [(RETENTION, None, None)], owners=[SYSTEM_OWNER])
    try:
        args = tasks[0].args
        keep, keep_failed = parse_duration(args["keep"]), parse_duration(args["keep_failed"])
    except IndexError:  # the row was removed a moment ago
        return
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"the arguments of the periodic task {RETENTION} are no ages: {error!r}") from error
    await _delete_finished(connection, ["success", "cancelled"], keep)
    await _delete_finished(connection, ["failed"], keep_failed)
    await executors.forget_ended(connection, max(keep, keep_failed))
    await _forget_acts(connection)
    await pools.forget_steps(connection)
    await runs.forget_turns(connection)
    await _forget_lines(connection)
    await subscriptions.forget(connection)  # (last, as tenants can make very many)


async def _delete_finished(connection: Connection, states: list[str], age: timedelta) -> None:
    since: datetime | None = None
    while True:
        _, since = await jobs.delete_finished(connection, states, age, _BATCH, since=since)
        if since is None:
            return


async def _forget_acts(connection: Connection) -> None:
    since: datetime | None = None
    while True:
        since = await audit.forget(connection, _KEEP_ACTS, _BATCH, since=since)
        if since is None:
            return


async def _forget_lines(connection: Connection) -> None:
    """Look for lines whose jobs are gone: there are seldom any, so not each time in the whole log."""
    is_thorough = random.randrange(_ALL_LINES_ONCE_IN) == 0  # noqa: S311 - there is no secret
    after: UUID | None = UUID(int=0)
    while after is not None:
        after = await job_logs.forget_lines(connection, after)
        if not is_thorough:
            return


def system_periodic_tasks(settings: Settings) -> list[NewPeriodicTask]:
    """Joex's own periodic tasks, with these settings; those of the executor that started last apply."""
    args = {"keep": settings.retention.total_seconds(), "keep_failed": settings.retention_failed.total_seconds()}
    return [NewPeriodicTask(RETENTION, RETENTION, _EVERY_TEN_MINUTES, args=args)]


async def register_periodic_tasks(connection: Connection, app: App, settings: Settings) -> list[str]:
    """Update the rows of the app's and the system's periodic tasks; returns the ids of those that it has not set.

    They have another owner, or another transaction holds their rows. (No start waits for that: a role that may operate
    in their group can leave its transaction open. The next start sets the row.)
    """
    system_tasks, app_tasks = system_periodic_tasks(settings), app.periodic_tasks
    if await _are_registered(connection, app.owner, system_tasks, app_tasks):
        return []  # so that most starts wait for no other transaction
    # Executors that start at the same time wait for each other at the first row, which is the system's.
    async with connection.transaction():
        answers = [(task.id, await periodic.put(connection, task, SYSTEM_OWNER)) for task in system_tasks]
        answers += [(task.id, await periodic.put(connection, task, app.owner, waits=False)) for task in app_tasks]
        await periodic.keep(connection, app.owner, [_key(task) for task in app_tasks])
    return [task_id for task_id, answer in answers if answer in {"not_yours", "locked"}]


async def _are_registered(
    connection: Connection, owner: str, system_tasks: Sequence[NewPeriodicTask], app_tasks: Sequence[NewPeriodicTask]
) -> bool:
    """Whether the rows are as wanted, so that `put` and `keep` would change none; in doubt not: these find out.

    It reads no rows of other owners: a tenant may have thousands with one id of the app, each in another queue.
    """
    app_rows = await periodic.list_tasks(connection, owners=[owner], most=len(app_tasks) + 1)
    rows = {row.name: row for row in app_rows}
    if rows.keys() != {_key(task) for task in app_tasks}:
        return False
    rows |= {row.name: row for row in await periodic.list_tasks(connection, owners=[SYSTEM_OWNER])}
    return all(_key(task) in rows and _is_stored(rows[_key(task)], task) for task in [*system_tasks, *app_tasks])


def _key(task: NewPeriodicTask) -> TaskKey:
    return TaskKey(task.id, task.queue, task.group)


def _is_stored(row: PeriodicTask, task: NewPeriodicTask) -> bool:
    names = ("task", "timer", "zone", "priority", "subject", "submitter", "starting_deadline")
    return (
        task.enabled in (None, row.enabled)
        and all(getattr(row, name) == getattr(task, name) for name in names)
        # (As text: to Python, 1 is True.)
        and json.dumps(row.args, sort_keys=True) == json.dumps(read_json(json_text("args", task.args)), sort_keys=True)
    )

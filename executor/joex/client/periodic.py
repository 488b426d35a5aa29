"""Periodic tasks that users set: ``client.periodic``. A program defines its own with `joex.App.periodic`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple
from uuid import UUID

from joex.client.patience import PatientConnections
from joex.client.submissions import invalid
from joex.core.arguments import check_flag, check_number
from joex.core.duration import parse_duration
from joex.core.job import check_name, check_text, priority_of
from joex.core.periodic import SYSTEM_OWNER, USER, NewPeriodicTask
from joex.core.timers import Timer, parse_zone
from joex.errors import NotYours
from joex.store import periodic
from joex.store.drivers import AnyConnection
from joex.store.periodic import PeriodicTask, TaskName
from joex.store.statement import Connection


@dataclass(frozen=True, slots=True)
class TimerCheck:
    """The meaning of a timer.

    Attributes:
        normal: the timer in its normal form.
        zone: its time zone: the zone that it names, or the given one.
        next: its next times, in this zone; empty if it is never due again.
    """

    normal: str
    zone: str
    next: list[datetime]


class RunNow(NamedTuple):
    """The outcome of `run_now`. ``overlapping``: the last job is not finished, so Joex created none."""

    answer: Literal["submitted", "overlapping", "not_found"]
    job: UUID | None


def check_timer(timer: str, zone: str = "UTC", *, after: datetime | None = None, most: int = 5) -> TimerCheck:
    """The meaning of a timer, and its next times. Needs no database.

    >>> found = check_timer("Mon..Fri 8:00", "Europe/Zurich", after=datetime(2026, 11, 20, 12, tzinfo=UTC), most=1)
    >>> found.normal, str(found.next[0])
    ('Mon..Fri *-*-* 08:00:00', '2026-11-23 08:00:00+01:00')

    Args:
        timer: a systemd calendar event, or a cron line.
        zone: the time zone of a timer that names none.
        after: list times after this one, which has its time zone; None: after now.
        most: list at most this many.

    Raises:
        InvalidJob: the timer can't be read, or ``after`` has no time zone; the message says why.
    """
    with invalid():
        _check_texts(timer, zone)
        check_number("most", most)
        parsed, given = Timer.parse(timer), parse_zone(zone)
        used = parsed.zone or given
        times: list[datetime] = []
        last = datetime.now(UTC) if after is None else after
        while len(times) < most and (found := parsed.next(last, given)) is not None:
            times.append(found.astimezone(used))
            last = found
    return TimerCheck(parsed.normal, used.key, times)


class PeriodicTasks:
    """The periodic tasks of a database: ``client.periodic``.

    Each has an owner: users (`user`), an app (`app:...`), a pool of Kubernetes (`kubernetes:...`), or Joex itself
    (`joex`). You can read all of them, and run any of them now. Those that you set here have the owner `user`; changing
    one of another owner raises `NotYours`, unless you pass ``any_owner``.

    The id of a periodic task is unique in its queue and group. Calls that take an id look for it in all of them, or in
    the ``queue`` and the ``group`` that you name; if several periodic tasks have it, they raise `InvalidJob`.

    With ``connection``, a call works in that connection's transaction. Wrong values raise `InvalidJob`, which names the
    field.
    """

    def __init__(self, connections: PatientConnections) -> None:
        self._connections = connections

    async def list(
        self,
        owner: str | None = None,
        *,
        after: str | None = None,
        most: int = 1000,
        connection: AnyConnection | None = None,
    ) -> Sequence[PeriodicTask]:
        """The periodic tasks in the order of their ids, at most ``most``.

        Args:
            owner: only the tasks of this owner.
            after: the ``key`` of the last periodic task of the page before.
            most: at most this many.
            connection: read in this connection's transaction.
        """
        with invalid():
            if owner is not None:
                check_name("owner", owner)
            check_number("most", most)
        async with self._connections.using(connection) as used:
            owners = None if owner is None else [owner]
            return (await periodic.page_of_tasks(used, owners=owners, after=after, most=most))[0]

    async def get(
        self,
        task_id: str,
        *,
        queue: str | None = None,
        group: str | None = None,
        connection: AnyConnection | None = None,
    ) -> PeriodicTask | None:
        """A periodic task, or None."""
        name = _name(task_id, queue, group)
        async with self._connections.using(connection) as used:
            return await periodic.find(used, name)

    async def put(
        self,
        task_id: str,
        task: str,
        timer: str,
        *,
        zone: str = "UTC",
        args: Mapping[str, Any] | None = None,
        group: str = "default",
        queue: str = "default",
        priority: str = "low",
        subject: str = "",
        submitter: str = "",
        starting_deadline: timedelta | float | str | None = None,
        enabled: bool | None = None,
        connection: AnyConnection | None = None,
    ) -> bool:
        """Create a periodic task, or replace the one with this id in this queue and group.

        Args:
            task_id: its id, unique in its queue and group, at most 240 bytes.
            task: the task that its jobs run.
            timer: when: a systemd calendar event (``"Mon..Fri 08:00"``) or a cron line; see docs/reference/timers.md.
            zone: the time zone, such as ``"Europe/Zurich"``, of a timer that names none.
            args: the arguments of its jobs.
            group: the group of its jobs.
            queue: the queue of its jobs.
            priority: the priority of its jobs, ``high`` or ``low``.
            subject: what its jobs are about; Joex only shows it; by default its id.
            submitter: the user or program that submits its jobs; Joex only shows it.
            starting_deadline: skip a time missed by more than this (``"1h"``); by default Joex
                catches up on the latest, however late.
            enabled: None: leave as it is; a new one is enabled.
            connection: set it in this connection's transaction.

        Returns:
            Whether something has changed.

        Raises:
            InvalidJob: a field is wrong; the message names it.
            NotYours: the one with this id in this queue and group has another owner.
        """
        new = _new(
            id=task_id,
            task=task,
            timer=timer,
            zone=zone,
            args={} if args is None else args,
            group=group,
            queue=queue,
            priority=priority,
            subject=subject,
            submitter=submitter,
            starting_deadline=starting_deadline,
            enabled=enabled,
        )
        async with self._connections.using(connection) as used:
            answer = await periodic.put(used, new, USER)
            await _check_answer(used, answer, (task_id, queue, group), "choose another id")
        return answer == "set"

    async def remove(
        self,
        task_id: str,
        *,
        queue: str | None = None,
        group: str | None = None,
        any_owner: bool = False,
        connection: AnyConnection | None = None,
    ) -> bool:
        """Remove a periodic task; its jobs stay. False if there is none.

        Raises:
            NotYours: it has another owner, and ``any_owner`` is false; or it belongs to Joex itself.
        """
        name = _name(task_id, queue, group)
        with invalid():
            check_flag("any_owner", any_owner)
        async with self._connections.using(connection) as used:
            answer = await periodic.remove(used, name, USER, any_owner=any_owner)
            await _check_answer(used, answer, name, "only Joex removes it: disable it instead" if any_owner else None)
        return answer == "removed"

    async def enable(
        self,
        task_id: str,
        *,
        queue: str | None = None,
        group: str | None = None,
        any_owner: bool = False,
        connection: AnyConnection | None = None,
    ) -> bool:
        """Enable a periodic task, from its next time on. False if there is none.

        Raises:
            NotYours: it has another owner, and ``any_owner`` is false.
        """
        return await self._enable(_name(task_id, queue, group), connection, enabled=True, any_owner=any_owner)

    async def disable(
        self,
        task_id: str,
        *,
        queue: str | None = None,
        group: str | None = None,
        any_owner: bool = False,
        connection: AnyConnection | None = None,
    ) -> bool:
        """Disable a periodic task until you enable it. False if there is none; raises as `enable`."""
        return await self._enable(_name(task_id, queue, group), connection, enabled=False, any_owner=any_owner)

    async def run_now(
        self,
        task_id: str,
        *,
        queue: str | None = None,
        group: str | None = None,
        connection: AnyConnection | None = None,
    ) -> RunNow:
        """Create the job of a periodic task now, whatever its timer and its owner are, and even if it is disabled.

        Raises:
            NotYours: it belongs to Joex, and creates no jobs.
        """
        name = _name(task_id, queue, group)
        async with self._connections.using(connection) as used:
            answer, job = await periodic.run_now(used, name)
            await _check_answer(used, answer, name, "executors do this themselves, when it is due")
        return RunNow(answer, job)  # type: ignore[arg-type] # what joex.run_periodic_task answers

    async def _enable(
        self, name: TaskName, connection: AnyConnection | None, *, enabled: bool, any_owner: bool
    ) -> bool:
        with invalid():
            check_flag("any_owner", any_owner)
        async with self._connections.using(connection) as used:
            answer = await periodic.enable(used, name, USER, enabled=enabled, any_owner=any_owner)
            await _check_answer(used, answer, name)
        return answer != "not_found"


def _new(*, priority: str, starting_deadline: timedelta | float | str | None, **fields: Any) -> NewPeriodicTask:
    """A checked periodic task.

    Raises:
        InvalidJob: a field is wrong; the message names it.
    """
    with invalid("starting_deadline"):
        deadline = None if starting_deadline is None else parse_duration(starting_deadline)
    with invalid():
        _check_texts(fields["timer"], fields["zone"])
        if fields.get("enabled") is not None:
            check_flag("enabled", fields["enabled"])
        return NewPeriodicTask(**fields, priority=priority_of(priority), starting_deadline=deadline)


async def _check_answer(connection: Connection, answer: str, name: TaskName, mend: str | None = None) -> None:
    """Check the answer to a change; the error names the owner of the task, and what to do instead.

    Raises:
        NotYours: the task has another owner, so nothing has changed.
    """
    if answer == "not_yours":
        found = await periodic.find(connection, name)
        owner = "another owner" if found is None else found.owner  # it may have gone meanwhile
        raise NotYours(f"periodic task {name[0]!r}: it is owned by {owner}: {mend or _mend(owner)}")


def _mend(owner: str) -> str:
    """The remedy: where to change the periodic tasks of this owner."""
    if owner.startswith("app:"):
        return "change it in the code of the app"
    if owner.startswith("kubernetes:"):
        return "change its PeriodicTask object"
    return "it follows the settings of the executors" if owner == SYSTEM_OWNER else "change it there"


def _name(task_id: str, queue: str | None, group: str | None) -> TaskName:
    with invalid():
        check_name("id", task_id)
        if queue is not None:
            check_name("queue", queue)
        if group is not None:
            check_name("group", group)
    return task_id, queue, group


def _check_texts(timer: str, zone: str) -> None:
    check_text("timer", timer)
    check_text("zone", zone)

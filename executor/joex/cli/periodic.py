"""``joex periodic``: periodic tasks and their timers."""

from __future__ import annotations

import json
import shlex
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Annotated, TypeAlias

import typer

from joex.cli.database import with_client, with_connection
from joex.cli.options import MOST_BYTES, AsJson, DatabaseUrl, Limit
from joex.cli.output import ago, note, print_json, print_table, say, shown
from joex.cli.submit import json_object
from joex.client.client import Client
from joex.client.periodic import check_timer
from joex.core.duration import format_duration, span
from joex.core.job import Priority
from joex.errors import InvalidJob, JoexError, NotYours
from joex.store.bounded import NOTHING
from joex.store.periodic import PeriodicTask, page_of_tasks

_COLUMNS = ("ID", "QUEUE", "GROUP", "TASK", "TIMER", "ZONE", "NEXT", "LAST", "JOB", "OWNER", "STATUS")

Id: TypeAlias = Annotated[str, typer.Argument(metavar="ID", help="Id of the periodic task.")]
Zone: TypeAlias = Annotated[
    str, typer.Option(metavar="NAME", help="The time zone, such as Europe/Zurich, of a timer that names none.")
]
Queue: TypeAlias = Annotated[
    str | None, typer.Option(metavar="NAME", help="The queue that it is in.", show_default="any")
]
Group: TypeAlias = Annotated[
    str | None, typer.Option(metavar="NAME", help="The group that it is in.", show_default="any")
]
Force: TypeAlias = Annotated[bool, typer.Option("--force", help="Even if it has another owner.")]

periodic_app = typer.Typer(help="List, set and run periodic tasks.")


@periodic_app.callback(invoke_without_command=True)
def periodic(context: typer.Context) -> None:
    """List, set and run periodic tasks."""
    if context.invoked_subcommand is None:
        say(context.get_help())


@periodic_app.command("list")
def list_command(
    *,
    owner: Annotated[str | None, typer.Option(metavar="NAME", help="Only this owner.")] = None,
    limit: Limit = 100,
    after: Annotated[str | None, typer.Option(metavar="KEY", help="Continue after the one with this key.")] = None,
    as_json: AsJson = False,
    database_url: DatabaseUrl = None,
) -> None:
    """List the periodic tasks of all owners.

    LAST is the outcome of the latest time that was due, JOB the state of the latest job. With --json a page has 4 MB of
    arguments, but one task at least.
    """
    page, has_more = with_connection(
        database_url,
        lambda connection: page_of_tasks(
            connection,
            owners=None if owner is None else [owner],
            after=after,
            most=limit,
            most_bytes=MOST_BYTES if as_json else NOTHING,
        ),
    )
    if as_json:
        print_json(page)
    elif page:
        print_table(_COLUMNS, map(_row, page))
    else:
        say("no periodic tasks")
    if has_more:
        note(f"there are more: add --after {shlex.quote(page[-1].key)}")


@periodic_app.command()
def show(
    task_id: Id, *, queue: Queue = None, group: Group = None, as_json: AsJson = False, database_url: DatabaseUrl = None
) -> None:
    """Show a periodic task."""
    task = with_client(database_url, lambda client: _get(client, task_id, queue, group))
    if as_json:
        print_json(task)
        return
    for name, value in _facts(task):
        say(f"{name:<18} {value}")


@periodic_app.command()
def add(
    task_id: Id,
    task: Annotated[str, typer.Argument(metavar="TASK", help="Name of the task.")],
    timer: Annotated[
        str, typer.Argument(metavar="TIMER", help="When: 'Mon..Fri 08:00', '*:0/10', or a cron line '0 8 * * 1-5'.")
    ],
    *,
    zone: Zone = "UTC",
    args: Annotated[str, typer.Option(metavar="JSON", help="Arguments of its jobs as a JSON object.")] = "{}",
    group: Annotated[str, typer.Option(metavar="NAME", help="The group of its jobs.")] = "default",
    queue: Annotated[str, typer.Option(metavar="NAME", help="The queue of its jobs.")] = "default",
    priority: Annotated[
        Priority, typer.Option(case_sensitive=False, help="The priority of its jobs, within their group.")
    ] = Priority.LOW,
    subject: Annotated[
        str, typer.Option(metavar="TEXT", help="What its jobs are about; Joex only shows it.", show_default="its id")
    ] = "",
    submitter: Annotated[str, typer.Option(metavar="TEXT", help="The submitter of its jobs; Joex only shows it.")] = "",
    starting_deadline: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION", help="Skip a time missed by more than this ('1h').", show_default="catch one up"
        ),
    ] = None,
    disabled: Annotated[bool, typer.Option("--disabled", help="Create no jobs until it is enabled.")] = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Add a periodic task, or replace the one with this id in this queue and group.

    An existing one stays enabled or disabled, unless you give --disabled.
    """
    arguments = json_object("--args", args)

    async def work(client: Client) -> tuple[bool, PeriodicTask]:
        changed = await client.periodic.put(
            task_id,
            task,
            timer,
            zone=zone,
            args=arguments,
            group=group,
            queue=queue,
            priority=priority,
            subject=subject,
            submitter=submitter,
            starting_deadline=starting_deadline,
            enabled=False if disabled else None,
        )
        return changed, await _get(client, task_id, queue, group)

    changed, stored = with_client(database_url, work)
    normal = check_timer(timer, zone, most=0)
    time = _next(stored)
    comes = f"next {_when(time)}" if time else "never again" if stored.enabled else "disabled"
    say(f"{task_id} {'set' if changed else 'unchanged'}: {normal.normal}, zone {normal.zone}, {comes}")


@periodic_app.command()
def remove(
    task_id: Id, *, queue: Queue = None, group: Group = None, force: Force = False, database_url: DatabaseUrl = None
) -> None:
    """Remove a periodic task; its jobs stay."""
    _change(
        database_url,
        task_id,
        "removed",
        lambda c: c.periodic.remove(task_id, queue=queue, group=group, any_owner=force),
        force=force,
    )


@periodic_app.command()
def enable(
    task_id: Id, *, queue: Queue = None, group: Group = None, force: Force = False, database_url: DatabaseUrl = None
) -> None:
    """Enable a periodic task, from its next time on."""
    _change(
        database_url,
        task_id,
        "enabled",
        lambda c: c.periodic.enable(task_id, queue=queue, group=group, any_owner=force),
        force=force,
    )


@periodic_app.command()
def disable(
    task_id: Id, *, queue: Queue = None, group: Group = None, force: Force = False, database_url: DatabaseUrl = None
) -> None:
    """Disable a periodic task, until you enable it."""
    _change(
        database_url,
        task_id,
        "disabled",
        lambda c: c.periodic.disable(task_id, queue=queue, group=group, any_owner=force),
        force=force,
    )


@periodic_app.command("run-now")
def run_now(task_id: Id, *, queue: Queue = None, group: Group = None, database_url: DatabaseUrl = None) -> None:
    """Create the job of a periodic task now, and print its id.

    This works whatever its timer and its owner are, and even if it is disabled, but not while its last job is
    unfinished.
    """
    answer, job = with_client(database_url, lambda client: client.periodic.run_now(task_id, queue=queue, group=group))
    if answer == "not_found":
        raise _no_such(task_id)
    if answer == "overlapping":
        raise JoexError(f"periodic task {task_id!r}: its last job is not finished; 'joex periodic show' names it")
    say(str(job))


@periodic_app.command()
def check(
    timer: Annotated[str, typer.Argument(metavar="TIMER", help="A systemd calendar event, or a cron line; quote it.")],
    *,
    zone: Zone = "UTC",
    as_json: AsJson = False,
) -> None:
    """Print the normal form of a timer, and its next five times.

    Needs no database.
    """
    found = check_timer(timer, zone)
    if as_json:
        print_json(found)
        return
    say(f"{found.normal}, zone {found.zone}")
    for time in found.next or (None,):
        say(f"  {_when(time)}")


def _change(
    database_url: str | None, task_id: str, done: str, work: Callable[[Client], Awaitable[bool]], *, force: bool
) -> None:
    """Change a periodic task, and print the outcome. ``force``: whether ``work`` changes that of any owner.

    Raises:
        JoexError: there is no such task, or it has another owner.
    """
    try:
        is_found = with_client(database_url, work)
    except NotYours as error:
        if force:
            raise
        raise NotYours(f"{error}; or add --force") from error
    if not is_found:
        raise _no_such(task_id)
    say(f"{task_id} {done}")


async def _get(client: Client, task_id: str, queue: str | None, group: str | None) -> PeriodicTask:
    task = await client.periodic.get(task_id, queue=queue, group=group)
    if task is None:
        raise _no_such(task_id)
    return task


def _no_such(task_id: str) -> JoexError:
    return JoexError(f"there is no periodic task {task_id!r}; 'joex periodic list' lists them")


def _row(task: PeriodicTask) -> tuple[object, ...]:
    time = _next(task)
    last = task.last_outcome and f"{task.last_outcome} {ago(task.last_run)} ago"
    status = task.error or ("enabled" if task.enabled else "disabled")
    return (
        task.id, task.queue, task.group, task.task, task.timer, task.zone, time and _in_words(time), last,
        task.last_job_state, task.owner, status,
    )  # fmt: skip


def _facts(task: PeriodicTask) -> list[tuple[str, str]]:
    """Return the fields of a periodic task that have a value."""
    time = _next(task)
    facts: dict[str, object] = {
        "id": task.id,
        "owner": task.owner,
        "enabled": task.enabled,
        "error": task.error,
        "task": task.task,
        "timer": task.timer,
        "zone": task.zone,
        "next": time and _when(time),
        "last time": task.last_run,
        "last outcome": task.last_outcome,
        "last job": task.last_job and f"{task.last_job} ({task.last_job_state or 'deleted'})",
        "starting deadline": None if task.starting_deadline is None else format_duration(task.starting_deadline),
        "group": task.group,
        "queue": task.queue,
        "priority": task.priority,
        "subject": task.subject or None,
        "submitter": task.submitter or None,
        "arguments": json.dumps(task.args, ensure_ascii=False),
        "decided by": task.worker and f"{task.worker}, {ago(task.marked)} ago",
        "created": task.created_at,
        "changed": task.changed_at,
    }
    return [(name, shown(value)) for name, value in facts.items() if value is not None]


def _next(task: PeriodicTask) -> datetime | None:
    """Return when a task is due, in its zone: as stored, or for a new one as an executor will compute it."""
    if not task.enabled or task.error is not None:
        return None
    try:
        found = check_timer(task.timer, task.zone, most=1)
    except InvalidJob:  # it was set in SQL, and no executor has read it yet
        return task.nextrun
    if task.nextrun is not None:
        return task.nextrun.astimezone(found.next[0].tzinfo if found.next else UTC)
    return found.next[0] if found.next else None


def _when(time: datetime | None) -> str:
    """Return a time in its zone, and the time until then.

    >>> _when(None)
    'never'
    """
    if time is None:
        return "never"
    fraction = f".{time.microsecond:06}" if time.microsecond else ""
    return f"{time:%a %Y-%m-%d %H:%M:%S}{fraction} {time:%Z} ({_in_words(time)})"


def _in_words(time: datetime) -> str:
    seconds = (time - datetime.now(UTC)).total_seconds()
    return f"in {span(seconds)}" if seconds > 0 else "now"

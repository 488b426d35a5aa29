"""``joex groups``: the groups of each queue, and their settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from joex.cli.database import with_connection
from joex.cli.options import AsJson, DatabaseUrl, Limit, OfQueue, is_alone
from joex.cli.output import note, print_json, print_table, say
from joex.core.duration import span
from joex.errors import ConfigError
from joex.store.stats import GroupSetting, GroupStats, group_settings, group_stats, set_group

if TYPE_CHECKING:
    from joex.store.statement import Connection

_COLUMNS = (
    "GROUP", "QUEUE", "WAITING", "DEFERRED", "STUCK", "SCHEDULED", "RUNNING", "OLDEST", "WEIGHT", "LIMIT", "PAUSED",
)  # fmt: skip

groups_app = typer.Typer()


@groups_app.callback(invoke_without_command=True)
def groups(
    context: typer.Context,
    *,
    queue: OfQueue = None,
    limit: Limit = 100,
    as_json: AsJson = False,
    database_url: DatabaseUrl = None,
) -> None:
    """List the groups, or change their settings.

    Lists groups with unfinished jobs, the largest first, and groups that have settings.
    """
    if not is_alone(context, queue, as_json, database_url):
        return
    found = with_connection(database_url, lambda connection: _list(connection, queue, limit + 1))
    if as_json:
        print_json(found[:limit])
    elif found:
        print_table(_COLUMNS, map(_row, found[:limit]), numbers=_COLUMNS[2:10])
    else:
        say("no groups have unfinished jobs or settings")
    if len(found) > limit:
        note("there are more: raise --limit")


@groups_app.command("set")
def set_command(
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The group.")],
    *,
    queue: Annotated[str, typer.Option(metavar="NAME", help="The queue that the change applies to.")] = "default",
    weight: Annotated[int | None, typer.Option(min=1, max=100, help="Its share of the slots.")] = None,
    max_running: Annotated[int | None, typer.Option(min=0, help="Run at most this many of its jobs at a time.")] = None,
    max_waiting: Annotated[
        int | None,
        typer.Option(min=0, max=100_000, help="Refuse submissions while this many of its jobs wait in line."),
    ] = None,
    no_limit: Annotated[bool, typer.Option("--no-limit", help="Remove the limit of running jobs.")] = False,
    no_waiting_limit: Annotated[
        bool, typer.Option("--no-waiting-limit", help="Remove the limit of waiting jobs.")
    ] = False,
    paused: Annotated[bool | None, typer.Option("--pause/--resume", help="Stop taking its jobs, or resume.")] = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Change the settings of a group in a queue.

    They apply to all executors, from the next take on.
    """
    if no_limit and max_running is not None:
        raise ConfigError("groups set: give --max-running or --no-limit, not both")
    if no_waiting_limit and max_waiting is not None:
        raise ConfigError("groups set: give --max-waiting or --no-waiting-limit, not both")
    limit = -1 if no_limit else max_running
    waiting = -1 if no_waiting_limit else max_waiting
    if weight is None and limit is None and waiting is None and paused is None:
        raise ConfigError(
            "groups set: say what to change: --weight, --max-running, --no-limit, --max-waiting, --no-waiting-limit, "
            "--pause or --resume"
        )

    async def work(connection: Connection) -> GroupSetting | None:
        await set_group(connection, group, queue, weight=weight, paused=paused, max_running=limit, max_waiting=waiting)
        return next((s for s in await group_settings(connection, queue) if s.group == group), None)

    setting = with_connection(database_url, work)
    if setting is not None:
        say(f"group {group} in queue {queue}: {_words(setting)}")


async def _list(connection: Connection, queue: str | None, most: int) -> list[GroupStats]:
    found = await group_stats(connection, queue, most)
    if len(found) >= most:  # the list may be incomplete for the others
        return found
    known = {(group.queue, group.group) for group in found}
    settings = [s for s in await group_settings(connection, queue, most) if (s.queue, s.group) not in known]
    return [*found, *map(_idle, settings)]


def _idle(setting: GroupSetting) -> GroupStats:
    """Return the row of a group that has settings but no unfinished jobs."""
    return GroupStats(
        queue=setting.queue,
        group=setting.group,
        waiting=0,
        deferred=0,
        scheduled=0,
        running=0,
        stuck=0,
        oldest_runnable_seconds=None,
        weight=setting.weight,
        paused=setting.paused,
        max_running=setting.max_running,
        max_waiting=setting.max_waiting,
    )


def _row(g: GroupStats) -> tuple[object, ...]:
    counts = (g.waiting, g.deferred, g.stuck, g.scheduled, g.running)
    return (g.group, g.queue, *counts, span(g.oldest_runnable_seconds), g.weight, g.max_running, g.paused)


def _words(setting: GroupSetting) -> str:
    limit = "no limit" if setting.max_running is None else f"at most {setting.max_running} running"
    waiting = "" if setting.max_waiting is None else f"at most {setting.max_waiting} waiting, "
    return f"weight {setting.weight}, {limit}, {waiting}{'paused' if setting.paused else 'not paused'}"

"""``joex timeouts``: when Joex puts back runs that do not report."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, TypeAlias

import typer

from joex.cli.database import with_client, with_connection
from joex.cli.options import AsJson, DatabaseUrl, is_alone
from joex.cli.output import print_json, print_table, say
from joex.core.duration import format_duration
from joex.errors import ConfigError
from joex.store.timeouts import TaskTimeout, timeouts

Type: TypeAlias = Annotated[str, typer.Argument(metavar="TYPE", help="A task's name, which is also a job's type.")]

timeouts_app = typer.Typer()


@timeouts_app.callback(invoke_without_command=True)
def timeouts_command(context: typer.Context, *, as_json: AsJson = False, database_url: DatabaseUrl = None) -> None:
    """List the timeouts of types, or change them.

    When a run does not report in time (ACTIVITY), or takes too long (VISIBILITY), Joex puts it back, and another
    executor or worker may take its job.
    """
    if is_alone(context, as_json, database_url):
        list_command(as_json=as_json, database_url=database_url)


@timeouts_app.command("list")
def list_command(*, as_json: AsJson = False, database_url: DatabaseUrl = None) -> None:
    """List the types that have a timeout."""
    found = with_connection(database_url, timeouts)
    if as_json:
        print_json([_as_json(one) for one in found])
    elif found:
        print_table(("TYPE", "ACTIVITY", "VISIBILITY"), map(_row, found))
    else:
        say("no type has a timeout")


@timeouts_app.command("set")
def set_command(
    job_type: Type,
    *,
    activity: Annotated[
        str | None, typer.Option(metavar="DURATION", help="The longest time between two reports ('30s').")
    ] = None,
    visibility: Annotated[
        str | None, typer.Option(metavar="DURATION", help="The longest time of a run ('5m').")
    ] = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Set the timeout of a type.

    It applies to runs that begin from now on.
    """
    if (activity is None) == (visibility is None):
        raise ConfigError("timeouts set: give either --activity or --visibility")
    _set(database_url, job_type, activity, visibility)
    kind, duration = ("activity", activity) if visibility is None else ("visibility", visibility)
    say(f"{job_type}: {kind} {duration}")


@timeouts_app.command("clear")
def clear_command(job_type: Type, *, database_url: DatabaseUrl = None) -> None:
    """Remove the timeout of a type.

    Runs of executors then have no limit; runs of workers have 60 seconds between two reports.
    """
    _set(database_url, job_type)
    say(f"{job_type}: no timeout")


def _set(database_url: str | None, name: str, activity: str | None = None, visibility: str | None = None) -> None:
    from joex.core.tuples import from_name  # noqa: PLC0415 - an extra

    job_type = from_name(name)
    with_client(database_url, lambda c: c.keyed.set_timeout(job_type, activity=activity, visibility=visibility))


def _limits(one: TaskTimeout) -> tuple[timedelta | None, timedelta | None]:
    return (one.timeout, None) if one.renewable else (None, one.timeout)


def _row(one: TaskTimeout) -> tuple[object, ...]:
    return (one.task, *(limit and format_duration(limit) for limit in _limits(one)))


def _as_json(one: TaskTimeout) -> dict[str, object]:
    activity, visibility = (limit and limit.total_seconds() for limit in _limits(one))
    return {"type": one.task, "activity": activity, "visibility": visibility}

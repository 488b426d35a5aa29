"""``joex queues``: the queues that are paused, and to pause and resume them."""

from __future__ import annotations

from typing import Annotated

import typer

from joex.cli.database import with_client, with_connection
from joex.cli.options import AsJson, DatabaseUrl, is_alone
from joex.cli.output import iso, print_json, print_table, say
from joex.errors import ConfigError
from joex.store.stats import paused_queues

_COLUMNS = ("QUEUE", "PAUSED SINCE", "BY")

queues_app = typer.Typer()


@queues_app.callback(invoke_without_command=True)
def queues(context: typer.Context, *, as_json: AsJson = False, database_url: DatabaseUrl = None) -> None:
    """List the paused queues, or pause and resume a queue.

    `joex stats` lists the queues that have unfinished jobs.
    """
    if not is_alone(context, as_json, database_url):
        return
    found = with_connection(database_url, paused_queues)
    if as_json:
        print_json(found)
    elif found:
        print_table(_COLUMNS, [(one.queue, iso(one.since), one.by) for one in found])
    else:
        say("no queue is paused")


@queues_app.command("set")
def set_command(
    queue: Annotated[str, typer.Argument(metavar="QUEUE", help="The queue.")],
    *,
    paused: Annotated[bool | None, typer.Option("--pause/--resume", help="Stop taking its jobs, or resume.")] = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Pause a queue, or resume it.

    It applies to all executors and workers, from the next take on. Runs go on, and submissions are accepted.
    """
    if paused is None:
        raise ConfigError("queues set: say what to change: --pause or --resume")
    with_client(database_url, lambda client: client.queues.set(queue, paused=paused))
    say(f"queue {queue}: {'paused' if paused else 'not paused'}")

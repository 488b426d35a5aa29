"""``joex executors``, ``joex notify`` and ``joex drain``."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from joex.cli.database import with_client, with_connection
from joex.cli.options import AsJson, DatabaseUrl
from joex.cli.output import ago, print_json, print_table, say
from joex.core.duration import span
from joex.errors import ConfigError, JoexError
from joex.store import executors as store
from joex.store.executors import Executor, list_executors

if TYPE_CHECKING:
    from joex.store.statement import Connection

_COLUMNS = (
    "APP-ID", "STATE", "JOBS", "POOL", "QUEUES", "HOST", "PID", "HTTP", "VERSION", "UP", "SILENT", "REGISTRATION",
)  # fmt: skip
_POLL_EVERY = 0.5
"""Seconds between two polls of ``drain --wait``."""


def executors(
    *,
    ended: Annotated[bool, typer.Option("--all", help="Include executors that have exited.")] = False,
    as_json: AsJson = False,
    database_url: DatabaseUrl = None,
) -> None:
    """List the executors.

    SILENT is the time since the last heartbeat.
    """
    found = with_connection(database_url, lambda connection: list_executors(connection, ended=ended))
    if as_json:
        print_json(found)
    elif found:
        print_table(_COLUMNS, map(_row, found), numbers=("JOBS", "POOL", "PID", "UP", "SILENT", "REGISTRATION"))
    else:
        say("no executors" if ended else "no executors are alive; --all shows those that have exited")


def notify(
    queue: Annotated[str, typer.Argument(metavar="QUEUE", help="The queue.")] = "default",
    *,
    database_url: DatabaseUrl = None,
) -> None:
    """Ask all executors of a queue to look for work now.

    A submission wakes the executors that it needs. Use this command when work arrived in another way.
    """
    count = with_client(database_url, lambda client: client.notify(queue))
    if count:
        say(f"{count} {'executor' if count == 1 else 'executors'} of the queue {queue} asked to look for work")
    else:
        say(f"no executor takes from the queue {queue}")


def drain(
    app_id: Annotated[str | None, typer.Argument(metavar="APP_ID", help="The executor's app-id.")] = None,
    *,
    every: Annotated[bool, typer.Option("--all", help="All executors.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until they have exited.")] = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Ask an executor to exit.

    It takes no more jobs, finishes the running ones, and exits.
    """
    if (app_id is None) is not every:
        raise ConfigError("drain: give either an app-id ('joex executors' lists them) or --all")

    async def work(connection: Connection) -> None:
        async with connection.transaction():  # while this transaction is open, none of them can exit unseen
            await store.drain(connection, app_id)
            living = {e.id: e.app_id for e in await list_executors(connection) if e.state == "draining"}
        asked = {id_: name for id_, name in living.items() if app_id in (None, name)}
        if app_id is not None and not asked:
            raise JoexError(f"no living executor has the app-id {app_id!r}; 'joex executors' lists them")
        say("\n".join(f"{name} drains" for name in asked.values()) or "no living executors")
        if wait:
            await _wait_until_left(connection, asked)

    with_connection(database_url, work)


async def _wait_until_left(connection: Connection, asked: dict[int, str]) -> None:
    """Wait until these registrations have exited; a successor under the same app-id does not count."""
    waited_for = dict(asked)
    while waited_for:
        living = {e.id for e in await list_executors(connection)}
        for gone in waited_for.keys() - living:
            say(f"{waited_for.pop(gone)} has exited")
        if waited_for:
            await asyncio.sleep(_POLL_EVERY)


def _row(e: Executor) -> tuple[object, ...]:
    up = span((e.left_at - e.started_at).total_seconds()) if e.left_at else ago(e.started_at)
    silent = None if e.left_at else span(e.silent_seconds)
    return (
        e.app_id, e.state, e.held, e.pool_size, e.queues, e.host, e.pid, e.http_address, e.version, up, silent, e.id,
    )  # fmt: skip

"""``joex migrate``."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from joex.cli.database import configured_url, database, migrate_database
from joex.cli.options import DatabaseUrl
from joex.cli.output import say
from joex.store.refused_migrations import LOCK_OUT


def migrate(
    *,
    lock_out: Annotated[
        bool,
        typer.Option(
            LOCK_OUT,
            help="Migrate though living executors are too old for the new schema: they finish their running jobs, "
            "exit, and can't start again.",
        ),
    ] = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Migrate the database to the schema of this version.

    You can repeat it, and run it while executors run. If living executors are too old for the new schema, it names
    them and does nothing.
    """
    with database(configured_url(database_url)) as url:
        applied = asyncio.run(migrate_database(url, lock_out=lock_out))
    for name in applied:
        say(f"applied {name}")
    if not applied:
        say("the schema is up to date")

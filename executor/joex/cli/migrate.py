"""``joex migrate``."""

from __future__ import annotations

import asyncio

from joex.cli.database import configured_url, database, migrate_database
from joex.cli.options import DatabaseUrl
from joex.cli.output import say


def migrate(database_url: DatabaseUrl = None) -> None:
    """Migrate the database to the schema of this version.

    You can repeat it, and run it while executors run.
    """
    with database(configured_url(database_url)) as url:
        applied = asyncio.run(migrate_database(url))
    for name in applied:
        say(f"applied {name}")
    if not applied:
        say("the schema is up to date")

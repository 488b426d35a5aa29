"""The open transactions, whose changes readers can't see yet (`joex.core.recheck`)."""

from __future__ import annotations

from collections.abc import Awaitable

from joex.core.recheck import Recheck
from joex.store.errors import translated
from joex.store.statement import Connection, statement

_HORIZON = statement("SELECT joex.horizon()")
_OLDEST = statement("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint")


async def horizon(connection: Connection) -> int:
    """A transaction id that is younger than all writing transactions; see `horizon` in sql/80_subscribe.sql."""
    with translated():
        return int(await connection.fetchval(_HORIZON))


async def oldest_transaction(connection: Connection) -> int:
    """The oldest open transaction id: all transactions below it have ended."""
    with translated():
        return int(await connection.fetchval(_OLDEST))


async def announce(connection: Connection, announcement: Awaitable[object], **pauses: float) -> Recheck:
    """Await an announcement on this connection, which is in no transaction; returns when to read again after it.

    ``pauses``: those of the `Recheck`, if not its defaults.
    """
    await announcement
    return Recheck(await horizon(connection), **pauses)

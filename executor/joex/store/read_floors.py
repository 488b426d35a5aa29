"""Floors: where takes begin to read while vacuum can't clear the dead rows of jobs; see sql/25_floors.sql."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

from joex.core.lease import ServerStart
from joex.store.errors import translated
from joex.store.executors import SERVER_START
from joex.store.statement import Connection, statement

_SWITCH = statement("SELECT joex_private.switch_floors()")
_DRAW = statement(f"SELECT upto, epoch, writers, {SERVER_START} FROM joex_private.draw_floor()")  # noqa: S608
_FINISHED = statement("SELECT queue, ring, jobs, until FROM joex_private.finished_since($1::timestamptz, $2::integer)")
_CROWDED = statement(
    "SELECT p_queue, p_ring, queues, rings "
    "FROM joex_private.crowded_places($1::text, $2::bigint, $3::integer, $4::double precision)"
)
_HAVE_A_MINUTE = statement("SELECT set_config('statement_timeout', '60s', true)")
_RAISE = statement(f"""
    SELECT CASE WHEN (started_at, statistics_since) = ($6::timestamptz, $7::timestamptz)
                THEN joex_private.raise_floors($1::bigint, $2::bigint, $3::text[], $4::text[], $5::bigint[])
                ELSE false END
    FROM (SELECT {SERVER_START}) s
""")  # noqa: S608 - put together of constants

Place: TypeAlias = tuple[str, int]
"""A group, by its queue and its place on the ring there."""


@dataclass(frozen=True, slots=True)
class Draw:
    """A number from the sequence of seqs, and the transactions that were writing jobs when it was drawn.

    It says nothing on another server, or after a crash: a promoted standby may give the same number to a later job.
    """

    upto: int
    epoch: int
    writers: list[str]
    server: ServerStart


async def switch(connection: Connection) -> bool:
    """Switch floors on or off, as is needed now; returns whether they are on and needed."""
    with translated():
        return bool(await connection.fetchval(_SWITCH))


async def draw(connection: Connection) -> Draw:
    """Draw a number up to which floors can rise once all transactions that write at that moment have ended."""
    with translated():
        row: Any = await connection.fetchrow(_DRAW)
    server = ServerStart(row["started_at"], row["statistics_since"])
    return Draw(row["upto"], row["epoch"], row["writers"], server)


async def finished_since(
    connection: Connection, after: datetime | None, most: int
) -> tuple[dict[Place, int], datetime | None]:
    """How many jobs have finished in each group since then, at most ``most`` in all; and the time of the last one.

    None: since an hour ago, by the server's clock.
    """
    with translated():
        rows = await connection.fetch(_FINISHED, after, most)
    return {(row["queue"], row["ring"]): row["jobs"] for row in rows}, rows[0]["until"] if rows else after


async def crowded_places(connection: Connection, after: Place, crowd: int, seconds: float) -> tuple[list[Place], Place]:
    """Groups after ``after`` where takes walk over more than ``crowd`` dead entries; and where to go on next time.

    It has a minute, whatever `statement_timeout` the role has: one that fails would begin at the same place again.
    """
    with translated():
        async with connection.transaction():
            await connection.execute(_HAVE_A_MINUTE)
            row: Any = await connection.fetchrow(_CROWDED, *after, crowd, seconds)
    return list(zip(row["queues"], row["rings"], strict=True)), (row["p_queue"], row["p_ring"])


async def raise_floors(connection: Connection, drawn: Draw, places: Collection[Place]) -> bool | None:
    """Raise the floors of these groups. None: not yet, or not all; False: the number has expired."""
    with translated():
        done: bool | None = await connection.fetchval(
            _RAISE,
            drawn.upto,
            drawn.epoch,
            drawn.writers,
            [queue for queue, _ in places],
            [ring for _, ring in places],
            *drawn.server,
        )
    return done

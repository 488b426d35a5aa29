"""The audit: who has changed what, and when (see sql/17_audit.sql)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, cast

from pydantic_core import from_json, to_json

from joex.store.errors import translated
from joex.store.statement import Connection, statement

LONGEST_WAIT = "1s"
"""How long an act waits for each lock: it keeps a connection, and the turns of others, while it waits."""
_ACTS = statement("""
    SELECT nr, at, role, caller, act, subject, queue, grp AS "group", detail::text FROM joex.audit
    WHERE $1::timestamptz IS NULL OR at >= $1 ORDER BY nr DESC LIMIT $2::integer
""")
_BEGIN = statement("""
    SELECT current_setting('lock_timeout'), set_config('lock_timeout', $2::text, true),
           set_config('joex.caller', $1::text, true)
""")
_END = statement("SELECT set_config('lock_timeout', $1::text, true)")
_NOTE = statement("SELECT joex_private.note_act($1::text, $2::text, p_detail => $3::text::jsonb)")
_FORGET = statement(
    "SELECT joex_private.forget_acts($1::interval, $2::integer, coalesce($3::timestamptz, '-infinity'))"
)


@dataclass(frozen=True, slots=True)
class Act:
    """What a role did; ``caller``: on whose behalf, as the role says; ``queue``, ``group``: None: it concerns all."""

    nr: int
    at: datetime
    role: str
    caller: str | None
    act: str
    subject: str | None
    queue: str | None
    group: str | None
    detail: dict[str, Any] | None


async def list_acts(connection: Connection, since: datetime | None, most: int) -> list[Act]:
    """The latest acts, the last one first."""
    with translated():
        rows = await connection.fetch(_ACTS, since, most)
    return [Act(**{**row, "detail": row["detail"] and from_json(row["detail"])}) for row in rows]


async def begin(connection: Connection, caller: str) -> str:
    """Begin an act of this transaction, on behalf of the caller: it waits `LONGEST_WAIT` for what another one holds.

    Returns how long the transaction has waited until now: see `end`.
    """
    with translated():
        return str(await connection.fetchval(_BEGIN, caller, LONGEST_WAIT))


async def end(connection: Connection, wait: str) -> None:
    """End an act of a transaction that goes on, and waits for so long again."""
    with translated():
        await connection.execute(_END, wait)


async def note(connection: Connection, act: str, subject: str, detail: dict[str, Any] | None = None) -> None:
    """Note an act that concerns all queues and groups, in the connection's transaction."""
    with translated():
        await connection.execute(_NOTE, act, subject, None if detail is None else to_json(detail).decode())


async def forget(
    connection: Connection, age: timedelta, most: int, *, since: datetime | None = None
) -> datetime | None:
    """Delete a batch of the acts that are older than that; returns where the next batch begins; None: nowhere."""
    with translated():
        return cast("datetime | None", await connection.fetchval(_FORGET, age, most, since))

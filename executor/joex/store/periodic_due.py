"""Periodic tasks that are due, as schedulers read them, and the decisions about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from joex.core.periodic import SYSTEM_OWNER, Decision, Schedule
from joex.store.errors import translated
from joex.store.periodic import TaskKey, columns
from joex.store.statement import Connection, id_of, statement

_DUE = statement("""
    SELECT t.id, t.queue, t.grp, t.revision, t.timer, t.zone, nullif(t.nextrun, '-infinity') AS nextrun, t.last_run,
           t.starting_deadline, clock_timestamp() AS now
    FROM (VALUES (timestamptz '-infinity', timestamptz '-infinity'),
                 ('1970-01-01 00:00+00', statement_timestamp())) k(earliest, latest)
    CROSS JOIN LATERAL (
        SELECT * FROM joex_private.periodic_task
        WHERE enabled AND error IS NULL AND nextrun BETWEEN k.earliest AND k.latest AND owner <> ALL ($1::text[])
              AND (id, queue, grp) NOT IN (SELECT * FROM unnest($2::text[], $3::text[], $4::text[]))
        ORDER BY nextrun LIMIT $5::integer FOR NO KEY UPDATE SKIP LOCKED) t
""")
_IN_TURN = statement("""
    SELECT next_after, id, queue, grp, revision, timer, zone, nullif(nextrun, '-infinity') AS nextrun, last_run,
           starting_deadline, clock_timestamp() AS now
    FROM joex_private.periodic_in_turn($1::integer, $2::text[], $3::text[], $4::text[], $5::text[], $6::text[])
""")
_NEXT = statement("""
    SELECT CASE WHEN nextrun <= statement_timestamp() THEN 0
                ELSE extract(epoch FROM nextrun - statement_timestamp()) END::float8
    FROM joex_private.periodic_task
    WHERE enabled AND error IS NULL AND nextrun < 'infinity' AND owner <> ALL ($1::text[])
          AND (id, queue, grp) NOT IN (SELECT * FROM unnest($2::text[], $3::text[], $4::text[]))
    ORDER BY nextrun LIMIT 1
""")
_CLOCK = statement("SELECT extract(epoch FROM clock_timestamp())::float8")
_AHEAD = statement("""
    SELECT id, queue, grp FROM joex_private.periodic_task
    WHERE enabled AND error IS NULL AND marked > clock_timestamp() + interval '1 minute' AND nextrun > '-infinity'
""")
_RECOMPUTE = statement(f"""
    UPDATE joex_private.periodic_task SET nextrun = '-infinity'
    WHERE (id, queue, grp) IN ({_AHEAD} FOR NO KEY UPDATE SKIP LOCKED)
""")  # noqa: S608 - put together of constants
_FIRE = statement("""
    SELECT id, queue, grp, outcome, job
    FROM joex_private.fire_periodic($1::text, $2::text[], $3::text[], $4::text[], $5::bigint[], $6::timestamptz[],
                                    $7::timestamptz[], $8::timestamptz[], $9::text[])
""")


FIRST_TURN = ("", "")
"""The place of the first group (see `due`)."""


@dataclass(frozen=True, slots=True)
class Due:
    """A task that is due for a decision. ``now`` is the database's time when it was read."""

    key: TaskKey
    revision: int
    schedule: Schedule
    now: datetime


@dataclass(frozen=True, slots=True)
class Fired:
    """What has become of a decision; `fire_periodic` in sql/85_periodic.sql says which outcomes there are."""

    key: TaskKey
    outcome: str
    job: UUID | None


async def due(
    connection: Connection,
    most: int,
    *,
    system: bool = True,
    aside: Sequence[TaskKey] = (),
    after: tuple[str, str] = FIRST_TURN,
) -> tuple[list[Due], tuple[str, str]]:
    """The tasks that need a decision: those without a next time, which owners have changed; then the due ones in order.

    ``most``: of each, so that an owner that changes tasks without end holds up no others. If there may be more, each
    group of a queue has its turn too, from the one after ``after`` (queue, group) on: as many tasks as ``most`` of
    each, divided by the groups. Also returns ``after`` for the next call. ``system``: also Joex's own; ``aside``: not
    these.

    It leaves out tasks whose rows another session has locked, so that they don't block the others.
    """
    which = (_left_out(system), *columns(aside))
    with translated():
        rows = await connection.fetch(_DUE, *which, most)
        if len(rows) >= most:
            turns = await connection.fetch(_IN_TURN, most, after, *which)
            queue, group = turns[0]["next_after"]
            after = queue, group
            rows = [*rows, *(row for row in turns if row["id"] is not None)]
    found = {
        (key := TaskKey(row["id"], row["queue"], row["grp"])): Due(
            key,
            row["revision"],
            Schedule(row["timer"], row["zone"], row["nextrun"], row["last_run"], row["starting_deadline"]),
            row["now"],
        )
        for row in rows
    }
    return list(found.values()), after


async def next_in(connection: Connection, *, system: bool = True, aside: Sequence[TaskKey] = ()) -> float | None:
    """Seconds until the next task is due (0: it is); None: there is none. The rest is as with `due`."""
    with translated():
        found: float | None = await connection.fetchval(_NEXT, _left_out(system), *columns(aside))
    return found


async def clock(connection: Connection) -> float:
    """The time of the database's clock, in seconds since 1970."""
    with translated():
        return float(await connection.fetchval(_CLOCK))


async def recompute(connection: Connection) -> bool:
    """Have next times computed again that came from a database clock that was set back since.

    Returns whether these are all: it leaves out tasks whose rows another session has locked.
    """
    with translated():
        await connection.execute(_RECOMPUTE)
        return await connection.fetchrow(_AHEAD) is None


async def fire(connection: Connection, worker: str, decided: Sequence[tuple[Due, Decision]]) -> list[Fired]:
    """Carry out decisions, unless another process was faster. Empty: another process does so at this moment."""
    with translated():
        rows = await connection.fetch(
            _FIRE,
            worker,
            *columns([due.key for due, _ in decided]),
            [due.revision for due, _ in decided],
            [due.schedule.nextrun for due, _ in decided],
            [decision.fire for _, decision in decided],
            [decision.next for _, decision in decided],
            [decision.error for _, decision in decided],
        )
    return [Fired(TaskKey(row["id"], row["queue"], row["grp"]), row["outcome"], id_of(row["job"])) for row in rows]


def _left_out(system: bool) -> list[str]:  # noqa: FBT001 - passed on
    return [] if system else [SYSTEM_OWNER]

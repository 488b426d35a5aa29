"""A job is in exactly one of four places, and its state fits: the database refuses everything else."""

import itertools
from typing import NamedTuple

import asyncpg
import pytest

from joex.core.job import State

pytestmark = pytest.mark.postgres(16, 18)

STATES_IN: dict[str | int, set[str]] = {
    "finished": {"cancelled", "failed", "success"},
    "held": {"scheduled", "running"},
    "due": {"waiting", "stuck"},
    0: {"stuck"},
    1: {"waiting"},
    2: {"waiting"},
}


class Flags(NamedTuple):
    """The columns of a row that are set."""

    due: bool
    held: bool
    finished: bool
    locked: bool
    overdue: bool


def fits(state: str, lane: int | None, flags: Flags) -> bool:
    """The rules of the schema's types, written in another way."""
    places: list[str | int] = [name for name in ("due", "held", "finished") if getattr(flags, name)]
    places += [] if lane is None else [lane]
    if len(places) != 1 or (flags.held and not flags.locked) or (flags.overdue and not flags.held):
        return False
    return state in STATES_IN.get(places[0], set())


async def test_a_row_is_in_one_place_with_a_state_that_fits_and_all_else_is_refused(bench):
    job_id = await bench.submit()
    allowed = 0
    lanes = (None, -1, 0, 1, 2, 3)
    all_flags = [Flags(*flags) for flags in itertools.product((False, True), repeat=5)]
    for state, lane, flags in itertools.product(State, lanes, all_flags):
        change = bench.connection.execute(
            """
            UPDATE joex_private.job SET state = $2::text::joex_private.job_state, lane = $3::smallint,
                due_at = CASE WHEN $4 THEN now() END, executor_id = CASE WHEN $5 THEN 1 END,
                finished_at = CASE WHEN $6 THEN now() END, lock_id = CASE WHEN $7 THEN id END,
                overdue_at = CASE WHEN $8 THEN now() END
            WHERE id = $1
            """,
            *(job_id, str(state), lane, *flags),
        )
        if fits(state, lane, flags):
            await change
            allowed += 1
        else:
            with pytest.raises(asyncpg.CheckViolationError, match=r"job_is_in_one_place|job_only_a_run|job_state_fits"):
                await change
    assert allowed == 2 * (3 + 2 + 3) + 4


async def test_a_row_stays_at_the_place_of_its_group_on_the_ring_and_moves_with_it(bench):
    job_id = await bench.submit("a")
    place = "SELECT ring FROM joex_private.job WHERE id = $1"
    first = await bench.connection.fetchval(place, job_id)
    await bench.connection.execute("UPDATE joex_private.job SET ring = ring + 1 WHERE id = $1", job_id)
    assert await bench.connection.fetchval(place, job_id) == first
    await bench.connection.execute("UPDATE joex_private.job SET grp = 'b' WHERE id = $1", job_id)
    moved = await bench.connection.fetchval(place, job_id)
    assert moved == await bench.connection.fetchval("SELECT joex_private.ring('b')") != first


async def test_each_database_has_places_of_its_own(bench):
    """No program outside can compute which names share a place: each database has a secret key of 32 bytes."""
    there = await bench.connection.fetchval("SELECT joex_private.ring('a')")
    change = "UPDATE joex_private.this_database SET ring_key = $1 RETURNING length(ring_key)"
    before = await bench.connection.fetchval("SELECT ring_key FROM joex_private.this_database")
    assert await bench.connection.fetchval(change, bytes(32)) == len(before) == 32
    assert await bench.connection.fetchval("SELECT joex_private.ring('a')") != there
    await bench.connection.execute(change, before)


async def test_a_database_that_has_lost_its_key_refuses_jobs_and_loses_none(bench):
    row = await bench.connection.fetchrow("DELETE FROM joex_private.this_database RETURNING ring_key, events_channel")
    calls = ("joex.submit('a')", "joex.submit_many('{a}')", "joex.submit_many('{a}', trackers => '{t}')")
    for call in (*calls, r"joex_client.add('a', '\x0161')"):
        with pytest.raises(asyncpg.PostgresError, match=r"lost its row|null value in column .ring"):
            await bench.connection.execute(f"SELECT {call}")
    await bench.connection.execute(
        "INSERT INTO joex_private.this_database (ring_key, events_channel) VALUES ($1, $2)", *row
    )
    assert await bench.connection.fetchval("SELECT count(*) FROM joex_private.job") == 0

"""The jobs for which an operator sizes a pool: of each group, paused or limited, as many as it has room for."""

from dataclasses import dataclass
from typing import Any

import asyncpg
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.soak import examples

OTHER_QUEUE = "mail"


@dataclass(frozen=True)
class Group:
    """A group of the queue: how many of its jobs wait and run, and its settings."""

    waiting: int
    running: int
    paused: bool
    max_running: int | None

    @property
    def demand(self) -> int:
        """How many of its jobs an executor could take now."""
        room = self.waiting if self.max_running is None else max(self.max_running - self.running, 0)
        return 0 if self.paused else min(self.waiting, room)


groups = st.builds(
    Group,
    waiting=st.integers(0, 4),
    running=st.integers(0, 3),
    paused=st.sampled_from([False, False, False, True]),
    max_running=st.sampled_from([None, None, 0, 1, 2, 5]),
)


@settings(max_examples=examples(120), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(some=st.lists(groups, max_size=10), most=st.integers(1, 30))
async def test_the_demand_is_the_sum_of_what_each_group_has_room_for(
    connection: asyncpg.Connection, some: list[Group], most: int
) -> None:
    await _write(connection, some)
    found = await connection.fetchval("SELECT joex_private.demand_by_group('default', $1)", most)
    assert found == min(sum(group.demand for group in some), most)


async def _write(connection: asyncpg.Connection, some: list[Group]) -> None:
    """Write these groups, and in another queue a job and a limit for each of their names."""
    jobs: list[tuple[Any, ...]] = []
    for nr, group in enumerate(some):
        jobs += [("default", f"g{nr}", 2, None, "waiting")] * group.waiting
        jobs += [("default", f"g{nr}", None, 1, "running")] * group.running
        jobs.append((OTHER_QUEUE, f"g{nr}", 2, None, "waiting"))
    await connection.execute("TRUNCATE joex_private.job, joex_private.group_setting")
    await connection.execute(
        """
        INSERT INTO joex_private.job (task, queue, grp, lane, executor_id, lock_id, state)
        SELECT 'a', queue, grp, lane, executor_id, gen_random_uuid(), state::joex_private.job_state
        FROM unnest($1::text[], $2::text[], $3::smallint[], $4::integer[], $5::text[])
             AS j(queue, grp, lane, executor_id, state)
        """,
        *([job[at] for job in jobs] for at in range(5)),
    )
    await connection.executemany(
        "INSERT INTO joex_private.group_setting (queue, grp, ring, paused, max_running) "
        "VALUES ($1, $2, joex_private.ring($2), $3, $4)",
        [("default", f"g{nr}", group.paused, group.max_running) for nr, group in enumerate(some)]
        + [(OTHER_QUEUE, f"g{nr}", True, 0) for nr in range(len(some))],
    )

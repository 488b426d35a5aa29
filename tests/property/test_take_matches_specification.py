"""`take` in the database and core/fairness.py choose the same jobs in the same order, in any situation."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from joex.core import tuples
from joex.core.fairness import Cursor, Group, take
from joex.core.priority_turns import CountingScheme
from joex.store import runs
from joex.store.database import connect
from tests.support.soak import examples

QUEUE = "default"
NEVER = -(2**63)  # the cursor of a queue before its first take


@dataclass(frozen=True)
class GroupPlan:
    """A group before the first take: its settings, jobs that another executor holds, and its counting scheme."""

    name: str
    weight: int
    paused: bool
    max_running: int | None
    held: int
    turn: int


@dataclass(frozen=True)
class Take:
    """Take this many jobs."""

    free: int


@dataclass(frozen=True)
class Finish:
    """Finish some held jobs: those at these places of the list of all held jobs."""

    which: list[int]


@dataclass(frozen=True)
class Submit:
    """Submit jobs: (number of the group, lane, rank) each."""

    jobs: list[tuple[int, int, int]]


@dataclass(frozen=True)
class Plan:
    """The steps, in order. The cursor is at a group (by number), after this many services there."""

    groups: list[GroupPlan]
    cursor: tuple[int, int] | None
    scheme: CountingScheme
    steps: list[Any]


group_plans = st.builds(
    GroupPlan,
    name=st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8),
    weight=st.sampled_from([1, 1, 1, 2, 3, 5, 100]),
    paused=st.sampled_from([False] * 7 + [True]),
    max_running=st.sampled_from([None, None, None, 0, 1, 2, 3, 7]),
    held=st.sampled_from([0, 0, 0, 0, 0, 1, 2, 5]),
    turn=st.integers(0, 7),
)


@st.composite
def plans(draw):
    groups = draw(st.lists(group_plans, min_size=1, max_size=12, unique_by=lambda group: group.name))
    ranks = st.sampled_from([0, 0, 0, 1, 2, 300])
    jobs = st.tuples(st.integers(0, len(groups) - 1), st.integers(0, 2), ranks)
    submits = st.builds(Submit, st.lists(jobs, max_size=60))
    takes = st.builds(Take, st.integers(1, 20))
    finishes = st.builds(Finish, st.lists(st.integers(0, 200), max_size=20))
    return Plan(
        groups,
        draw(st.none() | st.tuples(st.integers(0, len(groups) - 1), st.integers(0, 6))),
        draw(st.builds(CountingScheme, st.integers(1, 5), st.integers(1, 3))),
        [draw(submits), *draw(st.lists(takes | finishes | submits | takes, max_size=6)), draw(takes)],
    )


class Sides:
    """The database and the specification, side by side."""

    def __init__(self, connection, me: int, other: int) -> None:
        self.connection = connection
        self.me = me
        self.other = other
        self.held: list[int] = []
        self.ranks: dict[int, int] = {}
        self.next_seq = 1

    async def prepare(self, plan: Plan) -> None:
        self.plan = plan
        names = [group.name for group in plan.groups]
        places = await self.connection.fetchval(
            "SELECT array_agg(joex_private.ring(name) ORDER BY nr) FROM unnest($1::text[]) WITH ORDINALITY g(name, nr)",
            names,
        )
        self.groups = [
            Group(
                place=place,
                weight=group.weight,
                paused=group.paused,
                max_running=group.max_running,
                turn=group.turn % plan.scheme.cycle,
            )
            for place, group in zip(places, plan.groups, strict=True)
        ]
        place, served = (places[plan.cursor[0]], plan.cursor[1]) if plan.cursor else (NEVER >> 8, 0)
        self.cursor = Cursor(place, served)
        await self.connection.execute(
            "TRUNCATE joex_private.job, joex_private.group_setting, joex_private.priority_turns, joex_private.plan"
        )
        await self.connection.execute(
            "SELECT setval(cursor, $1, $2) FROM joex_private.queue", place * 256 + served, plan.cursor is not None
        )
        await self.connection.executemany(
            "INSERT INTO joex_private.group_setting (queue, grp, ring, weight, paused, max_running) "
            "VALUES ($1, $2, joex_private.ring($2), $3, $4, $5)",
            [
                (QUEUE, g.name, g.weight, g.paused, g.max_running)
                for g in plan.groups
                if (g.weight, g.paused, g.max_running) != (1, False, None)
            ],
        )
        await self.connection.executemany(
            "INSERT INTO joex_private.priority_turns (queue, ring, position) VALUES ($1, $2, $3)",
            [(QUEUE, place, g.turn) for place, g in zip(places, plan.groups, strict=True) if g.turn],
        )
        await self._insert([(number, None, 0) for number, g in enumerate(plan.groups) for _ in range(g.held)])
        for group, g in zip(self.groups, plan.groups, strict=True):
            group.running = g.held

    async def step(self, step: Any) -> None:
        match step:
            case Take(free):
                await self._take(free)
            case Finish(which):
                await self._finish({self.held[nr % len(self.held)] for nr in which if self.held})
            case Submit(jobs):
                for (number, lane, rank), seq in zip(jobs, await self._insert(jobs), strict=True):
                    self.ranks[seq] = rank
                    self.lanes(number)[lane].append(seq)
                    self.lanes(number)[lane].sort(key=lambda seq: (self.ranks[seq], seq))

    async def _take(self, free: int) -> None:
        scheme = self.plan.scheme
        lanes = {seq: (number, lane) for number in range(len(self.groups))
                 for lane, jobs in enumerate(self.lanes(number)) for seq in jobs}  # fmt: skip
        expected, self.cursor = take(self.groups, self.cursor, free, scheme)
        taken = await runs.take(self.connection, self.me, [QUEUE], free, scheme)
        assert [lanes[job.seq] + (job.seq,) for job in taken] == [lanes[seq] + (seq,) for seq in expected]
        self.held += expected
        await self._compare_state()

    async def _compare_state(self) -> None:
        last = await self.connection.fetchval("SELECT pg_sequence_last_value(cursor) FROM joex_private.queue")
        found = Cursor(last >> 8, last & 255) if last is not None else Cursor(NEVER >> 8, 0)
        assert found == self.cursor
        counting = {
            row["ring"]: row["position"] for row in await self.connection.fetch("TABLE joex_private.priority_turns")
        }
        cycle = self.plan.scheme.cycle
        assert [counting.get(g.place, 0) % cycle for g in self.groups] == [g.turn % cycle for g in self.groups]
        held = await self.connection.fetch(
            "SELECT seq FROM joex_private.job WHERE executor_id IS NOT NULL ORDER BY seq"
        )
        assert [row["seq"] for row in held] == sorted(self.held)

    async def _finish(self, seqs: set[int]) -> None:
        rows = await self.connection.fetch(
            "UPDATE joex_private.job SET executor_id = NULL, finished_at = now(), state = 'success' "
            "WHERE seq = ANY ($1) "
            "RETURNING ring",
            list(seqs),
        )
        self.held = [seq for seq in self.held if seq not in seqs]
        for row in rows:
            next(group for group in self.groups if group.place == row["ring"]).running -= 1

    async def _insert(self, jobs: Sequence[tuple[int, int | None, int]]) -> list[int]:
        """Jobs of (number of a group, lane, rank); those without a lane are held by the other executor."""
        seqs = [self.next_seq + nr for nr in range(len(jobs))]
        self.next_seq += len(jobs)
        await self._write(self.connection, seqs, jobs)
        self.held += [seq for seq, (_, lane, _) in zip(seqs, jobs, strict=True) if lane is None]
        return seqs

    async def _write(self, connection, seqs: list[int], jobs: Sequence[tuple[int, int | None, int]]) -> None:
        await connection.execute(
            """
            INSERT INTO joex_private.job (seq, task, grp, lane, executor_id, lock_id, state, priority, rank)
            SELECT seq, 'a', grp, lane, CASE WHEN lane IS NULL THEN $4::integer END, gen_random_uuid(),
                   CASE WHEN lane IS NULL THEN 'running' WHEN lane = 0 THEN 'stuck' ELSE 'waiting' END
                       ::joex_private.job_state,
                   CASE lane WHEN 1 THEN 'high' ELSE 'low' END::joex_private.job_priority, rank
            FROM unnest($1::bigint[], $2::text[], $3::smallint[], $5::bytea[]) AS j(seq, grp, lane, rank)
            """,
            seqs,
            [self.plan.groups[number].name for number, *_ in jobs],
            [lane for _, lane, _ in jobs],
            self.other,
            [tuples.pack("priority", rank) if rank else b"" for *_, rank in jobs],
        )

    def lanes(self, number: int) -> list[list[int]]:
        group = self.groups[number]
        return [group.due, group.high, group.low]


@pytest.fixture
async def sides(connection):
    """Two executors of the queue: one that takes, and one that holds the jobs of other executors."""
    await connection.execute("SET synchronous_commit = off")
    ids = [
        await connection.fetchval(
            "SELECT id FROM joex_private.register($1, NULL, 'h', '', 1, '', '0', ARRAY[$2], '{}', 20, NULL, '1h', "
            "false, 5)",
            name,
            QUEUE,
        )
        for name in ("me", "other")
    ]
    return connection, *ids


@pytest.fixture
async def other(database_url):
    """Another session."""
    session = await connect(database_url)
    yield session
    await session.close()


# All examples may share the fixtures, because each begins with empty tables.
one_database = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


def plain_group(name: str, weight: int = 1, held: int = 0) -> GroupPlan:
    return GroupPlan(name, weight, paused=False, max_running=None, held=held, turn=0)


# Situations that random plans meet rarely: a group whose visit is under way is served again in a later pass of the same
# call, after groups that had too few jobs; there are more idle groups than free slots; groups with large weights have
# fewer jobs than turns, so that the free slots reach groups further on, but no second turn of any group; nor of a group
# whose visit has ended meanwhile.
VISIT_IN_A_LATER_PASS = Plan(
    [plain_group("000", weight=2, held=1), plain_group("00", weight=2), plain_group("0")],
    None,
    CountingScheme(1, 1),
    [Submit([(0, 0, 0), (0, 0, 0)]), Take(1), Submit([(1, 0, 0)]), Take(2)],
)
MORE_GROUPS_THAN_SLOTS = Plan(
    [plain_group(f"g{nr}") for nr in range(12)],
    None,
    CountingScheme(4, 1),
    [Submit([(nr % 12, 2, 0) for nr in range(36)]), Take(10), Take(10), Finish(list(range(20))), Take(10)],
)
FEWER_JOBS_THAN_TURNS = Plan(
    [plain_group(name, weight) for name, weight in (("1", 1), ("2", 1), ("00000", 3), ("0", 5))],
    None,
    CountingScheme(1, 1),
    [Submit([(0, 0, 0), (0, 0, 0), (1, 0, 0), (1, 0, 0), *[(2, 0, 0)] * 4, (3, 0, 0)]), Take(8)],
)
FEWER_JOBS_THAN_PLANNED = Plan(
    [plain_group("1"), plain_group("2", weight=3), plain_group("3")],
    None,
    CountingScheme(1, 1),
    [Submit([(0, 0, 0), (0, 0, 0), (1, 0, 0), (2, 0, 0), (2, 0, 0)])],
)
VISIT_THAT_ENDS = Plan(
    [plain_group(name, weight) for name, weight in (("1", 1), ("Ü", 2), ("00", 2))],
    (2, 1),
    CountingScheme(1, 1),
    [Submit([(0, 0, 0), (1, 0, 0), (2, 0, 0), (2, 0, 0)]), Take(3)],
)

BOTH_PRIORITIES_OF_TWO, BOTH_PRIORITIES_OF_TWELVE = (
    Plan(
        [plain_group(f"g{nr}") for nr in range(groups)],
        (groups - 1, 1),
        CountingScheme(4, 1),
        [Submit([(nr, lane, 0) for nr in range(groups) for lane in (1, 2)])],
    )
    for groups in (2, 12)
)


@settings(max_examples=examples(400), suppress_health_check=one_database)
@given(plan=plans())
@example(plan=VISIT_IN_A_LATER_PASS)
@example(plan=MORE_GROUPS_THAN_SLOTS)
@example(plan=FEWER_JOBS_THAN_TURNS)
@example(plan=VISIT_THAT_ENDS)
@pytest.mark.postgres(18)
async def test_the_database_takes_the_very_jobs_that_the_specification_takes(sides, plan):
    await play(Sides(*sides), plan)


@settings(max_examples=examples(50), suppress_health_check=one_database)
@given(plan=plans())
@pytest.mark.postgres(16)
async def test_the_oldest_supported_server_takes_them_too(sides, plan):
    await play(Sides(*sides), plan)


@settings(max_examples=examples(100), suppress_health_check=one_database)
@example(plan=BOTH_PRIORITIES_OF_TWO, locked={0}, free=1)
@example(plan=BOTH_PRIORITIES_OF_TWELVE, locked=set(range(11)), free=1)
@example(plan=BOTH_PRIORITIES_OF_TWELVE, locked=set(range(1, 9)), free=3)
@given(plan=plans(), locked=st.sets(st.integers(0, 11), min_size=1), free=st.integers(1, 20))
@pytest.mark.postgres(18)
async def test_groups_whose_jobs_another_transaction_has_locked_are_passed_over_as_if_they_had_none(
    sides, other, plan, locked, free
):
    pair = Sides(*sides)
    await play(pair, plan)
    for number in locked:
        for jobs in pair.lanes(number) if number < len(plan.groups) else []:
            jobs.clear()
    async with other.transaction():
        names = [plan.groups[number].name for number in locked if number < len(plan.groups)]
        await other.execute("SELECT FROM joex_private.job WHERE lane IS NOT NULL AND grp = ANY ($1) FOR UPDATE", names)
        await pair.step(Take(free))


@settings(max_examples=examples(200), suppress_health_check=one_database)
@example(plan=FEWER_JOBS_THAN_PLANNED, ahead=4, frees=[3, 1])
@given(plan=plans(), ahead=st.integers(2, 60), frees=st.lists(st.integers(1, 8), min_size=1, max_size=20))
@pytest.mark.postgres(18)
async def test_takes_by_a_plan_are_together_one_take_of_its_length(sides, plan, ahead, frees):
    pair = Sides(*sides)
    await pair.prepare(plan)
    await pair.step(plan.steps[0])
    await pair.connection.execute(
        "INSERT INTO joex_private.plan (queue, first, tids, cursors, turns, ahead, renew_at) "
        "SELECT name, nextval(drawn) + 1, '{}', '{}', '{}', $1::integer, now() FROM joex_private.queue",
        ahead,
    )
    expected, _ = take(pair.groups, pair.cursor, ahead, plan.scheme)
    taken: list[int] = []
    left = ahead
    while frees and left:
        jobs = await runs.take(pair.connection, pair.me, [QUEUE], frees.pop(), plan.scheme)
        # (Groups with fewer jobs than turns make a plan shorter. After its end a take chooses anew.)
        taken += [job.seq for job in jobs[:left]]
        left = max(await pair.connection.fetchval(ENTRIES_LEFT), 0)
        await pair.connection.execute("UPDATE joex_private.plan SET renew_at = 'infinity'")
    assert taken[:ahead] == expected[: len(taken)]


ENTRIES_LEFT = """
    SELECT p.first + cardinality(p.tids) - 1 - pg_sequence_last_value(q.drawn)
    FROM joex_private.plan p JOIN joex_private.queue q ON q.name = p.queue
"""


async def play(pair: Sides, plan: Plan) -> None:
    await pair.prepare(plan)
    for step in plan.steps:
        await pair.step(step)

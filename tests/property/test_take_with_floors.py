"""With floors too, the database takes the same jobs as the specification, and skips none.

Between the takes a session draws and raises floors, while another transaction writes jobs and ends at any time; jobs
are put back, retried, and change their priority below the floors; takes are rolled back; floors go off and on.
"""

from collections.abc import Sequence
from contextlib import asynccontextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from joex.core.fairness import take
from joex.core.priority_turns import CountingScheme
from joex.store import jobs, read_floors, runs
from joex.store.database import connect
from tests.property.test_take_matches_specification import (
    QUEUE,
    Finish,
    Plan,
    Sides,
    Submit,
    Take,
    one_database,
    plain_group,
    plans,
)
from tests.support.soak import examples

places = st.lists(st.integers(0, 200), max_size=10)


@dataclass(frozen=True)
class Draw:
    """Draw a number for floors."""


@dataclass(frozen=True)
class Raise:
    """Raise the floors of some groups, up to the number that was drawn last, if that is allowed."""

    which: list[int]


@dataclass(frozen=True)
class Switch:
    """Switch floors off, by half or wholly; or on again."""

    wanted: bool


@dataclass(frozen=True)
class PutBack:
    """Put back some held jobs."""

    which: list[int]


@dataclass(frozen=True)
class Retry:
    """Some held jobs fail, and are due again at once."""

    which: list[int]


@dataclass(frozen=True)
class Turn:
    """Some waiting jobs change their priority."""

    which: list[int]


@dataclass(frozen=True)
class UndoneTake:
    """A take that is rolled back."""

    free: int


@dataclass(frozen=True)
class Late:
    """A transaction that stays open puts back some held jobs, and submits others."""

    which: list[int]
    jobs: list[tuple[int, int, int]]


@dataclass(frozen=True)
class LateEnd:
    """That transaction ends."""

    commit: bool = True


@st.composite
def plans_with_floors(draw):
    plan = draw(plans())
    numbers = st.tuples(st.integers(0, len(plan.groups) - 1), st.integers(0, 2), st.sampled_from([0, 0, 0, 1, 300]))
    more = st.one_of(
        st.builds(Draw),
        st.builds(Raise, places),
        st.builds(Raise, st.just(list(range(12)))),
        st.builds(Switch, st.sampled_from([True, True, False])),
        st.builds(PutBack, places),
        st.builds(Retry, places),
        st.builds(Turn, places),
        st.builds(UndoneTake, st.integers(1, 20)),
        st.builds(Late, places, st.lists(numbers, max_size=10)),
        st.builds(LateEnd, st.booleans()),
        st.builds(Take, st.integers(1, 20)),
        st.builds(Submit, st.lists(numbers, max_size=20)),
        st.builds(Finish, places),
    )
    steps = draw(st.lists(more, max_size=25))
    return replace(plan, steps=[plan.steps[0], Draw(), Raise(list(range(12))), *steps, LateEnd(), Take(20)])


class SidesWithFloors(Sides):
    """The database with floors, and the specification, which has no floors."""

    def __init__(self, connection, me: int, other: int, late) -> None:
        super().__init__(connection, me, other)
        self.late = late

    async def prepare(self, plan: Plan) -> None:
        await self.connection.execute("""
            TRUNCATE joex_private.floor, joex_private.floor_exception RESTART IDENTITY;
            SELECT setval('joex_private.floor_epoch', 1), setval('joex_private.job_seq_seq', 1, false)""")
        self.drawn: read_floors.Draw | None = None
        self.is_waiting_for_late = False
        self.priorities: dict[int, int] = {}
        self.transaction: Any = None
        await super().prepare(plan)

    async def step(self, step: Any) -> None:
        match step:
            case Draw():
                self.drawn = await read_floors.draw(self.connection)
                self.is_waiting_for_late = self.transaction is not None
            case Raise(which):
                await self._raise(which)
            case Switch(wanted):
                async with self.connection.transaction():
                    await self.connection.execute("SELECT joex_private.set_floors($1)", wanted)
            case PutBack(which):
                await self._put_back(self._some_held(which))
            case Retry(which):
                await self._retry(self._some_held(which))
            case Turn(which):
                await self._turn(which)
            case UndoneTake(free):
                await self._take_and_undo(free)
            case Late(which, new):
                await self._begin_late(which, new)
            case LateEnd(commit):
                await self._end_late(commit=commit)
            case _:
                await super().step(step)

    async def _raise(self, which: list[int]) -> None:
        if self.drawn is None:
            return
        some = [(QUEUE, self.groups[nr % len(self.groups)].place) for nr in which]
        epoch = await self.connection.fetchval("SELECT joex_private.floor_epoch()")
        expected = False if epoch % 2 == 0 or epoch != self.drawn.epoch else None if self.is_waiting_for_late else True
        assert await read_floors.raise_floors(self.connection, self.drawn, some) is expected

    async def _insert(self, jobs: Sequence[tuple[int, int | None, int]]) -> list[int]:
        self.next_seq = await self.connection.fetchval(
            "SELECT max(nextval('joex_private.job_seq_seq')) - $1 + 1 "
            "FROM generate_series(1, greatest($1, 1)::integer)",
            len(jobs),
        )
        seqs = await super()._insert(jobs)
        self._note(seqs, jobs)
        return seqs

    def _note(self, seqs: list[int], jobs: Sequence[tuple[int, int | None, int]]) -> None:
        for seq, (_, lane, rank) in zip(seqs, jobs, strict=True):
            self.ranks[seq] = rank
            self.priorities[seq] = 1 if lane == 1 else 2  # the lane in which it waits when it is put back

    def _some_held(self, which: list[int]) -> set[int]:
        return {self.held[nr % len(self.held)] for nr in which if self.held}

    async def _ids(self, seqs: set[int]) -> list[Any]:
        return [
            row[0] for row in await self.connection.fetch("SELECT id FROM joex_private.job WHERE seq = ANY ($1)", seqs)
        ]

    async def _put_back(self, seqs: set[int]) -> None:
        await self.connection.execute("SELECT joex_private.put_back($1, 0, NULL, NULL)", await self._ids(seqs))
        await self._wait_again(seqs, lambda seq: self.priorities[seq])

    async def _retry(self, seqs: set[int]) -> None:
        rows = await self.connection.fetch("SELECT id, lock_id FROM joex_private.job WHERE seq = ANY ($1)", seqs)
        if rows:
            ended = [runs.EndedRun(row["id"], row["lock_id"], "stuck", delay=0.0) for row in rows]
            assert await runs.finish_many(self.connection, ended) == []
        await self.connection.execute("SELECT joex_private.promote($1)", QUEUE)
        await self._wait_again(seqs, lambda _: 0)

    async def _wait_again(self, seqs: set[int], lane: Any) -> None:
        places = await self.connection.fetch("SELECT seq, ring FROM joex_private.job WHERE seq = ANY ($1)", seqs)
        for seq, place in places:
            group = next(group for group in self.groups if group.place == place)
            group.running -= seq in self.held
            self._enter([group.due, group.high, group.low][lane(seq)], seq)
        self.held = [seq for seq in self.held if seq not in seqs]

    def _enter(self, lane: list[int], seq: int) -> None:
        lane.append(seq)
        lane.sort(key=lambda seq: (self.ranks[seq], seq))

    async def _turn(self, which: list[int]) -> None:
        for nr in which:
            group = self.groups[nr % len(self.groups)]
            lane, other = (group.high, group.low) if group.high else (group.low, group.high)
            if lane:
                seq = lane.pop(nr % len(lane))
                self.priorities[seq] = 3 - self.priorities[seq]
                [job_id] = await self._ids({seq})
                assert await jobs.set_priority(self.connection, job_id, "high" if other is group.high else "low")
                self._enter(other, seq)

    async def _take_and_undo(self, free: int) -> None:
        _, self.cursor = take(deepcopy(self.groups), self.cursor, free, self.plan.scheme)
        transaction = self.connection.transaction()
        await transaction.start()
        await runs.take(self.connection, self.me, [QUEUE], free, self.plan.scheme)
        await transaction.rollback()

    async def _begin_late(self, which: list[int], new: list[tuple[int, int, int]]) -> None:
        if self.transaction is None:
            self.transaction = self.late.transaction()
            await self.transaction.start()
            self.late_back: set[int] = set()
            self.late_new: list[tuple[int, tuple[int, int, int]]] = []
        back = self._some_held(which)
        await self.late.execute("SELECT joex_private.put_back($1, 0, NULL, NULL)", await self._ids(back))
        self.held = [
            seq for seq in self.held if seq not in back
        ]  # they are locked, so no other transaction may touch them
        self.late_back |= back
        if new:
            # (the lock first, and then the numbers, as in each statement that submits)
            await self.late.execute("LOCK TABLE joex_private.job IN ROW EXCLUSIVE MODE")
            rows = await self.late.fetch(
                "SELECT nextval('joex_private.job_seq_seq') FROM generate_series(1, $1::integer)", len(new)
            )
            seqs = [row[0] for row in rows]
            await self._write(self.late, seqs, new)
            self._note(seqs, new)
            self.late_new += zip(seqs, new, strict=True)

    async def _end_late(self, *, commit: bool) -> None:
        if self.transaction is None:
            return
        await (self.transaction.commit() if commit else self.transaction.rollback())
        self.transaction, self.is_waiting_for_late = None, False
        self.held += sorted(self.late_back)
        if commit:
            await self._wait_again(self.late_back, lambda seq: self.priorities[seq])
            for seq, (number, lane, _) in self.late_new:
                self._enter(self.lanes(number)[lane], seq)

    async def _compare_state(self) -> None:
        still = self.held
        if self.transaction is not None:
            self.held = [*self.held, *self.late_back]
        await super()._compare_state()
        self.held = still


@pytest.fixture
async def sides(connection, database_url):
    """Two executors of the queue, as for the test without floors, and another connection."""
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
    late = await connect(database_url)
    yield connection, *ids, late
    await late.close()


LATE_COMMIT = Plan(
    [plain_group("a"), plain_group("b")],
    None,
    CountingScheme(4, 1),
    [Submit([(0, 2, 0), (1, 2, 0)]), Late([], [(0, 2, 0)]), Submit([(0, 2, 0)] * 3), Draw(), Take(3), Raise([0, 1]),
     LateEnd(), Raise([0, 1]), Take(2), Take(2)],
)  # fmt: skip
PUT_BACK_BELOW_THE_FLOOR = Plan(
    [plain_group("a", held=2), plain_group("b")],
    None,
    CountingScheme(4, 1),
    [Submit([(0, 2, 0)] * 3), Draw(), Raise([0, 1]), Late([0], []), Take(2), Draw(), PutBack([0]), Take(1), LateEnd(),
     Raise([0, 1]), Take(5)],
)  # fmt: skip


@asynccontextmanager
async def played(pair, plan: Plan):
    """The end of a plan."""
    sides = SidesWithFloors(*pair)
    try:
        await sides.prepare(plan)
        for step in plan.steps:
            await sides.step(step)
        yield sides
    finally:
        await sides._end_late(commit=False)


@settings(max_examples=examples(400), suppress_health_check=one_database)
@given(plan=plans_with_floors())
@example(plan=LATE_COMMIT)
@example(plan=PUT_BACK_BELOW_THE_FLOOR)
@pytest.mark.postgres(18)
async def test_with_floors_the_very_jobs_are_taken_that_the_specification_takes(sides, plan):
    async with played(sides, plan):
        pass


@settings(max_examples=examples(50), suppress_health_check=one_database)
@given(plan=plans_with_floors())
@pytest.mark.postgres(16)
async def test_the_oldest_supported_server_takes_them_with_floors_too(sides, plan):
    async with played(sides, plan):
        pass

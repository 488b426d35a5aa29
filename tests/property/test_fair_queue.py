"""The fair queue takes what core/fairness.py specifies, in any situation."""

from bisect import insort
from copy import deepcopy

from hypothesis import example, given, settings
from hypothesis import strategies as st

from joex.core.fair_queue import FairQueue, Lane
from joex.core.fairness import Cursor, Group, take
from joex.core.priority_turns import CountingScheme
from tests.support.soak import examples

PLACES = st.integers(0, 12)
weights = st.sampled_from([1, 1, 1, 2, 3, 7, 100])
limits = st.sampled_from([None, None, None, 0, 1, 2, 5])
pauses = st.sampled_from([False, False, False, True])
jobs = st.integers(0, 999)
schemes = st.builds(CountingScheme, st.integers(1, 4), st.integers(1, 3))

groups_of = st.lists(
    st.builds(
        Group,
        PLACES,
        *(st.lists(jobs, max_size=6).map(sorted) for _ in Lane),
        running=st.sampled_from([0, 0, 0, 1, 2, 5]),
        weight=weights,
        paused=pauses,
        max_running=limits,
        turn=st.integers(0, 6),
    ),
    min_size=1,
    max_size=10,
    unique_by=lambda group: group.place,
)
cursors = st.builds(Cursor, st.integers(-1, 13), st.integers(0, 8))
numbers = st.integers(0, 99)  # of a group, or of a job that is held
steps = st.lists(
    st.tuples(st.just("take"), st.integers(1, 20), schemes)
    | st.tuples(st.just("submit"), numbers, st.sampled_from(Lane), jobs)
    | st.tuples(st.just("end"), st.lists(numbers, min_size=1, max_size=10))
    | st.tuples(st.just("change"), numbers, weights, pauses, limits),
    max_size=25,
)


class Sides:
    """The fair queue and the specification, side by side."""

    def __init__(self, groups: list[Group], cursor: Cursor) -> None:
        self.groups, self.cursor = groups, cursor
        self.ring = FairQueue(deepcopy(groups), cursor)
        self.fast = sorted(self.ring._groups.values(), key=lambda group: groups.index(self.at(group.place)))

    def at(self, place: int) -> Group:
        return next(group for group in self.groups if group.place == place)

    def take(self, free: int, scheme: CountingScheme) -> None:
        expected, self.cursor = take(self.groups, self.cursor, free, scheme)
        assert self.ring.take(free, scheme) == expected

    def submit(self, number: int, lane: Lane, job: int) -> None:
        group = self.groups[number % len(self.groups)]
        insort((group.due, group.high, group.low)[lane], job)
        self.ring.submit(group.place, lane, job)

    def end(self, which: list[int]) -> None:
        for number in which:
            if holding := [group for group in self.groups if group.running]:
                group = holding[number % len(holding)]
                group.running -= 1
                self.ring.ended(group.place)

    def change(self, number: int, weight: int, paused: bool, max_running: int | None) -> None:  # noqa: FBT001 - a step
        for some in (self.groups, self.fast):
            group = some[number % len(some)]
            group.weight, group.paused, group.max_running = weight, paused, max_running
        self.ring.settle(self.fast[number % len(self.fast)])

    def compare(self) -> None:
        assert self.ring.cursor == self.cursor
        for slow, fast in zip(self.groups, self.fast, strict=True):
            assert (slow.place, slow.running, slow.turn) == (fast.place, fast.running, fast.turn)
            assert [slow.due, slow.high, slow.low] == [sorted(some) for some in (fast.due, fast.high, fast.low)]
        everything, _ = take(deepcopy(self.groups), self.cursor, 10_000, CountingScheme(4, 1))
        assert self.ring.runnable == len(everything)
        assert self.ring.has_work == bool(everything)


# A visit is cut by the end of the free slots, continues, and ends on the second level.
@example(
    [Group(3, low=list(range(9)), weight=3), Group(4, low=[10, 11, 12])],
    Cursor(3, 1),
    [("take", 1, CountingScheme(4, 1)), ("take", 2, CountingScheme(4, 1)), ("take", 8, CountingScheme(4, 1))],
)
@settings(max_examples=examples(500))
@given(groups_of, cursors, steps)
def test_the_ring_takes_what_the_specification_says(groups, cursor, plan):
    sides = Sides(groups, cursor)
    sides.compare()
    for name, *arguments in [*plan, ("take", 50, CountingScheme(4, 1))]:
        getattr(sides, name)(*arguments)
        sides.compare()

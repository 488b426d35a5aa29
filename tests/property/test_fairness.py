"""The properties of fairness, checked on its specification, core/fairness.py.

test_take_matches_specification.py compares the statement in the database with the same specification.
"""

from collections import Counter
from copy import deepcopy

from hypothesis import assume, example, given
from hypothesis import strategies as st

from joex.core.fairness import Cursor, Group, take
from joex.core.priority_turns import CountingScheme

FOUR_ONE = CountingScheme(4, 1)
schemes = st.builds(CountingScheme, st.integers(1, 5), st.integers(1, 5))
lane_sizes = st.tuples(st.integers(0, 8), st.integers(0, 8), st.integers(0, 8))


def group(place, sizes=(0, 0, 10_000), **settings):
    """A group whose jobs are numbered by place, lane and age: 3_2_00007 is job 7 of the low lane of group 3."""
    due, high, low = ([place * 1_000_000 + lane * 100_000 + nr for nr in range(sizes[lane])] for lane in range(3))
    return Group(place, due, high, low, **settings)


def place_of(job):
    return job // 1_000_000


def lane_of(job):
    return job // 100_000 % 10


@st.composite
def groups_of(draw):
    places = draw(st.lists(st.integers(0, 20), min_size=1, max_size=8, unique=True))
    return [
        group(
            place,
            draw(lane_sizes),
            running=draw(st.integers(0, 6)),
            weight=draw(st.sampled_from([1, 1, 2, 3, 7])),
            paused=draw(st.sampled_from([False, False, False, True])),
            max_running=draw(st.none() | st.integers(0, 8)),
            turn=draw(st.integers(0, 9)),
        )
        for place in places
    ]


cursors = st.builds(Cursor, st.integers(0, 21), st.integers(0, 8))
frees = st.integers(1, 40)


def services(groups, cursor, batches, scheme=FOUR_ONE):
    """The served groups, batch by batch; each batch is finished before the next take."""
    for free in batches:
        running = [g.running for g in groups]
        jobs, cursor = take(groups, cursor, free, scheme)
        for g, before in zip(groups, running, strict=True):
            g.running = before
        yield [place_of(job) for job in jobs]


@given(groups_of(), cursors, frees, schemes)
def test_no_slot_stays_free_while_there_is_work_that_may_run(groups, cursor, free, scheme):
    may_run = 0
    for g in groups:
        room = 10_000 if g.max_running is None else max(g.max_running - g.running, 0)
        may_run += 0 if g.paused else min(len(g.due + g.high + g.low), room)
    jobs, _ = take(groups, cursor, free, scheme)
    assert len(jobs) == min(free, may_run)


@given(groups_of(), cursors, frees, schemes)
def test_nothing_of_a_paused_group_is_taken_and_no_group_exceeds_its_limit(groups, cursor, free, scheme):
    before = deepcopy(groups)
    jobs, _ = take(groups, cursor, free, scheme)
    for old, new in zip(before, groups, strict=True):
        taken = sum(place_of(job) == old.place for job in jobs)
        assert new.running == old.running + taken
        assert taken == 0 or not old.paused
        assert taken == 0 or old.max_running is None or new.running <= old.max_running


@given(groups_of(), cursors, frees, schemes)
def test_no_group_is_above_its_share_while_one_with_work_is_below(groups, cursor, free, scheme):
    jobs, _ = take(groups, cursor, free, scheme)
    served = {place_of(job) for job in jobs}
    backlogged = [g.level for g in groups if g.is_runnable]
    for g in groups:
        if g.place in served:
            assert all((g.running - 1) // g.weight <= level for level in backlogged)


@given(groups_of(), cursors, frees, schemes)
def test_within_a_group_and_a_priority_the_first_submitted_is_the_first_taken(groups, cursor, free, scheme):
    jobs, _ = take(groups, cursor, free, scheme)
    assert len(set(jobs)) == len(jobs)
    for g in groups:
        for lane in range(3):
            ages = [job % 100_000 for job in jobs if (place_of(job), lane_of(job)) == (g.place, lane)]
            assert ages == list(range(len(ages)))


@given(groups_of(), cursors, frees, schemes)
def test_due_retries_come_before_all_else_of_their_group(groups, cursor, free, scheme):
    jobs, _ = take(groups, cursor, free, scheme)
    for g in groups:
        lanes = [lane_of(job) for job in jobs if place_of(job) == g.place]
        assert lanes == sorted(lanes, key=lambda lane: lane > 0)
        assert not (g.due and any(lanes))


@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 9), schemes, st.lists(st.integers(1, 9), min_size=1))
def test_while_both_priorities_wait_every_prefix_follows_the_counting_scheme(highs, lows, turn, scheme, batches):
    g = group(1, (0, highs, lows), turn=turn)
    cursor, lanes, turns = Cursor(0, 1), [], []
    for free in batches:
        jobs, cursor = take([g], cursor, free, scheme)
        lanes += [lane_of(job) for job in jobs]
        turns.append((len(lanes), g.turn))
    both_wait = [lanes[:n].count(1) < highs and lanes[:n].count(2) < lows for n in range(len(lanes))]
    expected = [1 if scheme.wants_high(turn + n) else 2 for n in range(len(lanes))]
    followed = sum(both_wait)
    assert both_wait == sorted(both_wait, reverse=True)
    assert lanes[:followed] == expected[:followed]
    assert all(now % scheme.cycle == (turn + min(taken, followed)) % scheme.cycle for taken, now in turns)


@given(groups_of(), cursors, st.integers(1, 10), schemes, st.integers(1, 9))
def test_jobs_of_a_group_come_in_the_same_order_however_a_batch_is_cut(groups, cursor, free, scheme, cut):
    assume(free > cut)
    whole, _ = take(deepcopy(groups), cursor, free, scheme)
    first, between = take(groups, cursor, cut, scheme)
    second, _ = take(groups, between, free - cut, scheme)
    for g in groups:
        mine, cut_up = ([job for job in jobs if place_of(job) == g.place] for jobs in (whole, first + second))
        shortest = min(len(mine), len(cut_up))
        assert mine[:shortest] == cut_up[:shortest]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=8), cursors)
def test_jobs_taken_one_at_a_time_go_round_robin_by_weight(weights, cursor):
    groups = [group(place, weight=weight) for place, weight in enumerate(weights)]
    rounds = 3
    served = [place for [place] in services(groups, cursor, [1] * sum(weights) * (rounds + 1))]
    # The first visit may be shorter; from the next group on each has as many services as its weight.
    start = next((nr for nr in range(1, len(served)) if served[nr] != served[nr - 1]), 0)
    assert Counter(served[start : start + rounds * sum(weights)]) == {
        place: rounds * weight for place, weight in enumerate(weights)
    }


@given(st.lists(st.integers(1, 5), min_size=1, max_size=8), cursors, st.data())
@example([3, 1], Cursor(0, 3), None)
def test_finished_batches_of_up_to_a_round_give_the_same_order_as_single_jobs(weights, cursor, data):
    sizes = st.lists(st.integers(1, sum(weights)), min_size=1, max_size=12)
    batches = [2, 4, 2, 4] if data is None else data.draw(sizes)
    assume(cursor.served <= dict(enumerate(weights)).get(cursor.place, 1))
    in_batches = services([group(place, weight=w) for place, w in enumerate(weights)], cursor, batches)
    one_by_one = services([group(place, weight=w) for place, w in enumerate(weights)], cursor, [1] * sum(batches))
    assert [place for batch in in_batches for place in batch] == [place for [place] in one_by_one]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=8), st.integers(1, 5), cursors)
def test_the_slots_of_many_executors_are_shared_by_weight(weights, share, cursor):
    groups = [group(place, weight=weight) for place, weight in enumerate(weights)]
    jobs, _ = take(groups, cursor, share * sum(weights), FOUR_ONE)
    assert Counter(map(place_of, jobs)) == {place: share * weight for place, weight in enumerate(weights)}


@given(st.lists(st.integers(1, 5), min_size=1, max_size=8), st.integers(0, 7), cursors)
def test_a_new_groups_first_job_starts_within_one_round(weights, new, cursor):
    groups = [group(place, weight=weight) for place, weight in enumerate(weights)]
    new %= len(groups)
    served = [place for [place] in services(groups, cursor, [1] * sum(weights))]
    assert new in served


@given(groups_of(), cursors, schemes)
def test_every_group_with_runnable_work_is_served_within_a_round_of_its_level(groups, cursor, scheme):
    runnable = [g for g in groups if g.is_runnable]
    assume(runnable)
    level = max(g.level for g in runnable)
    a_round = sum(max((level + 1) * g.weight - g.running, 0) for g in runnable)
    jobs, _ = take(groups, cursor, a_round, scheme)
    assert {place_of(job) for job in jobs} == {g.place for g in runnable}


@given(st.integers(1, 20), st.lists(st.integers(1, 6), min_size=20, max_size=20), cursors)
def test_long_jobs_of_one_group_do_not_push_out_short_ones_of_another(slots, finished, cursor):
    """By occupancy: the group of long jobs, which never finish here, keeps no more than its share of the slots."""
    long, short = group(1), group(2)
    for done in finished:
        _, cursor = take([long, short], cursor, slots - long.running - short.running, FOUR_ONE)
        assert long.running <= (slots + 1) // 2
        assert long.running + short.running == slots
        short.running = max(short.running - done, 0)


@given(cursors, frees, schemes)
def test_without_work_nothing_is_taken_and_the_cursor_stays(cursor, free, scheme):
    assert take([], cursor, free, scheme) == ([], cursor)
    assert take([group(1, (0, 0, 0)), group(2, paused=True)], cursor, free, scheme) == ([], cursor)


@given(groups_of(), cursors, frees, schemes)
def test_the_cursor_is_left_at_the_group_that_was_served_last(groups, cursor, free, scheme):
    jobs, after = take(groups, cursor, free, scheme)
    if jobs:
        assert after.place == place_of(jobs[-1])
        assert 1 <= after.served <= 255

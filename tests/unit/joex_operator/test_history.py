"""The memory of a pool: windows that never end early, policies that count, and a size that is bounded."""

import pytest

from joex_operator.decide.history import History, largest_lately, smallest_lately

WINDOW = 300.0


def shrink(marks, now, wanted, size=10):
    return largest_lately(marks, size=size, wanted=wanted, now=now, window=WINDOW)


def test_the_first_time_that_less_is_wanted_the_present_size_counts():
    marks, largest, until = shrink((), 1000.0, 2)
    assert largest == 10
    assert marks == ((1010.0, 10),)
    assert until == 1310.0


def test_less_is_allowed_when_it_was_enough_for_the_whole_window():
    marks, _, until = shrink((), 1000.0, 2)
    marks, largest, _ = shrink(marks, until - 1, 2)
    assert largest == 10
    _, largest, _ = shrink(marks, until + 1, 2)
    assert largest == 2


def test_a_peak_within_the_window_counts_until_it_has_left_it():
    marks, _, _ = shrink((), 1000.0, 2)
    marks, _, _ = shrink(marks, 1100.0, 7)
    marks, largest, _ = shrink(marks, 1320.0, 2)
    assert largest == 7
    marks, largest, _ = shrink(marks, 1409.0, 2)
    assert largest == 7
    _, largest, _ = shrink(marks, 1411.0, 2)
    assert largest == 2


def test_what_was_wanted_never_makes_a_pool_larger_than_it_is():
    _, largest, _ = shrink(((1000.0, 10),), 1001.0, 2, size=4)
    assert largest == 4


def test_growing_is_the_same_the_other_way_round():
    marks, smallest, until = smallest_lately((), size=2, wanted=10, now=1000.0, window=WINDOW)
    assert smallest == 2
    assert marks == ((1010.0, 2),)
    _, smallest, _ = smallest_lately(marks, size=2, wanted=10, now=until + 1, window=WINDOW)
    assert smallest == 10


def test_a_window_that_is_looked_at_rarely_still_ends():
    marks, _, _ = shrink((), 1000.0, 0)
    _, largest, _ = shrink(marks, 99_000.0, 0)
    assert largest == 0


def test_the_memory_stays_small_however_often_it_is_asked():
    marks, most = (), 0
    for second in range(3000):
        wanted = 9_000 - (second * 7) % 300
        marks, _, _ = shrink(marks, 1000.0 + second, wanted, size=10_000)
        most = max(most, len(marks))
    assert most <= 32


def test_asked_again_in_the_same_moment_it_remembers_the_same():
    marks, _, _ = shrink((), 1000.0, 2)
    assert shrink(marks, 1003.0, 2)[0] == marks


def test_changes_are_counted_within_a_period():
    history = History().with_change(4, 1000.0, 60).with_change(-1, 1020.0, 60)
    assert history.changed(1030.0, 60) == 3
    assert history.changed(1063.0, 60) == -1
    assert history.changed(1090.0, 60) == 0


def test_changes_are_forgotten_after_the_longest_period():
    history = History().with_change(4, 1000.0, 60)
    assert history.with_change(0, 1100.0, 60).changes == ()


def test_without_a_policy_no_change_is_remembered():
    assert History().with_change(4, 1000.0, 0).changes == ()


def test_changes_of_one_moment_are_one_mark_for_each_direction():
    history = History()
    for _ in range(100):
        history = history.with_change(1, 1000.0, 60).with_change(-1, 1000.5, 60)
    assert history.changes == ((1002.0, -100), (1002.0, 100))


HISTORIES = [
    History(),
    History(below=((1.5, 3), (2.5, 1)), above=((1.0, 2),), changes=((1.0, -2),), unknown_since=7.25),
    History(size=0),
]


@pytest.mark.parametrize("history", HISTORIES)
def test_a_history_is_read_as_it_was_stored(history):
    assert History.from_dict(history.to_dict()) == history


def test_with_nothing_to_remember_nothing_is_stored():
    assert History().to_dict() == {}


@pytest.mark.parametrize(
    "stored",
    [None, {}, {"below": 3}, {"below": [[1]]}, {"above": [["x", 1]]}, {"unknownSince": "x"}, {"size": "x"}, []],
)
def test_what_cannot_be_read_is_forgotten(stored):
    assert History.from_dict(stored) == History()

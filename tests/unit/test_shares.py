"""The arithmetic by which the benchmarks judge fairness."""

import math

import pytest

from benchmarks.shares import Hold, jain, slot_time

pytestmark = pytest.mark.unit


def test_slots_held_at_the_same_time_add_up():
    assert slot_time([Hold("a", 0, 3), Hold("a", 0, 3), Hold("b", 1, 2)], 0, 10) == {"a": 6, "b": 1}


def test_only_what_lies_in_the_window_counts():
    holds = [Hold("before", 0, 4), Hold("begins before", 3, 7), Hold("around", 0, 99), Hold("ends after", 9, 11)]
    found = slot_time([*holds, Hold("after", 10, 12)], 5, 10)
    assert found == {"before": 0, "begins before": 2, "around": 5, "ends after": 1, "after": 0}


def test_a_slot_that_is_still_held_counts_up_to_the_end_of_the_window():
    assert slot_time([Hold("a", 2, math.inf)], 0, 5) == {"a": 3}


def test_the_index_is_one_where_all_have_the_same_and_one_nth_where_one_has_all():
    assert jain([7, 7, 7]) == pytest.approx(1)
    assert jain([7, 0, 0, 0, 0]) == pytest.approx(1 / 5)


def test_the_index_does_not_depend_on_the_unit_or_the_order():
    assert jain([1, 2, 4]) == pytest.approx(jain([400, 100, 200])) == pytest.approx(49 / 63)


def test_where_nobody_has_anything_nobody_has_more():
    assert jain([0, 0]) == 1

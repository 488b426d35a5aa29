"""The computed first-in-first-out, with which the demo compares itself."""

import math

import pytest

from examples.demo.fifo import Run, Slot, Work, changeovers, fifo_starts, percentile

TWO = [Slot(0), Slot(0)]


def works(*seconds: float, submitted: float = 0) -> list[Work]:
    return [Work(submitted, length) for length in seconds]


def test_each_job_starts_where_a_slot_is_free_first():
    assert fifo_starts(works(4, 1, 1, 3, 1), TWO) == [0, 0, 1, 2, 4]


def test_late_jobs_wait_behind_all_earlier_ones():
    starts = fifo_starts([*works(*[1] * 10), *works(1, 1, submitted=2)], TWO)
    assert starts[-2:] == [5, 5]


def test_no_job_starts_before_its_submission():
    assert fifo_starts(works(1, submitted=7), TWO) == [7]


def test_a_closed_slot_takes_nothing_and_ends_what_it_runs():
    assert fifo_starts(works(3, 1, 1, 1), [Slot(0, closes=2), Slot(0)]) == [0, 0, 1, 2]


def test_a_slot_that_closes_while_empty_is_not_used_again():
    assert fifo_starts([Work(0, 1), Work(5, 1), Work(5, 1)], [Slot(0, closes=3), Slot(0)]) == [0, 5, 6]


def test_a_slot_that_opens_later_takes_jobs_from_then_on():
    assert fifo_starts(works(10, 2, 2, 2), [Slot(0), Slot(3)]) == [0, 3, 5, 7]


def test_jobs_without_any_slot_are_refused():
    with pytest.raises(ValueError, match="closed"):
        fifo_starts(works(1, 1), [Slot(0, closes=1)])


def test_no_slot_is_idle_while_a_job_waits():
    jobs = works(*[(7 * number) % 5 + 1 for number in range(100)])
    starts = fifo_starts(jobs, [Slot(0)] * 4)
    busy_until = max(start + job.seconds for start, job in zip(starts, jobs, strict=True))
    assert busy_until <= sum(job.seconds for job in jobs) / 4 + 5
    assert starts == sorted(starts)


def test_changeovers_count_for_the_slot_that_was_empty_shortly_before():
    runs = [Run("a", 0, 1), Run("a", 0, 2), Run("a", 1.05, 3), Run("a", 2.1, 4), Run("b", 1.01, 2)]
    assert changeovers(runs) == pytest.approx([0, 0, 0.05, 0.1, 0])


def test_a_slot_that_had_nothing_to_do_is_no_changeover():
    assert changeovers([Run("a", 0, 1), Run("a", 9, 10)]) == [0, 0]


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [([3.0], 95, 3.0), ([2.0, 1.0], 50, 1.0), (list(map(float, range(1, 101))), 95, 95.0), ([1.0, 2.0], 0, 1.0)],
)
def test_percentile_is_the_nearest_rank(values: list[float], percent: float, expected: float):
    assert percentile(values, percent) == expected


def test_slots_are_open_for_ever_unless_they_close():
    assert Slot(0).closes == math.inf

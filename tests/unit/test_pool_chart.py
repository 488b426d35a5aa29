"""The chart of a pool's sizes."""

from datetime import UTC, datetime, timedelta

from joex.console.pools import chart
from joex.store.pools import PoolStep

END = datetime(2026, 11, 20, 12, tzinfo=UTC)
BEGIN = END - timedelta(hours=1)


def step(minutes: float, target: int, ready: int = 0, runnable: int = 0) -> PoolStep:
    at = END - timedelta(minutes=minutes)
    return PoolStep("prod", "prod", "docs", 1, at, 0, target, ready, 0, "demand", "", None, None, runnable, 0, None)


def test_a_size_lasts_from_its_step_to_the_next_one_and_the_last_one_to_the_end():
    made = chart([step(45, 1, 0, 3), step(30, 2, 1, 8)], BEGIN, END)
    assert (made.most, made.most_jobs) == (2, 8)
    assert made.target == "100,50 200,50 200,1 400,1"
    assert made.ready == "M100 100V99H200V100ZM200 100V50H400V100Z"
    assert made.jobs == [(100, 62.25, 37.75), (200, 1.0, 99.0)]


def test_the_step_before_the_window_is_at_its_left_edge():
    made = chart([step(90, 1), step(30, 0)], BEGIN, END)
    assert made.target == "0,1 200,1 200,99 400,99"


def test_of_steps_that_share_a_column_the_most_jobs_are_shown():
    made = chart([step(30 - nr / 1000, 1, runnable=nr) for nr in (1, 7, 3)], BEGIN, END)
    assert made.jobs == [(200, 1.0, 99.0)]
    assert made.most_jobs == 7


def test_a_step_at_the_very_end_is_within_the_chart():
    assert chart([step(0, 1, runnable=5)], BEGIN, END).jobs == [(398, 1.0, 99.0)]


def test_a_pool_without_executors_and_jobs_is_a_line_at_the_bottom():
    made = chart([step(60, 0)], BEGIN, END)
    assert (made.target, made.jobs, made.most) == ("0,99 400,99", [], 1)

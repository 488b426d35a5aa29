"""The mean seconds of runs, by task and group."""

import pytest

from joex_operator.decide.run_times import RunTimes


def test_a_mean_counts_from_ten_runs_on():
    times = RunTimes()
    times.add("mail", "a", 9, 9 * 3.0)
    assert (times.share("mail", "a", 30.0), times.shares(30.0)) == (1.0, {})
    times.add("mail", "b", 1, 3.0)
    assert times.share("mail", "a", 30.0) == pytest.approx(0.1)
    assert times.shares(30.0) == {"mail": {"": pytest.approx(0.1)}}


def test_a_group_with_runs_enough_has_a_mean_of_its_own():
    times = RunTimes()
    times.add("export", "small", 30, 30 * 3.0)
    times.add("export", "large", 10, 10 * 15.0)
    assert times.share("export", "large", 30.0) == pytest.approx(0.5)
    assert times.share("export", "another", 30.0) == pytest.approx(0.2)


def test_no_job_fills_more_than_a_slot():
    times = RunTimes()
    times.add("report", "a", 10, 10 * 3600.0)
    assert times.share("report", "a", 30.0) == 1.0


def test_a_mean_follows_a_change():
    times = RunTimes()
    times.add("mail", "a", 100_000, 100_000 * 3.0)
    times.add("mail", "a", 900, 900 * 30.0)
    assert times.share("mail", "a", 30.0) > 0.9


def test_the_kinds_that_ran_last_are_remembered():
    times = RunTimes()
    for nr in range(3000):
        times.add("mail", f"group-{nr}", 10, 30.0)
    known = times.shares(30.0)["mail"]
    assert len(known) == 1000
    assert {"", "group-2999"} <= set(known)

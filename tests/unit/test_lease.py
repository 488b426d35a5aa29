"""The order of a lease's times, and what a judge of other executors has watched."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joex.core.lease import Lease, Observation


@pytest.mark.parametrize("seconds", [0.3, 6, 3600])
def test_two_heartbeats_may_get_lost_before_trust_ends(seconds):
    lease = Lease(timedelta(seconds=seconds))
    assert 2 * lease.heartbeat_every < lease.trusted_for


@pytest.mark.parametrize("seconds", [0.3, 6, 3600])
def test_an_executor_stops_its_runs_before_others_may_take_its_jobs(seconds):
    lease = Lease(timedelta(seconds=seconds))
    assert lease.trusted_for < lease.fatal_after < lease.duration.total_seconds()


class Judge:
    """A judge that asks every two seconds, and the database with its clock; an answer takes a hundredth of a second."""

    def __init__(self) -> None:
        self.observed = Observation(timedelta(seconds=6))
        self.now = 1000.0
        self.ahead = 5e8

    def watch(self, seconds: float, *, every: float = 2.0, trip: float = 0.01) -> float:
        """Ask for so long; for how long it has watched, then."""
        until = self.now + seconds
        while self.now < until:
            self.now += every
            self.observed.answered(self.now, self.now + trip, self.now + trip / 2 + self.ahead)
            self.now += trip
        return self.observed.watched


def test_a_judge_has_watched_since_its_first_answer() -> None:
    judge = Judge()
    assert judge.watch(2) == 0
    assert judge.watch(60) == pytest.approx(60, abs=3)


@pytest.mark.parametrize("step", [31, 3600, 1, -1, -31, -3600])
def test_when_the_databases_clock_is_set_the_observation_starts_anew(step: float) -> None:
    judge = Judge()
    assert judge.watch(60) > 50
    judge.ahead += step
    assert judge.watch(2) == 0
    assert judge.watch(60) > 50


def test_when_the_session_breaks_or_an_answer_takes_too_long_the_observation_starts_anew() -> None:
    judge = Judge()
    assert judge.watch(60) > 50
    judge.observed.break_off()
    assert judge.observed.watched == 0
    assert judge.watch(2) == 0
    assert judge.watch(60) > 50
    assert judge.watch(1, trip=5) == 0  # nobody knows when in that time the database was away
    assert judge.watch(60) > 50
    judge.now += 5  # the judge itself was stopped
    assert judge.watch(2) == 0


def test_clocks_that_drift_apart_slowly_and_answers_that_are_slow_break_no_observation() -> None:
    judge = Judge()
    for _ in range(100):
        judge.ahead += 0.01
        judge.watch(2, trip=0.01)
        judge.watch(2, trip=1.5)
    assert judge.observed.watched > 500


@given(
    steps=st.lists(st.tuples(st.floats(0.1, 2.5), st.floats(0, 1), st.floats(0, 1)), min_size=2, max_size=50),
    ahead=st.floats(-1e6, 1e6),
)
def test_whenever_an_answer_was_made_a_clock_that_is_never_set_breaks_no_observation(
    steps: list[tuple[float, float, float]], ahead: float
) -> None:
    observed, now, first = Observation(timedelta(seconds=6)), 0.0, None
    for pause, trip, made_at in steps:
        now += pause
        observed.answered(now, now + trip, now + trip * made_at + ahead)
        first = now + trip if first is None else first
        assert observed.watched == pytest.approx(max(now - first, 0.0))
        now += trip

"""The order of a lease's times, and the observation of other executors by a judge."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joex.core.lease import Beat, Lease, Observation, ServerStart


@pytest.mark.parametrize("seconds", [0.3, 6, 3600])
def test_two_heartbeats_may_get_lost_before_trust_ends(seconds):
    lease = Lease(timedelta(seconds=seconds))
    assert 2 * lease.heartbeat_every < lease.trusted_for


@pytest.mark.parametrize("seconds", [0.3, 6, 3600])
def test_an_executor_stops_its_runs_before_others_may_take_its_jobs(seconds):
    lease = Lease(timedelta(seconds=seconds))
    assert lease.trusted_for < lease.fatal_after < lease.duration.total_seconds()


@pytest.mark.parametrize("seconds", [0.3, 6, 3600])
def test_an_attempt_to_connect_and_the_pause_after_it_leave_time_in_the_lease(seconds):
    lease = Lease(timedelta(seconds=seconds))
    assert lease.connect_within + lease.heartbeat_every < lease.duration.total_seconds()


@pytest.mark.parametrize("seconds", [0.3, 6, 60, 3600])
@pytest.mark.parametrize("outage", [0.1, 60, 3600])
def test_after_an_outage_as_long_as_the_patience_runs_go_on_until_their_executor_has_had_a_lease_to_be_heard(
    seconds, outage
):
    lease = Lease(timedelta(seconds=seconds))
    since_last_beat = lease.heartbeat_every + outage + lease.duration.total_seconds()
    assert lease.trusted_for + lease.patience(outage) >= since_last_beat


def test_without_patience_runs_end_with_the_trust():
    assert Lease(timedelta(seconds=6)).patience(0) == 0


def test_however_long_its_lease_an_executor_looks_after_others_in_time():
    assert Lease(timedelta(hours=1)).heartbeat_every == 10


_MIDNIGHT = datetime(2026, 1, 1, tzinfo=UTC)
_LATER = _MIDNIGHT + timedelta(hours=1)
_FIRST = ServerStart(_MIDNIGHT, _MIDNIGHT)


class Judge:
    """A judge that asks every two seconds; an answer takes a hundredth of a second.

    The server assigns an id each second.
    """

    def __init__(self) -> None:
        self.observed = Observation(2.0)
        self.now = 1000.0
        self.ahead = 0
        self.server = _FIRST

    def watch(self, seconds: float, *, every: float = 2.0, trip: float = 0.01) -> float:
        """Ask for this long; returns how long the judge has observed then."""
        until = self.now + seconds
        while self.now < until:
            self.now += every
            self.observed.answered(self.now, self.now + trip, Beat(round(self.now) + self.ahead, self.server))
            self.now += trip
        return max((mark.age for mark in self.observed.marks), default=0.0)


def test_a_judge_has_watched_since_its_first_answer() -> None:
    judge = Judge()
    assert judge.watch(2) == 0
    assert judge.watch(60) == pytest.approx(60, abs=3)


def test_when_the_session_breaks_or_an_answer_takes_too_long_the_observation_starts_anew() -> None:
    judge = Judge()
    assert judge.watch(60) > 50
    judge.observed.break_off()
    assert judge.observed.marks == []
    assert judge.watch(2) == 0
    assert judge.watch(60) > 50
    assert judge.watch(1, trip=5) == 0  # the judge can't know when in that time the database was away
    assert judge.watch(60) > 50
    judge.now += 5  # the judge itself was stopped
    assert judge.watch(2) == 0


def test_when_ids_go_back_the_observation_starts_anew() -> None:
    judge = Judge()
    assert judge.watch(60) > 50
    judge.ahead -= 30  # another server has taken over, behind a pooler that kept the session
    assert judge.watch(2) == 0
    assert judge.watch(60) > 50


@pytest.mark.parametrize("server", [_FIRST._replace(started_at=_LATER), _FIRST._replace(statistics_since=_LATER)])
def test_when_the_server_has_started_again_behind_a_pooler_the_observation_starts_anew(server: ServerStart) -> None:
    judge = Judge()
    assert judge.watch(60) > 50
    judge.server = server
    assert judge.watch(2) == 0
    assert judge.watch(60) > 50


def test_another_server_is_told_from_another_session_of_the_same_one() -> None:
    observed = Observation(2.0)
    assert not observed.answered(1, 1, Beat(1, _FIRST))
    observed.break_off()
    assert not observed.answered(2, 2, Beat(2, _FIRST))
    assert observed.answered(3, 3, Beat(3, _FIRST._replace(started_at=_LATER)))


@given(steps=st.lists(st.tuples(st.floats(0.1, 2.5), st.floats(0, 1)), min_size=2, max_size=300))
def test_a_judge_knows_no_mark_for_longer_than_it_has_it_and_one_about_as_old_as_each_lease(
    steps: list[tuple[float, float]],
) -> None:
    observed, now, asked, received = Observation(2.0), 0.0, 0.0, dict[int, float]()
    for number, (pause, trip) in enumerate(steps):
        now += pause
        asked = now
        now += trip
        observed.answered(asked, now, Beat(number, _FIRST))
        received[number] = now
    ages = [mark.age for mark in observed.marks]
    assert ages == sorted(ages)
    assert all(mark.age == pytest.approx(asked - received[mark.id]) for mark in observed.marks)
    kept = {mark.id for mark in observed.marks}
    last = len(steps) - 1
    assert {number for number in range(max(0, last - 15), last) if received[number] < asked} <= kept
    for number in range(last - 15):  # an eighth older, at most, than any mark that it ever had
        assert any(one <= number and number - one <= (last - one) / 8 for one in kept)


def test_the_marks_of_a_judge_that_has_watched_for_a_day_are_few() -> None:
    judge = Judge()
    assert judge.watch(24 * 3600, every=3.9) > 23 * 3600
    assert len(judge.observed.marks) < 200

"""The delay before the retry of a failed job."""

from datetime import timedelta

import pytest

from joex.core.backoff import LONGEST, retry_delay

MINUTE = timedelta(minutes=1)


def test_the_delay_doubles_with_each_failure():
    assert [retry_delay(MINUTE, n) // MINUTE for n in (1, 2, 3, 4, 5)] == [1, 2, 4, 8, 16]


def test_the_delay_has_a_ceiling_however_many_failures_there_were():
    assert retry_delay(MINUTE, 30) == LONGEST
    assert retry_delay(MINUTE, 1_000_000) == LONGEST
    assert retry_delay(timedelta.max, 2) == LONGEST
    assert retry_delay(MINUTE, 10, longest=timedelta(minutes=5)) == timedelta(minutes=5)


def test_the_smallest_delay_grows_too():
    assert retry_delay(timedelta(microseconds=1), 21) == timedelta(microseconds=2**20)


def test_without_a_delay_there_is_none():
    assert retry_delay(timedelta(0), 7) == timedelta(0)
    assert retry_delay(timedelta(seconds=-5), 7) == timedelta(0)


@pytest.mark.parametrize("failures", [0, -1])
def test_there_is_no_delay_before_the_first_failure(failures):
    with pytest.raises(ValueError, match="failures"):
        retry_delay(MINUTE, failures)


def test_jitter_makes_a_delay_longer_by_up_to_its_share_and_never_shorter():
    delays = [retry_delay(MINUTE, 2, jitter=0.1, chance=chance) for chance in (0.0, 0.5, 1.0)]
    assert [delay.total_seconds() for delay in delays] == pytest.approx([120, 126, 132])


def test_jitter_spreads_the_longest_delays_too():
    assert retry_delay(MINUTE, 30, jitter=0.5, chance=0.5) == 1.25 * LONGEST

"""The order of a lease's times."""

from datetime import timedelta

import pytest

from joex.core.lease import Lease


@pytest.mark.parametrize("seconds", [0.3, 6, 3600])
def test_two_heartbeats_may_get_lost_before_trust_ends(seconds):
    lease = Lease(timedelta(seconds=seconds))
    assert 2 * lease.heartbeat_every < lease.trusted_for


@pytest.mark.parametrize("seconds", [0.3, 6, 3600])
def test_an_executor_stops_its_runs_before_others_may_take_its_jobs(seconds):
    lease = Lease(timedelta(seconds=seconds))
    assert lease.trusted_for < lease.fatal_after < lease.duration.total_seconds()

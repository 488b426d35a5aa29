"""The input of `joex simulate`: workloads and traces, and the messages about wrong ones."""

import json
import math
import statistics
from collections import Counter
from random import Random

import pytest

from joex.core.job import State
from joex.errors import ConfigError
from joex_operator.simulate.generate import generate
from joex_operator.simulate.trace import read_trace
from joex_operator.simulate.workload import parse_workload


def workload(period="1h", **tenant):
    """A workload of one tenant; by default sixty jobs a minute, a second each."""
    return parse_workload({"period": period, "tenants": [{"name": "a", "rate": "60/min", "duration": "1s", **tenant}]})


def jobs(seed=1, **tenant):
    return generate(workload(**tenant), Random(seed))


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"tenants": []}, "tenants: List should have at least 1 item"),
        ({"period": "1h"}, "tenants: required"),
        ({"tenant": []}, "tenant: there is no such field"),
        ({"period": "soon"}, "period: expected a duration such as '30s', '1m' or '1h30m'; got 'soon'"),
        ({"tenants": [{"rate": "1/s", "duration": "1s"}]}, "tenants[0].name: required"),
        ({"tenants": [{"name": "a", "duration": "1s"}]}, "tenants[0]: expected a rate, or bursts"),
    ],
)
def test_a_wrong_workload_is_refused_with_its_field_and_the_mend(wrong, complaint):
    given = {"period": "1h", "tenants": [{"name": "a", "rate": "1/s", "duration": "1s"}], **wrong}
    given = {name: value for name, value in given.items() if name != "tenants" or wrong != {"period": "1h"}}
    with pytest.raises(ConfigError) as refused:
        parse_workload(given)
    assert complaint in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"rate": "often"}, "rate: expected jobs per time, such as '2/s', '30/min', '0.5/h' or '10/day'; got 'often'"),
        ({"rate": 5}, "rate: expected jobs per time"),
        ({"high": 0.2}, "high: expected a share such as '20%'; got 0.2"),
        ({"failures": "101%"}, "failures: expected a share such as '20%'; got '101%'"),
        (
            {"duration": {"median": "1s"}},
            "duration: expected a duration such as '5s', or a mean, or a median and its p95",
        ),
        ({"duration": {"median": "2s", "p95": "1s"}}, "duration: p95 must not be below median"),
        ({"duration": "soon"}, "duration.constant: expected a duration such as '30s'"),
        ({"daily": [1.0]}, "daily: List should have at least 24 items"),
        ({"daily": [0.0] * 24}, "daily: expected 24 factors of the rate, none below 0 and one above"),
        ({"rate": None, "daily": [1.0] * 24, "bursts": [{"jobs": 1}]}, "daily: expected only with a rate"),
        ({"bursts": [{"jobs": 0}]}, "bursts[0].jobs: Input should be greater than or equal to 1; got 0"),
        ({"weight": 0}, "weight: Input should be greater than or equal to 1"),
        ({"maxRunning": -1}, "maxRunning: Input should be greater than or equal to 0"),
        ({"arrivals": "random"}, "arrivals: Input should be 'poisson' or 'constant'"),
        ({"queue": ""}, "queue: String should have at least 1 character"),
    ],
)
def test_a_wrong_tenant_is_refused_with_its_field_and_the_mend(wrong, complaint):
    with pytest.raises(ConfigError) as refused:
        workload(**wrong)
    assert str(refused.value).startswith("tenants[0]")
    assert complaint in str(refused.value)


def test_a_name_may_be_there_once_in_a_queue():
    tenant = {"rate": "1/s", "duration": "1s"}
    with pytest.raises(ConfigError, match="duplicate group 'a-2'"):
        parse_workload({"period": "1h", "tenants": [{"name": "a", "count": 3, **tenant}, {"name": "a-2", **tenant}]})


def test_jobs_come_at_their_rate_by_chance_or_evenly():
    assert len(jobs()) == pytest.approx(3600, rel=0.05)
    assert list(jobs(arrivals="constant", rate="1/min").at) == [60 * n for n in range(1, 60)]


def test_a_daily_pattern_changes_the_rate_by_the_hour():
    daily = [2.0] + [0.0] * 22 + [1.0]
    at = jobs(period="25h", arrivals="constant", rate="60/h", daily=daily).at
    hours = Counter(math.ceil(time / 3600) for time in at)
    assert hours == {1: 120, 24: 60, 25: 119}  # (one comes when the period is over)


def test_bursts_come_at_once_and_again():
    at = jobs(rate=None, bursts=[{"jobs": 3, "at": "10m", "every": "20m"}, {"jobs": 2}]).at
    assert list(at) == [0, 0, *[600] * 3, *[1800] * 3, *[3000] * 3]


def test_durations_have_the_mean_or_the_median_and_the_p95_that_was_asked_for():
    assert set(jobs(duration="1m30s").seconds) == {90}
    assert statistics.fmean(jobs(duration={"mean": "10s"}).seconds) == pytest.approx(10, rel=0.1)
    cuts = statistics.quantiles(jobs(duration={"median": "2s", "p95": "30s"}).seconds, n=20)
    assert (cuts[9], cuts[18]) == (pytest.approx(2, rel=0.1), pytest.approx(30, rel=0.15))


def test_shares_of_priorities_and_failures():
    made = jobs(high="25%", failures="20%", retries=3, retryDelay="1m30s", weight=4, maxRunning=7)
    assert sum(job.is_high for job in made) / len(made) == pytest.approx(0.25, abs=0.03)
    failures = Counter(min(job.failures, 2) for job in made)
    assert failures[0] / len(made) == pytest.approx(0.8, abs=0.03)
    assert failures[1] / len(made) == pytest.approx(0.16, abs=0.03)
    assert {(job.retries, job.retry_delay) for job in made} == {(3, 90.0)}
    assert (made.groups[0].weight, made.groups[0].max_running) == (4, 7)
    assert {job.failures for job in jobs(failures="0%")} == {0}
    assert all(job.failures > 1_000_000 for job in jobs(failures="100%"))


def test_the_same_seed_gives_the_same_jobs_and_another_one_others():
    assert list(jobs(1)) == list(jobs(1))
    assert list(jobs(1)) != list(jobs(2))


def test_tenants_of_a_kind_have_numbers():
    assert [group.name for group in jobs(count=3).groups] == ["a-1", "a-2", "a-3"]


# Traces.


def line(at="2026-01-31T03:00:00Z", **more):
    return json.dumps({"at": at, "group": "a", "seconds": 1.5, **more})


def test_a_trace_begins_with_its_first_job_and_keeps_the_order_of_those_that_came_at_once():
    lines = [
        line(at="2026-01-31T03:00:02+00:00", group="b", seq=9, priority="high", weight=2, waited=0.5),
        line(at="2026-01-31T04:00:02+01:00", group="c", seq=8, max_running=3, retries=2),
        "",
        line(),
    ]
    made = read_trace(lines, "t")
    assert [(made.groups[job.group].name, job.at) for job in made] == [("a", 0), ("c", 2), ("b", 2)]
    assert [(group.name, group.weight, group.max_running) for group in made.groups] == [
        ("b", 2, None),
        ("c", 1, 3),
        ("a", 1, None),
    ]
    first, second, third = made
    assert (first.waited, third.waited, third.is_high, second.retries) == (None, 0.5, True, 2)
    assert str(made.begin) == "2026-01-31 03:00:00+00:00"


def test_runs_that_failed_fail_again_and_the_last_one_ends_as_it_did():
    success, failed, cancelled = read_trace(
        [line(failures=2, attempts=3), line(failures=2, state="failed"), line(state="cancelled")], "t"
    )
    assert (success.failures, success.state) == (2, State.SUCCESS)
    assert (failed.failures, failed.state) == (1, State.FAILED)
    assert (cancelled.failures, cancelled.state) == (0, State.CANCELLED)


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ("[1]", "t, line 2: "),
        ("{", "t, line 2: Invalid JSON"),
        ('{"group": "a", "seconds": 1}', "t, line 2: at: required"),
        (line(at="2026-01-31T03:00:00"), "t, line 2: at: expected a time with its zone"),
        (line(seconds=-1), "t, line 2: seconds: expected 0 to 2147483647; got -1.0"),
        (line(seconds=float("nan")), "t, line 2: seconds: expected 0 to"),
        (line(weight=0), "t, line 2: weight: expected 1 to"),
        (line(priority="mid"), "t, line 2: priority: Input should be 'high' or 'low'; got 'mid'"),
        (line(state="running"), "t, line 2: state: Input should be 'success', 'failed' or 'cancelled'; got 'running'"),
    ],
)
def test_a_wrong_line_is_named(wrong, complaint):
    with pytest.raises(ConfigError) as refused:
        read_trace([line(), wrong], "t")
    assert str(refused.value).startswith(complaint)
    assert "\n" not in str(refused.value)

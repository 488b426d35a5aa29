"""Small simulations, whose waits a reader can compute by hand.

An executor has one slot, and a job lasts ten seconds.
"""

import pytest

from joex_operator.simulate.backlog import Backlog
from joex_operator.simulate.clock import Timing
from joex_operator.simulate.engine import Simulation
from joex_operator.simulate.pool import SimulatedPool
from tests.unit.joex_operator.builders import NOW, autoscaled, pool
from tests.unit.joex_operator.simulated import EXACT, by_demand, job, jobs_of, simulated, simulated_on


def sizes(outcome):
    [found] = outcome.totals.sizes
    return found.points


def test_jobs_of_a_group_run_one_after_the_other_on_one_slot():
    outcome = simulated(job("a"), job("a"), job("a", at=25))
    assert outcome.taken == [("a", 0), ("a", 10), ("a", 25)]
    assert outcome.waits == [0, 10, 0]
    assert outcome.report.seconds == 35
    assert (outcome.report.success, outcome.report.not_run) == (3, 0)


def test_a_group_that_comes_later_is_served_next():
    outcome = simulated(*[job("a")] * 3, job("b", at=1))
    assert outcome.taken == [("a", 0), ("b", 10), ("a", 20), ("a", 30)]


def test_weights_are_followed():
    outcome = simulated(*[job("a")] * 8, *[job("b")] * 8, settings={"b": {"weight": 3}}, replicas=4)
    assert sorted(name for name, at in outcome.taken if at == 0) == ["a", "b", "b", "b"]


def test_a_limit_keeps_slots_free_and_the_end_of_a_job_makes_room():
    outcome = simulated(*[job("a")] * 3, job("b"), settings={"a": {"max_running": 1}}, replicas=3)
    assert outcome.taken == [("a", 0), ("b", 0), ("a", 10), ("a", 20)]


def test_priorities_follow_the_counting_scheme():
    outcome = simulated(*(job("a", seconds=n + 1, is_high=n >= 3) for n in range(7)), countingScheme="2,1")
    # Two high ones (of 4 and 5 seconds), a low one (1), two high ones (6, 7), and the remaining low ones (2, 3).
    assert outcome.taken == [("a", at) for at in (0, 4, 9, 10, 16, 23, 25)]


def test_a_failed_job_is_tried_again_after_a_delay_that_doubles():
    outcome = simulated(job("a", failures=2), retryDelay="1m")
    assert outcome.taken == [("a", 0), ("a", 70), ("a", 200)]
    assert outcome.waits == [0, 0, 0]
    assert (outcome.report.success, outcome.report.jobs) == (1, 1)


def test_a_job_fails_when_its_retries_are_used_up():
    assert simulated(job("a", failures=2), retries=1).report.failed == 1
    assert simulated(job("a", failures=2, retries=1), retries=5).report.failed == 1
    assert simulated(job("a", failures=2, retries=2), retries=0).report.success == 1


def test_a_due_retry_comes_before_what_waits_and_its_own_delay_holds():
    others = [job("a", at=1, is_high=True)] * 3
    outcome = simulated(job("a", failures=1, retry_delay=5.0), *others, retryDelay="1h")
    assert outcome.taken == [("a", 0), ("a", 10), ("a", 20), ("a", 30), ("a", 40)]
    assert outcome.waits == [0, 9, 5, 29, 39]


def test_a_run_that_lasts_too_long_is_cut_and_tried_again():
    outcome = simulated(job("a", seconds=100), timeout="30s", retries=1, retryDelay="1m")
    assert outcome.taken == [("a", 0), ("a", 90)]
    assert (outcome.report.failed, outcome.report.seconds) == (1, 120)


def test_an_executor_wakes_in_a_moment_and_a_slot_is_held_a_little_longer_than_the_run():
    outcome = simulated(job("a"), job("a"), timing=Timing(overhead=0.5))
    assert outcome.waits == [0.5, 11]


def test_an_executor_that_leaves_work_wakes_two_others():
    outcome = simulated(*[job("a")] * 7, replicas=8, timing=Timing(overhead=0.5))
    assert outcome.waits == [0.5, 1, 1, 1.5, 1.5, 2, 2]


def test_the_executor_that_fell_asleep_last_is_the_first_to_be_woken():
    one = SimulatedPool(pool(replicas=4), [], Backlog(jobs_of([]), []))
    executors = one.reconcile(NOW, 0.0).started
    for nth, nr in enumerate([2, 0, 3, 1], start=1):
        one.sleeps(executors[nr], nth)
    executors[0].asleep = 0  # it has filled its slots meanwhile
    assert one.sleepers(2) == [executors[1], executors[3]]
    one.leave(executors[1], 0.0)
    assert one.sleepers(3) == [executors[3], executors[2]]


# Scaling.


def test_a_pool_grows_from_zero_and_its_jobs_wait_for_the_start_of_executors():
    outcome = simulated(job("a"), job("a", at=1), **by_demand(5))
    assert outcome.waits == [5, 5]
    assert sizes(outcome) == [(0, 1), (1, 2)]
    assert outcome.report.executor_hours == pytest.approx((16 + 15) / 3600)


def test_what_comes_a_moment_after_a_look_is_seen_by_the_next_and_the_pool_grows_no_further_than_it_may():
    outcome = simulated(job("a"), *[job("a", at=0.1)] * 4, **by_demand(3))
    assert sizes(outcome)[:2] == [(0, 1), (0.25, 3)]
    assert outcome.waits == pytest.approx([5, 5.15, 5.15, 14.9, 15.15])


def test_what_is_there_in_any_case_is_there_at_the_beginning():
    outcome = simulated(job("a"), **{**by_demand(3), "scaling": {"minReplicas": 2}})
    assert outcome.waits == [0]
    assert sizes(outcome) == [(0, 2)]


def test_a_pool_shrinks_when_less_was_enough_all_through_the_window():
    outcome = simulated(job("a"), job("a", at=200), **by_demand(1, window=60))
    [_, (gone, zero), (again, one), *_] = sizes(outcome)
    assert (zero, one, again) == (0, 1, 200)
    assert 15 + 60 <= gone <= 15 + 15 + 62 + 1  # the next poll begins the window, which is rounded up by a thirtieth


def test_policies_of_growth_hold():
    policy = {"scaleUp": {"policies": [{"type": "Executors", "value": 1, "periodSeconds": 60}]}}
    outcome = simulated(*[job("a", seconds=1000)] * 3, replicas=None, scaling={"maxReplicas": 3, "behavior": policy})
    first, second, third = sizes(outcome)[:3]
    assert [first, second[1], third[1]] == [(0, 1), 2, 3]
    assert 60 <= second[0] <= 62.01
    assert 60 <= third[0] - second[0] <= 62.01


def test_busy_executors_stay_though_fewer_would_do_and_their_free_slots_take_what_comes():
    jobs = [*[job("a", seconds=seconds) for seconds in (10, 100, 10, 100)], job("a", at=50), job("a", at=51)]
    outcome = simulated(*jobs, poolSize=2, **by_demand(2))
    assert outcome.taken[-2:] == [("a", 50), ("a", 51)]
    assert sizes(outcome) == [(0, 2)], "until its end"


def test_under_steady_work_a_pool_shrinks_because_spare_executors_leave_it_to_the_others():
    steady = [job("a", at=n, seconds=100) for n in range(10, 2000, 10)]  # ten slots of forty
    outcome = simulated(*[job("a", seconds=40 + n) for n in range(40)], *steady, poolSize=10, **by_demand(4))
    assert [number for at, number in sizes(outcome) if at < 300] == [4, 3, 2, 1]
    assert {wait for (_, at), wait in zip(outcome.taken, outcome.waits, strict=True) if at > 100} == {0}


def test_a_pool_that_is_suspended_runs_nothing_and_the_simulation_ends():
    outcome = simulated(job("a"), suspend=True)
    assert (outcome.report.not_run, outcome.taken) == (1, [])


def test_jobs_of_a_group_that_may_run_none_never_run_and_others_do():
    outcome = simulated(job("a"), job("b"), settings={"a": {"max_running": 0}})
    assert (outcome.report.not_run, outcome.taken) == (1, [("b", 0)])


# Queues and pools.


def test_pools_serve_their_queues_and_share_one():
    jobs = jobs_of([*[job("a")] * 2, *[job("b")] * 2], {"a": {"queue": "both"}, "b": {"queue": "second"}})
    one = {"replicas": 1, "poolSize": 1}
    outcome = simulated_on([{**one, "queues": ["both"]}, {**one, "queues": ["second", "both"]}], jobs)
    assert outcome.taken == [("a", 0), ("a", 0), ("b", 10), ("b", 20)]


def test_queues_of_an_executor_are_served_in_turn():
    jobs = jobs_of([*[job("a")] * 2, *[job("b")] * 2], {"a": {"queue": "one"}, "b": {"queue": "two"}})
    outcome = simulated_on([{"replicas": 1, "poolSize": 1, "queues": ["one", "two"]}], jobs)
    assert sorted(outcome.taken[1:3]) in ([("a", 10), ("b", 20)], [("a", 20), ("b", 10)])


def test_where_the_end_of_a_job_makes_room_others_are_woken_too():
    limited = {"a": {"queue": "x", "max_running": 1}, "b": {"queue": "y"}}
    jobs = jobs_of([job("a"), job("b", at=1), job("a", at=2)], limited)
    one = {"replicas": 1, "poolSize": 1}
    outcome = simulated_on([{**one, "queues": ["x"]}, {**one, "queues": ["y", "x"]}], jobs)
    # The executor whose job of a ends takes from b; the other one, which has slept, takes the next job of a.
    assert outcome.taken == [("a", 0), ("b", 10), ("a", 10)]


# The counts.


def test_the_period_is_simulated_in_any_case():
    jobs = jobs_of([job("a")])
    jobs.period = 3600
    outcome = simulated_on([{"replicas": 2, "poolSize": 1}], jobs)
    assert (outcome.report.seconds, outcome.report.executor_hours) == (3600, 2)
    assert outcome.report.utilisation == pytest.approx(10 / 7200)


def test_a_report_may_have_those_groups_alone_that_wait_the_longest():
    jobs = jobs_of(job(name) for name in "abcd")
    told = simulated_on([{"replicas": 1, "poolSize": 1}], jobs, most_groups=2).report
    assert (told.group_count, [(group.group, group.waits.p95) for group in told.groups]) == (4, [("d", 30), ("c", 20)])
    assert [group.slot_share for group in told.groups] == [0.25, 0.25]


def test_shares_of_slot_time_and_their_evenness():
    outcome = simulated(*[job("a")] * 30, *[job("b")] * 10, replicas=2)
    assert [group.slot_share for group in outcome.report.groups] == [0.75, 0.25]
    assert outcome.report.queues[0].jain == pytest.approx(1, abs=0.01)


def test_evenness_is_less_where_a_group_holds_more_than_its_share():
    outcome = simulated(*[job("a", seconds=100)] * 2, *[job("b", at=1)] * 2, replicas=2)
    # For 100 s group a holds both slots, one of which is b's.
    assert outcome.report.queues[0].jain == pytest.approx(0.5, abs=0.02)


def test_waits_over_time_and_their_quantiles():
    outcome = simulated(*[job("a", seconds=1)] * 101)
    waits = outcome.report.waits
    assert (waits.runs, waits.mean, waits.p50, waits.p95, waits.p99, waits.max) == (101, 50, 50, 95, 99, 100)
    steps = outcome.report.over_time
    assert len(steps) == 200
    assert [step.executors for step in steps] == [1] * 200
    assert [step.wait_p50 for step in steps if step.wait_p50 is not None] == pytest.approx(list(range(101)))


def test_the_same_jobs_and_pools_give_the_same_answer():
    some = [job(f"group {n % 7}", at=n % 13, seconds=n % 11, failures=n % 2) for n in range(100)]
    first, second = (simulated(*some, **by_demand(5)).report for _ in range(2))
    assert first == second


def test_with_a_target_short_jobs_whose_seconds_are_known_share_executors():
    known = [job("a", at=nr, seconds=1) for nr in range(10)]
    burst = [job("a", at=100, seconds=1)] * 60
    usual = simulated(*known, *burst, **by_demand(50, poolSize=1))
    shared = simulated(*known, *burst, replicas=None, scaling=autoscaled(0, 50, target={"wait": "30s"}))
    assert [max(number for at, number in sizes(one) if at >= 100) for one in (usual, shared)] == [50, 2]
    assert 25 <= max(shared.waits) <= 40


def test_with_a_target_jobs_of_which_nothing_is_known_have_a_slot_each():
    outcome = simulated(*[job("a", seconds=1)] * 20, replicas=None, scaling=autoscaled(0, 50, target={"wait": "30s"}))
    assert outcome.report.pools[0].executors_max == 20


def test_with_a_target_a_group_fills_no_more_slots_than_it_may():
    known = [job("a", at=nr, seconds=1) for nr in range(10)]
    burst = [job("a", at=100, seconds=1)] * 600
    target = autoscaled(0, 50, target={"wait": "30s"})
    outcome = simulated(*known, *burst, settings={"a": {"max_running": 3}}, replicas=None, scaling=target)
    assert outcome.report.pools[0].executors_max == 3


def test_keda_formula_polls_and_divides_the_jobs_whatever_they_are():
    jobs = jobs_of([job("a", at=1, seconds=60)] * 10)
    totals = Simulation(jobs, [pool(poolSize=2, scaling=autoscaled(0, 50))], EXACT, jobs_per_executor=5).run()
    assert totals.sizes[0].points[:2] == [(0.0, 0), (15.0, 2)]

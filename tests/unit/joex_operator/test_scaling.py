"""The desired number of executors of a pool."""

from dataclasses import replace

import pytest

from joex_operator.decide.history import History
from joex_operator.decide.scaling import Demand, Limit, Load, Mode, Work, can_grow, longest_period, size
from tests.unit.joex_operator.builders import NOW, autoscaled, pool

T = 1_000_000.0


def sized(*, runnable=0, takers=0, held=0, leaving=0, history=None, now=T, next_due=None, **spec):
    spec.setdefault("scaling", autoscaled())
    load = Load(Demand(runnable, next_due), takers, held, leaving)
    return size(pool(**spec), load, history or History(), now)


def blind(*, takers, history=None, now=T, **scaling):
    return size(pool(scaling=autoscaled(**scaling)), Load(None, takers), history or History(), now)


@pytest.mark.parametrize(("jobs", "executors"), [(0, 0), (1, 1), (2, 1), (3, 2), (19, 10), (20, 10), (21, 10)])
def test_the_size_is_the_work_over_the_slots_within_the_bounds(jobs, executors):
    assert sized(runnable=jobs).target == executors


def test_running_work_counts_as_runnable_work_does():
    assert sized(runnable=3, held=4, takers=2).target == 4


def test_executors_that_start_are_not_asked_for_twice():
    assert sized(runnable=4, takers=2).target == 2


def test_from_zero_one_job_is_enough():
    assert sized(runnable=1, poolSize=1000, scaling=autoscaled(tolerance=0.5)).target == 1


def test_the_idle_reserve_comes_on_top_of_the_work():
    assert sized(runnable=3, scaling=autoscaled(idleReserve=2)).target == 4
    assert sized(scaling=autoscaled(idleReserve=2)).target == 2


def test_with_less_utilization_there_are_more_executors():
    assert sized(runnable=10, scaling=autoscaled(targetUtilization=50)).target == 10


def test_small_deviations_are_tolerated():
    scaling = autoscaled(most=100, tolerance=0.1)
    assert sized(runnable=2, held=20, takers=10, scaling=scaling).target == 10
    assert sized(runnable=4, held=20, takers=10, scaling=scaling).target == 12
    assert sized(held=18, takers=10, scaling=scaling).target == 10
    assert sized(held=2, takers=10, scaling=scaling).target == 1


def test_jobs_on_draining_executors_call_for_no_others():
    assert sized(takers=2, held=4, leaving=6).target == 2
    assert sized(takers=0, leaving=6).target == 0


def test_jobs_on_draining_executors_keep_the_pool_from_shrinking_further():
    assert sized(takers=5, held=5, leaving=5).target == 5
    assert sized(takers=5, held=5, leaving=0).target == 3


def test_orders_come_before_demand():
    assert sized(runnable=100, replicas=3) == sized(replicas=3)
    assert sized(runnable=100, replicas=3).target == 3
    assert sized(replicas=30).target == 30, "a fixed number is not bounded by scaling"
    assert (sized(runnable=9, replicas=3, suspend=True).target, sized(suspend=True).mode) == (0, Mode.SUSPENDED)
    deleted = size(pool(replicas=3, deleted_at=NOW), Load(Demand(9), 3), History(), T)
    assert (deleted.target, deleted.most, deleted.mode) == (0, 0, Mode.DELETED)


def test_orders_forget_what_was_remembered():
    history = History(below=((T, 3),), changes=((T, 1),), unknown_since=T)
    assert sized(replicas=3, history=history).history == History()


def test_bounds_are_orders_too():
    slow = autoscaled(least=2, most=4, window=300)
    assert sized(takers=9, scaling=slow).target == 4
    policy = {"policies": [{"type": "Executors", "value": 1, "periodSeconds": 60}], "stabilizationWindowSeconds": 60}
    assert sized(scaling=autoscaled(least=3, behavior={"scaleUp": policy})).target == 3


def test_what_limits_the_size_is_told():
    assert sized(runnable=100).limit is Limit.MOST
    assert sized(scaling=autoscaled(least=1)).limit is Limit.LEAST
    assert sized(runnable=4).limit is None
    assert sized(runnable=100).wanted == 50


# Windows.


def test_a_pool_shrinks_only_to_what_was_enough_all_through_the_window():
    scaling = autoscaled(window=300)
    first = sized(takers=5, scaling=scaling)
    assert (first.target, first.waiting, first.wanted) == (5, True, 0)
    assert 300 <= first.again_in <= 310
    later = sized(takers=5, scaling=scaling, history=first.history, now=T + first.again_in)
    assert (later.target, later.waiting) == (0, False)


def test_work_within_the_window_starts_it_again():
    scaling = autoscaled(window=300)
    first = sized(takers=5, scaling=scaling)
    busy = sized(runnable=10, takers=5, scaling=scaling, history=first.history, now=T + 200)
    assert busy.history == History()
    again = sized(takers=5, scaling=scaling, history=busy.history, now=T + 320)
    assert again.target == 5


def test_a_pool_grows_only_to_what_was_wanted_all_through_the_window():
    behavior = {"scaleUp": {"stabilizationWindowSeconds": 60}}
    first = sized(runnable=8, takers=1, scaling=autoscaled(behavior=behavior))
    assert (first.target, first.waiting) == (1, True)
    later = sized(
        runnable=8, takers=1, scaling=autoscaled(behavior=behavior), history=first.history, now=T + first.again_in
    )
    assert later.target == 4


def test_without_a_window_nothing_is_remembered():
    assert sized(takers=5).history == History()
    assert sized(takers=5).target == 0


# Policies.


def with_policies(direction, *policies, select="Max", **more):
    rules = {
        "policies": [{"type": kind, "value": value, "periodSeconds": period} for kind, value, period in policies],
        "selectPolicy": select,
        "stabilizationWindowSeconds": 0,
    }
    other = {"scaleDown": {"stabilizationWindowSeconds": 0}} if direction == "scaleUp" else {}
    return autoscaled(most=1000, behavior={**other, direction: rules}, **more)


@pytest.mark.parametrize(
    ("takers", "policies", "select", "target"),
    [
        (0, [("Executors", 4, 60)], "Max", 4),
        (10, [("Executors", 4, 60), ("Percent", 100, 60)], "Max", 20),
        (10, [("Executors", 4, 60), ("Percent", 100, 60)], "Min", 14),
        (3, [("Percent", 10, 60)], "Max", 4),
        (0, [("Percent", 100, 60)], "Max", 1),
        (3, [("Executors", 4, 60)], "Disabled", 3),
        (3, [], "Disabled", 3),
        (3, [], "Max", 500),
    ],
)
def test_a_pool_grows_by_no_more_than_its_policies_allow(takers, policies, select, target):
    result = sized(runnable=1000, takers=takers, scaling=with_policies("scaleUp", *policies, select=select))
    assert result.target == target
    assert (result.limit is Limit.SCALE_UP) == (target < 500)


@pytest.mark.parametrize(
    ("policies", "select", "target"),
    [
        ([("Executors", 4, 60)], "Max", 16),
        ([("Executors", 4, 60), ("Percent", 50, 60)], "Max", 10),
        ([("Executors", 4, 60), ("Percent", 50, 60)], "Min", 16),
        ([("Percent", 1, 60)], "Max", 19),
        ([("Percent", 100, 60)], "Max", 0),
        ([("Executors", 4, 60)], "Disabled", 20),
    ],
)
def test_a_pool_shrinks_by_no_more_than_its_policies_allow(policies, select, target):
    result = sized(takers=20, scaling=with_policies("scaleDown", *policies, select=select))
    assert result.target == target
    assert (result.limit is Limit.SCALE_DOWN) == (target > 0)


def test_a_policy_counts_what_was_changed_within_its_period():
    scaling = with_policies("scaleUp", ("Executors", 4, 60))
    history = History().with_change(3, T - 10, longest_period(pool(scaling=scaling).spec.scaling))
    limited = sized(runnable=1000, takers=3, scaling=scaling, history=history)
    assert limited.target == 4
    assert 50 <= limited.again_in <= 52
    free = sized(runnable=1000, takers=3, scaling=scaling, history=history, now=T + limited.again_in)
    assert free.target == 7


def test_what_has_left_within_the_period_may_come_back():
    scaling = with_policies("scaleUp", ("Executors", 4, 60))
    history = History().with_change(-6, T - 10, 60)
    assert sized(runnable=1000, takers=3, scaling=scaling, history=history).target == 13


def test_the_longest_period_is_remembered():
    assert longest_period(pool(scaling=autoscaled()).spec.scaling) == 0
    policies = with_policies("scaleUp", ("Executors", 4, 60), ("Percent", 4, 600))
    assert longest_period(pool(scaling=policies).spec.scaling) == 600


# Without the database.


def test_work_that_is_unknown_is_never_read_as_none():
    result = blind(takers=5)
    assert (result.target, result.mode, result.wanted) == (5, Mode.HOLD, None)
    assert result.history.unknown_since == T


def test_a_pool_that_is_held_still_has_its_minimum():
    assert blind(takers=1, least=3).target == 3


def test_what_was_remembered_begins_anew_when_the_work_is_known_again():
    scaling = autoscaled(window=300)
    first = sized(takers=5, scaling=scaling)
    held = blind(takers=5, history=first.history, now=T + 299, window=300)
    after = sized(takers=5, scaling=scaling, history=held.history, now=T + 600)
    assert after.target == 5
    assert after.history.unknown_since is None


def test_after_a_while_a_held_pool_grows_to_its_fallback():
    fallback = {"after": "1m", "replicas": 4}
    first = blind(takers=1, fallback=fallback)
    assert (first.target, first.again_in) == (1, 60)
    later = blind(takers=1, fallback=fallback, history=first.history, now=T + 60)
    assert (later.target, later.mode) == (4, Mode.FALLBACK)


def test_a_fallback_never_makes_a_pool_smaller():
    history = replace(History(), unknown_since=T - 1000)
    assert blind(takers=7, fallback={"replicas": 4}, history=history).target == 7


def test_a_fixed_size_needs_no_database():
    assert size(pool(replicas=3), Load(None, 1), History(), T).target == 3


# Growing at once.


@pytest.mark.parametrize(
    "scale_up",
    [
        {"policies": [{"type": "Executors", "value": 1, "periodSeconds": 60}]},
        {"stabilizationWindowSeconds": 60},
        {"selectPolicy": "Disabled"},
    ],
)
def test_more_demand_makes_no_pool_larger_that_waits_for_a_policy_or_a_window(scale_up):
    scaling = autoscaled(behavior={"scaleUp": scale_up})
    spec = pool(scaling=scaling).spec
    assert not can_grow(spec, sized(takers=1, runnable=1000, scaling=scaling))
    assert can_grow(spec, sized(takers=1, held=1, scaling=scaling))


# The time of the next reconcile.


def test_the_next_due_job_is_a_reason_to_look_again():
    assert sized(next_due=12.5).again_in == 12.5
    assert sized().again_in is None


def test_jobs_that_come_due_one_after_the_other_are_no_reason_to_look_at_each():
    assert sized(next_due=0.001).again_in == 0.25


def test_a_job_that_comes_due_is_no_reason_to_look_where_the_pool_is_at_its_maximum():
    assert sized(takers=3, runnable=1000, next_due=12.5, scaling=autoscaled(most=3)).again_in is None


def test_the_first_of_several_reasons_counts():
    assert sized(takers=5, next_due=12.5, scaling=autoscaled(window=300)).again_in == 12.5
    assert sized(takers=5, next_due=1000.0, scaling=autoscaled(window=300)).again_in < 311


# A target.


def shared(runnable, work, *, running=0.0, wait="30s", least=0, most=1000, **given):
    """The size of a pool of one slot each whose target is a wait."""
    scaling = autoscaled(least, most, target={"wait": wait})
    load = Load(Demand(runnable, work=Work(work, running)), **{"takers": 0, **given})
    return size(pool(poolSize=1, scaling=scaling), load, History(), T)


def test_with_a_target_short_jobs_share_slots():
    assert shared(1000, 1000 * 0.1 / 30).target == 4
    assert shared(1, 0.1 / 30).target == 1, "one slot if anything waits"
    assert shared(300, 300 * (0.1 / 30)).target == 1, "no second slot for the last digit of a sum"


def test_with_a_target_a_pool_has_no_more_slots_than_jobs():
    assert shared(7, 9.0).target == 7
    assert shared(7, 7.0).target == 7


def test_with_a_target_what_runs_keeps_its_slots_and_does_not_call_for_more():
    assert shared(1000, 3.3, running=0.01, takers=20, held=20).target == 20
    assert shared(0, 0.0, running=0.01, takers=20, held=20).target == 20
    assert shared(1, 0.1, running=1.0, takers=2, held=2).target == 3, "long runs leave no time for others"


def test_a_target_on_what_nobody_has_measured_changes_nothing():
    for runnable, held in ((0, 0), (5, 0), (5, 3)):
        unknown = shared(runnable, float(runnable), running=1.0, takers=held, held=held)
        assert unknown.wanted == runnable + held


def test_a_pool_whose_jobs_may_wait_is_sized_again_by_time():
    waiting = shared(1000, 3.3, takers=4)
    assert (waiting.again_in, can_grow(pool(scaling=autoscaled(most=1000)).spec, waiting)) == (7.5, False)
    from_zero = shared(1000, 3.3)
    assert (from_zero.again_in, can_grow(pool(scaling=autoscaled(most=1000)).spec, from_zero)) == (None, True)


class TestAfterTheClockWasAhead:
    """One answer of an API server may have a wrong date, and the operator stores what it remembers by it."""

    AHEAD = T + 365 * 86400

    def test_a_window_ends_in_its_time(self):
        scaling = autoscaled(window=300)
        history = sized(takers=20, now=self.AHEAD, scaling={**scaling, "maxReplicas": 20}).history
        again = sized(takers=20, history=history, scaling={**scaling, "maxReplicas": 20})
        assert again.target == 20
        assert again.again_in <= 310
        assert sized(takers=20, history=again.history, now=T + 311, scaling=scaling).target == 0

    def test_a_policy_counts_what_was_added_for_one_period(self):
        up = {"policies": [{"type": "Executors", "value": 2, "periodSeconds": 60}]}
        scaling = autoscaled(behavior={"scaleUp": up})
        history = History().with_change(1, self.AHEAD, 60).with_change(1, self.AHEAD + 30, 60)
        limited = sized(runnable=20, takers=2, history=history, scaling=scaling)
        assert limited.target == 2
        assert limited.again_in <= 62
        again = limited.history.with_change(0, T, 60)
        assert again.changed(T, 60) == 2
        assert sized(runnable=20, takers=2, history=again, now=T + 63, scaling=scaling).target == 4

    def test_an_outage_has_begun_by_now(self):
        fallback = {"after": "60s", "replicas": 3}
        holding = blind(takers=1, history=History(unknown_since=self.AHEAD), fallback=fallback)
        assert holding.again_in == 60
        assert blind(takers=1, history=holding.history, now=T + 61, fallback=fallback).target == 3

    def test_a_clock_that_is_right_changes_nothing(self):
        scaling = autoscaled(window=300)
        first = sized(takers=5, scaling=scaling)
        assert sized(takers=5, history=first.history, now=T + 1, scaling=scaling).history == first.history

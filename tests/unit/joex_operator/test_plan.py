"""The operator's plan for a pool."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from joex_operator.decide.actions import (
    AskDrain,
    CreateReplica,
    DeleteReplica,
    ForgetReplica,
    MarkSpare,
    ReportGone,
    UpdateReplica,
    Why,
)
from joex_operator.decide.history import History
from joex_operator.decide.plan import DatabaseProblem, decide
from joex_operator.decide.replicas import ObservedExecutor, Phase, Replica
from joex_operator.decide.scaling import Demand
from tests.unit.joex_operator.builders import NOW, autoscaled, pool, replica, replicas, seen

HOUR = timedelta(hours=1)


def decided(found, history=None, now=NOW, **spec):
    spec.setdefault("scaling", autoscaled())
    return decide(pool(**spec), found, history or History(), now)


def actions(found, **spec):
    return list(decided(found, **spec).actions)


def marked(done):
    return {action.replica: action.spare for action in done if isinstance(action, MarkSpare)}


def spare(index, held):
    return replica(index, executor=ObservedExecutor(alive=True, held=held, spare=True))


def created(done):
    return [action.index for action in done if isinstance(action, CreateReplica)]


def asked(done):
    return [action.replica for action in done if isinstance(action, AskDrain)]


# Growing.


def test_from_zero_the_first_job_makes_the_first_replica():
    assert actions(seen(runnable=1)) == [CreateReplica(0, Why.DEMAND)]


def test_a_name_that_another_owner_has_is_left_out():
    assert created(actions(replace(seen(replica(1), runnable=7), taken=frozenset({0, 2})))) == [3, 4, 5]


def test_nothing_is_made_for_no_work():
    assert actions(seen()) == []


def test_what_is_missing_is_made_in_one_step():
    assert created(actions(seen(replica(1), runnable=7))) == [0, 2, 3]


def test_replicas_that_start_are_not_made_twice():
    assert actions(seen(*replicas(4, Phase.PENDING), runnable=7)) == []


def test_a_step_that_is_repeated_makes_the_same_replicas():
    found = seen(replica(1), runnable=7)
    assert actions(found) == actions(found)


def test_the_bound_does_not_count_executors_that_drain():
    found = seen(*replicas(3, Phase.DRAINING, 1), runnable=20)
    assert created(actions(found, scaling=autoscaled(most=4))) == [3, 4, 5, 6]


def test_replicas_that_are_retired_or_going_make_room():
    found = seen(replica(0, Phase.RETIRED), replica(1, Phase.GOING), runnable=20)
    assert created(actions(found, scaling=autoscaled(most=2))) == [2, 3]


def test_a_drain_that_has_begun_is_not_taken_back():
    assert actions(seen(replica(0, Phase.DRAINING, 1), runnable=1)) == [CreateReplica(1, Why.DEMAND)]


def test_a_fixed_number_is_made_and_kept():
    assert created(actions(seen(runnable=100), replicas=2)) == [0, 1]
    assert actions(seen(*replicas(2, held=2), runnable=100), replicas=2) == []


# Shrinking.


def test_pending_replicas_go_first_then_idle_ones_and_busy_ones_last():
    found = seen(replica(0, held=1), replica(1), replica(2, Phase.PENDING), runnable=0)
    assert actions(found) == [
        AskDrain("documents-2", only_if_idle=True, why=Why.DEMAND),
        AskDrain("documents-1", only_if_idle=True, why=Why.DEMAND),
    ]


def test_busy_executors_are_never_drained_for_lack_of_work():
    found = seen(*replicas(10, held=1))
    plan = decided(found, poolSize=10)
    assert (asked(plan.actions), plan.sizing.target) == ([], 1)
    assert asked(actions(replace(found, demand=Demand(30)), poolSize=10)) == [], "their free slots take what comes"


def test_of_too_many_those_that_have_become_idle_leave():
    found = seen(*replicas(3, held=1), replica(3), replica(4), replica(5, Phase.PENDING))
    assert asked(actions(found)) == ["documents-5", "documents-4", "documents-3"]


def test_busy_executors_that_the_pool_could_do_without_leave_new_jobs_to_others():
    found = seen(replica(0, held=1), replica(1, held=2), replica(2, held=3), replica(3))
    assert marked(actions(found, poolSize=10)) == {"documents-0": True, "documents-1": True}
    assert asked(actions(found, poolSize=10)) == ["documents-3"]


def test_a_mark_stays_where_it_is_and_goes_when_more_are_needed():
    found = seen(spare(0, held=5), replica(1, held=1), replica(2, held=1))
    assert marked(actions(found, poolSize=10)) == {"documents-2": True}
    assert marked(actions(seen(spare(0, held=5), replica(1, held=1), runnable=10), poolSize=10)) == {
        "documents-0": False
    }
    assert marked(actions(seen(spare(0, held=5), replica(1, held=1), runnable=10), poolSize=10, replicas=2)) == {
        "documents-0": False
    }


def test_what_an_idle_one_leaves_behind_is_for_the_busy_one_beside_it():
    plan = actions(seen(spare(0, held=1), replica(1)), poolSize=10)
    assert plan == [AskDrain("documents-1", only_if_idle=True, why=Why.DEMAND), MarkSpare("documents-0", spare=False)]


def test_where_orders_drain_and_where_the_database_is_silent_nothing_is_marked():
    assert marked(actions(seen(*replicas(4, held=2)), replicas=1)) == {}
    assert marked(actions(seen(*replicas(4, held=2)), suspend=True)) == {}
    assert marked(actions(seen(*replicas(4, Phase.UNKNOWN), runnable=None))) == {}


def test_a_lowered_maximum_is_an_order_and_drains_busy_executors_too():
    found = seen(*replicas(5, held=1))
    assert actions(found, scaling=autoscaled(most=3)) == [
        AskDrain("documents-4", only_if_idle=False, why=Why.DEMAND),
        AskDrain("documents-3", only_if_idle=False, why=Why.DEMAND),
    ]


def test_a_fixed_number_that_is_lowered_drains_what_is_too_much():
    assert asked(actions(seen(*replicas(4, held=2)), replicas=1)) == ["documents-3", "documents-2", "documents-1"]


def test_a_suspended_pool_drains_all_and_makes_nothing():
    found = seen(replica(0, held=2), replica(1), replica(2, Phase.PENDING), runnable=50)
    assert actions(found, suspend=True) == [
        AskDrain("documents-2", only_if_idle=True, why=Why.SUSPENDED),
        AskDrain("documents-1", only_if_idle=True, why=Why.SUSPENDED),
        AskDrain("documents-0", only_if_idle=False, why=Why.SUSPENDED),
    ]


def test_asking_is_followed_by_a_look_at_the_answers():
    assert decided(seen(replica(0))).requeue_after < 0.1


# Removing.


def test_a_replica_is_deleted_when_the_database_says_that_it_is_retired():
    found = seen(replica(0, Phase.RETIRED), replica(1, Phase.DRAINING, 1))
    assert actions(found) == [DeleteReplica("documents-0", "uid-0", Why.RETIRED)]


@pytest.mark.parametrize("phase", [Phase.PENDING, Phase.IDLE, Phase.BUSY, Phase.DRAINING, Phase.UNKNOWN, Phase.LOST])
def test_no_other_replica_is_deleted(phase):
    found = seen(replica(0, phase, since=1000 * HOUR))
    for spec in ({}, {"suspend": True}, {"replicas": 0}, {"deleted_at": NOW}):
        assert not [action for action in actions(found, **spec) if isinstance(action, DeleteReplica)]


def test_a_name_is_forgotten_when_nothing_of_its_replica_is_left():
    assert actions(seen(replica(0, Phase.GOING, pods=()))) == [ForgetReplica("documents-0", NOW)]
    assert actions(seen(replica(0, Phase.GOING))) == [], "a pod that lives on must not register again"


def test_a_replica_that_somebody_else_deleted_is_waited_for():
    found = seen(replica(0, Phase.BUSY, uid=None), runnable=1)
    assert actions(found) == [CreateReplica(1, Why.DEMAND)]


def test_the_database_is_told_of_a_pod_that_is_gone():
    found = seen(replica(0, held=1, gone=("pod-9", "pod-0")))
    assert actions(found) == [ReportGone("pod-0")]


def test_of_a_pod_that_no_executor_lived_in_nothing_is_told():
    found = seen(replica(0, held=2, gone=("pod-9",)), replica(1, Phase.PENDING, gone=("pod-1",)), runnable=2)
    assert actions(found) == []


def test_a_replica_on_a_silent_node_is_given_up_and_replaced():
    found = seen(replica(0, Phase.LOST), runnable=1)
    assert actions(found, scaling=autoscaled(most=1)) == [
        AskDrain("documents-0", only_if_idle=True, why=Why.LOST),
        CreateReplica(1, Why.DEMAND),
    ]


def test_somebody_elses_scaling_of_a_replica_is_put_right():
    found = seen(replica(0, Phase.PENDING, pods_wanted=0), replica(1, held=1, pods_wanted=2), runnable=2)
    assert actions(found) == [UpdateReplica("documents-0", "uid-0"), UpdateReplica("documents-1", "uid-1")]


def test_who_is_to_leave_is_not_put_right():
    found = seen(replica(0, Phase.DRAINING, 1, pods_wanted=0), replica(1, Phase.RETIRED, pods_wanted=0))
    assert not [action for action in actions(found) if isinstance(action, UpdateReplica)]


# Draining for too long.


def drains_for(time, on_timeout, held=1):
    found = seen(replica(0, Phase.DRAINING, held, since=time))
    return decided(found, drain={"timeout": "1h", "onTimeout": on_timeout})


def test_a_drain_is_waited_for_however_long_it_takes():
    plan = drains_for(100 * HOUR, "Wait")
    assert plan.actions == ()
    assert plan.overdue == ("documents-0",)


def test_a_drain_is_ended_after_its_time_where_that_is_the_order():
    assert drains_for(HOUR, "Terminate").actions == (), "the executor has a moment to give its jobs back by itself"
    done = drains_for(HOUR + timedelta(minutes=1), "Terminate")
    assert done.actions == (DeleteReplica("documents-0", "uid-0", Why.DRAIN_TIMEOUT),)
    assert done.overdue == ()


def test_the_end_of_a_drains_time_is_a_reason_to_look_again():
    assert drains_for(HOUR - timedelta(seconds=7), "Terminate").requeue_after == 7
    assert drains_for(HOUR + timedelta(seconds=7), "Terminate").requeue_after == 8
    assert drains_for(2 * HOUR, "Wait").requeue_after is None


def test_an_executor_that_somebody_else_drains_has_all_the_time_it_wants():
    by_hand = replica(0, Phase.DRAINING, executor=ObservedExecutor(alive=True, held=1, draining=True, pods=("pod-0",)))
    assert actions(seen(by_hand), drain={"timeout": "0s", "onTimeout": "Terminate"}) == []


# Rolling out a template.

OLD: Any = {"template": "old"}
ONE_MISSING = {"maxSurge": 0, "maxUnavailable": 1}


def drained(index, *, only_if_idle=False):
    return AskDrain(f"documents-{index}", only_if_idle=only_if_idle, why=Why.TEMPLATE)


def test_the_only_executor_of_a_pool_drains_when_another_one_has_proved_the_template():
    old = replica(0, held=2, **OLD)
    assert actions(seen(old), replicas=1) == [CreateReplica(1, Why.FIXED)]
    assert actions(seen(old, replica(1, Phase.PENDING)), replicas=1) == []
    assert actions(seen(old, replica(1)), replicas=1) == [drained(0)]
    assert actions(seen(replica(0, Phase.DRAINING, 2, **OLD), replica(1)), replicas=1) == []


@pytest.mark.parametrize(
    ("size", "given", "more"),
    [(1, "25%", 1), (8, "25%", 2), (9, "25%", 3), (8, "0%", 0), (8, 3, 3), (2, 10, 2), (8, "100%", 8)],
)
def test_so_many_replacements_start_beyond_the_size_rounded_up(size, given, more):
    found = seen(*replicas(size, held=2, **OLD))
    done = actions(found, replicas=size, rollout={"maxSurge": given, "maxUnavailable": 1})
    assert len(created(done)) == (more or 1)
    assert len(asked(done)) == (0 if more else 1)


@pytest.mark.parametrize(
    ("size", "given", "missing"), [(3, "25%", 0), (7, "25%", 1), (8, "25%", 2), (8, 0, 0), (5, 3, 3), (5, 100, 5)]
)
def test_so_many_may_be_missing_rounded_down_once_one_has_proved_the_template(size, given, missing):
    found = seen(*replicas(size, held=2, **OLD))
    spec = {"replicas": size, "rollout": {"maxSurge": 1, "maxUnavailable": given}}
    assert asked(actions(found, **spec)) == []
    proven = seen(*found.replicas, replica(size))
    assert len(asked(actions(proven, **spec))) == min(missing + 1, size)


def test_where_both_shares_are_less_than_one_executor_one_may_be_missing():
    found = seen(*replicas(2, held=2, **OLD))
    assert actions(found, replicas=2, rollout={"maxSurge": 0, "maxUnavailable": "25%"}) == [
        drained(1),
        CreateReplica(2, Why.FIXED),
    ]


def test_what_drains_counts_no_slot():
    found = seen(*replicas(3, Phase.DRAINING, 2, **OLD), *replicas(3, first=3), *replicas(5, first=6, held=2, **OLD))
    done = actions(found, replicas=8)
    assert (len(asked(done)), created(done)) == (2, [11, 12, 13, 14])


def test_the_next_one_waits_until_the_new_one_takes_jobs():
    starting = [*replicas(2, held=2, **OLD), replica(2, Phase.DRAINING, 1), replica(3, Phase.PENDING)]
    assert actions(seen(*starting, runnable=2), rollout=ONE_MISSING) == []
    there = [*replicas(2, held=2, **OLD), replica(2, Phase.DRAINING, 1), replica(3, held=2)]
    assert asked(actions(seen(*there), rollout=ONE_MISSING)) == ["documents-1"]


def test_a_new_executor_that_may_yet_crash_costs_no_old_one_and_brings_no_other():
    fresh, slow = replica(4, held=1, fresh=True), {"minReadySeconds": 60}
    assert actions(seen(*replicas(4, held=2, **OLD), fresh), replicas=4, rollout=slow) == []
    assert actions(seen(*replicas(4, **OLD), fresh), replicas=4, rollout=slow) == []
    begun = replica(4, held=1, fresh=True, ready_since=NOW)
    assert decided(seen(*replicas(4, held=2, **OLD), begun), replicas=4, rollout=slow).requeue_after == 60
    without_surge = seen(*replicas(3, held=2, **OLD), fresh)
    assert actions(without_surge, replicas=4, rollout={**ONE_MISSING, **slow}) == []
    assert asked(actions(seen(*replicas(4, held=2, **OLD), replica(4, held=1)), replicas=4, rollout=slow)) != []


def test_a_rollout_that_is_paused_changes_nothing_and_new_replicas_have_the_new_template():
    found = seen(replica(0, held=2, **OLD), replica(1, Phase.PENDING, **OLD), runnable=2)
    assert actions(found, rollout={"paused": True}) == []
    assert actions(replace(found, demand=Demand(4)), rollout={"paused": True}) == [CreateReplica(2, Why.DEMAND)]


def test_when_a_rollout_is_paused_it_is_the_replacements_beyond_the_size_that_leave():
    """A person pauses it because something is wrong with the new ones."""
    for busy in (0, 2):
        found = seen(*replicas(4, held=busy, **OLD), replica(4, held=busy))
        assert asked(actions(found, replicas=4, rollout={"paused": True})) == ["documents-4"]


def test_replacements_that_start_are_no_reason_to_grow_and_shrink():
    slowly = autoscaled(behavior={"scaleDown": {"stabilizationWindowSeconds": 300}})
    first = decided(seen(*replicas(2, held=2, **OLD)), scaling=slowly)
    assert (first.sizing.target, created(first.actions)) == (2, [2])
    for third in (replica(2, Phase.PENDING), replica(2)):
        found = seen(*replicas(2, held=2, **OLD), third)
        plan = decided(found, history=History.from_dict(first.sizing.history.to_dict()), scaling=slowly)
        assert (plan.sizing.target, plan.sizing.history) == (2, first.sizing.history)
    settled = decided(seen(*replicas(2, held=2)), history=first.sizing.history, scaling=slowly)
    assert settled.sizing.history == History()


def test_where_busy_outdated_executors_are_more_than_the_work_needs_one_new_one_replaces_them():
    found = seen(*replicas(4, held=1, **OLD))
    assert actions(found, poolSize=10) == [
        *(MarkSpare(f"documents-{index}", spare=True) for index in (3, 2, 1)),
        CreateReplica(4, Why.DEMAND),
    ]
    done = actions(seen(*found.replicas, replica(4)), poolSize=10)
    assert asked(done) == [f"documents-{index}" for index in (3, 2, 1, 0)]
    assert created(done) == []


def test_idle_replicas_are_replaced_before_busy_ones():
    found = seen(replica(0, **OLD), replica(1, held=2, **OLD), replica(2))
    assert asked(actions(found, replicas=3, rollout=ONE_MISSING)) == ["documents-0"]


def test_replicas_that_never_started_are_replaced_at_once():
    found = seen(*replicas(3, Phase.PENDING, problem="CrashLoopBackOff", **OLD), runnable=6)
    done = actions(found)
    assert asked(done) == ["documents-2", "documents-1", "documents-0"]
    assert created(done) == [3, 4, 5]


def test_idle_replicas_that_take_no_jobs_are_replaced_at_once_and_are_no_capacity_in_a_rollout():
    """As after a change of the password, when the database refuses the logins of all."""
    found = seen(*replicas(3, unready=True, **OLD), replica(3, held=1, unready=True, **OLD))
    assert actions(found, replicas=4) == [
        *(drained(index, only_if_idle=True) for index in (2, 1, 0)),
        *(CreateReplica(index, Why.FIXED) for index in (4, 5, 6, 7)),
    ]


def test_a_template_that_does_not_start_stops_the_rollout():
    found = seen(*replicas(4, held=2, **OLD), replica(4, Phase.PENDING, problem="ImagePullBackOff"), runnable=2)
    assert actions(found, replicas=4) == []
    assert actions(found, replicas=5, rollout=ONE_MISSING) == []


def evicted(index: int, *, taker: bool) -> Replica:
    """A replica whose evicted pod finishes a job; its successor takes jobs, or starts."""
    known = ObservedExecutor(alive=True, held=1, left=int(taker), draining=not taker, pods=("old", "new")[: 1 + taker])
    return replica(index, executor=known, pods=("old", "new"), terminating=("old",))


@pytest.mark.parametrize("taker", [False, True])
def test_an_evicted_pod_has_its_successor_and_no_other(taker):
    assert actions(seen(evicted(0, taker=taker), replica(1, held=1), runnable=1)) == []


@pytest.mark.parametrize("taker", [False, True])
def test_one_with_a_predecessor_that_is_busy_leaves_after_all_that_are_idle(taker):
    found = seen(evicted(1, taker=taker), *replicas(2, first=2))
    assert asked(actions(found)) == ["documents-3", "documents-2"]
    assert asked(actions(seen(evicted(0, taker=taker)))) == []


def test_while_it_does_not_start_an_earlier_executor_that_starts_again_is_kept():
    """As after the eviction of its pod. Else a pool loses all of its executors when its nodes are upgraded."""
    broken = replica(4, Phase.PENDING, problem="ImagePullBackOff")
    homeless = replica(3, Phase.PENDING, problem="Unschedulable", unscheduled_since=NOW, **OLD)
    found = seen(replica(0, held=2, **OLD), *replicas(2, Phase.PENDING, first=1, **OLD), homeless, broken, runnable=2)
    assert actions(found, replicas=4) == []
    assert asked(actions(seen(*found.replicas[:3], broken), replicas=4, rollout=ONE_MISSING)) == []
    assert actions(seen(*replicas(1, Phase.PENDING, **OLD), broken), replicas=1) == []
    proven = seen(*found.replicas[:4], replica(4))
    assert asked(actions(proven, replicas=4)) == ["documents-3", "documents-2", "documents-1"]


def test_without_room_for_replacements_executors_that_never_start_are_replaced_one_by_one():
    found = seen(*replicas(3, Phase.PENDING, **OLD))
    done = actions(found, replicas=3, rollout=ONE_MISSING)
    assert (asked(done), created(done)) == (["documents-2"], [3])
    begun = seen(*found.replicas[:2], replica(3, Phase.PENDING))
    assert actions(begun, replicas=3, rollout=ONE_MISSING) == []


def test_nor_does_one_whose_executors_start_and_crash_cost_one_executor_after_the_other():
    found = seen(*replicas(4, held=2, **OLD), replica(4, Phase.CRASHING))
    assert actions(found) == []


def test_what_is_too_much_goes_first_and_counts_for_the_rollout():
    found = seen(replica(0, held=2, **OLD), replica(1, held=2), *replicas(2, first=2, **OLD))
    assert actions(found, rollout={"maxUnavailable": 1}) == [
        AskDrain("documents-3", only_if_idle=True, why=Why.DEMAND),
        drained(2),
        drained(0),
        CreateReplica(4, Why.DEMAND),
    ]


def test_a_rollout_that_is_stuck_keeps_no_idle_executor():
    found = seen(*replicas(3, **OLD), replica(3, Phase.PENDING, problem="ImagePullBackOff"), runnable=2)
    assert actions(found) == [
        AskDrain("documents-2", only_if_idle=True, why=Why.DEMAND),
        AskDrain("documents-1", only_if_idle=True, why=Why.DEMAND),
    ]


# A secret that names another database.


def made_for_another_database(count, **known):
    """Replicas of which the pool's present database says this."""
    found = replicas(count, template="old", database="db/old")
    return [replace(one, executor=ObservedExecutor(**known, database="db/new")) for one in found]


def test_executors_that_work_in_another_database_all_drain_and_others_replace_them():
    found = seen(*made_for_another_database(3), runnable=20)
    done = actions(found, scaling=autoscaled(most=2))
    assert done == [
        *(AskDrain(f"documents-{index}", only_if_idle=True, why=Why.DATABASE) for index in range(3)),
        CreateReplica(3, Why.DEMAND),
        CreateReplica(4, Why.DEMAND),
    ]
    others = replicas(2, first=3)
    retired = seen(*made_for_another_database(3, retired_at=NOW), *others, runnable=20)
    assert actions(retired, scaling=autoscaled(most=2)) == [
        DeleteReplica(f"documents-{index}", f"uid-{index}", Why.RETIRED) for index in range(3)
    ], "now no restart of theirs takes a job that it has no time for; their pods finish what they run"
    ending = [*(replace(one, uid=None) for one in retired.replicas[:3]), *others]
    assert actions(seen(*ending, runnable=20), scaling=autoscaled(most=2)) == []


def test_they_are_never_taken_for_executors_that_have_not_started():
    found = seen(*made_for_another_database(3))
    assert {one.phase for one in found.replicas} == {Phase.DRAINING}
    assert {action.why for action in actions(found)} == {Why.DATABASE}
    assert actions(seen(*replicas(3, Phase.UNKNOWN, database="db/old"), runnable=None)) == [], "nothing is known"


def test_an_executor_that_has_started_again_since_is_one_of_the_present_database():
    found = seen(*made_for_another_database(1, alive=True, held=2, pods=("pod-0",)))
    assert actions(found, replicas=1, rollout=ONE_MISSING) == [drained(0), CreateReplica(1, Why.FIXED)]


def test_one_on_a_lost_node_makes_room_as_its_pod_may_stay_for_ever():
    lost = [replace(one, lost=True) for one in made_for_another_database(1)]
    replaced = [AskDrain("documents-0", only_if_idle=True, why=Why.LOST), CreateReplica(1, Why.FIXED)]
    assert actions(seen(*lost), replicas=1) == replaced
    going = [replace(one, uid=None, executor=replace(one.executor, retired_at=NOW)) for one in lost]
    assert actions(seen(*going), replicas=1) == [CreateReplica(1, Why.FIXED)]


# Executors that crash.


def test_a_replica_that_crashes_is_no_capacity_and_another_one_is_made():
    assert actions(seen(replica(0, Phase.CRASHING), runnable=1)) == [CreateReplica(1, Why.DEMAND)]
    assert actions(seen(replica(0, Phase.CRASHING), replica(1, Phase.PENDING), runnable=1)) == []


def test_what_its_executor_holds_calls_for_another_one_before_the_database_knows_that_it_is_dead():
    dead = ObservedExecutor(alive=True, held=2, pods=("pod-0",))
    assert actions(seen(replica(0, Phase.CRASHING, executor=dead))) == [CreateReplica(1, Why.DEMAND)]


def test_it_takes_up_room():
    found = seen(replica(0, Phase.CRASHING), replica(1, Phase.CRASHING), runnable=20)
    assert created(actions(found, scaling=autoscaled(most=3))) == [2]
    assert actions(found, scaling=autoscaled(most=2)) == []
    assert actions(seen(replica(0, Phase.CRASHING)), replicas=1) == []


def test_it_stays_while_there_is_work_for_those_that_stand_in_for_it():
    assert actions(seen(replica(0, Phase.CRASHING), replica(1, held=2))) == []


@pytest.mark.parametrize(
    ("found", "spec"),
    [
        (seen(replica(0, Phase.CRASHING)), {}),
        (seen(replica(0, Phase.CRASHING), runnable=1), {"suspend": True}),
        (seen(replica(0, Phase.CRASHING), runnable=1), {"deleted_at": NOW}),
        (seen(replica(0, Phase.CRASHING), replica(1), replica(2)), {"replicas": 1}),
        (seen(replica(0, Phase.CRASHING, template="old"), replica(1, held=2)), {}),
    ],
)
def test_it_is_let_go_where_it_is_not_wanted(found, spec):
    assert "documents-0" in asked(actions(found, **spec))


# Executors that the cluster has no room for.


def test_while_no_node_has_room_for_one_no_more_are_asked_for():
    found = seen(replica(0, held=2), replica(1, Phase.UNSCHEDULED), runnable=20)
    assert actions(found) == []
    assert created(actions(replace(found, replicas=found.replicas[:1]))) == list(range(1, 10))
    assert actions(found, replicas=5) == []


def test_what_has_been_asked_for_is_the_size_from_which_policies_count():
    one = {"scaleUp": {"policies": [{"type": "Executors", "value": 1, "periodSeconds": 60}]}}
    found = seen(replica(0, held=2), *replicas(3, Phase.UNSCHEDULED, first=1), runnable=20)
    assert decided(found, scaling=autoscaled(behavior=one)).sizing.target == 5
    assert asked(actions(found, scaling=autoscaled(behavior={"scaleUp": {"selectPolicy": "Disabled"}}))) == []


def test_what_no_node_has_room_for_leaves_first():
    found = seen(replica(0), *replicas(2, Phase.UNSCHEDULED, first=1), replica(3, Phase.PENDING), runnable=4)
    assert asked(actions(found)) == ["documents-2", "documents-1"]


def test_a_template_that_asks_for_less_replaces_what_no_node_had_room_for():
    found = seen(replica(0, held=2), replica(1, Phase.UNSCHEDULED, template="old"), runnable=2)
    done = actions(found)
    assert (asked(done), created(done)) == (["documents-1"], [2])


# Without the database.


def test_while_the_database_is_silent_nothing_is_drained_or_deleted():
    found = seen(
        *replicas(3, Phase.UNKNOWN, template="old"), replica(3, Phase.GOING, executor=None, pods=()), runnable=None
    )
    for spec in ({}, {"replicas": 1}, {"suspend": True}, {"deleted_at": NOW}):
        assert actions(found, **spec) == []


def test_while_the_database_is_silent_a_fixed_number_is_still_made():
    assert created(actions(seen(replica(0, Phase.UNKNOWN), runnable=None), replicas=2)) == [1]


def test_a_secret_that_does_not_allow_pools_comes_to_no_new_executor_and_no_old_one_ends():
    problem = DatabaseProblem("Reason", "why", is_refusal=True)
    found = replace(seen(replica(0, Phase.UNKNOWN), runnable=None), database_problem=problem)
    fallback = {"minReplicas": 2, "maxReplicas": 9, "fallback": {"replicas": 5, "after": "1s"}}
    silent = History(unknown_since=NOW.timestamp() - 10)
    for spec in ({"replicas": 2}, {"scaling": fallback}):
        assert list(decided(found, silent, **spec).actions) == []
        assert created(decided(replace(found, database_problem=None), silent, **spec).actions)


def test_the_memory_of_the_silence_is_stored():
    assert decided(seen(runnable=None)).sizing.history.unknown_since == NOW.timestamp()


# Deletion of the pool.


def test_a_deleted_pool_drains_and_nothing_is_made_for_it_any_more():
    deleted = {"deleted_at": NOW}
    assert asked(actions(seen(replica(0, held=1), replica(1)), **deleted)) == ["documents-1", "documents-0"]
    assert actions(seen(runnable=9), **deleted) == []


def test_a_deleted_pool_whose_database_stays_silent_leaves_its_pods_to_drain_by_themselves():
    found = seen(replica(0, Phase.UNKNOWN), runnable=None)
    early = decided(found, deleted_at=NOW - timedelta(seconds=50))
    assert early.actions == ()
    assert early.requeue_after == 10
    late = decided(found, deleted_at=NOW - timedelta(seconds=60))
    assert late.actions == (DeleteReplica("documents-0", "uid-0", Why.UNREACHABLE),)


# The memory.

POLICY = {"policies": [{"type": "Executors", "value": 4, "periodSeconds": 60}]}


def changes(plan):
    return [executors for _, executors in plan.sizing.history.changes]


def test_growth_is_remembered_as_far_as_it_is_done():
    scaling = autoscaled(most=3, behavior={"scaleUp": POLICY})
    assert changes(decided(seen(replica(0, Phase.CRASHING), runnable=20), scaling=scaling)) == [2]


def test_shrinking_is_remembered():
    scaling = autoscaled(behavior={"scaleDown": {**POLICY, "stabilizationWindowSeconds": 0}})
    assert changes(decided(seen(*replicas(9)), scaling=scaling)) == [-4]


def test_replacing_a_replica_is_no_change_of_size():
    scaling = autoscaled(behavior={"scaleUp": POLICY})
    plan = decided(seen(replica(0, held=2, template="old")), scaling=scaling)
    assert created(plan.actions) == [1]
    assert changes(plan) == []
    plan = decided(
        seen(replica(0, template="old"), replica(1)), scaling=autoscaled(1, 1, behavior={"scaleDown": POLICY})
    )
    assert asked(plan.actions) == ["documents-0"]
    assert changes(plan) == []


def test_a_decision_is_made_of_what_is_there_alone():
    found = seen(replica(0), replica(1, held=1), runnable=9)
    assert decided(found) == decided(replace(found))

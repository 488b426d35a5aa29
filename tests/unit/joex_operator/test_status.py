"""Conditions, numbers and Events."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from joex_operator.api.objects import SpecError
from joex_operator.decide.actions import Action, AskDrain, CreateReplica, DeleteReplica, ForgetReplica, Why
from joex_operator.decide.conditions import Condition, conditions, refused
from joex_operator.decide.events import Event, events_of_actions, events_of_change
from joex_operator.decide.history import History
from joex_operator.decide.plan import DatabaseProblem, decide
from joex_operator.decide.replicas import Phase
from joex_operator.decide.scaling import Demand
from joex_operator.decide.status import pool_status, with_conditions
from tests.unit.joex_operator.builders import NOW, autoscaled, pool, replica, replicas, seen

LATER = NOW + timedelta(minutes=5)


def told(found, history=None, now=NOW, **spec):
    """The conditions, by type."""
    spec.setdefault("scaling", autoscaled())
    asked_for = pool(**spec)
    plan = decide(asked_for, found, history or History(), now)
    return {condition.type: condition for condition in conditions(asked_for, found, plan)}


def brief(found, kind, **spec):
    condition = told(found, **spec)[kind]
    return condition.status, condition.reason


def status(found, previous=None, now=NOW, **spec):
    spec.setdefault("scaling", autoscaled())
    asked_for = pool(**spec)
    return pool_status(asked_for, found, decide(asked_for, found, History(), now), previous or {}, now)


READY = [
    (seen(), {}, "True", "AtZero"),
    (seen(replica(0, held=1)), {}, "True", "Ready"),
    (seen(replica(0, Phase.PENDING), runnable=1), {}, "False", "Starting"),
    (seen(replica(0), replica(1, Phase.PENDING), runnable=4), {}, "True", "Ready"),
    (seen(replica(0), replica(1, Phase.PENDING)), {"replicas": 2}, "False", "Starting"),
    (seen(replica(0)), {"scaling": autoscaled(least=2)}, "False", "Starting"),
    (seen(replica(0), replica(1, Phase.PENDING, problem="ErrImagePull"), runnable=4), {}, "False", "ExecutorFailing"),
    (seen(replica(0, unready=True), runnable=1), {}, "False", "ExecutorFailing"),
    (seen(replica(0, held=1, unready=True)), {}, "True", "Ready"),
    (seen(*replicas(9), replica(9, Phase.UNSCHEDULED), runnable=20), {}, "True", "Ready"),
    (seen(*replicas(9), replica(9, Phase.UNSCHEDULED)), {"replicas": 10}, "False", "Unschedulable"),
    (seen(replica(0, Phase.PENDING, unscheduled_since=NOW), runnable=1), {}, "False", "Unschedulable"),
    (seen(replica(0, held=1, template="old")), {}, "True", "RollingOut"),
    (seen(*replicas(2), replica(2, Phase.DRAINING, 1, template="old")), {"replicas": 2}, "True", "RollingOut"),
    (seen(*replicas(3), *replicas(1, first=3, template="old")), {"replicas": 4}, "True", "RollingOut"),
    (seen(*replicas(2), replica(2, Phase.PENDING), replica(3, template="old")), {"replicas": 4}, "True", "RollingOut"),
    (seen(replica(0, template="old")), {"replicas": 1, "rollout": {"paused": True}}, "True", "RolloutPaused"),
    (seen(replica(0, Phase.PENDING), replica(1, template="old")), {"replicas": 3}, "False", "Starting"),
    (seen(replica(0), replica(1, Phase.DRAINING, template="", uid=None)), {"replicas": 2}, "False", "Starting"),
    (seen(replica(0, Phase.DRAINING, 1)), {"suspend": True}, "True", "Suspended"),
    (seen(), {"deleted_at": NOW}, "False", "Deleting"),
    (seen(replica(0, Phase.UNKNOWN), runnable=None), {}, "Unknown", "DatabaseUnreachable"),
    *(
        (replace(seen(runnable=None), database_problem=DatabaseProblem(reason, "why")), {}, "Unknown", reason)
        for reason in (
            "SecretMissing",
            "SecretNotAllowed",
            "SchemaMissing",
            "SchemaTooOld",
            "SchemaTooNew",
            "MigrationLocksOut",
        )
    ),
]


@pytest.mark.parametrize(("found", "spec", "expected", "reason"), READY)
def test_a_pool_is_ready_when_it_takes_jobs_and_nothing_of_it_fails(found, spec, expected, reason):
    assert brief(found, "Ready", **spec) == (expected, reason)


@pytest.mark.parametrize(
    ("found", "spec", "expected"),
    [
        (seen(), {}, ("False", "Settled")),
        (seen(*replicas(2, held=1)), {}, ("False", "Settled")),
        (seen(replica(0), runnable=9), {}, ("False", "Settled")),
        (seen(replica(0, Phase.PENDING)), {"replicas": 1}, ("True", "Starting")),
        (seen(replica(0), replica(1, template="old")), {"replicas": 2}, ("True", "RollingOut")),
        (seen(replica(0, template="old")), {"replicas": 1, "rollout": {"paused": True}}, ("False", "Settled")),
        (seen(replica(0), replica(1, Phase.DRAINING, 1)), {"replicas": 1}, ("True", "Draining")),
        (seen(replica(0, held=1)), {"suspend": True}, ("True", "Draining")),
        (seen(), {"suspend": True}, ("False", "Settled")),
        (seen(replica(0, held=1)), {"deleted_at": NOW}, ("True", "Draining")),
        (seen(replica(0, Phase.UNKNOWN), runnable=None), {}, ("False", "Settled")),
    ],
)
def test_a_pool_is_reconciling_while_something_of_its_spec_is_left_to_do(found, spec, expected):
    assert brief(found, "Reconciling", **spec) == expected
    assert brief(found, "Stalled", **spec) == ("False", "Valid")


def test_a_failing_executor_is_named_with_its_problem():
    found = seen(*replicas(3, Phase.PENDING, problem="CrashLoopBackOff: exit code 2"), runnable=6)
    condition = told(found)["Ready"]
    assert condition.message == "documents-0: CrashLoopBackOff: exit code 2 (3 of 3 executors)"
    assert condition.bad


def test_executors_that_crash_are_counted_and_named_and_it_is_said_that_they_keep_others_from_coming():
    found = seen(*replicas(2, Phase.CRASHING, problem="OOMKilled: exit code 137"), runnable=1)
    conditions = told(found, scaling=autoscaled(most=2))
    assert conditions["Ready"].reason == "ExecutorFailing"
    assert conditions["Ready"].message == "documents-0: OOMKilled: exit code 137 (2 of 2 executors)"
    assert conditions["ScalingLimited"].reason == "ExecutorsCrashing"
    assert told(found, scaling=autoscaled(most=3))["ScalingLimited"].reason == "DesiredWithinRange"


def test_it_is_told_how_many_of_how_many_executors_no_node_has_room_for_and_that_no_more_are_created():
    full: Any = {"unscheduled_since": NOW, "problem": "Unschedulable: 0/9 nodes are available"}
    found = seen(*replicas(250, held=2), *replicas(250, Phase.UNSCHEDULED, first=250, **full), runnable=2000)
    conditions = told(found, scaling=autoscaled(most=600))
    assert conditions["Ready"].status == "True"
    limited = conditions["ScalingLimited"]
    assert (limited.status, limited.reason) == ("True", "Unschedulable")
    assert limited.message == (
        "documents-250: Unschedulable: 0/9 nodes are available (250 of 500 executors): no more are created before "
        "these have a node"
    )
    assert told(replace(found, demand=Demand(0)), scaling=autoscaled(most=600))["ScalingLimited"].status == "False"


def test_so_it_is_told_of_those_whose_pods_the_api_server_refuses():
    quota: Any = {"unscheduled_since": NOW, "refused": True, "problem": "FailedCreate: exceeded quota"}
    found = seen(*replicas(2, held=2), *replicas(3, Phase.UNSCHEDULED, first=2, **quota), runnable=20)
    assert told(found)["Ready"].status == "True"
    limited = told(found)["ScalingLimited"]
    assert (limited.status, limited.reason) == ("True", "PodRefused")
    assert limited.message == (
        "documents-2: FailedCreate: exceeded quota (3 of 5 executors): no more are created before these have a pod"
    )
    first = seen(replica(0, Phase.PENDING, **quota), runnable=1)
    assert told(first)["Ready"].reason == "PodRefused"
    assert told(first)["Ready"].message == "documents-0: FailedCreate: exceeded quota (1 of 1 executor)"


ACTIVE = [
    (seen(), {}, "True", "ByDemand"),
    (seen(), {"replicas": 1}, "False", "FixedReplicas"),
    (seen(), {"suspend": True}, "False", "Suspended"),
    (seen(), {"deleted_at": NOW}, "False", "Deleting"),
    (seen(runnable=None), {}, "False", "DemandUnknown"),
    (seen(runnable=None), {"scaling": autoscaled(fallback={"after": "0s", "replicas": 1})}, "False", "Fallback"),
]


@pytest.mark.parametrize(("found", "spec", "expected", "reason"), ACTIVE)
def test_it_is_told_what_decides_about_the_size(found, spec, expected, reason):
    assert brief(found, "ScalingActive", **spec) == (expected, reason)


def test_who_fixed_the_size_is_told_how_to_undo_it():
    assert "set it to null" in told(seen(), replicas=1)["ScalingActive"].message


def test_it_is_told_what_holds_a_change_up():
    assert brief(seen(), "AbleToScale") == ("True", "ReadyForNewScale")
    assert brief(seen(replica(0)), "AbleToScale", scaling=autoscaled(window=300)) == ("True", "ScaleDownStabilized")
    growing = autoscaled(behavior={"scaleUp": {"stabilizationWindowSeconds": 60}})
    assert brief(seen(runnable=1), "AbleToScale", scaling=growing) == ("True", "ScaleUpStabilized")
    assert brief(seen(runnable=None), "AbleToScale") == ("False", "DatabaseUnreachable")
    assert brief(seen(replica(0, Phase.DRAINING, 1, since=timedelta(hours=2))), "AbleToScale") == ("True", "DrainSlow")
    assert brief(seen(*replicas(4, held=1)), "AbleToScale") == ("True", "WaitingForIdle")
    assert brief(seen(*replicas(4)), "AbleToScale") == ("True", "ReadyForNewScale"), "idle ones leave at once"
    replaced = seen(replica(0, held=2, template="old"), replica(1, Phase.PENDING))
    assert brief(replaced, "AbleToScale") == ("True", "ReadyForNewScale")


def test_it_is_told_what_could_not_be_done():
    asked_for = pool(scaling=autoscaled())
    plan = decide(asked_for, seen(runnable=1), History(), NOW)
    found = pool_status(asked_for, seen(runnable=1), plan, {}, NOW, failure="the quota is used up")
    [condition] = [one for one in found["conditions"] if one["type"] == "AbleToScale"]
    assert (condition["status"], condition["reason"]) == ("False", "ActionFailed")
    assert condition["message"] == "the quota is used up"


def test_it_is_told_what_limits_the_size():
    one_more = {"scaleUp": {"policies": [{"type": "Executors", "value": 1, "periodSeconds": 60}]}}
    assert brief(seen(), "ScalingLimited") == ("False", "DesiredWithinRange")
    assert brief(seen(runnable=99), "ScalingLimited") == ("True", "TooManyReplicas")
    assert brief(seen(), "ScalingLimited", scaling=autoscaled(least=1)) == ("True", "TooFewReplicas")
    assert brief(seen(runnable=9), "ScalingLimited", scaling=autoscaled(behavior=one_more)) == (
        "True",
        "ScalingPolicies",
    )


def test_why_the_database_is_silent_is_told_in_its_own_words():
    condition = told(seen(runnable=None))["DatabaseReachable"]
    assert (condition.status, condition.reason, condition.message) == ("False", "Unreachable", "connection refused")
    assert brief(seen(), "DatabaseReachable") == ("True", "Connected")


def test_a_suspended_pool_says_so():
    assert brief(seen(), "Suspended", suspend=True) == ("True", "Suspended")
    assert brief(seen(), "Suspended") == ("False", "NotSuspended")


def test_the_numbers_of_a_status():
    found = seen(
        replica(0, held=1),
        replica(1, template="old"),
        replica(2, Phase.PENDING),
        replica(3, Phase.DRAINING, 1),
        runnable=5,
    )
    stored = status(found)
    del stored["conditions"]
    assert stored == {
        "observedGeneration": 3,
        "replicas": 4,
        "desiredReplicas": 3,
        "readyReplicas": 2,
        "updatedReplicas": 2,
        "drainingReplicas": 1,
        "selector": "joex.dev/pool=documents",
        "history": {"size": 3},
    }


def test_while_the_database_is_silent_the_number_of_ready_executors_is_the_last_one_known():
    assert status(seen(replica(0, Phase.UNKNOWN), runnable=None), {"readyReplicas": 1})["readyReplicas"] == 1


def test_what_must_be_remembered_is_part_of_the_status_only_when_there_is_something():
    assert "history" not in status(seen(replica(0, held=1)))
    assert status(seen(replica(0)), scaling=autoscaled(window=300))["history"]["below"]


def test_a_condition_is_complete():
    first = status(seen())["conditions"][0]
    assert first == {
        "type": "Ready",
        "status": "True",
        "observedGeneration": 3,
        "lastTransitionTime": "2026-11-20T12:00:00Z",
        "reason": "AtZero",
        "message": "there is no work, and so no executor",
    }


def since(stored):
    return {condition["type"]: condition["lastTransitionTime"] for condition in stored["conditions"]}


def test_a_condition_keeps_its_time_until_its_status_changes():
    at_zero = status(seen())
    ready = status(seen(replica(0, held=1)), at_zero, LATER)
    assert ready["conditions"][0]["reason"] == "Ready"
    assert since(ready) == since(at_zero)
    suspended = status(seen(), ready, LATER, suspend=True)
    assert since(suspended)["ScalingActive"] == since(suspended)["Suspended"] == "2026-11-20T12:05:00Z"
    assert since(suspended)["DatabaseReachable"] == since(at_zero)["DatabaseReachable"]


def test_a_status_is_the_same_while_nothing_changes():
    found = seen(replica(0, held=1), runnable=1)
    first = status(found)
    assert status(found, first, LATER) == first


def test_a_spec_that_cannot_be_read_changes_nothing_but_what_is_told():
    before = status(seen(replica(0, held=1)))
    after = with_conditions(refused(SpecError("spec.poolSize: expected 1 or more")), 4, before, LATER)
    assert {**after, "conditions": 0, "observedGeneration": 3} == {**before, "conditions": 0}
    ready, reconciling, stalled, *others = after["conditions"]
    assert reconciling["status"] == "False"
    assert (stalled["status"], stalled["reason"]) == ("True", "InvalidSpec")
    assert (ready["status"], ready["reason"], ready["message"]) == (
        "False",
        "InvalidSpec",
        "spec.poolSize: expected 1 or more",
    )
    assert others == before["conditions"][1:-2]


def test_conditions_of_others_are_left_alone():
    before = {"conditions": [{"type": "Theirs", "status": "True"}], "other": 1}
    after = with_conditions([Condition("Ready", "True", "Mirrored", "")], 1, before, NOW)
    assert [condition["type"] for condition in after["conditions"]] == ["Ready", "Theirs"]
    assert after["other"] == 1


# Events.


def events(found, previous, **spec):
    return events_of_change(told(found, **spec).values(), previous)


def test_a_change_makes_an_event_and_no_change_makes_none():
    before = status(seen(replica(0, held=1)))
    assert events(seen(replica(0, held=1)), before) == []
    lost = events(seen(replica(0, Phase.UNKNOWN), runnable=None), before)
    assert Event("Warning", "Unreachable", "connection refused") in lost
    back = events(seen(replica(0, held=1)), status(seen(replica(0, Phase.UNKNOWN), runnable=None), before))
    assert Event("Normal", "Connected", "the database answers") in back


def test_of_a_new_pool_only_what_is_wrong_is_told():
    assert events(seen(), {}) == []
    assert [event.type for event in events(seen(runnable=None), {})] == ["Warning", "Warning"]


def test_a_pool_that_breathes_with_its_queue_makes_no_events_of_change():
    before = status(seen(*replicas(2, held=2), runnable=0))
    assert events(seen(*replicas(2, held=2), runnable=99), before) == []
    assert events(seen(*replicas(2)), before, scaling=autoscaled(window=300)) == []


def test_what_is_done_makes_an_event_for_each_reason():
    done: list[Action] = [
        CreateReplica(3, Why.DEMAND),
        CreateReplica(4, Why.DEMAND),
        AskDrain("documents-1", only_if_idle=True, why=Why.TEMPLATE),
        DeleteReplica("documents-2", "uid", Why.DRAIN_TIMEOUT),
        ForgetReplica("documents-0", NOW),
    ]
    assert events_of_actions("documents", done) == [
        Event("Normal", "Added", "documents-3, documents-4: demand"),
        Event("Normal", "Draining", "documents-1: template"),
        Event("Warning", "Removed", "documents-2: drain timeout"),
    ]


def test_many_replicas_are_not_all_named():
    (event,) = events_of_actions("documents", [CreateReplica(index, Why.DEMAND) for index in range(12)])
    assert event.message == "documents-0, documents-1, documents-2, documents-3, documents-4 and 7 more: demand"


def test_what_a_server_says_at_length_is_cut_so_that_the_status_can_be_stored():
    problem = DatabaseProblem("Unreachable", "no " * 100_000)
    status = with_conditions([Condition("DatabaseReachable", "False", problem.reason, problem.message)], 1, {}, NOW)
    assert len(status["conditions"][0]["message"]) <= 1000

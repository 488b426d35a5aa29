"""The phases of replicas, and the order of their removal."""

from dataclasses import replace
from itertools import islice
from typing import Any

import pytest

from joex_operator.decide.replicas import (
    ObservedExecutor,
    Phase,
    asked_for,
    draining,
    first_to_leave,
    free_indices,
    ready,
    takers,
)
from tests.unit.joex_operator.builders import NOW, replica

ALL = [replica(index, phase) for index, phase in enumerate(Phase)]


def named(found):
    return [replica.index for replica in found]


@pytest.mark.parametrize("phase", list(Phase))
def test_a_replica_stands_where_its_deployment_and_the_database_say(phase):
    assert replica(1, phase).phase is phase


def test_only_the_database_knows_whether_an_executor_lives():
    assert replica(1, executor=None).phase is Phase.UNKNOWN
    assert replica(1, executor=None, uid=None).phase is Phase.GOING


def test_an_executor_that_lives_on_a_silent_node_is_not_lost():
    assert replica(1, Phase.BUSY, lost=True).phase is Phase.BUSY


def test_an_executor_that_crashes_is_none_though_the_database_has_not_found_out():
    assert replica(1, Phase.BUSY, crashing=True).phase is Phase.CRASHING
    assert replica(1, Phase.PENDING, crashing=True).phase is Phase.CRASHING


def test_one_that_crashes_may_be_lost_or_retired_all_the_same():
    assert replica(1, Phase.LOST, crashing=True).phase is Phase.LOST
    assert replica(1, Phase.RETIRED, crashing=True).phase is Phase.RETIRED
    assert replica(1, Phase.DRAINING, crashing=True).phase is Phase.DRAINING


def test_an_executor_drains_whoever_asked_it_to():
    by_hand = ObservedExecutor(alive=True, draining=True, pods=("pod-1",))
    assert replica(1, executor=by_hand).phase is Phase.DRAINING


def test_one_whose_pod_ends_has_a_successor_that_starts_unless_the_operator_drains_it():
    leaving = ObservedExecutor(alive=True, held=2, draining=True, pods=("old",))
    evicted = replica(1, executor=leaving, pods=("old", "new"), terminating=("old",))
    assert (evicted.phase, evicted.held, evicted.left) == (Phase.PENDING, 2, 2)
    assert replace(evicted, pods=("old",)).phase is Phase.PENDING, "it will have one in a moment"
    assert replace(evicted, unscheduled=True).phase is Phase.UNSCHEDULED
    assert replace(evicted, terminating=()).phase is Phase.DRAINING
    assert replace(evicted, executor=replace(leaving, retired_at=NOW)).phase is Phase.DRAINING


def test_an_executor_that_was_retired_before_it_heard_of_it_drains():
    assert replica(1, executor=ObservedExecutor(alive=True, retired_at=NOW)).phase is Phase.DRAINING


def test_an_executor_without_a_deployment_is_about_to_leave():
    assert replica(1, Phase.BUSY, uid=None).phase is Phase.DRAINING


def test_an_executor_that_drained_by_hand_and_left_will_be_back():
    assert replica(1, executor=ObservedExecutor()).phase is Phase.PENDING


def test_who_starts_is_a_taker_and_who_drains_is_none():
    assert {replica.phase for replica in takers(ALL)} == {Phase.UNKNOWN, Phase.PENDING, Phase.IDLE, Phase.BUSY}
    assert {replica.phase for replica in asked_for(ALL)} - {replica.phase for replica in takers(ALL)} == {
        Phase.UNSCHEDULED
    }
    assert [replica.phase for replica in draining(ALL)] == [Phase.DRAINING]
    assert {replica.phase for replica in ready(ALL)} == {Phase.IDLE, Phase.BUSY}


def test_an_executor_that_lives_is_not_unscheduled_though_its_next_pod_is():
    assert replica(1, Phase.BUSY, unscheduled=True).phase is Phase.BUSY


def test_pending_replicas_go_before_idle_ones_and_idle_ones_before_busy_ones():
    found = [
        replica(0, held=2),
        replica(1, held=1),
        replica(2),
        replica(3, Phase.PENDING),
        replica(4),
        replica(5, Phase.PENDING),
        replica(6, Phase.UNSCHEDULED),
    ]
    assert named(first_to_leave(found, "now")) == [6, 5, 3, 4, 2, 1, 0]


def test_outdated_replicas_go_first_among_their_like():
    found = [
        replica(0, template="old"),
        replica(1),
        replica(2, held=1, template="old"),
        replica(3, held=1),
        replica(4, Phase.PENDING),
    ]
    assert named(first_to_leave(found, "now")) == [4, 0, 1, 2, 3]


def test_in_a_rollout_busy_outdated_replicas_go_before_those_that_have_replaced_others():
    found = [replica(0, held=1, template="old"), replica(1), replica(2, template="old"), replica(3, Phase.PENDING)]
    assert named(first_to_leave(found, "now", rolling=True)) == [3, 2, 0, 1]


def test_who_takes_nothing_any_more_is_not_asked_to_leave():
    assert {replica.phase for replica in first_to_leave(ALL, "now")} == {
        Phase.UNSCHEDULED,
        Phase.PENDING,
        Phase.IDLE,
        Phase.BUSY,
    }


def test_the_lowest_free_index_is_taken_first_and_that_of_a_going_replica_is_not_free():
    found = [replica(0), replica(2, Phase.GOING), replica(3, Phase.RETIRED)]
    assert list(islice(free_indices(found), 3)) == [1, 4, 5]


def test_the_index_of_a_replica_of_which_only_ended_pods_are_remembered_is_free():
    left: dict[str, Any] = {"pods": (), "gone": ("pod-1",)}
    assert next(free_indices([replica(0), replica(1, Phase.GOING, executor=ObservedExecutor(), **left)])) == 1
    assert next(free_indices([replica(0), replica(1, Phase.GOING, **left)])) == 2, "its name is retired still"
    assert next(free_indices([replica(0), replica(1, Phase.GOING, executor=None, **left)])) == 2, (
        "the database is silent"
    )
    living = ObservedExecutor(alive=True, pods=("pod-1",))
    assert next(free_indices([replica(0), replica(1, Phase.GOING, executor=living, **left)])) == 2

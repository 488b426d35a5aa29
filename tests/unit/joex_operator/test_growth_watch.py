"""When the reconciler arms the growth watch of a pool, and when it checks without a notification."""

import pytest

from joex.core.recheck import Recheck
from joex_operator.decide.growth_watch import PAUSES, REST, GrowthWatch


def test_a_watch_is_armed_and_renewed_before_its_end() -> None:
    watch = GrowthWatch(60.0)
    assert watch.wants_arming(100.0)
    watch.armed(100.0, Recheck(7, **PAUSES))
    assert not watch.wants_arming(120.0)
    assert watch.wants_arming(131.0)


def test_until_older_transactions_have_ended_it_looks_by_itself_ever_more_seldom() -> None:
    watch = GrowthWatch(60.0)
    watch.armed(100.0, Recheck(7, **PAUSES))
    delays = []
    for _ in range(4):
        watch.settle(100.0, 6)
        delays.append(watch.next_reconcile(100.0))
    assert delays == pytest.approx([0.2, 0.4, 0.8, 1.6])
    watch.settle(100.0, 7)
    assert watch.next_reconcile(100.0) is None


def test_one_that_is_renewed_has_no_older_transactions_to_wait_for() -> None:
    watch = GrowthWatch(60.0)
    watch.armed(100.0, Recheck(7, **PAUSES))
    watch.settle(101.0, 7)
    watch.armed(131.0, Recheck(9, **PAUSES))
    assert watch.recheck is None


def test_when_it_has_heard_it_is_disarmed_and_rests_and_looks_again() -> None:
    watch = GrowthWatch(60.0)
    watch.armed(100.0, Recheck(7, **PAUSES))
    watch.notified(101.0)
    assert watch.wants_disarming(101.0, can_grow=True)
    watch.disarmed()
    assert not watch.wants_disarming(101.0, can_grow=True)
    assert not watch.wants_arming(101.0)
    assert watch.next_reconcile(101.0) == REST
    assert watch.wants_arming(101.0 + REST)
    watch.armed(101.0 + REST, Recheck(9, **PAUSES))
    assert watch.notified_at is None
    assert watch.recheck == Recheck(9, **PAUSES)


def test_hearing_more_does_not_make_it_rest_longer() -> None:
    watch = GrowthWatch(60.0)
    watch.armed(99.0, Recheck(7, **PAUSES))
    watch.notified(100.0)
    watch.notified(100.2)
    watch.disarmed()
    assert watch.wants_arming(100.0 + REST)


def test_what_a_disarmed_one_hears_is_for_another_pool() -> None:
    watch = GrowthWatch(60.0)
    assert not watch.notified(100.0)
    watch.armed(100.0, Recheck(7, **PAUSES))
    assert watch.notified(101.0)
    watch.disarmed()
    assert not watch.notified(101.1)


def test_a_pool_that_can_not_grow_is_disarmed() -> None:
    watch = GrowthWatch(60.0)
    assert not watch.wants_disarming(100.0, can_grow=False)
    watch.armed(100.0, Recheck(7, **PAUSES))
    assert watch.wants_disarming(100.0, can_grow=False)
    assert not watch.wants_disarming(161.0, can_grow=False)

"""The outcome of a job after the end of a run."""

from datetime import timedelta

import pytest

from joex.core.job import State
from joex.core.outcome import Ending, Interruption, Outcome, Verdict, decide, written

SECOND = timedelta(seconds=1)


def verdict(ending, *, failures=0, retries=2, error=None, retry_after=None):
    outcome = Outcome(ending, error, retry_after)
    return decide(outcome, failures=failures, retries=retries, first_delay=SECOND)


def test_a_run_that_returns_is_a_success():
    assert verdict(Ending.RETURNED) == Verdict(State.SUCCESS)


def test_a_run_that_raises_is_tried_again_later_and_later_and_then_fails():
    verdicts = [verdict(Ending.RAISED, failures=n, error="boom") for n in range(4)]
    assert verdicts == [
        Verdict(State.STUCK, SECOND, "boom"),
        Verdict(State.STUCK, 2 * SECOND, "boom"),
        Verdict(State.FAILED, None, "boom", exhausted=True),
        Verdict(State.FAILED, None, "boom", exhausted=True),
    ]


def test_without_retries_the_first_failure_is_final():
    assert verdict(Ending.RAISED, retries=0).state is State.FAILED


def test_a_task_may_choose_its_own_delay_also_none():
    assert verdict(Ending.RAISED, retry_after=timedelta(hours=3)).delay == timedelta(hours=3)
    assert verdict(Ending.RAISED, retry_after=timedelta(0)) == Verdict(State.STUCK, timedelta(0))


def test_a_delay_that_the_task_chose_is_exact_and_any_other_has_its_jitter():
    def delay(**more):
        outcome = Outcome(Ending.RAISED, **more)
        return decide(outcome, failures=0, retries=1, first_delay=SECOND, jitter=0.5, chance=0.5).delay

    assert delay() == 1.25 * SECOND
    assert delay(retry_after=SECOND) == SECOND


def test_the_tasks_own_delay_does_not_add_a_retry():
    assert verdict(Ending.RAISED, failures=2, retry_after=SECOND).state is State.FAILED


def test_a_final_failure_is_not_tried_again_although_retries_are_left():
    assert verdict(Ending.FAILED, error="no such page") == Verdict(State.FAILED, None, "no such page")


def test_a_cancelled_run_is_cancelled():
    assert verdict(Ending.CANCELLED) == Verdict(State.CANCELLED)


def test_a_run_that_is_given_back_waits_again_whatever_it_failed_before():
    assert verdict(Ending.GIVEN_BACK, failures=99) == Verdict(State.WAITING)


@pytest.mark.parametrize("ending", list(Ending))
def test_every_ending_has_a_verdict_and_only_a_stuck_job_has_a_delay(ending):
    found = verdict(ending)
    assert (found.delay is not None) == (found.state is State.STUCK)


@pytest.mark.parametrize("ending", list(Ending))
def test_a_run_whose_own_transaction_has_committed_is_a_success_whatever_its_code_did_then(ending):
    outcome = Outcome(ending, "boom")
    assert decide(outcome, failures=9, retries=0, first_delay=SECOND, has_committed=True) == Verdict(State.SUCCESS)


@pytest.mark.parametrize("ending", list(Ending))
def test_a_run_that_knew_of_a_cancel_request_is_cancelled_however_it_ends(ending):
    assert Outcome(ending, "boom").interrupted(Interruption.CANCEL) == Outcome(Ending.CANCELLED)


@pytest.mark.parametrize("why", [Interruption.GIVE_BACK, Interruption.LOST])
def test_a_run_that_another_executor_is_to_repeat_counts_only_if_it_has_ended_by_itself(why):
    assert Outcome(Ending.CANCELLED, "asked to end").interrupted(why) == Outcome(Ending.GIVEN_BACK)
    for ended in (Outcome(Ending.RETURNED), Outcome(Ending.RAISED, "boom"), Outcome(Ending.FAILED, "no such page")):
        assert ended.interrupted(why) == ended


def test_a_run_that_cancels_itself_is_cancelled():
    assert Outcome(Ending.CANCELLED, "enough").interrupted(None) == Outcome(Ending.CANCELLED, "enough")


SUCCESS, TOO_LARGE = Verdict(State.SUCCESS), Verdict(State.FAILED, None, "too large")
BOOM = Verdict(State.STUCK, SECOND, "boom")


@pytest.mark.parametrize(
    ("sent", "said", "answer", "found", "is_written"),
    [
        (BOOM, BOOM, None, None, BOOM),
        (BOOM, BOOM, "canceled", None, Verdict(State.CANCELLED)),
        (BOOM, BOOM, "resubmitted", None, Verdict(State.WAITING)),
        # An earlier statement has ended the job, and its answer got lost.
        (BOOM, BOOM, "already", ("stuck", "boom"), BOOM),
        (TOO_LARGE, SUCCESS, "already", ("failed", "too large"), TOO_LARGE),
        (TOO_LARGE, SUCCESS, "already", ("success", None), SUCCESS),
        (TOO_LARGE, SUCCESS, "already", ("success", "of an earlier run"), SUCCESS),
        (TOO_LARGE, SUCCESS, "already", ("cancelled", None), Verdict(State.CANCELLED)),
        (SUCCESS, SUCCESS, "already", ("waiting", None), Verdict(State.WAITING)),
        (TOO_LARGE, SUCCESS, "already", None, SUCCESS),
    ],
)
def test_what_is_written_is_told_from_the_answer_of_the_database(sent, said, answer, found, is_written):
    assert written(sent, said, answer, found) == is_written

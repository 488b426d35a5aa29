"""Decides about a job at the end of a run: Outcome (what the run did) -> Verdict (the state of the job).

Only the job's row knows of requests that come at the last moment, and of the losses of runs whose executor has died:
`place_after` and `put_back` in ``store/sql/40_run.sql`` heed these while they write, and `written` reads the answer.
"""

from __future__ import annotations

import enum
from datetime import timedelta
from typing import NamedTuple

from joex.core.backoff import retry_delay
from joex.core.job import State
from joex.core.text import ErrorTexts


class Ending(enum.Enum):
    """How a run can end."""

    RETURNED = "returned"  # the task's code came to its end
    RAISED = "raised"  # it raised; another try may help
    FAILED = "failed"  # it failed for good: joex.Fail, or arguments that don't fit
    CANCELLED = "cancelled"  # a client cancelled it, or it raised joex.Cancel
    GIVEN_BACK = "given back"  # it was interrupted because the executor leaves; it does not count


class Interruption(enum.Enum):
    """Why a run is interrupted."""

    CANCEL = enum.auto()  # the job is to be cancelled
    GIVE_BACK = enum.auto()  # the executor leaves, or can't renew its lease: another executor is to run the job
    LOST = enum.auto()  # the run has lost its job: it may write nothing


class Outcome(NamedTuple):
    """How a run ended. ``error``: why it failed; ``retry_after`` is a delay that the task asked for."""

    ending: Ending
    error: str | None = None
    retry_after: timedelta | None = None

    def interrupted(self, why: Interruption | None) -> Outcome:
        """What an interruption makes of this outcome. None: there was none.

        The database ends a job with a cancel request as cancelled, whatever its run says. So a run that knew of the
        request is cancelled, however its code reacts. Other interruptions give back what has not ended by itself.
        """
        if why is Interruption.CANCEL:
            return Outcome(Ending.CANCELLED)
        return self if why is None or self.ending is not Ending.CANCELLED else Outcome(Ending.GIVEN_BACK)


class Judged(NamedTuple):
    """What the code of a run has come to that raised.

    Attributes:
        error: what it raised.
        outcome: how the run has ended so.
        trace: the error with its traceback, for the job's log; None: the task chose this end.
        texts: those of the error; None: it can't be shown.
    """

    error: BaseException
    outcome: Outcome
    trace: str | None = None
    texts: ErrorTexts | None = None


class Verdict(NamedTuple):
    """The state to write, and for a stuck job the delay until its next try. ``exhausted``: no retry is left."""

    state: State
    delay: timedelta | None = None
    error: str | None = None
    exhausted: bool = False


_FINAL = {
    Ending.RETURNED: State.SUCCESS,
    Ending.FAILED: State.FAILED,
    Ending.CANCELLED: State.CANCELLED,
    Ending.GIVEN_BACK: State.WAITING,
}
_REQUESTED = {"canceled": State.CANCELLED, "resubmitted": State.WAITING}


def decide(
    outcome: Outcome,
    *,
    failures: int,
    retries: int,
    first_delay: timedelta,
    has_committed: bool = False,
    jitter: float = 0.0,
    chance: float = 0.0,
) -> Verdict:
    """The verdict on a run.

    Args:
        outcome: how the run ended.
        failures: failed runs before this one (since the submission, or since a retry by hand).
        retries: re-runs allowed after a failed run.
        first_delay: the delay before the first re-run; it doubles with each further one.
        has_committed: its own transaction has ended the job, whatever the code did after that.
        jitter: see `retry_delay`; a delay that the task chose itself is exact.
        chance: see `retry_delay`.
    """
    if has_committed:
        return Verdict(State.SUCCESS)
    if outcome.ending is not Ending.RAISED:
        return Verdict(_FINAL[outcome.ending], error=outcome.error)
    if failures >= retries:
        return Verdict(State.FAILED, error=outcome.error, exhausted=True)
    delay = outcome.retry_after
    if delay is None:
        delay = retry_delay(first_delay, failures + 1, jitter=jitter, chance=chance)
    return Verdict(State.STUCK, delay, outcome.error)


def written(sent: Verdict, said: Verdict, answer: str | None, found: tuple[str, str | None] | None = None) -> Verdict:
    """What the database has made of a verdict, by the answer of its ``finish_many``; None: it has written the verdict.

    With the answer already, an earlier statement, whose answer got lost, has ended the job: with this verdict, or with
    ``said``, the first one on the run. ``found`` is the job's state and error; None: another run has the job by now.
    """
    if answer != "already":
        return sent if answer not in _REQUESTED else Verdict(_REQUESTED[answer])
    verdict = sent if found == (sent.state, sent.error) else said
    return verdict if found is None or found[0] == verdict.state else Verdict(State(found[0]))

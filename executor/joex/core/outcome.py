"""Decides about a job at the end of a run: Outcome (what the run did) -> Verdict (what the executor writes)."""

from __future__ import annotations

import enum
from datetime import timedelta
from typing import NamedTuple

from joex.core.backoff import retry_delay
from joex.core.job import State


class Ending(enum.Enum):
    """How a run can end."""

    RETURNED = "returned"  # the task's code came to its end
    RAISED = "raised"  # it raised; another try may help
    FAILED = "failed"  # it failed for good: joex.Fail, or arguments that don't fit
    CANCELLED = "cancelled"  # a client cancelled it, or it raised joex.Cancel
    GIVEN_BACK = "given back"  # it was interrupted because the executor leaves; it does not count


class Outcome(NamedTuple):
    """How a run ended. ``error``: why it failed; ``retry_after`` is a delay that the task asked for."""

    ending: Ending
    error: str | None = None
    retry_after: timedelta | None = None


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


def decide(
    outcome: Outcome,
    *,
    failures: int,
    retries: int,
    first_delay: timedelta,
    jitter: float = 0.0,
    chance: float = 0.0,
) -> Verdict:
    """The verdict on a run.

    Args:
        outcome: how the run ended.
        failures: failed runs before this one (since the submission, or since a retry by hand).
        retries: re-runs allowed after a failed run.
        first_delay: the delay before the first re-run; it doubles with each further one.
        jitter: see `retry_delay`; a delay that the task chose itself is exact.
        chance: see `retry_delay`.
    """
    if outcome.ending is not Ending.RAISED:
        return Verdict(_FINAL[outcome.ending], error=outcome.error)
    if failures >= retries:
        return Verdict(State.FAILED, error=outcome.error, exhausted=True)
    delay = outcome.retry_after
    if delay is None:
        delay = retry_delay(first_delay, failures + 1, jitter=jitter, chance=chance)
    return Verdict(State.STUCK, delay, outcome.error)

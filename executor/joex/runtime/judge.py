"""What a run has come to when its code raised: the same in an executor and in its processes."""

from __future__ import annotations

import logging
from contextlib import suppress
from datetime import timedelta

from joex.core.duration import parse_duration
from joex.core.job import TakenJob
from joex.core.outcome import Ending, Outcome
from joex.core.text import is_long
from joex.errors import Cancel, Fail, Retry
from joex.runtime.text import error_line, error_trace, storable
from joex.tracing import record_error

_log = logging.getLogger("joex.run")  # for handlers of the application: Joex itself writes tracebacks to job logs alone


def judged(error: BaseException, job: TakenJob) -> tuple[Outcome, str | None]:
    """The outcome of a run whose code raised, and the traceback for the job's log; None: the task chose this end."""
    if isinstance(error, Cancel):
        return Outcome(Ending.CANCELLED, error_line(error)), None
    record_error(error)
    if isinstance(error, Fail):
        return Outcome(Ending.FAILED, storable(str(error)) or "the task failed for good"), None
    if isinstance(error, Retry):
        return Outcome(Ending.RAISED, error_line(error), _delay(error)), None
    tell_handlers(error, job)
    return Outcome(Ending.RAISED, error_line(error)), error_trace(error)


def tell_handlers(error: BaseException, job: TakenJob) -> None:
    """Pass the error of a run to the handlers of the application; of one that is long, a line."""
    with suppress(Exception):  # of the handlers
        if is_long(error):
            _log.error("task %s failed in attempt %d: %s", job.task, job.attempt + 1, error_line(error))
        else:
            _log.error("task %s failed in attempt %d", job.task, job.attempt + 1, exc_info=error)


def _delay(error: Retry) -> timedelta | None:
    with suppress(Exception):  # a class of the task's own may have none
        return None if error.after is None else parse_duration(error.after)
    return None

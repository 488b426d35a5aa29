"""What a run has come to when its code raised: the same in an executor and in its processes."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from datetime import timedelta
from typing import Any, TypeVar

from joex.core.duration import parse_duration
from joex.core.job import TakenJob
from joex.core.outcome import Ending, Judged, Outcome
from joex.core.text import ErrorTexts, is_quick
from joex.errors import Cancel, Fail, Retry
from joex.runtime.bulk import Turns
from joex.runtime.text import error_line, storable
from joex.tracing import record_error

T = TypeVar("T")

_log = logging.getLogger("joex.run")  # for handlers of the application: Joex itself writes tracebacks to job logs alone

_SHORT, _LONGEST_PAUSE = 0.02, 1.0  # seconds
_LONGEST = 0.5  # seconds for which the texts of others wait for one: its own code may wait for ever
_MOST_LEFT = 2  # texts of a group that go on after that
_WAITS_FOR_LEFT = 5.0  # seconds that a further one of the group waits for them, as they may never end


class ErrorTexting:
    """Makes the texts of errors, in a thread, as that may take long, and in turns of the groups.

    The message of one may take half a second of Python's lock (of 500,000 wrong values, say), or wait for ever. What
    takes long is followed by a pause as long, so that twenty such errors do not keep the executor from all else until
    its lease is over. The turns go by time, so that the short ones of other groups come before the next long one. One
    that is not there after half a second goes on in its thread, and its group has two such at a time: further ones wait
    for five seconds, and then their runs end without a text. Those of which all is quick are made in the event loop,
    and at once: there may be thousands a second.

    Args:
        clock: tells seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._turns = Turns(clock, 1)
        self._thread = _thread()
        self._left: dict[tuple[str, str], set[asyncio.Future[Any]]] = {}  # texts that have left their turn

    def close(self) -> None:
        """Release the thread."""
        self._thread.shutdown(wait=False)

    async def made(self, job: TakenJob, error: BaseException, make: Callable[[], T], otherwise: Callable[[], T]) -> T:
        """What ``make`` returns, of this error; or ``otherwise``, if it can't be called, or not in time.

        A cancellation, by the task's own code, does not change that. One that takes very long keeps its run, as other
        code in a thread does, and not the texts of others.
        """
        if is_quick(error):
            return make()
        making: asyncio.Future[T] | None = None
        until = time.monotonic() + _WAITS_FOR_LEFT
        with suppress(asyncio.CancelledError, RuntimeError):  # (RuntimeError: the system has no room for a thread)
            while making is None:
                while len(left := self._left.get(job.tenant, set())) >= _MOST_LEFT:
                    patience = until - time.monotonic()
                    if patience <= 0:
                        return otherwise()
                    await asyncio.wait(left, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
                async with self._turns.of(job.tenant):
                    if len(self._left.get(job.tenant, ())) >= _MOST_LEFT:  # others of its group had turns meanwhile
                        continue
                    began = self._clock()
                    making = asyncio.get_running_loop().run_in_executor(self._thread, copy_context().run, make)
                    await until_done(making, _LONGEST)
                    seconds = self._clock() - began
                    if not making.done():
                        self._leave(job, making)
                    elif seconds > _SHORT:
                        await asyncio.sleep(min(seconds, _LONGEST_PAUSE))
        if making is None:
            return otherwise()
        await until_done(making)
        return making.result()

    def _leave(self, job: TakenJob, making: asyncio.Future[Any]) -> None:
        """Let this text go on in its thread, and others begin in another one."""
        self.close()
        self._thread = _thread()
        left = self._left.setdefault(job.tenant, set())
        left.add(making)

        def forget(done: asyncio.Future[Any]) -> None:
            left.discard(done)
            if not left:
                self._left.pop(job.tenant, None)

        making.add_done_callback(forget)


async def until_done(making: asyncio.Future[Any], within: float = math.inf) -> None:
    """Wait for it, at most for these seconds, whatever the task's own code cancels."""
    until = time.monotonic() + within
    while not making.done() and (left := until - time.monotonic()) > 0:
        with suppress(asyncio.CancelledError):
            await asyncio.wait({making}, timeout=None if left == math.inf else left)


def _thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="joex error texts")


def judged(error: BaseException, job: TakenJob, *, is_early: bool = False) -> Judged:
    """What a run has come to whose code raised.

    ``is_early``: this is for code of the run, which goes on with the texts. They have all tracebacks then, and the
    error of a job that has failed for good names its class, as that of others does.
    """
    try:
        return _judged(error, job, is_early=is_early)
    except BaseException:  # noqa: BLE001 - of the error's own code: even `isinstance` reads an attribute
        return unshown(error)


def unshown(error: BaseException) -> Judged:
    """What a run has come to whose error can't be shown."""
    kind = type(error)  # (`isinstance` would read an attribute of the error)
    if issubclass(kind, Cancel):
        ending = Ending.CANCELLED
    else:
        ending = Ending.FAILED if issubclass(kind, Fail) else Ending.RAISED
    return Judged(error, Outcome(ending, "the task raised an error that can't be shown"))


def _judged(error: BaseException, job: TakenJob, *, is_early: bool) -> Judged:
    texts = ErrorTexts(error)
    line = error_line(error, texts.message)
    if is_early:
        texts.trace()
    if isinstance(error, Cancel):
        return Judged(error, Outcome(Ending.CANCELLED, line), None, texts)
    record_error(texts)
    if isinstance(error, Fail):
        message = line if is_early else storable(texts.message) or "the task failed for good"
        return Judged(error, Outcome(Ending.FAILED, message), None, texts)
    if isinstance(error, Retry):
        return Judged(error, Outcome(Ending.RAISED, line, _delay(error)), None, texts)
    tell_handlers(texts, line, job)
    return Judged(error, Outcome(Ending.RAISED, line), storable(texts.trace()), texts)


def tell_handlers(texts: ErrorTexts, line: str, job: TakenJob) -> None:
    """Pass the error of a run to the handlers of the application; of one that is long, this line."""
    with suppress(Exception):  # of the handlers
        if texts.is_long:
            _log.error("task %s failed in attempt %d: %s", job.task, job.attempt + 1, line)
        else:
            _log.error("task %s failed in attempt %d", job.task, job.attempt + 1, exc_info=texts.error)


def _delay(error: Retry) -> timedelta | None:
    with suppress(Exception):  # a class of the task's own may have none
        return None if error.after is None else parse_duration(error.after)
    return None

"""Judges in an executor what the code of its runs has raised, in the turns of `ErrorTexting`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

from joex.context import RunReports
from joex.core.outcome import Ending, Judged, Outcome
from joex.core.text import ErrorTexts
from joex.runtime.judge import ErrorTexting, judged, tell_handlers, unshown
from joex.runtime.process_handle import Ended, ProcessDied
from joex.runtime.run import Run
from joex.runtime.text import error_line, error_trace
from joex.tracing import record_error

T = TypeVar("T")

STOPPED = Outcome(Ending.CANCELLED)
"""By an interruption."""


class Judging:
    """What the runs of an executor have come to whose code raised; tracebacks go to the logs of the jobs."""

    def __init__(self, reports: RunReports) -> None:
        self._reports = reports
        self._texts = ErrorTexting()
        self._loop = asyncio.get_running_loop()

    def close(self) -> None:
        """Release the thread."""
        self._texts.close()

    async def outcome(self, run: Run, error: BaseException) -> Outcome:
        """The outcome of a run whose code raised this."""
        # (`isinstance` would read an attribute of the error, which may raise.)
        if run.interruption is not None and issubclass(type(error), asyncio.CancelledError):
            return STOPPED
        found = None if run.context is None else run.context.end_by(error)
        if found is None:
            found = await self._text(run, error, partial(judged, error, run.job), partial(unshown, error))
        if found.trace is not None:
            self._reports.log(run.job, "error", found.trace)
        return found.outcome

    def early(self, run: Run, error: BaseException) -> Future[Judged]:
        """Judge this for further code of the run, on the loop or in a thread."""
        judge, otherwise = partial(judged, error, run.job, is_early=True), partial(unshown, error)
        return asyncio.run_coroutine_threadsafe(self._text(run, error, judge, otherwise, goes_on=True), self._loop)

    def ended(self, run: Run, ended: Ended) -> Outcome:
        """The outcome of a run whose arguments don't fit, or in a process, which has told handlers unless it died."""
        if ended.outcome.ending is not Ending.CANCELLED:
            record_error(ErrorTexts(ended))
        if isinstance(ended, ProcessDied):
            tell_handlers(ErrorTexts(ended), error_line(ended), run.job)
        if ended.trace is not None:
            self._reports.log(run.job, "error", ended.trace)
        return ended.outcome

    async def trace(self, run: Run, error: BaseException) -> str:
        """The error of a cancel handler with its traceback."""
        return await self._text(run, error, partial(error_trace, error), lambda: "an error that can't be shown")

    async def _text(
        self,
        run: Run,
        error: BaseException,
        make: Callable[[], T],
        otherwise: Callable[[], T],
        *,
        goes_on: bool = False,
    ) -> T:
        """What ``make`` returns, of this error (see `ErrorTexting`).

        While it waits for its turn, no code is at work, and so none that keeps an executor from leaving. While it is
        made, code of the task is: no other executor may begin an exclusive job meanwhile. ``goes_on``: nor while it
        waits, as further code of the run follows.
        """
        waiting = run.is_executing = goes_on and run.is_exclusive

        def making() -> T:
            run.is_executing = run.is_exclusive
            try:
                return make()
            finally:
                run.is_executing = waiting

        made = await self._texts.made(run.job, error, making, otherwise)
        run.is_executing = goes_on
        return made

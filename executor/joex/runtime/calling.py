"""Calls the code of tasks: on the executor's loop, in threads or in processes, with a time limit."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from joex.context import RunReports, SyncConnection
from joex.core.outcome import Ending, Outcome
from joex.errors import InvalidJob, JoexError
from joex.extras import needs
from joex.runtime.judging import Judging
from joex.runtime.process_handle import Ended, JsonText
from joex.runtime.processes import Processes
from joex.runtime.run import Defaults, Run
from joex.runtime.text import storable
from joex.task import Task

T = TypeVar("T")


class Caller:
    """Calls the code of tasks, in as many threads as there are slots; ``processes``: None, there are none."""

    def __init__(
        self, slots: int, defaults: Defaults, reports: RunReports, processes: Processes | None, largest_result: int
    ) -> None:
        self._processes = processes
        self._largest_result = largest_result
        self._defaults = defaults
        self._reports = reports
        self._loop = asyncio.get_running_loop()
        self.judging = Judging(reports)
        self._threads = ThreadPoolExecutor(slots, thread_name_prefix="joex task")

    def close(self) -> None:
        """Release the threads."""
        self._threads.shutdown(wait=False)
        self.judging.close()

    def call(self, run: Run, task: Task[..., Any]) -> Awaitable[Any]:
        """Call the task's code; returns an awaitable for its value."""
        limit = self._defaults.timeout_of(task)
        if self._processes is not None and self._processes.has(task):
            return self._in_process(self._processes, run, task, limit)
        if not task.is_async:
            return self._in_thread(functools.partial(_plain, run, task), run, limit)
        called: Awaitable[Any] = task.function(run.context, **_parsed(run, task))
        return called if limit is None else _within(limit, called)

    def is_in_process(self, task: Task[..., Any]) -> bool:
        """Whether a task runs in a process."""
        return self._processes is not None and self._processes.has(task)

    async def _in_process(
        self,
        processes: Processes,
        run: Run,
        task: Task[..., Any],
        limit: float | None,
        *,
        is_cancel_handler: bool = False,
    ) -> JsonText:
        try:
            return await processes.call(
                run,
                task,
                self._reports,
                retries=self._defaults.retries_of(run.job, task),
                largest_result=self._largest_result,
                limit=limit,
                is_cancel_handler=is_cancel_handler,
            )
        except TimeoutError:
            raise _TimedOut(limit or 0) from None

    async def _in_thread(self, code: Callable[[], Any], run: Run, limit: float | None = None) -> Any:
        """Run code in a thread. Python can't interrupt it: after the limit, ask it to end, and still await it.

        Meanwhile its slot and its job stay taken: another run would make two at once.
        """
        call = functools.partial(contextvars.copy_context().run, code)
        called: Future[tuple[Any, BaseException | None]] = Future()
        try:
            self._threads.submit(_call_unless_cancelled, call, called)
        except RuntimeError:
            # The system has no room for another thread. The pool keeps the call for its next free thread all the same,
            # and that thread may even have begun it.
            if called.cancel():
                raise
        future = asyncio.wrap_future(called, loop=self._loop)
        done, _ = await asyncio.wait({future}, timeout=limit)
        if not done and run.context is not None:
            run.context.ask_to_end()
        value, error = await future
        if error is None:
            return value
        if not done:
            raise _TimedOut(limit or 0) from error
        raise error

    async def call_cancel_handler(self, run: Run, task: Task[..., Any]) -> None:
        """Call the task's cancel handler, if it has one; its errors go to the job's log."""
        handler = task.cancel_handler
        if handler is None:
            return
        limit = self._defaults.timeout_of(task)
        try:
            try:
                if self._processes is not None and self._processes.has(task):
                    await self._in_process(self._processes, run, task, limit, is_cancel_handler=True)
                elif run.args is None:
                    return
                elif asyncio.iscoroutinefunction(handler):
                    run.kill = None if run.worker is None else run.worker.cancel
                    await _within(limit, handler(run.context, **run.args))
                else:
                    await self._in_thread(functools.partial(handler, run.context, **run.args), run)
            finally:
                if run.calls:
                    await until_over(run)
        except Ended as error:
            self._log_failed_handler(run, error.trace or error.outcome.error)
        except BaseException as error:  # noqa: BLE001 - the job is cancelled, whatever its handler does
            self._log_failed_handler(run, await self.judging.trace(run, error))
        finally:
            run.kill = None

    def _log_failed_handler(self, run: Run, said: str | None) -> None:
        self._reports.log(run.job, "error", f"its on_cancel handler failed: {said}")


@contextlib.contextmanager
def blocking_connection(url: str) -> Iterator[SyncConnection]:
    """A connection of psycopg, for the time of a block of a plain function."""
    with needs("sync", "ctx.transaction() and ctx.connection() of a plain function need"):
        from joex.store.sync_pool import Pool  # noqa: PLC0415 - few tasks need it
    pool = Pool(url, most=1, within=None)
    try:
        with pool.connection() as connection:
            yield connection
    finally:
        pool.close()


def _plain(run: Run, task: Task[..., Any]) -> JsonText:
    """Run a plain function, in its thread: validators and serializers of its types are code of the task, too."""
    value = task.function(run.context, **_parsed(run, task))
    return JsonText(None if run.context is None else run.context.result_text(value))


def _parsed(run: Run, task: Task[..., Any]) -> dict[str, Any]:
    """The arguments of a run, as its task has them. Their validators may raise anything."""
    try:
        run.args = task.parse_arguments(run.args_text)
    except InvalidJob as error:
        raise Ended(Outcome(Ending.FAILED, storable(str(error), 2000))) from None
    return run.args


def _call_unless_cancelled(call: Callable[[], Any], called: Future[tuple[Any, BaseException | None]]) -> None:
    if called.set_running_or_notify_cancel():
        called.set_result(_caught(call))


def _caught(call: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    """The value of a call, or its exception: a future can't carry every exception (StopIteration, for one)."""
    try:
        return call(), None
    except BaseException as error:  # noqa: BLE001 - see above
        return None, error


async def until_over(run: Run) -> None:
    """Wait for the calls in threads that the code of an exclusive run has left, whatever cancels it meanwhile."""
    run.is_executing = True
    if run.context is not None:
        run.context.ask_to_end()
    while run.calls:
        calls = [asyncio.wrap_future(call) for call in tuple(run.calls)]
        for call in calls:
            call.add_done_callback(lambda done: done.cancelled() or done.exception())  # (the run does not ask for it)
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait(calls)


async def _within(limit: float | None, called: Awaitable[Any]) -> Any:
    """Wait for at most this many seconds; None: without a limit."""
    clock = asyncio.timeout(limit)
    try:
        async with clock:
            return await called
    except TimeoutError:
        if clock.expired():
            raise _TimedOut(limit or 0) from None
        raise


class _TimedOut(JoexError):
    """A run exceeded its timeout."""

    def __init__(self, limit: float) -> None:
        super().__init__(f"timed out after {limit:g} s")

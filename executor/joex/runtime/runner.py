"""Runs of jobs in the slots of an executor, from their start to the `Outcome` that is written."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import AbstractContextManager, AsyncExitStack, suppress
from functools import partial
from typing import Any, Literal, TypeAlias, TypeVar
from uuid import UUID

from joex.app import App
from joex.context import ConnectionSource, Context, RunReports, SyncConnection
from joex.core.events import Emit, RunStarted
from joex.core.job import TakenJob
from joex.core.outcome import Ending, Interruption, Outcome, decide
from joex.errors import JoexError
from joex.places import Places
from joex.runtime.calling import Caller, until_over
from joex.runtime.finisher import End, Ends
from joex.runtime.judging import STOPPED
from joex.runtime.marks import Marks
from joex.runtime.process_handle import Ended, JsonText
from joex.runtime.processes import Processes
from joex.runtime.run import Defaults, Run
from joex.runtime.text import error_line, storable
from joex.task import Task

T = TypeVar("T")
_SyncConnections: TypeAlias = Callable[[], AbstractContextManager[SyncConnection]]

_TAIL = 0.05  # seconds that code may go on after its own transaction without being counted: most returns at once
_NO_PROCESS = "its on_cancel handler was not called: no process was free"
_RETURNED = Outcome(Ending.RETURNED)


class Runner:
    """The slots of an executor."""

    def __init__(
        self,
        app: App,
        slots: int,
        defaults: Defaults,
        *,
        finisher: Ends,
        reports: RunReports,
        connections: Callable[[TakenJob], ConnectionSource],
        fetch: Callable[[TakenJob], Coroutine[Any, Any, str | None]],
        mark_start: Callable[[TakenJob], Awaitable[bool]],
        largest_result: int,
        processes: Processes | None = None,
        process_slots: int | None = None,
        sync_connections: Callable[[Task[..., Any]], _SyncConnections | None] = lambda _: None,
        is_trusted: Callable[[], bool],
        on_room: Callable[[], None],
        on_overrun: Callable[[TakenJob], None],
        emit: Emit,
    ) -> None:
        self._app = app
        self._fetch = fetch  # the arguments that did not come with the job; None: it has lost the job
        self._largest_result = largest_result
        self._slots = slots
        self._defaults = defaults
        self._finisher = finisher
        self._reports = reports
        self._connections = connections
        self._sync_connections = sync_connections  # for tasks of processes that run in threads here: in tests
        self._is_trusted = is_trusted
        self._on_overrun = on_overrun  # called when the code of a run goes on and its job has ended, or is lost
        self._emit = emit
        self._loop = asyncio.get_running_loop()
        self._caller = Caller(slots, defaults, reports, processes, largest_result)
        self._in_processes: Places[tuple[str, str]] = Places(process_slots or slots, in_slots=self._in_slots)
        self.runs: dict[UUID, Run] = {}  # by lock id; a run stays until its end is written
        self._marks = Marks(self.runs, mark_start, on_room)

    @property
    def free(self) -> int:
        """Slots that may have another job: none while a suspect has one."""
        return self._slots - len(self.runs) if self._marks.is_room else 0

    @property
    def executing(self) -> int:
        """Runs whose code is running at this moment. May be read from any thread."""
        return sum(run.is_executing for run in list(self.runs.values()))

    @property
    def executing_exclusively(self) -> int:
        """Those whose task is exclusive. May be read from any thread."""
        return sum(run.is_executing and run.is_exclusive for run in list(self.runs.values()))

    def start(self, job: TakenJob) -> None:
        """Run a job in a free slot.

        Of several suspects from one take the runner keeps one, and gives the others back, so that a take comes between
        two of them, and the jobs of all groups have their turn.
        """
        run = Run(job)
        self.runs[job.lock_id] = run
        if job.suspect and not self._marks.keep(run):
            run.interruption = Interruption.GIVE_BACK
        task = self._app.get(job.task)
        if task is not None and task.exclusive:
            run.keep_calls()
        # (A suspect runs alone: it must not wait for the others, which wait for it.)
        waits = task is not None and self._caller.is_in_process(task) and not job.suspect
        work = self._run_in_turn(run) if waits else self._run(run)
        run.worker = self._loop.create_task(work, context=run.variables)

    def release(self, jobs: Iterable[TakenJob]) -> None:
        """Free the slots of jobs whose ends are written, unless a cancel handler still runs."""
        for job in jobs:
            run = self.runs.get(job.lock_id)
            if run is not None and not run.is_cleaning_up:
                del self.runs[job.lock_id]
                self._marks.released(run)

    def clean_up(self, job: TakenJob, done: Callable[[list[TakenJob]], None]) -> None:
        """The job has ended as cancelled, though its run did not know of the request: call the task's cancel handler.

        The run keeps its slot meanwhile; ``done`` is called afterwards.
        """
        run = self.runs.get(job.lock_id)
        if run is None or run.task is None or run.context is None or run.task.cancel_handler is None:
            return
        run.is_cleaning_up = True
        run.interruption = None  # that of its code, which is over
        self._on_overrun(job)
        run.worker = self._loop.create_task(self._clean_up(run, run.task, done), context=run.variables)

    async def _clean_up(self, run: Run, task: Task[..., Any], done: Callable[[list[TakenJob]], None]) -> None:
        try:
            async with AsyncExitStack() as place:
                if self._caller.is_in_process(task):
                    run.kill = None if run.worker is None else run.worker.cancel  # while it waits
                    if run.interruption is not None:  # before it could wait
                        self._reports.log(run.job, "error", _NO_PROCESS)
                        return
                    try:
                        await self._turn(run.job, place)
                    except asyncio.CancelledError:
                        self._reports.log(run.job, "error", _NO_PROCESS)
                        raise
                run.is_executing = True
                await self._caller.call_cancel_handler(run, task)
        finally:
            run.is_executing = run.is_cleaning_up = False
            done([run.job])

    def count_overruns(self, lock_ids: Iterable[UUID]) -> None:
        """Count those runs with these lock ids that still have their slots: their jobs have ended."""
        for lock_id in lock_ids:
            if lock_id in self.runs:
                self._on_overrun(self.runs[lock_id].job)

    def interrupt(self, run: Run, why: Interruption) -> None:
        """Interrupt a run: async code at its next await, a process at once; code in a thread sees ``ctx.cancelled``.

        Interrupts a run once, so that the task can clean up undisturbed. A later reason replaces an earlier one only
        if it is stronger: a lost run stays lost.
        """
        if run.is_cleaning_up:
            if why is Interruption.GIVE_BACK:  # (its job has ended, so that it can't be lost or cancelled)
                self._give_up_clean_up(run)
            return
        if why is Interruption.LOST and run.is_executing:
            self._on_overrun(run.job)
        if run.interruption is not None:
            run.interruption = why if why is Interruption.LOST else run.interruption
            return
        run.interruption = why
        if run.context is not None:
            run.context.ask_to_end()
        if run.interruptible and run.worker is not None:
            run.worker.cancel()

    def _give_up_clean_up(self, run: Run) -> None:
        run.interruption = Interruption.GIVE_BACK
        if run.context is not None:
            run.context.ask_to_end()
        if run.kill is not None and not run.is_executing:  # it waits for a process
            run.kill()

    def interrupt_all(self, why: Interruption) -> None:
        """Interrupt all runs."""
        for run in list(self.runs.values()):
            self.interrupt(run, why)

    def give_back_unstarted(self) -> None:
        """Give back the jobs whose code has not started."""
        for run in list(self.runs.values()):
            if run.started is None:
                self.interrupt(run, Interruption.GIVE_BACK)

    def give_back_exclusive(self) -> None:
        """Interrupt the runs of which there must not be two at a time, before another executor can start them."""
        for run in list(self.runs.values()):
            if run.is_exclusive:
                self.interrupt(run, Interruption.GIVE_BACK)

    def kill(self, *, exclusive: bool = False) -> None:
        """End the processes and cancel handlers of runs, or of exclusive ones alone: their lease is over."""
        for run in list(self.runs.values()):
            if run.kill is not None and (run.is_exclusive or not exclusive):
                run.kill()

    def close(self) -> None:
        """Release the threads."""
        self._caller.close()

    async def _run_in_turn(self, run: Run) -> None:
        """Run a job in a process, as soon as there are not too many."""
        async with AsyncExitStack() as place:
            has_turn = await _before_it_starts(run, self._turn(run.job, place))
            if isinstance(has_turn, Outcome):
                self._end(run, has_turn)
                return
            await self._run(run)

    def _in_slots(self) -> Counter[tuple[str, str]]:
        return Counter(run.job.tenant for run in self.runs.values())

    async def _turn(self, job: TakenJob, place: AsyncExitStack) -> Literal[True]:
        await place.enter_async_context(self._in_processes.one_of(job.tenant))
        return True

    async def _run(self, run: Run) -> None:
        """Run the code of a job, and hand over its outcome.

        Awaits the code directly: there are thousands of runs a second, and each further coroutine would cost all of
        them.
        """
        args: str | Outcome | None = await self._until_marked(run) if run.job.is_marked_first else run.job.args
        if args is None:
            args = await self._fetched(run)
        task = args if isinstance(args, Outcome) else self._begin(run, args)
        if isinstance(task, Outcome):
            self._end(run, task)
            return
        result = message = None
        run.is_executing = True
        try:
            run.interruptible = task.is_async or self._caller.is_in_process(task)
            try:
                value = await self._caller.call(run, task)
            finally:
                run.interruptible = False
                if run.calls:
                    await until_over(run)
            outcome, result, message = _RETURNED, self._result(run, value), _message(run)
        except Ended as error:
            outcome = self._caller.judging.ended(run, error)
        except BaseException as error:  # noqa: BLE001 - whatever a task does, its job has an end
            outcome = await self._caller.judging.outcome(run, error)
        try:
            if run.interruption is not None or outcome.ending is Ending.CANCELLED:
                _uncancel()  # the cancellation has done its work, even if the code swallowed it
                outcome = outcome.interrupted(run.interruption)
                if outcome.ending is Ending.CANCELLED and not run.has_committed:
                    run.is_executing = True
                    await self._caller.call_cancel_handler(run, task)
        finally:
            run.is_executing = False
        self._end(run, outcome, result, message)

    async def _fetched(self, run: Run) -> str | Outcome:
        """Fetch the arguments of a job that came without them; or the reason why there are none."""
        try:
            return await _before_it_starts(run, self._fetch(run.job))
        except JoexError as error:
            return Outcome(Ending.RAISED, f"args: {error_line(error)}")

    async def _until_marked(self, run: Run) -> str | Outcome | None:
        """Mark a run; returns the arguments that came with it."""
        try:
            marked = await _before_it_starts(run, self._marks.mark(run))
        except JoexError:
            return Outcome(Ending.GIVEN_BACK)
        return marked if isinstance(marked, Outcome) else run.job.args

    def _begin(self, run: Run, args: str) -> Task[..., Any] | Outcome:
        """The task whose code is to be called now, with the run's context and arguments; or why none is."""
        # The last check of the lease before the code runs: the process may have been stopped for a while.
        if run.interruption is None and not self._is_trusted():
            run.interruption = Interruption.GIVE_BACK
        if run.interruption is not None:
            return STOPPED.interrupted(run.interruption)
        job = run.job
        task = run.task = self._app.get(job.task)
        if task is None:
            # Another version of the app may know it: retry the job, until its retries are used up.
            return Outcome(Ending.RAISED, f"task {job.task!r} is unknown to this executor")
        run.args_text = args
        retries = self._defaults.retries_of(job, task)
        run.context = Context(
            job,
            retries=retries,
            reports=self._reports,
            connections=self._connections(job),
            sync_connections=self._sync_connections(task),
            largest_result=self._largest_result,
            judge=partial(self._caller.judging.early, run),
            on_finished=lambda: self._watch_tail(run),
        )
        run.started = time.monotonic()
        self._emit(RunStarted(job))
        self._finisher.started(job, run.started)
        return task

    def _watch_tail(self, run: Run) -> None:
        # (The code may run in a thread, and that thread may outlast this executor, and its event loop.)
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._loop.call_later, _TAIL, self.count_overruns, [run.job.lock_id])

    def _end(self, run: Run, outcome: Outcome, result: str | None = None, message: str | None = None) -> None:
        """Hand over how a run ended; with the result as JSON text, and its message."""
        run.has_ended = True
        self._marks.ended(run)
        has_committed = run.has_committed
        if run.interruption is Interruption.LOST and not has_committed:
            self._finisher.forget(run.job)
            return
        verdict = decide(
            outcome,
            failures=run.job.failures,
            retries=self._defaults.retries_of(run.job, run.task),
            first_delay=self._defaults.retry_delay_of(run.task),
            has_committed=has_committed,
            jitter=self._defaults.retry_jitter,
            chance=random.random(),  # noqa: S311 - it spreads retries, it is no secret
        )
        self._finisher.ended(End(run.job, verdict, result, message, run.seconds, has_committed=has_committed))

    def _result(self, run: Run, value: Any) -> str | None:
        if isinstance(value, JsonText):
            return value.text
        return None if value is None or run.context is None else run.context.result_text(value)


async def _before_it_starts(run: Run, asked: Coroutine[Any, Any, T | None]) -> T | Outcome:
    """Wait for what a run needs to start; or why it does not start. ``asked`` gives None: it has lost its job."""
    if run.interruption is not None:
        asked.close()
        return STOPPED.interrupted(run.interruption)
    run.interruptible = True
    try:
        found = await asked
    except asyncio.CancelledError:
        _uncancel()
        return STOPPED.interrupted(run.interruption)
    finally:
        run.interruptible = False
    if found is None:
        run.interruption = Interruption.LOST
        return Outcome(Ending.GIVEN_BACK)
    return found


def _uncancel() -> None:
    """Let further code await again: the cancellation of this asyncio task has done its work."""
    current = asyncio.current_task()
    while current is not None and current.cancelling():
        current.uncancel()


def _message(run: Run) -> str | None:
    return None if run.context is None or run.context.message is None else storable(run.context.message)

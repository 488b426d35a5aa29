"""Events -> numbers for Prometheus.

Labels are bounded: task, result, and fixed words. Any client can submit a job of a task that no app has, so one tally
counts all tasks that this executor's app does not have. What is the same for all executors of a queue is not counted
here: see `joex.observe.queue_gauges`. docs/reference/metrics.md explains each number.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from joex.core import events
from joex.core.job import State
from joex.observe import page
from joex.observe.tallies import RunTallies, TaskTally

_OTHERS = "(others)"
_DROPPED = (
    "the buffer was full",
    "their runs had lost their jobs",
    "the database could not be reached before the executor left",
)
"""Why `joex.runtime.job_log_writer` drops log lines; any other reason is an answer of the database."""

_TAKE_SECONDS = (0.01, 0.05, 0.25, 1)


class Metrics:
    """Counts what happens in an executor. A `joex.core.events.Emit`.

    Args:
        slots: how many jobs the executor runs at a time.
        busy: returns how many it runs now; called at each scrape.
        tasks: the names of the app's tasks. Only these have a label of their own.
    """

    def __init__(self, *, slots: int, busy: Callable[[], int], tasks: Container[str]) -> None:
        self._tasks = tasks
        self._registry = CollectorRegistry()
        self._tallies = RunTallies()
        self._registry.register(self._tallies)
        self._make_run_meters()
        self._make_executor_meters(slots, busy)
        self._meters: dict[type[events.Event], Callable[..., None]] = {
            events.Registered: self._registered,
            events.Taken: self._taken,
            events.RunStarted: self._run_started,
            events.RunEnded: self._run_ended,
            events.WorkerConflict: lambda _: self._conflicts.inc(),
            events.RunNotWritten: lambda event: self._not_written.labels(event.what).inc(),
            events.Rescued: self._rescued,
            events.Overdue: lambda event: self._overdue.inc(event.jobs),
            events.Repeated: lambda event: self._repeated.labels(event.outcome).inc(),
            events.LogLinesDropped: self._lines_dropped,
            events.TrustEnded: lambda _: self._trust_ended.inc(),
            events.DatabaseTrouble: lambda event: self._trouble.labels(event.service).inc(),
        }

    def __call__(self, event: events.Event) -> None:
        """Count an event."""
        meter = self._meters.get(type(event))
        if meter is not None:
            meter(event)

    def render(self) -> tuple[bytes, str]:
        """The page for Prometheus, and its content type."""
        return page.render(self._registry)

    def _make_run_meters(self) -> None:
        self._conflicts = self._counter(
            "joex_worker_conflicts", "Runs that had lost their job: their result was dropped."
        )
        self._not_written = self._counter(
            "joex_runs_not_written",
            "Runs whose start or end the database refused to store, and which were given up; the job of such an end is "
            "held until this executor leaves.",
            "what",
        )
        for what in ("start", "end"):  # there from the start, so that their first increase is seen
            self._not_written.labels(what)
        self._overdue = self._counter(
            "joex_runs_overdue",
            "Runs of any executor or worker that this executor put back because they did not report in time.",
        )
        self._repeated = self._counter(
            "joex_periodic_decisions",
            "Times at which a periodic task was due, by what this executor decided: submitted, started (Joex's "
            "own work), overlapping (its previous job is not finished), late (missed by more than its starting "
            "deadline), refused, trouble (tried again).",
            "outcome",
        )
        for outcome in ("submitted", "started", "overlapping", "late", "refused", "trouble"):  # there from the start
            self._repeated.labels(outcome)
        self._dropped = self._counter("joex_log_lines_dropped", "Log lines of jobs that were not written.", "reason")
        for reason in _DROPPED:  # there from the start, so that their first increase is seen
            self._dropped.labels(reason)

    def _make_executor_meters(self, slots: int, busy: Callable[[], int]) -> None:
        self._jobs_taken = self._counter("joex_jobs_taken", "Jobs that this executor took.")
        self._take_seconds = Histogram(
            "joex_take_seconds",
            "Seconds that the takes of this executor took.",
            buckets=_TAKE_SECONDS,
            registry=self._registry,
        )
        self._reclaimed = self._counter(
            "joex_jobs_reclaimed",
            "Jobs put back because their executor had died: found dead (dead), or at its own new start (restart).",
            "cause",
        )
        for cause in ("dead", "restart"):  # likewise
            self._reclaimed.labels(cause)
        self._trust_ended = self._counter(
            "joex_lease_trust_ended", "Times that this executor did not renew its lease in time."
        )
        self._trouble = self._counter(
            "joex_database_trouble", "Times that this executor could not reach the database.", "service"
        )
        Gauge(
            "joex_executor_start_timestamp_seconds",
            "Time at which the executor's process started, in Unix seconds.",
            registry=self._registry,
        ).set(time.time())
        Gauge("joex_slots", "Jobs that this executor can run at a time.", registry=self._registry).set(slots)
        Gauge("joex_slots_busy", "Jobs that this executor runs now.", registry=self._registry).set_function(busy)

    def _counter(self, name: str, help_text: str, *labels: str) -> Counter:
        return Counter(name, help_text, labels, registry=self._registry)

    def _registered(self, event: events.Registered) -> None:
        self._reclaimed.labels("restart").inc(event.reclaimed)

    def _rescued(self, event: events.Rescued) -> None:
        self._reclaimed.labels("dead").inc(event.jobs)

    def _taken(self, event: events.Taken) -> None:
        self._jobs_taken.inc(event.jobs)
        self._take_seconds.observe(event.seconds)

    def _run_started(self, event: events.RunStarted) -> None:
        self._tallies.add_wait(event.job.waited)

    def _run_ended(self, event: events.RunEnded) -> None:
        state = event.verdict.state
        self._tallies.ended[state] += 1
        tally = self._tallies.tasks.get(event.job.task) or self._first_of(event.job.task)
        if state is State.SUCCESS:
            tally.success += 1
        elif state is State.FAILED:
            tally.failed += 1
        if event.seconds is not None:
            tally.seconds += event.seconds

    def _lines_dropped(self, event: events.LogLinesDropped) -> None:
        self._dropped.labels(event.reason if event.reason in _DROPPED else _OTHERS).inc(event.lines)

    def _first_of(self, task: str) -> TaskTally:
        """The tally for a task that has none yet, or that the app does not have."""
        return self._tallies.tasks.setdefault(task if task in self._tasks else _OTHERS, TaskTally())

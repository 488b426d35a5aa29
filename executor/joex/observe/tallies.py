"""Counts runs, for Prometheus.

The executor's loop updates them for many thousand runs a second. So they are plain numbers, which a scrape turns into
a page; the counters of prometheus_client take a lock for each update.

Prometheus stores each series of each executor, so a task has three, and what concerns all tasks has no label for
them: fifty tasks with histograms made 1,863 series for an executor.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from joex.core.job import State

_WAIT_SECONDS = (0.01, 0.1, 1, 10, 60, 600, 3600)
_ENDS = (State.SUCCESS, State.FAILED, State.CANCELLED, State.STUCK, State.WAITING)


@dataclass(slots=True)
class TaskTally:
    """The runs of one task: how many of its jobs they finished, and how long they took, in seconds."""

    success: int = 0
    failed: int = 0
    seconds: float = 0.0


class RunTallies(Collector):
    """The runs of an executor. A collector for a registry of prometheus_client."""

    def __init__(self) -> None:
        self.tasks: dict[str, TaskTally] = {}
        self.ended = dict.fromkeys(_ENDS, 0)
        self._waits = [0] * (len(_WAIT_SECONDS) + 1)
        self._waited = 0.0

    def add_wait(self, seconds: float) -> None:
        """Count a job whose code has started, and how long it had waited."""
        self._waits[bisect_left(_WAIT_SECONDS, seconds)] += 1
        self._waited += seconds

    def collect(self) -> Iterable[Metric]:
        """Show them."""
        ended = CounterMetricFamily(
            "joex_runs_ended",
            "Runs that ended, by the state their job has then: success, failed, cancelled, stuck (it is retried), "
            "waiting (it was given back).",
            labels=("result",),
        )
        for state, runs in self.ended.items():
            ended.add_metric((str(state),), runs)
        finished = CounterMetricFamily(
            "joex_task_jobs_finished",
            "Jobs that this executor finished, by their task: success, or failed for good.",
            labels=("task", "result"),
        )
        seconds = CounterMetricFamily(
            "joex_task_run_seconds", "Seconds that runs took, by their task.", labels=("task",)
        )
        for task, tally in list(self.tasks.items()):  # (a scrape may come in a thread)
            finished.add_metric((task, "success"), tally.success)
            finished.add_metric((task, "failed"), tally.failed)
            seconds.add_metric((task,), tally.seconds)
        waited = HistogramMetricFamily(
            "joex_job_wait_seconds",
            "How long jobs whose code started had waited, from when they could be taken until they were.",
        )
        bounds = [*(str(float(bound)) for bound in _WAIT_SECONDS), "+Inf"]
        waited.add_metric((), list(zip(bounds, accumulate(self._waits), strict=True)), self._waited)
        return ended, finished, seconds, waited

"""Counts runs, for Prometheus.

The executor's loop updates them for many thousand runs a second. So they are plain numbers, which a scrape turns into
a page; the counters of prometheus_client take a lock for each update.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from joex.core.group_bucket import GROUP_BUCKETS
from joex.core.job import State

_RUN_SECONDS = (0.005, 0.025, 0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 14400)
_WAIT_SECONDS = (0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 15, 60, 300, 900, 3600, 14400, 86400)
_ENDS = (State.SUCCESS, State.FAILED, State.CANCELLED, State.STUCK, State.WAITING)


class Distribution:
    """The distribution of values over buckets, each from above the bound before up to its own bound."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def add_to(self, family: HistogramMetricFamily, labels: Sequence[str]) -> None:
        """Add it to a metric, under these labels."""
        names = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        family.add_metric(labels, list(zip(names, accumulate(self._counts), strict=True)), self._sum)


@dataclass(slots=True)
class RunTally:
    """The runs of one task in one queue; how long the jobs of a queue have waited is shared by its tasks.

    ``waited`` is by the bucket of the job's group.
    """

    waited: tuple[Distribution, ...]
    started: int = 0
    ended: dict[State, int] = field(default_factory=lambda: dict.fromkeys(_ENDS, 0))
    seconds: Distribution = field(default_factory=lambda: Distribution(_RUN_SECONDS))


class RunTallies(Collector):
    """The tallies of all runs: ``runs``, by task and queue. A collector for a registry of prometheus_client."""

    def __init__(self) -> None:
        self.runs: dict[tuple[str, str], RunTally] = {}
        self._waited: dict[str, tuple[Distribution, ...]] = {}

    def add(self, task: str, queue: str) -> RunTally:
        """The tally of a task in a queue; creates it at first use."""
        waited = self._waited.get(queue)
        if waited is None:
            waited = self._waited[queue] = tuple(Distribution(_WAIT_SECONDS) for _ in range(GROUP_BUCKETS))
        return self.runs.setdefault((task, queue), RunTally(waited))

    def collect(self) -> Iterable[Metric]:
        """Show them."""
        by_task = ("task", "queue")
        started = CounterMetricFamily("joex_runs_started", "Runs whose code started.", labels=by_task)
        ended = CounterMetricFamily(
            "joex_runs_ended",
            "Runs that ended, by the state their job has then: success, failed, cancelled, stuck (it is retried), "
            "waiting (it was given back).",
            labels=(*by_task, "result"),
        )
        seconds = HistogramMetricFamily("joex_run_seconds", "How long runs took.", labels=by_task)
        waited = HistogramMetricFamily(
            "joex_job_wait_seconds",
            "How long jobs whose code started had waited, from when they could be taken until they were.",
            labels=("queue", "group_bucket"),
        )
        for labels, run in list(self.runs.items()):  # (a scrape may come in a thread)
            started.add_metric(labels, run.started)
            run.seconds.add_to(seconds, labels)
            for state, runs in run.ended.items():
                ended.add_metric((*labels, str(state)), runs)
        for queue, distributions in list(self._waited.items()):
            for bucket, distribution in enumerate(distributions):
                distribution.add_to(waited, (queue, str(bucket)))
        return started, ended, seconds, waited

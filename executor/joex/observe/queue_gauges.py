"""The gauges of unfinished jobs by queue, as the operator and the console export them.

They are the same for all executors of a queue, so that no executor exports them.
"""

from __future__ import annotations

from joex.observe.gauge import Gauge
from joex.store.stats import QueueStats

STATES = ("waiting", "deferred", "scheduled", "running", "stuck")
"""The states of unfinished jobs."""
MOST_QUEUES = 500
"""Queues with series of their own."""
OTHERS = "(others)"
"""The queue that stands for all further ones."""

OF_QUEUES: tuple[Gauge[QueueStats], ...] = (
    Gauge(
        "joex_queue_jobs",
        "Unfinished jobs, by state.",
        lambda one: [((state,), getattr(one, state)) for state in STATES],
        ("state",),
    ),
    Gauge(
        "joex_queue_oldest_runnable_seconds",
        "Age of the oldest runnable job.",
        lambda one: [((), one.oldest_runnable_seconds)],
    ),
    Gauge("joex_queue_groups", "Groups that have unfinished jobs.", lambda one: [((), one.groups)]),
)
"""Each queue has these."""


def bounded(stats: list[QueueStats]) -> list[QueueStats]:
    """Bound the number of series, because any client can create queues: after so many, sum the others up."""
    named, others = stats[:MOST_QUEUES], stats[MOST_QUEUES:]
    if not others:
        return named
    ages = [one.oldest_runnable_seconds for one in others if one.oldest_runnable_seconds is not None]
    sums = {name: sum(getattr(one, name) for one in others) for name in (*STATES, "groups")}
    return [*named, QueueStats(queue=OTHERS, oldest_runnable_seconds=max(ages, default=None), **sums)]

"""The databases of the pools, and the queues in them, as they were last told."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from urllib.parse import parse_qs, urlsplit

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from joex.store.stats import QueueStats

_STATES = ("waiting", "deferred", "scheduled", "running", "stuck")
_MOST_QUEUES = 500
_OTHERS = "(others)"


def database_name(url: str) -> str:
    """What a database is called in labels: its host and its name, never a user or a password.

    >>> database_name("postgresql://joex:secret@db.prod:5432/shop?sslmode=require")
    'db.prod:5432/shop'
    >>> database_name("postgresql://joex@/shop?host=/run/postgresql")
    '/run/postgresql/shop'
    """
    parts = urlsplit(url)
    hosts = parts.netloc.rpartition("@")[2] or parse_qs(parts.query).get("host", [""])[0]
    return hosts + parts.path


class Databases(Collector):
    """The gauges of all databases, made when they are asked for."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._queues: dict[str, Sequence[QueueStats]] = {}
        self._reachable: dict[str, bool] = {}
        registry.register(self)

    def queues(self, database: str, stats: Iterable[QueueStats]) -> None:
        """The queues of a database, all of them."""
        self._queues[database] = _bounded(sorted(stats, key=lambda one: one.queue))

    def reachable(self, database: str, value: bool) -> None:  # noqa: FBT001 - the value of a gauge
        """Whether a database answers; what was known of its queues is not known any more when it does not."""
        self._reachable[database] = value
        if not value:
            self._queues.pop(database, None)

    def forget(self, database: str) -> None:
        """Nobody uses a database any more."""
        self._reachable.pop(database, None)
        self._queues.pop(database, None)

    def clear(self) -> None:
        """Nothing is known any more."""
        self._reachable.clear()
        self._queues.clear()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Called for each page."""
        by_queue = ["database", "queue"]
        jobs = GaugeMetricFamily("joex_queue_jobs", "Unfinished jobs, by state.", labels=[*by_queue, "state"])
        oldest = GaugeMetricFamily(
            "joex_queue_oldest_runnable_seconds", "How old the oldest job is that may run.", labels=by_queue
        )
        groups = GaugeMetricFamily("joex_queue_groups", "Groups that have unfinished jobs.", labels=by_queue)
        for database, stats in list(self._queues.items()):
            for one in stats:
                for state in _STATES:
                    jobs.add_metric([database, one.queue, state], getattr(one, state))
                if one.oldest_runnable_seconds is not None:
                    oldest.add_metric([database, one.queue], one.oldest_runnable_seconds)
                groups.add_metric([database, one.queue], one.groups)
        reachable = GaugeMetricFamily(
            "joex_operator_database_reachable", "1: the database answers; 0: it does not.", labels=["database"]
        )
        for database, value in list(self._reachable.items()):
            reachable.add_metric([database], value)
        yield from (jobs, oldest, groups, reachable)


def _bounded(stats: list[QueueStats]) -> list[QueueStats]:
    """Anybody who submits can make up queues: after so many, the others are told together."""
    told, others = stats[:_MOST_QUEUES], stats[_MOST_QUEUES:]
    if not others:
        return told
    ages = [one.oldest_runnable_seconds for one in others if one.oldest_runnable_seconds is not None]
    sums = {name: sum(getattr(one, name) for one in others) for name in (*_STATES, "groups")}
    return [*told, QueueStats(queue=_OTHERS, oldest_runnable_seconds=max(ages, default=None), **sums)]

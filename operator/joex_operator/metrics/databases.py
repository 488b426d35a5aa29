"""The databases of the pools, and the queues in them, as they were last told."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from joex.store.stats import QueueStats, Shares

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


class DatabaseMetrics(Collector):
    """The gauges of all databases, made when they are asked for."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._queues: dict[str, Sequence[QueueStats]] = {}
        self._shares: dict[str, Sequence[Shares]] = {}
        self._reachable: dict[str, bool] = {}
        registry.register(self)

    def queues(self, database: str, stats: Iterable[QueueStats]) -> None:
        """The queues of a database, all of them."""
        self._queues[database] = _bounded(sorted(stats, key=lambda one: one.queue))

    def shares(self, database: str, shares: Iterable[Shares]) -> None:
        """How the slots of the queues of a database are shared, all that is known of it."""
        self._shares[database] = _bounded_shares(sorted(shares, key=lambda one: one.queue))

    def reachable(self, database: str, value: bool) -> None:  # noqa: FBT001 - the value of a gauge
        """Whether a database answers; what was known of its queues is not known any more when it does not."""
        self._reachable[database] = value
        if not value:
            self._queues.pop(database, None)
            self._shares.pop(database, None)

    def forget(self, database: str) -> None:
        """Nobody uses a database any more."""
        for known in (self._reachable, self._queues, self._shares):
            known.pop(database, None)

    def clear(self) -> None:
        """Nothing is known any more."""
        for known in (self._reachable, self._queues, self._shares):
            known.clear()

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
        yield from (jobs, oldest, groups, *self._collect_shares(), reachable)

    def _collect_shares(self) -> Iterator[GaugeMetricFamily]:
        for gauge in _GAUGES:
            family = GaugeMetricFamily(gauge.name, gauge.text, labels=["database", "queue", *gauge.labels])
            for database, shares in list(self._shares.items()):
                for one in shares:
                    for labels, value in gauge.values(one):
                        if value is not None:
                            family.add_metric([database, one.queue, *labels], value)
            yield family


@dataclass(frozen=True, slots=True)
class _Gauge:
    """A number of how the slots of a queue are shared, or several, by further labels."""

    name: str
    text: str
    values: Callable[[Shares], Iterable[tuple[tuple[str, ...], float | None]]]
    labels: tuple[str, ...] = ()


_GAUGES = (
    _Gauge(
        "joex_queue_active_groups",
        "Groups that hold slots, or of which a job could be taken now.",
        lambda one: [((), one.active_groups)],
    ),
    _Gauge(
        "joex_queue_largest_group_share",
        "Which part of the slots in use one group holds, the one with the most.",
        lambda one: [((), one.largest_share)],
    ),
    _Gauge(
        "joex_queue_group_wait_seconds",
        "How long the next job of a group has waited: of the group in the middle, and of the one that waits longest.",
        lambda one: [(("0.5",), one.median_wait_seconds), (("1",), one.longest_wait_seconds)],
        ("quantile",),
    ),
    _Gauge(
        "joex_queue_groups_behind",
        "Groups of which a job could be taken now, two levels or more below another group.",
        lambda one: [((), one.groups_behind)],
    ),
    _Gauge(
        "joex_queue_behind_seconds",
        "How long the next job of a group that is behind has waited at most.",
        lambda one: [((), one.behind_seconds)],
    ),
)


def _bounded(stats: list[QueueStats]) -> list[QueueStats]:
    """Anybody who submits can make up queues: after so many, the others are told together."""
    told, others = stats[:_MOST_QUEUES], stats[_MOST_QUEUES:]
    if not others:
        return told
    ages = [one.oldest_runnable_seconds for one in others if one.oldest_runnable_seconds is not None]
    sums = {name: sum(getattr(one, name) for one in others) for name in (*_STATES, "groups")}
    return [*told, QueueStats(queue=_OTHERS, oldest_runnable_seconds=max(ages, default=None), **sums)]


def _bounded_shares(shares: list[Shares]) -> list[Shares]:
    """The same; of shares and waits the largest is told."""
    told, others = shares[:_MOST_QUEUES], shares[_MOST_QUEUES:]
    if not others:
        return told

    def largest(name: str) -> float | None:
        return max((value for one in others if (value := getattr(one, name)) is not None), default=None)

    together = Shares(
        queue=_OTHERS,
        active_groups=sum(one.active_groups for one in others),
        largest_group=None,
        largest_share=largest("largest_share"),
        median_wait_seconds=largest("median_wait_seconds"),
        longest_wait_seconds=largest("longest_wait_seconds"),
        groups_behind=sum(one.groups_behind for one in others),
        behind_seconds=largest("behind_seconds"),
    )
    return [*told, together]

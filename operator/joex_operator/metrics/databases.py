"""Metrics of the databases of the pools and of their queues, from the latest query."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from typing import TypeVar
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from joex.core.json_values import shown
from joex.core.url import database_hosts, parameters
from joex.observe.gauge import Gauge
from joex.observe.queue_gauges import MOST_QUEUES, OF_QUEUES, OTHERS, bounded
from joex.store.stats import QueueStats, Shares

Row = TypeVar("Row", QueueStats, Shares)


def database_name(url: str) -> str:
    """The name of a database in labels: its hosts, their ports and its own name, never a password.

    Pools whose URLs have one name share its jobs. So the name has whatever part of a URL leads to another database: the
    parameters count where asyncpg reads them. Without any name of a database the server takes that of the user.

    >>> database_name("postgresql://joex:secret@db.prod:5432/shop?sslmode=require")
    'db.prod:5432/shop'
    >>> database_name("postgresql://joex@/shop?host=/run/postgresql")
    '/run/postgresql/shop'
    >>> database_name("postgresql://joex@db.prod?dbname=shop&port=5433")
    'db.prod:5433/shop'
    """
    parts, given, hosts = urlsplit(url), parameters(url), database_hosts(url)
    where = parts.netloc.rpartition("@")[2] or given.get("host", "")
    if "port" in given and not (hosts and all(port for _, port in hosts)):
        where += f":{given['port']}"
    name = parts.path[1:] if parts.path else given.get("dbname") or given.get("database")
    return f"{where}/{name or parts.username or given.get('user', '')}"


class DatabaseMetrics(Collector):
    """The gauges of all databases, which the methods name by their URL.

    Pools with different roles may use one database. It has one series, so it is reachable if it is for all of them:
    a role that works must not hide one that does not.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._queues: dict[str, Sequence[QueueStats]] = {}
        self._shares: dict[str, Sequence[Shares]] = {}
        self._reachable: dict[str, bool] = {}
        registry.register(self)

    def queues(self, url: str, stats: Iterable[QueueStats]) -> None:
        """Replace the statistics of all queues of a database.

        Raises:
            TypeError: it has answered with something else.
        """
        self._queues[url] = bounded(sorted(map(_checked, stats), key=lambda one: one.queue))

    def shares(self, url: str, shares: Iterable[Shares]) -> None:
        """Replace the shares of all queues of a database; errors are as those of `queues`."""
        self._shares[url] = _bounded_shares(sorted(map(_checked, shares), key=lambda one: one.queue))

    def reachable(self, url: str, value: bool) -> None:  # noqa: FBT001 - the value of a gauge
        """Note whether a database answers. While it does not, its queues have no samples."""
        self._reachable[url] = value
        if not value:
            self._queues.pop(url, None)
            self._shares.pop(url, None)

    def forget(self, url: str) -> None:
        """Remove a database that no pool uses any more."""
        for known in (self._reachable, self._queues, self._shares):
            known.pop(url, None)

    def clear(self) -> None:
        """Remove all samples."""
        for known in (self._reachable, self._queues, self._shares):
            known.clear()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The samples of a page."""
        # (Of several URLs with one name, one has the statistics. Another may have had them until it failed.)
        stats = {database_name(url): some for url, some in list(self._queues.items()) if some}
        shared = {database_name(url): some for url, some in list(self._shares.items()) if some}
        queues = [((database, one.queue), one) for database, some in stats.items() for one in some]
        shares = [((database, one.queue), one) for database, some in shared.items() for one in some]
        yield from (gauge.family(("database", "queue"), queues) for gauge in OF_QUEUES)
        yield from (gauge.family(("database", "queue"), shares) for gauge in _OF_SHARES)
        reachable: dict[str, bool] = {}
        for url, value in list(self._reachable.items()):
            reachable[database_name(url)] = value and reachable.get(database_name(url), True)
        yield _REACHABLE.family(("database",), [((database,), value) for database, value in reachable.items()])


_OF_SHARES: tuple[Gauge[Shares], ...] = (
    Gauge(
        "joex_queue_active_groups",
        "Groups that hold slots or have a runnable job.",
        lambda one: [((), one.active_groups)],
    ),
    Gauge(
        "joex_queue_largest_group_share",
        "The largest share of the slots in use that one group holds.",
        lambda one: [((), one.largest_share)],
    ),
    Gauge(
        "joex_queue_group_wait_seconds",
        "How long the next job of a group has waited: the median of the groups (0.5) and the longest (1).",
        lambda one: [(("0.5",), one.median_wait_seconds), (("1",), one.longest_wait_seconds)],
        ("quantile",),
    ),
    Gauge(
        "joex_queue_groups_behind",
        "Groups with a runnable job, two levels or more below another group.",
        lambda one: [((), one.groups_behind)],
    ),
    Gauge(
        "joex_queue_behind_seconds",
        "The longest that the next job of a group that is behind has waited.",
        lambda one: [((), one.behind_seconds)],
    ),
)
_REACHABLE: Gauge[bool] = Gauge(
    "joex_operator_database_reachable",
    "Whether the database answers: 1 or 0.",
    lambda reachable: [((), reachable)],
)


def _checked(row: Row) -> Row:
    """Check the types: a view that the owner of the database has replaced must not end the page of all databases."""
    for field in fields(row):
        value = getattr(row, field.name)
        if isinstance(value, str) if field.name in ("queue", "largest_group") else isinstance(value, int | float):
            continue
        if value is not None or field.name == "queue":
            raise TypeError(f"{field.name} of a queue: the database has answered {shown(value)}")
    return row


def _bounded_shares(shares: list[Shares]) -> list[Shares]:
    """The same for shares: sum the counts of the others up, and take the largest share and wait."""
    named, others = shares[:MOST_QUEUES], shares[MOST_QUEUES:]
    if not others:
        return named

    def largest(name: str) -> float | None:
        return max((value for one in others if (value := getattr(one, name)) is not None), default=None)

    together = Shares(
        queue=OTHERS,
        active_groups=sum(one.active_groups for one in others),
        largest_group=None,
        largest_share=largest("largest_share"),
        median_wait_seconds=largest("median_wait_seconds"),
        longest_wait_seconds=largest("longest_wait_seconds"),
        groups_behind=sum(one.groups_behind for one in others),
        behind_seconds=largest("behind_seconds"),
    )
    return [*named, together]

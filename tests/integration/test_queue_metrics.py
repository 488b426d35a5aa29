"""The operator queries the statistics of its databases' queues at intervals."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from joex.store import stats
from joex_operator.control.database import Databases
from joex_operator.control.queue_metrics import refresh_queue_metrics
from joex_operator.metrics.databases import DatabaseMetrics
from tests.support.waiting import eventually

EVERY = 0.05


class Noted(DatabaseMetrics):
    """Records for each query whether the database answered."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self.registry = registry
        self.answers: list[bool] = []

    def reachable(self, url: str, value: bool) -> None:  # noqa: FBT001 - as there
        self.answers.append(value)
        super().reachable(url, value)


@asynccontextmanager
async def measuring(*urls: str, every: float = EVERY) -> AsyncIterator[Noted]:
    """The metrics of an operator whose pools have these URLs."""

    def nobody(*_: Any) -> Any:
        raise AssertionError("this test has no periodic tasks")

    metrics, databases = Noted(CollectorRegistry()), Databases(lambda *_: None, migrate=False, start_scheduler=nobody)
    for url in urls:
        databases.get(url)
    measuring = asyncio.create_task(refresh_queue_metrics(databases, metrics, every))
    try:
        yield metrics
    finally:
        measuring.cancel()
        await asyncio.gather(measuring, return_exceptions=True)
        await databases.close()


@pytest.fixture
async def metrics(database_url: str) -> AsyncIterator[Noted]:
    """The metrics of an operator that queries the test's database."""
    async with measuring(database_url) as metrics:
        yield metrics


def told(metrics: Noted, name: str) -> list[float]:
    page = generate_latest(metrics.registry)
    families = text_string_to_metric_families(page.decode())
    return [sample.value for family in families for sample in family.samples if sample.name == name]


async def test_the_shares_of_groups_are_told_as_they_change(metrics, bench):
    for group in ("acme", "globex", "initech"):
        await bench.submit(group)
    await eventually(lambda: told(metrics, "joex_queue_active_groups") == [3])
    assert told(metrics, "joex_queue_largest_group_share") == []
    await bench.take(await bench.executor(), 2)
    await eventually(lambda: told(metrics, "joex_queue_largest_group_share") == [0.5])
    await eventually(lambda: told(metrics, "joex_queue_groups") == [3])
    assert told(metrics, "joex_operator_database_reachable") == [1]


async def test_where_shares_can_not_be_asked_for_they_are_not_told_and_the_rest_is(metrics, bench):
    await bench.submit("acme")
    await eventually(lambda: told(metrics, "joex_queue_active_groups") == [1])
    await bench.connection.execute("ALTER FUNCTION joex.shares() RENAME TO shared")
    await eventually(lambda: told(metrics, "joex_queue_active_groups") == [])
    await bench.submit("globex")
    await eventually(lambda: told(metrics, "joex_queue_groups") == [2])
    assert set(metrics.answers) == {True}
    await bench.connection.execute("ALTER FUNCTION joex.shared() RENAME TO shares")
    await eventually(lambda: told(metrics, "joex_queue_active_groups") == [2])


async def test_a_database_that_takes_no_writes_counts_as_not_reachable_and_the_log_says_why(
    metrics: Noted, connection: asyncpg.Connection, database_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its jobs can be counted, as on a standby, and that alone must not hide that no executor can work with it."""
    caplog.set_level(logging.INFO, "joex.operator")

    def tells(text: str) -> bool:
        return any(line.startswith("counting the jobs in ") and text in line for line in caplog.messages)

    await eventually(lambda: told(metrics, "joex_operator_database_reachable") == [1])
    await connection.execute(f"ALTER DATABASE {database_name} SET default_transaction_read_only = on")
    await eventually(lambda: told(metrics, "joex_operator_database_reachable") == [0])
    await eventually(lambda: tells("it is read-only"))
    await connection.execute("SET default_transaction_read_only = off")
    await connection.execute(f"ALTER DATABASE {database_name} RESET default_transaction_read_only")
    await eventually(lambda: told(metrics, "joex_operator_database_reachable") == [1])
    await eventually(lambda: tells("works again"))


@pytest.mark.parametrize("changed", ["'many' AS waiting", "1e400 AS waiting", "NULL::text AS queue"])
async def test_a_database_whose_view_answers_with_something_else_leaves_the_page_to_the_others(
    metrics: Noted, connection: asyncpg.Connection, bench: Any, changed: str
) -> None:
    await bench.submit("acme")
    await eventually(lambda: told(metrics, "joex_queue_groups") == [1])
    columns = "queue, waiting, deferred, scheduled, running, stuck, oldest_runnable_seconds, groups, paused"
    answers = columns.replace(changed.rpartition(" ")[2], changed)
    async with connection.transaction():
        await connection.execute("ALTER VIEW joex.queue_stats RENAME TO counted")
        await connection.execute(f"CREATE VIEW joex.queue_stats AS SELECT {answers} FROM joex.counted")  # noqa: S608
    await eventually(lambda: told(metrics, "joex_operator_database_reachable") == [0])
    assert told(metrics, "joex_queue_groups") == []


def another_url(url: str) -> str:
    """Another URL of the same database, as that of a pool with a role of its own."""
    return f"{url}{'&' if '?' in url else '?'}application_name=another"


async def test_one_of_several_urls_reads_the_statistics_of_their_database(bench, database_url, monkeypatch):
    read: list[str] = []

    def counted(query):
        def call(connection):
            read.append(query.__name__)
            return query(connection)

        return call

    for query in (stats.queue_stats, stats.queue_shares):
        monkeypatch.setattr(stats, query.__name__, counted(query))
    await bench.submit("acme")
    async with measuring(database_url, another_url(database_url), every=3600) as metrics:
        await eventually(lambda: len(metrics.answers) == 2)
        await eventually(lambda: told(metrics, "joex_queue_active_groups") == [1])
        assert told(metrics, "joex_queue_groups") == [1]
        assert sorted(read) == ["queue_shares", "queue_stats"]
        assert told(metrics, "joex_operator_database_reachable") == [1]


async def test_another_url_reads_the_statistics_when_the_first_one_can_not(bench, database_url):
    await bench.submit("acme")
    parts = urlsplit(database_url)
    wrong = parts._replace(netloc="nobody@" + parts.netloc.rpartition("@")[2]).geturl()
    async with measuring(wrong, database_url) as metrics:
        await eventually(lambda: told(metrics, "joex_queue_groups") == [1])
        await eventually(lambda: told(metrics, "joex_queue_active_groups") == [1])
        await eventually(lambda: False in metrics.answers)
        assert told(metrics, "joex_operator_database_reachable") == [0]

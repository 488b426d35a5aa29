"""The operator asks its databases for numbers of their queues, again and again."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from joex_operator.control.database import Databases
from joex_operator.control.queue_metrics import refresh_queue_metrics
from joex_operator.metrics import OperatorMetrics
from tests.support.waiting import eventually

EVERY = 0.05


class Noted(OperatorMetrics):
    """Numbers that remember each time that the database was said to answer, or not to."""

    def __init__(self) -> None:
        super().__init__()
        self.reachable: list[bool] = []

    def database_reachable(self, database: str, value: bool) -> None:  # noqa: FBT001 - as there
        self.reachable.append(value)
        super().database_reachable(database, value)


@pytest.fixture
async def metrics(database_url: str) -> AsyncIterator[Noted]:
    """The numbers of an operator that measures the test's database."""

    def nobody(*_: Any) -> Any:
        raise AssertionError("no periodic task is to be looked for")

    metrics, databases = Noted(), Databases(lambda *_: None, migrate=False, start_scheduler=nobody)
    databases.get(database_url)
    measuring = asyncio.create_task(refresh_queue_metrics(databases, metrics, EVERY))
    yield metrics
    measuring.cancel()
    await asyncio.gather(measuring, return_exceptions=True)
    await databases.close()


def told(metrics: OperatorMetrics, name: str) -> list[float]:
    page, _ = metrics.render()
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
    assert set(metrics.reachable) == {True}
    await bench.connection.execute("ALTER FUNCTION joex.shared() RENAME TO shares")
    await eventually(lambda: told(metrics, "joex_queue_active_groups") == [2])

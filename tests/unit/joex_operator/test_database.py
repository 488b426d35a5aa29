"""What the pools of one database share."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from joex.store import pools
from joex.store.pools import LatestRuns
from joex_operator.control.database import Database

AT = datetime(2026, 11, 20, 12, tzinfo=UTC)


async def test_runs_count_once_when_several_pools_ask_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def latest_runs(_: Any, after: datetime | None) -> list[LatestRuns]:
        await asyncio.sleep(0)  # as while the database answers
        return [LatestRuns("short", "acme", 9, 27.0, AT)] if after is None else []

    monkeypatch.setattr(pools, "latest_runs", latest_runs)
    nothing: Any = lambda *_: None  # noqa: E731
    database = Database("postgresql://nobody@127.0.0.1:1/none", nothing, migrate=False, start_scheduler=nothing)
    connection: Any = None
    try:
        times, _ = await asyncio.gather(*(database.run_times(connection) for _ in range(2)))
        assert times.shares(30.0) == {}, "nine runs are too few"
    finally:
        await database.close()

"""Fixtures of the tests that break things."""

from collections.abc import AsyncIterator

import asyncpg
import pytest

from tests.support.apps import Effects
from tests.support.processes import ExecutorProcesses


@pytest.fixture
async def effects(pool: asyncpg.Pool, database_url: str) -> Effects:
    """What the tasks of `tests.support.apps` do in the test's database."""
    effects = Effects(pool, database_url)
    await effects.prepare()
    return effects


@pytest.fixture
async def executors(effects: Effects, database_url: str) -> AsyncIterator[ExecutorProcesses]:
    """Starts executors as processes, and kills the remaining ones after the test."""
    with ExecutorProcesses(effects, database_url) as processes:
        yield processes

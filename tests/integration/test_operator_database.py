"""How the operator closes a database."""

import asyncio
from functools import partial

import pytest

from joex.store.database import create_pool
from joex_operator.control.database import Database
from joex_operator.control.periodic_scheduler import SchedulerService
from joex_operator.metrics import OperatorMetrics


@pytest.fixture(params=["scheduler", "database"])
async def close(request, database_url):
    """Closes one of the two databases, which has just been opened."""
    pool = await create_pool(database_url, most=2)
    start_scheduler = partial(SchedulerService, worker="me", poll=1.0, metrics=OperatorMetrics())
    if request.param == "scheduler":
        yield start_scheduler(pool, "joex").close
    else:
        yield Database(database_url, lambda *_: None, migrate=False, start_scheduler=start_scheduler).close
    pool.terminate()


async def test_a_cancellation_during_the_close_is_passed_on(close):
    """A controller's worker that lost the cancellation would wait for its next key for ever, even after SIGTERM."""
    closing = asyncio.create_task(close())
    await asyncio.sleep(0)
    assert not closing.done()
    closing.cancel()
    await asyncio.wait([closing])
    assert closing.cancelled()

"""Fairness by occupancy: a group with short jobs beside a group whose jobs last a hundred times as long."""

from __future__ import annotations

import asyncio
import signal
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import asyncpg

from benchmarks.report import Figure
from benchmarks.shares import Hold, jain, slot_time
from benchmarks.support import executor, fresh_database, say, until
from joex.store.database import connect

_WINDOW, _LONG, _SHORT, _LEASE = 40.0, 10.0, 0.1, 6.0  # seconds
_QUICKER = 5
_AIM = 0.9

# A run that lost its job has used a slot, but leaves no trace in the job's row.
_RECORD = """
    CREATE TABLE hold (grp text, begin timestamptz, until timestamptz);
    CREATE FUNCTION record() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO hold VALUES (OLD.grp, OLD.scheduled_at, clock_timestamp());
        RETURN NULL;
    END $$;
    CREATE TRIGGER record AFTER UPDATE ON joex_private.job
        FOR EACH ROW WHEN (OLD.executor_id IS NOT NULL AND NEW.executor_id IS NULL) EXECUTE FUNCTION record();
"""
_SUBMIT = """
    SELECT count(*) FROM joex.submit_many(array_fill('bench.sleep'::text, ARRAY[$1::int]),
        args => array_fill(jsonb_build_object('seconds', $2::float8), ARRAY[$1::int]),
        grps => array_fill($3::text, ARRAY[$1::int]))
"""
_HOLDS = """
    SELECT grp, extract(epoch FROM begin)::float8 AS begin, extract(epoch FROM until)::float8 AS until FROM hold
    UNION ALL
    SELECT grp, extract(epoch FROM scheduled_at)::float8, 'infinity' FROM joex_private.job WHERE executor_id IS NOT NULL
"""
_BACKLOGGED = "(SELECT count(DISTINCT grp) = 2 FROM joex_private.job WHERE lane IS NOT NULL)"
_ALL_BUSY = "(SELECT count(*) >= $1 FROM joex_private.job WHERE executor_id IS NOT NULL)"
_NOW = "SELECT extract(epoch FROM clock_timestamp())::float8"


@dataclass(frozen=True, slots=True)
class _Scenario:
    """``short``, ``long``: the weights of the groups. ``unsteady``: executors join and leave."""

    what: str
    executors: int = 1
    slots: int = 4
    short: int = 1
    long: int = 1
    unsteady: bool = False


_SCENARIOS = [
    _Scenario("one executor"),
    _Scenario("weights 3 (short) and 1", short=3),
    _Scenario("weights 1 (short) and 3", long=3),
    _Scenario("two executors", executors=2, slots=2),
    _Scenario("executors come, drain, are killed", executors=2, slots=2, unsteady=True),
]


async def measure(server_url: str, *, quick: bool) -> list[Figure]:
    """The slot time of both groups while both have a backlog, by the jobs that the table says executors hold.

    All scenarios run at once, each in its own database: sleeping jobs need no CPU.
    """
    scale = _QUICKER if quick else 1
    say(
        f"fairness: jobs of {_LONG / scale:g} s and of {_SHORT:g} s, {len(_SCENARIOS)} scenarios at once, "
        f"for {_WINDOW / scale:.0f} s"
    )
    found = await asyncio.gather(*(_measure(server_url, scenario, scale) for scenario in _SCENARIOS))
    return [figure for figures in found for figure in figures]


async def _measure(server_url: str, scenario: _Scenario, scale: int) -> list[Figure]:
    window = _WINDOW / scale
    async with fresh_database(server_url) as url:
        connection = await connect(url)
        await _prepare(connection, scenario, scale)
        with ExitStack() as stack:
            crowd = _Crowd(url, scenario.slots, _LEASE / scale, stack)
            for _ in range(scenario.executors):
                crowd.join()
            await until(connection, _ALL_BUSY, scenario.executors * scenario.slots)
            begin = await connection.fetchval(_NOW)
            await (crowd.come_and_go(window) if scenario.unsteady else asyncio.sleep(window))
            end = await connection.fetchval(_NOW)
            holds = [Hold(*row) for row in await connection.fetch(_HOLDS)]
            if not await connection.fetchval(f"SELECT {_BACKLOGGED}"):
                raise RuntimeError("the benchmark's backlog ran dry")
        await connection.close()
    return _figures(scenario, slot_time(holds, begin, end), end - begin)


async def _prepare(connection: asyncpg.Connection[Any], scenario: _Scenario, scale: int) -> None:
    await connection.execute(_RECORD)
    for group, weight, jobs, seconds in (
        (
            "short",
            scenario.short,
            5000,
            _SHORT,
        ),  # (not faster: a slot is empty for some milliseconds between two jobs)
        ("long", scenario.long, 200, _LONG / scale),
    ):
        await connection.execute("SELECT joex.set_group($1, weight => $2)", group, weight)
        await connection.execute(_SUBMIT, jobs, seconds, group)


def _figures(scenario: _Scenario, times: dict[str, float], window: float) -> list[Figure]:
    weights = {"short": scenario.short, "long": scenario.long}
    # (if executors join and leave, the number of slots is the number that were held)
    slots = sum(times.values()) / window if scenario.unsteady else scenario.executors * scenario.slots
    due = slots * scenario.short / (scenario.short + scenario.long)
    kept = times["short"] / window
    index = jain([times[group] / weight for group, weight in weights.items()])
    return [
        Figure(
            f"fairness, {scenario.what}: slots kept by short jobs, of {due:.2f} due",
            kept, "slots", f"at least {_AIM * due:.2f}", kept >= _AIM * due,
        ),
        Figure(f"fairness, {scenario.what}: Jain's index", index, ""),
    ]  # fmt: skip


class _Crowd:
    """The executors of a scenario."""

    def __init__(self, url: str, slots: int, lease: float, stack: ExitStack) -> None:
        self._url = url
        self._flags = ["--pool-size", str(slots), "--lease", f"{lease}s"]
        self._stack = stack
        self._processes: list[Any] = []

    def join(self) -> None:
        """Start one more executor."""
        name = f"executor {len(self._processes) + 1}"
        self._processes.append(self._stack.enter_context(executor(self._url, name, *self._flags)))

    async def come_and_go(self, window: float) -> None:
        """An executor joins; the benchmark kills one, and another one replaces it; one drains."""
        await asyncio.sleep(window / 4)
        self.join()
        await asyncio.sleep(window / 4)
        self._processes[0].send_signal(signal.SIGKILL)
        self.join()
        await asyncio.sleep(window / 4)
        self._processes[1].send_signal(signal.SIGTERM)
        await asyncio.sleep(window / 4)

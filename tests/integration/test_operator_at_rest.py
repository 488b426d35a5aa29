"""What the operator does while nothing happens: in each state it reconciles a pool at its polls, and changes nothing.

Time is simulated: the queue of the controller goes from one due key to the next, so that a busy loop is a number.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from joex_operator.api.names import replica_name
from joex_operator.api.objects import Pool, Ref
from joex_operator.control import pool_observer, pool_reconciler
from joex_operator.control.controller import PERIODIC, POOL, Controller, Key
from joex_operator.control.fleet import FleetError, UrlUnknown
from joex_operator.decide.events import Event
from joex_operator.decide.replicas import Replica
from tests.integration.conftest import Bench
from tests.support.postgres import TestServer
from tests.unit.joex_operator.builders import autoscaled, manifest

POLL = 60.0
POLLS = 10
MOST_RECONCILES = 2 * POLLS + 10
"""Of all pools within ten polls: two at each of them, and ten at pauses that double."""
MOST_CHANGES = POLLS - 1
"""Actions, statuses and Events, until all is at rest: less than one at each poll."""
TEMPLATE = "now"


class Clock:
    """The queue of a controller in simulated time, and its clock."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.due: dict[Key, float] = {}

    def monotonic(self) -> float:
        return self.now

    def add(self, key: Key, after: float = 0.0) -> None:
        self.due[key] = min(self.now + after, self.due.get(key, self.now + after))

    def drop(self, key: Key) -> None:
        self.due.pop(key, None)


class StillFleet:
    """A fleet in which nothing happens: it keeps what is created, and no executor starts."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.unknown: str | None = None
        self.asked = 0
        self.refuses: set[str] = set()
        self.there: dict[str, list[Replica]] = {}
        self.statuses: dict[Ref, Mapping[str, Any]] = {}
        self.changes: list[str] = []
        self.refused: list[str] = []

    def home(self, namespace: str) -> str:
        return namespace

    def now(self) -> datetime:
        return datetime.now(UTC)

    def template(self, pool: Pool) -> str:
        del pool
        return TEMPLATE

    def replicas(self, pool: Pool) -> list[Replica]:
        return list(self.there.get(pool.name, []))

    def taken(self, pool: Pool) -> frozenset[int]:
        del pool
        return frozenset()

    async def check(self, pool: Pool) -> None:
        del pool
        self._called("check")

    async def create(self, pool: Pool, index: int) -> None:
        self._called("create")
        made = Replica(replica_name(pool.name, index), index, uid=f"uid-{index}", template=TEMPLATE)
        self.there.setdefault(pool.name, []).append(made)

    async def delete(self, pool: Pool, replica: str, uid: str) -> None:
        del uid
        self._called("delete")
        self.there[pool.name] = [one for one in self.there[pool.name] if one.name != replica]

    async def update(self, pool: Pool, replica: str, uid: str) -> None:
        del pool, replica, uid
        self._called("update")

    async def is_clear(self, pool: Pool, replica: str) -> bool:
        return replica not in [one.name for one in self.replicas(pool)]

    async def database_url(self, pool: Pool) -> str:
        del pool
        self.asked += 1
        if self.unknown is not None:
            raise UrlUnknown(self.unknown, "no URL", is_withdrawn=True)
        return self.url

    def recheck_url(self, pool: Pool) -> None:
        del pool

    def status(self, ref: Ref) -> Mapping[str, Any]:
        return self.statuses.get(ref, {})

    async def set_status(self, ref: Ref, status: Mapping[str, Any]) -> None:
        self._called("set_status")
        self.statuses[ref] = status

    async def record_events(self, ref: Ref, events: Sequence[Event]) -> None:
        del ref
        for event in events:
            (self.refused if event.reason == "ActionFailed" else self.changes).append(event.reason)

    def _called(self, what: str) -> None:
        if what in self.refuses:
            self.refused.append(what)
            raise FleetError(f"{what}: refused")
        self.changes.append(what)


class World:
    """An operator with a pool in some state."""

    def __init__(self, bench: Bench, url: str) -> None:
        self.bench = bench
        self.clock = Clock()
        self.fleet = StillFleet(url)
        self.controller = Controller(self.fleet, worker="the operator", poll=POLL, migrate=False)
        queue: Any = self.clock
        self.controller._queue = queue
        self.reconciles = 0

    def pool(self, name: str = "documents", *, deleted: bool = False, **spec: Any) -> None:
        metadata = {"deletionTimestamp": datetime.now(UTC).isoformat()} if deleted else {}
        self.controller.put(manifest(name, metadata, **spec))

    def task(self, timer: str) -> None:
        spec = {"pool": "documents", "task": "a", "timer": timer}
        self.controller.put({**manifest("report"), "kind": PERIODIC, "spec": spec})

    def replica(self, index: int = 0, name: str = "documents", **fields: Any) -> None:
        made = Replica(replica_name(name, index), index, uid=f"uid-{index}", template=TEMPLATE, pods=(f"pod-{index}",))
        self.fleet.there.setdefault(name, []).append(replace(made, **fields))

    async def executor(self, index: int = 0, name: str = "documents", **fields: Any) -> int:
        """A replica with an executor that lives."""
        self.replica(index, name, **fields)
        return await self.bench.executor(f"prod/{replica_name(name, index)}", pod_uid=f"pod-{index}")

    async def jobs(self, number: int, **fields: Any) -> None:
        for _ in range(number):
            await self.bench.submit(**fields)

    async def rest(self, polls: float = POLLS) -> None:
        """Let so many polls pass."""
        end = self.clock.now + polls * POLL
        while self.clock.due and self.reconciles <= MOST_RECONCILES:
            key = min(self.clock.due, key=lambda key: self.clock.due[key])
            if self.clock.due[key] > end:
                break
            self.clock.now = max(self.clock.due.pop(key), self.clock.now)
            await self.controller._reconcile(key)
            self.reconciles += key.kind == POOL


@pytest.fixture
async def world(bench: Bench, database_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    world = World(bench, database_url)
    for module in (pool_observer, pool_reconciler):
        monkeypatch.setattr(module, "time", world.clock)
    yield world
    await world.controller.databases.close()


State = Callable[[World], Awaitable[None]]
STATES: dict[str, State] = {}
LONG_AGO = datetime.now(UTC) - timedelta(hours=1)


def state(function: State) -> State:
    STATES[function.__name__] = function
    return function


@state
async def at_zero(world: World) -> None:
    world.pool()


@state
async def at_zero_with_a_job_due_in_an_hour(world: World) -> None:
    await world.jobs(1, not_before=datetime.now(UTC) + timedelta(hours=1))
    world.pool()


@state
async def at_its_minimum(world: World) -> None:
    await world.executor()
    world.pool(scaling=autoscaled(1, 10))


@state
async def at_its_maximum_with_a_backlog(world: World) -> None:
    await world.jobs(20)
    await world.bench.take(await world.executor(), 4)
    world.pool(scaling=autoscaled(0, 1))


@state
async def at_its_maximum_while_jobs_come_due(world: World) -> None:
    await world.jobs(1, not_before=datetime.now(UTC) + timedelta(seconds=5))
    await world.executor()
    world.pool(scaling=autoscaled(1, 1))


@state
async def fixed(world: World) -> None:
    await world.jobs(20)
    await world.executor()
    world.pool(replicas=1)


@state
async def suspended(world: World) -> None:
    await world.jobs(20)
    world.pool(suspend=True)


@state
async def its_queue_is_paused(world: World) -> None:
    await world.jobs(20)
    await world.bench.connection.execute("SELECT joex.set_queue('default', paused => true)")
    world.pool()


@state
async def a_group_is_at_its_limit(world: World) -> None:
    await world.jobs(20)
    await world.bench.take(await world.executor(), 1)
    await world.bench.connection.execute("SELECT joex.set_group('default', max_running => 1)")
    world.pool()


@state
async def its_rollout_is_paused(world: World) -> None:
    await world.executor(template="before")
    world.pool(replicas=1, rollout={"paused": True})


@state
async def its_rollout_does_not_start(world: World) -> None:
    await world.executor(template="before")
    world.replica(1, problem="ErrImagePull: not found")
    world.pool(replicas=1)


@state
async def its_pods_find_no_node(world: World) -> None:
    await world.jobs(20)
    world.replica(problem="Unschedulable: no room", unscheduled_since=LONG_AGO)
    world.pool(poolSize=1)


@state
async def a_quota_refuses_its_pods(world: World) -> None:
    await world.jobs(20)
    world.replica(problem="FailedCreate: quota", unscheduled_since=LONG_AGO, refused=True)
    world.pool(poolSize=1)


@state
async def a_quota_refuses_its_deployments(world: World) -> None:
    await world.jobs(20)
    world.fleet.refuses = {"create"}
    world.pool()


@state
async def its_namespace_is_being_deleted(world: World) -> None:
    await world.executor()
    world.fleet.refuses = {"create", "set_status"}  # (the latter as when the object has just gone)
    world.pool(deleted=True)


@state
async def its_executor_crashes(world: World) -> None:
    await world.bench.executor("prod/documents-0", pod_uid="pod-0")
    world.replica(problem="exit code 1", crashing=True)
    world.pool(scaling=autoscaled(1, 1))


@state
async def its_node_is_lost(world: World) -> None:
    world.replica(lost=True)
    world.pool(replicas=1)


@state
async def its_executor_is_still_busy(world: World) -> None:
    await world.jobs(1)
    await world.bench.take(await world.executor())
    world.pool(deleted=True)


@state
async def its_last_executor_may_not_leave_yet(world: World) -> None:
    await world.jobs(1)
    await world.bench.take(await world.executor())
    await world.executor(1)
    world.pool(scaling=autoscaled(0, 10, window=3600))


@state
async def it_shares_its_queue(world: World) -> None:
    await world.jobs(20)
    await world.bench.take(await world.executor(), 4)
    await world.executor(name="other")
    for name in ("documents", "other"):
        world.pool(name, scaling=autoscaled(1, 1))


@state
async def it_is_invalid(world: World) -> None:
    world.pool(poolSize=0)


@state
async def its_secret_is_missing(world: World) -> None:
    world.fleet.unknown = "SecretMissing"
    world.pool(replicas=0)


@state
async def a_periodic_task_is_due_each_second(world: World) -> None:
    world.pool(replicas=0)
    world.task("*:*:*")


@state
async def a_periodic_task_is_never_due(world: World) -> None:
    world.pool(replicas=0)
    world.task("2020-01-01")


@state
async def a_periodic_task_is_invalid(world: World) -> None:
    world.pool(replicas=0)
    world.task("at times")


ORDERS: dict[str, dict[str, Any]] = {
    "by demand": {},
    "with a fallback": {"scaling": autoscaled(fallback={"after": "1h", "replicas": 5})},
    "fixed": {"replicas": 1},
    "suspended": {"suspend": True},
    "deleted": {"deleted": True},
}


def is_away(world: World, server: TestServer) -> None:
    del server
    world.fleet.url = "postgresql:///x?host=/nowhere"


def has_no_schema(world: World, server: TestServer) -> None:
    world.fleet.url = server.url("postgres")


def does_not_exist(world: World, server: TestServer) -> None:
    world.fleet.url = server.url("there_is_no_such_database")


def has_no_secret(world: World, server: TestServer) -> None:
    del server
    world.fleet.unknown = "SecretMissing"


@pytest.mark.parametrize("state", STATES.values(), ids=[name.replace("_", " ") for name in STATES])
async def test_at_rest(state: State, world: World) -> None:
    await state(world)
    await check(world)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("lack", [is_away, has_no_schema, does_not_exist, has_no_secret])
async def test_at_rest_without_its_database(
    lack: Callable[[World, TestServer], None], order: str, world: World, postgres: TestServer
) -> None:
    lack(world, postgres)
    for index in range(2):
        world.replica(index)
    world.pool(**ORDERS[order])
    await check(world)


async def check(world: World) -> None:
    """Let time pass. Whatever is refused is tried again, once in a reconcile, and told in an Event."""
    await world.rest()
    assert world.reconciles <= MOST_RECONCILES
    assert len(world.fleet.changes) <= MOST_CHANGES, world.fleet.changes
    assert len(world.fleet.refused) <= 2 * world.reconciles, world.fleet.refused


@pytest.mark.parametrize("lack", [it_is_invalid, its_secret_is_missing])
async def test_periodic_tasks_of_a_namespace_without_any_are_at_rest_until_its_pool_can_be_worked_with(
    lack: State, world: World
) -> None:
    await lack(world)
    await world.rest(0.5)
    tasks = Key(PERIODIC, "prod")
    assert tasks not in world.clock.due
    world.fleet.unknown = None
    world.pool(replicas=0)
    await world.controller._reconcile(Key(POOL, "prod", "documents"))
    assert tasks in world.clock.due


async def test_a_reconcile_asks_for_the_url_of_a_pool_once_even_if_there_is_none(world: World) -> None:
    world.fleet.unknown = "SecretMissing"
    world.pool()
    world.task("03:00")
    for key in (Key(POOL, "prod", "documents"), Key(PERIODIC, "prod")):
        world.fleet.asked = 0
        await world.controller._reconcile(key)
        assert world.fleet.asked == 1, key


async def test_news_of_a_queue_concerns_the_pools_that_could_grow(world: World) -> None:
    await world.jobs(4)
    await world.bench.take(await world.executor(), 4)
    world.pool(scaling=autoscaled(0, 1))
    world.pool("other", scaling=autoscaled(0, 10))
    await world.rest()
    world.clock.due.clear()
    world.controller._on_notification(world.fleet.url, "queue", "default")
    assert [key.name for key in world.clock.due] == ["other"]


async def test_a_pool_for_which_the_cluster_has_no_room_waits_for_no_news(world: World) -> None:
    await its_pods_find_no_node(world)
    await world.rest()
    world.clock.due.clear()
    world.controller._on_notification(world.fleet.url, "queue", "default")
    assert not world.clock.due


@pytest.mark.parametrize("order", [{"suspend": True}, {"replicas": 0}], ids=["suspended", "fixed"])
async def test_a_pool_that_may_grow_again_waits_for_news_before_its_next_poll(
    order: dict[str, Any], world: World
) -> None:
    world.pool(**order)
    await world.rest()
    world.pool()
    await world.rest(0.5)
    world.clock.due.clear()
    world.controller._on_notification(world.fleet.url, "queue", "default")
    assert [key.name for key in world.clock.due] == ["documents"]

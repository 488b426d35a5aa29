"""The work queue: one entry for each key, the earliest; one reconcile of a key at a time."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sized
from contextlib import asynccontextmanager

from joex_operator.control.work_queue import WorkQueue
from tests.support.waiting import eventually


class Looks:
    """Reconciles that wait until the test releases them."""

    def __init__(self) -> None:
        self.begun: asyncio.Queue[str] = asyncio.Queue()
        self.gate = asyncio.Semaphore(0)
        self.at_once = 0
        self.most_at_once = 0

    async def __call__(self, key: str) -> None:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        self.begun.put_nowait(key)
        await self.gate.acquire()
        self.at_once -= 1


@asynccontextmanager
async def kept(queue: WorkQueue[str], look: Callable[[str], Awaitable[None]], workers: int = 2):
    running = asyncio.create_task(queue.run(look, workers))
    yield
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_many_reasons_make_one_look() -> None:
    queue, looks = WorkQueue[str](), Looks()
    for delay in (0, 5, 0.001, 0):
        queue.add("a", delay)
    queue.add("b", 0.01)
    async with kept(queue, looks):
        assert {await looks.begun.get(), await looks.begun.get()} == {"a", "b"}
        looks.gate.release()
        looks.gate.release()
        queue.add("c")
        assert await looks.begun.get() == "c"


async def test_who_asks_during_a_look_gets_another_one_and_never_two_at_once() -> None:
    queue, looks = WorkQueue[str](), Looks()
    queue.add("a")
    async with kept(queue, looks):
        assert await looks.begun.get() == "a"
        queue.add("a")
        queue.add("b")
        assert await looks.begun.get() == "b"
        assert looks.begun.empty()
        looks.gate.release()
        looks.gate.release()
        assert await looks.begun.get() == "a"
        assert looks.most_at_once == 2


async def test_an_earlier_appointment_replaces_a_later_one() -> None:
    queue, looks = WorkQueue[str](), Looks()
    queue.add("a", 3600)
    async with kept(queue, looks):
        queue.add("a", 0)
        assert await looks.begun.get() == "a"
        looks.gate.release()
        queue.add("b", 0.01)
        assert await looks.begun.get() == "b"


async def test_what_is_dropped_is_not_looked_at() -> None:
    queue, looks = WorkQueue[str](), Looks()
    queue.add("a", 0.01)
    queue.add("b", 0.02)
    queue.drop("a")
    async with kept(queue, looks):
        assert await looks.begun.get() == "b"


async def test_the_earliest_comes_first() -> None:
    queue, looks = WorkQueue[str](), Looks()
    for key, delay in (("c", 0.03), ("a", 0.01), ("b", 0.02)):
        queue.add(key, delay)
    async with kept(queue, looks, workers=1):
        for key in "abc":
            assert await looks.begun.get() == key
            looks.gate.release()


async def test_a_reconcile_that_waits_for_nothing_and_is_due_again_at_once_lets_others_run() -> None:
    queue, calls, has_run = WorkQueue[str](), 0, False

    async def look(key: str) -> None:
        nonlocal calls
        calls += 1
        if not has_run and calls < 1000:
            queue.add(key)

    queue.add("a")
    async with kept(queue, look):
        for _ in range(20):
            await asyncio.sleep(0)
        has_run = True
    assert 0 < calls < 1000


class CountedEvent(asyncio.Event):
    """Counts how often somebody begins to wait."""

    waits = 0

    async def wait(self):
        self.waits += 1
        return await super().wait()


async def test_a_key_wakes_one_of_the_idle_workers() -> None:
    queue, looks = WorkQueue[str](), Looks()
    queue._changed = changed = CountedEvent()
    async with kept(queue, looks, workers=64):
        for key in "abc":
            looks.gate.release()
            queue.add(key, 0.001)
            assert await looks.begun.get() == key
    assert changed.waits <= 10


async def test_who_is_held_back_for_others_gets_a_look_when_a_worker_is_free_again() -> None:
    queue, looks = WorkQueue[str](owner=lambda key: key[0]), Looks()
    for key in ("a1", "a2", "a3", "b1"):
        queue.add(key)
    async with kept(queue, looks):
        assert {await looks.begun.get(), await looks.begun.get()} == {"a1", "b1"}
        queue.drop("a2")
        queue.add("a1")
        for _ in range(3):
            looks.gate.release()
        assert {await looks.begun.get(), await looks.begun.get()} == {"a1", "a3"}


async def test_two_owners_whose_reconciles_do_not_end_leave_workers_to_others() -> None:
    """As two namespaces with hundreds of pools each whose databases do not answer."""
    queue, looks = WorkQueue[str](owner=lambda key: key[0]), Looks()
    for number in range(100):
        queue.add(f"a{number}")
        queue.add(f"b{number}")
    async with kept(queue, looks, workers=64):
        begun = [await looks.begun.get() for _ in range(52)]
        assert Counter(key[0] for key in begun) == {"a": 26, "b": 26}
        for number in range(6):
            queue.add(f"c{number}")
        assert [await looks.begun.get() for _ in range(6)] == [f"c{number}" for number in range(6)]


async def test_the_next_worker_is_for_the_owner_that_has_fewest() -> None:
    queue, looks = WorkQueue[str](owner=lambda key: key[0]), Looks()
    for number in range(10):
        queue.add(f"a{number}")
    async with kept(queue, looks, workers=12):
        assert [await looks.begun.get() for _ in range(6)] == [f"a{number}" for number in range(6)]  # and leaves six
        for number in range(3):
            queue.add(f"b{number}")
        assert await looks.begun.get() == "b0"
        for _ in range(3):
            looks.gate.release()
        assert [await looks.begun.get(), await looks.begun.get()] == ["b1", "b2"]


async def test_owners_that_come_and_go_leave_nothing_behind() -> None:
    queue, looks = WorkQueue[str](), Looks()
    async with kept(queue, looks):
        for number in range(10):
            queue.add(f"owner {number}")
            await looks.begun.get()
            looks.gate.release()
        await eventually(lambda: not queue._busy)
    kept_for_ever = {name: some for name, some in vars(queue).items() if isinstance(some, Sized) and len(some) > 0}
    assert kept_for_ever == {}

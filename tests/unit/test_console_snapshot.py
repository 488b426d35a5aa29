"""What the console finds in a snapshot: once for all who ask, and the groups of a queue in order."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from joex.console import pieces, queues
from joex.console.snapshot import Snapshot
from joex.console.standings import Queue, queues_of
from joex.core.fairness import Cursor
from joex.store import stats
from joex.store.stats import GroupStats
from tests.support.waiting import PATIENCE

NOW = datetime(2026, 1, 1, tzinfo=UTC)


async def test_what_a_function_finds_in_a_snapshot_is_sought_once_for_all_who_ask_beside_the_event_loop():
    snapshot, threads = Snapshot(1, NOW, {}), list[int]()

    def find(given: Snapshot) -> int:
        threads.append(threading.get_ident())
        return given.number

    assert await asyncio.gather(*(snapshot.once(find) for _ in range(3))) == [1, 1, 1]
    assert (await snapshot.once(find), len(threads), threading.get_ident() in threads) == (1, 1, False)


async def test_what_can_not_be_found_when_nobody_waits_for_it_any_more_is_in_the_log_once(caplog):
    snapshot, begun, may_fail = Snapshot(1, NOW, {}), threading.Event(), threading.Event()

    def find(_: Snapshot) -> None:
        begun.set()
        may_fail.wait(PATIENCE)
        raise ValueError("it can't be found")

    waiting = asyncio.create_task(snapshot.once(find))
    assert await asyncio.to_thread(begun.wait, PATIENCE)
    waiting.cancel()
    await asyncio.wait([waiting])
    may_fail.set()
    await asyncio.wait(snapshot._found.values())
    assert [record.getMessage() for record in caplog.records] == ["the statistics can't be read"]


async def test_other_tasks_go_on_while_the_rows_of_many_groups_are_read(monkeypatch):
    monkeypatch.setattr(stats, "_PIECE", 2)
    passes, seen = 0, list[int]()

    def row() -> Iterator[Any]:
        seen.append(passes)
        yield from ("q", "acme", 1, 0, 0, 0, 0, None, 1, False, None, None)

    class Connection:
        async def fetch(self, *_: Any) -> list[Iterator[Any]]:
            return [row() for _ in range(5)]

    async def others() -> None:
        nonlocal passes
        while True:
            passes += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    connection: Any = Connection()
    found = await stats.every_group(connection)
    beside.cancel()
    assert (len(found), seen) == (5, [0, 0, 1, 1, 2])


@pytest.mark.parametrize("order", queues._ORDERS)
def test_groups_that_are_ordered_in_pieces_come_in_the_same_order(monkeypatch, order):
    monkeypatch.setattr(pieces, "_PIECE", 3)
    monkeypatch.setattr(queues, "PAGE", 2)
    names = [f"g{nr * 5 % 8}" for nr in range(8)]
    jobs = [
        GroupStats("q", name, nr % 3, 0, nr % 2, 0, 0, None if nr % 3 else float(nr), 1, nr == 4, None, None)
        for nr, name in enumerate(names)
    ]
    places = {name: nr for nr, name in enumerate(names)}
    queue = queues_of(jobs, [], {"q"}, {}, cursors={}, places=places)["q"]
    parts = [queues._part(queue, "G", order, begin) for begin in range(0, 10, 2)]
    assert [one for part, _ in parts for one in part] == sorted(queue.groups, key=queues._ORDERS[order])
    assert {matching for _, matching in parts} == {8}


def test_groups_are_judged_and_their_shares_computed_in_pieces_as_at_once(monkeypatch):
    jobs = [
        GroupStats("q", f"g{nr}", 9 - nr % 3, 0, nr % 2, 0, 0, None, 1 + nr % 4, nr == 4, 7 if nr % 3 else None, None)
        for nr in range(8)
    ]
    places, sizes = {one.group: nr * 5 % 8 for nr, one in enumerate(jobs)}, list[int]()

    def sort(given: Sequence[int], **named: Any) -> list[int]:
        sizes.append(len(given))
        return sorted(given, **named)

    def judge(piece: int) -> tuple[Queue, list[float]]:
        monkeypatch.setattr(pieces, "_PIECE", piece)
        queue = queues_of(jobs, [], {"q"}, {}, cursors={"q": Cursor(3, 1)}, places=places)["q"]
        return queue, replace(queue, slots=5).with_settings(queue.groups[0], 7, None, paused=False)

    monkeypatch.setattr(pieces, "sorted", sort, raising=False)
    assert judge(3) == judge(8)
    assert sizes == [3, 3, 2, *[3, 3, 1] * 3, 8, 7, 7, 7], "the ring, the shares, the turns, and the other shares"

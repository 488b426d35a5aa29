"""A runner holds a suspect back until no other job runs, and takes no job beside it."""

from collections.abc import AsyncIterator

import pytest

import joex
from joex.core.outcome import Interruption
from joex.errors import DatabaseUnavailable
from joex.runtime import marks
from tests.support.slots import Slots
from tests.support.waiting import PATIENCE, eventually

app = joex.App()


@app.task("t")
async def task(ctx: joex.Context) -> None: ...


def fail() -> bool:
    """A mark that fails."""
    raise DatabaseUnavailable("it restarts")


@pytest.fixture
async def slots() -> AsyncIterator[Slots]:
    slots = Slots(app)
    yield slots
    slots.runner.close()


async def test_a_suspect_starts_when_the_ends_of_all_others_are_written_and_no_slot_is_free_until_its_own_is(
    slots: Slots,
) -> None:
    first = slots.start(suspect=False)
    suspect = slots.start(suspect=True)
    second = slots.start(suspect=False)
    await slots.settled()
    assert (slots.of(first), slots.of(second), slots.of(suspect)) == (["begins", "success"], ["begins", "success"], [])
    slots.runner.release([first])
    await slots.settled()
    assert slots.of(suspect) == []
    slots.runner.release([second])
    await slots.settled()
    assert slots.of(suspect) == ["marked", "begins", "success"]
    assert slots.runner.free == 0
    slots.runner.release([suspect])
    assert slots.runner.free == 4


async def test_a_suspect_that_others_wait_for_starts_beside_them_after_a_time_and_lets_them_in(
    slots: Slots, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run may wait for another job: for ever, if the suspect waits for that run."""
    monkeypatch.setattr(marks, "_ALONE_FOR", 0.05)
    monkeypatch.setattr(marks, "_WRITTEN_WITHIN", 10 * PATIENCE)  # which is for ends that are not written, in that time
    other = slots.start(suspect=False)
    suspect = slots.start(suspect=True)
    await eventually(lambda: "begins" in slots.of(suspect))
    await slots.room.wait()
    assert slots.runner.free == 2
    slots.runner.release([other])


async def test_a_job_that_was_lost_twice_and_is_no_suspect_is_marked_and_starts_beside_others(slots: Slots) -> None:
    other = slots.start(suspect=False)
    job = slots.start(suspect=False, losses=2)
    await slots.settled()
    assert slots.of(job) == ["marked", "begins", "success"]
    assert slots.runner.free == 2
    slots.runner.release([other, job])


async def test_of_several_suspects_one_is_kept_and_the_others_are_given_back(slots: Slots) -> None:
    kept, *others = [slots.start(suspect=True) for _ in range(3)]
    await slots.settled()
    assert [slots.of(job) for job in (kept, *others)] == [[], ["waiting"], ["waiting"]]
    slots.runner.release(others)
    await slots.settled()
    assert slots.of(kept) == ["marked", "begins", "success"]


async def test_large_arguments_of_a_suspect_are_fetched_when_it_is_marked(slots: Slots) -> None:
    suspect = slots.start(suspect=True, args=None)
    await slots.settled()
    assert slots.of(suspect) == ["marked", "fetched", "begins", "success"]


async def test_a_suspect_that_was_lost_while_it_waited_does_not_start(slots: Slots) -> None:
    slots.marking = lambda: False
    suspect = slots.start(suspect=True)
    await slots.settled()
    assert slots.of(suspect) == ["marked", "forgotten"]


async def test_a_suspect_that_can_not_be_marked_is_given_back_and_others_are_taken_though_that_is_not_written(
    slots: Slots,
) -> None:
    """Without the mark it could kill any number of executors."""
    slots.marking = fail
    suspect = slots.start(suspect=True)
    await slots.settled()
    assert slots.of(suspect) == ["marked", "waiting"]
    assert (slots.runner.free, slots.room.is_set()) == (3, True)


@pytest.mark.parametrize(
    ("why", "becomes"),
    [
        (Interruption.CANCEL, ["cancelled"]),
        (Interruption.GIVE_BACK, ["waiting"]),
        (Interruption.LOST, ["forgotten"]),
    ],
)
async def test_a_suspect_that_waits_can_be_interrupted(slots: Slots, why: Interruption, becomes: list[str]) -> None:
    other, suspect = slots.start(suspect=False), slots.start(suspect=True)
    await slots.settled()
    slots.runner.interrupt(slots.runner.runs[suspect.lock_id], why)
    await slots.settled()
    assert slots.of(suspect) == becomes
    slots.runner.release([suspect])
    assert slots.runner.free == 3
    slots.runner.release([other])


async def test_a_suspect_that_has_ended_unstarted_lets_others_in_though_its_end_can_not_be_written(
    slots: Slots, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(marks, "_WRITTEN_WITHIN", 0.05)
    slots.start(suspect=False)
    suspect = slots.start(suspect=True)
    await slots.settled()
    slots.runner.interrupt(slots.runner.runs[suspect.lock_id], Interruption.CANCEL)
    await slots.room.wait()
    assert (slots.of(suspect), slots.runner.free) == (["cancelled"], 2)

"""The buffer of log lines: whose lines are dropped when it is full."""

import itertools
import random
import threading
import time
from uuid import UUID

import pytest

from joex.core.job import TakenJob
from joex.core.text import LONGEST_TEXT
from joex.runtime import log_buffer
from joex.runtime.log_buffer import Line, LogBuffer
from tests.support.waiting import PATIENCE

_numbers = itertools.count(1)


def run_of(group: str, queue: str = "default") -> TakenJob:
    nr = next(_numbers)
    return TakenJob(UUID(int=nr), UUID(int=2**127 + nr), 1, queue, group, "t", "{}", "low", "", "", 0, 0, None, 0.0)


def kept(buffer: LogBuffer, *runs: TakenJob) -> list[list[str]]:
    """The lines of each run, of all that are taken."""
    lines = buffer.take()
    return [[line.message for line in lines if line.job is run] for run in runs]


def test_many_runs_of_one_tenant_leave_the_lines_of_another_one_in_a_full_buffer():
    buffer, theirs, mine = LogBuffer(500), [run_of("flood") for _ in range(34)], run_of("quiet")
    for number in range(60):
        for run in theirs:
            buffer.add(run, "info", f"line {number}")
    for number in range(60):
        buffer.add(mine, "info", f"line {number}")
        for run in theirs:
            buffer.add(run, "info", "more")
    all_kept = kept(buffer, mine, *theirs)
    assert all_kept[0] == [f"line {number}" for number in range(60)]
    assert sum(map(len, all_kept)) == 500


def test_groups_of_one_name_in_two_queues_are_two_tenants():
    buffer, theirs, mine = LogBuffer(9), [run_of("acme", "first") for _ in range(9)], run_of("acme", "second")
    for run in theirs:
        buffer.add(run, "info", "a line")
    for number in range(5):
        buffer.add(mine, "info", str(number))
    assert kept(buffer, mine) == [list("0123")]


def test_in_a_tenant_the_run_that_has_most_loses_its_newest_line():
    buffer, flood, quiet = LogBuffer(10), run_of("acme"), run_of("acme")
    for number in range(20):
        buffer.add(flood, "info", str(number))
    for number in range(5):
        buffer.add(quiet, "info", str(number))
    buffer.add(quiet, "info", "more than the other one")
    assert buffer.dropped() == 16
    assert buffer.dropped() == 0
    assert kept(buffer, flood, quiet) == [list("01234"), list("01234")]


@pytest.mark.parametrize("character", ["x", "\N{EURO SIGN}"])
def test_a_run_with_long_lines_fills_the_buffer_with_a_few_megabytes_and_none_of_it_is_what_others_need(character):
    buffer, flood, quiet = LogBuffer(500), run_of("flood"), run_of("quiet")
    long = character * LONGEST_TEXT
    for _ in range(500):
        buffer.add(flood, "info", long)
    for number in range(200):
        buffer.add(quiet, "info", str(number))
    flood_lines, quiet_lines = kept(buffer, flood, quiet)
    assert quiet_lines == list(map(str, range(200)))
    assert 0 < sum(len(line.encode()) for line in flood_lines) < 4_000_000


def test_a_long_line_of_one_who_has_little_takes_the_room_of_as_many_others_as_it_needs():
    buffer, flood, quiet = LogBuffer(500), run_of("flood"), run_of("quiet")
    for number in range(495):
        buffer.add(flood, "info", str(number))
    buffer.add(quiet, "info", "x" * LONGEST_TEXT)  # the room of thirteen lines of 8 kB
    assert buffer.dropped() == 8
    assert kept(buffer, flood, quiet) == [[str(number) for number in range(487)], ["x" * LONGEST_TEXT]]


def test_for_a_line_that_is_dropped_itself_no_other_one_is():
    buffer, most, long = LogBuffer(500), run_of("most"), run_of("long")
    others = [run_of(f"group {nr}") for nr in range(486)]
    for run in [*others, *[most] * 14]:
        buffer.add(run, "info", "a line")
    buffer.add(long, "info", "x" * LONGEST_TEXT)
    assert buffer.dropped() == 1
    assert len(buffer.take()) == 500


@pytest.mark.parametrize("most", [1, 7, 500, 30_000])
def test_as_many_short_lines_fit_as_the_setting_says(most):
    buffer, run = LogBuffer(most), run_of("acme")
    for _ in range(most + 1):
        buffer.add(run, "info", "x" * 100)
    assert (len(buffer.take()), buffer.dropped()) == (most, 1)


def test_a_line_of_any_length_fits_into_the_smallest_buffer():
    buffer = LogBuffer(1)
    buffer.add(run_of("acme"), "info", "\N{EURO SIGN}" * 9_000_000)
    assert len(buffer.take()) == 1


def test_what_comes_later_is_not_taken_and_the_run_with_the_oldest_line_comes_first():
    buffer, first, second = LogBuffer(10), run_of("a"), run_of("b")
    for run in (first, second, first):
        buffer.add(run, "info", "before")
    asked = time.monotonic()
    while time.monotonic() == asked:  # some clocks tick slowly
        pass
    for run in (second, first):
        buffer.add(run, "info", "after")
    taken = buffer.take(until=asked)
    assert [(line.job, line.message) for line in taken] == [(run, "before") for run in (first, first, second)]
    assert [line.job for line in buffer.take()] == [second, first]


def test_the_lines_of_a_run_stay_in_order_and_the_buffer_has_all_its_room_again_whatever_happens():
    for seed in range(30):
        chance, buffer = random.Random(seed), LogBuffer(100)
        runs, numbers = [run_of(group) for group in "aabbc"], itertools.count()
        taken: list[Line] = []
        written: list[Line] = []
        for _ in range(600):
            match chance.choices(["add", "fail", "write"], [20, 1, 1])[0]:
                case "add":
                    long = chance.choice(["", "", "", "x" * 80_000])
                    buffer.add(chance.choice(runs), "info", f"{next(numbers)} {long}")
                case "fail":
                    buffer.put_back(taken)
                    taken = []
                case _:
                    written += taken
                    taken = buffer.take(chance.randrange(1, 50), chance.choice([1, 500, 500_000]))
        written += taken + buffer.take()
        assert (dropped := buffer.dropped()) > 0
        assert len(written) + dropped == next(numbers)
        for run in runs:
            of_run = [int(line.message.split()[0]) for line in written if line.job is run]
            assert of_run == sorted(of_run)
        assert buffer.is_empty
        for _ in range(101):
            buffer.add(runs[0], "info", "a line")
        assert (len(buffer.take()), buffer.dropped()) == (100, 1)


def test_a_finalizer_that_logs_while_a_line_is_added_is_heard_and_stops_nothing(monkeypatch: pytest.MonkeyPatch):
    """The garbage collector calls it wherever Python makes an object: in the middle of a change of the buffer, too."""
    buffer, run = LogBuffer(10), run_of("acme")

    def add_and_collect(text: str) -> str:
        if text == "a line":
            buffer.add(run, "warning", "a file was not closed")
        return text

    monkeypatch.setattr(log_buffer, "storable", add_and_collect)
    adding = threading.Thread(target=buffer.add, args=(run, "info", "a line"), daemon=True)
    adding.start()
    adding.join(PATIENCE)
    assert not adding.is_alive()
    assert kept(buffer, run) == [["a line", "a file was not closed"]]

"""The process of a replica: kept running as a kubelet would, and ended in time."""

import doctest
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from joex.cli.parent_watch import ParentWatch
from joex_operator.local import replica
from joex_operator.local.replica import ReplicaProcess, restart_delay
from tests.support.waiting import eventually


class Recorder:
    """An observer that remembers."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.failures: list[tuple[str, float]] = []
        self.has_ended = False

    def printed(self, replica: str, line: str) -> None:
        del replica
        self.lines.append(line)

    def failed(self, replica: str, problem: str, again_in: float) -> None:
        del replica
        self.failures.append((problem, again_in))

    def ended(self, replica: str) -> None:
        del replica
        self.has_ended = True


@pytest.fixture
def parent_watch() -> Iterator[ParentWatch]:
    parent_watch = ParentWatch()
    yield parent_watch
    parent_watch.close()


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
async def start(
    tmp_path: Path, parent_watch: ParentWatch, recorder: Recorder
) -> AsyncIterator[Callable[[str], ReplicaProcess]]:
    """Start an executor whose app's module executes this at its import."""
    started: list[ReplicaProcess] = []

    def start(code: str) -> ReplicaProcess:
        (tmp_path / "strange.py").write_text(code)
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path)}
        started.append(
            ReplicaProcess("docs-0", ["executor", "--app", "strange:app"], parent_watch, environment, recorder)
        )
        return started[-1]

    yield start
    for process in started:
        process.end(0)
        await process.ended()


async def test_it_is_started_again_ever_later_and_its_last_words_are_told(start, recorder):
    process = start("import sys\nprint('no license', file=sys.stderr)\nsys.exit(3)")
    await eventually(lambda: len(recorder.failures) == 3, why="it has failed three times")
    assert recorder.failures == [("exit code 3: no license", 0.0), ("exit code 3: no license", 1.0),
                                 ("exit code 3: no license", 2.0)]  # fmt: skip
    assert process.problem == "exit code 3: no license"
    assert recorder.lines == ["no license"] * 3

    process.end(60)  # while it waits for its restart
    await process.ended()
    assert recorder.has_ended
    assert len(recorder.failures) == 3
    assert (process.is_running, process.has_ended, process.exit_code) == (False, True, 3)


async def test_one_that_can_not_be_started_is_told_and_ends(parent_watch, recorder):
    process = ReplicaProcess("docs-0", ["executor", "--app", "a:\0"], parent_watch, {}, recorder)
    await eventually(lambda: recorder.failures, why="it has not started")
    process.end(60)
    await process.ended()
    assert recorder.failures[0] == ("can't start the process: embedded null byte", 0.0)
    assert recorder.has_ended


async def test_one_that_leaves_in_order_is_started_again_a_little_later_and_has_no_problem(start, recorder):
    process = start("import sys\nsys.exit(0)")
    await eventually(lambda: recorder.failures, why="it has ended")
    problems = [process.problem]
    await eventually(lambda: len(recorder.failures) == 2, why="it has ended again: it does not stay up")
    problems.append(process.problem)
    process.end(60)
    await process.ended()
    assert recorder.failures == [("exit code 0", 1.0), ("exit code 0", 1.0)]
    assert problems == [None, "exit code 0"]


async def test_one_that_does_not_listen_is_killed(start, recorder):
    ignore = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)"
    process = start(f"{ignore}\nprint('ready', flush=True)\ntime.sleep(600)")
    await eventually(lambda: recorder.lines == ["ready"], why="it does not listen")
    process.end(0.1)
    await process.ended()
    assert process.exit_code == -9
    assert recorder.failures == []


async def test_its_end_is_seen_while_something_that_it_has_started_has_its_output(start, recorder):
    lasting = "import subprocess, sys\nother = subprocess.Popen(['sleep', '600'])"
    process = start(f"{lasting}\nprint(other.pid, flush=True)\nsys.exit(1)")
    await eventually(lambda: recorder.failures, why="it has ended")
    process.end(60)
    await process.ended()
    assert recorder.failures == [(f"exit code 1: {recorder.lines[0]}", 0.0)]
    for pid in recorder.lines:
        os.kill(int(pid), signal.SIGKILL)


async def test_lines_of_any_length_are_told(start, recorder):
    process = start("import sys\nprint('x' * 200_000)\nprint('no end', end='')\nsys.exit(1)")
    await eventually(lambda: recorder.failures, why="it has ended")
    process.end(60)
    await process.ended()
    assert "".join(recorder.lines[: recorder.lines.index("no end")]) == "x" * 200_000
    assert recorder.failures[0][0] == "exit code 1: no end"


def test_the_examples_are_true():
    assert doctest.testmod(replica).failed == 0


def test_the_delays_double_up_to_five_minutes():
    assert [restart_delay(failures) for failures in range(1, 12)] == [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 300]
    assert restart_delay(10_000) == 300

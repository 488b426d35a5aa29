"""What `make test` relies on: two commands side by side, told one after the other, which end when they are to end."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TextIO

import pytest

from tests.support.lanes import FIRST

ROOT = Path(__file__).parents[2]
RUN = """
import sys
from tests.support.lanes import run
print(*run(*([sys.executable, "-uc", code] for code in sys.argv[1:])))
"""
# As pytest does, it goes on to its end after Ctrl-C, until it is let go. The pipe is open for as long as it lives.
UNTIL_CTRL_C = """
import signal, sys
pipe, go = open({pipe!r}, "w"), open({go!r}, "rb", buffering=0)
try:
    print("ready", file=pipe, flush=True)
    signal.pause()
except KeyboardInterrupt:
    print("ending", file=pipe, flush=True)
    go.read(1)
    print("{name} is torn down")
    sys.exit({code})
"""


def fifo(path: Path) -> str:
    os.mkfifo(path)
    return str(path)


@pytest.fixture
def pipe(tmp_path: Path) -> str:
    return fifo(tmp_path / "pipe")


@pytest.fixture
def go(tmp_path: Path) -> Iterator[BinaryIO]:
    """Where a byte lets one of them go; open for reading too, so that nobody waits for the other side to open it."""
    with Path(fifo(tmp_path / "go")).open("r+b", buffering=0) as go:
        yield go


@contextmanager
def running(first: str, second: str) -> Iterator[subprocess.Popen]:
    command = [sys.executable, "-uc", RUN, first, second]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True) as process:
        yield process
        process.kill()


@contextmanager
def running_until_ctrl_c(pipe: str, go: BinaryIO) -> Iterator[tuple[subprocess.Popen, TextIO]]:
    first = UNTIL_CTRL_C.format(pipe=pipe, go=go.name, name="first", code=2)
    second = UNTIL_CTRL_C.format(pipe=pipe, go=go.name, name="second", code=4)
    # Open for writing here as well until both have it open, so that reading does not end before.
    with running(first, second) as process, Path(pipe).open("r+b", buffering=0) as here, Path(pipe).open() as lines:
        assert [lines.readline(), lines.readline()] == ["ready\n", "ready\n"]
        here.close()
        yield process, lines


def test_what_the_second_prints_comes_after_all_of_the_first_and_both_tell_how_they_ended(pipe, tmp_path):
    life = fifo(tmp_path / "life")  # of the first: its other side ends with it
    first = f"life = open({life!r}, 'w'); print('a'); print(open({pipe!r}).read()); raise SystemExit(3)"
    second = f"life = open({life!r}); print('b'); open({pipe!r}, 'w').write('c'); life.read(); print('d')"
    with running(first, second) as process:
        assert process.communicate(timeout=30)[0].split() == ["a", "c", "b", "d", "3", "0"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_lets_both_end_what_is_theirs(pipe, go, number):
    with running_until_ctrl_c(pipe, go) as (process, lines):
        os.killpg(process.pid, number)  # all that a terminal would send it to
        assert [lines.readline(), lines.readline()] == ["ending\n", "ending\n"]
        go.write(b"!!")
        assert process.communicate(timeout=30)[0].splitlines() == [
            "first is torn down",
            "second is torn down",
            "2 4",
        ]


def test_they_are_killed_with_the_one_that_runs_them(pipe, go):
    with running_until_ctrl_c(pipe, go) as (process, lines):
        process.kill()
        assert process.communicate(timeout=30)[0] == ""
        assert list(lines) == []  # read to the end, which is when none of them has it open


def test_the_tiers_of_the_first_are_tiers():
    assert all((ROOT / "tests" / tier).is_dir() for tier in FIRST)

"""All tests, in two lanes side by side: ``python -m tests.support.lanes``, which ``make test`` runs.

Most of the time tests wait, for leases that run out and for processes that start, so that one lane computes while the
other waits. Each is a session of pytest of its own, with its own servers, folders and ports. What the first prints is
seen as it comes; what the second prints comes after it, and is never mixed with it.
"""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType
from typing import BinaryIO

from tests.support.processes import die_with_parent

FIRST = ("unit", "property", "integration", "acceptance")
"""The tiers of the first lane, which take about as long as all others."""

_PAUSE = 0.1


def main() -> int:
    """Run all tests; the exit code is 0 if all passed."""
    colour = ["--color=yes"] if sys.stdout.isatty() else []  # the second prints to a file
    pytest = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--durations=10", *colour]
    tiers = " or ".join(FIRST)
    _say(f"test: the tiers {', '.join(FIRST)}; all others at the same time, told after them")
    codes = run([*pytest, "-m", tiers], [*pytest, "-m", f"not ({tiers})"])
    for name, code in zip((", ".join(FIRST), "all others"), codes, strict=True):
        _say(f"test: {name}: {f'NOT passed, exit code {code}' if code else 'passed'}")
    return next(filter(None, codes), 0)


def run(first: Sequence[str], second: Sequence[str]) -> tuple[int, int]:
    """Run two commands side by side, tell what they print one after the other, and return their exit codes.

    Each has a session of its own: Ctrl-C at the terminal reaches neither them nor what they have started. It is passed
    on to the two alone, who end what is theirs; a second Ctrl-C is too. However this process ends, they end.
    """
    with tempfile.TemporaryFile() as output:
        lanes: list[subprocess.Popen] = []

        def pass_on(_number: int, _frame: FrameType | None) -> None:
            for lane in lanes:
                lane.send_signal(signal.SIGINT)

        signal.signal(signal.SIGINT, pass_on)
        signal.signal(signal.SIGTERM, pass_on)
        lanes.append(_start(first, None))
        lanes.append(_start(second, output))
        lanes[0].wait()
        _tell(output, lanes[1])
        return lanes[0].returncode, lanes[1].returncode


def _start(command: Sequence[str], output: BinaryIO | None) -> subprocess.Popen:
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output and subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=die_with_parent,  # noqa: PLW1509 - one system call, no locks
    )


def _tell(output: BinaryIO, lane: subprocess.Popen) -> None:
    """Print what is in a file, and what comes to it, until the lane that writes it has ended."""
    told = 0
    is_over = False
    while not is_over:
        with suppress(subprocess.TimeoutExpired):
            lane.wait(_PAUSE)
            is_over = True  # and all that it printed is there
        # Not by a position that is shared with who writes.
        while part := os.pread(output.fileno(), 65536, told):
            sys.stdout.buffer.write(part)
            sys.stdout.buffer.flush()
            told += len(part)


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())

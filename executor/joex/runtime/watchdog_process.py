"""The process of `joex.runtime.watchdog`: ``python watchdog_process.py STUCK_AFTER TICK``, with a pipe as its input.

It exits when its parent closes the pipe or exits. It ignores signals to stop, because its parent may drain for long.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from contextlib import suppress

ALIVE, AT_REST = b"+", b"-"
_PIPE = 0
_DEATH_WITHIN = 1.0


def main() -> None:
    """Watch the parent."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    parent, stuck_after, tick = os.getppid(), float(sys.argv[1]), float(sys.argv[2])
    is_expecting, silent = False, 0.0
    while os.getppid() == parent:
        begin = time.monotonic()
        if _can_read(tick):
            signs = os.read(_PIPE, 4096)
            if not signs:
                return
            is_expecting, silent = signs.endswith(ALIVE), 0.0
        elif is_expecting and not _is_stopped(parent):
            silent += min(
                time.monotonic() - begin, 2 * tick
            )  # (a longer tick: this process, or its machine, was stopped)
            if silent > stuck_after:
                _end(parent, silent)
                return


def _end(parent: int, silent: float) -> None:
    os.kill(parent, signal.SIGUSR2)
    _can_read(_DEATH_WITHIN)  # until the parent's end of the pipe closes
    if os.getppid() == parent:
        os.kill(parent, signal.SIGKILL)
    with suppress(OSError):
        sys.stderr.write(
            f"joex: code has held Python's lock for {silent:.1f} seconds, so that the lease could not be renewed; "
            "the process was ended, so that no job runs twice\n"
        )


def _can_read(seconds: float) -> bool:
    return bool(select.select([_PIPE], [], [], seconds)[0])


def _is_stopped(pid: int) -> bool:
    """Whether SIGSTOP or a debugger has stopped it; False if /proc can't tell."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:  # noqa: PTH123 - pathlib would make up most of this process
            return stat.read().rpartition(b") ")[2][:1] in b"Tt"
    except OSError:
        return False


if __name__ == "__main__":
    main()

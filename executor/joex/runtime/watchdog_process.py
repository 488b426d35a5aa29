"""The process that `joex.runtime.watchdog` starts: ``python watchdog_process.py STUCK_AFTER TICK``, stdin a pipe.

It ends when the pipe or its parent ends, and ignores termination signals: its parent may take its time to leave.
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
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # type: ignore[attr-defined,unused-ignore] # not on Windows
        signal.signal(number, signal.SIG_IGN)
    parent, stuck_after, tick = os.getppid(), float(sys.argv[1]), float(sys.argv[2])
    watching, silent = False, 0.0
    while os.getppid() == parent:
        begin = time.monotonic()
        if _can_read(tick):
            said = os.read(_PIPE, 4096)
            if not said:
                return
            watching, silent = said.endswith(ALIVE), 0.0
        elif watching and not _is_stopped(parent):
            # (If it took longer, this process was stopped too, or its machine.)
            silent += min(time.monotonic() - begin, 2 * tick)
            if silent > stuck_after:
                _end(parent, silent)
                return


def _end(parent: int, silent: float) -> None:
    os.kill(parent, signal.SIGUSR2)  # type: ignore[attr-defined,unused-ignore] # not on Windows
    _can_read(_DEATH_WITHIN)  # the end of the pipe
    if os.getppid() == parent:
        os.kill(parent, signal.SIGKILL)  # type: ignore[attr-defined,unused-ignore] # not on Windows
    with suppress(OSError):
        sys.stderr.write(
            f"joex: code has held Python's lock for {silent:.1f} seconds, so that the lease could not be renewed; "
            "the process was ended, so that no job runs twice\n"
        )


def _can_read(seconds: float) -> bool:
    return bool(select.select([_PIPE], [], [], seconds)[0])


def _is_stopped(pid: int) -> bool:
    """Whether SIGSTOP or a debugger has stopped the process; False if /proc can't tell."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:  # noqa: PTH123 - pathlib would be most of this process
            return stat.read().rpartition(b") ")[2][:1] in b"Tt"
    except OSError:
        return False


if __name__ == "__main__":
    main()

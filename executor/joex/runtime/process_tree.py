"""Finds what a process has started, sends signals to it, and stops it while an executor is stopped.

By ``/proc``; where a system has none, the group of the process is all that can be found.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

if sys.platform == "win32":
    raise ImportError("Windows can't fork")

_STOPPED_WITHIN = 0.1
_AT_WORK, _STOPPED, _TRACED = ("R", "S"), "T", "t"  # states in /proc


class Pause:
    """Stops a process, with all that it has started, and lets it go on; to be held again and again.

    (One walk may miss what is just being forked, and what another process lets go on.)

    Attributes:
        has_found_others: whether the latest walk has met others than those before, so that the next one may, too.
    """

    def __init__(self, process: int) -> None:
        self.has_found_others = False
        self._process = process
        self._is_on = False
        self._stopped: dict[tuple[int, str], None] = {}  # each by its id, which may be reused, and when it started

    def hold(self) -> None:
        """Stop what is not stopped yet."""
        if not self._is_on:
            self._is_on = True
            signal_group(self._process, signal.SIGSTOP)  # all that a system without /proc can do
        before = len(self._stopped)
        # A parent before its children: it forks no others, and a shell does not see that they are stopped, which it
        # would take for Ctrl-Z.
        found = children_of(os.getpid())
        for pid in found:
            self._stop(pid)
            found += children_of(pid)
        self.has_found_others = len(self._stopped) > before

    def end(self) -> None:
        """Let go on what it has stopped; a task may have stopped others. Children come first, see `hold`."""
        if self._is_on:
            for pid, started in reversed(self._stopped):
                if state_of(pid)[1] == started:
                    send_signal(pid, signal.SIGCONT)
            signal_group(self._process, signal.SIGCONT)
            self._is_on = self.has_found_others = False
            self._stopped.clear()

    def _stop(self, pid: int) -> None:
        state, started = state_of(pid)
        if state == _STOPPED or not send_signal(pid, signal.SIGSTOP):  # (it has another user)
            return
        is_new, until = (pid, started) not in self._stopped, time.monotonic() + _STOPPED_WITHIN
        self._stopped[pid, started] = None
        while is_new and state_of(pid)[0] in _AT_WORK and time.monotonic() < until:
            time.sleep(0.001)


def children_of(pid: int) -> list[int]:
    """The children of a process, which those of its threads are that have forked them."""
    children: list[int] = []
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                children += map(int, (thread / "children").read_text().split())
    return children


def send_signal(process: int, number: signal.Signals) -> bool:
    """Send a signal to a process; False: there is none, or it has another user."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(process, number)
        return True
    return False


def signal_group(process: int, number: signal.Signals) -> None:
    """Send a signal to the group that a process has made."""
    with suppress(ProcessLookupError, PermissionError):  # it has not made its group yet; all of it has ended
        os.killpg(process, number)


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped; False where the system does not say it."""
    return state_of(pid)[0] in (_STOPPED, _TRACED)


def state_of(pid: int) -> tuple[str, str]:
    """The state of a process, and when it started; both are empty if there is none, or the system does not say it."""
    try:
        said = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(") ")[2].split()
    except OSError:
        return "", ""
    return said[0], said[19]

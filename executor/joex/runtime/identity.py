"""The identity of this process, and whether another one on this host still exists."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from joex.store.executors import Other


@dataclass(frozen=True, slots=True)
class Process:
    """A process. ``boot`` names the boot of the host and the PID namespace; ``start`` is when it started after that."""

    host: str
    boot: str
    pid: int
    start: str


@cache
def _boot() -> str:
    """This boot of this host, and the PID namespace: containers on one host share the first, but not the second."""
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot_id} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:  # not Linux: other processes are then unknown
        return ""


def _start(pid: int) -> str:
    """When a process started, in clock ticks after the boot; empty if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    # The name of the program, in parentheses, may contain anything. The state is the first field after it, the start
    # the twentieth.
    fields = stat[stat.rindex(")") + 2 :].split()
    return "" if fields[0] in ("Z", "X") else fields[19]


def this_process() -> Process:
    """This process."""
    return Process(socket.gethostname(), _boot(), os.getpid(), _start(os.getpid()))


def is_certainly_gone(other: Other) -> bool:
    """Whether another executor's process has certainly ended. False if that can't be known."""
    if not other.boot_id or other.boot_id != _boot() or not other.process_start:
        return False
    return _start(other.pid) != other.process_start

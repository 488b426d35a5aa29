"""CPU time of other processes on this machine: on a busy machine it says more than elapsed time."""

from __future__ import annotations

import ctypes
import time
from contextlib import suppress
from typing import Any

import asyncpg
import psutil

_libc = ctypes.CDLL(None)


def cpu_seconds(pid: int) -> float:
    """The CPU time that a process has used up to this moment, with all its threads, in seconds.

    This reads the process's own clock (POSIX, clock_getcpuclockid), because psutil counts in hundredths of a second.
    """
    clock = ctypes.c_int()
    if not hasattr(_libc, "clock_getcpuclockid") or _libc.clock_getcpuclockid(pid, ctypes.byref(clock)) != 0:
        times = psutil.Process(pid).cpu_times()
        return float(times.user + times.system)
    return time.clock_gettime(clock.value)


async def server_process(connection: asyncpg.Connection[Any]) -> int | None:
    """The id of the server's process of a connection; None if the server is on another machine.

    The process title has the name of the database, which is random in benchmarks.
    """
    try:
        pid = connection.get_server_pid()
        line = " ".join(psutil.Process(pid).cmdline())
    except psutil.Error:
        return None
    return pid if await connection.fetchval("SELECT current_database()") in line else None


def server_seconds(backend: int) -> float:
    """The CPU time that a server has used up to this moment, with all its processes, also ended ones, in seconds.

    Args:
        backend: a process of the server.
    """
    postmaster = psutil.Process(backend).parent()
    if postmaster is None:
        raise RuntimeError(f"process {backend} has no parent: it is no process of a server")
    ended = postmaster.cpu_times()
    seconds = float(ended.children_user + ended.children_system)
    for process in (postmaster, *postmaster.children()):
        with suppress(OSError, psutil.Error):  # it has just ended
            seconds += cpu_seconds(process.pid)
    return seconds

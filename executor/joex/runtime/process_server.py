"""The server of processes: it has loaded the app, and forks a process for each message from the executor.

An executor has threads, an event loop and connections, so nobody can fork it. This server has none of them::

    executor ── control ──▶ server ──forks──▶ keeper ──forks──▶ process (runs tasks) ──▶ what tasks start
        │◀───────────────── leash ───────────────┘                 │
        └◀───────────────── channel: jobs, reports, ends ──────────┘

A keeper has one process. It ends that process, with all that the process has started, when the executor says so, when
the process has ended, and when the executor is gone, for whatever reason: the kernel tells it then. Only when
nothing is left, it reports how the process ended. So the end of a run is the end of all of it, and the server may die
without harm to the runs.

On Linux, what a task started and lost sight of (a daemon) becomes a child of the keeper, which finds it there.
"""

from __future__ import annotations

import ctypes
import gc
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from joex.runtime.process_channel import ASK, GO_ON, PAUSE_WITH_EXECUTOR, READY, STATUS

if sys.platform == "win32":
    raise ImportError("Windows can't fork")

_SET_PARENT_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36  # of prctl
_MORE_KILLABLE = 200  # of 1000: when memory runs out, the kernel takes a process before its executor
_CHECK_EVERY = 0.25
_IS_LINUX = sys.platform == "linux"

Work = Callable[[socket.socket, int], None]
"""Runs jobs from a channel, in a process. It also gets a file descriptor: at SIGTERM, a byte there says that the
executor asks for it. (systemd, for one, sends SIGTERM to all processes of a service, though these are to drain.)"""


def ignore_signals() -> None:
    """Ignore what is for the executor: the server and the keepers end when the executor ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def serve(control: socket.socket, work: Work, executor: int) -> None:
    """Fork processes, until the executor is gone. ``executor``: its process id."""
    if threading.active_count() > 1:
        names = ", ".join(
            sorted(thread.name for thread in threading.enumerate() if thread is not threading.main_thread())
        )
        sys.stderr.write(
            f"joex: the app starts threads when it is imported, which its processes do not have: {names}\n"
        )
    gc.collect()
    gc.freeze()  # the garbage collection of a process would otherwise copy the pages that all processes share
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the keepers
    end = _end_of(executor)
    control.send(READY)
    while True:
        watched: list[Any] = [control, *end]
        readable, _, _ = select.select(watched, [], [])
        if any(one in readable for one in end):
            return
        _, found, _, _ = socket.recv_fds(control, 1, 2)
        if len(found) != 2:  # noqa: PLR2004 - the channel and the leash
            return
        for one in found:
            os.set_inheritable(one, False)  # noqa: FBT003 - as the function has it
        _flush()
        try:
            if os.fork() == 0:
                control.close()
                channel, leash = (socket.socket(fileno=one) for one in found)
                _in_child(partial(_keep, channel, leash, work, executor, end))
        except OSError as error:  # the executor sees that its ends are closed
            sys.stderr.write(f"joex: no process could be forked: {error.strerror}\n")
        for one in found:
            os.close(one)


def _end_of(executor: int) -> list[int]:
    """A file descriptor that tells the end of the executor; none where the system has no such descriptors.

    Something that code of the executor has forked holds the executor's sockets open beyond it.
    """
    if sys.platform == "linux":
        with suppress(AttributeError, OSError):
            return [os.pidfd_open(executor)]
    return []


def _keep(channel: socket.socket, leash: socket.socket, work: Work, executor: int, end: list[int]) -> None:
    """Be a keeper; ``end``: see `_end_of`."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    _prctl(_SET_CHILD_SUBREAPER, 1)
    asked, ask = os.pipe()
    os.set_blocking(asked, False)
    keeper, process = os.getpid(), os.fork()
    if process == 0:
        for unused in (woken, wake, ask, *end):
            os.close(unused)
        leash.close()
        _in_child(lambda: _begin(channel, asked, work, keeper))
    channel.close()
    os.close(asked)
    pauses = is_paused = False
    status, listens = None, [leash, *end]
    while status is None:
        watched: list[Any] = [*listens, woken]
        readable, _, _ = select.select(watched, [], [], _CHECK_EVERY if pauses else None)
        if woken in readable:
            os.read(woken, 1024)
        if any(one in readable for one in listens):
            said = _received(leash) if leash in readable else b""
            if said == ASK:
                with suppress(OSError):  # it has ended, or has closed its end
                    os.write(ask, ASK)
                _send(process, signal.SIGTERM)
            elif said in (PAUSE_WITH_EXECUTOR, GO_ON):
                pauses = said == PAUSE_WITH_EXECUTOR
            else:
                listens = []
                _send(process, signal.SIGKILL)
                _send_to_group(process, signal.SIGKILL)
        if (pauses and _is_stopped(executor)) != is_paused:
            is_paused = not is_paused
            _send_to_group(process, signal.SIGSTOP if is_paused else signal.SIGCONT)
        status = _reap(process)
    _send_to_group(process, signal.SIGKILL)
    while _reap_all():
        pass
    with suppress(OSError):
        leash.send(STATUS.pack(status))


def _begin(channel: socket.socket, asked: int, work: Work, keeper: int) -> None:
    """Be a process."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    os.setsid()
    _prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != keeper:  # it was killed just now
        return
    with suppress(OSError, ValueError):
        score = Path("/proc/self/oom_score_adj")
        score.write_text(str(min(int(score.read_text()) + _MORE_KILLABLE, 1000)))
    work(channel, asked)


def _in_child(be: Callable[[], None]) -> None:
    """End this process after a function, whatever happens: nothing of its parent's code may go on in it."""
    code = 1
    try:
        be()
        code = 0
    except SystemExit as error:  # of what a task has forked
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # noqa: BLE001 - see above
        sys.excepthook(*sys.exc_info())
    finally:
        _flush()
        os._exit(code)


def _flush() -> None:
    """Write what stands in buffers, which a fork would double, and an end of the process lose."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()


def _received(leash: socket.socket) -> bytes:
    try:
        return leash.recv(1)
    except OSError:
        return b""


def _reap(process: int) -> int | None:
    """Reap what has ended; the status of the process, if it has."""
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == process:
            return status
        if pid == 0:
            return None


def _reap_all() -> bool:
    """End the children that are left, and wait for one of them; False: none is left."""
    for child in _children():
        _send(child, signal.SIGKILL)
    try:
        os.waitpid(-1, 0)
    except ChildProcessError:
        return False
    return True


def _children() -> list[int]:
    pid = os.getpid()
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _send_to_group(process: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):  # it has not made its group yet; all of it has ended
        os.killpg(process, number)


def _send(process: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(process, number)


def _is_stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2][:1] in b"Tt"
    except OSError:
        return False


def _prctl(option: int, value: int) -> None:
    if _IS_LINUX:
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)

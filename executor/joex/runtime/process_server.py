"""The server of processes: it has loaded the app, and forks a process for each message from the executor.

An executor has threads, an event loop and connections, so nobody can fork it. This server has none of them::

    executor ── control ──▶ server ──forks──▶ keeper ──forks──▶ process (runs tasks) ──▶ what tasks start
        │◀───────────────── leash ───────────────┘                 │
        └◀───────────────── channel: jobs, reports, ends ──────────┘

A keeper has one process. It ends that process, with all that the process has started, when the executor says so, when
the process has ended, and when the executor is gone, for whatever reason: the kernel tells it then. Only when
nothing is left, it reports how the process ended. So the end of a run is the end of all of it, and the server may die
without harm to the runs.

On Linux, what a task started and lost sight of (a daemon) becomes a child of the keeper, which finds it there. The
code of a task can kill its keeper: then the kernel kills the process, and all that is left becomes a child of the
server, which ends it, and holds the leash until then. While its executor is stopped, the keeper of an exclusive run
stops all that the run has started, wherever it is.
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
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from joex.runtime.process_channel import ASK, GO_ON, PAUSE_WITH_EXECUTOR, READY, STATUS, blocking_socket

if sys.platform == "win32":
    raise ImportError("Windows can't fork")

from joex.runtime.process_tree import Pause, children_of, is_stopped, send_signal, signal_group

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
    _prctl(_SET_CHILD_SUBREAPER, 1)
    keepers, end = _Keepers(), _end_of(executor)
    control.send(READY)
    while (ends := _next_order(control, keepers, end)) is not None:
        _flush()
        channel, leash = (blocking_socket(one) for one in ends)
        keepers.fork(leash, partial(_keep, channel, leash, work, executor, end), unused=control)
        channel.close()
    keepers.end()


def _next_order(control: socket.socket, keepers: _Keepers, end: list[int]) -> list[int] | None:
    """The ends of a channel and a leash for the next process; None: the executor is gone."""
    while True:
        watched: list[Any] = [control, keepers.woken, *end]
        readable = _readable(watched, _CHECK_EVERY if keepers.have_left_something else None)
        keepers.tidy()
        if any(one in readable for one in end):
            return None
        if control in readable:
            _, found, _, _ = socket.recv_fds(control, 1, 2)
            for one in found:
                os.set_inheritable(one, False)  # noqa: FBT003 - as the function has it
            return found if len(found) == 2 else None  # noqa: PLR2004 - the channel and the leash


class _Keepers:
    """The keepers that a server has forked, and the ends of their leashes, which it holds until nothing is left."""

    def __init__(self) -> None:
        self.woken, self._wake = _woken_by_children()
        self._of_the_app = set(children_of(os.getpid()))  # the app has started them when it was imported
        self._leashes: dict[int, socket.socket] = {}  # by the process id of the keeper
        self._of_the_dead: list[socket.socket] = []

    @property
    def have_left_something(self) -> bool:
        """Whether a keeper has died, perhaps before all that it was to end."""
        return bool(self._of_the_dead)

    def fork(self, leash: socket.socket, keep: Callable[[], None], *, unused: socket.socket) -> None:
        """Fork a keeper."""
        try:
            keeper = os.fork()
        except OSError as error:  # the executor sees that its ends are closed
            sys.stderr.write(f"joex: no process could be forked: {error.strerror}\n")
            leash.close()
            return
        if keeper == 0:
            for one in (unused, *self._leashes.values(), *self._of_the_dead):
                one.close()
            os.close(self.woken)
            os.close(self._wake)
            _in_child(keep)
        self._leashes[keeper] = leash

    def tidy(self) -> None:
        """End what dead keepers have left, and close their leashes when nothing is left."""
        with suppress(BlockingIOError):
            os.read(self.woken, 1024)
        while (pid := _reaped()) is not None:
            self._of_the_app.discard(pid)
            if pid in self._leashes:
                self._of_the_dead.append(self._leashes.pop(pid))
        left = set(children_of(os.getpid())) - self._leashes.keys() - self._of_the_app if self._of_the_dead else set()
        for one in left:
            send_signal(one, signal.SIGKILL)
        while self._of_the_dead and not left:
            self._of_the_dead.pop().close()

    def end(self) -> None:
        """End all, because the executor is gone: a keeper that is stopped does not see that."""
        for keeper in self._leashes:
            send_signal(keeper, signal.SIGKILL if _IS_LINUX else signal.SIGCONT)
        while self._leashes or self._of_the_dead:
            _readable([self.woken], _CHECK_EVERY)
            self.tidy()


def _readable(files: Sequence[Any], within: float | None) -> list[Any]:
    """Those of these files that can be read, or are at their end, within so many seconds; None: without a limit.

    (Not by `select.select`: an executor with many connections gives its server a descriptor above 1023.)
    """
    poll, by_descriptor = select.poll(), {}
    for one in files:
        descriptor = one if isinstance(one, int) else one.fileno()
        by_descriptor[descriptor] = one
        poll.register(descriptor, select.POLLIN)
    return [by_descriptor[one] for one, _ in poll.poll(None if within is None else within * 1000)]


def _woken_by_children() -> tuple[int, int]:
    """A pipe that gets a byte when a child has ended."""
    woken, wake = os.pipe()
    for one in (woken, wake):
        os.set_blocking(one, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    return woken, wake


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
    woken, wake = _woken_by_children()
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
    pause, pauses = Pause(process), False
    status, listens = None, [leash, *end]
    while status is None:
        watched: list[Any] = [*listens, woken]
        within = 0 if pause.has_found_others else _CHECK_EVERY
        readable = _readable(watched, within if pauses else None)
        if woken in readable:
            os.read(woken, 1024)
        if any(one in readable for one in listens):
            said = _received(leash) if leash in readable else b""
            if said == ASK:
                with suppress(OSError):  # it has ended, or has closed its end
                    os.write(ask, ASK)
                send_signal(process, signal.SIGTERM)
            elif said in (PAUSE_WITH_EXECUTOR, GO_ON):
                pauses = said == PAUSE_WITH_EXECUTOR
            else:
                listens = []
                send_signal(process, signal.SIGKILL)
                signal_group(process, signal.SIGKILL)
        if pauses and is_stopped(executor):
            pause.hold()
        else:
            pause.end()
        status = _reap(process)
    signal_group(process, signal.SIGKILL)
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


def _reaped() -> int | None:
    """A child that has ended, and is reaped now."""
    try:
        return os.waitpid(-1, os.WNOHANG)[0] or None
    except ChildProcessError:
        return None


def _reap_all() -> bool:
    """End the children that are left, and wait for one of them; False: none is left."""
    for child in children_of(os.getpid()):
        send_signal(child, signal.SIGKILL)
    try:
        os.waitpid(-1, 0)
    except ChildProcessError:
        return False
    return True


def _prctl(option: int, value: int) -> None:
    if _IS_LINUX:
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)

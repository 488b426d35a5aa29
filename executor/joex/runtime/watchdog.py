"""Ends the process when its interpreter is stuck in code that holds Python's lock (the GIL) and does not return.

Nothing in Python runs then, not even the lease's thread. The lease ends, other executors run the jobs, and the stuck
code continues beside them. So a separate process watches this one (`watchdog_process`, which imports next to nothing):
the lease's thread sends it signs of life, and if none comes for `joex.core.lease.Lease.stuck_after`, it ends this
process.

It must not end a process that was stopped (SIGSTOP, a debugger) and continues, nor one whose machine was suspended:
such a process finds out by itself that its lease is over. So no kernel timer can do this: it would fire as soon as the
process continues.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from joex.core.lease import Lease
from joex.runtime import watchdog_process

_END_WITHIN = 1.0
_SCRIPT = Path(watchdog_process.__file__)


class Watchdog:
    """The watchdog of this process, which has at most one. If it ends the process, the exit code is 12 (SIGUSR2)."""

    def __init__(self, lease: Lease) -> None:
        self.show_every = lease.show_life_every
        # -I, -S: ignore the environment, load no packages.
        self._command = [sys.executable, "-I", "-S", str(_SCRIPT), str(lease.stuck_after), str(lease.show_life_every)]
        # The signal handler itself is _exit, which needs no interpreter: the first process of a container ends only by
        # a signal that it handles. Before that, faulthandler writes the stack of each thread.
        libc = ctypes.CDLL(None)
        libc.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
        libc.signal(signal.SIGUSR2, ctypes.cast(libc["_exit"], ctypes.c_void_p))
        with suppress(RuntimeError, OSError, ValueError):  # there is no standard error
            faulthandler.register(signal.SIGUSR2, all_threads=True, chain=True)
        self._start()

    def show_life(self) -> None:
        """Send a sign of life. From the first one on, the watchdog expects them, until `rest`."""
        self._send(watchdog_process.ALIVE)

    def rest(self) -> None:
        """Let the watchdog expect no more signs of life."""
        self._send(watchdog_process.AT_REST)

    def close(self) -> None:
        """End the watching process, and reap it: in a container there may be no init process to do so."""
        with suppress(OSError):
            os.close(self._pipe)
        try:
            self._process.wait(_END_WITHIN)
        except subprocess.TimeoutExpired:  # it is stopped
            self._process.kill()
            self._process.wait()

    def _send(self, sign: bytes) -> None:
        try:
            os.write(self._pipe, sign)
        except BlockingIOError:  # the watchdog was stopped for so long that the pipe is full
            pass
        except OSError:  # the watchdog was killed: start another
            with suppress(OSError):
                gone = self._pipe
                self._start()
                os.close(gone)

    def _start(self) -> None:
        # (In a new session, so that a terminal's signals to the executor don't reach the watchdog.)
        end, pipe = os.pipe()
        os.set_blocking(pipe, False)
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                self._command, stdin=end, stdout=subprocess.DEVNULL, start_new_session=True
            )
        except OSError:
            os.close(pipe)
            raise
        finally:
            os.close(end)
        self._pipe = pipe

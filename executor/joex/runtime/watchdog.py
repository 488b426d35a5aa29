"""Ends the process when its interpreter is stuck: code holds the GIL and never releases it.

Then no Python code runs, not even the lease's thread: the lease expires, other executors run the jobs, and the stuck
code goes on beside them. So a separate process watches (`watchdog_process`, which imports next to nothing): the lease's
thread sends it regular signs of life, and after `joex.core.lease.Lease.stuck_after` without one it ends this process.

It must not end a process that was stopped (SIGSTOP, a debugger) and continues, nor a process whose machine was
suspended: these find out by themselves that their lease is over. A kernel timer would go off the moment they continue.
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
    """Watches this process, which has one watchdog at most. If it ends the process, the exit code is 12 (SIGUSR2)."""

    def __init__(self, lease: Lease) -> None:
        self.show_every = lease.show_life_every
        # -I, -S: ignore the environment, load no packages.
        self._command = [sys.executable, "-I", "-S", str(_SCRIPT), str(lease.stuck_after), str(lease.show_life_every)]
        # The handler itself exits, without the interpreter: a signal ends the first process of a container only if the
        # process handles it. Before that, the handler writes the stack of each thread.
        libc = ctypes.CDLL(None)
        libc.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
        libc.signal(signal.SIGUSR2, ctypes.cast(libc["_exit"], ctypes.c_void_p))  # type: ignore[attr-defined,unused-ignore] # not on Windows
        with suppress(RuntimeError, OSError, ValueError):  # without a standard error
            faulthandler.register(signal.SIGUSR2, all_threads=True, chain=True)  # type: ignore[attr-defined,unused-ignore] # not on Windows
        self._start()

    def show_life(self) -> None:
        """Send a sign of life. From the first one on, the watching process expects them, until `rest`."""
        self._say(watchdog_process.ALIVE)

    def rest(self) -> None:
        """Tell the watching process to expect no more signs of life."""
        self._say(watchdog_process.AT_REST)

    def close(self) -> None:
        """End the watching process, and reap it: in a container there may be no init process to do so."""
        with suppress(OSError):
            os.close(self._pipe)
        try:
            self._process.wait(_END_WITHIN)
        except subprocess.TimeoutExpired:  # it is stopped
            self._process.kill()
            self._process.wait()

    def _say(self, what: bytes) -> None:
        try:
            os.write(self._pipe, what)
        except BlockingIOError:  # it was stopped for long
            pass
        except OSError:  # it was killed
            with suppress(OSError):
                gone = self._pipe
                self._start()
                os.close(gone)

    def _start(self) -> None:
        # (In its own session: a terminal's signals to the executor must not reach it.)
        end, pipe = os.pipe()
        os.set_blocking(pipe, False)  # type: ignore[attr-defined,unused-ignore] # not on Windows
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

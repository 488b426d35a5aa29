"""Ends the process when its interpreter is stuck: in code that holds Python's lock (the GIL) and does not come back.

Nothing in Python runs then, nor does the lease's thread: the lease is over some time, others run the jobs, and the code
goes on beside them. So a process of its own watches (`watchdog_process`, which imports next to nothing): the lease's
thread shows it again and again that it lives, and where that fails for `joex.core.lease.Lease.stuck_after`, it ends
this process.

It must not end a process that was stopped (SIGSTOP, a debugger) and goes on, nor one whose machine was suspended: that
one finds out by itself that its lease is over. Hence no timer of the kernel, which goes off the moment that it goes on.
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
    """Watches this process, which has one at most. Where it ends it, the exit code is 12 (SIGUSR2)."""

    def __init__(self, lease: Lease) -> None:
        self.show_every = lease.show_life_every
        # -I, -S: nothing of the environment, no packages.
        self._command = [sys.executable, "-I", "-S", str(_SCRIPT), str(lease.stuck_after), str(lease.show_life_every)]
        # Exits in the very handler, without the interpreter: no signal ends the first process of a container but one
        # that it handles. Before that it writes what each thread was at.
        libc = ctypes.CDLL(None)
        libc.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
        libc.signal(signal.SIGUSR2, ctypes.cast(libc["_exit"], ctypes.c_void_p))
        with suppress(RuntimeError, OSError, ValueError):  # there is no standard error
            faulthandler.register(signal.SIGUSR2, all_threads=True, chain=True)
        self._start()

    def show_life(self) -> None:
        """Show that the interpreter is at work; from the first time on this is waited for, until `rest`."""
        self._say(watchdog_process.ALIVE)

    def rest(self) -> None:
        """Nothing is to be waited for any more."""
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
        # (A session of its own: what a terminal says to the executor is not meant for it.)
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

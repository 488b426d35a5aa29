"""Processes that end with the tests. It imports nothing of Joex, so that the lanes and their tests start quickly."""

import ctypes
import signal

_SET_PARENT_DEATH_SIGNAL = 1
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent() -> None:
    """Called in the new process: the kernel kills it with the tests, so that none stays behind."""
    _libc.prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)

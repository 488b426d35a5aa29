"""SIGTERM while a command starts.

The kernel delivers a signal to the first process of a container only if the process handles it. An orchestrator sends
SIGTERM once; if that is lost, the pod ends only after its grace period, which is an hour for executors. So
`end_at_sigterm` comes before all imports, and each command replaces the handler by its own as soon as it has something
to clean up.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

TOLD_TO_END = 128 + signal.SIGTERM
"""The exit code of a command that SIGTERM ended before it had started anything, as shells report it."""


def end_at_sigterm() -> None:
    """Exit at once on SIGTERM, even one that arrived while the signal was blocked, as it is in our image."""
    signal.signal(signal.SIGTERM, _end)
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])


@contextmanager
def leaving_in_order() -> Iterator[Callable[[], None]]:
    """Make SIGTERM raise `SystemExit` within the block, so that the block cleans up.

    The block gets a function to call as soon as there is something to clean up. A SIGTERM that arrives earlier raises
    in that call, because the block can't clean up what it has only half started.
    """
    can_leave = came = False

    def on_signal(_number: int, _frame: object) -> None:
        nonlocal came
        came = True
        if can_leave:
            raise SystemExit(TOLD_TO_END)

    def begun() -> None:
        nonlocal can_leave
        can_leave = True
        if came:
            raise SystemExit(TOLD_TO_END)

    before = signal.signal(signal.SIGTERM, on_signal)
    try:
        yield begun
    finally:
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN:  # a command that has left ignores it to its end
            signal.signal(signal.SIGTERM, before)


def _end(_number: int, _frame: object) -> NoReturn:
    # Not an exception: during imports, Python may ignore one.
    os._exit(TOLD_TO_END)

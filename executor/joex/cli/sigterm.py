"""SIGTERM while a command starts.

The kernel delivers a signal to the first process of a container only if the process handles it. An orchestrator sends
SIGTERM once; lost, it leaves a pod that ends when its grace is over, which is an hour for executors. So
`end_at_sigterm` comes before anything is imported, and each command replaces that handler by its own as soon as it has
something to leave in order.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

TOLD_TO_END = 128 + signal.SIGTERM
"""The exit code of a command that was told to end before it had begun anything: that of a shell."""


def end_at_sigterm() -> None:
    """End the process at once at a SIGTERM; also at one that came while the signal was blocked, as in our image."""
    signal.signal(signal.SIGTERM, _end)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])


@contextmanager
def leaving_in_order() -> Iterator[Callable[[], None]]:
    """Let SIGTERM raise `SystemExit` within the block, so that what it has begun is left in order.

    The block is given a function to call as soon as there is something that can be left: a SIGTERM that came before
    raises there, for what is only half begun can't be.
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
        signal.signal(signal.SIGTERM, before)


def _end(_number: int, _frame: object) -> NoReturn:
    # Not an exception: in the midst of imports one may be raised where Python ignores it.
    os._exit(TOLD_TO_END)

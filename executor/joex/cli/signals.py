"""SIGTERM and Ctrl-C to a command while its event loop runs."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager


@contextmanager
def reacting_to_signals(
    react: Callable[[str], object], numbers: Sequence[signal.Signals] = (signal.SIGTERM, signal.SIGINT)
) -> Iterator[None]:
    """Call this in the event loop for each signal that comes within the block, with its name; ignore later ones.

    The loop ends some time before the process exits normally, and the embedded server is closed in between.
    """
    loop = asyncio.get_running_loop()
    for number in numbers:
        # (Not by a handler of the loop: to remove that resets the signal to its default, which ends the process; and
        # with one, Python can wait for itself for ever, when more signals come than the loop has read.)
        signal.signal(number, lambda nr, _: loop.call_soon_threadsafe(react, signal.Signals(nr).name))
        if sys.platform != "win32":
            signal.siginterrupt(number, False)  # noqa: FBT003 - takes no name; else waiting calls of libraries in C fail
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)

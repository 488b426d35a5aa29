"""SIGTERM and Ctrl-C to a command while its event loop runs."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

_handlers: dict[int, Callable[[int, FrameType | None], None]] = {}
"""Of this process, by their signals."""


def _be_a_fork() -> None:
    """Let signals end what the code of a run forks, as everywhere: it has no loop, and `multiprocessing.Pool` waits."""
    for number, handler in _handlers.items():
        if signal.getsignal(number) is handler:
            signal.signal(number, signal.SIG_DFL)


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_be_a_fork)


def have_handlers() -> bool:
    """Whether no signal raises an exception: `reacting_to_signals` has begun, and its handlers are still those."""
    return bool(_handlers) and all(
        signal.getsignal(number) in (one, signal.SIG_IGN) for number, one in _handlers.items()
    )


@contextmanager
def reacting_to_signals(
    react: Callable[[str], object], numbers: Sequence[signal.Signals] = (signal.SIGTERM, signal.SIGINT)
) -> Iterator[None]:
    """Call this in the event loop for each signal that comes within the block, with its name; ignore later ones.

    The loop ends some time before the process exits normally, and the embedded server is closed in between.
    """
    loop = asyncio.get_running_loop()

    def on_signal(number: int, _: FrameType | None) -> None:
        loop.call_soon_threadsafe(react, signal.Signals(number).name)

    for number in numbers:
        # (Not by a handler of the loop: to remove that resets the signal to its default, which ends the process; and
        # with one, Python can wait for itself for ever, when more signals come than the loop has read.)
        signal.signal(number, on_signal)
        _handlers[number] = on_signal
        if sys.platform != "win32":
            signal.siginterrupt(number, False)  # noqa: FBT003 - takes no name; else waiting calls of libraries in C fail
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)

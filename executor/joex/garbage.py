"""The garbage collector pauses while a large value is read: millions of new objects, of which none is garbage.

It would walk over all of them again and again, for seconds, in which no thread of the process goes on.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_LONGEST = 5.0
"""Seconds from its begin in which a further reader prolongs a pause: so it ends, however many large values come."""


class _Pause:
    """The pause of this process."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # (a finalizer may read a large value)
        self.readers, self.begun, self.was_on = 0, 0.0, False

    def be_a_fork(self) -> None:
        """End the pause in a fork: it has none of the threads that read, and one of them may have held the lock."""
        if self.readers and self.was_on:
            gc.enable()
        self.__init__()  # type: ignore[misc] # anew


_pause = _Pause()
if sys.platform != "win32":
    os.register_at_fork(after_in_child=_pause.be_a_fork)


@contextmanager
def collection_paused() -> Iterator[None]:
    """While a large value is read, in any thread."""
    with _pause.lock:
        if is_counted := not _pause.readers or time.monotonic() - _pause.begun < _LONGEST:
            if not _pause.readers:
                _pause.begun, _pause.was_on = time.monotonic(), gc.isenabled()
                gc.disable()
            _pause.readers += 1
    try:
        yield
    finally:
        if is_counted:
            with _pause.lock:
                _pause.readers -= 1
                if not _pause.readers and _pause.was_on:
                    gc.enable()

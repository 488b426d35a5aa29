"""Log lines on standard error, written by a thread, so that no event loop waits for the reader.

The output of tasks and of their processes goes there too, and may be more than the reader takes.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import TextIO, cast

_log = logging.getLogger("joex")
_MOST = 4_000_000  # bytes of lines that wait
_AT_ONCE = 4096  # bytes: a pipe takes so many as one piece, in which no other process writes
_END_WITHIN = 2.0  # seconds
_CRASH_WITHIN = 0.25  # seconds

_streams: list[LogStream] = []


@contextmanager
def unblocked(stream: TextIO) -> Iterator[TextIO]:
    """Yield a stream for log lines that writes to the file of this one, and keeps no caller waiting.

    At the end it takes two seconds at most to write what is left. An object of the app's own is used as it is.
    """
    if sys.platform == "win32" or type(stream) is not io.TextIOWrapper:  # (the console of Windows takes no bytes)
        yield stream
        return
    lines = LogStream(stream)
    _streams.append(lines)
    try:
        yield cast("TextIO", lines)
    finally:
        lines.end()


def write_at_once(text: str) -> None:
    """Write to standard error, after the log lines if the reader takes these within a moment. This may block."""
    if _streams:
        _streams[-1].catch_up(_CRASH_WITHIN)
        _streams[-1].write_at_once(text)
    else:
        sys.stderr.write(text)
        sys.stderr.flush()


class LogStream:
    """Takes lines without a wait. When too many wait, it drops the further ones until it has written these.

    Args:
        stream: to whose file a thread writes the lines. It has a file descriptor of its own: where a task closes the
            usual one, the next file gets the number, and that may be a connection to the database.
    """

    def __init__(self, stream: io.TextIOWrapper) -> None:
        self._descriptor = os.dup(stream.fileno())
        self._encoding = stream.encoding
        self._is_terminal = stream.isatty()
        # (A handler of a signal may log in the middle of a call here: both are made for that.)
        self._lines: SimpleQueue[bytes | threading.Event] = SimpleQueue()
        self._lock = threading.RLock()
        self._waiting = 0  # bytes
        self._dropped = 0  # lines
        self._has_thread = True
        os.register_at_fork(after_in_child=self._be_a_fork)  # type: ignore[attr-defined,unused-ignore] # not on Windows
        threading.Thread(target=self._write_lines, name="joex log", daemon=True).start()

    def write(self, text: str) -> int:
        """Take a line."""
        line = text.encode(self._encoding, "backslashreplace")
        if not self._has_thread:
            self._write(line)
            return len(text)
        with self._lock:
            if self._dropped or self._waiting + len(line) > _MOST:
                self._dropped += 1
            else:
                self._waiting += len(line)
                self._lines.put(line)
        return len(text)

    def flush(self) -> None:
        """Do nothing: each line is on its way."""

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return self._is_terminal

    def write_at_once(self, text: str) -> None:
        """Write this now, beside the lines that wait."""
        self._write(text.encode(self._encoding, "backslashreplace"))

    def catch_up(self, within: float) -> bool:
        """Wait so many seconds until the lines that wait are written; returns whether they are."""
        if not self._has_thread:
            return True
        written = threading.Event()
        self._lines.put(written)
        return written.wait(within)

    def end(self) -> None:
        """Write what is left. If the reader has stopped, discard it, and all that this process writes there later."""
        has_reader = self.catch_up(_END_WITHIN)
        self._has_thread = False
        if not has_reader:
            with suppress(OSError), Path(os.devnull).open("wb") as nowhere:
                for output in (1, 2):
                    with suppress(OSError):  # a task has closed it
                        if os.path.sameopenfile(output, self._descriptor):
                            os.dup2(nowhere.fileno(), output)
                os.dup2(nowhere.fileno(), self._descriptor, inheritable=False)

    def _be_a_fork(self) -> None:
        """The code of a task has forked this process: the thread is not here, and another one may have had the lock."""
        self._lock = threading.RLock()
        self._has_thread = False

    def _write_lines(self) -> None:
        part = b""
        while True:
            line = self._lines.get()
            if part and not (isinstance(line, bytes) and len(part) + len(line) <= _AT_ONCE):
                self._write(part)
                part = b""
            if isinstance(line, bytes):
                part += line
                with self._lock:
                    self._waiting -= len(line)
            elif self._dropped:
                self._tell_dropped()
                self._lines.put(line)  # after the line about these
            else:
                line.set()
            if self._lines.empty():
                self._write(part)
                part = b""
                if self._dropped:
                    self._tell_dropped()

    def _tell_dropped(self) -> None:
        with self._lock:
            dropped, self._dropped = self._dropped, 0
        with suppress(Exception):  # of a handler of the app
            _log.warning("%d log lines are dropped: the reader of standard error was too slow", dropped)

    def _write(self, part: bytes) -> None:
        with suppress(OSError):  # nobody reads any more, or the disk is full
            while part:
                part = part[os.write(self._descriptor, part) :]

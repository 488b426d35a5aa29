"""Pipes that nobody reads."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def full_pipe() -> Iterator[tuple[int, int]]:
    """The ends of a pipe that has no room: to write there waits for a reader."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, b"\n" * 4096)
    os.set_blocking(writer, True)
    try:
        yield reader, writer
    finally:
        os.close(reader)
        os.close(writer)

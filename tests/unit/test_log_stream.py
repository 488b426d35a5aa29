"""Log lines that a thread writes to standard error."""

import io
import logging
import os

import pytest

from joex import log_stream
from joex.log_stream import LogStream
from tests.support.pipes import full_pipe

pytestmark = pytest.mark.usefixtures("root_logger")


@pytest.fixture
def root_logger():
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield
    root.handlers, level = before
    root.setLevel(level)


def stream_to(descriptor):
    return LogStream(io.TextIOWrapper(io.FileIO(descriptor, "w", closefd=False), "utf-8"))


def read_until(reader, end):
    said = b""
    while end not in said:
        said += os.read(reader, 65536)
    return said.decode().split()


def test_lines_beyond_a_limit_are_dropped_and_one_line_says_how_many(monkeypatch):
    monkeypatch.setattr(log_stream, "_MOST", 10_000)
    numbers = [f"{number:0999}" for number in range(50)]
    with full_pipe() as (reader, writer):
        stream = stream_to(writer)
        handler = logging.StreamHandler(stream)
        logging.getLogger().handlers = [handler]
        handler.setFormatter(logging.Formatter("%(args)s,told"))
        for number in numbers:
            stream.write(f"{number}\n")
        said = read_until(reader, b"told")
        stream.write("later\n")
        assert read_until(reader, b"later") == ["later"]
    *written, told = said
    assert told == f"({len(numbers) - len(written)},),told"
    assert 10 <= len(written) < len(numbers)
    assert written == numbers[: len(written)]


def test_what_the_code_of_a_task_forks_writes_its_own_lines():
    reader, writer = os.pipe()
    stream = stream_to(writer)
    fork = os.fork()
    if fork == 0:
        try:
            stream.write("of the fork\n")
        finally:
            os._exit(0)
    os.waitpid(fork, 0)
    os.close(writer)
    os.set_blocking(reader, False)
    assert os.read(reader, 4096) == b"of the fork\n"
    os.close(reader)


def test_lines_go_to_the_file_that_standard_error_was_though_a_task_closes_it():
    reader, writer = os.pipe()
    stream = stream_to(writer)
    os.close(writer)
    stream.write("a line\n")
    assert read_until(reader, b"\n") == ["a", "line"]
    os.close(reader)

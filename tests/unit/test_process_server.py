"""The server of processes, and its keepers, without an executor."""

import fcntl
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import psutil
import pytest

from joex.runtime.process_channel import GO_ON, PAUSE_WITH_EXECUTOR, READY, blocking_pair
from joex.runtime.process_server import _readable
from tests.support.waiting import PATIENCE, eventually

_SERVER = """
import os, socket, sys
from joex.runtime.process_server import ignore_signals, serve

{}

control, executor, program = sys.argv[1:]
ignore_signals()
serve(socket.socket(fileno=int(control)), work, int(executor))
"""
_STARTS_PROGRAMS = """
import subprocess

def work(channel, asked):
    channel.sendall(b"%d\\n" % os.getpid())
    for command, more in (
        ([], {"process_group": 0}),
        ([], {"start_new_session": True}),
        (["setsid", "--fork"], {}),  # a daemon
    ):
        subprocess.Popen([*command, sys.executable, "-c", program], stdout=channel.fileno(), **more)
    channel.recv(1)
"""
# (Until the test ends it; fifteen minutes, so that none outlives a test that has died by much.)
_PROGRAM = """
import os, threading, time

def report():
    os.fork()  # a child of this thread
    os.write(1, b"%d\\n" % os.getpid())
    time.sleep(900)

threading.Thread(target=report).start()
"""
_STARTED = 1 + 3 * 2
_TELLS_HOW_IT_WAITS = """
socket.setdefaulttimeout(0.01)  # as an app may, when it is imported

def work(channel, asked):
    channel.sendall(f"{channel.gettimeout()} {os.get_blocking(channel.fileno())}\\n".encode())
    channel.recv(1)
"""


class _Run(NamedTuple):
    executor: psutil.Popen
    leash: socket.socket
    lines: Iterator[str]
    """What the process of the run says."""


@contextmanager
def _run(work: str) -> Iterator[_Run]:
    """A run in a process, whose executor does nothing else."""
    executor = psutil.Popen(["sleep", "900"])
    (control, its_control), (channel, its_channel), (leash, its_leash) = (blocking_pair() for _ in range(3))
    server = [sys.executable, "-c", _SERVER.format(work), str(its_control.fileno()), str(executor.pid), _PROGRAM]
    with control, channel, leash, subprocess.Popen(server, pass_fds=[its_control.fileno()]) as process:
        try:
            its_control.close()
            for one in (control, channel):
                one.settimeout(PATIENCE)
            assert control.recv(1) == READY
            with its_channel, its_leash:
                socket.send_fds(control, [b"F"], [its_channel.fileno(), its_leash.fileno()])
            with channel.makefile() as lines:
                yield _Run(executor, leash, lines)
        finally:
            executor.kill()  # so the server ends all, and itself
            executor.wait()
            control.close()
            process.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a keeper stops the group of its process")
async def test_all_that_an_exclusive_run_has_started_is_stopped_while_its_executor_is() -> None:
    """A group of its own, a session of its own, a daemon, what threads have forked."""
    with _run(_STARTS_PROGRAMS) as run:
        started = [psutil.Process(int(next(run.lines))) for _ in range(_STARTED)]  # the process of the run comes first
        *_, outsider, by_itself = started
        by_itself.suspend()
        await eventually(lambda: _are_stopped([by_itself]))
        run.leash.send(PAUSE_WITH_EXECUTOR)
        run.executor.suspend()
        await eventually(lambda: _are_stopped(started), why="all is stopped")
        outsider.resume()  # as one that a walk has missed
        await eventually(lambda: _are_stopped(started), why="it is stopped again")
        run.executor.resume()
        others = [one for one in started if one != by_itself]
        await eventually(lambda: not any(_are_stopped([one]) for one in others), why="all goes on")
        assert _are_stopped([by_itself])
        run.leash.send(GO_ON)


def _are_stopped(some: list[psutil.Process]) -> bool:
    return all(one.status() == psutil.STATUS_STOPPED for one in some)


def test_a_server_of_processes_watches_descriptors_that_select_does_not_take() -> None:
    """It inherits the number of one from an executor with many connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    reader, writer = os.pipe()
    high = fcntl.fcntl(reader, fcntl.F_DUPFD, 1500)
    try:
        assert _readable([high], 0) == []
        os.write(writer, b"x")
        assert _readable([high], None) == [high]
    finally:
        for one in (reader, writer, high):
            os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_default_timeout_of_sockets_holds_for_no_channel_of_a_process(request: pytest.FixtureRequest) -> None:
    """Else a process ends after that time without a job, or with its first job."""
    request.addfinalizer(partial(socket.setdefaulttimeout, socket.getdefaulttimeout()))
    socket.setdefaulttimeout(PATIENCE)
    for end in blocking_pair():
        with end:
            assert (end.gettimeout(), os.get_blocking(end.fileno())) == (None, True)
    with _run(_TELLS_HOW_IT_WAITS) as run:
        assert next(run.lines) == "None True\n"

"""While an executor is stopped, so is all that its exclusive runs in processes have started."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple

import psutil
import pytest

from joex.runtime.process_channel import GO_ON, PAUSE_WITH_EXECUTOR, READY
from tests.support.waiting import PATIENCE, eventually

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a keeper stops the group of its process")

_SERVER = """
import os, socket, subprocess, sys
from joex.runtime.process_server import ignore_signals, serve

control, executor, program = sys.argv[1:]

def work(channel, asked):
    channel.sendall(b"%d\\n" % os.getpid())
    for command, more in (
        ([], {"process_group": 0}),
        ([], {"start_new_session": True}),
        (["setsid", "--fork"], {}),  # a daemon
    ):
        subprocess.Popen([*command, sys.executable, "-c", program], stdout=channel.fileno(), **more)
    channel.recv(1)

ignore_signals()
serve(socket.socket(fileno=int(control)), work, int(executor))
"""
_PROGRAM = """
import os, threading, time

def report():
    os.fork()  # a child of this thread
    os.write(1, b"%d\\n" % os.getpid())
    time.sleep(900)

threading.Thread(target=report).start()
"""
_STARTED = 1 + 3 * 2


class _Run(NamedTuple):
    executor: psutil.Popen
    leash: socket.socket
    all: list[psutil.Process]
    """The process of the run first, then those that it has started."""


@pytest.fixture
def run() -> Iterator[_Run]:
    """A run in a process, whose executor does nothing else."""
    executor = psutil.Popen(["sleep", "900"])
    (control, its_control), (channel, its_channel), (leash, its_leash) = (socket.socketpair() for _ in range(3))
    server = [sys.executable, "-c", _SERVER, str(its_control.fileno()), str(executor.pid), _PROGRAM]
    with control, channel, leash, subprocess.Popen(server, pass_fds=[its_control.fileno()]) as process:
        try:
            its_control.close()
            for one in (control, channel):
                one.settimeout(PATIENCE)
            assert control.recv(1) == READY
            with its_channel, its_leash:
                socket.send_fds(control, [b"F"], [its_channel.fileno(), its_leash.fileno()])
            with channel.makefile() as said:
                started = [psutil.Process(int(said.readline())) for _ in range(_STARTED)]
            yield _Run(executor, leash, started)
        finally:
            executor.kill()  # so the server ends all, and itself
            executor.wait()
            control.close()
            process.wait()


async def test_all_that_an_exclusive_run_has_started_is_stopped_while_its_executor_is(run: _Run) -> None:
    """A group of its own, a session of its own, a daemon, what threads have forked."""
    by_itself, outsider = run.all[-1], run.all[-2]
    by_itself.suspend()
    await eventually(lambda: _are_stopped([by_itself]))
    run.leash.send(PAUSE_WITH_EXECUTOR)
    run.executor.suspend()
    await eventually(lambda: _are_stopped(run.all), why="all is stopped")
    outsider.resume()  # as one that a walk has missed
    await eventually(lambda: _are_stopped(run.all), why="it is stopped again")
    run.executor.resume()
    await eventually(lambda: not any(_are_stopped([one]) for one in run.all if one != by_itself), why="all goes on")
    assert _are_stopped([by_itself])
    run.leash.send(GO_ON)


def _are_stopped(some: list[psutil.Process]) -> bool:
    return all(one.status() == psutil.STATUS_STOPPED for one in some)

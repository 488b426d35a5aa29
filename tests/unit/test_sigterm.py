"""SIGTERM to a command, and to the code that runs there."""

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import threading

import pytest

from joex.cli import signals
from joex.cli.executor import _run_on_a_loop
from joex.cli.signals import reacting_to_signals
from joex.cli.sigterm import leaving_in_order
from joex.event_loop import new_event_loop
from tests.support.waiting import PATIENCE, eventually


def exit_code(fork: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1])


@pytest.fixture
def handlers():
    """Those of before come back after the test."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_command_that_ignores_sigterm_as_it_leaves_still_does_when_its_embedded_server_is_closed():
    before = signal.getsignal(signal.SIGTERM)
    try:
        with leaving_in_order() as begun:
            begun()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(("number", "end"), [(signal.SIGTERM, SystemExit), (signal.SIGINT, KeyboardInterrupt)])
def test_a_signal_that_an_executor_does_not_handle_yet_ends_it_though_its_loop_runs(handlers, monkeypatch, number, end):
    monkeypatch.setattr(signals, "_handlers", {})

    async def start() -> None:
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), number)
        async with asyncio.timeout(PATIENCE):
            await asyncio.Event().wait()

    with leaving_in_order() as begun:
        begun()
        with pytest.raises(end):
            _run_on_a_loop(start(), 1)


async def test_a_signal_fails_no_call_of_a_library_that_waits_in_a_run() -> None:
    """Python's own calls go on after a signal; those of libraries in C often fail with EINTR."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    reader, writer = os.pipe()
    main = threading.get_ident()

    def send() -> None:
        for _ in range(1000):
            signal.pthread_kill(main, signal.SIGTERM)
            os.sched_yield()
        os.write(writer, b"x")

    try:
        with reacting_to_signals(lambda _: None):
            sender = threading.Thread(target=send)
            sender.start()
            read = ctypes.CDLL(None).read(reader, ctypes.create_string_buffer(1), 1)
            sender.join()
            assert read == 1
            await asyncio.sleep(0)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(reader)
        os.close(writer)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_waits_for_a_signal_keeps_it_from_no_command_and_its_end_does_not_reset_it(handlers, number):
    heard: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        with reacting_to_signals(lambda _: heard.append("command")):
            loop.add_signal_handler(number, heard.append, "run")
            os.kill(os.getpid(), number)
            await eventually(lambda: sorted(heard) == ["command", "run"])
            assert loop.remove_signal_handler(number)
            os.kill(os.getpid(), number)
            await eventually(lambda: sorted(heard) == ["command", "command", "run"])
            loop.add_signal_handler(number, heard.append, "run")
        loop.remove_signal_handler(number)
        assert signal.getsignal(number) is signal.SIG_IGN, "a command that leaves ignores further signals"

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main())


def test_an_event_loop_raises_the_limit_of_files_for_the_connections_of_callers() -> None:
    program = """
import resource
from joex.event_loop import new_event_loop
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
new_event_loop().close()
soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
assert soft == (65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)), soft
"""
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")  # a fork is what this tests
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_what_the_code_of_a_run_forks_ends_at_a_signal_and_the_command_still_reacts_to_it(handlers, number):
    heard: list[str] = []

    def fork_and_signal() -> int:
        reader, writer = os.pipe()
        if (fork := os.fork()) == 0:
            signal.alarm(int(PATIENCE))
            os.write(writer, b"!")
            while True:
                signal.pause()
        os.read(reader, 1)
        os.close(reader)
        os.close(writer)
        os.kill(fork, number)
        return exit_code(fork)

    with reacting_to_signals(heard.append):
        assert await asyncio.to_thread(fork_and_signal) == -number
        os.kill(os.getpid(), number)
        await eventually(lambda: heard, why="the command reacts")
    assert heard == [signal.Signals(number).name]


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")  # a fork is what this tests
async def test_a_fork_keeps_the_handlers_that_the_code_of_a_run_has_set(handlers):
    with reacting_to_signals(lambda _: None):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if (fork := os.fork()) == 0:
            os._exit(0 if signal.getsignal(signal.SIGTERM) is signal.SIG_IGN else 1)
        assert exit_code(fork) == 0

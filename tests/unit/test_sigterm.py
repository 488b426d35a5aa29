"""SIGTERM to a command, and to the code that runs there."""

import asyncio
import ctypes
import os
import signal
import threading

from joex.cli.signals import reacting_to_signals
from joex.cli.sigterm import leaving_in_order


def test_a_command_that_ignores_sigterm_as_it_leaves_still_does_when_its_embedded_server_is_closed():
    before = signal.getsignal(signal.SIGTERM)
    try:
        with leaving_in_order() as begun:
            begun()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


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

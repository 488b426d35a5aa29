"""SIGTERM while a command that runs the embedded server leaves."""

import signal

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

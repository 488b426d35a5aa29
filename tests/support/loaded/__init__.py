"""Processes with Joex loaded: forks of one process per session, which imports Joex once, where a start costs a second.

A forked program behaves as a started one: it has exactly the given environment (also in ``/proc``), the given folder
and streams, and default signals, and it ends with the tests. At its own end it waits for its threads and calls what
``atexit`` has; it does not delete what is left, which would cost more than most commands. Its parent is the loaded
process (`__main__.py`), which reports its exit on the connection that asked for it. Where the start itself, or the end,
is the point of a test, start a process.
"""

import atexit
import contextlib
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

_SPARE = {"JOEX_TEST_SPARE": "-" * 2**16}
"""Room for the environments of the forked processes, which replace the whole environment of the loaded process."""

MESSAGE = 64
"""The most bytes of an answer: ``pid NUMBER``, then ``exit CODE``."""


@functools.cache
def address() -> str:
    """The address of the loaded process. The first call starts it, and waits until it has loaded Joex."""
    folder = Path(tempfile.mkdtemp(prefix="joex-tests-loaded-", dir="/tmp"))
    path = str(folder / "socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen(128)
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).parent), str(listener.fileno())],
            env={**{name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}, **_SPARE},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[listener.fileno()],
            start_new_session=True,  # Ctrl-C does not reach it
        )

    stdin, stdout = process.stdin, process.stdout
    assert stdin is not None
    assert stdout is not None

    def close() -> None:
        stdin.close()
        process.wait(30)

    atexit.register(close)
    with stdout:
        assert stdout.read(1), "the loaded process has not loaded Joex; its output is on the standard error"
    return path


def request(
    server: str,
    program: str,
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str],
    folder: Path,
    output: int,
    errors: int | None = None,
    session: bool = False,
) -> socket.socket:
    """Ask for a process; returns a connection that receives an answer for its start, and another for its exit.

    Args:
        server: the `address` of the loaded process.
        program: the name of a module, as for ``python -m``, or the path of a file.
        arguments: its arguments.
        environment: all variables of its environment.
        folder: its current folder.
        output: the file descriptor of its output.
        errors: that of its standard error, if it is another one.
        session: whether it leads a session of its own.
    """
    content = {
        "program": program,
        "arguments": list(arguments),
        "environment": dict(environment),
        "folder": str(folder),
        "session": session,
    }
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(server)
    with open(os.devnull) as nothing:  # noqa: PTH123 - a device
        socket.send_fds(
            connection, [json.dumps(content).encode()], [nothing.fileno(), output, output if errors is None else errors]
        )
    return connection


def command(program: str) -> list[str]:
    """A command that stands for a forked process: its arguments, environment, folder, streams, signals and end.

    Its pid is not that of the fork.

    Args:
        program: the name of a module, as for ``python -m``, or the path of a file.
    """
    return [sys.executable, "-IS", str(Path(__file__).with_name("client.py")), address(), program]


def pid_of(connection: socket.socket, answer: bytes) -> int:
    """The pid in the first answer.

    Raises:
        OSError: the process has not come so far, for example because there is no such folder; its output says why.
    """
    kind, _, number = answer.decode().partition(" ")
    if kind != "pid":
        connection.close()
        raise OSError(f"a forked process has not started: {answer.decode() or 'the loaded process has ended'}")
    return int(number)


def exit_code_of(answer: bytes) -> int:
    """The exit code in an answer; without an answer the loaded process has ended, and killed its children with it."""
    return int(answer.decode().removeprefix("exit ") or -signal.SIGKILL)


class Fork:
    """A forked process, with the methods of `subprocess.Popen` that tests need."""

    def __init__(
        self, program: str, arguments: Sequence[str], *, environment: Mapping[str, str], folder: Path, output: int,
        errors: int | None = None,
    ) -> None:  # fmt: skip
        self._connection = request(
            address(), program, arguments, environment=environment, folder=folder, output=output, errors=errors
        )
        self.pid = pid_of(self._connection, self._connection.recv(MESSAGE))
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit code; None: it has not exited."""
        if self.returncode is None:
            try:
                self._receive(0)
            except subprocess.TimeoutExpired:
                return None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has exited, and return its exit code."""
        if self.returncode is None:
            self._receive(timeout)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has exited."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # its end has yet to be reported
                os.kill(self.pid, number)

    def _receive(self, timeout: float | None) -> None:
        self._connection.settimeout(timeout)
        try:
            self.returncode = exit_code_of(self._connection.recv(MESSAGE))
        except (BlockingIOError, TimeoutError):
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0) from None
        self._connection.close()

"""A command that stands for a forked process: ``python -IS tests/support/loaded/client.py SOCKET PROGRAM ...``.

Its environment, folder and streams are those of the fork, signals that it gets are passed on, and it ends as the fork
ends. When it is killed, the fork is killed. It imports next to nothing, because it is started hundreds of times.
"""

import _socket
import array
import json
import os
import sys
from signal import SIG_BLOCK, SIG_DFL, SIG_UNBLOCK, SIGHUP, SIGINT, SIGQUIT, SIGTERM, pthread_sigmask, signal

_PASSED_ON = (SIGHUP, SIGINT, SIGQUIT, SIGTERM)


def main(server: str, program: str, *arguments: str) -> int:
    """Ask for a fork, and wait for its end; returns its exit code, with a minus for a signal."""
    content = {
        "program": program,
        "arguments": arguments,
        "environment": dict(os.environ),
        "folder": os.getcwd(),  # noqa: PTH109 - pathlib costs more than the rest
        "session": False,
    }
    pthread_sigmask(SIG_BLOCK, _PASSED_ON)  # until there is somebody to get them
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    connection.connect(server)
    streams = array.array("i", [0, 1, 2])
    connection.sendmsg([json.dumps(content).encode()], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
    kind, _, number = connection.recv(64).decode().partition(" ")
    if kind == "pid":
        for one in _PASSED_ON:
            signal(one, lambda got, _: os.kill(int(number), got))
        pthread_sigmask(SIG_UNBLOCK, _PASSED_ON)
        number = connection.recv(64).decode().removeprefix("exit ")
    return int(number or -9)


if __name__ == "__main__":
    code = main(*sys.argv[1:])
    if code < 0:
        signal(-code, SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)

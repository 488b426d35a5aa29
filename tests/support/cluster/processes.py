"""Processes that can't stay behind, and ports for them.

Every process of a cluster has the cluster's folder in its environment, and its children inherit it. So the tests can
find them all, whatever their present parent is. A guard ends them when the tests end, in any way.
"""

import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

MARK = "JOEX_TEST_CLUSTER"
NODE_MARK = "JOEX_TEST_NODE"

# Reads until the other end of its standard input is closed, which the kernel does when the tests' process ends; then
# kills all processes with the mark, until there is none, and removes the folder.
_GUARD = """
import os, shutil, signal, sys, time
mark, folder = sys.argv[1:]
def marked():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                if mark.encode() in file.read().split(b"\\0") and int(pid) != os.getpid():
                    yield int(pid)
        except OSError:
            pass
sys.stdin.read()
for _ in range(200):
    left = list(marked())
    for pid in left:
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass
    if not left:
        break
    time.sleep(0.02)
shutil.rmtree(folder, ignore_errors=True)
"""


class Guard:
    """Ends all processes of a cluster and removes its folder: at `close`, or when the tests' process is gone."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-I", "-c", _GUARD, f"{MARK}={folder}", str(folder)]
        # In its own session, so that Ctrl-C does not reach it.
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, cwd="/")

    def close(self) -> None:
        """End the processes and remove the folder."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


def marked(mark: str) -> list[int]:
    """The processes that were started with ``NAME=value`` in their environment.

    (Ended processes have no environment.)
    """
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environment = (entry / "environ").read_bytes()
            except OSError:  # the process is gone, or not ours
                continue
            if mark.encode() in environment.split(b"\0"):
                found.append(int(entry.name))
    return found


def runs(pid: int) -> bool:
    """Whether a process exists and has not ended; an ended process may still wait for its parent."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def only_child(pid: int) -> int:
    """The only child of a process; 0: it has none yet."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0
    return int(children[0]) if children else 0


def kill_marked(mark: str) -> None:
    """Kill all processes with a mark, and the processes that these start meanwhile; returns when all have ended."""
    while pids := marked(mark):
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        # (A process that dies loses its environment first, and so its mark, and ends a moment later. No event tells
        # of the end of a process that is not a child.)
        while any(map(runs, pids)):
            time.sleep(0.01)


def free_port() -> int:
    """A free port, below the kernel's range for clients."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port

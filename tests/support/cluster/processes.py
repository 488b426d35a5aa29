"""Processes that can not be left behind, and ports for them.

Every process of a cluster carries the cluster's folder in its environment, and hands it on to its own children. So all
can be found, whoever their parent is by now. A guard ends them when the tests end, however they end.
"""

import os
import random
import signal
import socket
import subprocess
import sys
from pathlib import Path

MARK = "JOEX_TEST_CLUSTER"
NODE_MARK = "JOEX_TEST_NODE"

# Reads until the other end of its standard input is closed, which the kernel does when the tests' process ends; then
# kills all that carries the mark, until nothing does, and removes the folder.
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
        # In a session of its own, so that Ctrl-C does not reach it.
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, cwd="/")

    def close(self) -> None:
        """End the processes and remove the folder."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


def marked(mark: str) -> list[int]:
    """The processes that carry ``NAME=value`` in the environment they were started with; those that ended have none."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environment = (entry / "environ").read_bytes()
            except OSError:  # it is gone, or not ours
                continue
            if mark.encode() in environment.split(b"\0"):
                found.append(int(entry.name))
    return found


def runs(pid: int) -> bool:
    """Whether a process exists and has not ended; one that ended may wait for its parent to take notice."""
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
    """Kill all processes that carry a mark, and those that they start meanwhile."""
    while pids := marked(mark):
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def free_port() -> int:
    """A free port, below the range from which the kernel gives ports to clients."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port

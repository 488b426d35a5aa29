"""The process that has loaded Joex: ``python tests/support/loaded FD``, with a listening socket.

It serves requests until its standard input ends, which is when the tests' process ends, and forks a process for each.
It has no other threads and no event loop, and the tests' modules aren't on its path: an app brings its own.
"""

import atexit
import contextlib
import ctypes
import gc
import importlib
import io
import json
import os
import pkgutil
import runpy
import selectors
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TextIO

_MODULES = (
    "joex.cli.app",
    "joex.cli.parent_watch",
    "joex.http.api",
    "joex.http.server",
    "joex.observe.log_lines",
    "joex.observe.metrics",
    "joex.observe.spans",
    "joex.runtime.executor",
    "joex.runtime.watchdog",
    "joex_operator.cluster.command",
    "joex_operator.cluster.operator",
    "joex_operator.local.command",
    "rich.markdown",
    "typer._adapters",
    "typer.rich_utils",
    "uvloop",
)
"""The modules that commands import, some of them only once they run, beside those of `_COMMANDS`."""

_COMMANDS = "joex.cli"
"""The package with a module for each command."""

_READS_KUBECONFIG = "kubernetes.aio.config.kube_config"
"""The loaded module that keeps a variable of its environment, hence loaded once more in each forked process."""

_FOLLOWED = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED")
"""The variables of Python itself that may differ from those of this process."""

_REQUEST = 2**20
_STREAMS = 3
_SET_PARENT_DEATH_SIGNAL = 1
_ENV_START, _ENV_END = 47, 48  # in /proc/PID/stat, counted from the state
_libc = ctypes.CDLL(None, use_errno=True)


_Children = dict[int, tuple[int, socket.socket]]
"""By pid: a file descriptor that is readable when the process has ended, and its client's connection."""


class Request(NamedTuple):
    """A process that a client asks for: the program, and its standard streams."""

    content: Mapping[str, Any]
    streams: list[int]
    connection: socket.socket


def serve(listener: socket.socket) -> Request:
    """Fork a process for each request. Returns only in these processes.

    This one removes the socket and its folder, and exits, when standard input ends.
    """
    children: _Children = {}
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        selector.register(sys.stdin, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is sys.stdin:
                    path = Path(listener.getsockname())
                    path.unlink()  # here, because the tests' process may be killed
                    path.parent.rmdir()
                    os._exit(0)
                if key.fileobj is not listener:
                    _follow(selector, children, key)
                    continue
                connection = listener.accept()[0]
                data, streams, *_ = socket.recv_fds(connection, _REQUEST, _STREAMS)
                pid = os.fork() if data else 0
                if data and not pid:
                    return Request(json.loads(data), streams, connection)
                for stream in streams:
                    os.close(stream)
                if pid:
                    children[pid] = (os.pidfd_open(pid), connection)
                    for either in children[pid]:
                        selector.register(either, selectors.EVENT_READ, pid)


def _follow(selector: selectors.BaseSelector, children: _Children, key: selectors.SelectorKey) -> None:
    """Kill a process whose client has ended, or tell the client the exit code of its process."""
    pid = key.data
    if pid not in children:
        return  # the other event of a process that has ended
    end, connection = children[pid]
    selector.unregister(key.fileobj)
    if key.fileobj is connection:
        os.kill(pid, signal.SIGKILL)
        return
    del children[pid]
    os.close(end)
    if connection in selector.get_map():
        selector.unregister(connection)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with connection, contextlib.suppress(BrokenPipeError):  # the client may have ended before
        connection.send(f"exit {code}".encode())


def become(request: Request, parent: int) -> None:
    """Become the process of a request, as far as the system shows it; then tell the client."""
    content, environment = request.content, request.content["environment"]
    _libc.prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
    for number, stream in enumerate(request.streams):
        os.dup2(stream, number)
    assert isinstance(sys.stdout, io.TextIOWrapper)
    sys.stdout.reconfigure(line_buffering=sys.stdout.isatty())
    os.chdir(content["folder"])
    if content["session"]:
        os.setsid()
    _replace_environment(environment)
    with request.connection:
        request.connection.send(f"pid {os.getpid()}".encode())
    os.closerange(_STREAMS, os.sysconf("SC_OPEN_MAX"))


def _replace_environment(environment: Mapping[str, str]) -> None:
    """Replace the environment, also where /proc shows it: the kernel shows the memory that it filled at the start."""
    fixed = [
        {name: value for name, value in variables.items() if name.startswith("PYTHON") and name not in _FOLLOWED}
        for variables in (os.environ, environment)
    ]
    assert fixed[0] == fixed[1], f"Python has read its variables already: {fixed[0]}, not {fixed[1]}"
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[_ENV_START]), int(fields[_ENV_END])
    shown = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in environment.items())
    assert len(shown) <= end - start, "the environment is too large"
    os.environ.clear()  # nothing refers to that memory any longer
    ctypes.memmove(start, shown.ljust(end - start, b"\0"), end - start)
    os.environ.update(environment)
    time.tzset()
    sys.dont_write_bytecode = bool(environment.get("PYTHONDONTWRITEBYTECODE"))
    if environment.get("PYTHONUNBUFFERED"):
        sys.stdout = _unbuffered(sys.stdout)
        sys.stderr = _unbuffered(sys.stderr)


def _unbuffered(stream: TextIO) -> TextIO:
    file = io.FileIO(stream.fileno(), "w", closefd=False)
    return io.TextIOWrapper(file, stream.encoding, stream.errors, write_through=True)


def run(program: str, arguments: list[str], path: list[str]) -> None:
    """Run a program as Python does: a module by its name, with the current folder on the path, or a file."""
    given = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    is_file = os.sep in program
    sys.path[:] = [*([] if is_file else [str(Path.cwd())]), *given, *path]
    sys.argv[:] = [program, *arguments]
    importlib.invalidate_caches()
    importlib.reload(sys.modules[_READS_KUBECONFIG])
    gc.enable()
    if is_file:
        runpy.run_path(program, run_name="__main__")
    else:
        runpy.run_module(program, run_name="__main__", alter_sys=True)


def end_at_once(code: int) -> None:
    """End as Python does, except that no module is taken apart: that copies all the memory which the forks share."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with contextlib.suppress(OSError, ValueError):  # of a reader that has gone, or a closed file: Python tells of it
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def main() -> None:
    """Load Joex, and serve; in a forked process: run its program, and end as it ends."""
    gc.disable()
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    path = [entry for entry in sys.path[1:] if entry not in given]
    sys.path[:] = path
    commands = importlib.import_module(_COMMANDS).__path__
    for module in (*_MODULES, *(found.name for found in pkgutil.iter_modules(commands, f"{_COMMANDS}."))):
        importlib.import_module(module)
    gc.freeze()
    assert threading.active_count() == 1, threading.enumerate()
    os.write(1, b"loaded")
    parent = os.getpid()
    with socket.socket(fileno=int(sys.argv[1])) as listener:
        request = serve(listener)
    become(request, parent)
    code = None
    try:
        run(request.content["program"], request.content["arguments"], path)
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        code = end.code
    end_at_once(code or 0)


if __name__ == "__main__":
    main()

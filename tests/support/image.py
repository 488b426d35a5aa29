"""The image of joex without a Docker engine: its installation, and the start of its containers.

The script that the Dockerfile runs installs into a folder, with the newest Python of this machine. The programs there
run as a user without rights and without an entry in ``/etc/passwd``; and, on request, as the first process of a PID
namespace, to which the kernel sends no signal that the process does not handle.
"""

import asyncio
import contextlib
import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from pathlib import Path

from tests.support.cluster.processes import only_child
from tests.support.lanes import SHARED
from tests.support.waiting import PATIENCE, eventually

ROOT = Path(__file__).parents[2]
NOBODY = "65532"
# Only root may have access to the folder of the tests' Python, so the user keeps one right: to read all files.
AS_NOBODY = [
    *("setpriv", "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", "--no-new-privs"),
    *("--bounding-set", "-all,+dac_read_search"),
    *("--inh-caps", "-all,+dac_read_search", "--ambient-caps", "-all,+dac_read_search"),
]
AS_FIRST = ["unshare", "--pid", "--fork", "--mount-proc"]
"""The first process of a namespace; it is the only child of the process that is started."""

_LAST_STAGE = (ROOT / "Dockerfile").read_text().rpartition("\nFROM ")[2]
# The variables that the Dockerfile sets beside PATH.
ENVIRONMENT = dict(re.findall(r"^(?:ENV|   ) (\w+)=([^$\s]+)(?: \\)?$", _LAST_STAGE, re.MULTILINE))
_NEWEST = 20

Tree = dict[str, tuple[int, int, int]]


@cache
def python_of(minor: int) -> str | None:
    """A Python 3 of this minor release that runs: that of these tests, one on the PATH, or one of pyenv's; or None."""
    if minor == sys.version_info.minor:
        return sys.executable
    installed = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    name = f"python3.{minor}"
    for path in (shutil.which(name), *sorted(installed.glob(f"3.{minor}.*/bin/{name}"), reverse=True)):
        if path is not None and _runs([str(path), "-c", "import ensurepip, ssl, venv"]):
            return str(path)
    return None


def newest_python() -> str:
    """The newest Python that runs."""
    return next(path for minor in range(_NEWEST, 0, -1) if (path := python_of(minor)) is not None)


@cache
def why_no_containers() -> str:
    """Why this machine can't have `AS_FIRST` and `AS_NOBODY`; empty if it can."""
    command = [*AS_FIRST, *AS_NOBODY, "true"]
    if os.geteuid() == 0 and _runs(command):
        return ""
    return f"this machine can't start the first process of a namespace as another user (wanted: root): {command}"


def _runs(command: list[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


@contextmanager
def installed() -> Iterator["Image"]:
    """The installed image, which nobody may change: one for all lanes of `make test`, otherwise one for this block."""
    with contextlib.ExitStack() as stack:
        shared = os.environ.get(SHARED)
        made = shared or stack.enter_context(tempfile.TemporaryDirectory(prefix="joex-tests-image-", dir="/var/tmp"))
        Path(made).chmod(0o755)
        folder, done = Path(made, "image"), Path(made, "image.whole")
        with Path(made, "image.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not done.exists():
                shutil.rmtree(folder, ignore_errors=True)  # of a lane that has died
                _install(folder)
                done.touch()
        yield Image(folder)


def _install(folder: Path) -> None:
    """Install the content of the image. It takes a minute if no cache has the packages."""
    script = ROOT / "scripts" / "install_image.sh"
    subprocess.run(["sh", script, folder], env={**os.environ, "PYTHON": newest_python()}, check=True)
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            path.chmod(path.stat().st_mode & ~0o222)


class Image:
    """The content of the image, and the start of its containers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.variables = {"PATH": f"{folder / 'bin'}:/usr/bin:/bin", **ENVIRONMENT}

    async def start(self, *command: str, **environment: str) -> Process:
        """Start a command as a container of the image does, with a read-only file system."""
        return await self._start(AS_NOBODY if os.geteuid() == 0 else [], command, environment)

    async def start_first(self, *command: str, **environment: str) -> "FirstProcess":
        """Start a command as the first process of a container."""
        assert not why_no_containers(), why_no_containers()
        process = await self._start([*AS_FIRST, *AS_NOBODY], command, environment)
        first = FirstProcess(process)
        await first.begun()
        return first

    async def _start(self, before: list[str], command: tuple[str, ...], environment: dict[str, str]) -> Process:
        return await asyncio.create_subprocess_exec(
            *before,
            *command,
            cwd="/",
            env={**self.variables, **environment},
            stdin=subprocess.DEVNULL,
            stdout=PIPE,
            stderr=STDOUT,
        )

    async def run(self, *command: str, **environment: str) -> str:
        """Run a command to its success; returns what it printed."""
        process = await self.start(*command, **environment)
        out, _ = await asyncio.wait_for(process.communicate(), PATIENCE)
        assert process.returncode == 0, out.decode()
        return out.decode()

    @asynccontextmanager
    async def executor(self, **environment: str) -> AsyncIterator[Process]:
        """An executor that has registered; killed at the end, if it still runs."""
        process = await self.start("joex", "executor", "--app", "joex.examples.documents:app", **environment)
        assert process.stdout is not None
        try:
            async with asyncio.timeout(PATIENCE):
                seen = b""
                while b"registered" not in seen:
                    seen = await process.stdout.readline()
                    assert seen, "the executor has ended"
            yield process
        finally:
            if process.returncode is None:
                process.kill()
            await process.communicate()

    def tree(self) -> Tree:
        """All files, with mode, time and size."""
        found = {path: path.lstat() for path in self.folder.rglob("*")}
        return {str(path): (stat.st_mode, stat.st_mtime_ns, stat.st_size) for path, stat in found.items()}


class FirstProcess:
    """The first process of a container, from this machine's view."""

    def __init__(self, outer: Process) -> None:
        self._outer = outer
        self.pid = 0
        self.said = ""

    async def begun(self) -> None:
        """Wait until it runs the container's program: the program before that has other signal handlers."""

        def runs() -> bool:
            assert self._outer.returncode is None, "it has ended"
            self.pid = only_child(self._outer.pid)
            return bool(self.pid) and Path(f"/proc/{self.pid}/comm").read_text().strip() not in ("unshare", "setpriv")

        await eventually(runs, why="the container runs its program")

    @property
    def minds_sigterm(self) -> bool:
        """Whether the kernel delivers SIGTERM to it, now or later."""
        try:
            lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        except OSError:
            return False
        masks = {
            name: int(value, 16)
            for name, _, value in (line.partition(":\t") for line in lines)
            if name[:3] == "Sig" and name != "SigQ"
        }
        return bool((masks["SigBlk"] | masks["SigCgt"]) & 1 << signal.SIGTERM - 1)

    async def says(self, what: str) -> None:
        """Wait until it has printed something."""
        assert self._outer.stdout is not None
        async with asyncio.timeout(PATIENCE):
            while what not in self.said:
                line = await self._outer.stdout.readline()
                assert line, f"it has ended, and said:\n{self.said}"
                self.said += line.decode()

    async def terminate(self) -> int:
        """Send SIGTERM once, as a kubelet does, and return the exit code."""
        os.kill(self.pid, signal.SIGTERM)
        out, _ = await asyncio.wait_for(self._outer.communicate(), PATIENCE)
        self.said += out.decode()
        assert self._outer.returncode is not None
        return self._outer.returncode

    async def close(self) -> None:
        """Kill it if it has not exited."""
        if self._outer.returncode is None:
            # The whole namespace ends with it. (To kill the outer process would not suffice: a process that becomes
            # another user loses its parent-death signal.)
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid or self._outer.pid, signal.SIGKILL)
        await self._outer.communicate()

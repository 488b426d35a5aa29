"""Builds programs from Go modules, once per machine, into a cache outside the tree.

``go/NAME/go.mod`` and ``go.sum`` name the programs and versions; their digest names the folder in the cache, so that a
change causes a new build. Builds run at low priority (nice), because tests may run beside them.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

MODULES = Path(__file__).parent / "go"
_PROGRESS_EVERY = 30.0
_BUILD_LIMIT = 3600.0
_FLAGS = ("-trimpath", "-buildvcs=false")

Report = Callable[[str], None]
"""Takes a line for people."""


class BuildError(Exception):
    """A program can't be built here; the message says what is missing."""


def report_on_stderr(line: str) -> None:
    """Print a line of progress."""
    print(f"cluster: {line}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class GoModule:
    """A folder with a ``go.mod``, and the programs built from it."""

    name: str
    version_of: str  # the module with the version of the programs
    packages: dict[str, str]  # program -> package
    version_variables: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        """The folder of its go.mod."""
        return MODULES / self.name

    @property
    def version(self) -> str:
        """The version that go.mod requires."""
        found = re.search(rf"{re.escape(self.version_of)} (v[\w.+-]+)", (self.folder / "go.mod").read_text())
        assert found is not None
        return found[1]

    @property
    def cache(self) -> Path:
        """The folder of its programs."""
        digest = hashlib.sha256()
        for name in ("go.mod", "go.sum"):
            digest.update((self.folder / name).read_bytes())
        return cache_folder() / self.name / f"{self.version}-{digest.hexdigest()[:12]}"

    def built(self, program: str) -> Path | None:
        """A program, if it was built before."""
        path = self.cache / program
        return path if path.exists() else None

    def build(self, programs: Iterable[str] | None = None, report: Report = report_on_stderr) -> dict[str, Path]:
        """Build programs (None: all) that are not in the cache yet; returns where each is.

        Raises:
            BuildError: it could not be built.
        """
        wanted = list(self.packages if programs is None else programs)
        if any(self.built(program) is None for program in wanted):
            go = _go()
            self.cache.mkdir(parents=True, exist_ok=True)
            with _only_one(self.cache / "lock", f"{self.name} {self.version}", report):
                missing = [program for program in wanted if self.built(program) is None]
                for number, program in enumerate(missing, 1):
                    self._build(go, program, _counting(report, number, len(missing)))
        return {program: self.cache / program for program in wanted}

    def _build(self, go: str, program: str, report: Report) -> None:
        # Build aside and rename, so that the cache has only complete builds.
        aside = self.cache / f".{program}.building"
        flags = ["-ldflags", " ".join(["-s", "-w", *(f"-X {name}={self.version}" for name in self.version_variables)])]
        command = ["nice", "-n", "19", go, "build", *_FLAGS, *flags, "-o", str(aside), self.packages[program]]
        started = time.monotonic()
        report(f"building {program}, for {self.name} {self.version}")
        _run(command, self.folder, lambda: report(f"building {program}, {time.monotonic() - started:.0f} s"))
        aside.replace(self.cache / program)
        report(f"built {program} in {time.monotonic() - started:.0f} s")


def _counting(report: Report, number: int, count: int) -> Report:
    return lambda line: report(f"{line} ({number} of {count})")


def cache_folder() -> Path:
    """The folder of this user's programs for the tests."""
    base = os.environ.get("XDG_CACHE_HOME") or ""
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "joex"


def _go() -> str:
    found = shutil.which("go")
    if found is None:
        raise BuildError("Go is not installed, which the programs of the cluster are built with")
    return found


def _run(command: list[str], folder: Path, still_running: Callable[[], None]) -> None:
    # GOWORK: ignore a workspace of a folder above this checkout.
    environment = {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off"}
    deadline = time.monotonic() + _BUILD_LIMIT
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            while process.poll() is None and time.monotonic() < deadline:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_PROGRESS_EVERY)
                    break
                still_running()
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
        if process.returncode:
            output.seek(0)
            raise BuildError(f"{' '.join(command[3:])} failed in {folder}:\n{output.read()[-3000:]}")


@contextlib.contextmanager
def _only_one(path: Path, what: str, report: Report) -> Iterator[None]:
    """Hold a lock between processes; the kernel frees it when its holder is gone."""
    with path.open("w") as file:
        started, told = time.monotonic(), 0.0
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                waited = time.monotonic() - started
                if waited >= told:
                    report(f"waiting for the build of {what} in another process, {waited:.0f} s")
                    told = waited + _PROGRESS_EVERY
                time.sleep(0.2)
        yield

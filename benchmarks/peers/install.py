"""Installs the peers and their drivers, into ``build/peers/``.

Each part is installed again only if its sources have changed: its lock file, and this program. All packages are checked
by the hashes of the lock files: requirements.lock, package-lock.json, go.sum.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.support import say

_HERE = Path(__file__).parent
_FOLDER = _HERE.parent.parent / "build" / "peers"
_REQUIREMENTS = _HERE / "requirements.lock"
_REQUIREMENTS_OBAN = _HERE / "requirements-oban.lock"
_PYTHONS_OBAN = ("python3.14", "python3.13", "python3.12")
_NODE_SOURCES = _HERE / "drivers" / "node"
_RIVER_SOURCES = _HERE / "drivers" / "river"

PYTHON = _FOLDER / "python" / "bin" / "python"
PYTHON_OBAN = _FOLDER / "oban" / "bin" / "python"
NODE_DRIVERS = _FOLDER / "node"
NODE = NODE_DRIVERS / "node_modules" / ".bin" / "node"
RIVER = _FOLDER / "river" / "river"


class NotInstalled(Exception):
    """A peer can't be installed here; the message says what is missing."""


def python() -> None:
    """A virtual environment with the peers in Python."""
    _environment(PYTHON, sys.executable, _REQUIREMENTS)


def oban() -> None:
    """A virtual environment with Oban, which needs a newer Python than Joex and the other peers."""
    names = (sys.executable,) if sys.version_info >= (3, 12) else _PYTHONS_OBAN
    for name in names:
        # (What a manager of versions puts on the PATH may have the name, and then fails.)
        if shutil.which(name) and not subprocess.run([name, "--version"], capture_output=True, check=False).returncode:
            _environment(PYTHON_OBAN, name, _REQUIREMENTS_OBAN)
            return
    raise NotInstalled(f"Oban needs Python 3.12 or newer: on the PATH there is none of {', '.join(names)} that works")


def _environment(python: Path, maker: str, requirements: Path) -> None:
    def make() -> None:
        _run([maker, "-m", "venv", "--clear", str(python.parent.parent)])
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        _run([*pip, "--require-hashes", "--requirement", str(requirements)])

    _once(python.parent.parent, [requirements], f"{maker} {sys.version}", make)


def node() -> None:
    """A folder with the drivers in JavaScript and their dependencies."""
    npm = _program("npm", "Node.js")

    def make() -> None:
        _run([npm, "ci", "--no-progress"], NODE_DRIVERS)

    NODE_DRIVERS.mkdir(parents=True, exist_ok=True)
    for path in _NODE_SOURCES.iterdir():
        if path.is_file():
            shutil.copy(path, NODE_DRIVERS)
    _once(NODE_DRIVERS, [_NODE_SOURCES / "package.json", _NODE_SOURCES / "package-lock.json"], npm, make)


def river() -> None:
    """The binary of the driver of River."""
    go = _program("go", "Go")

    def make() -> None:
        # GOWORK: ignore a workspace of a folder above this checkout.
        settings = {"CGO_ENABLED": "0", "GOWORK": "off"}
        _run([go, "build", "-trimpath", "-buildvcs=false", "-o", str(RIVER), "."], _RIVER_SOURCES, settings)

    sources = [path for path in _RIVER_SOURCES.iterdir() if path.suffix in {".go", ".mod", ".sum"}]
    _once(RIVER.parent, sources, go, make)


def _program(name: str, owner: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise NotInstalled(f"{owner} is not installed: there is no {name} on the PATH")
    return found


def _once(folder: Path, sources: list[Path], maker: str, make: Callable[[], None]) -> None:
    digest = hashlib.sha256(maker.encode())
    for source in sorted(sources):
        digest.update(source.read_bytes())
    stamp = folder / ".made-from"
    if stamp.exists() and stamp.read_text() == digest.hexdigest():
        return
    say(f"peers: making {folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder}")
    stamp.unlink(missing_ok=True)
    make()
    folder.mkdir(parents=True, exist_ok=True)
    stamp.write_text(digest.hexdigest())


def _run(command: list[str], folder: Path | None = None, settings: Mapping[str, str] | None = None) -> None:
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **(settings or {})}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise NotInstalled(f"{' '.join(command)} failed: {(done.stderr or done.stdout).strip()[-2000:]}")

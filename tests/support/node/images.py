"""The images of the node, built by a real Docker engine: that of the project by its own Dockerfile.

There is no registry to pull from, so Debian's packages stand in for the official images of Python and PostgreSQL, under
their names. The result is an archive for each image, which containerd imports.
"""

import hashlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tests.support.cluster.components import Component
from tests.support.cluster.go_build import Report
from tests.support.node.packages import archive
from tests.support.pages import files, pages

ROOT = Path(__file__).parents[3]
PAUSE = "node.test/pause:1"
"""The sandbox of each pod."""
JOEX, POSTGRES = "joex:0.1.0", "postgres:18"
SHOPS = ("shop:7", "shop:8")
"""An app of the stories on the project's image, in two versions."""
WORDS = "words:1"
"""The image that the reader of docs/learn builds."""

_HERE = Path(__file__).parent / "dockerfiles"
_PYTHON = "python:3.13-slim"
_DEBIAN = "trixie"
_CERTIFICATES = Path("/usr/local/share/ca-certificates")
_STARTS_WITHIN, _BUILDS_WITHIN = 60.0, 1800.0


class ImageError(Exception):
    """An image can't be built; the message has the end of its output."""


class Docker:
    """A Docker engine below a folder, without its own network: builds use that of the machine."""

    def __init__(self, packages: Path, folder: Path) -> None:
        programs = packages / "docker"
        runc = packages / "node" / "usr/sbin"
        self._folder = folder
        self._programs = programs
        self._socket = f"unix://{folder / 'docker.sock'}"
        self._environment = {
            "PATH": f"{programs / 'usr/bin'}:{programs / 'usr/sbin'}:{runc}:{os.environ['PATH']}",
            "HOME": str(folder),
            "DOCKER_HOST": self._socket,
            "DOCKER_CONFIG": str(folder / "config"),
        }
        plugins = folder / "config" / "cli-plugins"
        plugins.mkdir(parents=True, exist_ok=True)
        plugin = plugins / "docker-buildx"
        plugin.unlink(missing_ok=True)
        plugin.symlink_to(programs / "usr/libexec/docker/cli-plugins/docker-buildx")

    @contextmanager
    def running(self) -> Iterator[None]:
        """Start the engine for the duration of a block.

        Raises:
            StartError: it does not start.
        """
        folder = self._folder
        options = ("--iptables=false", "--ip6tables=false", "--bridge=none", f"--pidfile={folder / 'docker.pid'}")
        folders = (f"--data-root={folder / 'data'}", f"--exec-root={folder / 'exec'}")
        (folder / "docker.pid").unlink(missing_ok=True)
        engine = Component(
            folder,
            self._programs / "usr/sbin/dockerd",
            *("--host", self._socket, *folders, *options),
            variables=self._environment,
        )
        engine.start()
        try:
            engine.wait_until(lambda: self._run(["version"]).returncode == 0, _STARTS_WITHIN)
            yield
        finally:
            engine.stop(_STARTS_WITHIN)

    def __call__(self, *arguments: str) -> str:
        """Run the client.

        Raises:
            ImageError: it failed.
        """
        done = self._run(arguments)
        if done.returncode:
            raise ImageError(f"docker {' '.join(arguments)} failed:\n{done.stderr[-3000:]}")
        return done.stdout

    def import_tree(self, tree: Path, image: str, *changes: str) -> None:
        """Make an image from a folder, with changes such as ``CMD ["sh"]``."""
        options = [word for change in changes for word in ("--change", change)]
        with subprocess.Popen(["tar", "-C", tree, "--numeric-owner", "-c", "."], stdout=subprocess.PIPE) as tar:
            done = self._run(["import", *options, "-", image], tar.stdout)
        if done.returncode or tar.returncode:
            raise ImageError(f"docker import {image} failed:\n{done.stderr[-3000:]}")

    def has(self, image: str) -> bool:
        """Whether there is such an image."""
        return self._run(["image", "inspect", image]).returncode == 0

    def _run(
        self, arguments: Sequence[str], given: int | IO[bytes] | None = subprocess.DEVNULL
    ) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            ["docker", *arguments],
            env=self._environment,
            stdin=given,
            capture_output=True,
            text=True,
            check=False,
            timeout=_BUILDS_WITHIN,
        )


def build(packages: Path, folder: Path, report: Report) -> Path:
    """Build all images that are missing or stale; returns the folder of their archives.

    Raises:
        ImageError: one can't be built.
        StartError: the Docker engine does not start.
        Missing: this machine has no Debian packages.
    """
    archives = folder / "archives"
    archives.mkdir(parents=True, exist_ok=True)
    docker = Docker(packages, folder)
    with docker.running():
        if not docker.has(_PYTHON):
            report(f"{_PYTHON}: making what stands in for it, of Debian {_DEBIAN}")
            _make_python(docker, packages, folder)
        source = f"ARCHIVE={archive()}"
        tutorial = folder / "tutorial"
        tutorial.mkdir(exist_ok=True)
        for name, text in (item for page in pages("learn") for item in files(page).items()):
            (tutorial / name).write_text(text)
        for image, context, arguments in (
            (PAUSE, _HERE / "pause", []),
            (POSTGRES, _HERE / "postgres", ["--build-arg", source]),
            (JOEX, ROOT, []),
            *((shop, _HERE / "shop", ["--label", f"version={shop}"]) for shop in SHOPS),
            (WORDS, tutorial, []),
        ):
            began = time.monotonic()
            docker("build", "--quiet", "--network=host", *arguments, "--tag", image, str(context))
            report(f"{image}: {_megabytes(docker, image)} MB, built in {time.monotonic() - began:.0f} s")
        for image in (PAUSE, POSTGRES, JOEX, *SHOPS, WORDS):
            _save(docker, image, archives)
    return archives


def _make_python(docker: Docker, packages: Path, folder: Path) -> None:
    """The substitute for the official image: Debian's Python, and the certificates that this machine trusts."""
    tree = folder / _DEBIAN
    shutil.rmtree(tree, ignore_errors=True)
    keyring = "--keyring=/usr/share/keyrings/debian-archive-keyring.gpg"
    bootstrap = packages / "node/usr"
    done = subprocess.run(
        [
            *(bootstrap / "sbin/debootstrap", "--variant=minbase", keyring),
            *("--include=ca-certificates,python3,python3-venv", _DEBIAN, tree, archive()),
        ],
        env={**os.environ, "DEBOOTSTRAP_DIR": str(bootstrap / "share/debootstrap")},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ImageError(f"debootstrap failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    for certificate in _CERTIFICATES.glob("*.crt"):
        shutil.copy(certificate, tree / _CERTIFICATES.relative_to("/"))
    subprocess.run(["chroot", tree, "update-ca-certificates"], capture_output=True, check=True)
    for part in ("var/cache/apt/archives", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale"):
        shutil.rmtree(tree / part, ignore_errors=True)
    docker.import_tree(tree, _PYTHON, 'CMD ["python3"]')
    shutil.rmtree(tree)


def _megabytes(docker: Docker, image: str) -> int:
    return int(docker("image", "inspect", "--format", "{{.Size}}", image)) // 1_000_000


def _save(docker: Docker, image: str, archives: Path) -> None:
    """Save an image, unless an earlier call has saved it. The digest names the archive."""
    digest = hashlib.sha256(docker("image", "inspect", "--format", "{{.Id}}", image).encode()).hexdigest()[:12]
    stem = image.replace("/", "-").replace(":", "-")
    path = archives / f"{stem}.{digest}.tar"
    if path.exists():
        return
    for old in archives.glob(f"{stem}.*.tar"):
        old.unlink()
    docker("save", image, "--output", str(path.with_suffix(".part")))
    path.with_suffix(".part").rename(path)

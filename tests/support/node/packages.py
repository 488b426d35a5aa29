"""Debian's packages of the node and of the Docker engine, unpacked into a folder. Nothing is installed."""

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.support.cluster.go_build import Report

# A kubelet of today needs containerd 2; runc and nft must fit the C library of this machine.
_NODE_OF_UNSTABLE = ("containerd", "containernetworking-plugins", "debootstrap")
_NODE_OF_THIS = ("runc", "nftables", "libnftables1", "libjansson4", "libnftnl11", "libmnl0", "libxtables12", "libedit2")
_DOCKER = ("docker.io", "docker-cli", "docker-buildx", "containerd")
_SOURCES = ("/etc/apt/sources.list", "/etc/apt/sources.list.d")
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_ARCHIVE = re.compile(r"^(?:URIs:|deb(?: \[.*?\])?) +(\S+/debian)/?(?: .*)?$", re.MULTILINE)


class Missing(Exception):
    """This machine can't have such a node; the message says what it lacks."""


def archive() -> str:
    """The archive of this machine's Debian packages.

    Raises:
        Missing: this is not Debian, or its sources name no archive.
    """
    paths = [path for source in map(Path, _SOURCES) for path in ([source] if source.is_file() else source.glob("*"))]
    for path in paths:
        if found := _ARCHIVE.search(path.read_text()):
            return found[1]
    raise Missing("no Debian archive in /etc/apt: the node's programs come from Debian's packages")


def unpack(folder: Path, report: Report) -> None:
    """Unpack the node's programs into ``folder/node``, and those of the Docker engine into ``folder/docker``.

    Raises:
        Missing: the packages can't be downloaded here.
    """
    if (folder / "complete").exists():
        return
    for program in ("apt-get", "dpkg-deb"):
        if shutil.which(program) is None:
            raise Missing(f"no {program}: the node's programs come from Debian's packages")
    shutil.rmtree(folder, ignore_errors=True)
    report("downloading containerd, runc, nft and a Docker engine: 120 MB of Debian packages")
    other = _other_releases(folder / "apt")
    _run(["apt-get", "update", "--quiet"], folder, other)
    _download(folder / "node.debs", _NODE_OF_THIS, ())
    _download(folder / "node.debs", _NODE_OF_UNSTABLE, ("--target-release", "sid"), other)
    _download(folder / "docker.debs", _DOCKER, (), other)
    for name in ("node", "docker"):
        (folder / name).mkdir()
        for package in sorted((folder / f"{name}.debs").glob("*.deb")):
            _run(["dpkg-deb", "--extract", str(package), str(folder / name)], folder)
    (folder / "complete").touch()


def _other_releases(folder: Path) -> Path:
    """A configuration of apt with two other releases, separate from the machine's own."""
    for name in ("state/lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True)
    (folder / "status").touch()
    lines = [f"deb [signed-by={_KEYRING}] {archive()} {release} main\n" for release in ("trixie", "sid")]
    (folder / "sources.list").write_text("".join(lines))
    configuration = folder / "apt.conf"
    configuration.write_text(f"""
        Dir::Etc::sourcelist "{folder}/sources.list"; Dir::Etc::sourceparts "-"; Dir::Etc::preferencesparts "-";
        Dir::State "{folder}/state"; Dir::State::lists "{folder}/state/lists"; Dir::State::status "{folder}/status";
        Dir::Cache "{folder}/cache"; APT::Default-Release "trixie"; Acquire::Check-Valid-Until "false";
    """)
    return configuration


def _download(folder: Path, packages: Sequence[str], options: Sequence[str], configuration: Path | None = None) -> None:
    folder.mkdir(exist_ok=True)
    _run(["apt-get", "download", "--quiet", *options, *packages], folder, configuration)


def _run(command: list[str], folder: Path, configuration: Path | None = None) -> None:
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
    if configuration is not None:
        environment["APT_CONFIG"] = str(configuration)
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Missing(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")

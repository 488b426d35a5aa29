"""Helm, as the tests call it: as the administrator of the tests' cluster, without the user's configuration."""

import asyncio
import os
import tempfile
from pathlib import Path

from tests.support.cluster.components import THRIFT


class HelmError(Exception):
    """Helm has failed; the message is its output."""


class Helm:
    """Runs helm on one cluster."""

    def __init__(self, program: Path, kubeconfig: Path) -> None:
        self._program = program
        self._kubeconfig = kubeconfig
        self._home = tempfile.TemporaryDirectory(prefix="joex-tests-helm-")

    async def __call__(self, *arguments: str | Path, namespace: str = "default", given: str | None = None) -> str:
        """Run helm in a namespace, with ``given`` as its standard input; returns what it prints.

        Raises:
            HelmError: it failed.
        """
        process = await asyncio.create_subprocess_exec(
            str(self._program),
            *map(str, arguments),
            "--namespace",
            namespace,
            env=self._environment(),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, errors = await process.communicate((given or "").encode())
        if process.returncode:
            raise HelmError(f"helm {' '.join(map(str, arguments))} failed:\n{errors.decode()}{out.decode()}")
        return out.decode()

    def close(self) -> None:
        """Remove the files of helm."""
        self._home.cleanup()

    def _environment(self) -> dict[str, str]:
        folders = {f"HELM_{name}_HOME": f"{self._home.name}/{name.lower()}" for name in ("CACHE", "CONFIG", "DATA")}
        own = {"PATH": os.environ["PATH"], "HOME": self._home.name, "KUBECONFIG": str(self._kubeconfig)}
        return {**own, **THRIFT, **folders}

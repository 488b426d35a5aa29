"""A machine of its own for the node: namespaces of the kernel for its network, its mounts and its processes.

When the first process in it ends, in any way, the kernel kills all others, and removes mounts and network. It can't
remove control groups: `clear_control_groups` does, before and after.
"""

import os
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tests.support.node.packages import Missing

_CONTROL_GROUPS = Path("/sys/fs/cgroup")
_OURS = ("kubepods", "k8s.io")


def command(inside: Sequence[str]) -> list[str]:
    """The command that runs another one in namespaces of its own.

    All processes inside see mounts that are made there (kubelet and containers share them); no others do.
    """
    shared = 'mount --make-rshared / && ip link set lo up && exec "$@"'
    separate = ("--net", "--mount", "--propagation=private", "--pid", "--fork", "--kill-child", "--mount-proc")
    return ["unshare", *separate, "sh", "-c", shared, "sh", *inside]


def check() -> None:
    """Check that this machine can have such namespaces.

    Raises:
        Missing: it can't; the message says what it lacks.
    """
    if os.geteuid() != 0:
        raise Missing("a real node wants root: for namespaces, mounts and control groups")
    done = subprocess.run(
        command(["mount", "-t", "tmpfs", "node", "/mnt"]), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise Missing(f"a real node wants namespaces with mounts of their own: {done.stderr.strip()}")
    if not os.access(_CONTROL_GROUPS, os.W_OK):
        raise Missing(f"a real node wants control groups that it can write, in {_CONTROL_GROUPS}")


def clear_control_groups() -> None:
    """Remove the control groups of a node whose processes are gone."""
    for hierarchy in [_CONTROL_GROUPS, *_CONTROL_GROUPS.iterdir()]:
        for name in _OURS:
            for path, _, _ in os.walk(hierarchy / name, topdown=False):
                with suppress(OSError):
                    os.rmdir(path)  # noqa: PTH106 - beside os.walk

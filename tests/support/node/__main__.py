"""``python -m tests.support.node [ARGUMENTS OF PYTEST]``: prepare a real node, and run the stories on it."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from tests.support.cluster.components import StartError
from tests.support.cluster.go_build import BuildError, cache_folder
from tests.support.node import MACHINE, images, machine, packages
from tests.support.node.images import ImageError
from tests.support.node.packages import Missing
from tests.support.node.programs import node_programs

_ROOM = 8 * 2**30
_CAN_NOT_RUN = 3


def main() -> int:
    """Prepare, and run; the exit code is that of the stories, or 3 if this machine can't have a node."""
    folder = cache_folder() / "node"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        machine.check()
        if shutil.disk_usage(folder).free < _ROOM:
            raise Missing(f"a real node wants {_ROOM // 2**30} GiB of free disk in {folder}")  # noqa: TRY301
        packages.unpack(folder / "packages", _say)
        node_programs(_say)
        images.build(folder / "packages", folder / "images", _say)
    except (Missing, BuildError, ImageError, StartError) as error:
        _say(f"the tier node can NOT run here: {error}")
        return _CAN_NOT_RUN
    _say("the node is prepared; the stories run in namespaces of their own")
    machine.clear_control_groups()
    pytest = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", "node", "--durations=0", *sys.argv[1:]]
    try:
        root, environment = Path(__file__).parents[3], {**os.environ, MACHINE: "1"}
        return subprocess.run(machine.command(pytest), cwd=root, env=environment, check=False).returncode
    finally:
        machine.clear_control_groups()


def _say(line: str) -> None:
    print(f"node: {time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())

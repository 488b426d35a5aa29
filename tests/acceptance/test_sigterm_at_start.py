"""SIGTERM during the start of a command that starts the embedded PostgreSQL: it leaves nothing behind."""

import asyncio
import os
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
TOLD_TO_END = 128 + 15


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that another user can reach, because the embedded server does not run as root."""
    with tempfile.TemporaryDirectory(prefix="joex-tests-embedded-", dir="/var/tmp") as made:
        Path(made).chmod(0o755)
        yield Path(made)


@pytest.mark.parametrize(
    "command",
    [
        ["joex", "executor", "--app", "joex.examples.documents:app", "--http-address", ""],
        ["joex", "up", "-f", str(ROOT / "examples" / "joexpool.yaml")],
        ["examples.demo"],
        ["joex", "jobs"],
    ],
    ids=lambda command: command[-1] if len(command) < 3 else command[1],
)
async def test_a_command_that_is_told_to_end_leaves_no_embedded_server(folder: Path, command: list[str]) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JOEX_")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", *command),
        cwd=ROOT,
        env={**environment, "JOEX_EMBEDDED_DIR": str(folder)},
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=STDOUT,
    )
    assert process.stdout is not None
    said = b""
    async with asyncio.timeout(PATIENCE):
        while b"the embedded PostgreSQL" not in said:
            line = await process.stdout.readline()
            assert line, said
            said += line
    process.terminate()
    said += (await asyncio.wait_for(process.communicate(), 2 * PATIENCE))[0]
    assert process.returncode == TOLD_TO_END, said
    assert b"Traceback" not in said
    assert not any(name == "postmaster.pid" for _, _, names in os.walk(folder) for name in names)

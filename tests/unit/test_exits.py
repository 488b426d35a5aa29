"""The end of a process that must not wait for anything."""

import os
import subprocess
import sys
from contextlib import suppress

import pytest

from joex.cli.sigterm import TOLD_TO_END
from joex.runtime.lease import EXIT_CODE
from tests.support.waiting import PATIENCE

EXITS = {
    "in the thread of the lease": "LeaseKeeper._exit(None)",
    "as it leaves": """
registration = SimpleNamespace(runner=SimpleNamespace(executing=1), _ended=asyncio.Event())
asyncio.run(Registration._leave(registration))
""",
}
IMPORTS = """
import asyncio
from types import SimpleNamespace
from joex import exits
from joex.runtime.lease import LeaseKeeper
from joex.runtime.registration import Registration
"""


def exits(how: str, stderr: int, before: str = "") -> int:
    command = [sys.executable, "-c", IMPORTS + before + EXITS[how]]
    return subprocess.run(command, stderr=stderr, timeout=PATIENCE, check=False).returncode


@pytest.mark.parametrize("how", EXITS)
def test_an_executor_whose_lease_is_over_exits_though_the_reader_of_its_output_has_stopped(how):
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 4096)
    os.set_blocking(writer, True)
    try:
        assert exits(how, writer) == EXIT_CODE
    finally:
        os.close(reader)
        os.close(writer)


@pytest.mark.parametrize("how", EXITS)
def test_an_executor_whose_lease_is_over_says_why_it_exits(how):
    reader, writer = os.pipe()
    try:
        assert exits(how, writer, f"exits._SAY_WITHIN = {PATIENCE}\n") == EXIT_CODE
    finally:
        os.close(writer)
    said = os.read(reader, 4096)
    os.close(reader)
    assert b"react to being interrupted" in said


def test_a_command_that_sigterm_ends_says_so_by_its_exit_code_though_a_thread_remains():
    command = f"""
import joex.cli, sys, threading
joex.cli._THREADS_END_WITHIN = 0
def app(**_):
    threading.Thread(target=threading.Event().wait).start()
    sys.exit({TOLD_TO_END})
joex.cli.run("joex", "__main__:app")
"""
    done = subprocess.run([sys.executable, "-c", command], timeout=PATIENCE, check=False, capture_output=True)
    assert (done.returncode, b"without their end" in done.stderr) == (TOLD_TO_END, True), done.stderr

"""The end of a process that must not wait for anything."""

import os
import subprocess
import sys

import pytest

from joex.cli.sigterm import TOLD_TO_END
from joex.runtime.lease import EXIT_CODE
from tests.support.pipes import full_pipe
from tests.support.waiting import PATIENCE

EXITS = {
    "in the thread of the lease": "LeaseKeeper._exit(None)",
    "as it leaves": """
registration = SimpleNamespace(runner=SimpleNamespace(executing=1), _ended=asyncio.Event())
asyncio.run(Registration._leave(registration))
""",
}
BEGIN = """
import asyncio, sys
from types import SimpleNamespace
from joex import exits, log_stream
from joex.runtime.lease import LeaseKeeper
from joex.runtime.registration import Registration
log_lines = log_stream.unblocked(sys.stderr)
log_lines.__enter__().write("a line\\n")
"""


def exits(how: str, stderr: int, before: str = "") -> int:
    command = [sys.executable, "-c", BEGIN + before + EXITS[how]]
    return subprocess.run(command, stderr=stderr, timeout=PATIENCE, check=False).returncode


@pytest.mark.parametrize("how", EXITS)
def test_an_executor_whose_lease_is_over_exits_though_the_reader_of_its_output_has_stopped(how):
    with full_pipe() as (_, writer):
        assert exits(how, writer) == EXIT_CODE


@pytest.mark.parametrize("how", EXITS)
def test_an_executor_whose_lease_is_over_says_why_it_exits_after_its_log_lines(how):
    reader, writer = os.pipe()
    try:
        assert exits(how, writer, f"exits._SAY_WITHIN = log_stream._CRASH_WITHIN = {PATIENCE}\n") == EXIT_CODE
    finally:
        os.close(writer)
    said = os.read(reader, 4096)
    os.close(reader)
    assert said.startswith(b"a line\njoex: "), said
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

"""What the start and the end of a command cost, which is most of what a short command does."""

import subprocess
import sys

COUNTS = """
import atexit, gc, sys
searched = []
gc.callbacks.append(lambda phase, info: searched.append(info["generation"]) if phase == "stop" else None)
atexit.register(lambda: print(len(searched) < 20, gc.get_freeze_count() > 10_000))
from joex.cli import main
main()
"""
ENTRIES = """
import importlib.metadata, sys
importlib.metadata.distributions = None
from joex.cli import main
main()
"""


def answer(code: str, *arguments: str) -> str:
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def test_a_command_searches_what_it_loads_for_garbage_neither_while_it_starts_nor_when_it_ends():
    """By default Python goes through its modules again and again, for a third of the CPU time of a short command."""
    assert answer(COUNTS, "version") == "True True"


def test_a_command_of_ours_looks_for_those_of_no_other_package():
    """That reads files of each installed package."""
    assert answer(ENTRIES, "version").startswith("joex ")

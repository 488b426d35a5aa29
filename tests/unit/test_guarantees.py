"""Each test that docs/guarantees.md names is there."""

import re
from pathlib import Path

_ROOT = Path(__file__).parents[2]


def test_every_test_that_a_guarantee_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", (_ROOT / "docs" / "guarantees.md").read_text()))
    there = {
        name
        for path in (_ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"def (test_\w+)", path.read_text())
    }
    assert named
    assert named - there == set()

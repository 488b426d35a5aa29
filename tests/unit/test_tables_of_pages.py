"""Each row of a table in the documentation is one line with as many cells as the head: a reflow breaks it silently."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

_FENCE = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
_TABLE = re.compile(r"^\|(?:-+\|)+\n((?:(?!<!--).+\n)*)", re.MULTILINE)


def cells(row: str) -> int:
    return re.sub(r"`[^`]*`|\\\|", "", row).count("|") - 1


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_row_of_a_table_is_one_line(page: Path) -> None:
    for table in _TABLE.finditer(_FENCE.sub("", page.read_text())):
        rule, *rows = table.group().splitlines()
        broken = [row for row in rows if not (row.startswith("|") and row.endswith("|") and cells(row) == cells(rule))]
        assert not broken

"""The tests and places that docs/why/guarantees.md and docs/why/behaviours.md name exist."""

import re
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_NAMED = re.compile(r"`(test_\w+)`")
_ROW = re.compile(r"^\| (?!-)(.*) \|$", re.MULTILINE)
_ALL_SOAK = re.compile(r"^pytestmark = .*mark\.soak", re.MULTILINE)
_SOAKS = (
    r"@pytest\.mark\.soak\n(?:@.*\n)*(?:async )?def (test_\w+)"  # (tests with a soak parameter stay in `make test`)
)
_HEADS = {"behaviour", "there"}


@pytest.fixture(scope="module")
def there() -> set[str]:
    return {
        name
        for path in (_ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"def (test_\w+)", path.read_text())
    }


def rows() -> list[list[str]]:
    """The cells of each row of the tables of behaviours."""
    text = (_ROOT / "docs" / "why" / "behaviours.md").read_text()
    found = [[cell.strip() for cell in row.split(" | ")] for row in _ROW.findall(text)]
    return [row for row in found if row[0] not in _HEADS and not row[0].startswith("---")]


@pytest.mark.parametrize("page", ["guarantees.md", "behaviours.md"])
def test_every_test_that_a_page_names_exists(page: str, there: set[str]) -> None:
    named = set(_NAMED.findall((_ROOT / "docs" / "why" / page).read_text()))
    assert named
    assert named - there == set()


@pytest.mark.parametrize("page", ["guarantees.md", "behaviours.md"])
def test_make_test_runs_every_test_that_a_page_names(page: str) -> None:
    named = set(_NAMED.findall((_ROOT / "docs" / "why" / page).read_text()))
    left_to_soak = {
        test
        for path in (_ROOT / "tests").rglob("test_*.py")
        for text in [path.read_text()]
        for test in re.findall(r"def (test_\w+)" if _ALL_SOAK.search(text) else _SOAKS, text)
    }
    assert left_to_soak
    assert named & left_to_soak == set()


def test_every_behaviour_has_a_source_a_place_that_exists_and_a_test() -> None:
    assert len(rows()) > 40
    for row in rows():
        assert len(row) == 4, row
        places = re.findall(r"`([\w/.-]+)`", row[2])
        assert places, row
        assert all((_ROOT / "executor/joex" / place).exists() or (_ROOT / place).exists() for place in places), row
        assert _NAMED.findall(row[3]), row

"""How the console shows JSON values: as Python writes them with an indent, but never more of them than is shown."""

import json
from typing import Any

import pytest

from joex.console.views import MOST_SHOWN, shown_value
from joex.store.value_beginnings import Beginning

VALUES = [
    {}, [], 7, True, "a text", {"a": [], "b": {}}, [[], [[]], {}], [[[1, -2.5e300]], {"é": None}],
    {'q"{': "x, {y: [", "\\": ["\\", '"\\"', "\n\u0001", ""]},
]  # fmt: skip


def shown(text: str) -> str:
    return shown_value(Beginning(text[:MOST_SHOWN], len(text), is_json=True))


@pytest.mark.parametrize("value", VALUES, ids=str)
def test_a_small_value_is_shown_as_python_writes_it_with_an_indent(value: Any) -> None:
    assert shown(json.dumps(value, ensure_ascii=False)) == json.dumps(value, ensure_ascii=False, indent=2)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 50_000 + "]" * 50_000,
        "[" * 190 + "7," * 50_000 + "7" + "]" * 190,
        f'["{"x" * 50_000}"]',
        f"[{'1' * 20_001}]",
    ],
    ids=["deep", "deep and wide", "text", "number"],
)
def test_a_large_value_is_cut_and_the_page_says_how_much_of_it_is_left_out(text: str) -> None:
    beginning, _, end = shown(text).rpartition("\n... and ")
    left_out = int(end.removesuffix(" more").replace(",", ""))
    assert len(beginning) <= MOST_SHOWN
    assert "".join(beginning.split()) + text[-left_out:] == text

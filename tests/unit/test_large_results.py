"""Results that are too large are refused without the cost of their text."""

from typing import Any

import pytest

from joex import InvalidJob
from joex.store import json_text as json_texts
from joex.store.json_text import json_text


def never(*given: Any, **more: Any) -> None:
    raise AssertionError


@pytest.mark.parametrize(
    "value",
    [
        [1] * 600,
        {"rows": [{"a": 1, "b": [1, 2]}] * 120},
        [("x" * 300,)] * 4,
        {"x": {str(nr): None for nr in range(220)}},
    ],
    ids=["numbers", "rows", "texts", "names"],
)
def test_a_result_that_is_too_large_by_the_lengths_of_its_parts_is_refused_before_its_text_is_made(monkeypatch, value):
    monkeypatch.setattr(json_texts, "to_json", never)
    with pytest.raises(
        InvalidJob, match=r"^result: at most 1000 bytes; got more: store it elsewhere and pass a reference"
    ):
        json_text("result", value, 1000)


def test_a_result_that_is_too_large_as_text_is_not_read_back(monkeypatch):
    monkeypatch.setattr(json_texts, "from_json", never)
    with pytest.raises(InvalidJob, match=r"^result: at most 1000 bytes; got 1601: store it elsewhere"):
        json_text("result", [1234567] * 200, 1000)


def test_a_result_of_exactly_the_limit_is_taken():
    digits = int("1" * 998)
    assert json_text("result", [digits], 1000) == f"[{digits}]"
    with pytest.raises(InvalidJob, match=r"^result: at most 1000 bytes; got 1001: "):
        json_text("result", [10 * digits], 1000)


@pytest.mark.parametrize("value", [[[]] * 126, [{}] * 126, {"": [[[]] * 41] * 3}, [["x" * 248] * 4]])
def test_a_result_that_is_too_large_as_jsonb_by_the_number_of_its_lists_is_refused_before_its_text_is_made(
    monkeypatch, value
):
    monkeypatch.setattr(json_texts, "to_json", never)
    with pytest.raises(InvalidJob, match=r"^result: at most 1000 bytes; got more: "):
        json_text("result", value, 1000)


def test_no_part_of_a_value_with_tuples_is_looked_at_alone(monkeypatch):
    monkeypatch.setattr(json_texts, "find_fault", never)
    assert json_text("result", {"rows": [(1, "a"), (2, ("b",))]}) == '{"rows":[[1,"a"],[2,["b"]]]}'

"""The check of JSON whose problems would take too much memory ends at the first ones, and takes all that is valid."""

import json
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Annotated, Any

import pytest
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Json,
    JsonValue,
    TypeAdapter,
    ValidationError,
    WrapValidator,
    create_model,
)

from joex import bounded_validation
from joex.bounded_validation import BoundedValidator
from tests.support.markers import ends_early

_NAMES = [f"field {nr}" for nr in range(12)]
_FIELDS: Any = dict.fromkeys(_NAMES, (str, ...))
Item = create_model("Item", **_FIELDS)
Changed = create_model("Changed", before=(str, ...), after=(str, ...), **_FIELDS)
VALID = dict.fromkeys(_NAMES, "x")


class Tree(BaseModel):
    name: str
    left: "Tree | None" = None
    right: "Tree | None" = None
    below: list["Tree"] = []


class Not(BaseModel):
    of: "Not | All"


class All(BaseModel):
    of: list["Not | All"]


class Order(BaseModel):
    model_config = ConfigDict(strict=True)

    day: date
    price: Decimal
    pair: tuple[int, int]


class Exact(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str = ""


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Item]


@dataclass
class Box:
    items: list[Item]


def without_wrong(value: Any, check: Any) -> Any:
    try:
        return check(value)
    except ValidationError as error:
        wrong = {problem["loc"][0] for problem in error.errors()}
        return check([one for nr, one in enumerate(value) if nr not in wrong])


def trees(depth: int) -> Any:
    return {"left": trees(depth - 1), "right": trees(depth - 1)} if depth else {}


@pytest.fixture(autouse=True)
def limit(monkeypatch):
    """As if a thousandth of the memory was too much, so that texts can be small."""
    monkeypatch.setattr(bounded_validation, "_MOST_BYTES", 100_000)
    monkeypatch.setattr(bounded_validation, "_SHORT", 0)


@ends_early
@pytest.mark.parametrize(
    ("kind", "value", "most"),
    [
        (list[Item], [{}] * 1_000, 12),
        (dict[str, list[Item | Changed]], {"k" * 600: [{}] * 1_000}, 2),
        (dict[str, Item], {f"k{nr}": {} for nr in range(1_000)}, 12),
        (dict[str, list[int]], {"k" * 3_000: [""] * 1_000}, 1),
        (list[Box], [{"items": [{}] * 20}] * 50, 12),
        (tuple[Item, ...], [{}] * 1_000, 12),
        (Tree, trees(9), 3),
        (list[Tree], [{"below": [{"below": [{}, {}]}] * 2}] * 300, 2),
        (Not, {"of": {"of": {"of": {"of": {"of": {"of": {"of": {"of": {"of": [{}] * 200}}}}}}}}}, 4),
        (dict[str, Exact], {"k" * 300: {f"k{nr}": 1 for nr in range(300)}}, 1),
        (dict[str, Open], {"k" * 300: {f"k{nr}": {} for nr in range(300)}}, 1),
        (list[Annotated[Item, BeforeValidator(lambda value: value)]], [{}] * 1_000, 12),
        (list[Json[list[Item]]], [json.dumps([{}] * 1_000)], 12),
    ],
)
def test_problems_beyond_the_limit_are_not_collected(kind, value, most):
    adapter, text = TypeAdapter(kind), json.dumps(value)
    with pytest.raises(ValidationError) as all_of_them:
        adapter.validate_json(text)
    with pytest.raises(ValidationError) as first:
        BoundedValidator(adapter).validate_json(text)
    assert all_of_them.value.error_count() > 20 * most
    assert first.value.error_count() <= most


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (list[Item], [VALID] * 500),
        (dict[str, list[Item | Changed]], {"k" * 600: [VALID, VALID | {"before": "a", "after": "b"}] * 100}),
        (dict[str, list[int]], {"k" * 3_000: [1] * 1_000}),
        (list[int] | list[str], ["a"] * 2_000),
        (list[int | str | Item], [1, "a", VALID] * 100),
        (list[Order], [{"day": "2030-01-02", "price": "1.10", "pair": [1, 2]}] * 500),
        (list[Tree], [{"name": "a", "left": {"name": "b"}, "below": [{"name": "c"}]}] * 300),
        (Box, {"items": [VALID] * 500}),
        (Open, {f"k{nr}": VALID for nr in range(300)}),
        (dict[str, list[JsonValue]], {"k" * 3_000: [[1, None], {"a": "b"}] * 200}),
        (list[date | None], ["2030-01-02", None] * 500),
        (Annotated[list[int], WrapValidator(without_wrong)], [1, "a"] * 500),
    ],
)
def test_valid_values_are_taken_whatever_their_problems_might_take(kind, value):
    adapter, text = TypeAdapter(kind), json.dumps(value)
    validator = BoundedValidator(adapter)
    taken = validator.validate_json(text)
    assert "_at_the_first" in vars(validator)
    assert taken == adapter.validate_json(text)


def test_what_an_application_raises_in_a_check_is_not_taken_for_a_wrong_value():
    def fail(value: Any) -> Any:
        raise RuntimeError("no ink")

    class Node(BaseModel):
        name: Annotated[str, BeforeValidator(fail)]
        next: "Node | None" = None

    with pytest.raises(RuntimeError, match="no ink"):
        BoundedValidator(TypeAdapter(list[Node])).validate_json(json.dumps([{"name": "a"}] * 1_000))


def test_a_type_that_is_checked_as_it_is_is_checked_once():
    seen = []

    def look(value: Any, check: Any) -> Any:
        seen.append(value)
        return check(value)

    with pytest.raises(ValidationError):
        BoundedValidator(TypeAdapter(list[Annotated[int, WrapValidator(look)]])).validate_json('["a", "b"]')
    assert seen == ["a", "b"]


def test_problems_within_the_limit_are_all_named():
    with pytest.raises(ValidationError) as all_of_them:
        BoundedValidator(TypeAdapter(list[Item])).validate_json("[{}, {}]")
    assert all_of_them.value.error_count() == 24

"""Results that do not fit the annotation of their task: one line says so, and the check needs little memory."""

from types import SimpleNamespace
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from pydantic import BaseModel, Field, ValidationError

from joex import NoResult, bounded_validation
from joex.results import Results
from tests.support.markers import ends_early


class Row(BaseModel):
    name: str
    price: float


def refused(kind: Any, result: Any) -> NoResult:
    def function(ctx): ...

    function.__annotations__["return"] = kind
    job: Any = SimpleNamespace(task="a", state="success", result=result, error=None)
    with pytest.raises(NoResult) as raised:
        Results(function, "a").read(UUID(int=1), job)
    return raised.value


@ends_early
@pytest.mark.parametrize(
    ("kind", "result", "where", "number"),
    [
        (
            dict[str, list[int]],
            {"k" * 300: [""] * 1_000},
            r"result\.k+\.0: Input should be a valid integer",
            1,
        ),
        (list[Row], [{}] * 1_000, "result.0.name: Field required", 2),
    ],
)
def test_of_a_result_with_very_many_wrong_parts_the_first_is_checked_alone(kind, result, where, number, monkeypatch):
    monkeypatch.setattr(bounded_validation, "_MOST_BYTES", 100_000)
    error = refused(kind, result)
    error_of_pydantic = error.__context__
    assert isinstance(error_of_pydantic, ValidationError)
    assert error_of_pydantic.error_count() == number
    error.__context__ = None
    with pytest.raises(NoResult, match=f"^job {UUID(int=1)} of task 'a': {where}"):
        raise error


def test_of_a_result_with_more_than_a_thousand_wrong_parts_the_number_is_named():
    assert str(refused(list[int], [""] * 1_001)).endswith(": result: 1001 parts of it are wrong")


class Cat(BaseModel):
    kind: Literal["cat"]


class Dog(BaseModel):
    kind: Literal["dog"]


@pytest.mark.parametrize(
    ("kind", "result"),
    [
        (dict[str, int], {"k\n" * 100_000: ""}),
        (Annotated[Cat | Dog, Field(discriminator="kind")], {"kind": "k\n" * 100_000}),
    ],
)
def test_a_wrong_result_is_one_short_line_whatever_its_names_and_tags(kind, result):
    said = str(refused(kind, result))
    assert len(said) < 2_000
    assert said.count("\n") == 0

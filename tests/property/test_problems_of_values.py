"""What pydantic needs to say what is wrong with a value is never more than the bound says."""

import json
from dataclasses import make_dataclass
from typing import Annotated, Any, Literal, Optional, Union

from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import AliasPath, BaseModel, ConfigDict, Field, JsonValue, TypeAdapter, ValidationError, create_model
from typing_extensions import TypedDict

from joex.bounded_validation import BoundedValidator, _Size, most_problems
from tests.support.soak import examples

NAMES = ("a", "b", "c", "d", "kind", "\U0001f600" * 9)


class Tree(BaseModel):
    a: int
    b: Optional["Tree"] = None
    kind: list["Tree"]


class Not(BaseModel):
    a: Union["Not", "Both", int]


class Both(BaseModel):
    a: list[Union["Not", "Both"]]
    b: dict[str, "Both"] = {}


class One(BaseModel):
    kind: Literal["one"]
    a: int


class Other(BaseModel):
    kind: Literal["other"]
    a: list[One]
    b: int


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)

    a: tuple[int, str]
    b: frozenset[str] = frozenset()


class Aliases(BaseModel):
    b: int = Field(validation_alias=AliasPath("a", 0))
    kind: str = Field(validation_alias=AliasPath("a", 0))


class Pair(TypedDict):
    a: int
    b: str


TAGGED = One | Other
SIMPLE: Any = st.sampled_from([int, bool, float, Strict, Aliases, Pair, Tree])
SCALARS: Any = SIMPLE | st.sampled_from([str, type(None), Any, JsonValue, Not, Both])


def models(kinds: Any) -> Any:
    fields = st.dictionaries(st.sampled_from("abcd"), kinds, min_size=3)
    extra = st.sampled_from(["ignore", "forbid", "allow"])
    return st.builds(model, fields, st.sampled_from([..., ..., None]), extra) | fields.map(
        lambda named: make_dataclass("Data", named.items())
    )


def model(fields: dict[str, Any], default: Any, extra: Any) -> Any:
    named: Any = {name: (kind, default) for name, kind in fields.items()}
    return create_model("Model", __config__=ConfigDict(extra=extra), **named)


def compounds(kinds: Any) -> Any:
    several = st.lists(kinds, min_size=2, max_size=5).map(tuple)
    return st.one_of(
        kinds.map(lambda kind: list[kind]),  # type: ignore[valid-type]
        kinds.map(lambda kind: dict[str, kind]),  # type: ignore[valid-type]
        kinds.map(lambda kind: dict[int, kind]),  # type: ignore[valid-type]
        kinds.map(lambda kind: Optional[kind]),  # noqa: UP045 - kinds come from hypothesis
        kinds.map(lambda kind: tuple[kind, ...]),  # type: ignore[valid-type]
        several.map(lambda some: tuple[some]),  # type: ignore[valid-type]
        *[several.map(lambda some: Union[some])] * 2,  # noqa: UP007
        models(kinds),
        st.just(list[Annotated[TAGGED, Field(discriminator="kind")]]),
    )


kinds: Any = st.recursive(SCALARS, compounds, max_leaves=5) | compounds(SIMPLE)
texts = st.text(st.sampled_from('a"\\:,[]{} \n\u00fc\U0001f600'), max_size=6)
values: Any = st.recursive(
    st.just({}) | st.just([{}] * 6) | st.none() | st.integers() | texts | st.sampled_from(["one", "other"]),
    lambda parts: st.lists(parts, max_size=4) | st.dictionaries(st.sampled_from(NAMES) | texts, parts, max_size=4),
    max_leaves=40,
) | st.sampled_from([{}, [], "", {"a": {}, "b": []}])


def written(value: Any, *, is_ascii: bool, is_packed: bool) -> str:
    return json.dumps(value, ensure_ascii=is_ascii, separators=(",", ":") if is_packed else None)


def error_of(check: Any, text: str) -> ValidationError | None:
    try:
        check.validate_json(text)
    except ValidationError as error:
        return error
    return None


@settings(max_examples=examples(600))
@given(kinds, values, st.booleans(), st.booleans())
@example(kind=model(dict.fromkeys("abcdefgh", int), ..., "ignore"), value={}, is_ascii=True, is_packed=True)
def test_the_bound_is_never_below_the_problems_of_pydantic(kind, value, is_ascii, is_packed):
    adapter = TypeAdapter(list[kind])  # type: ignore[valid-type]
    text = written([value] * 20, is_ascii=is_ascii, is_packed=is_packed)
    if error := error_of(adapter, text):
        assert _Size(text).values * most_problems(adapter.core_schema) >= error.error_count()
        assert BoundedValidator(adapter)._needs(text) >= sum(
            len(json.dumps(one["input"])) + sum(len(str(name).encode()) for name in one["loc"])
            for one in error.errors(include_url=False)
        )


@settings(max_examples=examples(600))
@given(kinds, values)
def test_a_check_that_ends_at_the_first_problems_takes_the_same_values(kind, value):
    adapter, text = TypeAdapter(kind), json.dumps(value)
    check = BoundedValidator(adapter)._at_the_first
    assert check is not adapter
    if error := error_of(adapter, text):
        found = error_of(check, text)
        assert found is not None
        assert 1 <= found.error_count() <= error.error_count()
    else:
        assert check.validate_json(text) == adapter.validate_json(text)

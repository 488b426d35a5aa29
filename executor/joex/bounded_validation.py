"""Checks JSON against types with pydantic, in memory that is bounded however much of the JSON is wrong.

pydantic lists all problems, and has no limit for them. A list of a model with twelve fields has twelve problems for
each ``{}``; each takes some hundred bytes, a copy of all names on the way to it, and a copy of the value that has it.
So 500 kB of JSON can take gigabytes, which ends the process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from itertools import accumulate
from math import inf
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import SchemaError, SchemaValidator, core_schema

from joex.core.text import cut

_MOST_BYTES = 100_000_000
"""Bytes that the problems of one value may take. If they might take more, the check ends at the first ones."""
_SHORT = 2_000
"""Characters of a text that is checked as it is: its problems fit into memory, whatever its types are."""
_LONGEST = 2_000_000
"""Characters of a text of which all problems are listed: to weigh a longer one takes longer than to check it."""
_OF_A_PROBLEM = 450
"""Bytes that pydantic needs for a problem, beside the way to it and the value."""
_OF_A_PART = 24
"""Bytes that pydantic needs for each part of the way to a problem, beside the name, and at least for each value."""
_LONGEST_LINE = 1_000
MOST_LOOKED_AT = 1_000
"""Problems of one check that are turned into values of Python, to name some: a megabyte may have 200,000."""
_STEPS = [(one in b"[{") - (one in b"]}") for one in range(256)]
"""How many levels each byte leads down."""
_NO_BRACKETS = bytes(one for one in range(256) if not _STEPS[one])

_Schema = Mapping[str, Any]
_BELOW = (
    *("arguments_schema", "choices", "definitions", "extras_keys_schema", "extras_schema", "fields", "items_schema"),
    *("json_schema", "keys_schema", "lax_schema", "python_schema", "schema", "steps", "strict_schema"),
    *("values_schema", "var_args_schema", "var_kwargs_schema"),
)
"""The keys of a schema that hold other schemas by which it checks."""
_ARRAYS = {"list", "set", "frozenset", "deque", "tuple", "generator"}
_MAPS = {"dict", "frozendict", "ordered-dict", "counter"}
_MAY_MAKE_MORE = {"chain", "function-before", "function-wrap", "json"}
"""Schemas that may make many values out of one, as a function that splits a text does, and check these."""
_TYPES_OF_SCHEMAS = {name.lower(): one for name, one in vars(core_schema).items() if name.endswith("Schema")}
_KNOW_FAIL_FAST = {
    kind
    for kind in _ARRAYS | _MAPS
    if "fail_fast" in getattr(_TYPES_OF_SCHEMAS.get(kind.replace("-", "") + "schema"), "__annotations__", ())
}
"""The containers of which this pydantic can end the check at the first wrong member."""
ENDS_EARLY = "dict" in _KNOW_FAIL_FAST
"""Whether checks end early at all. Unions of an older pydantic are strict in strict models, and refuse valid values."""


class BoundedValidator:
    """Checks JSON text as a `TypeAdapter` does, but for the number of problems that it names.

    Valid values are the same. The check of a long text ends at the first wrong member of each array and object; if it
    finds one, and the problems of the text can't need too much memory, another check lists all of them. A type with a
    wrap validator of its own is checked as it is: such a function may make a value of what is wrong.
    """

    def __init__(self, adapter: TypeAdapter[Any]) -> None:
        self._adapter = adapter

    def validate_json(self, text: str | bytes) -> Any:
        """Turn JSON into a value of the type.

        Raises:
            ValidationError: the value is not of the type.
        """
        if len(text) <= _SHORT or self._at_the_first is self._adapter:
            return self._adapter.validate_json(text)
        try:
            return self._at_the_first.validate_json(text)
        except ValidationError:
            if len(text) > _LONGEST or self._needs(text) > _MOST_BYTES:
                raise
        return self._adapter.validate_json(text)  # to name them all

    def _needs(self, text: str | bytes) -> float:
        """No less than the bytes that pydantic needs for the problems of this text."""
        if self._most == inf:
            return inf
        size = _Size(text.decode("utf-8", "replace") if isinstance(text, bytes) else text)
        way = (size.levels + 1) * (_OF_A_PART + size.longest_name)
        copies = (size.levels + 1) * (_bytes(text) + 2 * _OF_A_PART * size.values)
        return self._most * (size.values * (_OF_A_PROBLEM + way) + copies)

    @cached_property
    def _most(self) -> float:
        return most_problems(self._adapter.core_schema)

    @cached_property
    def _at_the_first(self) -> Any:
        if not ENDS_EARLY or _looks_at_problems(self._adapter.core_schema):  # and must see all of them
            return self._adapter
        schema = ending_at_the_first(self._adapter.core_schema)
        try:
            # By default pydantic takes the validators that the classes of models have, which name all problems.
            return SchemaValidator(schema, None, _use_prebuilt=False)
        except SchemaError:  # only pydantic itself can build this one, and to take valid values counts more than memory
            return self._adapter


class _Size:
    """What decides how much memory the problems of a JSON text can take."""

    def __init__(self, text: str) -> None:
        text = text.replace("\\\\", "__").replace('\\"', "__") if "\\" in text else text
        pieces = text.split('"')  # what is outside of texts, and inside, by turns
        named = (one for one, after in zip(pieces[1::2], pieces[2::2], strict=False) if after.lstrip()[:1] == ":")
        outside = "".join(pieces[::2])
        brackets = outside.encode("ascii", "replace").translate(None, _NO_BRACKETS)
        self.levels = max(accumulate(map(_STEPS.__getitem__, brackets)), default=0)
        self.values = outside.count(",") + brackets.count(b"[") + brackets.count(b"{") + 1
        longest = max(map(len, named), default=0)
        self.longest_name = longest if text.isascii() else 4 * longest


def first_problem(error: ValidationError) -> tuple[str, str]:
    """Where the first problem is, and what it is; if there are very many, how many they are, and "" for the place."""
    if (number := error.error_count()) > MOST_LOOKED_AT:
        return "", f"{number} parts of it are wrong"
    return place_and_problem(error.errors(include_url=False, include_context=False, include_input=False)[0])


def place_and_problem(problem: Any) -> tuple[str, str]:
    """Where a problem is, and what it is, each in a short line: names and tags in a value may have megabytes."""
    where = ".".join(map(str, problem["loc"]))
    return _line(where), _line(problem["msg"])


def _line(text: str) -> str:
    return cut(text, _LONGEST_LINE).replace("\n", "\\n")


def most_problems(schema: _Schema) -> float:
    """No less than the problems that pydantic can have with one value of a JSON text; infinite: this can't be said.

    Each schema in a schema has one problem at most with a value, and checks it once, unless it contains itself.
    """
    definitions = {one["ref"]: one for one in _definitions(schema)}
    known: dict[str, float] = {}

    def most(one: _Schema) -> float:
        if (ref := one.get("schema_ref")) is not None:
            if ref not in known:
                known[ref] = inf  # while what it refers to is looked at: then this contains itself
                known[ref] = most(definitions[ref])
            return known[ref]
        parts = _parts(one)
        if one["type"] in _MAY_MAKE_MORE and any("schema_ref" in part or _parts(part) for part in parts):
            return inf
        return 1 + sum(map(most, parts))

    return most(schema)


def ending_at_the_first(schema: _Schema) -> Any:
    """A copy of a schema that takes the same values, and has few problems with any other, whatever its size."""
    return _copied(schema, "ignore", is_root=True)


def _copied(schema: Any, extras: str, *, is_root: bool = False) -> Any:
    kind = schema["type"]
    extras = (schema.get("config") or {}).get("extra_fields_behavior") or extras
    copy = dict(schema)
    for key in _BELOW:
        if key in schema:
            # The arguments of a call have names of their own alone above them, so all of these are named.
            stays = is_root and (kind, key) in {("definitions", "schema"), ("call", "arguments_schema")}
            copy[key] = _mapped(schema[key], partial(_copied, extras=extras, is_root=stays))
    for key in ("extras_schema", "extras_keys_schema", "var_args_schema", "var_kwargs_schema"):
        # (Names that come from a TypedDict are as few as its fields.)
        if copy.get(key) and copy.get("var_kwargs_mode") != "unpacked-typed-dict":
            copy[key] = _guarded(copy[key])
    if kind == "union":  # (Each missing field has a copy of the object. These go before the next choice is tried.)
        copy["choices"] = _mapped(copy["choices"], lambda one: _guarded(one) if _parts(one) else one)
    if kind in _KNOW_FAIL_FAST:
        copy["fail_fast"] = True
    elif kind in _MAPS | _ARRAYS:
        for key in ("keys_schema", "values_schema", "items_schema"):
            if isinstance(copy.get(key), dict):
                copy[key] = _guarded(copy[key])
    return copy if is_root or not _has_many(schema, extras) else _guarded(copy)


def _has_many(schema: _Schema, extras: str) -> bool:
    """Whether the number of problems with one value can grow with its size, although containers end at their first."""
    kind = schema["type"]
    if kind in {"model", "dataclass"}:
        return _may_have_extras(schema["schema"], extras)
    if kind == "typed-dict":
        return _may_have_extras(schema, extras)
    # What a schema refers to may contain itself.
    others = {"definition-ref", "call", "arguments", "arguments-v3", "named-tuple"}
    return kind in others | ((_MAPS | _ARRAYS) - _KNOW_FAIL_FAST)


def _may_have_extras(schema: _Schema, extras: str) -> bool:
    """Whether an object can have a problem with each of very many fields that the schema does not name."""
    extras = (schema.get("config") or {}).get("extra_fields_behavior") or extras
    behaviour = schema.get("extra_behavior") or extras
    more = any(schema.get(key) for key in ("extras_schema", "extras_keys_schema"))
    # A validator of the model may stand between it and its fields.
    inner = schema["schema"] if schema["type"].startswith("function-") and "schema" in schema else None
    return behaviour == "forbid" or more or (inner is not None and _may_have_extras(inner, extras))


def _guarded(schema: _Schema) -> Any:
    """A schema that takes the same values, and has one problem with any other.

    (A function around the schema would get values of Python: for these, strict types do not take what they take from
    JSON. And `custom_error_schema` hides what functions of the application raise.)
    """
    inner: Any = {key: one for key, one in schema.items() if key != "ref"}
    return core_schema.union_schema(
        [inner],
        mode="left_to_right",
        auto_collapse=False,
        custom_error_type="wrong_part",
        custom_error_message="a part of it is wrong",
        ref=schema.get("ref"),
    )


def _looks_at_problems(schema: _Schema) -> bool:
    """Whether a function of the application gets the problems of a check."""
    if schema["type"] == "function-wrap":
        function = schema["function"]["function"]
        module = getattr(function, "func", function).__module__  # (some of pydantic's are partials)
        if module.split(".")[0] != "pydantic":
            return True
    return any(map(_looks_at_problems, _parts(schema)))


def _definitions(schema: _Schema) -> Iterator[_Schema]:
    if schema["type"] == "definitions":
        yield from schema["definitions"]
    for one in _parts(schema):
        yield from _definitions(one)


def _parts(schema: _Schema) -> list[_Schema]:
    """The schemas right below this one."""
    found: list[_Schema] = []
    for key in _BELOW:
        if key in schema:
            _mapped(schema[key], found.append)
    return found


def _mapped(part: Any, change: Callable[[_Schema], Any]) -> Any:
    """What a key of a schema holds, with each schema in it changed."""
    if isinstance(part, dict):
        if isinstance(part.get("type"), str):
            return change(part)
        return {key: _mapped(one, change) for key, one in part.items()}
    if isinstance(part, list | tuple):
        return type(part)(_mapped(one, change) for one in part)
    return part


def _bytes(text: str | bytes) -> int:
    return len(text) if isinstance(text, bytes) or text.isascii() else 4 * len(text)

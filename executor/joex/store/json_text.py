"""JSON texts of arguments, results and options: how a value goes to the database, and how it comes back."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from types import NoneType
from typing import Any

from pydantic_core import PydanticSerializationError, from_json, to_json

from joex.core.json_values import LOOKED_INTO, Written, as_dict, find_fault, has_infinity, is_longer, listed
from joex.errors import InvalidJob
from joex.garbage import collection_paused

_MOST_LOOKED_AT = 100_000
"""Parts of a value that the encoder has refused, to say which is wrong: a tenant may send millions."""
_LARGE = 100_000
"""Characters of a text that is read without the collector of garbage."""
_PLAIN = frozenset((str, bool, NoneType))


def json_text(field: str, value: Any, most: int | None = None, look_into: int = LOOKED_INTO) -> str:
    """A value as JSON text, from which a reader gets the same value (see `joex.core.json_values`).

    Raises:
        InvalidJob: the value has a part that JSON, or PostgreSQL's jsonb, can't hold; the message says where. Or it has
            more than ``most`` bytes.
    """
    if type(value) is Written:
        return value.text
    if most is not None and is_longer(value, most, look_into):
        raise _too_large(field, most, "more")
    try:
        written = to_json(value, inf_nan_mode="null", fallback=as_dict)
        if most is not None and len(written) > most:
            raise _too_large(field, most, len(written))
        text = written.decode()
        # (Reading the text back would double the cost: check the usual small object instead.)
        if not (type(value) is dict and _is_flat(value)):
            with collection_paused() if len(text) > _LARGE else nullcontext():
                is_changed = (read := from_json(text)) != value and read != listed(value)
                del read
            if is_changed:
                _refuse_fault(field, value)
    except InvalidJob:
        raise
    except (PydanticSerializationError, ValueError, TypeError, UnicodeError, RecursionError) as error:
        _refuse_fault(field, value, _MOST_LOOKED_AT)
        raise InvalidJob(f"{field}: can't be stored as JSON: {error}") from error
    if "\\u0000" in text and "\\u0000" in text.replace("\\\\", ""):
        raise InvalidJob(f"{field}: must not contain a NUL character (PostgreSQL can't store it)")
    return text


def read_json(text: str) -> Any:
    """A value from the database; if Python can't hold it, an object that says so.

    (SQL accepts such values, a number of 5,000 digits for example; one such job must not hide the others of a list.)
    """
    try:
        with collection_paused() if len(text) > _LARGE else nullcontext():
            value = from_json(text)
        if has_infinity(text):
            raise ValueError("a number is beyond the range of doubles")  # noqa: TRY301 - as the other mistakes
    except ValueError as error:
        return {"unreadable": f"{error}: read it in SQL"}
    return value


def _is_flat(value: dict[Any, Any]) -> bool:
    """Whether all names are texts, and all values of types that need no further check."""
    for name, each in value.items():
        kind = type(each)
        if type(name) is not str or not (kind in _PLAIN or (kind is int and -(2**63) <= each < 2**63)):
            return False
    return True


def _too_large(field: str, most: int, size: object) -> InvalidJob:
    return InvalidJob(
        f"{field}: at most {most} bytes; got {size}: store it elsewhere and pass a reference, "
        "or raise the limit with joex.set_largest"
    )


def _refuse_fault(field: str, value: Any, most: int | None = None) -> None:
    with suppress(RecursionError):  # it contains itself
        if fault := find_fault(value, most):
            raise InvalidJob(f"{field}{fault[0]}: can't be stored as JSON: {fault[1]}")

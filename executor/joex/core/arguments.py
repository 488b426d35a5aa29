"""Checks of arguments that drivers would refuse in their own words: flags, numbers and ids."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from joex.core.json_values import shown

HIGHEST = 2**31 - 1
"""The highest number that PostgreSQL has as integer."""


def check_flag(field: str, value: Any) -> None:
    """Check a boolean.

    Raises:
        ValueError: it is none.
    """
    if not isinstance(value, bool):
        raise ValueError(f"{field}: expected True or False; got {shown(value)}")  # noqa: TRY004 - one error for callers


def check_number(field: str, value: Any, least: int = 0, highest: int = HIGHEST) -> None:
    """Check a whole number.

    Raises:
        ValueError: it is none, or is not within these limits.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= highest:
        raise ValueError(f"{field}: expected a whole number, {least} to {highest}; got {shown(value)}")


def check_id(field: str, value: Any) -> UUID:
    """The id of a job, which may be given as a text.

    Raises:
        ValueError: it is no UUID.
    """
    if isinstance(value, UUID):
        return value
    try:
        return UUID(value)
    except (ValueError, TypeError, AttributeError):
        raise ValueError(f"{field}: expected a UUID; got {shown(value)}") from None

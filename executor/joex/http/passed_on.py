"""Answers with JSON texts of the database as they are: the event loop makes no objects of their parts.

Whoever submits a job chooses its arguments, and another tenant's worker is answered with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import Response
from pydantic import BaseModel, ValidationError
from pydantic_core import to_json

from joex.store.json_text import read_json


class PassedOn(Response):
    """An answer, JSON.

    Args:
        content: all of it.
        own: what is not of such texts.
    """

    media_type = "application/json"

    def __init__(self, content: bytes, own: bytes) -> None:
        super().__init__(content)
        self.own = own


def readable(text: str) -> bytes:
    """An object from the database, if Python can hold it; else, as `read_json`, one that says so."""
    try:
        _Object.model_validate_json(text)
    except ValidationError:
        return to_json(read_json(text))
    return text.encode()


def members(fields: Mapping[str, Any]) -> bytes:
    """The inside of an object, JSON."""
    return to_json(fields)[1:-1]


class _Object(BaseModel):
    """Any object: to validate it as one without fields checks its text, and makes no Python objects of its parts."""

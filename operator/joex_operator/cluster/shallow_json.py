"""JSON of the API server, of which levels that nothing valid has are left out.

The API server takes objects of ten thousand levels, in spec.template and in args. Python's parser, and whatever walks
through an object, gives up at a thousand: an object like that would hide all others of its list. The levels that stay
are more than arguments may have (200), so the object is as invalid as before.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Any

from pydantic_core import SchemaValidator, core_schema, from_json

_DEEPEST = 300
_NOTHING = SchemaValidator(core_schema.typed_dict_schema({}))
"""Reads an object over, and refuses one of 200 levels, as `from_json` does."""
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]]')


def read(text: bytes | bytearray) -> Any:
    """The value of a text, without its deepest levels.

    Raises:
        ValueError: it is no JSON.
    """
    try:
        return from_json(text)  # which refuses 200 levels
    except ValueError:
        return json.loads(shallow(text))


def shallow(text: bytes | bytearray) -> bytes | bytearray:
    """The text with null in place of its deepest levels.

    >>> shallow(b"[1]"), shallow(b"[" * 1000 + b"]" * 1000) == b"[" * 300 + b"null" + b"]" * 300
    (b'[1]', True)
    """
    if text.count(b"{") + text.count(b"[") <= _DEEPEST:
        return text
    with suppress(ValueError):  # (one of very many values is read over in a hundredth of the time of what follows)
        _NOTHING.validate_json(text)
        return text
    kept, depth, start = [], 0, 0
    for token in _TOKEN.finditer(text):
        if token[0] in (b"{", b"["):
            depth += 1
            if depth == _DEEPEST + 1:
                kept += [text[start : token.start()], b"null"]
        elif token[0] in (b"}", b"]"):
            depth -= 1
            if depth == _DEEPEST:
                start = token.end()
    return b"".join([*kept, text[start:]])

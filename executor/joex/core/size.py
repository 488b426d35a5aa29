"""Sizes of memory as people write them: ``2Gi``, ``512Mi``, ``1.5G``, or a number of bytes."""

from __future__ import annotations

import re

from joex.core.json_values import shown

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?\s*", re.IGNORECASE)
_LARGEST = 2**60


def parse_size(value: str | int) -> int:
    """Convert text, or a number of bytes, into bytes.

    >>> parse_size("2Gi"), parse_size("1.5k"), parse_size(4096)
    (2147483648, 1500, 4096)

    Raises:
        ValueError: the value can't be read, or is no size of a memory.
    """
    size = 0
    if isinstance(value, int) and not isinstance(value, bool):
        size = value
    elif isinstance(value, str) and (match := _SIZE.fullmatch(value)) and match[2].lower() in _UNITS:
        size = int(float(match[1]) * _UNITS[match[2].lower()])
    if not 1 <= size <= _LARGEST:
        raise ValueError(f"expected something like '512Mi' or '2Gi', or bytes; got {shown(value)}")
    return size

"""The bucket of a group: a label for numbers of groups that stays small however many groups there are."""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256

GROUP_BUCKETS = 8
"""How many buckets there are: 0 to 7."""


@lru_cache(maxsize=16_384)  # executors call this for each run
def group_bucket(group: str) -> int:
    """Return the bucket of a group: the first byte of the SHA-256 of its name in UTF-8, modulo 8.

    Each process and language gets the same number; `joex.group_bucket` computes it in SQL.

    >>> group_bucket("acme"), group_bucket("globex")
    (2, 3)
    """
    return sha256(group.encode()).digest()[0] % GROUP_BUCKETS

"""The bucket of a group: a label for numbers of groups that stays small however many groups there are."""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256

GROUP_BUCKETS = 8
"""How many buckets there are: 0 to 7."""


@lru_cache(maxsize=16_384)  # an executor asks at each run
def group_bucket(group: str) -> int:
    """Return the bucket of a group: the first byte of the SHA-256 of its name in UTF-8, modulo 8.

    It is the same in every process and language; `joex.group_bucket` in SQL is it too.

    >>> group_bucket("acme"), group_bucket("globex")
    (2, 3)
    """
    return sha256(group.encode()).digest()[0] % GROUP_BUCKETS

"""Sorting beside the event loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import merge
from typing import Any, TypeVar

One = TypeVar("One")

_PIECE = 2_000


def in_order(given: Sequence[One], key: Callable[[One], Any]) -> Iterator[One]:
    """These in the order of `sorted`, but sorted in pieces.

    While Python sorts a list, no other thread goes on, which would be half a second for 200,000 groups.
    """
    pieces = (given[at : at + _PIECE] for at in range(0, len(given), _PIECE))
    return merge(*(sorted(piece, key=key) for piece in pieces), key=key)

"""Spreads groups over the queues of a system that has queues but no groups."""

from __future__ import annotations

PARTS = 10
"""Queues for all groups. The race with ten groups gives each its own queue: the best case."""


def part_of(group: str) -> int:
    """The queue of a group, by the number at its end."""
    return int(group.rpartition(" ")[2]) % PARTS

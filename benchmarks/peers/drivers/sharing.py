"""How groups are dealt over the queues of a system that knows no groups but serves several queues."""

from __future__ import annotations

PARTS = 10
"""Queues for all groups. The race's plan with ten groups gives each a queue of its own: the best case."""


def part_of(group: str) -> int:
    """The queue of a group, by the number at its end."""
    return int(group.rpartition(" ")[2]) % PARTS

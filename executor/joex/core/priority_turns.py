"""The counting scheme: how often a high-priority job is chosen for each low-priority one.

The scheme of Docspell's Joex (ADR 0005): ``4,1`` means four high ones, then a low one, then over again; if no job of
the wanted priority waits, the executor takes one of the other.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_MOST_TURNS = 1000


@dataclass(frozen=True, slots=True)
class CountingScheme:
    """``high`` turns for high priority, then ``low`` turns for low priority, then over again."""

    high: int
    low: int

    def __post_init__(self) -> None:
        for name, turns in (("high", self.high), ("low", self.low)):
            if not 1 <= turns <= _MOST_TURNS:
                raise ValueError(
                    f"counting scheme: {name} must be 1 to {_MOST_TURNS}, so that no priority starves; got {turns}"
                )

    @property
    def cycle(self) -> int:
        """The number of turns until the scheme starts over."""
        return self.high + self.low

    def wants_high(self, position: int) -> bool:
        """Whether the turn at ``position`` is for high priority.

        >>> [CountingScheme(2, 1).wants_high(p) for p in range(4)]
        [True, True, False, True]
        """
        return position % self.cycle < self.high

    @classmethod
    def parse(cls, text: str) -> CountingScheme:
        """Read a scheme as it is written in the configuration.

        >>> CountingScheme.parse("4, 1")
        CountingScheme(high=4, low=1)

        Raises:
            ValueError: the text is not two whole numbers of at least 1.
        """
        match = re.fullmatch(r"\s*(\d{1,9})\s*,\s*(\d{1,9})\s*", text)
        if match is None:
            raise ValueError(f"counting scheme: expected two numbers like '4,1' (high,low); got {text!r}")
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.high},{self.low}"

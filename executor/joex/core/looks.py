"""When to look again for what transactions have done that did not see who looks.

Who has said that it wants to be told of changes is told by all transactions that begin afterwards. One that was open
at that moment may have changed something without seeing that somebody wants to know, and its change is not seen before
it commits. Hence the horizon: a transaction id, taken afterwards (joex.horizon in SQL), that is younger than all of
these. Until they have ended one looks again: soon, for most end within milliseconds, and ever more seldom.
"""

from __future__ import annotations

from dataclasses import dataclass

FIRST = 0.005
"""Seconds until the first look."""
LATEST = 1.0
"""The longest time between two looks, in seconds."""


@dataclass(frozen=True, slots=True)
class Looks:
    """Looks that are still to be made.

    Attributes:
        horizon: transactions below this id may have seen nobody.
        look_in: seconds until the next look.
    """

    horizon: int
    look_in: float = FIRST

    def after(self, oldest_xid: int) -> Looks | None:
        """The looks that are to be made after one; None: the transactions have all ended.

        What was read in the snapshot in which they have ended, or later, is all that they did.

        Args:
            oldest_xid: the oldest transaction id that was open at the look.

        >>> looks = Looks(horizon=100)
        >>> looks.after(99)
        Looks(horizon=100, look_in=0.01)
        >>> looks.after(100) is None
        True
        """
        return None if oldest_xid >= self.horizon else Looks(self.horizon, min(self.look_in * 2, LATEST))

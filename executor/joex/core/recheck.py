"""The race between falling asleep and a transaction that is still open.

A transaction notifies the sleepers that it can see while it is open, and its changes can be seen only after its commit.
So a reader that announces its sleep while such a transaction is open misses its changes::

    reader                            submitter
    read: no job                      insert
                                      no sleeper: no notification
    announce "I sleep" (commit)
    read: no job                      (not committed yet)
    sleep ...                         commit                            <- without a notification

Transactions that begin after the announcement see it, and notify. For all others there is the horizon: a transaction
id, taken after the announcement (`joex.store.horizon.announce`), that is younger than each of these. Until they have
ended, the reader reads again: soon at first, because most transactions end within milliseconds, then less often. Only
this module decides when; executors, clients, waiting workers and the operator use it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

LONGEST = 1.0
"""The longest pause between two reads, in seconds."""


@dataclass(slots=True)
class Recheck:
    """The times to read again after an announcement. The first read is due at once.

    Attributes:
        horizon: transactions below this id may not have seen the announcement.
        pause: seconds from the next read to the one after it; it doubles each time.
        longest: the longest pause.
        due_at: when the next read is due, on the caller's clock; inf: never, because the race is settled.
    """

    horizon: int
    pause: float = 0.005
    longest: float = LONGEST
    due_at: float = -inf

    def settles(self, oldest_xid: int, now: float) -> bool:
        """Whether all transactions below the horizon had ended; otherwise the next read is due after the pause.

        A snapshot in which they have ended, or a later one, shows all their changes.

        Args:
            oldest_xid: the oldest transaction id that was open in that snapshot.
            now: the caller's clock.

        >>> recheck = Recheck(horizon=100)
        >>> recheck.settles(99, now=7.0), recheck.due_at, recheck.pause
        (False, 7.005, 0.01)
        >>> recheck.settles(100, now=8.0), recheck.due_at
        (True, inf)
        """
        if oldest_xid >= self.horizon:
            self.due_at = inf
            return True
        self.due_at = now + self.pause
        self.pause = min(self.pause * 2, self.longest)
        return False

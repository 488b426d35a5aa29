"""The trouble of a service with the database: when it tries again, and which of its failures are worth a log line.

In an outage each try of each service of each executor fails. Metrics count every failure. A line says when the trouble
begins, when its reason changes, once a minute for how long it has lasted, and when it is over.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from joex.core.events import DatabaseTrouble, Emit, TroubleOver

FIRST_RETRY, LONGEST_RETRY = 0.1, 2.0
"""Seconds; `Trouble` doubles the one up to the other."""

_AGAIN_AFTER = 60.0  # seconds until the same reason is worth another line
_NEXT_AFTER = 10.0  # seconds, if the trouble ended between the two: it may come and go many times a second


class Trouble:
    """The trouble of one service. All calls come from one thread.

    Args:
        service: the name of the service, in events.
        emit: receives the events.
        first, longest: seconds until the next try, after the first failure and after many.
        clock: tells seconds.
    """

    def __init__(
        self,
        service: str,
        emit: Emit,
        *,
        first: float = FIRST_RETRY,
        longest: float = LONGEST_RETRY,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._service = service
        self._emit = emit
        self._first = first
        self._longest = longest
        self._clock = clock
        self._since: float | None = None  # the first failure since the last success
        self._failures = 0
        self._is_told = False  # of this trouble there is a line
        self._reasons: set[str] = set()  # those that have a line,
        self._told_at = float("-inf")  # since this time

    def failed(self, error: object, retry_in: float | None = None) -> float:
        """Report that a try failed; returns after how many seconds to try again (``retry_in``, if the caller knows)."""
        now, reason = self._clock(), str(error)
        if self._since is None:
            self._since, self._failures, self._is_told = now, 0, False
        if retry_in is None:
            # Of random length, so that hundreds of executors do not come together when the database is back.
            most = min(self._first * 2.0 ** min(self._failures, 16), self._longest)
            retry_in = most * random.uniform(0.5, 1)  # noqa: S311 - there is no secret
        self._failures += 1
        if now - self._told_at >= (_AGAIN_AFTER if self._is_told else _NEXT_AFTER):
            self._reasons, self._told_at = set(), now
        is_news = reason not in self._reasons
        if is_news:
            self._reasons.add(reason)
            self._is_told = True
        self._emit(DatabaseTrouble(self._service, reason, retry_in, now - self._since, is_news=is_news))
        return retry_in

    def over(self) -> None:
        """Report that a try succeeded."""
        if self._since is None:
            return
        lasted, self._since = self._clock() - self._since, None
        if self._is_told:
            self._emit(TroubleOver(self._service, lasted))

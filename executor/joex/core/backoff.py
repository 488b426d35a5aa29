"""The delay before the retry of a failed job."""

from __future__ import annotations

from datetime import timedelta

LONGEST = timedelta(days=7)
"""No delay is longer: a job with many retries still moves, and the arithmetic can't overflow."""


def retry_delay(
    first: timedelta, failures: int, longest: timedelta = LONGEST, *, jitter: float = 0.0, chance: float = 0.0
) -> timedelta:
    """The delay after the ``failures``-th failed run: ``first * 2 ** (failures - 1)``, at most ``longest``.

    Exponential back-off as in Docspell's ADR 0005: ``first`` is the delay before the second try. Jobs that fail
    together would all come back at one moment; so each delay is longer by a share of up to ``jitter`` (0.1: a tenth),
    which ``chance`` (a random number from 0 to 1) decides. It is never shorter, so that a failing service has this time
    to recover.

    >>> [retry_delay(timedelta(minutes=1), n).total_seconds() for n in (1, 2, 3, 4)]
    [60.0, 120.0, 240.0, 480.0]
    """
    if failures < 1:
        raise ValueError(f"failures: there is no delay before the first failure; got {failures}")
    if first <= timedelta(0):
        return timedelta(0)
    # A delay that doubles more often than this is beyond `longest` whatever `first` is.
    doublings = min(failures - 1, 64)
    seconds = min(first.total_seconds() * 2.0**doublings, longest.total_seconds())
    return timedelta(seconds=seconds * (1 + jitter * chance))

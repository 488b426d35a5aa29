"""The history of a pool, which its stabilization windows and policies need from one reconcile to the next.

The operator stores it in the status. It is small: empty while the pool has its desired size, and at most some thirty
marks for each window. For that, times are rounded up to a thirtieth of a window: a window may last that much longer,
never shorter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

Mark: TypeAlias = tuple[float, int]
"""A time, in seconds since the epoch, and a number of executors."""

_STEPS = 30


@dataclass(frozen=True, slots=True)
class History:
    """The history of a pool.

    Attributes:
        below: since the pool became larger than wanted: the largest wanted sizes, by time, the larger ones first.
        above: since it became smaller than wanted: the smallest wanted sizes.
        changes: executors added (positive) and drained (negative) within the longest period of a policy.
        unknown_since: when the demand became unknown; None: it is known.
        size: the desired size during a rollout, beyond which replacements start; None: there is no rollout.
    """

    below: tuple[Mark, ...] = ()
    above: tuple[Mark, ...] = ()
    changes: tuple[Mark, ...] = ()
    unknown_since: float | None = None
    size: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """The history as JSON."""
        marks = {"below": self.below, "above": self.above, "changes": self.changes}
        stored: dict[str, Any] = {name: [list(mark) for mark in some] for name, some in marks.items() if some}
        numbers = {"unknownSince": self.unknown_since, "size": self.size}
        return {**stored, **{name: number for name, number in numbers.items() if number is not None}}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any] | None) -> History:
        """Read what `to_dict` wrote. An invalid history reads as empty: its windows start over."""
        stored = stored or {}
        try:
            below, above, changes = (_marks(stored.get(name, ())) for name in ("below", "above", "changes"))
            since, size = stored.get("unknownSince"), stored.get("size")
            known_since = None if since is None else float(since)
            return cls(below, above, changes, known_since, None if size is None else int(size))
        except (TypeError, ValueError, AttributeError):
            return cls()

    def by_clock(self, now: float, *, down: float, up: float, longest_period: float) -> History:
        """The history with no time later than now gives, for the windows and the longest period of the policies.

        The clock that gave a later one was ahead, maybe by a year: what it told counts as of now, once.
        """
        return replace(
            self,
            below=_by_clock(self.below, now, down),
            above=_by_clock(self.above, now, up),
            changes=_by_clock(self.changes, now, longest_period),
            unknown_since=None if self.unknown_since is None else min(self.unknown_since, now),
        )

    def with_change(self, executors: int, now: float, longest_period: float) -> History:
        """The history after so many executors were added, or (negative) drained."""
        marks = [mark for mark in self.changes if mark[0] + longest_period > now]
        if executors and longest_period:
            marks.append((_round_up(now, longest_period), executors))
        kept: dict[tuple[float, bool], int] = {}
        for at, n in marks:
            kept[at, n > 0] = kept.get((at, n > 0), 0) + n
        return replace(self, changes=tuple(sorted((at, n) for (at, _), n in kept.items())))

    def changed(self, now: float, period: float) -> int:
        """How many executors the pool gained (negative: lost) within the last period."""
        return sum(n for at, n in self.changes if at + period > now)


def largest_lately(
    marks: tuple[Mark, ...], *, size: int, wanted: int, now: float, window: float
) -> tuple[tuple[Mark, ...], int, float]:
    """The largest size that was wanted within the window, while less than the present size is wanted.

    The marks are a monotone queue: a mark goes when a later one is at least as large, so that the first is the largest.
    When less is wanted for the first time, the present size counts as wanted until now.

    Returns:
        the marks to store, the largest size (at most the present one), and when the first mark leaves the window.
    """
    stamp = _round_up(now, window)
    kept = [mark for mark in marks or ((stamp, size),) if mark[1] > wanted and mark[0] + window > now]
    if not kept or kept[-1][0] < stamp:
        kept.append((stamp, wanted))
    return tuple(kept), min(size, kept[0][1]), kept[0][0] + window


def smallest_lately(
    marks: tuple[Mark, ...], *, size: int, wanted: int, now: float, window: float
) -> tuple[tuple[Mark, ...], int, float]:
    """The smallest size that was wanted within the window, while more is wanted; see `largest_lately`."""
    kept, largest, until = largest_lately(_negative(marks), size=-size, wanted=-wanted, now=now, window=window)
    return _negative(kept), -largest, until


def _marks(stored: Iterable[Any]) -> tuple[Mark, ...]:
    return tuple((float(at), int(executors)) for at, executors in stored)


def _by_clock(marks: tuple[Mark, ...], now: float, window: float) -> tuple[Mark, ...]:
    if not window:  # they count no more
        return marks
    latest = _round_up(now, window)
    return tuple((min(at, latest), executors) for at, executors in marks)


def _negative(marks: tuple[Mark, ...]) -> tuple[Mark, ...]:
    return tuple((at, -size) for at, size in marks)


def _round_up(now: float, window: float) -> float:
    step = window / _STEPS
    return round((now // step + 1) * step, 3)

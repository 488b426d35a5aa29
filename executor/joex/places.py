"""Places that many use and few can have at a time: who may have another one, and whose turn is next."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Hashable, Mapping
from contextlib import asynccontextmanager
from typing import Generic, Protocol, TypeVar

H = TypeVar("H", bound=Hashable)

_OF_FREE = 2
_FOR_NEW = 6


def leaves_some(_: object, has: int, free: int) -> bool:
    """A holder may have another one while it has fewer than twice as many as are free: alone it has two thirds of all.

    (Dynamic thresholds, Choudhury and Hahne 1998: a fixed limit would keep too many free for others that are not there,
    or too few. What has a place may take hours.) The last six are for those who have none: holders that come one after
    the other would leave ever fewer.
    """
    return not has or (has < _OF_FREE * free and free > _FOR_NEW)


class Turn(Protocol):
    """One who waits, as a future does."""

    def done(self) -> bool:
        """Whether it waits no more."""

    def set_result(self, result: None) -> None:
        """It has a place."""


class Places(Generic[H]):
    """Of those who wait, and may have one, whoever has fewest gets the next; of equals, each in turn.

    (With ``in_slots``, fewest for its slots: these follow the weights of groups.)

    Args:
        most: how many there are.
        may: whether a holder may have another one, by how many it has, and how many are free (at least one); None:
            each may.
        in_slots: how many slots each holder has.
    """

    def __init__(
        self,
        most: int,
        may: Callable[[H, int, int], bool] | None = None,
        in_slots: Callable[[], Mapping[H, int]] | None = None,
    ) -> None:
        self._free = most
        self._may_have = may
        self._in_slots = in_slots
        self._has: Counter[H] = Counter()
        self._waiting: dict[H, OrderedDict[Turn, None]] = {}  # (of a dict, each first one takes longer than the last)

    def _may(self, holder: H) -> bool:
        if self._free == 0 or self._may_have is None:
            return self._free > 0
        return self._may_have(holder, self._has[holder], self._free)

    def ask(self, holder: H, turn: Turn) -> bool:
        """Give this holder a place, now or later; returns whether it has one now."""
        # (This passes over nobody: none of those that wait may have one now, as `give_back` gives on what it can.)
        if self._may(holder):
            self._take(holder)
            turn.set_result(None)
            return True
        self._waiting.setdefault(holder, OrderedDict())[turn] = None
        return False

    @asynccontextmanager
    async def one_of(self, holder: H) -> AsyncIterator[None]:
        """Held while this holder has one."""
        if self._may(holder):
            self._take(holder)  # as `ask` does, without the cost of a turn
        else:
            turn = asyncio.get_running_loop().create_future()
            self.ask(holder, turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.cancelled():
                    self.leave(holder, turn)
                else:  # its turn has just come
                    self.give_back(holder)
                raise
        try:
            yield
        finally:
            self.give_back(holder)

    def _take(self, holder: H) -> None:
        self._free -= 1
        self._has[holder] += 1

    def give_back(self, holder: H) -> None:
        """Take a place from this holder, and give others what they may have now."""
        self._free += 1
        self._has[holder] -= 1
        if not self._has[holder]:
            del self._has[holder]
        if holder in self._waiting:
            self._waiting[holder] = self._waiting.pop(holder)  # behind its equals
        while (following := self._next()) is not None:
            turn = next(iter(self._waiting[following]))
            self.leave(following, turn)
            if not turn.done():  # (else it was cancelled a moment ago)
                self._take(following)
                turn.set_result(None)

    def leave(self, holder: H, turn: Turn) -> None:
        """Wait no more."""
        turns = self._waiting.pop(holder, OrderedDict())
        turns.pop(turn, None)
        if turns:
            self._waiting[holder] = turns  # behind its equals

    def _next(self) -> H | None:
        if not self._free or not self._waiting:
            return None
        slots = {} if self._in_slots is None else self._in_slots()
        # (Nearly always the first one may have it: hundreds may wait.)
        by_number = sorted(self._waiting, key=lambda each: self._has[each] / (slots.get(each) or 1))
        return next((each for each in by_number if self._may(each)), None)

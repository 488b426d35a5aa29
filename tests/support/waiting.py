"""Waiting for the expectations of a test: for events if there are any, otherwise for conditions in the database."""

import asyncio
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from joex.core.events import Event

E = TypeVar("E", bound=Event)

PATIENCE = 90.0
"""Seconds after which a test gives up and fails: many, because the machine may be busy. It makes no test
faster or slower."""

_PAUSES = (0.01, 0.1)
"""Seconds: the first and the longest pause between two polls."""


class NotInTime(AssertionError):
    """What a test waited for did not come. It may be true on a quicker machine, so such a test may run once more."""


async def eventually(
    predicate: Callable[[], Any],
    timeout: float = PATIENCE,  # noqa: ASYNC109 - it fails the test, no more
    *,
    why: str = "",
) -> Any:
    """Poll until the answer is true, and return it. For conditions without an event.

    Tests sleep nowhere else than in the short pause between two polls, which grows, because a poll costs more than a
    pause; the deadline only fails the test.

    Raises:
        NotInTime: it was not true in time.
    """
    deadline = asyncio.get_running_loop().time() + timeout
    pause = _PAUSES[0]
    while True:
        answer = predicate()
        value: Any = await answer if inspect.isawaitable(answer) else answer
        if value:
            return value
        if asyncio.get_running_loop().time() > deadline:
            raise NotInTime(f"not true within {timeout} seconds: {why or predicate}; the last answer: {value!r}")
        await asyncio.sleep(pause)
        pause = min(1.2 * pause, _PAUSES[1])


class EventLog:
    """Keeps all events of an executor, and lets a test wait for one: a `joex.core.events.Emit`.

    An event that came before a test began to wait for it counts, so a test can't miss it; ``after`` (the
    length of `events` at some moment) leaves the earlier ones out.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._arrived = asyncio.Event()

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        self._arrived.set()

    def of(self, kind: type[E], predicate: Callable[[E], bool] | None = None, *, after: int = 0) -> list[E]:
        """The events of a kind that came so far."""
        kept = [event for event in self.events[after:] if isinstance(event, kind)]
        return [event for event in kept if predicate is None or predicate(event)]

    def behind(self, event: Event) -> int:
        """The value of ``after`` for events that came after this one."""
        return 1 + next(place for place, found in enumerate(self.events) if found is event)

    async def wait_for(
        self,
        kind: type[E],
        predicate: Callable[[E], bool] | None = None,
        *,
        after: int = 0,
        count: int = 1,
        timeout: float = PATIENCE,  # noqa: ASYNC109 - it fails the test, no more
    ) -> E:
        """Wait for the ``count``-th event of a kind that fulfils the predicate, and return it.

        Raises:
            NotInTime: it did not come in time; the message lists all events.
        """
        try:
            async with asyncio.timeout(timeout):
                while len(found := self.of(kind, predicate, after=after)) < count:
                    self._arrived.clear()
                    await self._arrived.wait()
        except TimeoutError:
            seen = "\n".join(map(repr, self.events)) or "(none)"
            raise NotInTime(f"no {kind.__name__} within {timeout} seconds; the events were:\n{seen}") from None
        return found[count - 1]

    def __repr__(self) -> str:
        kinds: dict[str, Any] = {}
        for event in self.events:
            kinds[type(event).__name__] = kinds.get(type(event).__name__, 0) + 1
        return f"EventLog({kinds})"

"""Moves large arguments and results one by one, on connections that no service uses, and which groups share.

On a slow link each may take seconds: each has a time limit that fits its size, and delays only its own run.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import asyncpg

from joex.core.job import TakenJob
from joex.errors import InvalidJob, JoexError
from joex.store.errors import is_about_the_statement, translated
from joex.store.statement import Connection
from joex.trouble import Trouble

if TYPE_CHECKING:
    from asyncpg import Pool

T = TypeVar("T")
_Place: TypeAlias = tuple[str, str]

CONNECTIONS = 2
"""How many connections of an executor carry large arguments, and how many large results."""
SLOWEST = 500_000
"""Bytes a second; a slower transfer exceeds its limit."""
_MOST_KNOWN = 1000  # groups, before those are forgotten that owe nothing
_BASE = 5.0  # seconds, whatever the size
_TRIES = 3
_CANCEL_WITHIN = 2.0


class TooSlow(JoexError):
    """A transfer took too long, several times, although the database answers other statements."""


class Turns:
    """Places, such as the connections of one direction, which groups share by the time for which they have them.

    A group has none while another one with fewer of them waits; of equals the one comes next that has had them for the
    shortest time. (Start-time Fair Queuing, Goyal, Vin and Cheng 1996: a group that comes, or comes back, has no credit
    for the time in which it wanted none, and owes what it has had beyond the others.) One value of a group may take a
    hundred times as long as one of another.

    Args:
        clock: tells seconds.
        most: how many there are.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, most: int = CONNECTIONS) -> None:
        self._most = most
        self._clock = clock
        self._having: list[_Place] = []  # groups, each as often as it has one
        self._waiting: dict[_Place, deque[asyncio.Future[None]]] = {}  # the group that has waited for longest first
        self._had: dict[_Place, float] = {}  # seconds, counted from those of the group that was served last
        self._served = 0.0

    @asynccontextmanager
    async def of(self, group: _Place) -> AsyncIterator[None]:
        """Held while this group has one."""
        if len(self._having) < self._most:  # then nobody waits
            self._give(group)
        else:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(group, deque()).append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():  # its turn has just come
                    self._give_back(group)
                raise
        begun = self._clock()
        try:
            yield
        finally:
            self._had[group] += self._clock() - begun
            self._give_back(group)

    def _so_far(self, group: _Place) -> float:
        return max(self._had.get(group, 0.0), self._served)

    def _give(self, group: _Place) -> None:
        self._having.append(group)
        self._had[group] = self._served = self._so_far(group)

    def _give_back(self, group: _Place) -> None:
        self._having.remove(group)
        if len(self._had) > _MOST_KNOWN:
            self._had = {each: had for each, had in self._had.items() if had > self._served or each in self._having}
        while self._waiting:
            # (The first one of equals.)
            following = min(self._waiting, key=lambda each: (self._having.count(each), self._so_far(each)))
            turns = self._waiting.pop(following)
            turn = turns.popleft()
            if turns:
                self._waiting[following] = turns
            if not turn.done():  # (else it was cancelled)
                self._give(following)
                turn.set_result(None)
                return


class Bulk:
    """Moves large values of one direction over `CONNECTIONS` of this pool."""

    def __init__(self, pool: Pool[Any]) -> None:
        self._pool = pool
        self._turns = Turns()

    async def moved(self, job: TakenJob, size: int, move: Callable[[Connection], Awaitable[T]], trouble: Trouble) -> T:
        """Call ``move``, which moves this many bytes of a job over a connection, and return its value.

        Tries until it gets through. Only a statement that took too long, or that the database refuses, counts as a try:
        while the database is away, the value waits.

        Raises:
            TooSlow: the transfer took longer than its size explains, several times.
            InvalidJob: the database refuses the data.
            JoexError: the database refuses the statement, several times. (Some internal errors go away.)
        """
        limit, tries = _BASE + size / SLOWEST, 0
        while True:
            try:
                async with self._turns.of(job.tenant), _lent(self._pool) as connection:
                    try:
                        async with asyncio.timeout(limit):
                            value = await move(connection)
                    except TimeoutError:
                        tries += 1
                        raise
            except InvalidJob:
                raise
            except (JoexError, OSError) as error:
                if isinstance(error, JoexError) and is_about_the_statement(error):
                    tries += 1
                    if tries >= _TRIES:
                        raise
                elif tries == _TRIES:
                    raise TooSlow(f"did not get through within {limit:.0f} s, {_TRIES} times") from error
                await asyncio.sleep(trouble.failed(error))
            else:
                trouble.over()
                return value


@asynccontextmanager
async def _lent(pool: Pool[Any]) -> AsyncIterator[Connection]:
    """A connection for the time of a block. Cancels a statement that was given up: it may hold the job's row."""
    with translated():
        connection = await pool.acquire()
        try:
            yield connection
        except asyncio.CancelledError:
            with suppress(asyncpg.InterfaceError):  # it is gone already
                connection.terminate()  # no code needs its answer any more
            raise
        finally:
            with suppress(TimeoutError):  # then it is terminated
                await pool.release(connection, timeout=_CANCEL_WITHIN)

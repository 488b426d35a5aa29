"""Raises floors while vacuum can't clear the dead rows of jobs: see store/sql/25_floors.sql.

Nearly always there is nothing to do, and no query: `check_runs` reports when takes have to walk over dead rows. All
executors then check, and the one that has claimed this raises the floors: hundreds that did so would take the server's
CPU time from takes. If it ends, or a task blocks its loop, another one goes on when the claim has ended. Meanwhile
takes are slower, and that is all.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import datetime
from typing import TYPE_CHECKING, Any

from joex.core.events import Emit
from joex.errors import JoexError
from joex.store import executors, read_floors
from joex.store.database import borrowed
from joex.store.read_floors import Draw, Place
from joex.trouble import Trouble

if TYPE_CHECKING:
    import asyncpg

_EVERY = 1.0
_CROWD = 50  # jobs that finish in a group, or dead entries that a take meets there, before its floor is raised
_AT_ONCE = 50_000  # finished jobs that one check reads
_CLAIMED_FOR = 15.0  # seconds from the beginning of a check
_SECONDS = 0.05  # a check reads the groups one after another for so long, and the next check goes on from there


class ReadFloorKeeper:
    """The service that raises floors."""

    def __init__(self, pool: asyncpg.Pool[Any], emit: Emit) -> None:
        self._pool = pool
        self._emit = emit
        self._crowded = asyncio.Event()
        self._forget()

    def wake(self) -> None:
        """Check the floors: takes have to walk, or floors are on."""
        self._crowded.set()

    async def run(self) -> None:
        """Serve until cancelled."""
        trouble = Trouble("floors", self._emit)
        while True:
            await self._crowded.wait()
            self._crowded.clear()
            pause = _EVERY
            try:
                async with borrowed(self._pool) as connection:
                    if await read_floors.switch(connection):
                        self._crowded.set()  # (first: a search that fails does not keep floors where they are)
                        await self._raise(connection)
                    else:
                        self._forget()
                trouble.over()
            except (JoexError, OSError) as error:
                pause = trouble.failed(error)
            await asyncio.sleep(pause)

    def _forget(self) -> None:
        self._claim: int | None = None
        self._drawn: Draw | None = None
        self._seen: datetime | None = None
        self._crowds: Counter[Place] = Counter()
        self._rising: dict[Place, int] = {}
        self._after: Place = ("", 0)

    async def _raise(self, connection: Any) -> None:
        self._claim = await executors.claim(connection, "joex_private.floor_claims", _CLAIMED_FOR, self._claim)
        if self._claim is None:
            self._forget()
            return
        finished, self._seen = await read_floors.finished_since(connection, self._seen, _AT_ONCE)
        self._crowds.update(finished)
        if self._drawn is not None:
            # (The same groups until all are done: with those that get crowded meanwhile it might have no end.)
            self._rising = self._rising or {place: jobs for place, jobs in self._crowds.items() if jobs >= _CROWD}
            done = await read_floors.raise_floors(connection, self._drawn, list(self._rising))
            if done is None:
                return
            if done:
                self._crowds -= Counter(self._rising)
        self._drawn, self._rising = await read_floors.draw(connection), {}
        # (Finished jobs tell at once which groups they crowd, however many groups there are. Other changes leave no
        # trace but dead entries.)
        crowded, self._after = await read_floors.crowded_places(connection, self._after, _CROWD, _SECONDS)
        self._crowds.update(dict.fromkeys(crowded, _CROWD))

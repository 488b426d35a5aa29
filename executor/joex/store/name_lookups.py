"""Looks up the names of hosts, in threads of its own: the system's look-up can't be ended, and may take a minute.

asyncio would use threads that it has few of, for all else too. An operator looks up names that others have written: of
each owner, a namespace, some at a time, and the next one is of an owner that has fewest under way. Names that were
slow, as those are for which no server answers, get half of the threads at most, and with new ones, which may be slow,
three quarters.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
import time
from collections import Counter, OrderedDict
from contextlib import suppress
from contextvars import ContextVar
from typing import final

_MOST, _MOST_NOT_QUICK, _MOST_SLOW, _MOST_OF_ONE = 100, 75, 50, 4
"""Look-ups at a time: in all, of names that were not quick yet, or were slow, and of one owner. Each has a thread."""
_SLOW = 1.0
"""Seconds: a name whose latest look-up took longer comes after the others of its owner, and leaves them a turn."""
_KNOWN_NAMES = 10_000
_RANKS = _QUICK, _NEW, _IS_SLOW = range(3)

OWNER: ContextVar[str] = ContextVar("owner", default="")
"""Whose look-ups are those of this task, and of the tasks that it starts."""

_Waiting = tuple[asyncio.AbstractEventLoop, "asyncio.Future[list[str]]"]


def resolve(name: str) -> list[str]:
    """The addresses of a host.

    Raises:
        OSError: the system finds none.
    """
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except ValueError as error:  # such as a part of more than 63 characters
        raise socket.gaierror(socket.EAI_NONAME, "this can't be the name of a host") from error
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


@final
class NameLookups:
    """Look-ups for any number of event loops. Who asks for a name that is being looked up waits for that look-up."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads = 0
        self._asking: dict[tuple[str, str], list[_Waiting]] = {}
        self._names: dict[str, OrderedDict[str, None]] = {}
        self._under_way: Counter[str] = Counter()
        self._turns: list[OrderedDict[str, None]] = [OrderedDict() for _ in range(len(_RANKS) * _MOST_OF_ONE)]
        """The owners whose next name may be looked up, by how many they have under way, and by its rank."""
        self._ranks: dict[str, int] = {}
        """Of names that are not new."""
        self._of_rank = [0 for _ in _RANKS]
        """How many look-ups are under way."""

    async def addresses(self, name: str) -> list[str]:
        """The addresses of a host.

        Raises:
            OSError: the system finds none.
        """
        loop, owner = asyncio.get_running_loop(), OWNER.get()
        found: asyncio.Future[list[str]] = loop.create_future()
        with self._lock:
            asking = self._asking.setdefault((owner, name), [])
            asking.append((loop, found))
            if len(asking) == 1:
                names = self._names.setdefault(owner, OrderedDict())
                names[name] = None
                names.move_to_end(name, last=self._rank(name) == _IS_SLOW)
                self._give_turn(owner)
            if self._threads < _MOST and any(self._turns):
                threading.Thread(target=self._look_up, name="joex look-up", daemon=True).start()
                self._threads += 1
        return await found

    def _rank(self, name: str) -> int:
        return self._ranks.get(name, _NEW)

    def _give_turn(self, owner: str) -> None:
        """Put an owner where its number of look-ups puts it: behind the others with as many."""
        for turns in self._turns:
            turns.pop(owner, None)
        under_way = self._under_way[owner]
        if not under_way:
            del self._under_way[owner]
        if names := self._names.get(owner):
            rank = self._rank(next(iter(names)))
            if under_way < _MOST_OF_ONE - (rank == _IS_SLOW):
                self._turns[len(_RANKS) * under_way + rank][owner] = None

    def _look_up(self) -> None:
        while (turn := self._next()) is not None:
            began = time.monotonic()
            try:
                found: list[str] | OSError = resolve(turn[1])
            except OSError as error:
                found = error
            for loop, waiting in self._ended(*turn, is_slow=time.monotonic() - began > _SLOW):
                with suppress(RuntimeError):  # its loop has ended
                    loop.call_soon_threadsafe(_tell, waiting, found)

    def _next(self) -> tuple[str, str, int] | None:
        """The owner and the name that are next, and its rank; None: there is none, and the thread ends."""
        with self._lock:
            worst = _IS_SLOW if self._of_rank[_IS_SLOW] < _MOST_SLOW else _NEW
            worst = worst if sum(self._of_rank[_NEW:]) < _MOST_NOT_QUICK else _QUICK
            turns = next((some for nr, some in enumerate(self._turns) if some and nr % len(_RANKS) <= worst), None)
            if turns is None:
                self._threads -= 1
                return None
            owner, _ = turns.popitem(last=False)
            name, _ = self._names[owner].popitem(last=False)
            if not self._names[owner]:
                del self._names[owner]
            self._under_way[owner] += 1
            rank = self._rank(name)
            self._of_rank[rank] += 1
            self._give_turn(owner)
            return owner, name, rank

    def _ended(self, owner: str, name: str, rank: int, *, is_slow: bool) -> list[_Waiting]:
        """Note the end of a look-up; returns who waits for it."""
        with self._lock:
            if len(self._ranks) >= _KNOWN_NAMES:
                self._ranks.clear()
            self._ranks[name] = _IS_SLOW if is_slow else _QUICK
            self._of_rank[rank] -= 1
            self._under_way[owner] -= 1
            self._give_turn(owner)
            return self._asking.pop((owner, name))


def _tell(waiting: asyncio.Future[list[str]], found: list[str] | OSError) -> None:
    if waiting.done():  # it waits no more
        return
    if isinstance(found, OSError):
        waiting.set_exception(found)
    else:
        waiting.set_result(found)


LOOKUPS = NameLookups()
"""Those of this process."""
if sys.platform != "win32":
    # A forked process has none of the threads, and a thread of its parent may have held the lock.
    os.register_at_fork(after_in_child=LOOKUPS.__init__)

"""What users do to jobs: to one, or to all that match a filter.

An act on many jobs goes on in this process when its user has closed the page. It handles job after job, each in a
transaction of its own, so that no job waits for another. The audit has a line for the act when it begins, with its
filter and the number that the user has confirmed, a line for each job that it changes, and one when it ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID, uuid4

from joex.client.client import Client
from joex.core.job import State
from joex.errors import DatabaseUnavailable, JoexError
from joex.http.caller import Caller, acting
from joex.http.errors import told
from joex.http.turns import Line
from joex.store import audit, jobs, keyed
from joex.store.errors import Locked
from joex.store.jobs import Job
from joex.store.search import Search, search_jobs
from joex.store.statement import Connection

StillValid = Callable[[], Awaitable[bool]]

_log = logging.getLogger("joex")
_OPEN = (State.SCHEDULED, State.RUNNING, State.WAITING, State.STUCK)
_ENDED = (State.SUCCESS, State.FAILED, State.CANCELLED)
_PAGE = 200
_PAUSE = 1.0
MOST_RUNNING = 4
"""Acts of a user that go on at the same time."""
_MOST_KEPT = 100
"""Acts of a user that have ended."""
_MOST_KEPT_OF_ALL = 1_000
"""Acts of all users that have ended."""


@dataclass(frozen=True, slots=True)
class Act:
    """What can be done to a job.

    Attributes:
        do: does it; returns what was done: ``unchanged``: nothing.
        states: the states of jobs that it changes.
        label: of its button.
        is_done: whether a job is so already.
    """

    do: Callable[[Connection, UUID], Awaitable[str]]
    states: tuple[State, ...]
    label: str
    is_done: Callable[[Job], bool] = lambda _: False

    def can(self, job: Job) -> bool:
        """Whether it would change this job."""
        return job.state in self.states and not self.is_done(job)


async def _cancel(connection: Connection, job_id: UUID) -> str:
    return await jobs.cancel(connection, job_id)


async def _retry(connection: Connection, job_id: UUID) -> str:
    return "retried" if await jobs.retry(connection, job_id) else "unchanged"


async def _high(connection: Connection, job_id: UUID) -> str:
    return "high" if await jobs.set_priority(connection, job_id, "high") else "unchanged"


async def _low(connection: Connection, job_id: UUID) -> str:
    return "low" if await jobs.set_priority(connection, job_id, "low") else "unchanged"


async def _delete(connection: Connection, job_id: UUID) -> str:
    if not await jobs.lock_ended(connection, job_id):  # it was retried meanwhile
        return "unchanged"
    return "deleted" if await keyed.remove(connection, job_id) == "ok" else "unchanged"


ACTS = {
    "cancel": Act(_cancel, _OPEN, "Cancel", lambda job: job.cancel_requested),
    "retry": Act(_retry, (State.FAILED, State.CANCELLED), "Run again"),
    "run_now": Act(_retry, (State.WAITING, State.STUCK), "Run now", lambda job: job.due_at is None),
    "high": Act(_high, (State.WAITING,), "High priority", lambda job: job.priority == "high"),
    "low": Act(_low, (State.WAITING,), "Low priority", lambda job: job.priority == "low"),
    "delete": Act(_delete, _ENDED, "Delete"),
}
_NOTHING = frozenset({"unchanged", "finished", "not_found"})


@dataclass(slots=True)
class BulkAct:
    """An act on many jobs.

    Attributes:
        act: the name of the act.
        given: the filter, as the user has given it.
        expected: how many jobs the user has confirmed: it changes no more.
        is_all: whether these were all that matched: the console counts no more than the first ones.
        caller: the key of the user.
        changed: how many jobs it has changed.
        skipped: how many it has found in another state by then, or held by another transaction.
        is_stopped: whether the user has stopped it, or the user's token is no longer valid: it changes no further job.
        is_over: whether it has ended.
        trouble: why it has ended before all jobs were handled; None: it has not.
    """

    act: str
    given: Mapping[str, Any]
    expected: int
    is_all: bool
    caller: str
    changed: int = 0
    skipped: int = 0
    is_stopped: bool = False
    is_over: bool = False
    trouble: str | None = None


class BulkActs:
    """The acts on many jobs in this process: those that go on, and the latest ones of each user that have ended.

    Args:
        client: changes the jobs.
        acts: where each change waits for its turn.
        searches: likewise what finds the jobs.
        on_end: called with the key of its user when an act has ended.
    """

    def __init__(self, client: Client, acts: Line, searches: Line, on_end: Callable[[str], None]) -> None:
        self._client, self._acts, self._searches = client, acts, searches
        self._on_end = on_end
        self._known: dict[UUID, BulkAct] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def find(self, act_id: UUID, caller: Caller) -> BulkAct | None:
        """An act by its id, for the user who has begun it."""
        found = self._known.get(act_id)
        return found if found is not None and found.caller == caller.key else None

    async def begin(self, bulk: BulkAct, wanted: Search, caller: Caller, still_valid: StillValid) -> UUID | None:
        """Begin an act on all jobs that match.

        Args:
            bulk: the act.
            wanted: the filter.
            caller: the user.
            still_valid: tells whether the user's token is; the act stops when it is not.

        Returns:
            Its id; None: `MOST_RUNNING` acts of the user go on.
        """
        own = {act_id: known for act_id, known in self._known.items() if known.caller == caller.key}
        ended = [act_id for act_id, known in own.items() if known.is_over]
        if len(own) - len(ended) >= MOST_RUNNING:
            return None
        for act_id in ended[:-_MOST_KEPT]:
            del self._known[act_id]
        for act_id in [act_id for act_id, known in self._known.items() if known.is_over][:-_MOST_KEPT_OF_ALL]:
            del self._known[act_id]
        act_id = uuid4()
        self._known[act_id] = bulk
        try:
            async with acting(self._client, caller) as connection:
                detail = {"filter": bulk.given, "confirmed": bulk.expected}
                await audit.note(connection, f"{bulk.act}_all", str(act_id), detail)
        except BaseException:
            del self._known[act_id]
            raise
        running = self._run_to_end(act_id, bulk, wanted, caller, still_valid)
        task = asyncio.create_task(running, name=f"joex console {bulk.act} all")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return act_id

    async def _run_to_end(
        self, act_id: UUID, bulk: BulkAct, wanted: Search, caller: Caller, still_valid: StillValid
    ) -> None:
        with _keeping_trouble(bulk, caller):
            await self._run(bulk, wanted, caller, still_valid)
        with _keeping_trouble(bulk, caller):
            await self._note_end(act_id, bulk, caller)
        bulk.is_over = True
        self._on_end(caller.key)
        _log.info("%s: %s all: %d jobs changed, %d skipped", caller.name, bulk.act, bulk.changed, bulk.skipped)

    async def _run(self, bulk: BulkAct, wanted: Search, caller: Caller, still_valid: StillValid) -> None:
        act, cursor, is_done = ACTS[bulk.act], None, False
        handled: set[UUID] = set()  # of the page, which is read again when the database was away
        states = [state for state in act.states if wanted.states is None or state in wanted.states]
        wanted = replace(wanted, states=states)
        while not is_done:
            try:
                async with self._searches.turn_of(caller.tenant), self._client.using() as connection:
                    page = await search_jobs(connection, wanted, cursor, _PAGE)
                for job in page.jobs:
                    async with self._acts.turn_of(caller.tenant):
                        bulk.is_stopped = bulk.is_stopped or not await still_valid()
                        can = act.can(job) and job.id not in handled
                        if can and bulk.changed < bulk.expected and not bulk.is_stopped:
                            await self._do(act, bulk, job.id, caller)
                            handled.add(job.id)
                cursor, handled = page.next, set()
                is_done = cursor is None or bulk.changed >= bulk.expected or bulk.is_stopped
            except DatabaseUnavailable:
                await asyncio.sleep(_PAUSE)

    async def _do(self, act: Act, bulk: BulkAct, job_id: UUID, caller: Caller) -> None:
        try:
            async with acting(self._client, caller) as connection:
                done = await act.do(connection, job_id)
        except JoexError as error:  # another job has its tracker, or another transaction holds it
            if isinstance(error, DatabaseUnavailable) and not isinstance(error, Locked):
                raise
            done = "unchanged"
        if done in _NOTHING:
            bulk.skipped += 1
        else:
            bulk.changed += 1

    async def _note_end(self, act_id: UUID, bulk: BulkAct, caller: Caller) -> None:
        detail = {"filter": bulk.given, "changed": bulk.changed, "skipped": bulk.skipped}
        if bulk.is_stopped:
            detail["stopped"] = True
        if bulk.trouble is not None:
            detail["trouble"] = bulk.trouble
        while True:
            try:
                async with acting(self._client, caller) as connection:
                    await audit.note(connection, f"{bulk.act}_all", str(act_id), detail)
            except DatabaseUnavailable:
                await asyncio.sleep(_PAUSE)
            else:
                return


@contextmanager
def _keeping_trouble(bulk: BulkAct, caller: Caller) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # noqa: BLE001 - it is in the log, and on the page of the act
        _log.exception("%s: %s all ends early", caller.name, bulk.act)
        bulk.trouble = bulk.trouble or told(error, caller)

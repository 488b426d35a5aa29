"""Executors as processes of this machine: a `fleet.Fleet` without a cluster.

A slot is a process that is started again whenever it ends by itself (see `slot`), until the slot is deleted.
Its uid stands for both the Deployment and the pod: a process that is started again has the jobs of the one before at
once. Nothing of this is stored: what ends with ``joex up``, its processes, drains then, and the next one finds in the
database who has not left yet.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import uuid4

from joex.cli.parent_watch import ParentWatch
from joex.cli.sigterm import TOLD_TO_END
from joex_operator.api.names import slot_name
from joex_operator.api.objects import Pool, Ref
from joex_operator.control.fleet import FleetError, UrlUnknown
from joex_operator.decide.events import Event
from joex_operator.decide.slots import Slot
from joex_operator.local.environment import environment, template_hash
from joex_operator.local.slot import SlotProcess

_BEYOND_DRAIN = 30.0
"""Seconds a process has beyond its drain, to give jobs back and to say that it leaves."""
_REMEMBERED_FOR = 60.0
"""Seconds in which it is said of a process that it is gone. Then the lease of its executor has to show it."""
_IN_ORDER = (0, TOLD_TO_END, -signal.SIGTERM)
"""How a process ends that has left nothing behind: drained; or asked to end before it had begun anything."""


class Output(Protocol):
    """Where people see what happens."""

    def event(self, kind: str, name: str, event: Event) -> None:
        """Something has happened to an object."""

    def log_line(self, slot: str, line: str) -> None:
        """A process has printed a line."""


@dataclass(slots=True)
class _Entry:
    """A slot. ``pool`` is what was asked for when it was made."""

    pool: Pool
    index: int
    uid: str
    template: str
    process: SlotProcess
    is_deleted: bool = False

    def end(self) -> None:
        self.is_deleted = True
        self.process.end(self.pool.spec.drain.timeout.total_seconds() + _BEYOND_DRAIN)

    def slot(self) -> Slot:
        has_ended = self.process.has_ended
        return Slot(
            name=self.process.slot,
            index=self.index,
            uid=None if self.is_deleted else self.uid,
            template=self.template,
            problem=self.process.problem,
            crashing=self.process.is_backing_off,
            pods=() if has_ended else (self.uid,),
            gone=(self.uid,) if has_ended else (),
        )


class ProcessFleet:
    """The processes of the pools of one ``joex up``. To be used on one event loop.

    Args:
        urls: the URLs of databases, by the name of their secret.
        default_url: of all others; None: they have none.
        log_format: of the executors, where spec.template says nothing else.
        output: where people see what happens.
        changed: called with namespace and pool when something of a pool has changed.
    """

    def __init__(
        self,
        urls: Mapping[str, str],
        default_url: str | None,
        *,
        log_format: str,
        output: Output,
        changed: Callable[[str, str], None],
    ) -> None:
        self._urls = urls
        self._default_url = default_url
        self._inherited = {**os.environ, "JOEX_LOG_FORMAT": log_format}
        self._output = output
        self._changed = changed
        self._lifeline = ParentWatch()
        self._pools: set[str] = set()
        self._entries: dict[str, _Entry] = {}
        self._statuses: dict[tuple[str, str], Mapping[str, Any]] = {}

    def template(self, pool: Pool) -> str:
        """The hash of the template that new slots of the pool are made with."""
        return template_hash(pool)

    def slots(self, pool: Pool) -> list[Slot]:
        """The slots of a pool that have a process, or had one a moment ago that did not leave in order."""
        return [entry.slot() for entry in self._entries.values() if entry.pool.name == pool.name]

    async def create(self, pool: Pool, index: int) -> None:
        """Start the process of a slot, unless there is one, or its pool is at its end by now."""
        name = slot_name(pool.name, index)
        entry = self._entries.get(name)
        if pool.name not in self._pools or (entry is not None and not entry.process.has_ended):
            return
        try:
            url = await self.database_url(pool)
        except UrlUnknown as error:
            raise FleetError(f"{name}: {error.message}") from error
        uid = str(uuid4())
        variables = environment(pool, index, uid=uid, url=url, inherited=self._inherited)
        process = SlotProcess(name, ["executor", "--app", pool.spec.app], self._lifeline, variables, self)
        self._entries[name] = _Entry(pool, index, uid, template_hash(pool), process)

    async def delete(self, pool: Pool, slot: str, uid: str) -> None:
        """Let a slot's process end, and do not start it again."""
        del pool
        entry = self._entries.get(slot)
        if entry is not None and entry.uid == uid:
            entry.end()

    async def update(self, pool: Pool, slot: str, uid: str) -> None:
        """Nothing: a slot always has one process."""

    async def is_clear(self, pool: Pool, slot: str) -> bool:
        """Whether a slot has no process any more. Then it is forgotten here too."""
        del pool
        entry = self._entries.get(slot)
        if entry is not None and entry.process.has_ended:
            del self._entries[slot]
        return slot not in self._entries

    async def database_url(self, pool: Pool) -> str:
        """The URL of a pool's database, as the command line has it."""
        secret = pool.spec.database.secret_name
        url = self._urls.get(secret, self._default_url)
        if url is None:
            raise UrlUnknown("UrlUnknown", f"no URL is given for the database {secret!r}: --database {secret}=URL")
        return url

    def doubt_url(self, pool: Pool) -> None:
        """Nothing: it stays what the command line says."""

    def status(self, ref: Ref) -> Mapping[str, Any]:
        """The status of an object."""
        return self._statuses.get((ref.kind, ref.name), {})

    async def set_status(self, ref: Ref, status: Mapping[str, Any]) -> None:
        """Remember the status of an object."""
        self._statuses[ref.kind, ref.name] = status

    async def tell(self, ref: Ref, events: Sequence[Event]) -> None:
        """Show events."""
        for event in events:
            self._output.event(ref.kind, ref.name, event)

    # The beginning and the end of a pool.

    def begin(self, pool: str) -> None:
        """From now on, a pool may have processes."""
        self._pools.add(pool)

    def running(self) -> list[str]:
        """The slots whose processes have not ended."""
        return [name for name, entry in self._entries.items() if not entry.process.has_ended]

    async def end(self, pool: str | None = None) -> None:
        """Let the processes of a pool (None: of all) drain, and wait until they have ended."""
        self._pools -= self._pools if pool is None else {pool}
        entries = [entry for entry in self._entries.values() if pool in (None, entry.pool.name)]
        for entry in entries:
            entry.end()
        await asyncio.gather(*(entry.process.ended() for entry in entries))

    def forget(self, kind: str, name: str) -> None:
        """An object is gone: forget its status."""
        self._statuses.pop((kind, name), None)

    def hurry(self) -> None:
        """Let the processes that drain give their jobs back at once."""
        for entry in self._entries.values():
            entry.process.signal(signal.SIGTERM)

    # What processes tell.

    def said(self, slot: str, line: str) -> None:
        """A process has printed a line."""
        self._output.log_line(slot, line)

    def failed(self, slot: str, problem: str, again_in: float) -> None:
        """A process has ended by itself."""
        pool = self._entries[slot].pool
        when = f"again in {again_in:g} s" if again_in else "again now"
        self._output.event("JoexPool", pool.name, Event("Warning", "ExecutorEnded", f"{slot}: {problem}; {when}"))
        self._changed(pool.namespace, pool.name)

    def ended(self, slot: str) -> None:
        """A process has ended, as it was asked to."""
        entry = self._entries[slot]
        if entry.process.exit_code in _IN_ORDER:
            del self._entries[slot]
        else:
            asyncio.get_running_loop().call_later(_REMEMBERED_FOR, self._forget, slot, entry.uid)
        self._changed(entry.pool.namespace, entry.pool.name)

    def _forget(self, slot: str, uid: str) -> None:
        entry = self._entries.get(slot)
        if entry is not None and entry.uid == uid:
            del self._entries[slot]
            self._changed(entry.pool.namespace, entry.pool.name)

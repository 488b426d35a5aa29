"""A fleet of processes on this machine.

A replica is a process that restarts whenever it ends by itself (see `replica`), until the replica is deleted. Its uid
stands for both the Deployment and the pod, so a restarted process gets the jobs of its predecessor at once. Nothing of
this is stored: when ``joex up`` ends, its processes drain, and the next ``joex up`` finds in the database the executors
that have not left yet.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol
from uuid import uuid4

from joex.cli.parent_watch import ParentWatch
from joex.cli.sigterm import TOLD_TO_END
from joex_operator.api.names import replica_name
from joex_operator.api.objects import Pool, Ref
from joex_operator.control.fleet import FleetError, UrlUnknown
from joex_operator.decide.events import Event
from joex_operator.decide.replicas import Replica
from joex_operator.local.environment import environment, template_hash
from joex_operator.local.replica import ReplicaProcess

_BEYOND_DRAIN = 30.0
"""Seconds beyond drain.timeout in which an executor gives its jobs back and deregisters."""
_REMEMBERED_FOR = 60.0
"""Seconds for which the fleet reports an ended process as gone. Later the lease of its executor shows it."""
_IN_ORDER = (0, TOLD_TO_END, -signal.SIGTERM)
"""The exit codes of a process that holds no jobs: it has drained, or got SIGTERM before it registered."""


class Output(Protocol):
    """Shows users what happens."""

    def event(self, kind: str, name: str, event: Event) -> None:
        """Show an Event of an object."""

    def log_line(self, replica: str, line: str) -> None:
        """A process has printed a line."""


@dataclass(slots=True)
class _Entry:
    """A replica. ``pool``: its pool at the time of its creation."""

    pool: Pool
    index: int
    uid: str
    template: str
    process: ReplicaProcess
    is_deleted: bool = False

    def end(self) -> None:
        self.is_deleted = True
        self.process.end(self.pool.spec.drain.timeout.total_seconds() + _BEYOND_DRAIN)

    def replica(self) -> Replica:
        has_ended = self.process.has_ended
        return Replica(
            name=self.process.replica,
            index=self.index,
            uid=None if self.is_deleted else self.uid,
            template=self.template,
            problem=self.process.problem,
            crashing=self.process.is_backing_off,
            ready_since=self.process.running_since,
            pods=() if has_ended else (self.uid,),
            gone=(self.uid,) if has_ended else (),
        )


class ProcessFleet:
    """The processes of all pools of a ``joex up``. Use it on one event loop.

    Args:
        urls: the URLs of databases, by the names of their secrets.
        default_url: of all other databases; None: they have none.
        log_format: of the executors, unless spec.template sets another.
        output: shows users what happens.
        changed: called with the namespace and name of a pool when one of its processes has changed.
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
        self._parent_watch = ParentWatch()
        self._pools: set[str] = set()
        self._entries: dict[str, _Entry] = {}
        self._statuses: dict[tuple[str, str], Mapping[str, Any]] = {}

    def home(self, namespace: str) -> str:
        """The name of this ``joex up``."""
        return namespace

    def now(self) -> datetime:
        """See `Fleet.now`: the clock of this host, which the processes share."""
        return datetime.now(UTC)

    def template(self, pool: Pool) -> str:
        """See `Fleet.template`."""
        return template_hash(pool)

    def replicas(self, pool: Pool) -> list[Replica]:
        """The replicas of a pool that have a process, or had one a moment ago that did not drain."""
        return [entry.replica() for entry in self._entries.values() if entry.pool.name == pool.name]

    def taken(self, pool: Pool) -> frozenset[int]:
        """None: all names are this fleet's own."""
        del pool
        return frozenset()

    async def check(self, pool: Pool) -> None:
        """Do nothing: a process has no field that `template` has not checked."""

    async def create(self, pool: Pool, index: int) -> None:
        """Start the process of a replica, unless it has one or its pool is being removed."""
        name = replica_name(pool.name, index)
        entry = self._entries.get(name)
        if pool.name not in self._pools or (entry is not None and not entry.process.has_ended):
            return
        try:
            url = await self.database_url(pool)
        except UrlUnknown as error:
            raise FleetError(f"{name}: {error}") from error
        uid = str(uuid4())
        variables = environment(pool, index, uid=uid, url=url, inherited=self._inherited)
        process = ReplicaProcess(name, ["executor", "--app", pool.spec.app], self._parent_watch, variables, self)
        self._entries[name] = _Entry(pool, index, uid, template_hash(pool), process)

    async def delete(self, pool: Pool, replica: str, uid: str) -> None:
        """Drain the process of a replica."""
        del pool
        entry = self._entries.get(replica)
        if entry is not None and entry.uid == uid:
            entry.end()

    async def update(self, pool: Pool, replica: str, uid: str) -> None:
        """Do nothing: a replica always has one process."""

    async def is_clear(self, pool: Pool, replica: str) -> bool:
        """Whether a replica has no process any more. If so, the fleet forgets it too."""
        del pool
        entry = self._entries.get(replica)
        if entry is not None and entry.process.has_ended:
            del self._entries[replica]
        return replica not in self._entries

    async def database_url(self, pool: Pool) -> str:
        """The URL of a pool's database, from the command line."""
        secret = pool.spec.database.secret_name
        url = self._urls.get(secret, self._default_url)
        if url is None:
            raise UrlUnknown(
                "UrlUnknown", f"the database {secret!r} has no URL: give it with --database-file {secret}=FILE"
            )
        return url

    def recheck_url(self, pool: Pool) -> None:
        """Do nothing: the command line does not change."""

    def status(self, ref: Ref) -> Mapping[str, Any]:
        """See `Fleet.status`."""
        return self._statuses.get((ref.kind, ref.name), {})

    async def set_status(self, ref: Ref, status: Mapping[str, Any]) -> None:
        """Keep the status of an object in memory."""
        self._statuses[ref.kind, ref.name] = status

    async def record_events(self, ref: Ref, events: Sequence[Event]) -> None:
        """Show Events."""
        for event in events:
            self._output.event(ref.kind, ref.name, event)

    # Adding and removing pools.

    def add_pool(self, pool: str) -> None:
        """Allow processes of a pool."""
        self._pools.add(pool)

    def running(self) -> list[str]:
        """The names of the replicas whose processes have not ended."""
        return [name for name, entry in self._entries.items() if not entry.process.has_ended]

    async def end(self, pool: str | None = None) -> None:
        """Drain the processes of a pool (None: of all), allow no new ones, and wait until they have ended."""
        self._pools -= self._pools if pool is None else {pool}
        entries = [entry for entry in self._entries.values() if pool in (None, entry.pool.name)]
        for entry in entries:
            entry.end()
        # Whatever one raises: when joex up exits, those that drain get a second SIGTERM, and give their jobs back.
        endings = await asyncio.gather(*(entry.process.ended() for entry in entries), return_exceptions=True)
        for error in endings:
            if error is not None:
                raise error

    def forget(self, kind: str, name: str) -> None:
        """Forget the status of a removed object."""
        self._statuses.pop((kind, name), None)

    def interrupt(self) -> None:
        """Make the draining processes give their jobs back at once."""
        for entry in self._entries.values():
            entry.process.signal(signal.SIGTERM)

    # Notifications of processes.

    def printed(self, replica: str, line: str) -> None:
        """A process has printed a line."""
        self._output.log_line(replica, line)

    def failed(self, replica: str, problem: str, again_in: float) -> None:
        """A process has ended by itself, and restarts."""
        pool = self._entries[replica].pool
        when = f"restart in {again_in:g} s" if again_in else "restart now"
        self._output.event("JoexPool", pool.name, Event("Warning", "ExecutorEnded", f"{replica}: {problem}; {when}"))
        self._changed(pool.namespace, pool.name)

    def ended(self, replica: str) -> None:
        """The process of a deleted replica has ended."""
        entry = self._entries[replica]
        if entry.process.exit_code in _IN_ORDER:
            del self._entries[replica]
        else:
            asyncio.get_running_loop().call_later(_REMEMBERED_FOR, self._forget, replica, entry.uid)
        self._changed(entry.pool.namespace, entry.pool.name)

    def _forget(self, replica: str, uid: str) -> None:
        entry = self._entries.get(replica)
        if entry is not None and entry.uid == uid:
            del self._entries[replica]
            self._changed(entry.pool.namespace, entry.pool.name)

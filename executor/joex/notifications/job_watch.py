"""The one connection that serves all waits of a client.

After the announcement that the client waits for jobs (`wait_for`), the job watch polls these until the race with open
transactions is settled (`joex.core.recheck`). A notification can get lost all the same, so it polls all jobs whenever
it renews the subscription. Notifications do not pass a pooler: there it polls all jobs every second, and refuses
events; it polls, too, while there is a flood of notifications.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from typing import Any
from uuid import UUID

from joex.core.recheck import Recheck
from joex.errors import ConfigError
from joex.notifications.listener import LINGER, Listener
from joex.notifications.streams import Read, Streams
from joex.store import subscriptions
from joex.store.database import POLL_EVERY
from joex.store.horizon import announce
from joex.store.subscriptions import JOBS, JobVersions

_LEASE = timedelta(seconds=60)
_RENEW_EVERY = 20.0
_BATCH = 500
_NO_EVENTS = (
    "database URL: events don't come through a pooler such as PgBouncer: "
    "give the client a URL that leads straight to the server"
)


@dataclass(slots=True, eq=False)
class _Unsure:
    """Jobs that open transactions may have changed without seeing that the client waits for them."""

    ids: set[UUID]
    recheck: Recheck


class JobWatch:
    """Serves the streams with one connection, under the name of one subscriber."""

    def __init__(self, listener: Listener, name: str, streams: Streams) -> None:
        self._listener = listener
        self._connection = listener.connection
        self._name = name
        self._streams = streams
        self._registered: set[UUID] = set()
        self._unsure: list[_Unsure] = []  # jobs without a stream stay, too: another wait may come
        self._renew_at = 0.0
        self._tells_events = False
        self._events_channel = ""
        self._clock = asyncio.get_running_loop().time

    async def run(self) -> None:
        """Serve, until no stream has been open for a moment.

        Raises:
            DatabaseUnavailable: the connection is lost.
        """
        async with self._listener.held(lambda connection: subscriptions.unsubscribe(connection, self._name)):
            await self._listener.listen(JOBS, self._hear_jobs)
            self._streams.begin_anew()
            while True:
                self._streams.wakeup.clear()
                await self._round()
                if self._streams:
                    await self._listener.woken(
                        min([self._renew_at, *(unsure.recheck.due_at for unsure in self._waited())])
                    )
                elif not await self._listener.woken(self._clock() + LINGER):
                    return

    async def _round(self) -> None:
        ids, self._streams.unsettled = self._streams.unsettled, set()
        is_due = self._clock() >= self._renew_at
        if self._listener.is_pooled:
            for events in self._streams.events:
                events.fail(ConfigError(_NO_EVENTS))
        elif is_due or ids - self._registered or bool(self._streams.events) != self._tells_events:
            await self._subscribe()
            if new := self._streams.of.keys() - self._registered:
                await self._register(new)
                ids |= new
        if is_due:  # (set the next time only then: otherwise new waits would put it off forever)
            self._renew_at = self._clock() + (POLL_EVERY if self._listener.is_deaf else _RENEW_EVERY)
            await self._forget_the_others()
            ids |= self._streams.of.keys()
        due = [unsure for unsure in self._waited() if unsure.recheck.due_at <= self._clock()]
        ids.update(*(unsure.ids for unsure in due))
        if ids := ids & self._streams.of.keys():
            found = await self._listener.ask(subscriptions.job_versions(self._connection, ids))
            self._make_sure(due, found)
            await self._pass_on(ids, found)
        if self._tells_events:
            for stream in self._streams.events:
                stream.begin()

    async def _subscribe(self) -> None:
        """Subscribe, or renew the subscription."""
        events = bool(self._streams.events) and await self._finds_events()
        if self._tells_events and not events:
            await self._listener.unlisten(self._events_channel)
            self._events_channel = ""
        if not await self._listener.ask(subscriptions.subscribe(self._connection, self._name, _LEASE, events=events)):
            self._registered.clear()
            self._unsure.clear()
        self._tells_events = events

    async def _finds_events(self) -> bool:
        """Listen on the channel of events, which has another name once a role may hear them no longer."""
        try:
            channel = await self._listener.ask(subscriptions.events_channel(self._connection))
        except ConfigError as error:  # it is this client's role that may not: its waits go on
            for events in self._streams.events:
                events.fail(error)
            return False
        if channel != self._events_channel:
            await self._listener.listen(channel, self._hear_event, is_secret=True)
            if self._events_channel:
                await self._listener.unlisten(self._events_channel)
            self._events_channel = channel
        return True

    async def _register(self, new: set[UUID]) -> None:
        """Subscribe to these jobs."""
        wait_for = subscriptions.wait_for(self._connection, self._name, new)
        recheck = await self._listener.ask(announce(self._connection, wait_for))
        self._registered |= new
        self._unsure.append(_Unsure(new, recheck))

    async def _forget_the_others(self) -> None:
        """Unsubscribe from jobs without a stream, now and then: until then they cost superfluous notifications."""
        if old := self._registered - self._streams.of.keys():
            await self._listener.ask(subscriptions.wait_no_more(self._connection, self._name, old))
            self._registered -= old
            for unsure in self._unsure:
                unsure.ids -= old
            self._unsure = [unsure for unsure in self._unsure if unsure.ids]

    def _waited(self) -> list[_Unsure]:
        """The jobs for which streams wait."""
        of = self._streams.of.keys()
        return [unsure for unsure in self._unsure if not of.isdisjoint(unsure.ids)]

    def _make_sure(self, checked: Iterable[_Unsure], found: JobVersions) -> None:
        for unsure in checked:
            if unsure.recheck.settles(found.oldest_xid, self._clock()):
                self._unsure.remove(unsure)

    async def _pass_on(self, ids: set[UUID], found: JobVersions) -> None:
        """Read the jobs that have changed, once for all streams that read them in the same way."""
        wanted: dict[Read[Any], list[UUID]] = defaultdict(list)
        for job_id in ids:
            version = found.versions.get(job_id)
            for read in {s.read for s in self._streams.of.get(job_id, ()) if s.wants(job_id, version)}:
                wanted[read].append(job_id)
        for read, changed in wanted.items():
            rest = iter(changed)
            while batch := list(islice(rest, _BATCH)):
                jobs = await self._listener.ask(read(self._connection, batch))
                for job_id in batch:
                    version = found.versions.get(job_id)
                    for stream in self._streams.of.get(job_id, ()):
                        if stream.read == read and stream.wants(job_id, version):
                            stream.put(job_id, version, jobs.get(job_id))

    def _hear_jobs(self, payload: str) -> None:
        self._streams.heard(subscriptions.heard_jobs(payload))

    def _hear_event(self, payload: str) -> None:
        event = subscriptions.heard_event(payload)
        if event is not None:
            for stream in self._streams.events:
                stream.put(event)
        elif subscriptions.ends_channel(payload):
            self._renew_at = 0.0
            self._streams.wakeup.set()

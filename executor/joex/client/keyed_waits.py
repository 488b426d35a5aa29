"""Waits for jobs (the RFC's watches), which share one query of the database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

from joex.client.connections import Connections
from joex.client.keyed_model import STATES, JobState, KeyedJob, keyed_job, name_of, pack
from joex.core.duration import format_duration
from joex.core.json_values import shown
from joex.errors import DatabaseUnavailable, InvalidJob
from joex.notifications.watcher import time_limit
from joex.store import keyed
from joex.store.statement import Connection

_ALL = tuple(STATES)
_RETRY_IN = 0.5  # seconds


class KeyedWaits:
    """Waits for states of jobs, and reports their changes."""

    _connections: Connections

    async def wait(
        self,
        job_type: Any,
        job_id: Any,
        until: JobState | Callable[[KeyedJob], bool] = "finished",
        *,
        timeout: timedelta | float | str | None = None,  # noqa: ASYNC109 - it reads like the other durations
    ) -> KeyedJob | None:
        """Wait until a job is in a state; None: the job is gone, or never existed.

        Args:
            job_type: the job's type.
            job_id: the job's id.
            until: pending, running or finished; or, for the type's own states, a function that returns whether the job
                has reached one: ``lambda job: job.data.get("state") == "completed"``.
            timeout: the longest time (``"30s"``).

        Raises:
            TimeoutError: the job did not get there in time.
            ConfigError: ``until`` or the timeout is wrong.
        """
        [job] = await self.wait_many(job_type, [job_id], until, timeout=timeout)
        return job

    async def wait_many(
        self,
        job_type: Any,
        job_ids: Iterable[Any],
        until: JobState | Callable[[KeyedJob], bool] = "finished",
        *,
        timeout: timedelta | float | str | None = None,  # noqa: ASYNC109 - likewise
    ) -> list[KeyedJob | None]:
        """Wait until each of these jobs of a type has, or had meanwhile, reached its state; in the order given.

        The wait goes on while the database is unreachable.
        """
        if not callable(until) and until not in STATES.values():
            raise InvalidJob(f"until: expected pending, running, finished, or a function of a job; got {shown(until)}")
        limit, begun = time_limit(timeout), asyncio.get_running_loop().time()
        given = list(job_ids)
        try:
            async with asyncio.timeout(None if limit is None else limit.total_seconds()):
                found = await self._find_in_any_case(job_type, given)
        except TimeoutError as error:
            after = format_duration(limit or timedelta())
            raise TimeoutError(
                f"{len(given)} of {len(given)} jobs are not known after {after}: the database did not answer"
            ) from error
        if limit is not None:
            passed = timedelta(milliseconds=int((asyncio.get_running_loop().time() - begun) * 1000))
            limit = max(limit - passed, timedelta())
        states = [ours for ours, theirs in STATES.items() if theirs == until] or _ALL

        def is_reached(job: KeyedJob) -> bool:
            return until(job) if callable(until) else job.state == until

        there = {job for job in found if job is not None}
        seen = (
            await self._connections.watcher.wait(there, _read, is_reached, states=states, timeout=limit)
            if there
            else {}
        )
        return [None if job is None else seen[job] for job in found]

    @asynccontextmanager
    async def subscribe(
        self, job_type: Any, *job_ids: Any
    ) -> AsyncIterator[AsyncIterator[tuple[Any, KeyedJob | None]]]:
        """Receive each change of these jobs of a type, for the time of an ``async with`` block.

        Yields an async iterator over ids and jobs: first each job as it is, then again whenever it has changed, only
        the latest version if several changes come at once. None: the job is gone; when all are gone, the iterator
        ends. It leaves out a job that never existed.
        """
        given = list(job_ids)
        found = {
            job: job_id for job_id, job in zip(given, await self._find_in_any_case(job_type, given), strict=True) if job
        }

        async def named(
            changes: AsyncIterator[tuple[UUID, KeyedJob | None]],
        ) -> AsyncIterator[tuple[Any, KeyedJob | None]]:
            async for uuid, job in changes:
                yield found[uuid], job

        async with self._connections.watcher.watch(found, _read) as changes:
            yield named(changes)

    async def _find_in_any_case(self, job_type: Any, job_ids: list[Any]) -> list[UUID | None]:
        """Read jobs; try again until the database answers."""
        while True:
            try:
                return await self._find(job_type, job_ids)
            except DatabaseUnavailable:
                await asyncio.sleep(_RETRY_IN)

    async def _find(self, job_type: Any, job_ids: Iterable[Any]) -> list[UUID | None]:
        name, keys = name_of("type", job_type), [pack("id", job_id) for job_id in job_ids]
        async with self._connections.using() as used:
            return await keyed.find_many(used, name, keys)


async def _read(connection: Connection, ids: Collection[UUID]) -> Mapping[UUID, KeyedJob]:
    return {row.id: keyed_job(row) for row in await keyed.read(connection, ids)}

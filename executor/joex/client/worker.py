"""The calls of workers for a run that they have accepted (the RFC's "Worker Implementation API")."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

from joex.client.connections import Connections
from joex.client.keyed_model import (
    Answer,
    check_lock,
    check_texts,
    checked,
    found,
    name_of,
    pack,
)
from joex.core.duration import parse_duration
from joex.core.job import check_retries
from joex.core.json_values import shown
from joex.core.outcome import Ending, Outcome, decide
from joex.core.text import cut
from joex.errors import ConfigError
from joex.store import keyed, worker_runs
from joex.store.drivers import AnyConnection
from joex.store.errors import translated
from joex.store.json_text import json_text
from joex.store.statement import Connection


class Worker:
    """Reports progress, and finishes runs.

    Args:
        connections: the client's connections to the database.
        retries: re-runs of a failed job, unless its submission sets them.
        retry_delay: the delay before the first of them.
        retry_jitter: lengthen each delay by a random share of up to this, 0 to 1.

    Raises:
        ConfigError: one of these is wrong.
    """

    def __init__(
        self,
        connections: Connections,
        *,
        retries: int = 5,
        retry_delay: timedelta | float | str = timedelta(minutes=1),
        retry_jitter: float = 0.1,
    ) -> None:
        try:
            check_retries("retries", retries)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        try:
            self._retry_delay = parse_duration(retry_delay)
        except ValueError as error:
            raise ConfigError(f"retry_delay: {error}") from error
        if not isinstance(retry_jitter, int | float) or not 0 <= retry_jitter <= 1:  # type: ignore[redundant-expr] # a caller
            raise ConfigError(f"retry_jitter: expected 0 to 1; got {shown(retry_jitter)}")
        self._connections = connections
        self._retries = retries
        self._retry_jitter = retry_jitter

    async def update(
        self,
        job_type: Any,
        job_id: Any,
        opts: Mapping[str, Any],
        lock_id: UUID,
        *,
        progress: float | None = None,
        message: str | None = None,
        connection: AnyConnection | None = None,
    ) -> Answer:
        """Report that a run continues, and change the options of its job.

        Call it in the transaction of the run's own writes, for mutual exclusion: if the answer is not ``ok``, roll
        back, so that a run that has lost its job leaves no writes. The answer also says whether a client asked to
        resubmit the job (``answer.resubmit``).

        Args:
            job_type: the job's type.
            job_id: the job's id.
            opts: the options to change: ``priority``, ``resubmit``, and, replaced as a whole, ``data`` and the free
                fields.
            lock_id: the lock id of this run.
            progress: 0 to 100.
            message: the progress in words.
            connection: report in this connection's transaction.
        """
        said = checked(opts, progress=progress, message=message)
        check_lock(lock_id)
        async with self._run_of(job_type, job_id, lock_id, connection) as (used, run):
            if run is None:
                return Answer("worker_conflict")
            answer, resubmit = await worker_runs.update(used, run.job_id, lock_id, said)
            return Answer(answer, resubmit=resubmit)

    async def resubmit(
        self, job_type: Any, job_id: Any, lock_id: UUID | None = None, *, connection: AnyConnection | None = None
    ) -> str:
        """Run a job once more. A running job runs again, once, when its run ends.

        However often you call this during a run, the job runs once more.

        Args:
            job_type: the job's type.
            job_id: the job's id.
            lock_id: set by a run for its own job; the answer is then as with `update`, otherwise ok or not_found.
            connection: resubmit in this connection's transaction.
        """
        if lock_id is not None:
            return await self.update(job_type, job_id, {"resubmit": True}, lock_id, connection=connection)
        async with found(self._connections, job_type, job_id, connection) as (used, job):
            return "ok" if job is not None and await keyed.resubmit(used, job) == "ok" else "not_found"

    async def finish(
        self,
        job_type: Any,
        job_id: Any,
        opts: Mapping[str, Any],
        lock_id: UUID,
        *,
        result: Any = None,
        message: str | None = None,
        error: str | None = None,
        retry: bool = True,
        connection: AnyConnection | None = None,
    ) -> Answer:
        """End a run. With ``resubmit``, in ``opts`` or requested meanwhile, the job is pending again, else finished.

        If the job was cancelled, the answer is ``canceled``, and the run has ended as well. If you then roll back
        the transaction of ``connection``, the run has not ended: call this once more without ``connection``.

        Args:
            job_type: the job's type.
            job_id: the job's id.
            opts: the options to change, as for `update`.
            lock_id: the lock id of this run.
            result: the result, a value that JSON can represent.
            message: the outcome in words.
            error: why the run failed. Joex retries the job, after a delay that doubles each time, until its retries
                are used up.
            retry: False: don't retry the job after an ``error``.
            connection: end the run in this connection's transaction.
        """
        said = checked(opts)
        check_lock(lock_id)
        check_texts(message=message, error=error)
        text = None if result is None else json_text("result", result)
        async with self._run_of(job_type, job_id, lock_id, connection) as (used, run), _transaction(used) as is_ours:
            if run is None:
                return Answer("worker_conflict")
            answer = (await worker_runs.update(used, run.job_id, lock_id, said))[0] if opts else "ok"
            if answer == "ok":
                verdict = decide(
                    _outcome(error, retry=retry),
                    failures=run.failures,
                    retries=self._retries if run.retries is None else run.retries,
                    first_delay=self._retry_delay,
                    jitter=self._retry_jitter,
                    chance=random.random(),  # noqa: S311 - it spreads retries, it is no secret
                )
                answer = await worker_runs.finish(
                    used,
                    run.job_id,
                    lock_id,
                    verdict.state,
                    result=text,
                    message=None if message is None else cut(message),
                    error=None if verdict.error is None else cut(verdict.error),
                    delay=verdict.delay,
                    exhausted=verdict.exhausted,
                )
            return await _end_canceled(used, run.job_id, lock_id, answer) if is_ours else Answer(answer)

    async def give_back(
        self, job_type: Any, job_id: Any, lock_id: UUID, *, connection: AnyConnection | None = None
    ) -> Answer:
        """End a run without counting it: the job waits again, where it stood in line, for another run.

        If the job was cancelled, this answers as `finish` does.
        """
        check_lock(lock_id)
        async with self._run_of(job_type, job_id, lock_id, connection) as (used, run), _transaction(used) as is_ours:
            if run is None:
                return Answer("worker_conflict")
            answer = await worker_runs.finish(used, run.job_id, lock_id, "waiting")
            return await _end_canceled(used, run.job_id, lock_id, answer) if is_ours else Answer(answer)

    @asynccontextmanager
    async def _run_of(
        self, job_type: Any, job_id: Any, lock_id: UUID, connection: AnyConnection | None
    ) -> AsyncIterator[tuple[Connection, worker_runs.Run | None]]:
        """Find a run for the time of a block: gives a connection (the given one or another), and the run or None."""
        name, key = name_of("type", job_type), pack("id", job_id)
        async with self._connections.using(connection) as used:
            yield used, await worker_runs.find(used, name, key, lock_id)


def _outcome(error: str | None, *, retry: bool) -> Outcome:
    if error is None:
        return Outcome(Ending.RETURNED)
    return Outcome(Ending.RAISED if retry else Ending.FAILED, error)


async def _end_canceled(used: Connection, job: UUID, lock_id: UUID, answer: str) -> Answer:
    """The answer to the end of a run. A run whose job was cancelled has ended all the same."""
    if answer == "canceled":
        await worker_runs.finish(used, job, lock_id, "cancelled")
    return Answer(answer)


@asynccontextmanager
async def _transaction(used: Connection) -> AsyncIterator[bool]:
    """Open our own transaction (True), unless the caller has one on this connection."""
    if used.is_in_transaction():
        yield False
        return
    with translated():
        async with used.transaction():
            yield True

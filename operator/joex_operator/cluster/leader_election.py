"""Leader election by a Lease: one operator leads, the others stand by.

A leader that can't renew the Lease steps down before a standby may take it. Safety does not depend on it, because each
action is idempotent: two leaders would only disturb each other.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from joex_operator.cluster.kubernetes_api import ApiError, KubernetesApi
from joex_operator.cluster.lease import LeaseLock

_log = logging.getLogger("joex.operator")

_DURATION = 15.0
"""Seconds after which a standby may take a Lease that is not renewed."""
_DEADLINE = 10.0
"""Seconds after which a leader that could not renew steps down."""
_RENEW_EVERY = 5.0
_TRY_AGAIN_IN = 1.0
_TRY_EVERY = 2.0
_ANSWER_WITHIN = 30.0
"""Seconds without an answer about the Lease after which the API server counts as down."""


class LeaderElection:
    """The Lease of one operator process."""

    def __init__(self, api: KubernetesApi, *, name: str, namespace: str, identity: str) -> None:
        self._lock = LeaseLock(api, name=name, namespace=namespace, identity=identity, duration=_DURATION)
        self._identity = identity
        self.is_standby = False
        """Whether another operator leads."""

    def problem(self) -> str | None:
        """Why the Lease was neither read nor renewed lately, in one line; None: it was."""
        answered_at = self._lock.answered_at
        if answered_at is not None and time.monotonic() - answered_at < _ANSWER_WITHIN:
            return None
        return f"can neither read nor renew the Lease: {self._lock.error or 'no answer yet'}"

    async def lead(self, work: Callable[[], Awaitable[None]]) -> None:
        """Wait until this operator leads, and run ``work`` while it does; returns when it leads no more.

        Raises what ``work`` raises. At the end it releases the Lease, so that a standby need not wait until it expires.
        """
        # (Its ten seconds begin with the attempt: an answer may come so late that they are over.)
        while not await self._try(_DEADLINE) or self._left() <= 0:  # noqa: ASYNC110 - the Lease is in the API server
            await asyncio.sleep(_TRY_EVERY)
        _log.info("%s leads", self._identity)
        working, renewing = asyncio.ensure_future(work()), asyncio.create_task(self._renew())
        try:
            await asyncio.wait([working, renewing], return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                _log.warning("%s leads no more: the Lease could not be renewed", self._identity)
        finally:
            for task in (working, renewing):
                task.cancel()
            results = await asyncio.gather(working, renewing, return_exceptions=True)
            with suppress(ApiError, TimeoutError):
                async with asyncio.timeout(_DEADLINE / 2):
                    await self._lock.release()
        for error in results:
            if isinstance(error, Exception):
                raise error

    async def _renew(self) -> None:
        """Renew the Lease; returns when this operator could not renew it in time, as when another one has it."""
        pause = self._lock.renewed_at + _RENEW_EVERY - time.monotonic()
        while self._left() > 0:
            await asyncio.sleep(min(pause, self._left()))
            left, pause = self._left(), _TRY_AGAIN_IN
            if left > 0 and await self._try(min(_DEADLINE / 2, left)):
                pause = self._lock.renewed_at + _RENEW_EVERY - time.monotonic()

    def _left(self) -> float:
        return self._lock.renewed_at + _DEADLINE - time.monotonic()

    async def _try(self, within: float) -> bool:
        """Take or renew the Lease."""
        answered_at, leads = self._lock.answered_at, await self._lock.acquire(within)
        if self._lock.answered_at != answered_at:
            self.is_standby = not leads
        return leads

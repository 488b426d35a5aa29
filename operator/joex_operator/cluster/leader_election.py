"""Leader election by a Lease: one operator leads, the others stand by.

The algorithm is that of client-go: the leader renews the Lease; a standby that sees it unchanged for its whole
duration, by its own clock, may take it; a leader that can't renew it steps down before that. Safety does not depend on
it, because each action is idempotent: two leaders would only disturb each other.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from joex_operator.cluster.cache import Body
from joex_operator.cluster.kubernetes_api import ApiError, Conflict, KubernetesApi, NotFound, path_of

_log = logging.getLogger("joex.operator")

DURATION = 15.0
"""Seconds after which a standby may take a Lease that is not renewed."""
_DEADLINE = 10.0
"""Seconds after which a leader that could not renew steps down."""
_RENEW_EVERY = 5.0
_TRY_EVERY = 2.0
_ANSWER_WITHIN = 30.0
"""Seconds without an answer about the Lease after which the API server counts as down."""


class LeaderElection:
    """The Lease of one operator process."""

    def __init__(self, api: KubernetesApi, *, name: str, namespace: str, identity: str) -> None:
        self._api = api
        self._name = name
        self._namespace = namespace
        self._identity = identity
        self._held: Body | None = None
        self._seen: object = None
        self._seen_at = 0.0
        self._answered_at: float | None = None
        self._error = ""
        self.is_standby = False
        """Whether another operator leads."""

    def problem(self) -> str | None:
        """Why the Lease was neither read nor renewed lately, in one line; None: it was."""
        if self._answered_at is not None and time.monotonic() - self._answered_at < _ANSWER_WITHIN:
            return None
        return f"can neither read nor renew the Lease: {self._error or 'no answer yet'}"

    async def lead(self, work: Callable[[], Awaitable[None]]) -> None:
        """Wait until this operator leads, and run ``work`` while it does; returns when it leads no more.

        Raises what ``work`` raises. At the end it releases the Lease, so that a standby need not wait until it expires.
        """
        while not await self._try():  # noqa: ASYNC110 - the Lease is in the API server
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
            self._held = None
            await self._release()
        for error in results:
            if isinstance(error, Exception):
                raise error

    async def _renew(self) -> None:
        """Renew the Lease; returns when this operator has lost it, or could not renew it in time."""
        renewed_at = time.monotonic()
        while time.monotonic() - renewed_at < _DEADLINE:
            await asyncio.sleep(_RENEW_EVERY if time.monotonic() - renewed_at < _RENEW_EVERY else 1.0)
            began = time.monotonic()
            with suppress(TimeoutError):
                async with asyncio.timeout(_DEADLINE / 2) as within:
                    if await self._try():
                        renewed_at = began
            if within.expired():
                self._error = f"no answer within {_DEADLINE / 2:.0f} seconds"

    async def _try(self) -> bool:
        """Take or renew the Lease; False: another operator holds it, or the API server does not answer."""
        # The leader need not read it: if the Lease has changed since, the API server refuses the older version.
        held, self._held = self._held, None
        try:
            lease = held or await self._read()
            if lease is None:
                body = {"metadata": {"name": self._name}, "spec": self._spec({})}
                self._held = await self._api.create(path_of(self._namespace, "leases"), body)
            elif self._is_free(lease):
                body = {**lease, "spec": self._spec(lease.get("spec") or {})}
                self._held = await self._api.replace(path_of(self._namespace, "leases", self._name), body)
        except Conflict:
            pass  # another operator was faster
        except ApiError as error:
            self._error = str(error)
            _log.warning("the Lease: %s", error)
            return False
        self._answered_at = time.monotonic()
        self.is_standby = self._held is None
        return self._held is not None

    async def _read(self) -> Body | None:
        try:
            return await self._api.get(path_of(self._namespace, "leases", self._name))
        except NotFound:
            return None

    def _is_free(self, lease: Body) -> bool:
        spec = lease.get("spec") or {}
        if spec.get("holderIdentity") in (None, "", self._identity):
            return True
        if spec != self._seen:
            self._seen, self._seen_at = spec, time.monotonic()
        return time.monotonic() - self._seen_at > float(spec.get("leaseDurationSeconds") or DURATION)

    def _spec(self, before: Body) -> dict[str, Any]:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        is_mine = before.get("holderIdentity") == self._identity
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": int(DURATION),
            "acquireTime": before["acquireTime"] if is_mine else now,
            "renewTime": now,
            "leaseTransitions": (before.get("leaseTransitions") or 0) + (not is_mine),
        }

    async def _release(self) -> None:
        """Release the Lease, if this operator still holds it."""
        with suppress(ApiError, TimeoutError):
            async with asyncio.timeout(_DEADLINE / 2):
                lease = await self._read()
                if lease is not None and lease["spec"].get("holderIdentity") == self._identity:
                    body = {**lease, "spec": {**lease["spec"], "holderIdentity": ""}}
                    await self._api.replace(path_of(self._namespace, "leases", self._name), body)

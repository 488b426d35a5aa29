"""A lock that is a Lease of the API server, by the algorithm of client-go.

The holder renews the Lease. Another client that sees it unchanged for its duration, by its own clock, may take it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from joex_operator.cluster.cache import Body
from joex_operator.cluster.kubernetes_api import ApiError, Conflict, KubernetesApi, NotFound, path_of

_log = logging.getLogger("joex.operator")


class LeaseLock:
    """A Lease, as one client sees it.

    Args:
        api: with the client's credentials.
        name: of the Lease.
        namespace: of the Lease.
        identity: of the client. Clients of one identity hold the Lease together.
        duration: seconds after which another client may take a Lease that is not renewed.
    """

    def __init__(self, api: KubernetesApi, *, name: str, namespace: str, identity: str, duration: float) -> None:
        self._api = api
        self._name = name
        self._namespace = namespace
        self._identity = identity
        self._duration = duration
        self._held: Body | None = None
        self._seen: Body = {}
        self._seen_at = 0.0
        self.uid = ""
        """Of the Lease when this client took or renewed it last. A Lease that is made again has another one."""
        self.answered_at: float | None = None
        """When the API server last answered about the Lease, by the monotonic clock."""
        self.renewed_at = -math.inf
        """When the attempt began by which this client took or renewed the Lease last."""
        self.error: ApiError | None = None
        """Why the latest attempt had no answer about the Lease. `NoNamespace`: there is no such namespace."""

    @property
    def other(self) -> str:
        """The identity that holds the Lease instead of this client; empty: none was seen."""
        return str(self._seen.get("holderIdentity") or "")

    async def acquire(self, within: float | None = None) -> bool:
        """Take or renew the Lease; False: another client holds it, or there is no answer within so many seconds."""
        limit = asyncio.timeout(within)
        try:
            async with limit:
                return await self._acquire()
        except TimeoutError:
            if within is None or not limit.expired():
                raise
            self._failed(ApiError(f"no answer within {within:g} seconds"))
            return False

    def _failed(self, error: ApiError) -> None:
        self.error = error
        _log.warning("the Lease %s/%s: %s", self._namespace, self._name, error)

    async def _acquire(self) -> bool:
        # The holder need not read it: if the Lease has changed since, the API server refuses the older version.
        held, self._held, self.error, began = self._held, None, None, time.monotonic()
        try:
            lease = held or await self._read()
            if lease is None:
                self._seen = {}
                body = {"metadata": {"name": self._name}, "spec": self._spec({})}
                self._held = await self._api.create(path_of(self._namespace, "leases"), body)
            elif self._is_free(lease):
                body = {**lease, "spec": self._spec(lease.get("spec") or {})}
                with suppress(NotFound):  # it was deleted meanwhile
                    self._held = await self._api.replace(path_of(self._namespace, "leases", self._name), body)
        except Conflict:
            pass  # another client was faster
        except ApiError as error:
            self._failed(error)
            return False
        self.answered_at = time.monotonic()
        if self._held is not None:
            self._seen, self.uid, self.renewed_at = {}, self._held["metadata"]["uid"], began
        return self._held is not None

    async def release(self) -> None:
        """Release the Lease, if this client still holds it.

        Raises:
            ApiError: it could not.
        """
        self._held = None
        lease = await self._read()
        spec = (lease or {}).get("spec") or {}
        if lease is not None and spec.get("holderIdentity") == self._identity:
            body = {**lease, "spec": {**spec, "holderIdentity": ""}}
            await self._api.replace(path_of(self._namespace, "leases", self._name), body)

    async def _read(self) -> Body | None:
        with suppress(NotFound):
            return await self._api.get(path_of(self._namespace, "leases", self._name))
        return None

    def _is_free(self, lease: Body) -> bool:
        spec = lease.get("spec") or {}
        if spec.get("holderIdentity") in (None, "", self._identity):
            return True
        if spec != self._seen:
            self._seen, self._seen_at = spec, time.monotonic()
        return time.monotonic() - self._seen_at > float(spec.get("leaseDurationSeconds") or self._duration)

    def _spec(self, before: Body) -> dict[str, Any]:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        is_mine = before.get("holderIdentity") == self._identity
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": int(self._duration),
            "acquireTime": (is_mine and before.get("acquireTime")) or now,  # (a Lease made by hand may lack it)
            "renewTime": now,
            "leaseTransitions": (before.get("leaseTransitions") or 0) + (not is_mine),
        }

"""Which release of the operator acts in a namespace: the holder of the Lease ``joex.dev`` there.

Leader election lets one operator of a release lead; operators of different releases, with Leases of their own, would
each bring the same executors to their own image. A claim is by namespace, because this is the largest scope whose
objects each of them may read: releases that watch one namespace, several or all find each other in each namespace that
they share. It outlives the operator's restarts, so that an upgrade does not hand the executors to another release.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from joex_operator.cluster.kubernetes_api import ApiError, KubernetesApi, NamespaceTerminating, NotFound, path_of
from joex_operator.cluster.lease import LeaseLock
from joex_operator.control.fleet import FleetError

_log = logging.getLogger("joex.operator")

_NAME = "joex.dev"
_DURATION = 120.0
_RENEW_EVERY = 30.0
_LOOK_EVERY = 10.0
_DEADLINE = 90.0
"""Seconds after which a release that could not renew a claim acts in the namespace no more."""
_AT_ONCE = 10
"""Requests; a busy API server may take a tenth of a second for each."""


class NamespaceClaims:
    """The claims of a leading operator.

    Args:
        api: with the operator's credentials.
        release: its operators claim together.
    """

    def __init__(self, api: KubernetesApi, release: str) -> None:
        self._api = api
        self._release = release
        self._locks: dict[str, LeaseLock] = {}
        self._held: set[str] = set()
        self._uids: dict[str, str] = {}
        self._unread: dict[str, ApiError] = {}
        self._wanted = asyncio.Event()
        self.on_loss: Callable[[str], None] = lambda _: None
        """Called with each namespace that another release has taken."""

    def holds(self, namespace: str) -> bool:
        """Whether this release acts in a namespace. `run` claims each one that it was asked about."""
        if namespace not in self._locks:
            self._locks[namespace] = LeaseLock(
                self._api, name=_NAME, namespace=namespace, identity=self._release, duration=_DURATION
            )
            self._wanted.set()
        return namespace in self._held

    def uid_of(self, namespace: str) -> str:
        """The UID of a namespace that this release holds or held: no other one of this name has it, in no cluster."""
        return self._uids[namespace]

    def problem(self) -> str | None:
        """Why this release does not act in a namespace that it watches, in one line; None: it acts in all of them."""
        return next((said for name in sorted(self._locks) if (said := self._not_held(name))), None)

    def _not_held(self, namespace: str) -> str:
        lock = self._locks[namespace]
        if namespace in self._held:
            return ""
        if lock.other:
            return f"the release {lock.other} manages the namespace {namespace}: {self._release} leaves it alone"
        error = lock.error or self._unread.get(namespace)
        return f"can't claim the namespace {namespace}: {error}" if error else ""

    async def claim(self, namespaces: Iterable[str]) -> None:
        """Claim namespaces, or renew the claims.

        Raises:
            FleetError: this release can't renew a claim.
        """
        most = asyncio.Semaphore(_AT_ONCE)

        async def claim_one(namespace: str) -> None:
            async with most:
                await self._claim(namespace)

        await asyncio.gather(*map(claim_one, namespaces))

    async def _claim(self, namespace: str) -> None:
        was_held = self.holds(namespace)
        lock = self._locks[namespace]
        before = self._not_held(namespace)
        if await lock.acquire():
            await self._identify(namespace, before)
        elif isinstance(lock.error, NotFound):  # the namespace has been deleted
            del self._locks[namespace]
            self._held.discard(namespace)
        elif was_held and lock.other:
            self._held.discard(namespace)
            _log.warning("%s", self._not_held(namespace))
            self.on_loss(namespace)
        elif was_held and isinstance(lock.error, NamespaceTerminating):
            pass  # no other release can claim it either, and its executors have yet to leave
        elif was_held and time.monotonic() - (lock.answered_at or 0.0) > _DEADLINE:
            raise FleetError(f"can't renew the claim of the namespace {namespace}: {lock.error}")
        elif not was_held and (said := self._not_held(namespace)) != before:
            _log.warning("%s", said)

    async def _identify(self, namespace: str, before: str) -> None:
        """Hold a namespace whose Lease this release has, when its UID is known."""
        if namespace not in self._held:  # (it may have been deleted and made again)
            try:
                found = await self._api.get(path_of("", "namespaces", namespace))
            except ApiError as error:
                self._unread[namespace] = error
                if (said := self._not_held(namespace)) != before:
                    _log.warning("%s", said)
                return
            self._unread.pop(namespace, None)
            self._uids[namespace] = found["metadata"]["uid"]
        self._held.add(namespace)

    async def run(self, on_gain: Callable[[], None]) -> None:
        """Claim and renew until cancelled; calls ``on_gain`` when this release has gained namespaces.

        Raises:
            FleetError: this release can't renew a claim.
        """
        while True:
            before = set(self._held)
            await self.claim([namespace for namespace in self._locks if self._is_due(namespace)])
            if self._held - before:
                on_gain()
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_EVERY):
                    await self._wanted.wait()
            self._wanted.clear()

    def _is_due(self, namespace: str) -> bool:
        """Whether to look at a claim: at one that others hold each time, at one's own when it is time to renew it."""
        answered_at = self._locks[namespace].answered_at
        return namespace not in self._held or answered_at is None or time.monotonic() - answered_at > _RENEW_EVERY

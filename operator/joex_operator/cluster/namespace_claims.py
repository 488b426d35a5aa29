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
from typing import NamedTuple

from joex_operator.cluster.kubernetes_api import ApiError, KubernetesApi, NamespaceTerminating, NoNamespace, path_of
from joex_operator.cluster.lease import LeaseLock
from joex_operator.control.fleet import FleetError

_log = logging.getLogger("joex.operator")

_NAME = "joex.dev"
_DURATION = 120.0
_RENEW_EVERY = 30.0
_LOOK_EVERY = 10.0
_DEADLINE = 90.0
"""Seconds after which a release that could not renew a claim acts in the namespace no more."""
_ANSWER_WITHIN = 20.0
"""Seconds for a request about one claim: the others of a round wait for it."""
_JUDGE_EVERY = 1.0
_AT_ONCE = 10
"""Requests; a busy API server may take a tenth of a second for each."""


class _Held(NamedTuple):
    """A namespace in which this release acts: its UID, and that of the Lease with which the UID was read."""

    uid: str
    lease: str


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
        self._held: dict[str, _Held] = {}
        self._wanted = asyncio.Event()
        self._has_gained = False
        self.on_loss: Callable[[str], None] = lambda _: None
        """Called with each namespace in which this release acts no more, though it is there."""
        self.on_deletion: Callable[[str], None] = lambda _: None
        """Called with each namespace that has been deleted, while `uid_of` still knows it."""

    def holds(self, namespace: str) -> bool:
        """Whether this release acts in a namespace. `run` claims each one that it was asked about."""
        if namespace not in self._locks:
            self._locks[namespace] = LeaseLock(
                self._api, name=_NAME, namespace=namespace, identity=self._release, duration=_DURATION
            )
            self._wanted.set()
        return namespace in self._held

    def uid_of(self, namespace: str) -> str:
        """The UID of a namespace that this release holds: no other one of this name has it, in no cluster.

        Raises:
            FleetError: it does not hold the namespace any more.
        """
        if namespace not in self._held:
            raise FleetError(f"{self._release} does not act in the namespace {namespace} any more")
        return self._held[namespace].uid

    def problem(self) -> str | None:
        """Why this release does not act in a namespace that it watches, in one line; None: it acts in all of them."""
        return next((said for name in sorted(self._locks) if (said := self._not_held(name))), None)

    def _not_held(self, namespace: str) -> str:
        lock = self._locks[namespace]
        if namespace in self._held:
            return ""
        if lock.other:
            return f"the release {lock.other} manages the namespace {namespace}: {self._release} leaves it alone"
        return f"can't claim the namespace {namespace}: {lock.error}" if lock.error else ""

    async def claim(self, namespaces: Iterable[str]) -> None:
        """Claim namespaces, or renew the claims."""
        most = asyncio.Semaphore(_AT_ONCE)

        async def claim_one(namespace: str) -> None:
            async with most:
                await self._claim(namespace)

        await asyncio.gather(*map(claim_one, namespaces))

    async def _claim(self, namespace: str) -> None:
        was_held = self.holds(namespace)
        lock = self._locks[namespace]
        before = self._not_held(namespace)
        # (A Lease that is no longer as this release has renewed it may be another release's, or another namespace's.)
        if await lock.acquire(_ANSWER_WITHIN) or (
            was_held and lock.error is None and await lock.acquire(_ANSWER_WITHIN)
        ):
            await self._identify(namespace, lock)
        elif isinstance(lock.error, NoNamespace):  # the namespace has been deleted
            del self._locks[namespace]
            if namespace in self._held:
                self.on_deletion(namespace)
                del self._held[namespace]
            return
        elif isinstance(lock.error, NamespaceTerminating):
            # No other release can claim it either, and its executors have yet to leave.
            lock.renewed_at = time.monotonic()
        elif lock.other or self._is_late(namespace):
            # The API server may refuse this Lease alone, by what others write into it: all other namespaces go on.
            self._lose(namespace)
        if (said := self._not_held(namespace)) and said != before:
            _log.warning("%s", said)

    def _is_late(self, namespace: str) -> bool:
        return time.monotonic() - self._locks[namespace].renewed_at > _DEADLINE

    def _lose(self, namespace: str) -> None:
        if namespace in self._held:
            self.on_loss(namespace)
            del self._held[namespace]

    async def _identify(self, namespace: str, lock: LeaseLock) -> None:
        """Hold a namespace whose Lease this release has, when its UID is known."""
        held = self._held.get(namespace)
        if held is not None and held.lease == lock.uid:
            return
        try:
            async with asyncio.timeout(_ANSWER_WITHIN):
                found = await self._api.get(path_of("", "namespaces", namespace))
        except (ApiError, TimeoutError) as error:
            lock.error = ApiError(str(error) or f"no answer within {_ANSWER_WITHIN:g} seconds")
            return
        uid = found["metadata"]["uid"]
        if held is not None and held.uid != uid:  # it was deleted and made again
            self.on_deletion(namespace)
        self._held[namespace] = _Held(uid, lock.uid)
        self._has_gained = True

    async def run(self, on_gain: Callable[[], None]) -> None:
        """Claim and renew until cancelled; calls ``on_gain`` when this release has gained namespaces."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_claiming(on_gain))
            group.create_task(self._keep_judging())

    async def _keep_judging(self) -> None:
        """Judge claims when it is time to: a round of renewals lasts as long as its slowest one."""
        while True:
            await asyncio.sleep(_JUDGE_EVERY)
            for namespace in filter(self._is_late, tuple(self._held)):
                self._lose(namespace)

    async def _keep_claiming(self, on_gain: Callable[[], None]) -> None:
        while True:
            self._has_gained = False
            await self.claim([namespace for namespace in self._locks if self._is_due(namespace)])
            if self._has_gained:
                on_gain()
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_EVERY):
                    await self._wanted.wait()
            self._wanted.clear()

    def _is_due(self, namespace: str) -> bool:
        """Whether to look at a claim: at one in doubt, or of others, each time; else when it is time to renew it."""
        lock = self._locks[namespace]
        is_settled = namespace in self._held and lock.error is None
        return not is_settled or time.monotonic() - lock.renewed_at > _RENEW_EVERY

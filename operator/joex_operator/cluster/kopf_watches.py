"""Watches the API server with kopf, and tells the controller what to reconcile.

It has kopf's event handlers only: other handlers write annotations and finalizers into the objects, and a finalizer
blocks the deletion of a namespace when the operator goes first. kopf runs only while this operator leads, in a thread
with its own event loop: when kopf ends, it cancels every task of its loop that is younger than itself.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from itertools import cycle
from typing import Any

import kopf

from joex_operator.api.names import GROUP, POOL_LABEL, VERSION
from joex_operator.cluster.cache import Indexer, Key, Unreadable, version
from joex_operator.cluster.fleet import ClusterFleet
from joex_operator.cluster.kopf_handlers import handlers
from joex_operator.cluster.kopf_settings import kopf_settings
from joex_operator.cluster.kubernetes_api import (
    ApiError,
    Forbidden,
    KubernetesApi,
    NotFound,
    Object,
    describe,
    path_of,
)
from joex_operator.cluster.namespace_claims import NamespaceClaims
from joex_operator.cluster.watch_session import WatchSession
from joex_operator.control.controller import PERIODIC, POOL, Controller
from joex_operator.decide.observed import ObservedDeployment, ObservedPod

_log = logging.getLogger("joex.operator")

_OBJECTS = {"joexpools": POOL, "periodictasks": PERIODIC}
_LISTED = ("deployments", "pods", *_OBJECTS)
"""A pool comes after its Deployments and pods: a reconcile without them would take its replicas for missing."""
_AT_ONCE = 10
"""Namespaces that are listed at once, of each a page."""
_CHECK_CRDS_EVERY = 2.0
_LEFT_OUT_AGAIN_IN = 10.0
_PROBES_APART = 1.0
"""Seconds between two questions whether a namespace can be listed again, at least: there may be a thousand."""


class RestoredError(Exception):
    """The API server has an older state than before. What is known of later versions would be taken for newer."""


class KopfWatches:
    """Keeps the fleet's cache up to date, and feeds the controller.

    Args:
        api: for lists.
        fleet: has the cache.
        controller: reconciles what has changed.
        namespaces: to watch; none: the whole cluster.
        claims: only objects of a namespace that this release holds reach the controller.
        identity: of this operator.
        binding: the RoleBinding that the chart makes in each of the namespaces.
    """

    def __init__(
        self,
        api: KubernetesApi,
        fleet: ClusterFleet,
        controller: Controller,
        namespaces: Collection[str],
        *,
        claims: NamespaceClaims,
        identity: str,
        binding: str,
    ) -> None:
        self._api = api
        self._fleet = fleet
        self._controller = controller
        self._namespaces = tuple(namespaces)
        self._claims = claims
        self._identity = identity
        paths = [path_of(namespace, kind) for kind in _LISTED for namespace in self._namespaces or ("",)]
        self._loop = asyncio.get_running_loop()
        self._needs_resync = asyncio.Event()
        self._complete: set[str] = set()
        self._left_out: dict[str, tuple[str, str]] = {}
        self._listed: dict[str, int] = {}
        claims.on_loss, claims.on_deletion = self._abandon, self._remove_all
        self._mend = (
            f"; the operator needs the CRDs, and in each namespace that it watches the RoleBinding {binding} and "
            "its Role: `helm upgrade` makes these again"
        )
        self._session = WatchSession(api.client, paths, self._note_list, self._mend)

    def problem(self) -> str | None:
        """Why a watch is not live, in one line; None: all are live, or left out."""
        return self._session.problem()

    def left_out(self) -> str | None:
        """Which of several namespaces is left out, and why, in one line; None: none."""
        return next((said for _, said in self._left_out.values()), None) or self._session.left_out()

    async def missed(self) -> None:
        """Wait until a watch may have missed deletions, or objects of an unclaimed namespace, which `resync` finds.

        Or until a namespace that `resync` has left out can be listed: no watch tells of that, if none has broken.
        """
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(self._try_left_out())
            await self._needs_resync.wait()
            asking.cancel()
        self._needs_resync.clear()

    async def _try_left_out(self) -> None:
        """Request a resync when the API server lists again what it did not. The namespaces take turns."""
        for namespace, (kind, _) in cycle(self._left_out.items()):
            await asyncio.sleep(max(_LEFT_OUT_AGAIN_IN / len(self._left_out), _PROBES_APART))
            with suppress(ApiError):
                async for _page in self._pages(kind, namespace):
                    pass
                self.request_resync()
                return

    def request_resync(self) -> None:
        """Let `missed` return."""
        self._needs_resync.set()

    async def wait_for_crds(self) -> None:
        """Wait until the API server serves the CRDs, which the chart may install at the same time."""
        logged = False
        while True:
            with suppress(NotFound):
                known = await self._api.get(f"/apis/{GROUP}/{VERSION}")
                if {one["name"] for one in known["resources"]} >= set(_OBJECTS):
                    return
            if not logged:
                logged = True
                _log.warning("waiting for the CRDs of %s/%s: kubectl apply -f crds/", GROUP, VERSION)
            await asyncio.sleep(_CHECK_CRDS_EVERY)

    async def run(self) -> None:
        """Watch until cancelled.

        Raises:
            ApiError: kopf has ended by itself.
        """
        stop: Future[None] = Future()
        ended = self._start(stop)
        try:
            await asyncio.shield(ended)
        finally:
            _set(stop)
        raise ApiError(f"the watches on the API server have ended: {ended.result()}")

    def _start(self, stop: Future[None]) -> asyncio.Future[str]:
        """Start kopf in a thread; the result says why kopf has ended."""
        loop, ended = self._loop, self._loop.create_future()

        def hand_over(plural: str, event: kopf.RawEvent) -> None:
            loop.call_soon_threadsafe(self._on_event, plural, event)

        def run() -> None:
            why = "kopf has stopped"
            try:
                asyncio.run(self._run_kopf(hand_over, stop))
            except Exception as error:  # noqa: BLE001 - after any error the operator starts over
                why = f"{type(error).__name__}: {describe(error)}"
                _log.debug("kopf has failed", exc_info=True)
            finally:
                with suppress(RuntimeError):  # the operator's loop has ended
                    loop.call_soon_threadsafe(ended.set_result, why)

        threading.Thread(target=run, name="joex kopf", daemon=True).start()
        return ended

    async def _run_kopf(self, hand_over: Callable[[str, kopf.RawEvent], None], stop: Future[None]) -> None:
        try:
            await kopf.operator(
                registry=handlers(self._session, hand_over),
                settings=kopf_settings(),
                # By default kopf asks for the user's name, and a user without an entry in passwd has none. (The type is
                # a private NewType of str.)
                identity=self._identity,  # type: ignore[arg-type]
                standalone=True,
                clusterwide=not self._namespaces,
                namespaces=self._namespaces,
                stop_flag=stop,
            )
        finally:
            _set(stop)  # kopf waits for it in a thread, for which the loop waits at its end
            await self._session.close()

    def _note_list(self) -> None:
        with suppress(RuntimeError):  # the operator's loop has ended
            self._loop.call_soon_threadsafe(self.request_resync)

    def _on_event(self, plural: str, event: kopf.RawEvent) -> None:
        """Take an event of a watch, on the operator's loop."""
        body: dict[str, Any] = dict(event["object"])
        is_gone = event["type"] == "DELETED"
        cache = self._fleet.cache
        changed_object: ObservedDeployment | ObservedPod | Unreadable | None
        if plural == "deployments":
            changed_object = cache.deployments.drop(body) if is_gone else cache.deployments.put(body)
        elif plural == "pods":
            changed_object = cache.pod_deleted(body) if is_gone else cache.pods.put(body)
        elif is_gone:
            if self._fleet.mark_deleted({**body, "kind": _OBJECTS[plural]}):
                self._controller.remove(_OBJECTS[plural], body["metadata"]["namespace"], body["metadata"]["name"])
            return
        elif self._is_complete(body["metadata"]["namespace"]):
            self._put_object(_OBJECTS[plural], body)
            return
        else:
            if self._claims.holds(body["metadata"]["namespace"]):  # otherwise a resync follows when it has been claimed
                self.request_resync()
            return
        if changed_object is not None:
            self._controller.enqueue(changed_object.namespace, changed_object.pool)

    async def resync(self) -> None:
        """List everything, and correct what the watches have missed.

        Namespaces are listed at once: one that answers late holds up no other one.

        The objects of a namespace reach the controller together at first: a pool without its periodic tasks would mean
        that these were deleted, and the controller would delete their rows. One of several namespaces that the API
        server does not list is left out, and what is known of it stays: its owner may take the operator's rights there
        away, or the API server may be unable to read an object there. One that was lost meanwhile, and is held again,
        waits for the next resync: its objects were listed before the loss.

        Raises:
            ApiError: the API server lists no namespace, or refuses the operator of the whole cluster.
            ExceptionGroup: has a RestoredError; what is known is of no use any more.
        """
        before = self._complete.copy()
        failed: dict[str, tuple[str, ApiError]] = {}
        most = asyncio.Semaphore(_AT_ONCE)

        async def list_one(namespace: str) -> None:
            first: list[tuple[str, Object]] = []
            async with most:
                for kind in _LISTED:
                    try:
                        await self._list(kind, namespace, first)
                    except ApiError as error:
                        failed[namespace] = kind, error
                        return
            named = {namespace} if namespace else {body["metadata"]["namespace"] for _, body in first}
            held = set(filter(self._claims.holds, named)) - (before - self._complete)
            for kind, body in first:
                if body["metadata"]["namespace"] in held:
                    self._put_object(kind, body)
            self._complete |= held

        async with asyncio.TaskGroup() as group:
            for namespace in self._namespaces or ("",):
                group.create_task(list_one(namespace))
        self._leave_out(failed)

    def _leave_out(self, failed: Mapping[str, tuple[str, ApiError]]) -> None:
        refused = {namespace for namespace, (_, error) in failed.items() if isinstance(error, (Forbidden, NotFound))}
        if failed.keys() >= set(self._namespaces):  # no owner of a namespace does this
            for namespace, (_, error) in failed.items():
                if not namespace or namespace not in refused:
                    raise error
        before, self._left_out = self._left_out, {}
        for namespace, (kind, error) in failed.items():
            said = f"leaves out the namespace {namespace}: {error}" + (self._mend if namespace in refused else "")
            self._left_out[namespace] = kind, said
            if namespace not in before:
                _log.warning("%s", said)

    def _pages(self, kind: str, namespace: str) -> AsyncIterator[Object]:
        query = {} if kind in _OBJECTS else {"labelSelector": POOL_LABEL}
        return self._api.pages(path_of(namespace, kind), **query)

    async def _list(self, kind: str, namespace: str, first: list[tuple[str, Object]]) -> None:
        at, there = 0, set[Key]()
        known = self._listed.get(kind, 0)  # as of now: meanwhile another namespace may have a later list
        async for page in self._pages(kind, namespace):
            at = at or version(page)
            if at < known:
                raise RestoredError(f"version {at} of {kind} after {known}: etcd has an older state")
            self._listed[kind] = max(at, self._listed.get(kind, 0))
            there |= {(body["metadata"]["namespace"], body["metadata"]["name"]) for body in page["items"]}
            self._take_page(kind, page["items"], first)
        self._forget_absent(kind, there, at, namespace)

    def _take_page(self, kind: str, bodies: Sequence[Object], first: list[tuple[str, Object]]) -> None:
        if kind in _OBJECTS:
            for body in bodies:
                if self._is_complete(body["metadata"]["namespace"]):
                    self._put_object(_OBJECTS[kind], body)
                else:
                    first.append((_OBJECTS[kind], body))
            return
        for pool in self._indexer(kind).put_all(bodies):
            self._controller.enqueue(*pool)

    def _abandon(self, namespace: str) -> None:
        self._complete.discard(namespace)
        self._controller.abandon(namespace)

    def _remove_all(self, namespace: str) -> None:
        self._complete.discard(namespace)
        self._controller.remove_all(namespace)

    def _is_complete(self, namespace: str) -> bool:
        """Whether the controller has all objects of a namespace, which this release holds."""
        return self._claims.holds(namespace) and namespace in self._complete

    def _forget_absent(self, kind: str, there: Collection[Key], at: int, namespace: str) -> None:
        if kind in _OBJECTS:
            for key in self._fleet.forget_absent(_OBJECTS[kind], there, at, namespace):
                self._controller.remove(_OBJECTS[kind], *key)
            return
        for pool in self._indexer(kind).forget_absent(there, at, namespace):
            self._controller.enqueue(*pool)

    def _indexer(self, kind: str) -> Indexer[ObservedDeployment] | Indexer[ObservedPod]:
        return self._fleet.cache.deployments if kind == "deployments" else self._fleet.cache.pods

    def _put_object(self, kind: str, body: Mapping[str, Any]) -> None:
        manifest = {**body, "kind": kind, "apiVersion": f"{GROUP}/{VERSION}"}
        if self._fleet.keep_status(manifest):  # a list may come after a newer event
            self._controller.put({key: value for key, value in manifest.items() if key != "status"})


def _set(stop: Future[None]) -> None:
    with suppress(InvalidStateError):  # it is set already
        stop.set_result(None)

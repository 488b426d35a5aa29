"""The cache of Deployments and pods: updated by watch events, and corrected by a list every few minutes.

A watch can stall without an error, and reports no deletion that happens while it is broken. An object that is neither
in a later list nor newer than the list is gone.

An object that can't be read stops the reconciles of its pool, and no other object. Without a Deployment that is there,
a plan would create another executor in its place at each reconcile.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from joex_operator.api.names import POOL_LABEL
from joex_operator.control.fleet import FleetError
from joex_operator.decide import observed
from joex_operator.decide.observed import ObservedDeployment, ObservedPod
from joex_operator.decide.replicas import Replica

_log = logging.getLogger("joex.operator")

_REMEMBERED_FOR = 600.0
_MOST_REMEMBERED = 10_000
_MOST_OF_POOL = 1000
"""Deleted pods that are remembered; the jobs of one before them wait for the lease of its executor."""
_LONGEST = 300

Body = Mapping[str, Any]
Key = tuple[str, str]
"""Namespace and name."""


class _InPool(Protocol):
    @property
    def namespace(self) -> str: ...
    @property
    def pool(self) -> str: ...
    @property
    def uid(self) -> str: ...


Observed = TypeVar("Observed", bound=_InPool)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An object that can't be read; ``problem`` names it and says why."""

    namespace: str
    pool: str
    uid: str
    problem: str


_Remembered: TypeAlias = OrderedDict[str, tuple[float, T]]
"""What is remembered of deleted objects by their uid, each with the time of its deletion, the oldest first."""


def _remember(some: _Remembered[T], uid: str, what: T, most: int) -> float:
    """Remember this, and no more than so many, for `_REMEMBERED_FOR` seconds; returns the time."""
    now = time.monotonic()
    some[uid] = now, what
    while len(some) > most or next(iter(some.values()))[0] < now - _REMEMBERED_FOR:
        some.popitem(last=False)
    return now


def version(body: Body) -> int:
    """The resource version, a number that grows with each change in the cluster; 0: it is not a number."""
    text = body["metadata"].get("resourceVersion", "")
    return int(text) if text.isdecimal() else 0


class Indexer(Generic[Observed]):
    """Objects of one kind, by their key and by their pool.

    Args:
        kind: for messages.
        read: makes an object of what the API server has.
    """

    def __init__(self, kind: str, read: Callable[[Body], Observed]) -> None:
        self._kind = kind
        self._read_object = read
        self._objects: dict[Key, tuple[int, Observed | Unreadable]] = {}
        self._by_pool: dict[Key, dict[Key, Observed | Unreadable]] = {}
        self._dropped: _Remembered[int] = OrderedDict()

    def put(self, body: Body) -> Observed | Unreadable | None:
        """Add or update an object; returns it, or None where the cache has a newer version."""
        key = _key(body)
        known, dropped = self._objects.get(key), self._dropped.get(body["metadata"]["uid"])
        if (known is not None and version(body) < known[0]) or (dropped and version(body) <= dropped[1]):
            return None
        one = self._read(body)
        if known is not None and known[1].pool != one.pool:
            self._forget(key)
        self._objects[key] = (version(body), one)
        self._by_pool.setdefault((one.namespace, one.pool), {})[key] = one
        return one

    def _read(self, body: Body) -> Observed | Unreadable:
        try:
            return self._read_object(body)
        except Exception as error:  # noqa: BLE001 - no object stops the others
            return self._unreadable(body, error)

    def _unreadable(self, body: Body, error: Exception) -> Unreadable:
        key = _key(body)
        _, known = self._objects.get(key, (0, None))
        why = f"{type(error).__name__}: {' '.join(str(error).split())}"[:_LONGEST]
        found = Unreadable(
            namespace=key[0],
            pool=(body["metadata"].get("labels") or {}).get(POOL_LABEL) or (known.pool if known else ""),
            uid=body["metadata"]["uid"],
            problem=f"{self._kind} {'/'.join(key)} can't be read: {why}",
        )
        if not isinstance(known, Unreadable) or known.uid != found.uid:  # else it was told
            _log.error("%s; the operator leaves its pool as it is", found.problem, exc_info=error)
        return found

    def drop(self, body: Body) -> Observed | Unreadable:
        """Remove a deleted object; returns its last state. Its uid is kept, so that an older list can't revive it.

        A newer one can: an object that has lost its label, and gets it back, was none to the watch meanwhile.

        Another object may have its name by now: a deletion is told late where a watch was cut.
        """
        _remember(self._dropped, body["metadata"]["uid"], version(body), _MOST_REMEMBERED)
        last = self._read(body)
        known = self._objects.get(_key(body))
        if known is not None and known[1].uid == body["metadata"]["uid"]:
            self._forget(_key(body))
        return last

    def of(self, namespace: str, pool: str) -> Iterable[Observed]:
        """The objects of a pool.

        Raises:
            FleetError: one of them can't be read.
        """
        found = []
        for one in self._by_pool.get((namespace, pool), {}).values():
            if isinstance(one, Unreadable):
                raise FleetError(one.problem)
            found.append(one)
        return found

    def put_all(self, bodies: Iterable[Body]) -> set[Key]:
        """Apply a page of a list; returns the changed pools."""
        changed = set()
        for body in bodies:
            before = self._objects.get(_key(body))
            one = self.put(body)
            if one is not None and (before is None or before[1] != one):
                changed.add((one.namespace, one.pool))
        return changed

    def forget_absent(self, there: Collection[Key], listed_at: int, namespace: str) -> set[Key]:
        """Remove the objects that the list of a namespace ("": of all) at a version lacks; returns their pools."""
        changed = set()
        for key, (known, one) in list(self._objects.items()):
            if key not in there and known <= listed_at and namespace in ("", key[0]):
                self._forget(key)
                changed.add((one.namespace, one.pool))
        return changed

    def _forget(self, key: Key) -> None:
        known = self._objects.pop(key, None)
        if known is not None:
            pool = (known[1].namespace, known[1].pool)
            self._by_pool[pool].pop(key, None)
            if not self._by_pool[pool]:
                del self._by_pool[pool]


class Cache:
    """The Deployments and pods of all pools."""

    def __init__(self) -> None:
        self.deployments: Indexer[ObservedDeployment] = Indexer("Deployment", observed.deployment)
        self.pods: Indexer[ObservedPod] = Indexer("pod", observed.pod)
        self._gone: OrderedDict[Key, _Remembered[ObservedPod]] = OrderedDict()

    def pod_deleted(self, body: Body) -> ObservedPod | Unreadable:
        """Remove a deleted pod. The cache remembers one that had ended, whose jobs can move on at once."""
        pod = self.pods.drop(body)
        if not isinstance(pod, Unreadable) and pod.has_ended:
            key = pod.namespace, pod.pool
            gone = self._gone[key] = self._gone.pop(key, OrderedDict())
            now = _remember(gone, pod.uid, pod, _MOST_OF_POOL)
            # The pool whose latest pod went first comes first.
            while next(reversed(next(iter(self._gone.values())).values()))[0] < now - _REMEMBERED_FOR:
                self._gone.popitem(last=False)
        return pod

    def replicas(self, namespace: str, pool: str, uid: str) -> list[Replica]:
        """The replicas of a pool.

        Raises:
            FleetError: a Deployment or a pod of it can't be read.
        """
        since = time.monotonic() - _REMEMBERED_FOR
        gone: Mapping[str, tuple[float, ObservedPod]] = self._gone.get((namespace, pool), {})
        return observed.replicas(
            pool,
            uid,
            self.deployments.of(namespace, pool),
            self.pods.of(namespace, pool),
            [pod for at, pod in gone.values() if at > since],
        )


def _key(body: Body) -> Key:
    return body["metadata"]["namespace"], body["metadata"]["name"]
